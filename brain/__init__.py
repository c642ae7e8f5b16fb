"""Brain thinks: it turns a session's events into the model's next step, and never runs a tool."""

from brain.agent import Agent

__all__ = ["Agent"]
