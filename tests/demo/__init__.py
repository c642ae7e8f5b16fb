"""The demo, run as a person runs it."""
