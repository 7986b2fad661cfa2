"""The cases in tests/data/cases.jsonl: faults seen in public projects, each with an input and the right answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "data" / "cases.jsonl"
_CASES = {found["id"]: found for found in map(json.loads, _FILE.read_bytes().splitlines())}


def case(id: str) -> dict[str, Any]:
    """The case with this id: `situation`, `input`, `expected`, `why`, `source` and more."""
    return json.loads(json.dumps(_CASES[id]))


def ids(prefix: str = "") -> list[str]:
    """The ids that start with `prefix`, in the file's order."""
    return [id for id in _CASES if id.startswith(prefix)]
