"""Cut long tool results short by rule, before a model is paid for a summary: head, marker, tail.

    surface -> results above the threshold -> [prune, replace] [prune, replace] ... -> the log; the view is shorter

The head gets four times as much as the tail: paths, commands and errors tend to stand there. The old result stays in
the log, and beside each replacement a log-only record says what was masked and what that was worth in tokens. All is
counted in code points, so a character stays whole; an emoji that is made of several may be cut. (Seed 002, pruning.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.messages import Message, canonical_json, wire
from agentlab.surfaceview import Node, Replacement, Surface

MARKER = "\n\n[... tool result middle pruned ...]\n\n"
HEAD_CHARS, TAIL_CHARS = 4_096, 1_024
THRESHOLD_CHARS = 8_192


def tokens_of(message: Message) -> int:
    """About how many tokens a message costs: a quarter of its bytes on the wire. Only the provider knows better."""
    return -(-len(canonical_json(wire([message])[0]).encode(errors="replace")) // 4)


@dataclass(frozen=True)
class Pruned:
    """What was pruned: the numbers of the old nodes and of the new ones, and the tokens of both, as estimated."""

    nodes: tuple[int, ...] = ()
    replacements: tuple[int, ...] = ()
    before: int = 0
    after: int = 0

    def _repr_html_(self) -> str:
        from agentlab import draw

        parts = [(say("left"), self.after, "kept"), (say("masked"), self.before - self.after, "dropped")]
        said = say("{n} tool results pruned", n=len(self.nodes))
        return draw.html(draw.bar(parts, unit="tokens"), said)._repr_html_()


class Pruner:
    """Shortens tool results of more than `threshold_chars` code points of text to a head, a marker and a tail.

    What is left has `head_chars + len(MARKER) + tail_chars`, however long the text was. Raises AgentLabError when that
    is more than the threshold: then a pruned result could be pruned again. So every cut makes a result strictly
    shorter, and a second look finds nothing to do.
    """

    def __init__(self, threshold_chars: int, head_chars: int = HEAD_CHARS, tail_chars: int = TAIL_CHARS) -> None:
        if min(threshold_chars, head_chars, tail_chars) < 0:
            raise AgentLabError("A pruner's sizes are numbers of characters: use 0 or more for each.")
        if (least := head_chars + len(MARKER) + tail_chars) > threshold_chars:
            raise AgentLabError(
                f"Head, marker and tail come to {least:,} characters, more than the threshold of {threshold_chars:,}: "
                "raise the threshold, or keep less."
            )
        self.threshold_chars, self.head_chars, self.tail_chars = threshold_chars, head_chars, tail_chars

    @classmethod
    def within(cls, threshold_chars: int) -> Pruner:
        """A pruner for this threshold: the usual head and tail, or smaller ones, four to one, where these do not fit.

        Below the length of the marker the threshold is that length.
        """
        threshold_chars = max(threshold_chars, len(MARKER))
        tail = min(TAIL_CHARS, (threshold_chars - len(MARKER)) // 5)
        return cls(threshold_chars, min(HEAD_CHARS, threshold_chars - len(MARKER) - tail), tail)

    @classmethod
    def for_window(cls, tokens: int) -> Pruner:
        """A pruner for a context window of so many tokens: from a tenth of it on, 8,192 characters at most."""
        return cls.within(min(THRESHOLD_CHARS, tokens * 4 // 10))

    def text(self, text: str) -> str:
        """A text as it is, or its head, the marker and its tail."""
        return text if len(text) <= self.threshold_chars else self._cut([text])[0]

    def message(self, message: Message) -> Message:
        """A tool result as it is, or a shorter one: only the content changes, every other key is carried over.

        In a list of parts the texts count together, the marker stands where the head ends, a text that lies between is
        left out, and parts that are no text stay where they are. Other roles are never cut.
        """
        if text_chars(message) <= self.threshold_chars:
            return message
        content = message["content"]
        if isinstance(content, str):
            return {**message, "content": self.text(content)}
        texts = [_text(part) for part in content]
        short = iter(self._cut([text for text in texts if text is not None]))
        parts: list[Any] = []
        for part, text in zip(content, texts, strict=True):
            left = part if text is None else next(short)
            if text is None or left:
                parts.append({**part, "text": left} if isinstance(part, dict) and text is not None else left)
        return {**message, "content": parts}

    def _cut(self, texts: list[str]) -> list[str]:
        """What is left of each of some texts that follow each other, and together are too long."""
        head, behind = self.head_chars, sum(map(len, texts)) - self.tail_chars
        left, at, marked = [], 0, False
        for text in texts:
            end = at + len(text)
            start_kept, end_kept = text[: max(0, head - at)], text[max(0, behind - at) :]
            if end <= head:
                end_kept = ""  # all of it is head
            elif not marked:
                start_kept, marked = start_kept + MARKER, True
            left.append(start_kept + end_kept)
            at = end
        return left

    def prune(self, surface: Surface, *, tokens: Callable[[Message], int] = tokens_of) -> Pruned:
        """Replace every too long tool result of the view, and only that node. Takes linear time.

        Before each replacement stands a log-only event `prune {node, tokens, saved}`, in tokens of the old node.
        """
        return _replace(surface, ((node, self.message(node[1])) for node in surface.nodes), tokens)


def prune_filling(surface: Surface, window: int, *, tokens: Callable[[Message], int] = tokens_of) -> Pruned:
    """Cut every tool result that alone has more than half of the window (in tokens) to about a quarter of it.

    Such a result cannot be summarised either, since the summariser's window is no larger; dropping other messages does
    not help. So it is cut whatever the total is.
    """

    def shorter(message: Message) -> Message:
        chars = text_chars(message)
        if chars <= window // 8 or (worth := tokens(message)) <= window // 2:  # few tokens have less than a character
            return message
        return Pruner.within(chars * (window // 4) // worth).message(message)

    return _replace(surface, ((node, shorter(node[1])) for node in surface.nodes), tokens)


def text_chars(message: Message) -> int:
    """How many code points of text a tool result holds; 0 for any other message."""
    content = message.get("content") if message.get("role") == "tool" else None
    if isinstance(content, str):
        return len(content)
    return sum(len(_text(part) or "") for part in content) if isinstance(content, list) else 0


def _text(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else None


def _replace(surface: Surface, pairs: Iterable[tuple[Node, Message]], tokens: Callable[[Message], int]) -> Pruned:
    plan, before, after = [], 0, 0
    for (seq, old), new in pairs:
        if text_chars(new) >= text_chars(old):
            continue
        worth, left = tokens(old), tokens(new)
        note = {"type": "prune", "node": seq, "tokens": worth, "saved": worth - left}
        plan.append(Replacement(seq, seq, new, "prune", note))
        before, after = before + worth, after + left
    seqs = surface.replace_all(plan) if plan else []
    return Pruned(tuple(it.start for it in plan), tuple(seqs), before, after)
