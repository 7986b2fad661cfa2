"""A session file before anybody knows whose it is: one JSON document or one JSON value per line, and which format.

Lines are read one at a time, with a limit, so that memory depends on the longest line and not on the file. A record
that cannot be read costs that record: bytes that are no UTF-8 become U+FFFD, runs of NUL (a crash) count as blank.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from agentlab import jsonio
from agentlab.errors import AgentLabError

LINE_BYTES = 16_000_000
DOCUMENT_BYTES = 32_000_000
PROBED = 200
_BLANK = b"\0 \t\r\n"
_BOM = b"\xef\xbb\xbf"
UNSUPPORTED = {"gemini-cli": "Gemini CLI", "kimi": "Kimi Code CLI", "aider": "aider"}


class TranscriptError(AgentLabError):
    """A file is no session file that can be read. The text says what it is instead, in one line."""


class UnsupportedFormat(TranscriptError):
    """A session file of a product whose files are not read."""

    def __init__(self, format: str) -> None:
        super().__init__(f"this is a session of {UNSUPPORTED[format]}, a format that is not supported")
        self.format = format


class Source:
    """An open session file. `format` is known; `document` is its one JSON value, or None when it has lines.

    `damage(kind, line)` is told of lines that cannot be read, `on_bytes(count)` of every piece that was.
    """

    def __init__(self, path: str | Path, *, on_bytes: Callable[[int], None] | None = None) -> None:
        self.name = os.path.basename(path)
        self.document: Any = None
        self.damage: Callable[[str, int], None] = lambda kind, line: None
        self._on_bytes: Callable[[int], None] = lambda count: None
        self._file = _open(path)
        try:
            self.format = self._detect()
        except BaseException:
            self.close()
            raise
        self._on_bytes = on_bytes or self._on_bytes
        if self.document is not None:
            self._on_bytes(self._size())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def records(self) -> Iterator[tuple[int, Any]]:
        """The JSON values of the lines, with their line numbers from 1."""
        for number, line in self._lines():
            if line is None:
                self.damage("a line that is too long", number)
                continue
            if not line.isascii():
                try:
                    line.decode()
                except UnicodeDecodeError:
                    self.damage("bytes that are no UTF-8, replaced", number)
            try:
                value = jsonio.loads(line)
            except ValueError:
                self.damage("a line that is no JSON", number)
                continue
            yield number, value

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """As `records`, but only objects; the other values are counted."""
        for number, value in self.records():
            if isinstance(value, dict):
                yield number, value
            else:
                self.damage(f"a {type(value).__name__} instead of a record", number)

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Lines that are not blank; None for one that is too long, whose rest is passed over."""
        self._file.seek(0)
        number = 0
        while line := self._read(LINE_BYTES + 1):
            number += 1
            self._on_bytes(len(line))
            if len(line) > LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = self._read(LINE_BYTES)
                    self._on_bytes(len(line))
                yield number, None
            elif body := (line.removeprefix(_BOM) if number == 1 else line).strip(_BLANK):
                yield number, body

    def _read(self, limit: int) -> bytes:
        """The next line, or `limit` bytes of it."""
        try:
            return self._file.readline(limit)
        except OSError as error:
            raise TranscriptError(f"the file cannot be read: {(error.strerror or 'unknown reason').lower()}") from None

    def _detect(self) -> str:
        start = self._file.read(65_536)
        if not start.strip(_BLANK):
            raise TranscriptError("the file holds nothing but blanks" if start else "the file is empty")
        values = self._values()
        first, second = next(values, None), next(values, None)
        found = None
        if first is None or second is None:
            found = self._of_document()
        return found or self._of_lines() or self._of_text(start)

    def _values(self) -> Iterator[Any]:
        """The values of the first lines: () for a line that is no JSON, None (at once) if the first one is such."""
        for at, (_, line) in zip(range(PROBED), self._lines(), strict=False):
            try:
                yield jsonio.loads(line or b"")
            except ValueError:
                yield () if at else None

    def _of_lines(self) -> str | None:
        """The format by the first record that tells."""
        return next((found for value in self._values() if (found := _signature(value))), None)

    def _of_document(self) -> str | None:
        """The format of a file that is one JSON value; None for one that is not, or that is the only record."""
        if self._size() > DOCUMENT_BYTES or not self._parse():
            return None
        if found := _document_format(self.document, self.name):
            return found
        if not (isinstance(self.document, dict) and _signature(self.document)):
            raise TranscriptError("this is JSON, but no session of a known format")
        self.document = None
        return None

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _parse(self) -> bool:
        """Read the file as one document; a file of many lines is none."""
        self._file.seek(0)
        try:
            self.document = jsonio.loads(self._file.read(DOCUMENT_BYTES).removeprefix(_BOM).strip(_BLANK))
        except ValueError:
            return False
        return isinstance(self.document, list | dict)

    def _of_text(self, start: bytes) -> str:
        if b"\n# aider chat started at " in b"\n" + start:
            return "aider"
        first = start.removeprefix(_BOM).lstrip(_BLANK)[:1]
        if first in (b"{", b"[") and b"\0" not in start:
            size = self._size()
            if size > DOCUMENT_BYTES and b"\n" not in start.strip():
                raise TranscriptError(
                    f"this is one JSON document of {size:,} bytes; documents are read up to {DOCUMENT_BYTES:,} bytes"
                )
            raise TranscriptError("the JSON is cut short or damaged, or it is no session of a known format")
        if b"\0" in start or sum(byte < 32 and byte not in b"\t\n\f\r\x1b" for byte in start) > len(start) // 50:
            raise TranscriptError("this is a binary file, no session file")
        raise TranscriptError("this is no session file of a known format")


