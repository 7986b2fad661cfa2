"""An append-only log of one session: every event one line of JSON, so that a crash costs the last one at most.

    Journal.create(root, meta) -> <root>/<id>.jsonl, line 1:  {"seq":1,"ts":…,"type":"session_meta","meta":{…}}
    .append(event)             -> one more line               {"seq":2,"ts":…,"type":"message","message":{…}}
    .events()                  -> every event, in order       {"type":"broken","line":3} for a line that cannot be read
    replay(journal.events())   -> Session: what the model sees, tool calls, usage
    fork(journal, seq)         -> a new session: the events up to that number

A snapshot that is written again at every change is gone when the power fails half-way. Here bytes that are in the file
are never changed, and everything else is worked out from them. Reading takes no lock. The first append takes it, and
`close` or the end of the process gives it back, also while a child that was forked off lives on.

Durability is a choice. `"flush"`: what append acknowledged survives the end of this process, kill -9 included.
`"sync"`: it survives a power failure too, as far as the disk keeps its word; threads that append at once share one
fdatasync, and so do the events of one `append_all`. Keys are taken out before anything is written
(`redact`). (Seed 000, persistence.)
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self

from agentlab.errors import AgentLabError
from agentlab.journalfile import ID, Appender, JournalBusy, JournalError, publish, read, seq_of
from agentlab.redact import Secrets, safe_line
from agentlab.replay import STATES, Event, Session, fault, replay
from agentlab.sessions import SessionInfo, migrate_snapshot, sessions

__all__ = [
    "STATES", "Durability", "Event", "Journal", "JournalBusy", "JournalError", "Session", "SessionInfo", "fork",
    "migrate_snapshot", "replay", "sessions",
]  # fmt: skip

Durability = Literal["flush", "sync"]
Clock = Callable[[], float]


class Journal:
    """One session's log. Make it with `Journal.create` or `Journal.open`; use it in a `with` block, or close it."""

    def __init__(
        self, path: Path, *, clock: Clock | None, durability: Durability, secrets: Iterable[str] | None = None
    ) -> None:
        if durability not in ("flush", "sync"):
            raise AgentLabError(f'durability is {durability!r}: "flush" survives a crash, "sync" a power failure too.')
        self.path = path
        self.durability = durability
        self._clock = clock or _now
        self._secrets = Secrets.of(os.environ) if secrets is None else Secrets(secrets)
        self._file: Appender | None = None
        self._mutex = Lock()

    @classmethod
    def create(
        cls,
        root: str | Path,
        meta: dict[str, Any],
        *,
        id: str | None = None,
        clock: Clock | None = None,
        durability: Durability = "flush",
        secrets: Iterable[str] | None = None,
    ) -> Journal:
        """Start a session in the folder `root`. If it is not there it is made, for its owner only; one that is there
        stays as it is, with whatever rights it has. The file is its owner's in any case.

        `meta` is frozen in the first line: the model and its settings above all, so that the session goes on with them
        and not with the defaults of the day. `id` is random by default. `clock` gives seconds since the epoch.
        `secrets` are the key values to keep out; by default those in the environment. The file is complete or not
        there. Raises AgentLabError for a bad or taken id, and when the disk fails.
        """
        journal = cls(
            _path(root, uuid.uuid4().hex if id is None else id), clock=clock, durability=durability, secrets=secrets
        )
        if not isinstance(meta, dict):
            raise AgentLabError("A session's meta is a dict: {'model': ...}. Nothing was made.")
        first = journal._line(1, {"type": "session_meta", "meta": meta})
        publish(journal.path, [first], sync=durability == "sync")
        return journal

    @classmethod
    def open(
        cls,
        root: str | Path,
        id: str,
        *,
        clock: Clock | None = None,
        durability: Durability = "flush",
        secrets: Iterable[str] | None = None,
    ) -> Journal:
        """Open a session that is there, for reading and writing; no lock is taken yet. Raises AgentLabError."""
        path = _path(root, id)
        if not os.path.lexists(path):
            raise JournalError(f"There is no session {id!r} in this folder. sessions(root) lists those that there are.")
        return cls(path, clock=clock, durability=durability, secrets=secrets)

    @property
    def id(self) -> str:
        """The session's id: its file's name, whatever stands inside."""
        return self.path.stem

    def events(self) -> Iterator[Event]:
        """Every event in the file's order, one in memory at a time; others may be writing meanwhile.

        What a line holds beside whole records comes as `{"type": "broken", "line": n}`, n counted from 1. Bytes that
        are no UTF-8 read as U+FFFD. Raises JournalError when the file cannot be read.
        """
        return read(self.path)

    def append(self, event: Event) -> int:
        """Write one event down and return its sequence number, as soon as it is as durable as was promised.

        `seq` and `ts` are the journal's own and cannot be given. When something else breaks this off, Ctrl+C say, the
        event may be in the file or not; its number is never given out again. Raises AgentLabError for an event without
        a type, or one of a known type that lacks what it needs; JournalBusy when somebody else is writing; JournalError
        when the disk is full or fails. Nothing is acknowledged then, nothing before is lost, and the next append may
        succeed.
        """
        _check(event)
        with self._mutex:
            file = self._writer()
            seq = file.next_seq
            size = file.write(self._line(seq, event))
        if self.durability == "sync":
            file.sync(size)
        return seq

    def append_all(self, events: Iterable[Event]) -> list[int]:
        """Write some events down, each with its own write, and wait once for all of them: one fdatasync with `"sync"`.

        All are checked before the first is written. When a write fails, those before it are in the file, but none is
        acknowledged. Raises as `append` does.
        """
        ready = list(events)
        for event in ready:
            _check(event)
        seqs, size = [], 0
        with self._mutex:
            file = self._writer()
            for event in ready:
                seq = file.next_seq
                size = file.write(self._line(seq, event))
                seqs.append(seq)
        if self.durability == "sync" and seqs:
            file.sync(size)
        return seqs

    def _writer(self) -> Appender:
        """The open file, with the lock on it. After a fork the parent's does not count."""
        if self._file is not None and self._file.inherited:
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = Appender(self.path)
        return self._file

    def _line(self, seq: int, event: Event) -> bytes:
        record = {"seq": seq, "ts": None, **event}
        record["seq"], record["ts"] = seq, self._clock()
        return safe_line(record, self._secrets)

    def close(self) -> None:
        """Give the lock back; with `"sync"` all is on the disk then. A later append takes the lock again."""
        with self._mutex:
            file, self._file = self._file, None
        if file is not None:
            file.close(sync=self.durability == "sync")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fork(
    journal: Journal,
    seq: int,
    *,
    id: str | None = None,
    clock: Clock | None = None,
    secrets: Iterable[str] | None = None,
) -> Journal:
    """A new session beside this one: its events up to and with number `seq`, and nothing that came later.

    Replaying it gives what replaying that part of the original gives, so a summary goes or stays by itself. Numbers and
    times stay; broken lines are left behind. `parent` in its meta names the original and the cut; where number 1 of the
    original is something else than its first record, there is no place for that. The new file is complete or not there.
    Raises AgentLabError when no event has that number.
    """
    branch = Journal(
        _path(journal.path.parent, uuid.uuid4().hex if id is None else id),
        clock=clock or journal._clock,
        durability=journal.durability,
        secrets=secrets,
    )
    if secrets is None:
        branch._secrets = journal._secrets
    publish(branch.path, _cut(journal, seq, branch), sync=branch.durability == "sync")
    return branch


