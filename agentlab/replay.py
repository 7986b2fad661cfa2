"""From events to a session: the log is the truth, and what the model sees is worked out from it.

    message     -> a node at the end of the view, known by its sequence number
    replace     -> the nodes from `start` to `end` (inclusive) become one, which stands in the place of the first
    rewind      -> all events numbered above `to` are withdrawn: messages, replacements, tool calls, config
    tool_call   -> the newest state of one call, known by (its calling message, its id), since ids recur
    config      -> a model's settings, whole: no field of the model before it is left
    usage       -> added up; what was withdrawn had been paid for all the same

A node that replaced others may be replaced itself, under its own number or by a range that takes it in. A range that
only touches it takes all of it in. Where a broken line tore a hole, the rest of a range still counts, and
`pairing.repair` mends what is left of the pairs. (Seed 000, persistence; its ranges were list positions.)
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeGuard

from agentlab.cacheusage import CacheUsage, total
from agentlab.journalfile import seq_of
from agentlab.messages import Message, calls_of
from agentlab.pairing import repair

Event = dict[str, Any]
CallKey = tuple[int, str]  # the calling message's sequence number, the call's id

STATES = ("pending_approval", "running", "completed", "rejected", "failed")
_STARTED = ("running", "completed", "failed")
_ENVELOPE = ("seq", "ts", "type")
_MODEL_SETTINGS = frozenset(
    {
        "model", "base_url", "baseUrl", "api_base", "provider", "dialect", "headers", "context_window", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "seed", "stop",
        "reasoning", "reasoning_effort", "thinking", "effort", "verbosity", "compact_percent", "extra_body",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Session:
    """A session as its events left it."""

    meta: dict[str, Any]
    """The first record's data, with the settings of the newest `config` in place of the model's first ones."""

    history: list[Message]
    """What the model sees next: the view after `pairing.repair`, so it can be sent."""

    tool_calls: dict[CallKey, dict[str, Any]]
    """The last record of each call. One that stood as running has crashed: `status` failed, `crashed` True."""

    skipped: int
    """Lines that could not be read, and records of a known type that lack what the type needs."""

    usage: CacheUsage
    """The sum over all requests, in tokens."""

    nodes: list[tuple[int, Message]]
    """The view before the repair: each message with the number that `replace` and `rewind` know it by."""

    def _repr_html_(self) -> str:
        from agentlab import draw

        fates = ["summarised" if message.get("origin") == "compaction" else "kept" for message in self.history]
        caption = f"{len(self.history)} messages, {len(self.tool_calls)} tool calls, {self.skipped} lines skipped"
        return draw.strip(self.history, fates=fates, caption=caption)._repr_html_()


_Node = tuple[int, int, int, Message]  # first and last number of the messages it stands for, its own, the message
_FIRST: Final = 0
_LAST: Final = 1


def fault(event: Event) -> str | None:
    """What an event of a known type lacks, as the end of a sentence; None for a sound one and for unknown types."""
    kind = event.get("type")
    needs = _NEEDS.get(kind) if isinstance(kind, str) else None
    return None if needs is None or needs[0](event) else needs[1]


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


_NEEDS: dict[str, tuple[Callable[[Event], bool], str]] = {
    "session_meta": (lambda event: isinstance(event.get("meta"), dict), "`meta`, an object"),
    "message": (lambda event: isinstance(event.get("message"), dict), "`message`, an object"),
    "tool_call": (
        lambda event: isinstance(event.get("record"), dict) and isinstance(event["record"].get("id"), str),
        "`record`, an object with the call's `id`",
    ),
    "replace": (
        lambda event: (
            _is_count(event.get("start")) and _is_count(event.get("end")) and isinstance(event.get("node"), dict)
        ),
        "`start` and `end`, sequence numbers, and `node`, a message",
    ),
    "rewind": (lambda event: _is_count(event.get("to")), "`to`, a sequence number"),
    "usage": (lambda event: isinstance(event.get("usage"), dict), "`usage`, an object"),
    "config": (lambda event: isinstance(event.get("config", {}), dict), "`config`, an object"),
}


def replay(events: Iterable[Event]) -> Session:
    """Work out a session from its events, in their order. Unknown types are ignored; nothing is changed or raised.

    Events without a number count on from the one before, so hand-written lists will do. Linear in their number.
    """
    collecting = gc.isenabled()
    gc.disable()  # all that is made here stays: looking for garbage meanwhile would take twice as long as the rest
    try:
        return _replay(events)
    finally:
        if collecting:
            gc.enable()


def _replay(events: Iterable[Event]) -> Session:
    meta: dict[str, Any] | None = None
    kept: list[tuple[int, Event]] = []
    usages: list[Any] = []
    seq = skipped = 0
    for event in events:
        kind = event.get("type")
        seq = seq_of(event, seq + 1)
        if kind == "message" and type(event.get("message")) is dict:  # nearly all of them
            kept.append((seq, event))
        elif kind == "broken" or fault(event):
            skipped += 1
        elif kind == "usage":
            usages.append(event["usage"])
        elif kind == "session_meta":
            meta = event["meta"] if meta is None else meta
        elif kind == "rewind":
            kept = [(number, it) for number, it in kept if number <= event["to"]]
        elif kind in ("message", "replace", "tool_call", "config"):
            kept.append((seq, event))
    view = _View(meta or {})
    for number, event in kept:
        kind = event["type"]
        if kind == "message":
            view.message(number, event["message"])
        elif kind == "replace":
            view.replace(number, event["start"], event["end"], event["node"])
        elif kind == "tool_call":
            view.tool_call(event["record"])
        else:
            view.config(event)
    return view.session(skipped, total(usages))


class _View:
    """Nodes in position order, and what else the events leave."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = dict(meta)
        self.nodes: list[_Node] = []
        self.calls: dict[CallKey, dict[str, Any]] = {}
        self._last = 0
        self._ascending = True
        self._spans: dict[int, tuple[int, int]] = {}  # of each replacement, live or not
        self._callers: dict[str, int] = {}  # call id -> the newest message that made it

    def message(self, seq: int, message: Message) -> None:
        if seq <= self._last:
            self._ascending = False
        self._last = seq
        self.nodes.append((seq, seq, seq, message))
        if "tool_calls" in message:
            self._callers |= {call["id"]: seq for call in calls_of(message) if isinstance(call.get("id"), str)}

    def tool_call(self, record: dict[str, Any]) -> None:
        caller = record.get("message")
        key: CallKey = (caller if _is_count(caller) else self._callers.get(record["id"], 0), record["id"])
        self.calls[key] = {**self.calls.get(key, {}), **record}

    def config(self, event: Event) -> None:
        settings = event.get("config") or {name: event[name] for name in event if name not in _ENVELOPE}
        if "model" in settings:
            self.meta = {name: value for name, value in self.meta.items() if name not in _MODEL_SETTINGS}
        self.meta.update(settings)

    def replace(self, seq: int, start: int, end: int, message: Message) -> None:
        low = self._spans.get(start, (start, 0))[0]
        high = self._spans.get(end, (0, end))[1]
        if self._ascending:
            at = bisect_left(self.nodes, low, key=itemgetter(_LAST))
            behind = bisect_right(self.nodes, high, key=itemgetter(_FIRST))
            found = self.nodes[at:behind]
        else:  # numbers that go back: another program wrote here
            found = [node for node in self.nodes if node[_FIRST] <= high and node[_LAST] >= low]
        if not found:
            return
        first, last = min(node[_FIRST] for node in found), max(node[_LAST] for node in found)
        self._spans[seq] = (first, last)
        node = (first, last, seq, message)
        if self._ascending:
            self.nodes[at:behind] = [node]
        else:
            gone = {id(it) for it in found[1:]}
            self.nodes = [node if it is found[0] else it for it in self.nodes if id(it) not in gone]

    def session(self, skipped: int, usage: CacheUsage) -> Session:
        at = {seq: index for index, (_, _, seq, _) in enumerate(self.nodes)} if self.calls else {}
        started = [
            (at[seq], id) for (seq, id), call in self.calls.items() if call.get("status") in _STARTED and seq in at
        ]
        history = repair([message for _, _, _, message in self.nodes], started=started).history
        calls = {
            key: {**call, "status": "failed", "crashed": True} if call.get("status") == "running" else call
            for key, call in self.calls.items()
        }
        return Session(self.meta, history, calls, skipped, usage, [(seq, message) for _, _, seq, message in self.nodes])
