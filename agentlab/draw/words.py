"""What pictures say: numbers, counted things, and the names that roles, fates and units are shown under.

In code a name is English always: a key of `ROLES`, `FATES` or `CUTS`, a unit. `shown` gives the reader's word for it.
"""

from __future__ import annotations

from agentlab.language import say

_N = "{n}"  # stays in its place until `count` knows the number

_NAMES = {
    "system": say("system"),
    "user": say("user"),
    "assistant": say("assistant"),
    "tool call": say("tool call"),
    "tool result": say("tool result"),
    "kept": say("kept"),
    "dropped": say("dropped"),
    "summarised": say("summarised"),
    "cached": say("cached"),
    "paid again": say("paid again"),
    "pointer": say("pointer"),
    "pinned": say("pinned"),
    "pruned": say("pruned"),
    "culprit": say("culprit"),
    "new": say("new"),
    "repaired": say("repaired"),
    "other": say("other"),
    "mixed": say("mixed"),
    "no role": say("no role"),
    "between lines": say("between lines"),
    "inside a line": say("inside a line"),
    "inside JSON": say("inside JSON"),
    "inside a character": say("inside a character"),
    "waits for an answer": say("waits for an answer"),
    "allowed": say("allowed"),
    "denied": say("denied"),
    "not answered": say("not answered"),
    "bytes": say("bytes"),
    "characters": say("characters"),
    "lines": say("lines"),
    "messages": say("messages"),
    "tools": say("tools"),
    "tokens": say("tokens"),
    "cents": say("cents"),
    "agent": say("agent"),
    "server": say("server"),
    "client": say("client"),
    "model": say("model"),
    "your program": say("your program"),
}

_COUNTED = {
    "byte": (say("{n} byte", n=_N), say("{n} bytes", n=_N)),
    "case": (say("{n} case", n=_N), say("{n} cases", n=_N)),
    "character": (say("{n} character", n=_N), say("{n} characters", n=_N)),
    "cut": (say("{n} cut", n=_N), say("{n} cuts", n=_N)),
    "earlier line": (say("{n} earlier line", n=_N), say("{n} earlier lines", n=_N)),
    "earlier message": (say("{n} earlier message", n=_N), say("{n} earlier messages", n=_N)),
    "event": (say("{n} event", n=_N), say("{n} events", n=_N)),
    "hint": (say("{n} hint", n=_N), say("{n} hints", n=_N)),
    "message": (say("{n} message", n=_N), say("{n} messages", n=_N)),
    "more argument": (say("{n} more argument", n=_N), say("{n} more arguments", n=_N)),
    "more row": (say("{n} more row", n=_N), say("{n} more rows", n=_N)),
    "node": (say("{n} node", n=_N), say("{n} nodes", n=_N)),
    "piece": (say("{n} piece of text", n=_N), say("{n} pieces of text", n=_N)),
    "question": (say("{n} question", n=_N), say("{n} questions", n=_N)),
    "replacement": (say("{n} replacement", n=_N), say("{n} replacements", n=_N)),
    "row": (say("{n} row", n=_N), say("{n} rows", n=_N)),
    "tool call": (say("{n} tool call", n=_N), say("{n} tool calls", n=_N)),
}


def shown(name: str) -> str:
    """The reader's word for a role, a fate, a unit or a usual label. A name that is not known stays as it is."""
    return _NAMES.get(name, name)


def number(value: float, *, digits: int = 2) -> str:
    """A number for people, the same on every machine: `1,234`, `0.15`, `12.5`."""
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def measure(value: float, unit: str) -> str:
    """A number and its unit, if it has one: `1,234 tokens`."""
    written = number(int(value) if value == int(value) else value)
    return f"{written} {shown(unit)}" if unit else written


def count(amount: int, noun: str) -> str:
    """`1 message`, `1,234 messages`. `noun` is the English singular."""
    one, more = _COUNTED.get(noun, (f"{_N} {noun}", f"{_N} {noun}s"))
    return (one if amount == 1 else more).replace(_N, number(amount))
