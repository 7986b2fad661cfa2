"""How fast a batch is brought within its budget, next to what must be done anyway, in one run.

    python tests/bench/bench_spill.py [megabytes]

One result of 50 MB unless another size is given, in ASCII and with other characters. Every row is the best of three.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.spill import OutputBudget, SpillStore, apply_budget, excerpt
from agentlab.spool import Spool
from agentlab.tools import ToolResult

CHUNK_BYTES = 64 * 1024


def best(work: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def rows(text: str, folder: Path) -> list[tuple[str, Callable[[], object]]]:
    data = text.encode()
    store = SpillStore(folder / "spill")
    results = [ToolResult("call_1", "run_shell", {}, "completed", text)]

    def stream() -> None:
        with store.open() as sink:
            for at in range(0, len(data), CHUNK_BYTES):
                sink.write(data[at : at + CHUNK_BYTES])
            sink.close()

    return [
        ("len(text)", lambda: len(text)),
        ("text.encode()", lambda: text.encode()),
        ("encode, hash and write to a file", lambda: _by_hand(text, folder / "plain")),
        ("excerpt, 2,000 characters", lambda: excerpt(text, 2_000)),
        ("apply_budget, nothing to do", lambda: apply_budget(results, OutputBudget(10**9, 10**9), store)),
        ("apply_budget, spilled", lambda: apply_budget(results, OutputBudget(), store)),
        ("apply_budget, spilled, in bytes", lambda: apply_budget(results, OutputBudget(unit="bytes"), store)),
        ("store.open(), pieces of 64 KB", stream),
    ]


def _by_hand(text: str, path: Path) -> None:
    data = text.encode()
    hashlib.blake2b(data).digest()
    path.write_bytes(data)


def peaks(text: str, folder: Path) -> list[tuple[str, Callable[[], object]]]:
    """What must hold the whole text, and what must not."""
    data = text.encode()
    store = SpillStore(folder / "peak")
    results = [ToolResult("call_1", "run_shell", {}, "completed", text)]

    def streamed() -> None:
        with Spool(store, OutputBudget()) as spool:
            for at in range(0, len(data), CHUNK_BYTES):
                spool.add(data[at : at + CHUNK_BYTES])
            spool.close()

    return [
        ("b''.join of the pieces, decoded", lambda: data[:-1].decode()),
        ("apply_budget, spilled", lambda: apply_budget(results, OutputBudget(), store)),
        ("Spool: from the pipe to the file", streamed),
    ]


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 50) * 1e6)
    for name, line in (("ASCII", "row 26830: id=187810 status=active\n"), ("mixed", "row 26830: 東京 é 🟡 active\n")):
        text = line * (size // len(line.encode()))
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:36} {'ms':>9} {'MB/s':>12}")
            for what, work in rows(text, Path(folder)):
                taken = best(work)
                print(f"{what:36} {taken * 1000:9.3f} {size / 1e6 / taken:12,.0f}")
            print(f"{'more memory at its peak':36} {'MB':>9}")
            for what, work in peaks(text, Path(folder)):
                tracemalloc.start()
                work()
                print(f"{what:36} {tracemalloc.get_traced_memory()[1] / 1e6:9.1f}")
                tracemalloc.stop()


if __name__ == "__main__":
    main()
