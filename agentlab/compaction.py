"""Compaction in three segments: forget how the work went, never what the work is.

    system | old messages          | the person's last words ... the newest messages
    system | one summary message   | the same, verbatim

When: the provider says how many tokens it counted (`should_compact`); a local estimate is wrong by 15 % and more.
Where: `split_index` keeps the newest messages and pulls the cut back to the last words of the person, as long as that
is affordable. Else code, not a prompt, copies these words into the summary message, and from there into the next one,
so that they survive any number of compactions. A summariser that fails never costs the session: an outline takes the
summary's place. What is no shorter as a whole, frame included, is no compaction. (Seed 000, compaction.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab.branching import Branch, branch
from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.language import say
from agentlab.messages import Message, groups, size_bytes
from agentlab.pairing import repair
from agentlab.snip import left_words, snipped
from agentlab.summary import (
    TIMEOUT_S,
    WORDS_CHARS,
    Breaker,
    Summarize,
    ask,
    extractive_summary,
    last_by_person,
    said,
    summary_source,
    text_of,
    text_size,
)
from agentlab.usage import read_usage

__all__ = [
    "Branch", "Compaction", "CompactionError", "Decision", "Limits", "branch", "compact", "should_compact",
    "split_index", "summary_message",
]  # fmt: skip

_SYSTEM = ("system", "developer")
_NO_HISTORY = (
    "A history is a list of messages, each a dict: agentlab.pairing.repair makes one of a list that is damaged."
)
_FRAME = re.compile(
    r"\[Context compaction\] [^\n]*\n\n(?:The person's last words [^\n]* (\d+) of (\d+) characters, verbatim:\n)?"
)
_BEFORE = "Summary:\n"
_AFTER = "\n\nGo on from where the work stopped. Do not repeat the summary or introduce yourself."


class CompactionError(AgentLabError):
    """The history cannot get short enough for the model's context window."""


