"""What all readers share: a transcript, the tally of what was dropped, and the builder of a history.

A session file is an event log: results arrive when they are ready, and one reply may come in several records. The
builder keeps one window per reply, so that a late part or result lands where its reply stands.

    reply(key="msg_1") -> window 1     result("b") -> the newest window with an unanswered call "b"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agentlab import jsonio
from agentlab.language import say
from agentlab.messages import Message, ToolCall
from agentlab.usage import CacheUsage, read_usage

LINES_TOLD = 20
KINDS_TOLD = 200
HISTORY_BYTES = 130_000_000
"""How much memory the messages of one part of a file may take, as Python counts it."""

_OVERHEAD = 600
DAMAGED = frozenset({"a line that is no JSON", "a line that is too long"})
FULL = "a message beyond the memory limit"


@dataclass(frozen=True)
class Dropped:
    """Something that has no place in the history: what, how often, and the first lines (from 1) where it stood."""

    kind: str
    count: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Used:
    """The recorded usage of one request: when (seconds since the epoch, None: not recorded), its line, its model.

    `compacted`: the history was compacted between the last request and this one.
    """

    usage: CacheUsage
    at: float | None = None
    line: int = 0
    model: str = ""
    compacted: bool = False


@dataclass(frozen=True)
class Break:
    """A recorded request that does not begin as the one before it: the culprit as `prefix.diff` names it.

    `lost` are the characters of the previous request behind the break.
    """

    line: int
    culprit: str
    where: str
    lost: int


@dataclass(frozen=True)
class Transcript:
    """One session. `meta` holds short texts and counts, such as `session`, `models`, `compactions`, `failed`."""

    format: str
    history: list[Message] = field(repr=False)
    dropped: tuple[Dropped, ...] = ()
    usages: tuple[Used, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    breaks: tuple[Break, ...] = ()

    @property
    def damaged(self) -> int:
        """How many lines could not be read, or messages not be held."""
        return sum(item.count for item in self.dropped if item.kind in DAMAGED or item.kind == FULL)

    def _repr_html_(self) -> str:
        from agentlab import draw

        fates = ["summarised" if message.get("origin") == "compaction" else "kept" for message in self.history]
        rows = [(item.kind, item.count, ", ".join(map(str, item.lines))) for item in self.dropped]
        table = draw.table(rows, head=(say("dropped"), say("count"), say("first lines")))
        caption = say("{format}: {n} messages", format=self.format, n=len(self.history))
        strip = draw.strip(self.history, fates=fates, caption=caption)
        return draw.html(strip, table)._repr_html_()


def visible(text: Any, limit: int = 80) -> str:
    """A text for people: at most `limit` characters, control characters and lone surrogates as escapes."""
    shown = str(text)[: limit + 1]
    cut = len(shown) > limit
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown[:limit])
    return (shown[: limit - 1] + "…") if cut or len(shown) > limit else shown


def seconds(value: Any) -> float | None:
    """An ISO 8601 time as seconds since the epoch (UTC where it names no zone); None for anything else."""
    try:
        parsed = datetime.fromisoformat(value)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


class Tally:
    """What one file's readers dropped, and how much room is left for its messages."""

    def __init__(self, room: int | None = None) -> None:
        self.whole = self.room = HISTORY_BYTES if room is None else room
        self._kinds: dict[str, tuple[int, list[int]]] = {}

    def drop(self, kind: str, line: int, count: int = 1) -> None:
        """Count something that has no place in the history."""
        kind = visible(kind, 60)
        if kind not in self._kinds and len(self._kinds) >= KINDS_TOLD:
            kind = "something of yet another kind"
        before, lines = self._kinds.get(kind, (0, []))
        if len(lines) < LINES_TOLD and line not in lines[-1:]:
            lines.append(line)
        self._kinds[kind] = before + count, lines

    def fits(self, *texts: str) -> bool:
        """Take room for a message; once one did not fit, none does, so that a history has no holes."""
        if self.room >= 0:
            self.room -= _OVERHEAD + sum(map(sys.getsizeof, texts))
        return self.room >= 0

    @property
    def low(self) -> bool:
        """Whether it is time to hand out a part of the session: nine tenths of the room are taken."""
        return self.room < self.whole // 10

    def dropped(self) -> tuple[Dropped, ...]:
        """Everything so far, in the order in which it was first met."""
        return tuple(Dropped(kind, count, tuple(lines)) for kind, (count, lines) in self._kinds.items())

    def flat(self, content: Any, line: int) -> str:
        """Any content as one text: its text parts on lines of their own; an image leaves a note of its size."""
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "\n".join(text for part in content if (text := self.flat(part, line)))
        if not isinstance(content, dict):
            return "" if content is None else jsonio.dumps(content)
        kind = content.get("type")
        if isinstance(content.get("text"), str):
            return str(content["text"])
        if isinstance(kind, str) and "image" in kind:
            self.drop(f"part {kind}", line)
            return "[an image, left out]"
        for key in ("content", "output"):
            if key in content:
                return self.flat(content[key], line)
        return jsonio.dumps(content)


