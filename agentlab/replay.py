"""From events to a session: the log is the truth, and what the model sees is worked out from it.

    message     -> a node at the end of the view, known by its sequence number
    replace     -> the nodes from `start` to `end` (inclusive) become one, which stands in the place of the first
    rewind      -> all events numbered above `to` are withdrawn: messages, replacements, tool calls, config
    tool_call   -> the newest state of one call, known by (its calling message, its id), since ids recur
    config      -> a model's settings, whole: all of meta but what is the session's own, its title and the like
    usage       -> added up; what was withdrawn had been paid for all the same

A node that replaced others may be replaced itself, under its own number or by a range that takes it in. A range that
only touches it takes all of it in. Where a broken line tore a hole, the rest of a range still counts, and
`pairing.repair` mends what is left of the pairs. (Seed 000, persistence; its ranges were list positions.)
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeGuard

from agentlab.cacheusage import CacheUsage, total
from agentlab.journalfile import MAX_SEQ
from agentlab.language import say
from agentlab.messages import Message, calls_of
from agentlab.pairing import repair

Event = dict[str, Any]
CallKey = tuple[int, str]  # the calling message's sequence number, the call's id

STATES = ("pending_approval", "running", "completed", "rejected", "failed")
_STARTED = ("running", "completed", "failed")
_ENVELOPE = ("seq", "ts", "type")
_OWN = frozenset(
    {
        "id", "parent", "title", "cwd", "root", "project", "system", "system_prompt", "tools", "tags",
        "created", "created_at", "createdAt", "updated", "updated_at", "updatedAt",
    }
)  # fmt: skip
"""Fields of meta that say what the session is. All others are settings of its model."""


@dataclass(frozen=True)
class Session:
    """A session as its events left it."""

    meta: dict[str, Any]
    """The first record's data. The newest `config` has replaced what of it is a model's setting: all but `_OWN`."""

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
        caption = say(
            "{messages} messages, {calls} tool calls, {skipped} lines skipped",
            messages=len(self.history),
            calls=len(self.tool_calls),
            skipped=self.skipped,
        )
        return draw.strip(self.history, fates=fates, caption=caption)._repr_html_()


_Node = tuple[
    int, int, int, int, Message
]  # first and last number it stands for, its place, its own number, the message
_Kept = tuple[int, str, dict[str, Any]]  # number, type, and the event; of a message's event the message alone
_FIRST, _LAST, _PLACE = map(itemgetter, range(3))


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
    kept: list[_Kept] = []
    usages: list[Any] = []
    seq = skipped = 0
    rewound = False
    for event in events:
        kind = event.get("type")
        number = event.get("seq")
        seq = number if type(number) is int and 0 < number <= MAX_SEQ else seq + 1  # seq_of, without the call
        if kind == "message" and type(message := event.get("message")) is dict:  # nearly all of them
            kept.append((seq, kind, message))  # not the event: memory is most of the time that this takes
        elif kind == "broken" or fault(event):
            skipped += 1
        elif kind == "usage":
            usages.append(event["usage"])
        elif kind == "session_meta":
            meta = event["meta"] if meta is None else meta
        elif kind in ("message", "replace", "tool_call", "config", "rewind"):
            rewound = rewound or kind == "rewind"
            kept.append((seq, kind, event))
    view = _View(meta or {})
    for seq, kind, event in _standing(kept) if rewound else kept:
        if kind == "message":
            view.message(seq, event)
        elif kind == "replace":
            view.replace(seq, event["start"], event["end"], event["node"])
        elif kind == "tool_call":
            view.tool_call(event["record"])
        else:
            view.config(event)
    return view.session(skipped, total(usages))


def _standing(kept: list[_Kept]) -> list[_Kept]:
    """What no later rewind withdraws. Read from the end, the lowest `to` so far decides."""
    lowest, standing = MAX_SEQ, []
    for it in reversed(kept):
        if it[1] == "rewind":
            lowest = min(lowest, it[2]["to"])
        elif it[0] <= lowest:
            standing.append(it)
    return standing[::-1]


class _View:
    """Nodes, and what else the events leave.

    Nodes that stand for one number and those that stand for a range are kept apart, each list in the order of the
    numbers. Two ranges never overlap, so what a replacement hits is one slice of either list, also where numbers go
    back since another program wrote here. The places bring the nodes into the order in which they were said.
    """

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = dict(meta)
        self.calls: dict[CallKey, dict[str, Any]] = {}
        self._single: list[_Node] = []
        self._wide: list[_Node] = []
        self._last = self._place = 0
        self._spans: dict[int, tuple[int, int]] = {}  # of each replacement, live or not
        self._callers: dict[str, int] = {}  # call id -> the newest message that made it

    def message(self, seq: int, message: Message) -> None:
        self._place += 1
        node = (seq, seq, self._place, seq, message)
        if seq > self._last:
            self._last = seq
            self._single.append(node)
        else:
            insort(self._single, node, key=_FIRST)
        if "tool_calls" in message:
            self._callers |= {call["id"]: seq for call in calls_of(message) if isinstance(call.get("id"), str)}

    def tool_call(self, record: dict[str, Any]) -> None:
        caller = record.get("message")
        key: CallKey = (caller if _is_count(caller) else self._callers.get(record["id"], 0), record["id"])
        self.calls[key] = {**self.calls.get(key, {}), **record}

    def config(self, event: Event) -> None:
        settings = event.get("config", {name: event[name] for name in event if name not in _ENVELOPE})
        if not _OWN.issuperset(settings):
            self.meta = {name: value for name, value in self.meta.items() if name in _OWN}
        self.meta.update(settings)

    def replace(self, seq: int, start: int, end: int, message: Message) -> None:
        low = self._spans.get(start, (start, 0))[0]
        high = self._spans.get(end, (0, end))[1]
        found: list[_Node] = []
        for nodes in (self._single, self._wide):
            hit = slice(bisect_left(nodes, low, key=_LAST), bisect_right(nodes, high, key=_FIRST))
            found += nodes[hit]
            del nodes[hit]
        if not found:
            return
        first, last, place = min(map(_FIRST, found)), max(map(_LAST, found)), min(map(_PLACE, found))
        self._spans[seq] = (first, last)
        insort(self._single if first == last else self._wide, (first, last, place, seq, message), key=_FIRST)

    def session(self, skipped: int, usage: CacheUsage) -> Session:
        nodes = [node[3:] for node in sorted(self._single + self._wide, key=_PLACE)]
        at = {seq: index for index, (seq, _) in enumerate(nodes)} if self.calls else {}
        started = [
            (at[seq], id) for (seq, id), call in self.calls.items() if call.get("status") in _STARTED and seq in at
        ]
        history = repair([message for _, message in nodes], started=started).history
        calls = {
            key: {**call, "status": "failed", "crashed": True} if call.get("status") == "running" else call
            for key, call in self.calls.items()
        }
        return Session(self.meta, history, calls, skipped, usage, nodes)
