"""May this tool run with this input? allow, deny or ask.

    the tool's name, its input -> the first rule that matches -> allow | ask -> a person, if there is one | deny

The default: reading is allowed, everything else asks, and where nobody can be asked the answer is no. A rule that
fails counts as a deny, so that a mistake in a policy never opens a door.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol

from agentlab import jsonio

Verdict = Literal["allow", "deny", "ask"]


class Subject(Protocol):
    """What a policy has to know of a tool."""

    @property
    def name(self) -> str: ...
    @property
    def read_only(self) -> bool: ...


@dataclass(frozen=True)
class Rule:
    """A verdict for the tools whose name matches `tool` (a shell pattern) and whose input passes `when`.

    `matching` and `inside` make a `when` for patterns of arguments and for folders.
    """

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


def matching(**patterns: str) -> Callable[[dict[str, Any]], bool]:
    """For a rule's `when`: each of these arguments is there, and the whole of it matches its shell pattern.

    `matching(command="git *")`. What is no text is compared as compact JSON. A pattern knows nothing of what a shell
    makes of a text: this one lets `git log; rm -r .` pass too, so allow a shell only what holds no `*`.
    """

    def when(input: dict[str, Any]) -> bool:
        texts = {name: text if isinstance(text, str) else jsonio.dumps(text) for name, text in input.items()}
        return all(name in texts and fnmatchcase(texts[name], pattern) for name, pattern in patterns.items())

    return when


def inside(folder: str | Path, *, root: str | Path, argument: str = "path") -> Callable[[dict[str, Any]], bool]:
    """For a rule's `when`: the path in this argument is the folder, or leads into it.

    Both are seen from `root`, and followed through `..` and links to where they really lead. A path that is not given
    is `root`. One that is no path raises, which denies the call.
    """

    def when(input: dict[str, Any]) -> bool:
        path = input.get(argument)
        target = os.path.realpath(os.path.join(root, "" if path is None else path))
        return Path(target).is_relative_to(os.path.realpath(os.path.join(root, folder)))

    return when


@dataclass(frozen=True)
class Policy:
    """The first rule that matches decides; then `default`; without one (None): reading is allowed, the rest asks.

    `rules` are `Rule`s, or for short a dict from tool names (or patterns) to verdicts: `{"run_*": "deny"}`.
    `ask` puts the question to a person and returns True for yes; async or not. Without it the answer is always no.
    """

    rules: Sequence[Rule] | Mapping[str, Verdict] = ()
    default: Verdict | None = None
    ask: Callable[[Subject, dict[str, Any]], Awaitable[bool] | bool] | None = None

    def judge(self, tool: Subject, input: dict[str, Any]) -> Verdict:
        """The verdict for one call. A rule that raises, or gives no known verdict, means deny."""
        try:
            rules = self.rules
            if isinstance(rules, Mapping):
                rules = [Rule(verdict, tool=name) for name, verdict in rules.items()]
            usual: Verdict = "allow" if tool.read_only else "ask"
            default = usual if self.default is None else self.default
            verdict = next((rule.verdict for rule in rules if rule.matches(tool, input)), default)
            return verdict if verdict in ("allow", "ask") else "deny"
        except Exception:
            return "deny"

    async def permits(self, tool: Subject, input: dict[str, Any]) -> bool:
        """The verdict, with the question asked where one is due. No answer, or an error, means no."""
        try:
            verdict = self.judge(tool, input)
            if verdict != "ask":
                return verdict == "allow"
            answer = self.ask(tool, input) if self.ask else False
            return (await answer if isinstance(answer, Awaitable) else answer) is True
        except Exception:
            return False
