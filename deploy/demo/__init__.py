"""A small outside world and an agent that acts on it."""
