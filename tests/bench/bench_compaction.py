"""How long `compaction` takes for 25,000 to 100,000 messages, next to the history's own JSON in the same run.

    python tests/bench/bench_compaction.py

The messages keep one size, so four times as many should take four times as long. The summariser answers at once; the
outline stands in for one that fails. Prints milliseconds and microseconds a message.
"""

from __future__ import annotations

import asyncio
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.compaction import branch, compact, split_index
from agentlab.messages import Message, assistant, call, jsonl, tool, user
from agentlab.summary import extractive_summary, summary_source

SIZES = (25_000, 50_000, 100_000)


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


def works(history: list[Message]) -> dict[str, Callable[[], object]]:
    def fail(source: str) -> str:
        raise RuntimeError("no model today")

    view = asyncio.run(compact(history, summarize=lambda source: "A summary.")).history
    return {
        "jsonl, to compare with": lambda: jsonl(history),
        "split_index": lambda: split_index(history),
        "compact": lambda: asyncio.run(compact(history, summarize=lambda source: "A summary.")),
        "compact, degraded": lambda: asyncio.run(compact(history, summarize=fail)),
        "summary_source, unbounded": lambda: summary_source(history, max_chars=10**9),
        "extractive_summary, unbounded": lambda: extractive_summary(history, max_chars=10**9),
        "branch, reused": lambda: branch(history, view, len(history) - 2),
        "branch, rebuilt": lambda: branch(history, view, len(history) // 2),
    }


def main() -> None:
    rows: dict[str, list[float]] = {}
    for size in SIZES:
        for name, work in works(session(size)).items():
            rows.setdefault(name, []).append(best(work))
    print(f"{'milliseconds for messages:':32}" + "".join(f"{size:>10,}" for size in SIZES) + f"{'us each':>10}")
    for name, times in rows.items():
        print(f"{name:32}" + "".join(f"{taken:10.1f}" for taken in times) + f"{times[-1] * 1000 / SIZES[-1]:10.2f}")


if __name__ == "__main__":
    main()
