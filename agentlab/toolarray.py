"""The `tools` array of a request: which tools stand in it, and how much of the last one a cache can reuse.

    direct --------------------------------> array, the same in every request
    unmasked, protocol "strict"    sorted -> behind them, from the step on in which they were found
    unmasked, protocol "free-text" --------> nowhere: a call of their name is resolved by name

A request begins with its tools, so an array that changes makes the whole request be paid again. Some providers take
any name in a call ("free-text"), others refuse a call of a tool that the same request does not offer ("strict").
(Seed 003, progressive disclosure: the protocol fork and its six scenes.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.prefix import common_prefix
from agentlab.tools import Tool

Protocol = Literal["free-text", "strict"]
Entry = TypeVar("Entry", Tool, dict[str, Any])

_BY_DIALECT: dict[str, Protocol] = {"openai": "free-text", "deepseek": "free-text", "anthropic": "strict"}


def protocol_of(dialect: str) -> Protocol:
    """Whether a dialect checks the names in calls. Raises AgentLabError for a dialect that is not known."""
    if dialect not in _BY_DIALECT:
        raise AgentLabError(f"{str(dialect)!r:.80} is no dialect known here. Known: {', '.join(_BY_DIALECT)}.")
    return _BY_DIALECT[dialect]


def resolve_tools(
    protocol: Protocol, unmasked: Iterable[str], *, direct: Iterable[Entry], deferred: Iterable[Entry]
) -> list[Entry]:
    """The array: the direct tools, and with "strict" the deferred ones named in `unmasked`, sorted, each once.

    Tools are `Tool`s, or plain dicts with a `name`. Names that are not deferred add nothing. The order in which names
    were found does not matter. Raises AgentLabError for another protocol. (Seed 003, exercise on the fork.)
    """
    if protocol not in ("free-text", "strict"):
        raise AgentLabError(f"{protocol!r:.80} is no protocol. Use 'free-text' or 'strict', or protocol_of(dialect).")
    array = list(direct)
    if protocol == "free-text":
        return array
    by_name = {_name(tool): tool for tool in deferred}
    return array + [by_name[name] for name in sorted(set(unmasked)) if name in by_name]


def _name(tool: Tool | dict[str, Any]) -> str:
    return tool.name if isinstance(tool, Tool) else str(tool["name"])


@dataclass(frozen=True)
class Step:
    """From one request's array to the next one's. Sizes are characters of its compact JSON."""

    before: int
    after: int
    reused: int

    @property
    def share(self) -> float:
        """How much of the earlier array is the beginning of the later one, 0 to 1."""
        return self.reused / self.before

    @property
    def broken(self) -> bool:
        """Whether the cache is lost: the earlier array, its closing bracket too, is no beginning of the later one."""
        return self.reused < self.before


@dataclass(frozen=True)
class ArrayHistory:
    """The arrays of a session's requests, one after the other."""

    steps: tuple[Step, ...]

    @property
    def breaks(self) -> int:
        """How many times the array changed, and with it everything behind it had to be paid again."""
        return sum(step.broken for step in self.steps)

    def _repr_html_(self) -> str:
        from agentlab import draw

        head = (say("requests"), say("before"), say("after"), say("reused"), say("the prefix"))
        broken, holds = say("broken"), say("holds")
        rows = [
            (
                say("{one} to {next}", one=n, next=n + 1),
                step.before,
                step.after,
                f"{step.share:.0%}",
                broken if step.broken else holds,
            )
            for n, step in enumerate(self.steps, 1)
        ]
        said = say("The array broke the prefix {n} times. Sizes are in characters.", n=self.breaks)
        if self.breaks == 1:
            said = say("The array broke the prefix once. Sizes are in characters.")
        return draw.html(draw.table(rows, head=head), said)._repr_html_()


def array_text(array: Sequence[Any]) -> str:
    """An array as it is sent: compact JSON, keys in the order that they have."""
    return jsonio.dumps([tool.spec() if isinstance(tool, Tool) else tool for tool in array])


def array_history(arrays: Iterable[Sequence[Any]]) -> ArrayHistory:
    """Compare the arrays of successive requests as a prefix cache does. (Seed 003, its report per scene.)"""
    texts = [array_text(array) for array in arrays]
    return ArrayHistory(tuple(Step(len(a), len(b), common_prefix(a, b)) for a, b in pairwise(texts)))