class Builder:
    """One history in the making."""

    def __init__(self, format: str, tally: Tally) -> None:
        self.format, self.tally = format, tally
        self.meta: dict[str, Any] = {}
        self.model = ""
        self._compacted = False
        self._clear()

    def _clear(self) -> None:
        self._windows: list[list[Message]] = [[]]
        self._replies: dict[Any, tuple[Message, list[Message]]] = {}
        self._open: dict[str, list[list[Message]]] = {}
        self._used: dict[Any, Used] = {}
        self.size = 0

    def count(self, name: str, by: int = 1) -> None:
        """Count something worth telling in `meta`."""
        self.meta[name] = self.meta.get(name, 0) + by

    def tell(self, **texts: Any) -> None:
        """Put short texts into `meta`; the first one of a name stays."""
        for name, text in texts.items():
            if isinstance(text, str) and text:
                self.meta.setdefault(name, visible(text))

    def words(self, role: str, text: str, line: int, *, origin: str = "") -> None:
        """A message of a person or of the product (which then has an origin)."""
        if not self.tally.fits(text):
            return self.tally.drop(FULL, line)
        message = {"role": role, "content": text}
        self._windows[-1].append(message | {"origin": origin} if origin else message)
        self.size += 1

    def reply(self, text: str, calls: Sequence[ToolCall], line: int, *, key: Any = None) -> None:
        """A reply of the model, or another part of the reply with this key."""
        if not self.tally.fits(text, *(str(call["function"].get("arguments")) for call in calls)):
            return self.tally.drop(FULL, line)
        message, window = self._replies.get(key, ({}, [])) if key is not None else ({}, [])
        if not message:
            message = {"role": "assistant", "content": ""}
            window = [message]
            self._windows.append(window)
            self.size += 1
            if key is not None:
                self._replies[key] = message, window
        if text:
            message["content"] = f"{message['content']}\n{text}" if message["content"] else text
        if calls:
            message.setdefault("tool_calls", []).extend(calls)
            for call in calls:
                self._open.setdefault(str(call["id"]), []).append(window)

    def result(self, call_id: Any, text: str, line: int) -> None:
        """The result of a call. It goes to the newest unanswered call with this id, wherever that stands."""
        if not self.tally.fits(text):
            return self.tally.drop(FULL, line)
        waiting = self._open.get(id := call_id if isinstance(call_id, str) else "")
        window = waiting.pop() if waiting else self._windows[-1]
        if not waiting:
            self._open.pop(id, None)
        if window is not self._windows[-1]:
            self.count("moved_results")
        window.append({"role": "tool", "tool_call_id": id, "content": text})
        self.size += 1

    def put(self, call_id: str, text: str, line: int) -> None:
        """A result just where it stands, for files that hold messages and no events."""
        if not self.tally.fits(text):
            return self.tally.drop(FULL, line)
        self._windows[-1].append({"role": "tool", "tool_call_id": call_id, "content": text})
        self.size += 1

    def usage(self, usage: Any, line: int, *, at: Any = None, key: Any = None, model: Any = None) -> None:
        """The usage of a request, or a later one of the same request (`key`), which then counts instead."""
        if not isinstance(usage, Mapping):
            return
        read = read_usage(usage)
        key = line if key is None else key
        if key in self._used:
            self._used[key] = replace(self._used[key], usage=read)
        elif self.tally.fits():
            name = visible(model) if isinstance(model, str) else self.model
            models = self.meta.setdefault("models", [])
            if name and name not in models and len(models) < LINES_TOLD:
                models.append(name)
            when = at if isinstance(at, int | float) else seconds(at)
            self._used[key] = Used(read, when, line, name, self._compacted)
            self._compacted = False

    def compaction(self) -> None:
        """The product replaced the history that the model sees."""
        self.count("compactions")
        self._compacted = True

    @property
    def settled(self) -> bool:
        """Whether the history may be cut here: the last reply is whole, and its calls are answered."""
        window = self._windows[-1]
        results = sum(message["role"] == "tool" for message in window)
        return bool(window) and window[-1]["role"] != "assistant" and results >= len(window[0].get("tool_calls", ()))

    def part(self) -> Transcript:
        """The transcript so far, of a session that is too long for one; the next part starts empty."""
        number = self.meta.setdefault("part", 1)
        transcript = self.done()
        stays = {key: value for key, value in self.meta.items() if isinstance(value, str) or key == "sub_agent"}
        self.meta = {**stays, "part": number + 1}
        self._clear()
        self.tally.room = self.tally.whole
        return transcript

    def done(self) -> Transcript:
        """The transcript so far."""
        history = [message for window in self._windows for message in window]
        return Transcript(self.format, history, self.tally.dropped(), tuple(self._used.values()), dict(self.meta))


def call(id: Any, name: Any, arguments: Any) -> ToolCall:
    """A tool call as recorded: text arguments as they are, anything else as JSON. A missing id or name is ""."""
    text = arguments if isinstance(arguments, str) else jsonio.dumps(arguments)
    function = {"name": name if isinstance(name, str) else "", "arguments": text}
    return {"id": id if isinstance(id, str) else "", "type": "function", "function": function}
