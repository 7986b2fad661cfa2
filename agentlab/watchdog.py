"""How long a turn may go on: a step budget that grows with progress, and reasons to stop before it is used up.

A step makes **progress** when one of its calls completed that had not completed before in this turn with the same
input. A call is its tool's name and its input, compared as canonical JSON; outputs are never looked at. So reading a
second file is progress, and reading the first one again is not; an edit is, and the test run behind it only once.

    step's results -> record -> None, or a StopReason: recoverable -> nudge, once -> record ... -> the turn ends

Deterministic: the same results give the same answers. (Seeds 000 and 003: every agent's loop budget of 12 steps, its
recoverable stops, and the one corrective prompt; words slipped in do not set it back.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentlab.errors import AgentLabError
from agentlab.messages import Message, canonical_json
from agentlab.tools import ToolResult

_NAME_CHARS = 64
_Call = tuple[str, str]  # name, canonical input


@dataclass(frozen=True)
class StopReason:
    """Why a turn should not go on. A recoverable reason deserves one nudge first."""

    kind: str
    """`budget`, `repeated_call`, `repeated_failure` or `no_progress`."""

    message: str
    recoverable: bool = False


@dataclass
class LoopBudget:
    """Counts the steps of one turn. A reason that was given starts its count anew: the model has heard of it."""

    base_steps: int = 12
    """A turn may take this many steps: requests, each with its batch of tool calls."""

    growth: int = 4
    """Each time that so many steps have made progress, the turn may take as many more. 0: it never grows."""

    max_factor: int = 4
    """However much progress there is, a turn ends after base_steps times this."""

    repeated_calls: int = 4
    """The same call in so many steps in a row, whatever came of it, is a reason to stop."""

    repeated_failures: int = 3
    """The same call, failed or refused in so many steps without any progress between them, is a reason to stop."""

    idle_steps: int = 6
    """So many steps in a row without progress are a reason to stop."""

    steps: int = field(default=0, init=False)
    _progress: int = field(default=0, init=False)
    _idle: int = field(default=0, init=False)
    _completed: set[_Call] = field(default_factory=set, init=False, repr=False)
    _in_a_row: dict[_Call, int] = field(default_factory=dict, init=False, repr=False)
    _failures: dict[_Call, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        thresholds = (self.base_steps, self.growth, self.max_factor)
        if min(*thresholds, self.repeated_calls, self.repeated_failures, self.idle_steps) < 0:
            raise AgentLabError("A LoopBudget counts steps: none of its thresholds can be negative.")

    @property
    def limit(self) -> int:
        """How many steps the turn may take, as things stand."""
        earned = self._progress // self.growth * self.growth if self.growth else 0
        return min(self.base_steps + earned, self.base_steps * self.max_factor)

    def can_continue(self) -> bool:
        """Whether another step fits."""
        return self.steps < self.limit

    def record(self, results: Sequence[ToolResult]) -> StopReason | None:
        """Count one step with its tool results. Returns a reason to stop, or None.

        A step without calls ends a turn, or words of the person follow: what was repeated before them is forgotten.
        """
        self.steps += 1
        if not results:
            self._forget()
            return None
        calls = [((result.name, _canonical(result.input)), result.status) for result in results]
        completed = {call for call, status in calls if status == "completed"}
        if completed - self._completed:
            self._completed |= completed
            self._progress += 1
            self._idle = 0
            self._failures.clear()
        else:
            self._idle += 1
        self._in_a_row = {call: self._in_a_row.get(call, 0) + 1 for call, _ in calls}
        for call in dict.fromkeys(call for call, status in calls if status in ("failed", "rejected")):
            self._failures[call] = self._failures.get(call, 0) + 1
        reason = self._reason()
        if reason:
            self._forget()
        return reason

    def _reason(self) -> StopReason | None:
        for (name, _), times in self._failures.items():
            if times >= self.repeated_failures:
                said = f"{name[:_NAME_CHARS]} failed {times} times with the same input."
                return StopReason("repeated_failure", said, recoverable=True)
        for (name, _), times in self._in_a_row.items():
            if times >= self.repeated_calls:
                said = f"{name[:_NAME_CHARS]} was called in {times} steps in a row with the same input."
                return StopReason("repeated_call", said, recoverable=True)
        if self._idle >= self.idle_steps:
            return StopReason("no_progress", f"{self._idle} steps in a row brought nothing new.", recoverable=True)
        return None

    def _forget(self) -> None:
        self._idle = 0
        self._in_a_row = {}
        self._failures.clear()

    def exhausted(self) -> StopReason:
        """The reason to give when `can_continue()` says no."""
        return StopReason("budget", f"The turn used up its {self.limit} steps. Say 'continue' to go on.")


def _canonical(input: Any) -> str:
    """An input as one text. What JSON has no form for can only come from a program, and counts as it prints."""
    try:
        return canonical_json(input)
    except (TypeError, ValueError):
        return repr(input)


def nudge(reason: StopReason) -> Message:
    """The one corrective message to the model for a recoverable reason; no person wrote it."""
    text = f"{reason.message} Change the approach, or say what keeps you from finishing."
    return {"role": "user", "content": text, "origin": "watchdog"}
