"""How long a surface takes for 25,000 to 100,000 nodes, next to the replay of the same log in the same run.

    python tests/bench/bench_surface.py [nodes]

Four times as many nodes should take four times as long. A third of them are tool results that are pruned; then all but
the last become one checkpoint, with a summariser that answers at once. Prints milliseconds and microseconds a node.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.journal import Event, replay
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.surface import Compactor, Pruner, Surface, sync


def session(size: int) -> list[Message]:
    """Turns of three messages: words, a call, its long result."""
    history: list[Message] = []
    for n in range(size // 3):
        asked = call(f"call_{n}", "read_file", path=f"src/module_{n}.py")
        history += [user(f"Look at module {n}."), assistant("", asked), tool(f"call_{n}", "a line\n" * 60)]
    return history


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def rows(size: int) -> dict[str, float]:
    history = session(size)
    surface = Surface()
    found = {"append_all": timed(lambda: surface.append_all(history))}
    events: list[Event] = surface.events
    found["replay, to compare with"] = timed(lambda: replay(events))
    found["history"] = timed(surface.history)
    found["sync, nothing new"] = timed(lambda: sync(surface, history))
    found["prune"] = timed(lambda: Pruner(200, 100, 50).prune(surface))
    found["prune, nothing to do"] = timed(lambda: Pruner(200, 100, 50).prune(surface))
    compactor = Compactor(surface, lambda source: "A summary.")
    found["measure"] = timed(compactor.measure)
    found["compact_now"] = timed(lambda: asyncio.run(compactor.compact_now()))
    assert len(surface.nodes) == 3
    return found


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    sizes = (most // 4, most // 2, most)
    table = {size: rows(size) for size in sizes}
    print(f"{'':28}" + "".join(f"{size:>12,}" for size in sizes) + "    µs a node")
    for name, last in table[most].items():
        print(
            f"{name:28}" + "".join(f"{table[size][name]:>9.1f} ms" for size in sizes) + f"{last * 1000 / most:>12.2f}"
        )


if __name__ == "__main__":
    main()
