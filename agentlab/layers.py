"""Compaction in four layers, the cheap ones first: a model is asked only when nothing else is enough.

    results of a batch -> 1 spill: more than 30,000 bytes, or 200,000 together, go to files        -> the history
    history -> 2 snip: more than 50 groups become 3, a marker and 46
            -> 3 micro: tool results before the last 3 exchanges become notes
            -> more than 50,000 bytes? -> transcript to a file -> 4 summary in five fields         -> the view

The history is never changed: what a layer makes of it is a view for one request. The view is kept, so that a history
which only grew costs no more than what is new, and a summary is paid for once. A layer that fails changes nothing.
What the model has not seen yet (see `unseen`) stays as it is, behind the summary, even where that is too large.
(Seed 001; its last gap is closed by `on_overflow`, to which the loop brings a provider's refusal.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentlab.artifacts import ArtifactStore, new_id
from agentlab.compaction import CompactionError
from agentlab.gates import Gate, Layered, Thresholds, gate
from agentlab.interrupt import Stop
from agentlab.layersummary import (
    FIELDS,
    LEAST,
    SYSTEM,
    Condensed,
    condense,
    fields_summarizer,
    last_words,
    read_fields,
    room,
)
from agentlab.messages import Message, calls_of, groups, size_bytes
from agentlab.micro import micro
from agentlab.pairing import repair
from agentlab.snip import snip
from agentlab.spill import BatchBudget, OutputBudget, SpillError, apply_budget, excerpt, size
from agentlab.summary import TIMEOUT_S, Breaker, Summarize, last_by_person, wrote
from agentlab.tools import ToolResult

__all__ = [
    "FIELDS", "ArtifactStore", "CompactionManager", "Gate", "Layered", "OverflowRetry", "Thresholds",
    "fields_summarizer", "micro", "read_fields", "snip",
]  # fmt: skip


class OverflowRetry(CompactionError):
    """A request was refused again after it had been compacted for that reason."""


@dataclass
class _Kept:
    """The history of the last look, and its view; the first `fixed` messages of the view stand for a summary."""

    history: list[Message]
    view: list[Message]
    fixed: int = 0


class CompactionManager:
    """The four layers for one conversation: a context manager (`agentlab.context`), and a hook for tool results.

    `root` is the folder for artifacts, `base` the folder in which the model's tools work (see `ArtifactStore`).
    `summarize` gets a text and answers with the five fields; `fields_summarizer(client)` is one. `ids` names the files.
    After `max_tries` summaries in a row that did not bring the view below its limit it makes no more, until the
    provider refuses. Wire it with `context.hooks(manager, Hooks(after_results=manager.after_results))`.
    """

    def __init__(
        self,
        root: str | Path,
        summarize: Summarize,
        *,
        base: str | Path | None = None,
        thresholds: Thresholds | None = None,
        ids: Callable[[], str] = new_id,
        timeout_s: float | None = TIMEOUT_S,
        max_source_chars: int = 200_000,
        max_tries: int = 3,
        breaker: Breaker | None = None,
    ) -> None:
        self.store = ArtifactStore(root, base=base, ids=ids)
        self.thresholds = thresholds or Thresholds()
        self.breaker = breaker or Breaker()
        self._summarize, self._timeout_s, self._max_source_chars = summarize, timeout_s, max_source_chars
        self._max_tries, self._summaries, self._refusals = max_tries, 0, 0
        self._kept: _Kept | None = None
        self._saved: tuple[list[Message], str] | None = None  # the last transcript: of which history, and where
        self._history: list[Message] | None = None  # of the last look, whatever came of it

    def compact_tool_results(self, results: Sequence[ToolResult]) -> BatchBudget:
        """Layer one: the largest results of a batch go to files, before any of them becomes part of the history.

        All or nothing. When a file cannot be written, those of this batch are removed, and every result becomes an
        error named `tool_result_processing_error`, with both ends of what the tool had said; `spilled` is empty then.
        """
        try:
            return apply_budget(results, self.thresholds.spill, self.store, on_failure="raise")
        except SpillError as error:
            failed = [_failed(result, error.reason, self.thresholds.spill) for result in results]
            before, after = (sum(size(result.output, "bytes") for result in some) for some in (results, failed))
            return BatchBudget(failed, before, after, [])

    def after_results(self, results: list[ToolResult]) -> list[ToolResult]:
        """`compact_tool_results` as the hook `after_results` of the loop."""
        return self.compact_tool_results(results).results

    async def prepare(self, history: Sequence[Message], usage: Any = None) -> Layered:
        """Layers two to four: the view of a history. The usage is not looked at, since these limits count bytes.

        The same history gives the same view, as it is. One that only grew is worked on from the last view on; any
        other one from its start. When the summary fails, the view of the first layers is returned, and `why` says so.
        Messages are compared by what they are: do not change one in place.
        """
        history = self._history = list(history)
        new = self._appended(history)
        if self._kept and new == []:
            return Layered(list(self._kept.view), False, "The history is the same as at the last look.")
        if new is None or any(message.get("role") == "assistant" or wrote(message) for message in new):
            self._refusals = 0  # another request
        view, fixed, gates = self._cheap(history)
        said = [f"{g.name} {g.bytes_in:,} -> {g.bytes_out:,} bytes" for g in gates if g.acted]
        length, limit = gates[-1].bytes_out, self.thresholds.max_bytes
        if length <= limit:
            self._summaries = 0
            self._kept = _Kept(history, view, fixed)
            why = "; ".join([*said, f"{length:,} bytes, at most {limit:,}: no summary."])
            return Layered(list(view), bool(said), why, gates)
        if self._summaries >= self._max_tries:
            self._kept = _Kept(history, view, fixed)
            why = f"{self._summaries} summaries in a row did not bring the view below {limit:,} bytes."
            return Layered(list(view), bool(said), why, gates)
        result = await self._summarise(history, view, fixed, gates)
        seen = len(result.history) - (len(view) - unseen(view))
        if result.shortened and size_bytes(result.history[:seen]) > limit:
            self._summaries += 1
        return result if result.shortened or not said else replace(result, shortened=True)

    async def compact_proactively(self, history: Sequence[Message], *, stop: Stop | None = None) -> Layered:
        """A summary now, whatever the size. Where it fails the view stays as it is, and `why` says so.

        Raises StopRequested when Stop is pressed meanwhile.
        """
        history = list(history)
        view, fixed, gates = self._cheap(history)
        return await self._summarise(history, view, fixed, gates, stop=stop)

    async def compact_on_prompt_too_long(
        self, history: Sequence[Message], *, retry_count: int | None = None, stop: Stop | None = None
    ) -> Layered:
        """A summary and the last 5 groups as they were, after the provider refused a request as too long.

        Once for each request: raises OverflowRetry for the second try. `retry_count` is how many there were before;
        by default the manager counts itself, and starts anew when `prepare` sees that the conversation went on.
        Raises StopRequested when Stop is pressed meanwhile.
        """
        self._require_first_try(self._refusals if retry_count is None else retry_count)
        self._refusals += retry_count is None
        return await self._after_refusal(list(history), list(history), stop)

    async def on_overflow(self, view: list[Message]) -> list[Message]:
        """`compact_on_prompt_too_long` as the hook `on_overflow` of the loop. Raises CompactionError where it fails."""
        self._require_first_try(self._refusals)
        self._refusals += 1
        result = await self._after_refusal(view if self._history is None else self._history, view, None)
        if not result.shortened:
            raise CompactionError(f"The request does not fit the context window, and stays as it was. {result.why}")
        return result.history

    def _require_first_try(self, tries: int) -> None:
        if tries > 0:
            raise OverflowRetry(
                "The request is too long still, after the one attempt to compact it. Nothing was changed: go back to "
                "an earlier message, limit what tools may return (agentlab.spill), or use a larger window."
            )

    async def _after_refusal(self, history: list[Message], refused: list[Message], stop: Stop | None) -> Layered:
        view, fixed, gates = self._cheap(history)
        keep = self.thresholds.keep_groups
        return await self._summarise(history, view, fixed, gates, keep=keep, refused=refused, stop=stop)

    def _appended(self, history: list[Message]) -> list[Message] | None:
        """What is new since the view that is kept; None when that view is of no use for this history."""
        if self._kept and history[: (done := len(self._kept.history))] == self._kept.history:
            return history[done:]
        return None

    def _cheap(self, history: list[Message]) -> tuple[list[Message], int, tuple[Gate, ...]]:
        """The view after snip and micro, how many of its first messages are a summary's, and what the two did."""
        limits, view, fixed = self.thresholds, history, 0
        if self._kept and (new := self._appended(history)) is not None:
            view, fixed = [*self._kept.view, *new], self._kept.fixed
        view = repair(view).history
        waiting = groups(view[at:]) if (at := unseen(view)) else []
        after = snip(view, limits.max_groups, limits.head, max(limits.tail, len(waiting)))
        noted = micro(after, max(limits.keep, bool(waiting and calls_of(waiting[0].messages[0]))))
        first = gate("snip", view, after)
        return noted, fixed, (first, gate("micro", after, noted, bytes_in=first.bytes_out))

    async def _summarise(
        self,
        history: list[Message],
        view: list[Message],
        fixed: int,
        gates: tuple[Gate, ...],
        *,
        keep: int = 0,
        refused: list[Message] | None = None,
        stop: Stop | None = None,
    ) -> Layered:
        """Layer four: write the transcript, ask, and remember the new view. Where any of it fails, the view stays."""
        at, limit = _kept_from(view, keep, fixed), self.thresholds.max_bytes
        tail = view[at:]
        words = last_words(history) if last_by_person(tail) < 0 else None
        waiting = size_bytes(view[unseen(view) :])
        stays = f" What the model has not seen yet stays whole: {waiting:,} bytes." if waiting > limit else ""
        if at <= fixed or room(view[:at], words) <= LEAST:
            why = f"There is nothing to replace before the messages that must stay.{stays}"
            return Layered(view, False, why, gates)
        if not self.breaker.may_ask():
            return Layered(view, False, f"The summariser failed {self.breaker.failures} times in a row.", gates)
        try:
            transcript = self._transcript(history)
        except SpillError as error:
            why = f"The transcript could not be saved ({error.reason}), so no summary was asked for."
            return Layered(view, False, why, gates)
        result = await condense(
            view[:at],
            summarize=self._summarize,
            transcript=transcript,
            words=words,
            max_source_chars=self._max_source_chars,
            timeout_s=self._timeout_s,
            stop=stop,
        )
        self.breaker.record(ok=not result.reason)
        if result.reason:
            return Layered(view, False, f"{result.reason} The transcript is kept: {transcript}", gates, transcript)
        after = _with_tail(result, tail, history, refused or view)
        system = [message for message in after if message.get("role") in SYSTEM]  # stands only first
        first = sum(message.get("role") not in SYSTEM for message in result.history)
        after = [*system, *(message for message in after if message.get("role") not in SYSTEM)]
        self._kept = _Kept(history, after, len(system) + first)
        last = gate("summary", view, after, bytes_in=gates[-1].bytes_out)
        why = f"A summary stands for {at} messages: {last.bytes_in:,} -> {last.bytes_out:,} bytes.{stays}"
        return Layered(list(after), True, why, (*gates, last), transcript)

    def _transcript(self, history: list[Message]) -> str:
        """The path of the file with this history: the last one, if that has it."""
        if self._saved is None or self._saved[0] != history or self.store.find(self._saved[1]) is None:
            self._saved = history, self.store.save_transcript(history).path
        return self._saved[1]


