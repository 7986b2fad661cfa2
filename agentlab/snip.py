"""Snip: of a long conversation keep the beginning and the end, and leave out whole groups of the middle.

    3 groups | 50 and more of the middle | 46 groups      what the model is sent has 50 groups again
    3 groups | one marker that counts it | 46 groups

No model is asked, and nothing is lost but from the request: the history itself stays. A group is a call with all its
results, so no cut parts them. A marker that would be longer than what it stands for is not set. The words that the
person said last survive: when they stand in the middle, the marker quotes them. (Seed 001, layer two.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from agentlab.errors import AgentLabError
from agentlab.messages import Group, Message, canonical_json, groups, wire
from agentlab.pairing import repair
from agentlab.summary import last_by_person, quoted, said, text_of, unquoted

_WORDS = "\nThe person's last words among them, verbatim:\n"
_MARKER = re.compile(rf"\[(\d+) message groups left out\](?:{_WORDS})?")


def snip(history: Sequence[Message], max_groups: int = 50, head: int = 3, tail: int = 46) -> list[Message]:
    """The first `head` and the last `tail` groups and one marker between them, when there are more than `max_groups`.

    The marker is a user message with `origin: "compaction"`, since a system message stands only first. It counts the
    groups that it stands for, those of an earlier marker included, so that a history may be snipped again and again.
    System messages and summaries at the start count as head, however many they are. One group is never left out alone,
    and nothing is when the marker would be longer on the wire than all of them. A history with pairing problems is
    repaired first; the input is not changed. Takes linear time. Raises AgentLabError for a negative number.
    """
    if min(max_groups, head, tail) < 0:
        raise AgentLabError("snip cannot keep a negative number of groups. Use 0 or more for each of its numbers.")
    history = repair(history).history
    cut = groups(history)
    head = max(head, sum(1 for _ in takewhile(_stays_first, cut)))
    middle = cut[head : max(head, len(cut) - tail)]
    if len(cut) <= max_groups or len(middle) < 2:
        return history
    start, end = middle[0].start, middle[-1].end
    marker = _marker(middle, history[start:end], history[end:])
    if _length([marker]) > _length(history[start:end]):
        return history
    return [*history[:start], marker, *history[end:]]


def _length(messages: Sequence[Message]) -> int:
    """Their size as they are sent, in bytes; what JSON cannot hold counts as its words."""
    try:
        return sum(len(canonical_json(message).encode()) + 1 for message in wire(messages))
    except (TypeError, ValueError):
        return sum(len(text_of(message.get("content")).encode(errors="replace")) for message in messages)


def snipped(message: Message) -> int:
    """How many groups this message stands for: 0 when it is no marker of `snip`."""
    found = _read(message)
    return int(found[1]) if found else 0


def _stays_first(group: Group) -> bool:
    message = group.messages[0]
    summary = message.get("origin") == "compaction" and not _read(message)
    return message.get("role") in ("system", "developer") or summary


def _marker(middle: Sequence[Group], messages: Sequence[Message], tail: Sequence[Message]) -> Message:
    count = sum(snipped(group.messages[0]) or 1 for group in middle)
    words = "" if last_by_person(tail) >= 0 else _last_words(messages)
    text = f"[{count} message groups left out]" + (_WORDS + words if words else "")
    return {"role": "user", "content": text, "origin": "compaction"}


def _last_words(messages: Sequence[Message]) -> str:
    """What a person said last in these messages, up to 4,000 characters, or what an earlier marker quotes."""
    if (at := last_by_person(messages)) >= 0:
        return quoted(text_of(messages[at].get("content")))
    return next(filter(None, map(_quote, reversed(messages))), "")


def left_words(message: Message) -> tuple[str, int] | None:
    """The person's words that a marker quotes, and how many characters they had; of any other message, None."""
    quote = _quote(message)
    return unquoted(quote) if quote else None


def _quote(message: Message) -> str:
    found = _read(message)
    return said(message.get("content"))[found.end() :] if found else ""


def _read(message: Message) -> re.Match[str] | None:
    """The frame of a marker. Known by its origin; what follows the frame is quoted and cannot mislead."""
    return _MARKER.match(said(message.get("content"))) if message.get("origin") == "compaction" else None
