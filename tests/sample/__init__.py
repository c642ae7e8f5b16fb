"""The smallest application: one agent with one tool."""
