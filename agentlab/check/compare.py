"""Where a message differs from the one that was expected, and what that would cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agentlab.check.report import Finding, blame, short
from agentlab.language import say


class Difference(NamedTuple):
    """`where` is a path into the message. `why` says what it means, where that is always the same; else it is empty."""

    where: str
    expected: str
    got: str
    why: str = ""


def finding(
    case: Any,
    answer: Any,
    run: Callable[[], Difference | None],
    *,
    fed: str,
    instead: str,
    bonus: bool = False,
    why: str = "",
) -> Finding:
    """What came of one case: `run` gives the difference, or raises what the reader's code raised.

    `instead` says what was expected where it raised; `why` is the case's own, for a difference that has none.
    """
    try:
        found = run()
    except Exception as error:
        found = Difference("", instead, blame(error, answer))
    if found is None:
        return Finding(case.name, True, bonus)
    return Finding(case.name, False, bonus, fed, found.where, found.expected, found.got, found.why or why)


def difference(expected: Any, got: Any, where: str = "message()") -> Difference | None:
    """The first difference between two messages, or None. No text may be "" or null, and beside calls be missing."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return _in_dicts(expected, got, where)
    if isinstance(expected, list) and isinstance(got, list):
        for position, (one, other) in enumerate(zip(expected, got, strict=False)):
            if found := difference(one, other, f"{where}[{position}]"):
                return found
        if len(expected) == len(got):
            return None
        return Difference(where, say("{n} of them", n=len(expected)), f"{len(got)}: {short(got)}")
    if expected == got or (where.endswith(".content") and expected == "" and got is None):
        return None
    why = ""
    if isinstance(expected, str) and not isinstance(got, str):
        why = say("This must be a text, not {kind}.", kind=type(got).__name__)
        if where.endswith(".arguments"):
            why = say("Arguments stay the text that came, a JSON object in a string: whoever runs the tool parses it.")
    return Difference(where, short(repr(expected)), short(repr(got)), why)


def _in_dicts(expected: dict[str, Any], got: dict[str, Any], where: str) -> Difference | None:
    for key, value in expected.items():
        if key not in got and not (key == "content" and "tool_calls" in expected):
            return Difference(f"{where}.{key}", short(repr(value)), say("this key is missing"))
        if found := difference(value, got.get(key), f"{where}.{key}"):
            return found
    for key, value in got.items():
        if key not in expected and key not in ("refusal", "reasoning_content"):
            why = say(
                "A provider refuses keys that it does not know, and pieces have keys that messages must not have."
            )
            if key == "tool_calls":
                why = say("Without calls, leave the key out: a provider refuses an empty list.")
            return Difference(f"{where}.{key}", say("no such key"), short(repr(value)), why)
    return None
