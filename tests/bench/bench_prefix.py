"""How long comparing two requests takes, next to numpy and to one full comparison, in one run.

    python tests/bench/bench_prefix.py [megabytes]

5 MB unless another size is given; the texts differ in their last character. Prints milliseconds, the best of ten.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.messages import Message, assistant, call, tool, user
from agentlab.prefix import as_text, common_prefix, diff

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


def session(size: int, result: int) -> dict[str, Any]:
    """A request of `size` characters: a question, a call and its result of `result` characters, again and again."""
    history: list[Message] = []
    for turn in range(size // result):
        lines = "".join(f"{turn:6}\tline {n} of a file that was read\n" for n in range(result // 40))
        history += [
            user(f"Look at module {turn}."),
            assistant("I look.", call(f"call_{turn}", "read_file", path=f"module_{turn}.py")),
            tool(f"call_{turn}", lines),
        ]
    return {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, *history]}


def best(work: Callable[[], object], rounds: int = 10) -> float:
    """The shortest of some runs, in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def by_numpy(a: bytes, b: bytes) -> int:
    size = min(len(a), len(b))
    unequal = numpy.frombuffer(a, numpy.uint8, size) != numpy.frombuffer(b, numpy.uint8, size)
    at = int(unequal.argmax())
    return at if unequal[at] else size


def changed(request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Copies of a request: one with a message more, and one whose last result lost its last character, too."""
    longer = json.loads(json.dumps(request))
    longer["messages"].append(user("And?"))
    broken = json.loads(json.dumps(longer))
    broken["messages"][-2]["content"] = broken["messages"][-2]["content"][:-1] + "!"
    return longer, broken


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else "5") * 1_000_000)
    request = session(size, 50_000)
    _, broken = changed(request)
    text, other = as_text(request), as_text(broken)
    same, data, raw = other[: len(text) - 9] + text[len(text) - 9 :], text.encode(), other.encode()
    wide = text[:-1] + "😀", other[:-1] + "🟡"
    peer = best(lambda: common_prefix(text, other))
    rows: list[tuple[str, Callable[[], object]]] = [
        ("a == b, the whole texts", lambda: text == same),
        ("common_prefix, two str", lambda: common_prefix(text, other)),
        ("common_prefix, two bytes", lambda: common_prefix(data, raw)),
        ("common_prefix, str with emoji", lambda: common_prefix(*wide)),
        ("both requests as JSON, then common_prefix", lambda: common_prefix(json.dumps(request), json.dumps(broken))),
    ]
    if numpy is not None:
        rows.insert(3, ("numpy, two bytes", lambda: by_numpy(data, raw)))
    for result in (50_000, 20_000, 5_000):
        made = session(size, result)
        for name, then in zip(("only added to", "with its culprit"), changed(made), strict=True):
            work = partial(diff, made, then)
            rows.append((f"diff of {len(made['messages']):,} messages, {name}", work))
    print(f"{len(text):,} characters")
    print(f"{'':44} {'ms':>8} {'in common_prefix':>17}")
    for name, work in rows:
        taken = best(work)
        print(f"{name:44} {taken:8.2f} {taken / peer:17.2f}")


if __name__ == "__main__":
    main()