def _open(path: str | Path) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        file = os.fdopen(descriptor, "rb")  # a folder raises here
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            raise TranscriptError("this is no regular file")
        return file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TranscriptError(f"the file cannot be opened: {reason.lower()}") from None


_CODEX = {"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"}
_CODEX_ITEMS = {"message", "function_call", "function_call_output", "reasoning"}
_CLAUDE_MARKS = {"sessionId", "uuid", "parentUuid", "leafUuid", "isSidechain", "isSnapshotUpdate"}


def _signature(record: Any) -> str | None:
    """Whose record this is, by its keys; None when it could be anybody's."""
    if not isinstance(record, dict):
        return None
    kind, message = record.get("type"), record.get("message")
    if kind == "metadata" and "protocol_version" in record:
        return "kimi"
    if kind is None:
        return "openai" if isinstance(record.get("role"), str) or _is_list(record.get("messages")) else None
    if not isinstance(kind, str):
        return None
    if kind in _CODEX and isinstance(record.get("payload"), dict):
        return "codex"
    if kind == "session" or (kind == "message" and isinstance(message, dict)):
        return "pi"
    if kind in _CODEX_ITEMS and ("role" in record or "call_id" in record or "summary" in record):
        return "codex"
    if (kind in ("user", "assistant") and isinstance(message, dict)) or _CLAUDE_MARKS & record.keys():
        return "claude-code"
    return None


def _document_format(document: Any, name: str) -> str | None:
    """Whose document this is, by its keys. A bare list is mini-swe-agent's where the file's name says so."""
    if isinstance(document, dict):
        if _is_list(document.get("history")) and "trajectory" in document:
            return "swe-agent"
        messages = document.get("messages")
        if str(document.get("trajectory_format", "")).startswith("mini-swe-agent"):
            return "mini-swe-agent" if _is_list(messages) else None
        if _is_list(messages) and messages:
            if "sessionId" in document and any(isinstance(m, dict) and "role" not in m for m in messages):
                return "gemini-cli"
            return "mini-swe-agent" if name.endswith(".traj.json") else "openai"
        return None
    first = next((item for item in document if isinstance(item, dict)), {})
    if isinstance(first.get("role"), str):
        return "mini-swe-agent" if name.endswith(".traj.json") else "openai"
    return "openai" if _is_list(first.get("traj")) or _is_list(first.get("messages")) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
