"""Long runs of the journal: many kills, and a million records. `SOAK_SHARE=0.1` runs a tenth."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from agentlab.journal import Journal, replay
from agentlab.messages import user
from tests.test_journalfile import kill_writers

SHARE = float(os.environ.get("SOAK_SHARE", "1"))


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["flush", "sync"])
def test_500_kills(durability: str, tmp_path: Path) -> None:
    rounds = round(250 * SHARE)
    assert kill_writers(tmp_path, rounds, durability) > 2 * rounds


@pytest.mark.soak
def test_a_million_records(tmp_path: Path) -> None:
    count = round(1_000_000 * SHARE)
    with Journal.create(tmp_path, {}, id="s") as journal:
        for number in range(2, count + 1):
            if number % 100:
                event = {"type": "message", "message": user(f"#{number}")}
            else:
                node = user(f"S{number}") | {"origin": "compaction"}
                event = {
                    "type": "replace",
                    "start": number - 99,
                    "end": number - 1,
                    "node": node,
                    "reason": "compaction",
                }
            assert journal.append(event) == number
    tracemalloc.start()
    assert sum(1 for _ in journal.events()) == count
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert [message["content"] for message in replay(journal.events()).history] == [
        f"S{number}" for number in range(100, count + 1, 100)
    ]
    with Journal.open(tmp_path, "s") as journal:
        assert journal.append({"type": "rewind", "to": 50}) == count + 1
    assert len(replay(journal.events()).history) == 49
