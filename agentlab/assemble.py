"""Deltas -> one assistant message.

A streamed reply comes as chunks that each hold a little text or a few characters of a tool call. The assembler only
adds up; nothing is parsed before it is whole. How a piece finds its call (seed 000, "by index", widened by what real
servers send):

1. `index` is a key, not a position: calls may start at 1 or skip numbers; the message holds them in index order.
2. Without a usable index the id decides: a new id opens a call, a known one or none continues the call opened last.
3. Another id at the same index opens a new call once the call there is whole, or when it brings a name of its own
   (some servers give all calls index 0). Where there are no ids, a name that comes with other arguments does so.
4. A name or an id that is repeated is ignored; one that differs is the next piece of it. Once arguments have begun,
   the id stays (some servers make up a new one for every piece).
5. Arguments start empty, strings are added, an object is complete already; an empty total means `{}`. All of them
   sent once more are ignored.
"""

from __future__ import annotations

import reprlib
from typing import Any

from agentlab import jsonio
from agentlab.errors import KEPT, StreamError
from agentlab.messages import Message, ToolCall

_shown = reprlib.Repr()  # bounded in size and depth, whatever a server sends
_shown.maxstring = 200
_BESIDE = ("reasoning_content", "reasoning", "refusal")  # never mixed into the text


