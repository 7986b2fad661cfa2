"""Server-sent events: bytes -> lines -> events -> JSON.

The network cuts bytes anywhere: inside a line, inside JSON, inside one character. So this file holds back what is
not yet whole, and only ever decodes a finished line. Rules, from the WHATWG standard ("Server-sent events", 9.2):

1. A line ends with LF, CR or CRLF, and with nothing else (`str.splitlines` also cuts at U+2028, U+0085 and others).
2. One byte order mark is dropped, at the very start only.
3. A line that starts with a colon is a comment; an unknown field is ignored; one space after the colon is dropped.
4. `data` lines add up, joined by LF, until a blank line ends the event.

One deviation, on purpose: an event that lacks its blank line at the end of the stream is delivered, not dropped,
because real servers forget it. (Seed 000, streaming part.)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.errors import StreamError

MAX_EVENT_BYTES = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ServerSentEvent:
    """One event. `id` is the last id seen in the stream so far; `retry` is the one sent since the event before it, in
    milliseconds, or None."""

    data: str
    event: str = "message"
    id: str = ""
    retry: int | None = None


class LineSplitter:
    """Bytes in, whole lines out, without their ends. Sans-IO: `feed` chunks, then `close`."""

    def __init__(self) -> None:
        self._held = bytearray()  # the unfinished line; it grows in place, so tiny chunks stay linear
        self._after_cr = False
        self._at_start = True

    @property
    def held(self) -> int:
        """The size of the unfinished line in bytes."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk finishes."""
        if self._after_cr and chunk:  # a CRLF may be cut in two: its LF ends no second line
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines:
            lines[0] = self._finish(lines[0])
        self._held += rest
        return lines

    def close(self) -> list[bytes]:
        """The last line, if it has no end."""
        line = self._finish(b"")
        return [line] if line else []

    def _finish(self, tail: bytes) -> bytes:
        line = bytes(self._held) + tail
        self._held.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        return line


def _longer(data: bytes | bytearray | None, more: bytes) -> bytes | bytearray:
    """The data of an event with one more line of it. It too grows in place."""
    if data is None:
        return more
    if not isinstance(data, bytearray):
        data = bytearray(data)
    data += b"\n"
    data += more
    return data


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")


def _check(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise StreamError(
            f"An event of the stream passed {max_bytes:,} bytes without an end. "
            "Check that the URL serves an event stream."
        )


class SSEDecoder:
    """The whole standard: `feed(chunk)` gives the events that the chunk finishes, `close()` the last one.

    Both raise StreamError when an unfinished event has outgrown `max_bytes`.
    """

    def __init__(self, *, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._lines = LineSplitter()
        self._max_bytes = max_bytes
        self._data: bytes | bytearray | None = None
        self._event = ""
        self._id = ""
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Events finished by this chunk of bytes (of any length, cut anywhere)."""
        return self._events(self._lines.feed(chunk))

    def close(self) -> list[ServerSentEvent]:
        """The event that the stream's end finishes, if there is one."""
        return self._events([*self._lines.close(), b""])

    def _events(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events = []
        for line in lines:
            if not line:
                if self._data is not None:
                    data = self._data.decode("utf-8", "replace")
                    events.append(ServerSentEvent(data, self._event or "message", self._id, self._retry))
                    self._data = self._retry = None
                self._event = ""
                continue
            name, value = _field(line)
            if name == b"data":
                self._data = _longer(self._data, value)
            elif name == b"event":
                self._event = value.decode("utf-8", "replace")
            elif name == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit() and len(value) < 19:
                self._retry = int(value)
        _check(len(self._data or b"") + self._lines.held, self._max_bytes)
        return events


class JSONDecoder:
    """The hot path: bytes to the JSON object of each event, with no event object in between.

    `feed` and `close` give iterators to be used up, so that the objects before a broken one are delivered first. They
    raise StreamError on data that is no JSON object and on an unfinished event that has outgrown `max_bytes`. After
    `[DONE]` (`done` is True) everything is ignored. An event of type `error` comes as an object with an `error` key.
    """

    def __init__(self, *, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self.done = False
        self._lines = LineSplitter()
        self._max_bytes = max_bytes
        self._data: bytes | bytearray | None = None
        self._is_error = False

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """JSON objects of the events that this chunk finishes."""
        return self._objects(self._lines.feed(chunk))

    def close(self) -> Iterator[dict[str, Any]]:
        """The object of the event that the stream's end finishes, if there is one."""
        return self._objects([*self._lines.close(), b""])

    def _objects(self, lines: list[bytes]) -> Iterator[dict[str, Any]]:
        if self.done:
            return
        data, self._data = self._data, None
        for line in lines:
            if line:
                if line.startswith(b"data: "):
                    data = line[6:] if data is None else _longer(data, line[6:])
                else:
                    data = self._other_field(line, data)
            elif data is not None:
                try:
                    value = jsonio.loads(data if isinstance(data, bytes) else bytes(data))
                except ValueError:
                    value = None
                if type(value) is not dict or self._is_error:
                    value = self._unusual(data, value)
                    if self.done:
                        return
                data = None
                if value is not None:
                    yield value
            else:
                self._is_error = False
        self._data = data
        _check(len(data or b"") + self._lines.held, self._max_bytes)

    def _other_field(self, line: bytes, data: bytes | bytearray | None) -> bytes | bytearray | None:
        name, value = _field(line)
        if name == b"data":
            return _longer(data, value)
        if name == b"event":
            self._is_error = value == b"error"
        return data

    def _unusual(self, data: bytes | bytearray, value: Any) -> dict[str, Any] | None:
        is_error, self._is_error = self._is_error, False
        text = data.decode("utf-8", "replace").strip()
        if text == "[DONE]":
            self.done = True
            return None
        if is_error:
            named = isinstance(value, dict) and value.get("error")
            return value if named else {"error": value or text or "no reason given"}
        if isinstance(value, dict):
            return value
        if not text:  # an empty data line keeps the connection alive
            return None
        raise StreamError(
            f"The stream holds data that is no JSON object, or was cut off inside one: {text[:80]!r}. "
            "What came before it was kept: try again, or say 'continue' to go on."
        )


def json_events(chunks: Iterable[bytes], *, on_done: Callable[[], object] | None = None) -> Iterator[dict[str, Any]]:
    """The JSON object of each event in a stream of byte chunks, until `[DONE]` or the end.

    `on_done` is called when `[DONE]` is seen (give it `assembler.done`). Raises StreamError on data that is no JSON
    object, or that outgrows 64 MiB.
    """
    decoder = JSONDecoder()
    for chunk in chunks:
        yield from decoder.feed(chunk)
        if decoder.done:
            break
    else:
        yield from decoder.close()
    if decoder.done and on_done:
        on_done()


async def ajson_events(
    achunks: AsyncIterable[bytes], *, on_done: Callable[[], object] | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """`json_events` for chunks that arrive asynchronously."""
    decoder = JSONDecoder()
    async for chunk in achunks:
        for event in decoder.feed(chunk):
            yield event
        if decoder.done:
            break
    else:
        for event in decoder.close():
            yield event
    if decoder.done and on_done:
        on_done()
