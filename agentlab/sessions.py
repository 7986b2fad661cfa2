"""The sessions in a folder: which there are, and how one comes in that an older program kept as a snapshot.

    sessions(root)               -> the newest first: id, title, size, age; a broken file with the reason
    migrate_snapshot(file, root) -> id: hidden file, fsync, then its name; the snapshot itself stays as it is

A title is what a person said first, read from the start of the file, so a long list of long sessions is quick. What
stands in a file is untrusted: titles are one bounded line without control characters. (Seed 000, persistence.)
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.journalfile import ID, JournalError, publish, read
from agentlab.redact import Secrets, safe_line

TITLE_CHARS = 80
_LOOK = 1_000  # records read for a title


@dataclass(frozen=True)
class SessionInfo:
    """One file of the folder. `modified` is in seconds since the epoch, `age_s` in seconds before now.

    `title` is "" when no person has said anything yet. `reason` says why the session cannot be resumed as it was, or is
    None. `meta` is the first record's data, {} when that is lost.
    """

    id: str
    title: str
    bytes: int
    modified: float
    age_s: float
    meta: dict[str, Any]
    reason: str | None = None

    @property
    def line(self) -> str:
        """This session in one line of text."""
        said = f"broken: {self.reason}" if self.reason else self.title or "(nothing said yet)"
        return f"{self.id}  {self.bytes:,} bytes  {_ago(self.age_s)}  {said}"


def sessions(root: str | Path, *, clock: Callable[[], float] = time.time) -> list[SessionInfo]:
    """What the folder holds, the most recently changed first, those of the same time by id. Empty if it is not there.

    A file that cannot be read, or whose first record is lost, is listed with the reason. Files whose name is no
    session's are left out. Raises JournalError when the folder itself cannot be read.
    """
    now = clock()
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(
            f"The folder of the sessions cannot be read ({error.strerror}). Look at its owner."
        ) from None
    ids = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
    found = [_look(Path(root) / f"{id}.jsonl", now) for id in ids if ID.fullmatch(id)]
    return sorted(found, key=lambda info: (-info.modified, info.id))


def _look(path: Path, now: float) -> SessionInfo:
    meta: dict[str, Any] = {}
    title, reason, size, modified = "", None, 0, 0.0
    try:
        status = os.lstat(path)
        size, modified = status.st_size, status.st_mtime
        first = next(read(path), {})
        if first.get("type") == "session_meta" and isinstance(first.get("meta"), dict):
            meta = first["meta"]
        else:
            reason = "it is empty" if not size else "its first line is no session_meta, so its model is not known"
        title = next(filter(None, map(_said, islice(read(path), _LOOK))), "")
    except AgentLabError as error:
        reason = str(error)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
    return SessionInfo(path.stem, title, size, modified, max(0.0, now - modified), meta, reason)


def _said(record: dict[str, Any]) -> str:
    """What a person says in this record, as one bounded line; "" if it is none of a person's."""
    message = record.get("message") if record.get("type") == "message" else None
    if not isinstance(message, dict) or message.get("role") != "user" or message.get("origin"):
        return ""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    start = " ".join(text[: 20 * TITLE_CHARS] for text in texts[:TITLE_CHARS])
    words = "".join(letter if letter.isprintable() else " " for letter in start).split()
    line = " ".join(words)
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1] + "…"


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            amount = int(seconds // size)
            return f"{amount} {unit}{'s' * (amount != 1)} ago"
    return "just now"


def migrate_snapshot(
    snapshot: str | Path,
    root: str | Path,
    *,
    id: str | None = None,
    clock: Callable[[], float] = time.time,
    secrets: Iterable[str] | None = None,
) -> str:
    """Turn a session that was kept as one JSON file into a log in the folder `root`, and return its id.

    The snapshot is a list of messages, or an object with `messages`; its other fields become the meta. Without an `id`
    the session is called like the file. The log is on the disk, and complete, before it gets its name, and the snapshot
    stays: delete it when you have seen the session. Raises AgentLabError when the snapshot cannot be read or holds no
    messages, for a bad or taken id, and when the disk fails; then there is no log, and nothing is lost.
    """
    source = Path(snapshot)
    name = source.stem if id is None else id
    if not ID.fullmatch(name):
        raise AgentLabError(f"{name[:60]!r} cannot be a session's id. Give one: 1 to 128 letters, digits, _ and -.")
    try:
        data = jsonio.loads(source.read_bytes().removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise JournalError(f"The snapshot {source.name} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise JournalError(f"The snapshot {source.name} is no whole JSON ({error}): look for a copy of it.") from None
    messages = data.get("messages") if isinstance(data, dict) else data
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise JournalError(f"The snapshot {source.name} holds no list of messages, so it was left alone.")
    meta = {key: value for key, value in data.items() if key != "messages"} if isinstance(data, dict) else {}
    events = [{"type": "session_meta", "meta": meta}]
    events += [{"type": "message", "message": message} for message in messages]
    known, ts = Secrets.of(os.environ) if secrets is None else Secrets(secrets), clock()
    lines = [safe_line({"seq": seq, "ts": ts, **event}, known) for seq, event in enumerate(events, 1)]
    publish(Path(os.path.abspath(root)) / f"{name}.jsonl", lines, sync=True)
    return name