def _mended(text: str) -> tuple[str, str]:
    """The text, and the half of a surrogate pair at its end whose other half is still to come (or "").

    JSON may write one character as two escapes, and a stream may part them. Two halves become the character that they
    mean; a half without the other becomes U+FFFD.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        whole = text.removesuffix(half).encode("utf-16-le", "surrogatepass")
        return whole.decode("utf-16-le", "replace"), half
    return text, ""


def _joined(pieces: list[str]) -> str:
    return _mended("".join(pieces))[0]


class _Call:
    """One tool call while it arrives. Pieces are joined on demand: adding strings up would be quadratic."""

    __slots__ = ("id", "name", "order", "pieces", "size")

    def __init__(self, order: int) -> None:
        self.id = ""
        self.name = ""
        self.order = order
        self.pieces: list[str] = []
        self.size = 0

    def arguments(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def is_whole(self) -> bool:
        """The arguments so far are one complete JSON object, so nothing more can follow."""
        if not (self.pieces and self.pieces[-1].rstrip().endswith("}")):
            return False
        try:
            return isinstance(jsonio.loads(self.arguments()), dict)
        except ValueError:
            return False

    def head(self, id: str, name: str) -> None:
        if id != self.id and not (self.id and self.pieces):  # an id that changes later on is a server's mistake
            self.id += id
        if name != self.name:
            self.name += name

    def add(self, arguments: str) -> None:
        if 1 < len(arguments) == self.size and arguments == self.arguments() and self.is_whole():
            return  # the call was repeated whole
        if self.size == 2 and arguments.startswith("{") and self.arguments() == "{}":
            self.pieces, self.size = [], 0  # it stood for "not known yet"
        if arguments:
            self.pieces.append(arguments)
            self.size += len(arguments)


class Assembler:
    """Feed it the JSON objects of a stream in the OpenAI chat shape, then ask for the `message()`.

    `finish_reason` is None while unfinished. `usage` is the last one reported, or None. `complete` says that the
    stream proved its own end: by a finish reason, or by `[DONE]` (tell `done()`).
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self._done = False
        self._choice: Any = -1  # none yet
        self._text: list[str] = []
        self._held = ""  # half of a surrogate pair whose other half is still to come
        self._beside: dict[str, list[str]] = {}
        self._blocks: list[dict[str, Any]] = []  # Anthropic's signed thinking, to be sent back as it came
        self._calls: list[_Call] = []  # as they were opened
        self._by_index: dict[Any, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._next_order = 0

    @property
    def complete(self) -> bool:
        return self._done or self.finish_reason is not None

    def done(self) -> None:
        """The stream sent `[DONE]`."""
        self._done = True

    def feed(self, event: dict[str, Any]) -> str:
        """Take one event and return the new text in it, for printing. All of them add up to the content.

        Raises StreamError, with all that arrived so far as `partial`, when the event carries an error or cannot be
        read as a chat chunk.
        """
        text = ""
        try:
            error = event.get("error")
            choices = event.get("choices")
            for choice in choices or ():
                if choice.get("index") != self._choice and not self._choose(choice):
                    continue
                for key, value in (choice.get("delta") or {}).items():
                    if not value:
                        continue
                    if key == "content":
                        text += self._content(value)
                    elif key == "tool_calls":
                        for piece in value:
                            self._tool_call(piece)
                    elif key in _BESIDE:
                        self._beside.setdefault(key, []).append(_as_text(value))
                    elif key == "thinking_blocks":
                        self._blocks += [block for block in value if isinstance(block, dict)]
                if choice.get("finish_reason"):
                    error = self._finish(choice, error)
            if "x_groq" in event:
                groq = event["x_groq"] or {}
                self._report(groq)
                error = error or groq.get("error")
            if event.get("usage"):
                self._report(event)
        except (AttributeError, TypeError, ValueError, RecursionError):
            shown = _shown.repr(event)[:200]
            raise StreamError(
                f"A chunk of the stream is no chat chunk: {shown}. {KEPT}", partial=self.message()
            ) from None
        if error or (not choices and event.get("object") == "error"):
            raise StreamError(_what_failed(error or event), partial=self.message())
        return text

    def message(self) -> Message:
        """The assistant message so far: whole at the end, half of it after a cut. Can be asked at any time.

        A call that has no name yet is left out; one without an id, or with an id used twice here, gets its own.
        """
        message: Message = {"role": "assistant", "content": "".join(self._text)}
        reasoning = self._beside.get("reasoning_content") or self._beside.get("reasoning")
        if reasoning:
            message["reasoning_content"] = _joined(reasoning)
        if self._blocks:
            message["thinking_blocks"] = list(self._blocks)
        if refusal := self._beside.get("refusal"):
            message["refusal"] = _joined(refusal)
        calls: dict[str, ToolCall] = {}
        for number, call in sorted(enumerate(self._calls), key=lambda numbered: numbered[1].order):
            if not call.name:
                continue
            id = call.id or f"call_{number}"
            while id in calls:
                id += f"_{number}"
            arguments = _joined([call.arguments()])
            if arguments.strip() in ("", "null"):
                arguments = "{}"
            calls[id] = {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
        if calls:
            message["tool_calls"] = list(calls.values())
        return message

    def _choose(self, choice: dict[str, Any]) -> bool:
        """Whether to follow this choice: the first one. Others are further answers to the same request (n > 1)."""
        index = choice.get("index") or 0
        if self._choice == -1:
            self._choice = index
        return bool(index == self._choice)

    def _finish(self, choice: dict[str, Any], error: Any) -> Any:
        self.finish_reason = str(choice["finish_reason"])
        self._report(choice)  # Moonshot reports usage here
        if self.finish_reason == "error":
            return error or choice.get("error") or "no reason given"
        return error

    def _report(self, holder: dict[str, Any]) -> None:
        if usage := holder.get("usage"):
            self.usage = dict(usage)

    def _content(self, value: Any) -> str:
        text = value if isinstance(value, str) else _as_text(value)
        if self._held or not text.isascii():
            text, self._held = _mended(self._held + text)
        self._text.append(text)
        return text

    def _tool_call(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        id, name, index = piece.get("id"), function.get("name"), piece.get("index")
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = jsonio.dumps(arguments)
        call = self._by_index.get(index)
        if call is None or id or name:
            call = self._headed(index, str(id or ""), name or "", arguments)
        elif call.order != index and _opens_another(call, arguments):
            call = self._headed(index, call.id, call.name, arguments)
        call.add(arguments)

    def _headed(self, index: Any, id: str, name: str, arguments: str) -> _Call:
        """The call that a piece belongs to, found or opened, with the id and the name of the piece."""
        if isinstance(index, str):
            index = int(index) if index.isdecimal() else None
        call = self._find(index, id, name, arguments)
        if call is None:
            call = _Call(index if isinstance(index, int) else self._next_order)
            self._next_order = max(self._next_order, call.order + 1)
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        if id:
            self._by_id[id] = call
        call.head(id, name)
        return call

    def _find(self, index: Any, id: str, name: str, arguments: str) -> _Call | None:
        """The call that this piece belongs to, or None when it opens one."""
        by_index, by_id = self._by_index.get(index), self._by_id.get(id)
        if by_id and isinstance(index, int) and by_id.order != index:  # one id for all calls, each at its own index
            renamed = bool(name) and name != by_id.name and by_index is None
            if renamed or _opens_another(by_id, arguments):
                return None
        call = by_index if by_id is None or (by_index and by_index.id == id) else by_id
        if call is None and self._calls and not id and (index is None or not name):
            call = self._calls[-1]
        if call is None or not (id or name):
            return call
        named = bool(name and call.name)
        renamed = named and name != call.name
        if id and call.id and id != call.id:  # rule 3
            opens = call.is_whole() or renamed or (named and not call.pieces)
        elif id and call is by_index:  # rule 4
            opens = False
        else:  # no id, or one for all calls
            opens = named and call.is_whole() and (renamed or arguments not in ("", call.arguments()))
        return None if opens else call


def _opens_another(call: _Call, arguments: str) -> bool:
    """Nothing can follow an object: what begins one behind a whole one belongs to another call."""
    return arguments.lstrip().startswith("{") and call.is_whole()


def _as_text(value: Any) -> str:
    """Content as text: some servers stream a list of parts."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    return "".join(part.get("text") or "" for part in parts if isinstance(part, dict))


def _what_failed(error: Any) -> str:
    said = (error.get("message") if isinstance(error, dict) else None) or error
    said = (said if isinstance(said, str) else _shown.repr(said))[:2000]
    return f"The provider reported an error inside the stream: {said}. {KEPT}"
