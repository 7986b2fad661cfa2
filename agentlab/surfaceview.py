"""A session as a log and a view of it: the log only grows, and what the model sees is worked out from it.

    append, replace, rewind -> one more event -> [journal] -> the list of events -> replay -> nodes -> history

A node is a message of the view, known by its event's sequence number. Nodes stand in the order of their positions: a
replacement has a high number and may stand first. There is one rule of how events make a view, and it is that of
`replay`; so the view of a live session, of one that was resumed, and of a fork cannot differ. (Seed 002, the surface.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentlab.errors import AgentLabError
from agentlab.journal import Journal, JournalError
from agentlab.journalfile import seq_of
from agentlab.messages import Message
from agentlab.replay import Event, Session, fault, replay

Node = tuple[int, Message]


class SurfaceError(AgentLabError):
    """Something that a surface cannot do, such as to replace a node that is not there. Nothing has changed."""


@dataclass(frozen=True)
class Replacement:
    """The nodes from `start` to `end`, inclusive, become `node`. `note` is a log-only event written just before it."""

    start: int
    end: int
    node: Message
    reason: str = "replace"
    note: Event | None = None


class Surface:
    """The view of one session. With a journal every event is written there first; without one it lives in memory.

    `events` are those of a session that is there already, as `Journal.events` gives them; a journal brings its own. A
    write that fails raises JournalError and leaves the view as the log is. When anything breaks an append off, Ctrl+C
    too, the log is read again at the next look. Messages are kept, not copied: change none.
    """

    def __init__(self, journal: Journal | None = None, *, events: Iterable[Event] = ()) -> None:
        self.journal = journal
        self._events: list[Event] = []
        self._last = 0
        self._sure = True  # whether all of the above is what the log says
        self._transcripts: dict[int, list[Node]] = {}  # they only grow, until a rewind
        self._take(journal.events() if journal else events)

    @property
    def events(self) -> list[Event]:
        """The log: every event, in order. Only a journal's own envelope has a `ts`."""
        self._settle()
        return list(self._events)

    @property
    def session(self) -> Session:
        """The replayed log."""
        self._settle()
        return self._session

    @cached_property
    def _session(self) -> Session:
        return replay(self._events)

    @property
    def nodes(self) -> list[Node]:
        """The view as (sequence number, message), in position order, before the repair of pairs."""
        return list(self.session.nodes)

    def history(self) -> list[Message]:
        """What the model sees next: the view after `pairing.repair`, so it can be sent."""
        return list(self.session.history)

    @property
    def last(self) -> int:
        """The highest sequence number so far; 0 for an empty log."""
        self._settle()
        return self._last

    def transcript(self, *, after: int = 0) -> list[Node]:
        """The view, if nothing had been replaced after event number `after`: by default, all that was ever said.

        What was withdrawn is not in it.
        """
        self._settle()
        if after not in self._transcripts:
            kept = (event for event in self._events if event.get("type") != "replace" or seq_of(event, 0) <= after)
            self._transcripts[after] = replay(kept).nodes
        return list(self._transcripts[after])

    @cached_property
    def _sources(self) -> dict[int, tuple[int, ...]]:
        made = (event for event in self._events if event.get("type") == "replace" and not fault(event))
        return {seq_of(event, 0): tuple(event.get("source") or (event["start"], event["end"])) for event in made}

    def source(self, seq: int) -> tuple[int, ...]:
        """The nodes that this one replaced, by their numbers in position order; empty for one that was said.

        An event that another program wrote names the two ends only.
        """
        self._settle()
        return self._sources.get(seq, ())

    def append(self, item: dict[str, Any]) -> int:
        """Add a message to the end of the view, or any other event to the log; returns its sequence number.

        What has a `role` is a message, what has a `type` an event of a journal. So a `Recorder` can be given a surface
        in place of its journal. Raises as `Journal.append` does.
        """
        return self.append_all([item])[0]

    def append_all(self, items: Iterable[dict[str, Any]]) -> list[int]:
        """Add some messages or events; all are checked before the first one is written."""
        events = [_event(item) for item in items]
        if not events:
            return []
        self._settle()
        sure, self._sure = self._sure, False
        if self.journal is None:
            seqs = list(range(self._last + 1, self._last + 1 + len(events)))
        else:
            seqs = self.journal.append_all(events)
        if seqs[0] != self._last + 1:  # somebody else wrote to the same journal
            self.refresh()
        else:
            self._take({"seq": seq, **event} for seq, event in zip(seqs, events, strict=True))
        self._sure = sure
        return seqs

    def _settle(self) -> None:
        """After an append that was broken off: read the log again. As long as it cannot be read, the view stays."""
        if not self._sure:
            with suppress(JournalError):
                self._read()

    def _read(self) -> None:
        """Read the log from its start; all of it is taken, or nothing."""
        self._sure = False
        fresh = Surface(self.journal, events=self._events)
        self._events, self._last, self._transcripts = fresh._events, fresh._last, {}
        self._forget()
        self._sure = True

    def refresh(self) -> None:
        """Take in what others have written to the journal since the last look. Raises JournalError."""
        if self.journal:
            self._read()

    def replace(self, start: int, end: int, node: Message, *, reason: str = "replace") -> int:
        """Put one message in the place of the nodes from `start` to `end`, inclusive; returns its sequence number.

        Both are numbers of nodes that stand in the view now. The old messages stay in the log. Raises SurfaceError.
        """
        return self.replace_all([Replacement(start, end, node, reason)])[0]

    def replace_all(self, replacements: Sequence[Replacement]) -> list[int]:
        """Some replacements at once, all judged on the view as it stands now; returns the numbers of the new nodes.

        Takes linear time. Raises SurfaceError, before anything is written, also for ranges that overlap.
        """
        at = {seq: position for position, (seq, _) in enumerate(self.session.nodes)}
        taken: set[int] = set()
        events: list[Event] = []
        for it in replacements:
            if it.start not in at or it.end not in at or at[it.start] > at[it.end]:
                raise SurfaceError(
                    f"There is no range of nodes from {it.start} to {it.end} in the view: nothing was replaced. "
                    "Take both numbers from surface.nodes, the one that stands first first."
                )
            source = [seq for seq, _ in self.session.nodes[at[it.start] : at[it.end] + 1]]
            if not taken.isdisjoint(source):
                raise SurfaceError(f"Two of the ranges share the node {it.start} or one behind it: none was replaced.")
            if not isinstance(it.node, dict) or "role" not in it.node:
                raise SurfaceError("A node is replaced by a message, a dict with a `role`: nothing was replaced.")
            taken.update(source)
            event = {"type": "replace", "start": it.start, "end": it.end, "node": it.node}
            events += [it.note] if it.note else []
            events.append({**event, "reason": it.reason, "source": source})
        seqs = self.append_all(events)
        return [seq for seq, event in zip(seqs, events, strict=True) if event["type"] == "replace"]

    def rewind(self, to: int) -> int:
        """Withdraw all events numbered above `to`, replacements too; returns the number of the event that says so.

        What a withdrawn replacement stood for is in the view again. Raises SurfaceError for a number to come.
        """
        if not isinstance(to, int) or not 0 <= to <= self._last:
            raise SurfaceError(
                f"A session of {self._last} events cannot go back to number {to}: use 0 to {self._last}."
            )
        return self.append({"type": "rewind", "to": to})

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            self._last = max(self._last, seq_of(event, self._last + 1))
            self._events.append(event)
            if event.get("type") == "rewind":
                self._transcripts = {}
            elif event.get("type") == "message" and not fault(event):
                for transcript in self._transcripts.values():
                    transcript.append((self._last, event["message"]))
        self._forget()

    def _forget(self) -> None:
        for derived in ("_session", "_sources"):
            self.__dict__.pop(derived, None)

    def _repr_html_(self) -> str:
        from agentlab import draw
        from agentlab.draw.words import count

        nodes = self.session.nodes
        fates = [
            "kept" if not self.source(seq) else "summarised" if message.get("origin") == "compaction" else "pruned"
            for seq, message in nodes
        ]
        counted = (len(self._events), "event"), (len(nodes), "node"), (len(nodes) - fates.count("kept"), "replacement")
        caption = ", ".join(count(number, noun) for number, noun in counted)
        return draw.strip([message for _, message in nodes], fates=fates, caption=caption)._repr_html_()


def _event(item: dict[str, Any]) -> Event:
    """A message as an event; an event as it is. Raises SurfaceError for anything else."""
    if isinstance(item, dict) and isinstance(item.get("role"), str):
        return {"type": "message", "message": item}
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(kind, str) or not kind:
        raise SurfaceError("Append a message, a dict with a `role`, or an event, a dict with a `type`. Nothing was.")
    if lacks := fault(item):
        raise SurfaceError(f"A {kind!r} event needs {lacks}. Nothing was appended.")
    return {name: value for name, value in item.items() if name not in ("seq", "ts")}