def _cut(journal: Journal, seq: int, branch: Journal) -> Iterator[bytes]:
    parent = {"id": journal.id, "seq": seq}
    number, opened = 0, False
    for event in journal.events():
        if event.get("type") == "broken":
            number += 1
            continue
        number = seq_of(event, number + 1)
        if not opened and event.get("type") == "session_meta":
            meta = {} if fault(event) else event["meta"]
            event = {**event, "meta": {**meta, "parent": parent}}
        elif not opened and number > 1:  # the original's first line is lost
            yield branch._line(1, {"type": "session_meta", "meta": {"parent": parent}})
        opened = True
        yield safe_line({**event, "seq": number}, branch._secrets)
        if number == seq:
            return
    raise JournalError(f"Session {journal.id!r} has no event number {seq}: nothing was made. Its last one is {number}.")


def _check(event: Event) -> None:
    kind = event.get("type") if isinstance(event, dict) else None
    if kind == "message" and type(event.get("message")) is dict:  # nearly all of them
        return
    if not isinstance(kind, str) or not kind:
        raise AgentLabError("An event is a dict with a `type`, such as {'type': 'message', 'message': {...}}.")
    if kind in ("broken", "session_meta"):
        raise AgentLabError(f"{kind!r} is not for appending: it is how a journal tells of a broken line, or begins.")
    if lacks := fault(event):
        raise AgentLabError(f"A {kind!r} event needs {lacks}. Nothing was written.")


def _path(root: str | Path, id: str) -> Path:
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise AgentLabError(f"{str(id)[:60]!r} cannot be a session's id. Use 1 to 128 letters, digits, _ and -.")
    return Path(os.path.abspath(root)) / f"{id}.jsonl"


def _now() -> float:
    return round(time.time(), 3)
