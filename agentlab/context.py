"""What the three context managers share: `prepare(history, usage) -> Prepared`, and how they reach the loop.

the whole history -> prepare -> what is sent: the view. The history itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agentlab.loop import Hooks
from agentlab.messages import Message


@dataclass(frozen=True)
class Prepared:
    """What to send, whether this very call made it shorter, and a sentence on why, or why not."""

    history: list[Message]
    shortened: bool
    why: str

    def _repr_html_(self) -> str:
        from agentlab import draw

        fates = ["summarised" if message.get("origin") == "compaction" else "kept" for message in self.history]
        return draw.strip(self.history, fates=fates, caption=self.why)._repr_html_()


class ContextManager(Protocol):
    """Keeps the requests of one conversation within the model's context window."""

    async def prepare(self, history: Sequence[Message], usage: Any = None) -> Prepared:
        """The view of a history. `usage` is that of the last response, or None before the first."""
        ...

    async def on_overflow(self, view: list[Message]) -> list[Message]:
        """A shorter view, after the provider refused this one as too long. Raises when there is none."""
        ...


def hooks(manager: ContextManager, others: Hooks | None = None) -> Hooks:
    """The hooks of a manager, for all turns of one conversation. Those of `others` that it does not need stay."""
    last: Any = None

    async def before_request(history: list[Message]) -> list[Message]:
        return (await manager.prepare(history, last)).history

    def on_usage(usage: dict[str, Any]) -> Any:
        nonlocal last
        last = usage
        return others.on_usage(usage) if others and others.on_usage else None

    return replace(others or Hooks(), before_request=before_request, on_usage=on_usage, on_overflow=manager.on_overflow)
