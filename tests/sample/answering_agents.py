"""Agents whose answers are JSON of a stated form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from brainhands import Agent


class Place(BaseModel):
    street: str
    number: int = Field(gt=0)


def deliverable(street: str) -> str:
    if street == "crash":
        raise SystemExit("the validator ends")
    if street == "nowhere":
        raise ValueError("nobody delivers there")
    return street


class Delivery(BaseModel):
    order: int
    to: Place
    via: Annotated[str, AfterValidator(deliverable)] = "road"


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"type": "integer"},
        "to": {"$ref": "#/$defs/place"},
        "via": {"enum": ["road", "rail"]},
    },
    "required": ["order", "to"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer", "exclusiveMinimum": 0}},
            "required": ["street", "number"],
        }
    },
}
by_tool = Agent(name="by_tool", version=1, instructions="Find it out.", tools=["echo"], output=Delivery)
by_schema = Agent(name="by_schema", version=1, instructions="Find it out.", tools=["echo"], output=SCHEMA)
by_format = Agent(name="by_format", version=1, instructions="Find it out.", output=Delivery, dialect="openai")
behind = Agent(
    name="behind",
    version=1,
    instructions="Find it out.",
    output=Delivery,
    dialect="openai",
    background=True,
)
clerk = Agent(name="clerk", version=1, description="Looks orders up.", instructions="Find it out.", output=Delivery)
asking = Agent(name="asking", version=1, instructions="Ask the clerk.", tools=["clerk"])
