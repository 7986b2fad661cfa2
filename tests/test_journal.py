"""The journal as programs use it: create, append, read, fork; ids, keys and rights."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from agentlab.errors import AgentLabError
from agentlab.journal import Event, Journal, JournalError, Session, fork, replay
from agentlab.messages import Message, assistant, call, tool, user
from tests.cases import case

KEY = "sk-live-0123456789"


def said(text: str) -> Event:
    return {"type": "message", "message": user(text)}


def state(session: Session) -> tuple[Any, ...]:
    """All of a session but its meta and its holes."""
    return session.history, session.nodes, session.tool_calls, session.usage


def test_a_session_is_one_file_of_numbered_lines(tmp_path: Path) -> None:
    ticks = iter([10.0, 11.5, 12.0])
    with Journal.create(tmp_path / "a" / "b", {"model": "m"}, id="ok-1_A", clock=lambda: next(ticks)) as journal:
        assert journal.append(said("é")) == 2
        assert journal.append({"type": "todos", "seq": 77, "ts": "never", "list": [1]}) == 3
    assert (journal.id, journal.path) == ("ok-1_A", tmp_path / "a" / "b" / "ok-1_A.jsonl")
    assert journal.path.read_text() == (
        '{"seq":1,"ts":10.0,"type":"session_meta","meta":{"model":"m"}}\n'
        '{"seq":2,"ts":11.5,"type":"message","message":{"role":"user","content":"é"}}\n'
        '{"seq":3,"ts":12.0,"type":"todos","list":[1]}\n'
    )
    again = Journal.open(tmp_path / "a" / "b", "ok-1_A")
    assert [event["type"] for event in again.events()] == ["session_meta", "message", "todos"]
    assert replay(again.events()).meta == {"model": "m"}


def test_folder_and_file_are_the_owners(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "sessions", {})
    journal.append(said("x"))
    journal.close()
    assert stat.S_IMODE(os.stat(journal.path.parent).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(journal.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(fork(journal, 2).path).st_mode) == 0o600
    assert all(re.fullmatch(r"[0-9a-f]{32}\.jsonl", name) for name in os.listdir(journal.path.parent))


@pytest.mark.parametrize("id", [*case("J08")["input"]["ids"], "ok\n", "x" * 129, "é", ".", " ", 7, None], ids=repr)
def test_ids_cannot_leave_the_folder(id: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    uses = [lambda: Journal.create(root, {}, id=id), lambda: Journal.open(root, id)]
    if id in case("J08")["expected"]["accepted"]:
        assert uses[0]().id == uses[1]().id == id
        return
    for use in uses[id is None :]:
        with pytest.raises(AgentLabError, match="cannot be a session's id"):
            use()
    assert os.listdir(tmp_path) == []
    with pytest.raises(AgentLabError), Journal.create(root, {}, id="s") as journal:
        fork(journal, 1, id=id if id is not None else "/")
    assert os.listdir(tmp_path) == ["root"] and os.listdir(root) == ["s.jsonl"]


def test_the_id_in_the_file_is_only_data(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {"id": "../other"}, id="s") as journal:
        journal.append({"type": "message", "id": "../other", "message": user("x")})
    assert os.listdir(tmp_path) == ["s.jsonl"]


def test_what_is_not_there_or_there_already(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"There is no session 'x'.*sessions\(root\)"):
        Journal.open(tmp_path / "none", "x")
    Journal.create(tmp_path, {"model": "first"}, id="x")
    with pytest.raises(JournalError, match="already"):
        Journal.create(tmp_path, {"model": "second"}, id="x")
    assert replay(Journal.open(tmp_path, "x").events()).meta == {"model": "first"}
    with pytest.raises(AgentLabError, match="dict"):
        Journal.create(tmp_path, [], id="y")  # type: ignore[arg-type]
    with pytest.raises(AgentLabError, match="survives"):
        Journal.create(tmp_path, {}, id="y", durability="maybe")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["x.jsonl"]


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": ""},
        {"type": 3},
        {"seq": 3},
        ["message"],
        None,
        {"type": "broken"},
        {"type": "session_meta", "meta": {}},
        {"type": "message", "message": "text"},
        {"type": "replace", "start": 1, "end": "2", "node": {}},
        {"type": "rewind", "to": -1},
        {"type": "tool_call", "record": {"status": "running"}},
    ],
    ids=str,
)
def test_an_event_that_makes_no_sense_is_refused(event: Any, tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}) as journal:
        before = journal.path.read_bytes()
        for use in (lambda: journal.append(event), lambda: journal.append_all([said("x"), event])):
            with pytest.raises(AgentLabError):
                use()
        assert journal.path.read_bytes() == before
        assert journal.append(said("x")) == 2


def test_keys_never_reach_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY + "-env")
    meta = {"model": {"name": "m", "api_key": KEY, "headers": {"Authorization": f"Bearer {KEY}", "accept": "x"}}}
    event = {
        "type": "config",
        "config": {"model": {"base_url": f"https://h/?key={KEY}", "headers": [["x-api-key", KEY]]}},
    }
    before = json.dumps([meta, event])
    with Journal.create(tmp_path, meta) as journal:
        journal.append(event)
        journal.append(said(f"the tool printed {KEY}-env"))
        journal.append({"type": "tool_call", "record": {"id": "a", "input": {"password": KEY}}})
        journal.append({"type": "later", "deep": [{"client_secret": KEY}]})
        branch = fork(journal, 5)
    for path in (journal.path, branch.path):
        assert KEY.encode() not in path.read_bytes()
    assert json.dumps([meta, event]) == before
    assert replay(journal.events()).history[0]["content"] == "the tool printed [redacted]"
    with Journal.create(tmp_path, {}, secrets=["another-key-1"]) as journal:
        journal.append(said("another-key-1"))
        assert b"another-key-1" not in fork(journal, 2).path.read_bytes()


def three_nested_compactions(root: Path) -> Journal:
    """Turns with tool calls, three compactions of which takes in the one before, a rewind, a new model."""

    def node(text: str) -> Message:
        return user(text) | {"origin": "compaction"}

    with Journal.create(root, {"model": "m", "title": "t"}, id="s", clock=lambda: 0.0) as journal:
        marks: list[int] = []
        first = 0
        for turn in range(4):
            asked = call("a", "read_file", path=f"{turn}.py")
            start = journal.append(said(f"question {turn}"))
            first = first or start
            caller = journal.append({"type": "message", "message": assistant("", asked)})
            record = {"id": "a", "name": "read_file", "message": caller}
            journal.append({"type": "tool_call", "record": record | {"status": "running"}})
            journal.append({"type": "tool_call", "record": record | {"status": "completed"}})
            journal.append({"type": "message", "message": tool("a", f"content {turn}")})
            last = journal.append({"type": "message", "message": assistant(f"answer {turn}")})
            journal.append({"type": "usage", "usage": {"prompt_tokens": 10 + turn, "completion_tokens": 1}})
            if turn < 3:
                replaced = {"type": "replace", "start": marks[-1] if marks else first, "end": last}
                marks.append(journal.append(replaced | {"node": node(f"summary {turn}"), "reason": "compaction"}))
        journal.append({"type": "config", "config": {"model": "n"}})
        journal.append({"type": "rewind", "to": marks[-1]})
        journal.append(said("another way"))
    return journal


def test_a_fork_at_every_event_is_the_replayed_prefix(tmp_path: Path) -> None:
    journal = three_nested_compactions(tmp_path)
    events = list(journal.events())
    assert [message["content"] for message in replay(events).history] == ["summary 2", "another way"]
    for at, event in enumerate(events, 1):
        branch = fork(journal, event["seq"], id=f"branch-{at}")
        prefix, copied = replay(events[:at]), replay(branch.events())
        assert state(copied) == state(prefix) and copied.skipped == 0
        assert copied.meta == prefix.meta | {"parent": {"id": "s", "seq": at}}
        assert list(branch.events())[1:] == events[1:at]
        assert f"question {at}" not in branch.path.read_text() or at > 3
        with branch:
            assert branch.append(said("on")) == at + 1
        assert replay(branch.events()).history[-1] == user("on")
    assert list(journal.events()) == events


def test_a_fork_of_a_damaged_session_starts_clean(tmp_path: Path) -> None:
    lines = three_nested_compactions(tmp_path).path.read_bytes().split(b"\n")
    lines[0], lines[4] = b"{torn", lines[4] + b" " + lines[5]
    lines[5] = b'{"seq":6,"ty'
    (tmp_path / "s.jsonl").write_bytes(b"\n".join(lines))
    journal = Journal.open(tmp_path, "s")
    events = [event for event in journal.events() if event["type"] != "broken"]
    for cut in (2, 5, 6, 9):
        branch = fork(journal, cut)
        copied = replay(branch.events())
        assert state(copied) == state(replay(event for event in events if event["seq"] <= cut))
        assert (copied.meta, copied.skipped) == ({"parent": {"id": "s", "seq": cut}}, 0)


def test_a_fork_of_a_log_without_a_first_record_has_each_number_once(tmp_path: Path) -> None:
    (tmp_path / "bare.jsonl").write_bytes(b"")
    with Journal.open(tmp_path, "bare") as journal:
        assert journal.append_all([said("a"), said("b")]) == [1, 2]
    (tmp_path / "odd.jsonl").write_bytes(b'{"seq":1,"type":"session_meta","meta":7}\n' + journal.path.read_bytes()[50:])
    for id in ("bare", "odd"):
        branch = fork(Journal.open(tmp_path, id), 2)
        assert [event["seq"] for event in branch.events()] == [1, 2]
        assert fork(branch, 2).path.read_bytes().count(b"\n") == 2
        with branch:
            assert branch.append(said("c")) == 3
    assert replay(branch.events()).meta == {"parent": {"id": "odd", "seq": 2}}


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    Journal.create(shared, {}, id="s")
    assert shared.stat().st_mode & 0o777 == 0o755
    assert (shared / "s.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seq", [0, -1, 99, None, "2"], ids=repr)
def test_a_fork_at_no_event_makes_nothing(seq: Any, tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, id="s") as journal:
        journal.append(said("x"))
        with pytest.raises(JournalError, match="no event number"):
            fork(journal, seq)
        with pytest.raises(JournalError, match="already"):
            fork(journal, 2, id="s")
    assert os.listdir(tmp_path) == ["s.jsonl"]


def test_a_fork_leaves_the_lock_alone(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, id="s") as journal:
        journal.append(said("x"))
        other = Journal.open(tmp_path, "s")
        with fork(other, 2) as branch:
            assert branch.append(said("y")) == 3
        assert journal.append(said("z")) == 3


def test_events_stream_while_another_writes(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, id="s") as journal:
        journal.append(said("x"))
        reading = Journal.open(tmp_path, "s").events()
        assert next(reading)["type"] == "session_meta"
        journal.append(said("y"))
        assert [event["seq"] for event in reading] == [2, 3]
