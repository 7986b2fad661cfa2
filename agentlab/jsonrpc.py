"""JSON-RPC 2.0, one message a line, as a state machine without any input or output.

    bytes -> Peer.feed -> [Request | Notice | Answer | Failure | Noise]        Peer.ask, encode -> bytes

1. A line ends with LF and nothing else: U+2028 and a lone CR may stand inside of one. The cut between two chunks may
   fall anywhere. A line above the limit is thrown away while it comes, and fails only the call that it answers.
2. Only an object with `"jsonrpc": "2.0"` is a message, alone or in a batch. All else is noise: reported, no error. A
   message behind other text on its line is noise too (`log: {...}`, `50%\\r{...}`): nobody can say where it begins.
3. Both sides number their own requests, both from 0. So a method decides first: what has one is the other side's
   request, whatever its id; what has none answers ours.
4. An id is answered once. A second answer, and one to a request that was given up, are noise.
5. `"3"` answers 3, though the standard says that an id comes back unchanged: real servers do this. `true` never is 1.
   A request whose id is neither a number nor a text has None here: it is refused, with the id null.

(https://www.jsonrpc.org/specification; MCP, "Transports: stdio"; seed 003, the MCP client.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from agentlab import jsonio

MAX_LINE_BYTES = 16 * 1024 * 1024
METHOD_NOT_FOUND = -32601
INVALID_REQUEST = -32600
_NOISE_CHARS = 200
_END_BYTES = 4096
_BOM = b"\xef\xbb\xbf"

# Where an answer that is too long to read names its id: next to one of its two ends, for certain not inside a string.
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID = rb'"id"\s*:\s*("?[0-9]{1,15}"?)'
_ID_FIRST = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,\s*(?:" + _VERSION + rb'\s*,\s*)?(?:"result"|"error")'
)
_RESULT_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb'\s*,\s*)?(?:"result"|"error")')
_ID_LAST = re.compile(rb",\s*" + _ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")

# Line ends for some readers of lines, though not for JSON-RPC.
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


Id = int | float | str | None


@dataclass(frozen=True)
class Request:
    """Asks for an answer. Ours have whole numbers for ids, the other side's may be texts, and None is no usable one."""

    id: Id
    method: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice:
    """A notification: asks for nothing."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The result of a request."""

    id: Id
    result: Any


@dataclass(frozen=True)
class Failure:
    """The error that answers a request. `code` is None when no error object said one."""

    id: Id
    code: int | None
    message: str
    data: Any = None


@dataclass(frozen=True)
class Noise:
    """A line that is no message, or that answers nothing: how it starts, and why it was passed over."""

    text: str
    why: str


Message = Request | Notice | Answer | Failure
Event = Message | Noise


def encode(message: Message) -> bytes:
    """The line to send, LF included. Raises TypeError or ValueError for what JSON cannot hold."""
    body: dict[str, Any] = {"jsonrpc": "2.0"}
    if not isinstance(message, Notice):
        body["id"] = message.id
    if isinstance(message, Request | Notice):
        body["method"] = message.method
        if message.params:
            body["params"] = message.params
    elif isinstance(message, Answer):
        body["result"] = message.result
    else:
        body["error"] = {"code": message.code or 0, "message": message.message}
    text = jsonio.request_body(body).decode()
    return _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


class Lines:
    """Bytes to lines. Of a line above `limit` bytes only the two ends are held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[bytes, int]]:
        """The lines that are complete now, each with its size: a larger one than the limit is not all there."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(self.take())
        self._add(rest)
        return lines

    def take(self) -> tuple[bytes, int]:
        """What there is of the line that has not ended, and its size. The next line starts behind it."""
        taken = bytes(self._line), self._size
        self._line, self._size = bytearray(), 0
        return taken

    def _add(self, piece: bytes) -> None:
        self._line += piece
        self._size += len(piece)
        if self._size > self._limit and len(self._line) > 2 * _END_BYTES:
            del self._line[_END_BYTES:-_END_BYTES]


