"""Brain thinks: it turns a session's events into the model's next step, and never runs a tool."""

from brain.agent import Agent, Model
from shared.model.prices import Prices

__all__ = ["Agent", "Model", "Prices"]
