"""What a prefix-cache policy must do to drive the usage that the simulator reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class CacheUse:
    """What a cache did for one prompt, in tokens: `hit` were read from it, `written` were stored by it."""

    hit: int = 0
    written: int = 0


class CachePolicy(Protocol):
    """A prefix cache. Times are seconds of the simulator's clock; prompts are tokens from `tokens.render`."""

    def admit(self, prompt: Sequence[str], *, marks: Sequence[int], at: float) -> CacheUse:
        """Look the prompt up and store it. `marks` are the explicit breakpoints, as numbers of leading tokens."""

    def extend(self, prompt: Sequence[str], reply: Sequence[str], *, at: float) -> None:
        """The reply to this prompt has been produced, so prompt and reply together may be stored too."""