class Peer:
    """One side of a conversation: numbers its requests, and tells what the bytes of the other side mean."""

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.pending: dict[int, str] = {}
        """The methods of our requests that have no answer yet, by id."""
        self._next = 0
        self._limit = max_line_bytes
        self._lines = Lines(max_line_bytes)

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Request:
        """A new request, which is pending from now on."""
        request = Request(self._next, method, params or {})
        self.pending[self._next] = method
        self._next += 1
        return request

    def forget(self, id: int) -> None:
        """Wait for this answer no longer: if it comes all the same, it is noise."""
        self.pending.pop(id, None)

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes complete. Never raises, whatever the bytes are."""
        return [event for line, size in self._lines.feed(data) for event in self._read(line, size)]

    def close(self) -> list[Event]:
        """The other side has ended: its last line counts without an LF too."""
        return self._read(*self._lines.take())

    def _read(self, line: bytes, size: int) -> list[Event]:
        if size > self._limit:
            return [self._too_long(line, size)]
        line = line.removeprefix(_BOM).strip()
        if not line:
            return []
        try:
            value = jsonio.loads(line)
        except ValueError:
            return [_noise(line, "no JSON")]
        if isinstance(value, list) and any(_is_message(item) for item in value):
            return [self._message(item, line) for item in value]
        return [self._message(value, line)]

    def _message(self, value: Any, line: bytes) -> Event:
        if not _is_message(value):
            return _noise(line, "no JSON-RPC message")
        method, id, params = value.get("method"), value.get("id"), value.get("params")
        if isinstance(method, str):
            params = params if isinstance(params, dict) else {}
            if "id" not in value:
                return Notice(method, params)
            return Request(id if _is_id(id) else None, method, params)
        ours = self._ours(id)
        if ours is None:
            return _noise(line, "answers no request that is waiting")
        del self.pending[ours]
        error = value.get("error")
        if error is None and "result" in value:
            return Answer(ours, value["result"])
        return _failure(ours, error)

    def _ours(self, id: Any) -> int | None:
        """The pending request that this id means."""
        if isinstance(id, str) and re.fullmatch("[0-9]{1,15}", id):
            id = int(id)
        return int(id) if isinstance(id, int | float) and not isinstance(id, bool) and id in self.pending else None

    def _too_long(self, line: bytes, size: int) -> Event:
        why = f"a line of {size:,} bytes, and at most {self._limit:,} are read"
        found = _ID_FIRST.match(line) or (_RESULT_FIRST.match(line) and _ID_LAST.search(line))
        ours = self._ours(found[1].strip(b'"').decode()) if found else None
        if ours is None:
            return _noise(line, why)
        del self.pending[ours]
        return Failure(ours, None, f"The answer is {why}. Ask for less at a time.")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("jsonrpc") == "2.0"


def _is_id(id: Any) -> bool:
    return isfinite(id) if isinstance(id, float) else isinstance(id, int | str) and not isinstance(id, bool)


def _failure(id: int, error: Any) -> Failure:
    if not isinstance(error, dict):
        said = jsonio.dumps(error)[:_NOISE_CHARS] if error is not None else "neither a result nor an error"
        return Failure(id, None, said)
    message = error.get("message")
    message = message if isinstance(message, str) else "no message"
    return Failure(id, _code(error.get("code")), message, error.get("data"))


def _code(code: Any) -> int | None:
    """A whole number, also where a server writes -32601.0 or "-32601"."""
    if isinstance(code, str) and re.fullmatch("-?[0-9]{1,15}", code):
        return int(code)
    whole = isinstance(code, int) or (isinstance(code, float) and code.is_integer())
    return int(code) if whole and not isinstance(code, bool) else None


def _noise(line: bytes, why: str) -> Noise:
    return Noise(line[: 4 * _NOISE_CHARS].decode("utf-8", "replace")[:_NOISE_CHARS], why)
