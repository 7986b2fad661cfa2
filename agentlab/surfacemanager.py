"""A surface in the loop: what a turn adds is appended, what it takes back is withdrawn, and the view is what is sent.

    history of the turn -> compared with the transcript -> rewind, append -> compact_if_needed -> the view
    a refusal           -> compact_if_needed("overflow")                                       -> a shorter view

Everything that is known about the session stands in the surface's events, so a session that is resumed, forked or
rewound goes on by itself. (Seed 002: before every step, and after a request that was refused as too long.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.compaction import CompactionError, Limits
from agentlab.compactor import Compactor, Relief
from agentlab.context import Prepared
from agentlab.messages import Message
from agentlab.pairing import repair
from agentlab.pruner import Pruner
from agentlab.summary import TIMEOUT_S, Breaker, Summarize
from agentlab.surfaceview import Node, Surface
from agentlab.usage import read_usage


class SurfaceManager:
    """A context manager (`agentlab.context`) for one conversation.

    `surface` may sit on a journal: then all goes there, and a `Recorder` of the same session is given the surface
    instead of the journal, and looks before this manager does. Under pressure it gives up after `max_tries` failures in
    a row, sends the view as it is, and waits for the provider to refuse it. `last` is the newest Relief, if any.
    """

    def __init__(
        self,
        summarize: Summarize,
        *,
        surface: Surface | None = None,
        limits: Limits | None = None,
        retain_tokens: int | None = None,
        pruner: Pruner | None = None,
        goal: str | None = None,
        timeout_s: float | None = TIMEOUT_S,
        max_tries: int = 3,
        breaker: Breaker | None = None,
    ) -> None:
        self.surface = surface or Surface()
        self.compactor = Compactor(
            self.surface,
            summarize,
            limits=limits,
            retain_tokens=retain_tokens,
            pruner=pruner,
            goal=goal,
            timeout_s=timeout_s,
            breaker=breaker,
        )
        self.last: Relief | None = None
        self._max_tries, self._tries = max_tries, 0
        self._usage: Any = None  # the last one that was looked at
        self._sent = 0  # the estimate of the last view, in tokens
        self._base = -1  # the history holds the replacements up to this event

    async def prepare(self, history: Sequence[Message], usage: Any = None) -> Prepared:
        """The view of a history, pruned and compacted when it comes near the window. The history is never changed."""
        self._sync(history)
        self.compactor.reset()  # a reply has come since the last request, or the session was idle
        if usage is not self._usage and self._sent and (counted := _counted(usage)):
            self.compactor.calibrate(counted, self._sent)
        self._usage = usage
        shortened, why = False, ""
        if self.compactor.measure() < self.compactor.limits.threshold:
            self._tries = 0
        if self._tries >= self._max_tries:
            why = f"{self._tries} tries in a row did not bring the view below the threshold, so it stays."
        else:
            shortened, why = await self._relieve()
        view = self.surface.history()
        self._sent = self.compactor.estimate(view)
        return Prepared(view, shortened, why)

    def _sync(self, history: Sequence[Message]) -> None:
        """A session that was resumed goes on from all that was said, or from the view that replay gave."""
        if self._base < 0:
            whole, view = _shared(self.surface.transcript(), history), _shared(self.surface.nodes, history)
            self._base = self.surface.last if view[0] == len(self.surface.nodes) or view[1] > whole[1] else 0
        sync(self.surface, history, after=self._base)

    async def _relieve(self) -> tuple[bool, str]:
        """Whether the view changed, and why, or why not: pressure alone never ends a turn."""
        before = self.surface.nodes
        try:
            self.last = relief = await self.compactor.compact_if_needed("pressure")
        except CompactionError as error:
            self._tries += 1
            return self.surface.nodes != before, str(error)
        return relief.changed, relief.why

    async def on_overflow(self, view: list[Message]) -> list[Message]:
        """A shorter view than the last one, for `Hooks.on_overflow`. Raises CompactionError when there is none."""
        if self._base < 0:
            self._sync(view)
        self.last = await self.compactor.compact_if_needed("overflow")
        self._tries = 0
        shorter = self.surface.history()
        self._sent = self.compactor.estimate(shorter)
        return shorter


def _counted(usage: Any) -> int:
    """The tokens of a request's input, in any dialect; where only a total is reported, that. 0: nothing is."""
    total = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return read_usage(usage).prompt or (total if isinstance(total, int) else 0)


def sync(surface: Surface, history: Sequence[Message], *, after: int = 0) -> list[int]:
    """Make the transcript of a surface this history: withdraw what is not in it, append what is new.

    `after` is that of `Surface.transcript`: the history was a view when the log had so many events.
    Returns the numbers of what was appended. Placeholders of `pairing.repair` that only the history has do not
    count, nor does what a repair has mended. A rewind withdraws the replacements that came after it too.
    """
    while (shared := _shared(said := surface.transcript(after=after), history))[0] < len(said):
        surface.rewind(said[shared[0]][0] - 1)
    return surface.append_all(history[shared[1] :])


def _shared(said: Sequence[Node], history: Sequence[Message]) -> tuple[int, int]:
    """How many messages of the transcript and of the history, from their start on, are the same."""
    mine = theirs = 0
    while mine < len(said) and theirs < len(history):
        known, given = said[mine][1], history[theirs]
        if known is given or known == given or _mended(known) == given:
            mine, theirs = mine + 1, theirs + 1
        elif given.get("role") == "tool" and given.get("origin") == "repair":
            theirs += 1
        elif known.get("role") == "assistant" and _mended(known) is None:  # an empty shell is never sent
            mine += 1
        else:
            break
    return mine, theirs


def _mended(message: Message) -> Message | None:
    """A message as `repair` leaves it, when it stands alone."""
    return next(iter(repair([message]).history), None) if message.get("role") == "assistant" else None
