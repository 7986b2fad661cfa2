"""How fast logs fold, next to splitting the same text into lines.

    python tests/bench/bench_logfold.py [megabytes]

The text is the real test log of data/logs/pytest.log, repeated up to 10 MB unless another size is given; the last row
is one line of blanks, the worst that a single line can be. Prints MB/s, the best of three.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.logfold import fold

LOG = Path(__file__).resolve().parents[2] / "data" / "logs" / "pytest.log"


def best(work: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 10) * 1_000_000)
    log = LOG.read_bytes().decode()
    text = log * max(1, size // len(log))
    blanks = " " * len(text)
    rows: list[tuple[str, Callable[[], object]]] = [
        ("splitlines", text.splitlines),
        ("fold", lambda: fold(text)),
        ("fold, merge_similar", lambda: fold(text, merge_similar=True)),
        ("fold, one line of blanks", lambda: fold(blanks, min_lines=1)),
    ]
    print(f"{'':26} {'MB':>6} {'MB/s':>8}")
    for name, work in rows:
        print(f"{name:26} {len(text) / 1e6:6.1f} {len(text) / 1e6 / best(work):8.1f}")
    folded = fold(text)
    print(f"{folded.lines_in:,} lines fold to {folded.lines_out:,}, {folded.savings:.1%} of the characters gone")


if __name__ == "__main__":
    main()
