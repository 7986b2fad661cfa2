"""Listing sessions, and snapshots that come in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentlab.errors import AgentLabError
from agentlab.journal import Journal, migrate_snapshot, replay, sessions
from agentlab.messages import assistant, call, tool, user


def filled(root: Path, id: str, *messages: Any, age: float = 0.0) -> Path:
    with Journal.create(root, {"model": "m"}, id=id) as journal:
        journal.append_all({"type": "message", "message": message} for message in messages)
    os.utime(journal.path, (1000.0 - age, 1000.0 - age))
    return journal.path


def test_the_newest_first_with_title_size_and_age(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You are."}
    nudge = user("change the approach") | {"origin": "watchdog"}
    old = filled(
        tmp_path, "old", system, nudge, user("  Fix the\n\tlogin \x1b[31mpage\x1b[0m  "), user("more"), age=7200
    )
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "What is this?"}]
    filled(tmp_path, "parts", {"role": "user", "content": parts}, age=5)
    filled(tmp_path, "long", user("word " * 100_000), age=100)
    filled(tmp_path, "silent", age=200_000)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad name.jsonl").write_text("x")
    found = sessions(tmp_path, clock=lambda: 1000.0)
    assert [info.id for info in found] == ["parts", "long", "old", "silent"]
    assert [info.title for info in found] == [
        "What is this?", ("word " * 100)[:79] + "…", "Fix the login [31mpage [0m", "",
    ]  # fmt: skip
    assert [info.age_s for info in found] == [5.0, 100.0, 7200.0, 200_000.0]
    assert found[2].bytes == old.stat().st_size and found[2].meta == {"model": "m"}
    assert all(info.reason is None for info in found)
    assert found[2].line == f"old  {found[2].bytes:,} bytes  2 hours ago  Fix the login [31mpage [0m"
    assert [info.line.split("  ")[2] for info in found] == ["just now", "1 minute ago", "2 hours ago", "2 days ago"]
    assert found[3].line.endswith("(nothing said yet)")


def test_a_broken_file_is_listed_with_the_reason(tmp_path: Path) -> None:
    whole = filled(tmp_path, "torn-end", user("kept"))
    whole.write_bytes(whole.read_bytes()[:-5] + b"\n" + b'{"type":"message","message":7}\n')
    filled(tmp_path, "torn-start", user("kept")).write_bytes(
        b'{"seq":1,"ty\n{"seq":2,"type":"message","message":{"role":"user","content":"kept"}}'
    )
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "noise.jsonl").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(whole)
    os.mkfifo(tmp_path / "pipe.jsonl")
    found = {info.id: (info.title, info.reason) for info in sessions(tmp_path)}
    no_meta = "its first line is no session_meta, so its model is not known"
    assert found["torn-end"] == ("", None)
    assert found["torn-start"] == ("kept", no_meta)
    assert found["empty"] == ("", "it is empty")
    assert found["noise"] == ("", no_meta)
    assert all(found[id][1] for id in ("folder", "link", "pipe"))
    assert len(found) == 7


def test_no_folder_no_sessions(tmp_path: Path) -> None:
    assert sessions(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentLabError, match="cannot be read"):
        sessions(tmp_path / "file")


HISTORY = [user("Fix it."), assistant("", call("a", "run")), tool("a", "done"), assistant("Fixed.")]


def test_a_snapshot_becomes_a_log(tmp_path: Path) -> None:
    snapshot = tmp_path / "old.json"
    snapshot.write_text(json.dumps({"id": "../x", "model": "m", "api_key": "sk-1", "messages": HISTORY}, indent=2))
    before = snapshot.read_bytes()
    assert migrate_snapshot(snapshot, tmp_path / "logs", clock=lambda: 5.0) == "old"
    journal = Journal.open(tmp_path / "logs", "old")
    found = replay(journal.events())
    assert (found.history, found.meta, found.skipped) == (HISTORY, {"id": "../x", "model": "m"}, 0)
    assert {event["ts"] for event in journal.events()} == {5.0}
    assert snapshot.read_bytes() == before
    assert os.listdir(tmp_path / "logs") == ["old.jsonl"]
    with pytest.raises(AgentLabError, match="already"):
        migrate_snapshot(snapshot, tmp_path / "logs")
    snapshot.write_text(json.dumps(HISTORY))
    assert migrate_snapshot(snapshot, tmp_path / "logs", id="new") == "new"
    with Journal.open(tmp_path / "logs", "new") as journal:
        assert journal.append({"type": "rewind", "to": 2}) == 6
        assert replay(journal.events()).history == HISTORY[:1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps({"messages": HISTORY}, indent=2)[:100], "no whole JSON"),
        ("{}", "no list of messages"),
        ("7", "no list of messages"),
        ('["a"]', "no list of messages"),
        ("", "no whole JSON"),
    ],
    ids=str,
)
def test_a_snapshot_that_is_none_is_left_alone(text: str, says: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "old.json"
    snapshot.write_text(text)
    with pytest.raises(AgentLabError, match=says):
        migrate_snapshot(snapshot, tmp_path / "logs")
    assert os.listdir(tmp_path) == ["old.json"] and snapshot.read_text() == text


def test_nothing_is_left_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "old.json"
    snapshot.write_text(json.dumps(HISTORY))
    synced: list[int] = []

    def fail(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(AgentLabError, match="no space"):
        migrate_snapshot(snapshot, tmp_path / "logs")
    assert synced and synced[0] > 100 and os.listdir(tmp_path / "logs") == []
    assert json.loads(snapshot.read_text()) == HISTORY
    monkeypatch.undo()
    assert migrate_snapshot(snapshot, tmp_path / "logs") == "old"


@pytest.mark.parametrize("id", ["../x", "", "a b"])
def test_a_snapshot_cannot_leave_the_folder(id: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(AgentLabError, match="cannot be a session's id"):
        migrate_snapshot(tmp_path / "s.json", tmp_path / "logs", id=id)
    with pytest.raises(AgentLabError, match="cannot be read"):
        migrate_snapshot(tmp_path / "none.json", tmp_path / "logs")
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_snapshot_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    snapshot = tmp_path / "windows.json"
    snapshot.write_bytes(b"\xef\xbb\xbf" + json.dumps([user("hi")]).encode())
    id = migrate_snapshot(snapshot, tmp_path / "log")
    assert replay(Journal.open(tmp_path / "log", id).events()).history == [user("hi")]