@dataclass(frozen=True)
class Limits:
    """The context window in tokens, and at how many percent of it to compact. No API tells the window."""

    context_window: int = 128_000
    trigger_percent: int = 75

    def __post_init__(self) -> None:
        numbers = all(isinstance(number, int | float) for number in (self.context_window, self.trigger_percent))
        if not numbers or self.context_window < 1 or not 1 <= self.trigger_percent <= 100:
            raise AgentLabError(
                f"A context window of {self.context_window} tokens and a trigger at {self.trigger_percent} % make no "
                "limit: use 1 token or more, and 1 to 100 percent."
            )

    @property
    def threshold(self) -> int:
        """Compact from so many tokens on."""
        return int(self.context_window * self.trigger_percent // 100)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Limits:
        """What AGENT_CONTEXT_WINDOW and AGENT_COMPACT_PERCENT say. Raises AgentLabError that names a bad one."""

        def number(name: str, default: int) -> int:
            text = env.get(name, "").strip()
            if text and not (text.isascii() and text.isdigit()):
                raise AgentLabError(f"{name} must be a whole number, for example {default}; it is {text[:40]!r}.")
            return int(text) if text else default

        return cls(
            number("AGENT_CONTEXT_WINDOW", cls.context_window), number("AGENT_COMPACT_PERCENT", cls.trigger_percent)
        )


@dataclass(frozen=True)
class Decision:
    """Whether to compact, and why. `used` (None: unknown) and `threshold` are tokens."""

    compact: bool
    why: str
    used: int | None
    threshold: int

    def _repr_html_(self) -> str:
        from agentlab import draw

        used = self.used or 0
        parts = [(say("used"), used, "summarised" if self.compact else "kept")]
        bar = draw.bar(parts, unit="tokens", marks=[(self.threshold, say("threshold"))])
        return draw.html(bar, self.why)._repr_html_()


def should_compact(
    usage: Any, context_window: int, *, trigger_percent: int = 75, message_count: int, min_messages: int = 12
) -> Decision:
    """Decide on the usage of the last response, in any dialect, as a dict or a `CacheUsage`.

    Input and output together are about what the next request carries. Without a usage the answer is no, and says so.
    Raises AgentLabError for limits that are none. (Seed 000: 75 % of the window, at least 12 messages.)
    """
    threshold = Limits(context_window, trigger_percent).threshold
    seen = read_usage(usage)
    total = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    used = max(seen.prompt + seen.output, read_usage({"prompt_tokens": total}).prompt) or None
    if used is None:
        return Decision(False, "No response has reported its usage yet, so there is nothing to go by.", None, threshold)
    if message_count < min_messages:
        why = f"Only {message_count} messages, fewer than {min_messages}: too little to gain."
        return Decision(False, why, used, threshold)
    if used < threshold:
        why = f"{used:,} of {context_window:,} tokens, below the threshold of {threshold:,}."
        return Decision(False, why, used, threshold)
    why = f"{used:,} tokens reach the threshold of {threshold:,} ({trigger_percent} % of {context_window:,})."
    return Decision(True, why, used, threshold)


def split_index(history: Sequence[Message], keep_recent: int = 8, max_anchor_chars: int = 40_000) -> int:
    """Where to cut: `history[:index]` may be replaced by a summary, `history[index:]` stays. 0: not worth it.

    At least `keep_recent` messages stay. The cut is pulled back to the last message that a person wrote, when all from
    there on has at most `max_anchor_chars` characters, and to the start of a call's group. System messages do not count
    as replaceable. Images and reasoning count with their real size (`summary.text_size`). Raises AgentLabError for a
    negative `keep_recent`, and for what is no list of messages.
    """
    if not isinstance(keep_recent, int) or keep_recent < 0:
        raise AgentLabError(
            "keep_recent must be a whole number and cannot be negative: 0 keeps no message besides the summary."
        )
    if not _is_list(history) or not all(isinstance(message, dict) for message in history):
        raise AgentLabError(_NO_HISTORY)
    cut, anchor = len(history) - keep_recent, last_by_person(history)
    if 0 <= anchor < cut and text_size(history[anchor:]) <= max_anchor_chars:
        cut = anchor
    starts = [*(group.start for group in groups(history)), len(history)]
    cut = max((start for start in starts if start <= cut), default=0)
    replaceable = sum(message.get("role") not in _SYSTEM for message in history[:cut])
    return cut if replaceable > 1 else 0


@dataclass(frozen=True)
class Compaction:
    """What became of a history. Where `compacted` is False it is the history as it was, and `reason` says why.

    `dropped` counts the messages that the summary replaced; the tail begins at `kept_from` of the old history.
    `degraded`: no model wrote the summary, and `reason` says why.
    """

    history: list[Message]
    compacted: bool
    dropped: int
    summary: str
    degraded: bool
    reason: str = ""
    kept_from: int = 0

    def _repr_html_(self) -> str:
        from agentlab import draw

        fates = ["summarised" if message.get("origin") == "compaction" else "kept" for message in self.history]
        caption = say("{n} messages summarised.", n=self.dropped)
        if self.degraded:
            caption = say("{n} messages summarised, without a model.", n=self.dropped)
        return draw.strip(self.history, fates=fates, caption=f"{caption} {self.reason}".strip())._repr_html_()


async def compact(
    history: Sequence[Message],
    *,
    summarize: Summarize,
    previous: str | None = None,
    goal: str | None = None,
    keep_recent: int = 8,
    max_anchor_chars: int = 40_000,
    max_source_chars: int = 200_000,
    max_fallback_chars: int = 12_000,
    timeout_s: float | None = TIMEOUT_S,
    stop: Stop | None = None,
    breaker: Breaker | None = None,
) -> Compaction:
    """Replace the old part of a history by one summary message: system messages, summary, tail.

    The tail is verbatim, but for system messages in it: they stand first, with all others. Where no person speaks in
    it, the summary message holds the person's last words, verbatim up to 4,000 characters. An earlier summary in the
    old part goes on as `previous`. A summary that fails, is blank, calls tools or is no shorter than what it replaces
    gives way to `extractive_summary`. If that gains nothing either, or all in all no bytes are saved, the history
    stays. A history with pairing problems is repaired first; the input is never changed. The two `max_` options bound
    what the summariser reads and what the fallback writes, in characters; `goal` says what the summary has to serve;
    the last three are those of `summary.ask`. Raises StopRequested when Stop is pressed meanwhile, and AgentLabError
    for what is no list.
    """
    if not _is_list(history):
        raise AgentLabError(_NO_HISTORY)
    history = repair(history).history
    cut = split_index(history, keep_recent, max_anchor_chars)
    if not cut:
        why = "There is nothing to replace before the messages that must stay."
        return Compaction(history, False, 0, "", False, why)
    system = [message for message in history if message.get("role") in _SYSTEM]
    old, tail = ([m for m in part if m.get("role") not in _SYSTEM] for part in (history[:cut], history[cut:]))

    words = None if last_words(tail) else last_words(old)
    earlier, summaries = text_of(previous), [read_summary(message)[1] for message in old]
    told = [text for text in summaries if text and text not in earlier]
    previous = "\n\n".join([earlier, *told]).strip() or None
    fresh = [message for message, text in zip(old, summaries, strict=True) if not text]
    room = text_size(old) - (len(words[0]) if words else 0)

    source = summary_source(fresh, previous=previous, goal=goal, max_chars=max_source_chars)
    verdict = await ask(summarize, source, room, timeout_s=timeout_s, stop=stop, breaker=breaker)
    summary = verdict.text
    if not verdict:
        words_chars = 0 if words else WORDS_CHARS
        summary = extractive_summary(fresh, previous, max_chars=max_fallback_chars, words_chars=words_chars)
        if len(summary) >= room:
            why = f"{verdict.reason} An outline would be no shorter, so the history stays as it was."
            return Compaction(history, False, 0, "", False, why)
    after = [*system, summary_message(summary, dropped=len(old), words=words), *tail]
    if _size(after) >= _size(history):
        why = f"{verdict.reason} With the summary the history would be no shorter, so it stays as it was.".strip()
        return Compaction(history, False, 0, "", False, why)
    return Compaction(after, True, len(old), summary, not verdict, verdict.reason, cut)


def _size(history: Sequence[Message]) -> int:
    """In bytes; in characters for a history that JSON cannot hold."""
    try:
        return size_bytes(history)
    except (TypeError, ValueError):
        return text_size(history)


def _is_list(history: Any) -> bool:
    return isinstance(history, Sequence) and not isinstance(history, str | bytes)


def summary_message(summary: str, *, dropped: int, words: tuple[str, int] | None = None) -> Message:
    """The user message that stands for `dropped` messages; no person wrote it. The same input gives the same bytes.

    `words` are the person's last words, cut to 4,000 characters, and how many characters they had.
    """
    text = f"[Context compaction] {dropped} earlier messages were replaced by this summary; nothing else is left.\n\n"
    if words:
        said, total = words
        text += f"The person's last words among them, {len(said)} of {total} characters, verbatim:\n{said}\n\n"
    return {"role": "user", "content": f"{text}{_BEFORE}{summary}{_AFTER}", "origin": "compaction"}


def read_summary(message: Message) -> tuple[tuple[str, int] | None, str]:
    """The words and the summary in a message of `summary_message`; of any other message, nothing.

    Known by its origin; a text in parts is one text, and a marker of `snip` is no summary. Our frame stands first and
    gives the length of the words, so that no text in it can mislead us.
    """
    if message.get("origin") != "compaction" or snipped(message):
        return None, ""
    text = said(message.get("content"))
    frame = _FRAME.match(text)
    if not frame:
        return None, text
    if not frame[1]:
        return None, text[frame.end() :].removeprefix(_BEFORE).removesuffix(_AFTER)
    end = frame.end() + int(frame[1])
    rest = text[end:].removeprefix("\n\n" + _BEFORE).removesuffix(_AFTER)
    return (text[frame.end() : end], int(frame[2])), rest


def last_words(old: Sequence[Message]) -> tuple[str, int] | None:
    """What a person said last in these messages, or what a summary or a marker of `snip` quotes, and its length."""
    for message in reversed(old):
        if last_by_person([message]) == 0:
            text = text_of(message.get("content"))
            return text[:WORDS_CHARS], len(text)
        if words := read_summary(message)[0] or left_words(message):
            return words
    return None
