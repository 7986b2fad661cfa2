"""Three-segment compaction over a whole conversation: the history grows, the view is compacted when it must be.

    history   0 1 2 3 4 5 6 7 8 9 ...            never changed
    view      system, [summary of 1-5], 6 7 8 9 ...

The view is kept, not made anew: a summary is paid for once, its bytes stay the same (and the provider's cache warm),
and the next compaction starts from it. When one compaction is not enough, the next one keeps less; when several in a
row are not, an error says so. (Seed 000, compaction.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlab.compaction import Compaction, CompactionError, Limits, compact, should_compact, split_index
from agentlab.context import Prepared
from agentlab.messages import Message
from agentlab.pairing import repair
from agentlab.summary import TIMEOUT_S, Breaker, Summarize, text_size


class SegmentManager:
    """A context manager (`agentlab.context`) for one conversation.

    `limits` are the window and the trigger; the other sizes follow the window. `keep_recent` messages stay at first,
    then fewer. After `max_tries` compactions that did not bring the usage below the threshold it waits for the provider
    to refuse; after so many refusals in a row it raises CompactionError. `last` is the newest Compaction, if any.
    """

    def __init__(
        self,
        summarize: Summarize,
        *,
        limits: Limits | None = None,
        keep_recent: int = 8,
        min_messages: int = 12,
        goal: str | None = None,
        timeout_s: float | None = TIMEOUT_S,
        max_tries: int = 3,
        breaker: Breaker | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.breaker = breaker or Breaker()
        self.last: Compaction | None = None
        self._summarize, self._goal, self._timeout_s = summarize, goal, timeout_s
        self._min_messages, self._max_tries = min_messages, max_tries
        anchor = min(40_000, self.limits.context_window)  # in characters: a quarter of a small window, or so
        keeps = dict.fromkeys(max(1, keep_recent >> halved) for halved in range(4))
        self._ladder = [(keep_recent, anchor), *((keep, 0) for keep in keeps)]
        self._history: list[Message] | None = None
        self._covered: list[Message] = []  # the start of the history that `_head` stands for
        self._head: list[Message] = []
        self._usage: Any = None  # the last one that was looked at, and the history that came with it
        self._looked: list[Message] = []
        self._tries = self._refusals = 0

    async def prepare(self, history: Sequence[Message], usage: Any = None) -> Prepared:
        """The view of a history, compacted when the usage asks for it: at most once for each usage.

        The same object is the same usage; equal numbers are, too, as long as the history is the same. A history that
        was rewound to within what the summary covers is shown whole again.
        """
        history = self._history = repair(history).history
        if self._covered and history[: len(self._covered)] != self._covered:
            self._covered, self._head, self._tries = [], [], 0
        view = self._view(history)
        if usage is None or usage is self._usage or (usage == self._usage and history == self._looked):
            return Prepared(view, False, "No response since the last look has reported its usage.")
        self._refusals = 0  # a request was answered
        decision = should_compact(
            usage,
            self.limits.context_window,
            trigger_percent=self.limits.trigger_percent,
            message_count=len(view),
            min_messages=self._min_messages,
        )
        if decision.used is not None and decision.used < decision.threshold:
            self._tries = 0
        if not decision.compact:
            self._usage, self._looked = usage, history
            return Prepared(view, False, decision.why)
        if self._tries >= self._max_tries:
            self._usage, self._looked = usage, history
            why = f"{decision.why} {self._tries} compactions in a row did not get below it, so the view stays."
            return Prepared(view, False, why)
        result = await self._compact(history, view, self._tries)
        self._usage, self._looked = usage, history
        self._tries += 1
        if not result.compacted:
            return Prepared(view, False, f"{decision.why} {result.reason}")
        return Prepared(result.history, True, f"{decision.why} {result.reason}".strip())

    async def on_overflow(self, view: list[Message]) -> list[Message]:
        """A shorter view than the last one, for `Hooks.on_overflow`.

        Raises CompactionError when there is none, or after `max_tries` refusals without an answer in between.
        """
        if self._history is None:
            self._history = repair(view).history
        view = self._view(self._history)
        if self._refusals < self._max_tries:
            result = await self._compact(self._history, view, self._refusals)
            self._refusals += 1
            if result.compacted:
                return result.history
        raise CompactionError(
            f"The request does not fit the context window; after {self._refusals} tries in a row nothing more can be "
            f"left out. The largest of the {len(view)} messages has {max(map(text_size, view), default=0):,} "
            "characters: limit what tools may return (agentlab.spill), or use a model with a larger window."
        )

    def _view(self, history: list[Message]) -> list[Message]:
        return [*self._head, *(history[at] for at in self._rest(history))]

    def _rest(self, history: list[Message]) -> list[int]:
        """Where in the history what is shown behind the head stands: system messages that the head has are left out."""
        first = [message for message in self._head if message.get("role") in ("system", "developer")]
        return [at for at in range(len(self._covered), len(history)) if history[at] not in first]

    async def _compact(self, history: list[Message], view: list[Message], step: int) -> Compaction:
        """The first compaction that gains something, from this step of the ladder on; each keeps less than the one
        before it. Its view is remembered."""
        window = self.limits.context_window
        result = Compaction(
            view, False, 0, "", False, "There is nothing to replace before the messages that must stay."
        )
        for keep, anchor in self._ladder[min(step, len(self._ladder) - 1) :]:
            if not split_index(view, keep, anchor):
                continue
            result = await compact(
                view,
                summarize=self._summarize,
                goal=self._goal,
                keep_recent=keep,
                max_anchor_chars=anchor,
                max_source_chars=min(200_000, window // 2),  # fits even where every character is a token
                max_fallback_chars=min(12_000, window // 2),
                timeout_s=self._timeout_s,
                breaker=self.breaker,
            )
            if result.compacted:
                rest = [*self._rest(history), len(history)]
                self._covered = history[: rest[result.kept_from - len(self._head)]]
                made = next(at for at, message in enumerate(result.history) if message.get("origin") == "compaction")
                self._head = result.history[: made + 1]
                self.last = result
                break
        return result