def unseen(view: Sequence[Message]) -> int:
    """Where what the model has not seen yet begins: its last call with the results, or what follows its last answer.

    0 when it has not said anything.
    """
    last = next((at for at in reversed(range(len(view))) if view[at].get("role") == "assistant"), -1)
    return last if last >= 0 and calls_of(view[last]) else last + 1


def _kept_from(view: list[Message], keep: int, fixed: int) -> int:
    """Where the last `keep` groups of a view begin, behind whatever stands for left-out messages; never behind what
    the model has not seen."""
    made = max((at for at, message in enumerate(view) if message.get("origin") == "compaction"), default=-1)
    starts = [group.start for group in groups(view) if group.start >= max(fixed, made + 1)]
    return min(starts[-keep:][0] if keep and starts else len(view), unseen(view))


def _with_tail(result: Condensed, tail: list[Message], history: list[Message], refused: list[Message]) -> list[Message]:
    """The summary and the tail: as the history has it, if that is still shorter than what was refused."""
    if not tail:
        return result.history
    recent = repair(history).history[-len(tail) :]
    same = [(m.get("role"), m.get("tool_call_id")) for m in recent] == [
        (m.get("role"), m.get("tool_call_id")) for m in tail
    ]
    whole = [*result.history, *recent]
    return whole if same and size_bytes(whole) < size_bytes(refused) else [*result.history, *tail]


def _failed(result: ToolResult, reason: str, budget: OutputBudget) -> ToolResult:
    """The result as an error with both ends of its output. Its status tells on, unless it had completed."""
    kept = excerpt(result.output, budget.preview, "both", tail=budget.tail, unit=budget.unit)
    error = (
        f"tool_result_processing_error: the outputs of this batch could not be saved ({reason}), so this is all "
        f"that is left of this one. The call itself {result.status}: see what it changed before you repeat it, and ask "
        "for less."
    )
    status = "failed" if result.status == "completed" else result.status
    return replace(result, status=status, output=f"{error}\n{kept}")
