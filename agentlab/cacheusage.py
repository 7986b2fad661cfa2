"""Read the usage of any dialect: how many input tokens there were, read from the cache, paid again, written to it.

    OpenAI      prompt_tokens 48213 = cached 47616 + the rest       cached ones are part of the prompt
    DeepSeek    prompt_cache_hit_tokens + prompt_cache_miss_tokens   at the top level, often beside OpenAI's shape
    Anthropic   input_tokens + cache_read_... + cache_creation_...   the input counts fresh tokens only
    silence     prompt_tokens alone                                  reported is False: 0 hits then means nothing

                prompt = hit + miss;  written is the part of miss that was stored

Usage comes from a server, so nothing in it is trusted: a value that is no count is as good as missing, one that
contradicts another is flagged, and no result is ever negative. (Seed 000, prompt cache, "measure".)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentlab.errors import AgentLabError
from agentlab.language import say

_LIMIT = 10**12
_DIGITS = 20


@dataclass(frozen=True)
class CacheUsage:
    """The usage of one request, or the sum of several, in tokens. `prompt` is always `hit` + `miss`."""

    prompt: int
    """All input tokens."""

    hit: int
    """Input tokens that were read from the cache."""

    miss: int
    """The other input tokens."""

    written: int = 0
    """The part of `miss` that was written to the cache."""

    output: int = 0
    """Output tokens, reasoning included."""

    reported: bool = True
    """Whether the provider said anything about its cache, be it zero."""

    anomaly: str | None = None
    """What does not add up in the provider's numbers, or None."""

    written_1h: int = 0
    """The part of `written` that is kept for an hour, where there are two prices (Anthropic)."""

    def __post_init__(self) -> None:
        if min(self.hit, self.miss, self.output, self.written_1h) < 0 or self.hit + self.miss != self.prompt:
            raise AgentLabError(
                "A CacheUsage needs counts of 0 or more, and hit + miss must be prompt. Use read_usage."
            )
        if not self.written_1h <= self.written <= self.miss:
            raise AgentLabError("written is a part of miss, and written_1h a part of written. Use read_usage.")

    @property
    def hit_ratio(self) -> float:
        """The share of the prompt that was read from the cache, 0 to 1."""
        return self.hit / self.prompt if self.prompt else 0.0

    def _repr_html_(self) -> str:
        from agentlab import draw

        parts = [
            (say("read from cache"), self.hit, "cached"),
            (say("written to cache"), self.written, "new"),
            (say("paid again"), self.miss - self.written, "paid again"),
        ]
        notes = [] if self.reported else [say("This provider says nothing about a cache.")]
        notes += [say("Does not add up: {anomaly}.", anomaly=self.anomaly)] if self.anomaly else []
        return draw.html(draw.bar(parts, unit="tokens"), *notes)._repr_html_()


def read_usage(usage: Any) -> CacheUsage:
    """The usage object of one response as a CacheUsage. It never raises.

    Takes the `usage` of OpenAI (chat and Responses), DeepSeek, both shapes at once, Anthropic, llama.cpp, xAI,
    Moonshot and OpenRouter, None, and what is no usage at all. Where two shapes disagree, DeepSeek's own fields count.
    More tokens read, or written, than there are in the prompt can only mean that it was reported without them: they are
    added, and the usage is flagged. Where only both together are too many, some were counted twice: the prompt stays
    and the written ones are cut. xAI's reasoning tokens stand beside the completion; its total tells, and they are
    added. Within one request the last usage counts; only `total` adds, and only over requests.
    """
    if isinstance(usage, CacheUsage):
        return usage
    if usage is None or not isinstance(usage, Mapping):
        return CacheUsage(0, 0, 0, reported=False, anomaly=None if usage is None else "the usage is no object")
    fields = _Fields(usage)
    written, written_1h = _written(fields)
    hit, missed, reported = _hits(fields)
    prompt, on_top = _prompt(fields)
    whole = _whole(fields, prompt, hit, missed, written or 0, on_top)
    output = _output(fields, prompt)
    if usage and not reported and written is None and prompt is None and output is None:
        fields.odd.append("no known token count")
    stored = min(written or 0, whole - hit)
    return CacheUsage(
        whole,
        hit,
        whole - hit,
        stored,
        output or 0,
        reported=reported or written is not None,
        anomaly="; ".join(dict.fromkeys(fields.odd)) or None,
        written_1h=min(written_1h, stored),
    )


def each(usages: Any) -> list[CacheUsage]:
    """The usages of some requests. A usage in the place of a list is one request.

    Raises AgentLabError for what is neither.
    """
    if usages is None or isinstance(usages, Mapping | CacheUsage):
        usages = [usages]
    if not isinstance(usages, Iterable) or isinstance(usages, str | bytes):
        raise AgentLabError(f"{type(usages).__name__} is no usage and no list of usages: pass one for each request.")
    return [read_usage(usage) for usage in usages]


