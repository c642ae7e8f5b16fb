"""How values travel on our connections, whatever a module of the same process does to psycopg's own maps or to json."""

from __future__ import annotations

import json
from typing import Any

from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, types
from psycopg.types.array import register_all_arrays
from psycopg.types.json import set_json_loads


class _Adaptation:
    """Psycopg's own default adapters, registered anew."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(types=types)
        register_default_adapters(self)
        register_all_arrays(self)
        set_json_loads(_loads, self)


def _loads(given: str | bytes) -> Any:
    return _DECODER.decode(given if isinstance(given, str) else given.decode())


_DECODER = json.JSONDecoder()
ADAPTATION = _Adaptation()
