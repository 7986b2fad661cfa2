"""How long a turn may go on. (Seeds 000 and 003: the loop budget that every agent calls.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StopReason:
    """Why a turn should not go on. A recoverable reason deserves one nudge first."""

    kind: str
    message: str
    recoverable: bool = False


@dataclass
class LoopBudget:
    """Counts the steps of one turn."""

    base_steps: int = 12
    """A turn may take this many steps: requests, each with its batch of tool calls."""

    steps: int = field(default=0, init=False)

    def can_continue(self) -> bool:
        """Whether another step fits."""
        return self.steps < self.base_steps

    def record(self, results: Sequence[Any]) -> StopReason | None:
        """Count one step with its tool results. Returns a reason to stop, or None."""
        self.steps += 1
        return None

    def exhausted(self) -> StopReason:
        """The reason to give when `can_continue()` says no."""
        return StopReason("budget", f"The turn used up its {self.base_steps} steps. Say 'continue' to go on.")


def nudge(reason: StopReason) -> dict[str, Any]:
    """The one corrective message to the model for a recoverable reason; no person wrote it."""
    text = f"{reason.message} Change the approach, or say what keeps you from finishing."
    return {"role": "user", "content": text, "origin": "watchdog"}
