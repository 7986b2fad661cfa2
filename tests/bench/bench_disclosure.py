"""How long a search over 1,000 tools takes, and what is paid before: building the index.

    python tests/bench/bench_disclosure.py [tools]

Prints milliseconds, the best of five. `difflib` over the same names is what many programs do instead.
"""

from __future__ import annotations

import json
import sys
import timeit
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.disclosure import Catalog
from agentlab.tools import Tool
from agentlab.toolsearch import ToolIndex

OFFICE = Path(__file__).resolve().parents[2] / "data/tools/office.json"


async def nothing(**_: Any) -> str:
    return ""


def sample(size: int) -> list[Tool]:
    """The office's tools over and over, each time as another server's."""
    entries = json.loads(OFFICE.read_bytes())["tools"]
    return [
        Tool(f"mcp__server{n // len(entries)}__{entry['name']}", entry["description"], entry["parameters"], nothing)
        for n in range(size)
        for entry in [entries[n % len(entries)]]
    ]


def best(work: Callable[[], object], number: int = 1) -> float:
    """The shortest of five runs, in milliseconds."""
    return min(timeit.repeat(work, number=number, repeat=5)) * 1000 / number


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    tools = sample(size)
    index, catalog = ToolIndex(tools), Catalog((), tools)
    names = [tool.name for tool in tools]
    long = "send an e-mail to the person on duty about the incident, " * 20
    rows = [
        ("build the index", best(lambda: ToolIndex(tools))),
        ("build the catalogue, listing too", best(lambda: Catalog((), tools))),
        ("search, three words", best(lambda: index.search("send an e-mail"), 10)),
        ("search, a word that all tools share", best(lambda: index.search("mcp"), 10)),
        ("search, 1,000 characters", best(lambda: index.search(long), 10)),
        ("search, a Chinese sentence", best(lambda: index.search("给用户发一条系统通知"), 10)),
        ("the array of the next request", best(catalog.specs, 100)),
        ("difflib over the names alone", best(lambda: get_close_matches("notify_usr", names))),
    ]
    print(f"{f'{size:,} tools':38} {'ms':>9}")
    for what, taken in rows:
        print(f"{what:38} {taken:9.3f}")


if __name__ == "__main__":
    main()
