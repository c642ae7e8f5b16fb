"""What each part is given: its own, and nothing that is for another part only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brainhands.shared.local.parts import Part, brain_part, flower_part, hands_part, relay_part
from brainhands.shared.runtime.settings import Addresses

FOUND = Addresses(database_url="postgresql+psycopg://host/shop", redis_url="redis://host/0")
PARTS: dict[str, Callable[[], Part]] = {
    "brain": lambda: brain_part(FOUND, "shop.agents", None, number=1),
    "hands": lambda: hands_part(FOUND, "shop.tools", None, number=1),
    "relay": lambda: relay_part(FOUND),
    "flower": lambda: flower_part(FOUND, 5555),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_for_the_models_provider_goes_to_brain_only(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("BRAINHANDS_HOME", str(tmp_path_factory.mktemp("home")))
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID"):
        monkeypatch.setenv(variable, "secret")
    monkeypatch.setenv("SHOP_KEY", "a tool's own")

    environment = PARTS[name]().environment

    assert {key for key in environment if key.startswith("OPENAI_")} == (
        {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID"} if name == "brain" else set()
    )
    assert environment["SHOP_KEY"] == "a tool's own"
    assert environment["DATABASE_URL"] == FOUND.database_url
