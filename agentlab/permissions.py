"""May this tool run with this input? allow, deny or ask.

The default: reading is allowed, everything else asks, and where nobody can be asked the answer is no. A rule that
fails counts as a deny, so that a mistake in a policy never opens a door.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

Verdict = Literal["allow", "deny", "ask"]


class Subject(Protocol):
    """What a policy has to know of a tool."""

    @property
    def name(self) -> str: ...
    @property
    def read_only(self) -> bool: ...


@dataclass(frozen=True)
class Rule:
    """A verdict for the tools whose name matches `tool` (a shell pattern) and whose input passes `when`."""

    verdict: Verdict
    tool: str = "*"
    when: Callable[[dict[str, Any]], bool] | None = None

    def matches(self, tool: Subject, input: dict[str, Any]) -> bool:
        if not fnmatchcase(tool.name, self.tool):
            return False
        passed = self.when is None or self.when(input)
        if isinstance(passed, Awaitable):  # it would count as true before it has said anything
            raise TypeError("`when` must answer at once: write a plain function, not an async one")
        return bool(passed)


@dataclass(frozen=True)
class Policy:
    """The first rule that matches decides; then `default`; without one: reading is allowed, the rest asks.

    `rules` are `Rule`s, or for short a dict from tool names (or patterns) to verdicts: `{"run_*": "deny"}`.
    `ask` puts the question to a person and returns True for yes. Without it every question is answered no.
    """

    rules: Sequence[Rule] | Mapping[str, Verdict] = ()
    default: Verdict | None = None
    ask: Callable[[Subject, dict[str, Any]], Awaitable[bool]] | None = None

    def judge(self, tool: Subject, input: dict[str, Any]) -> Verdict:
        """The verdict for one call. A rule that raises, or gives no known verdict, means deny."""
        try:
            rules = self.rules
            if isinstance(rules, Mapping):
                rules = [Rule(verdict, tool=name) for name, verdict in rules.items()]
            verdict = next((rule.verdict for rule in rules if rule.matches(tool, input)), self.default)
            verdict = verdict or ("allow" if tool.read_only else "ask")
        except Exception:
            return "deny"
        return verdict if verdict in ("allow", "ask") else "deny"

    async def permits(self, tool: Subject, input: dict[str, Any]) -> bool:
        """The verdict, with the question asked where one is due. No answer, or an error, means no."""
        verdict = self.judge(tool, input)
        if verdict != "ask":
            return verdict == "allow"
        try:
            return self.ask is not None and await self.ask(tool, input) is True
        except Exception:
            return False
