"""How long the layers take for 25,000 to 100,000 messages, next to the history's own JSON in the same run.

    python tests/bench/bench_layers.py [messages]

The messages keep one size, so four times as many should take four times as long. "appended" is what `prepare` takes
for a history that grew by one step since it was prepared: its cost must not be that of the history. Prints
milliseconds, microseconds a message, and the largest growth between neighbours.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import timeit
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.layers import FIELDS, CompactionManager, micro, snip
from agentlab.messages import Message, assistant, call, jsonl, tool, user

LARGEST = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
SIZES = (LARGEST // 4, LARGEST // 2, LARGEST)
ANSWER = json.dumps(dict.fromkeys(FIELDS, "x"))


def session(size: int) -> list[Message]:
    """Turns of five messages: words, two calls, their results, a reply."""
    history: list[Message] = []
    for turn in range(size // 5):
        calls = [call(f"call_{turn}_{n}", "read_file", path=f"src/module_{turn}.py", limit=200) for n in range(2)]
        history += [user(f"Look at module {turn}."), assistant("I look.", *calls), tool(calls[0]["id"], "line\n" * 40)]
        history += [tool(calls[1]["id"], "ok"), assistant("It is fine.")]
    return history


def best(work: Callable[[], object]) -> float:
    """The shortest of three runs, in milliseconds, without the garbage collector's walks through the sample."""
    return min(timeit.repeat(work, number=1, repeat=3)) * 1000


def works(history: list[Message], folder: str) -> dict[str, Callable[[], object]]:
    def manager() -> CompactionManager:
        return CompactionManager(folder, lambda source: ANSWER)

    kept = manager()
    asyncio.run(kept.prepare(history))
    grown = list(history)

    def append() -> object:
        grown.extend(session(5))
        return asyncio.run(kept.prepare(grown))

    return {
        "jsonl, to compare with": lambda: jsonl(history),
        "snip": lambda: snip(history),
        "micro": lambda: micro(history),
        "prepare, from the start": lambda: asyncio.run(manager().prepare(history)),
        "prepare, appended": append,
        "prepare, the same": lambda: asyncio.run(kept.prepare(grown)),
        "with a summary": lambda: asyncio.run(manager().compact_proactively(history)),
    }


def main() -> None:
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            for name, work in works(session(size), folder).items():
                rows.setdefault(name, []).append(best(work))
    print(
        f"{'milliseconds for messages:':32}"
        + "".join(f"{size:>10,}" for size in SIZES)
        + f"{'us each':>10}{'growth':>8}"
    )
    for name, times in rows.items():
        growth = max(later / sooner for sooner, later in pairwise(times))
        each = times[-1] * 1000 / SIZES[-1]
        print(f"{name:32}" + "".join(f"{taken:10.1f}" for taken in times) + f"{each:10.2f}{growth:8.1f}")


if __name__ == "__main__":
    main()
