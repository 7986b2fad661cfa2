"""How fast a session's log is read and written, next to the JSON libraries and to bare system calls in the same run.

    python tests/bench/bench_journal.py

Reading: MB/s over one file, the best of three. Writing: records of about 400 bytes a second. Then the memory that
streaming the file takes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import orjson

from agentlab.journal import Journal, replay
from agentlab.messages import user

EVENTS = 60_000
APPENDS = 30_000
SYNCED = 400
BATCH = 16


class Message(msgspec.Struct):
    role: str
    content: str


class Event(msgspec.Struct):
    seq: int
    ts: float
    type: str
    message: Message | None = None


def best(work: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def lines(path: Path, loads: Callable[[bytes], Any]) -> int:
    """Read every line of the file with this function."""
    with open(path, "rb") as file:
        for line in file:
            loads(line)
    return 0


def reading(path: Path, journal: Journal) -> None:
    size = path.stat().st_size
    rows: list[tuple[str, Callable[[], object]]] = [
        ("json", lambda: lines(path, json.loads)),
        ("orjson", lambda: lines(path, orjson.loads)),
        ("msgspec, untyped", lambda: lines(path, msgspec.json.Decoder().decode)),
        ("msgspec, typed", lambda: lines(path, msgspec.json.Decoder(Event).decode)),
        ("lines alone", lambda: lines(path, len)),
        ("journal.events()", lambda: sum(1 for _ in journal.events())),
        ("replay(journal.events())", lambda: replay(journal.events())),
    ]
    taken = {name: best(work) for name, work in rows}
    print(f"{EVENTS:,} events, {size / 1e6:.0f} MB\n{'':28} {'MB/s':>8} {'of json':>8} {'of typed':>9}")
    for name, seconds in taken.items():
        ratio, typed = taken["json"] / seconds, taken["msgspec, typed"] / seconds
        print(f"{name:28} {size / seconds / 1e6:8.0f} {ratio:8.1f} {typed:9.2f}")
    tracemalloc.start()
    for _ in journal.events():
        pass
    print(f"{'memory while streaming':28} {tracemalloc.get_traced_memory()[1] / 1e3:8.0f} KB at most")
    tracemalloc.stop()


def writing(root: Path) -> None:
    event = {"type": "message", "message": user("x" * 320)}
    fd = os.open(root / "peer", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def peer(count: int, *, sync: bool = False) -> None:
        for seq in range(count):
            os.write(fd, orjson.dumps({"seq": seq, "ts": time.time(), **event}) + b"\n")
            if sync:
                os.fdatasync(fd)

    def ours(durability: Any, count: int, batch: int = 1) -> None:
        with Journal.create(root, {}, durability=durability) as journal:
            if batch == 1:
                for _ in range(count):
                    journal.append(event)
            else:
                for _ in range(count // batch):
                    journal.append_all([event] * batch)

    rows = [
        ("os.write + orjson", APPENDS, best(lambda: peer(APPENDS))),
        ("append, flush", APPENDS, best(lambda: ours("flush", APPENDS))),
        ("os.write + orjson + fdatasync", SYNCED, best(lambda: peer(SYNCED, sync=True))),
        ("append, sync", SYNCED, best(lambda: ours("sync", SYNCED))),
        (f"append_all of {BATCH}, sync", SYNCED * 4, best(lambda: ours("sync", SYNCED * 4, BATCH))),
    ]
    os.close(fd)
    print(f"\n{'':32} {'records/s':>10} {'of its peer':>12}")
    for at, (name, count, seconds) in enumerate(rows):
        peer_at = 0 if at < 2 else 2
        ratio = (count / seconds) / (rows[peer_at][1] / rows[peer_at][2])
        print(f"{name:32} {count / seconds:10,.0f} {ratio:12.2f}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with Journal.create(root, {"model": "m"}) as journal:
            for number in range(EVENTS - 1):
                journal.append({"type": "message", "message": user(f"{number} é " + "words and more of them " * 24)})
        reading(journal.path, journal)
        writing(root)


if __name__ == "__main__":
    main()