def total(usages: Iterable[Any]) -> CacheUsage:
    """The sum over requests, each given as a raw usage or a CacheUsage. Anomalies are joined, each once."""
    every = each(usages)
    odd = dict.fromkeys(usage.anomaly for usage in every if usage.anomaly)
    return CacheUsage(
        sum(usage.prompt for usage in every),
        sum(usage.hit for usage in every),
        sum(usage.miss for usage in every),
        sum(usage.written for usage in every),
        sum(usage.output for usage in every),
        reported=any(usage.reported for usage in every),
        anomaly="; ".join(odd) or None,
        written_1h=sum(usage.written_1h for usage in every),
    )


class _Fields:
    """The token counts of a usage object, and a note on each that is none."""

    def __init__(self, usage: Mapping[Any, Any]) -> None:
        self.usage = usage
        self.odd: list[str] = []

    def count(self, *path: str) -> int | None:
        """The count at this path, or None. Null is silence; everything else that is no count is noted."""
        value: Any = self.usage
        for name in path:
            if not isinstance(value, Mapping):
                self.odd.append(f"{path[0]} is no object")
                return None
            if (value := value.get(name)) is None:
                return None
        found, note = _number(value)
        if note:
            self.odd.append(f"{path[-1]} {note}")
        return found


def _number(value: Any) -> tuple[int | None, str | None]:
    """A count and what is odd about it. Whole floats are counts; digits in a string are too, but odd."""
    note = None
    if isinstance(value, str) and 0 < len(value) <= _DIGITS and value.isascii() and value.isdigit():
        value, note = int(value), "is text"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, "is no number"
    if not 0 <= value <= _LIMIT:
        return None, "is negative" if value < 0 else "is no possible count"
    return int(value), note if value == int(value) else "is no whole number"


def _written(fields: _Fields) -> tuple[int | None, int]:
    """Tokens written to the cache (None: not reported), and how many of them for an hour."""
    short = fields.count("cache_creation", "ephemeral_5m_input_tokens")
    long = fields.count("cache_creation", "ephemeral_1h_input_tokens")
    told = [
        fields.count("cache_creation_input_tokens"),
        fields.count("prompt_tokens_details", "cache_write_tokens"),
        fields.count("prompt_tokens_details", "cache_creation_input_tokens"),
        fields.count("input_tokens_details", "cache_write_tokens"),
    ]
    written = next((count for count in told if count is not None), None)
    if short is None and long is None:
        return written, 0
    split = (short or 0) + (long or 0)
    if written is not None and split != written:
        fields.odd.append("the tokens written for 5 minutes and for an hour do not add up")
    return split if written is None else written, long or 0


def _hits(fields: _Fields) -> tuple[int, int | None, bool]:
    """Tokens read from the cache, DeepSeek's own count of the others, and whether any of it was reported."""
    told = [
        fields.count("prompt_cache_hit_tokens"),
        fields.count("prompt_tokens_details", "cached_tokens"),
        fields.count("input_tokens_details", "cached_tokens"),
        fields.count("cache_read_input_tokens"),
        fields.count("cached_tokens"),
    ]
    counts = [count for count in told if count is not None]
    if len(set(counts)) > 1:
        fields.odd.append("two fields disagree on the cached tokens")
    missed = fields.count("prompt_cache_miss_tokens")
    if counts or missed is None:
        return (counts[0] if counts else 0), missed, bool(counts)
    return max(0, (fields.count("prompt_tokens") or missed) - missed), missed, True


def _prompt(fields: _Fields) -> tuple[int | None, bool]:
    """The input tokens as reported, and whether cached ones come on top of them by the dialect's own rule."""
    prompt = fields.count("prompt_tokens")
    fresh = None if prompt else fields.count("input_tokens")
    if fresh is None:
        return prompt, False
    return fresh, "input_tokens_details" not in fields.usage  # OpenAI Responses: cached tokens are part of them


def _whole(fields: _Fields, prompt: int | None, hit: int, missed: int | None, written: int, on_top: bool) -> int:
    """All input tokens."""
    if prompt is None:
        if missed is None and hit + written:
            fields.odd.append("cached tokens without prompt tokens")
        return hit + max(missed or 0, written)
    if on_top:
        return prompt + hit + written
    if max(hit, written) > prompt:
        fields.odd.append("more cached tokens than prompt tokens")
        return prompt + hit + written
    if hit + written > prompt:
        fields.odd.append("the tokens read and written overlap: together they are more than the prompt")
    if missed is not None and hit + missed != prompt:
        fields.odd.append("hit and miss do not add up to the prompt")
    return prompt


def _output(fields: _Fields, prompt: int | None) -> int | None:
    """Output tokens; xAI counts reasoning beside the completion, and only its total shows it."""
    output = fields.count("completion_tokens")
    if output is None:
        return fields.count("output_tokens")
    reasoning = fields.count("completion_tokens_details", "reasoning_tokens") or 0
    beside = fields.count("total_tokens") == (prompt or 0) + output + reasoning
    return output + reasoning if beside else output
