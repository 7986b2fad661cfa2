"""Three prefix caches, as the vendors describe them: they drive the usage that the simulator reports.

    prompt, marks, time -> admit -> CacheUse(hit, written)      reply, time -> extend: prompt and reply may be stored

| policy | a hit is | it can end |
|---|---|---|
| `BlockCache` (OpenAI, llama.cpp) | the longest common prefix, in whole blocks | anywhere |
| `BreakpointCache` (Anthropic) | a stored prefix, found from a mark | where a mark stood |
| `UnitCache` (DeepSeek) | the longest stored unit, whole | where a request, a reply or an interval ended |

All sizes are tokens, all times seconds of the simulator's clock. What was last used `ttl_s` ago is still there, what is
older is gone; being read is use. The last token of a prompt is never read: it is computed for the reply to begin. What
writing and reading cost is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from agentlab.errors import AgentLabError
from agentlab.simulator.tokens import block_ends

HOUR_S = 3600.0


@dataclass(frozen=True)
class CacheUse:
    """What a cache did for one prompt, in tokens: `hit` were read from it, `written` were stored by it.

    `written_hour` is the part of `written` that was stored for an hour, for vendors that sell two lifetimes.
    """

    hit: int = 0
    written: int = 0
    written_hour: int = 0


class HourMark(int):
    """A breakpoint whose prefix is to be kept for an hour."""


class CachePolicy(Protocol):
    """A prefix cache. Times are seconds of the simulator's clock; prompts are tokens from `tokens.render`."""

    def admit(self, prompt: Sequence[str], *, marks: Sequence[int], at: float) -> CacheUse:
        """Look the prompt up and store it. `marks` are the explicit breakpoints, as numbers of leading tokens."""

    def extend(self, prompt: Sequence[str], reply: Sequence[str], *, at: float) -> None:
        """The reply to this prompt has been produced, so prompt and reply together may be stored too."""


class Life(NamedTuple):
    """How long a stored prefix may be reused: when it was last used, and for how many seconds from then on."""

    used: float
    ttl_s: float

    @property
    def until(self) -> float:
        return self.used + self.ttl_s


@dataclass
class _Kept:
    """A sequence of tokens, and the life of each of its prefixes that can be reused, by their lengths."""

    tokens: list[str]
    ends: dict[int, Life]


@dataclass
class _Memory:
    """What a cache remembers: sequences, newest last. One that a newer one continues is merged into it."""

    kept: list[_Kept] = field(default_factory=list)

    def shared(self, prompt: Sequence[str], at: float) -> list[tuple[int, _Kept]]:
        """Each sequence that still lives, and how far the prompt agrees with it; what has expired is forgotten."""
        for one in self.kept:
            one.ends = {end: life for end, life in one.ends.items() if at <= life.until}
        self.kept = [one for one in self.kept if one.ends]
        return [(_common(one.tokens, prompt), one) for one in self.kept]

    def ends(self, prompt: Sequence[str], at: float) -> dict[int, Life]:
        """All stored prefixes of the prompt that still live, by their lengths."""
        found: dict[int, Life] = {}
        for length, one in self.shared(prompt, at):
            _add(found, {end: life for end, life in one.ends.items() if end <= length})
        return found

    def keep(self, tokens: Sequence[str], ends: Mapping[int, Life]) -> None:
        """Store a sequence with its ends. Nothing is stored without one."""
        if not ends:
            return
        new, others = _Kept(list(tokens), dict(ends)), []
        for one in self.kept:
            if _common(one.tokens, tokens) == len(one.tokens):
                _add(new.ends, one.ends)
            else:
                others.append(one)
        self.kept = [*others, new]


@dataclass
class BlockCache:
    """Reuses the longest common prefix with anything stored, in whole blocks, from a minimum on; it needs no marks.

    The defaults are OpenAI's: blocks of 128 tokens, from 1,024 on. `slots` is how many sequences are remembered, None
    for all. `BlockCache(block=1, minimum=0, slots=1, ttl_s=math.inf)` is a slot of llama.cpp's server, where
    cached = min(lcp(previous prompt + generated[:-1], prompt), len(prompt) - 1): the last token that was generated has
    not been computed on. Raises AgentLabError for numbers that make no cache.
    """

    block: int = 128
    minimum: int = 1024
    ttl_s: float = 300.0
    slots: int | None = None
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.ttl_s, self.minimum, block=self.block, slots=1 if self.slots is None else self.slots)

    def admit(self, prompt: Sequence[str], *, marks: Sequence[int], at: float) -> CacheUse:
        """The whole blocks of the longest common prefix are read, the prompt's other whole blocks are written."""
        longest = max((length for length, _ in self._memory.shared(prompt, at)), default=0)
        hit = self._whole(max(min(longest, len(prompt) - 1), 0))
        self._keep(prompt, at)
        return CacheUse(hit, self._whole(len(prompt)) - hit)

    def extend(self, prompt: Sequence[str], reply: Sequence[str], *, at: float) -> None:
        """Store the prompt, and of the reply what was computed on."""
        self._keep([*prompt, *reply[:-1]], at)

    def _whole(self, tokens: int) -> int:
        whole = tokens // self.block * self.block
        return whole if whole >= self.minimum else 0

    def _keep(self, tokens: Sequence[str], at: float) -> None:
        self._memory.keep(tokens, {len(tokens): Life(at, self.ttl_s)})
        if self.slots is not None:
            del self._memory.kept[: -self.slots]


@dataclass
class BreakpointCache:
    """Stores a prefix at each explicit mark and nowhere else, and finds one only from a mark. (Anthropic.)

    From each mark it looks back over `look_back` blocks, the marked one included, for a prefix that an earlier request
    stored; a block is a tool, a text, a call or a result. A prefix below `minimum` is neither stored nor found. It
    lives for `ttl_s`, behind an `HourMark` for an hour, from its last use on. Without marks nothing is ever cached.
    Raises AgentLabError for numbers that make no cache.
    """

    minimum: int = 1024
    ttl_s: float = 300.0
    look_back: int = 20
    most_marks: int = 4
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.ttl_s, self.minimum, look_back=self.look_back, most_marks=self.most_marks)

    def admit(self, prompt: Sequence[str], *, marks: Sequence[int], at: float) -> CacheUse:
        """The longest prefix that a mark finds is read, what follows up to the last mark is written.

        Raises AgentLabError for more marks than the vendor takes.
        """
        if len(marks) > self.most_marks:
            raise AgentLabError(f"{len(marks)} breakpoints are too many: mark at most {self.most_marks} blocks.")
        usable = sorted(mark for mark in marks if max(self.minimum, 1) <= mark < len(prompt))
        stored = self._memory.ends(prompt, at)
        blocks = block_ends(prompt) if usable else []
        hit = max((end for mark in usable for end in self._seen_from(mark, blocks) if end in stored), default=0)
        ends = {end: Life(at, life.ttl_s) for end, life in stored.items() if end <= hit}
        for mark in usable:
            ttl_s = max(HOUR_S, self.ttl_s) if isinstance(mark, HourMark) else self.ttl_s
            _add(ends, {int(mark): Life(at, ttl_s)})
        self._memory.keep(prompt, ends)
        last = max(usable, default=0)
        hour = max((mark for mark in usable if isinstance(mark, HourMark)), default=0)
        return CacheUse(hit, max(last - hit, 0), max(hour - hit, 0))

    def extend(self, prompt: Sequence[str], reply: Sequence[str], *, at: float) -> None:
        """Nothing: a reply is stored when a later request marks it, or something behind it."""

    def _seen_from(self, mark: int, blocks: Sequence[int]) -> list[int]:
        earlier = [end for end in blocks if end < mark]
        return [mark, *earlier[len(earlier) - min(self.look_back - 1, len(earlier)) :]]


@dataclass
class UnitCache:
    """Reuses whole units only: the longest stored one that the prompt begins with. (DeepSeek, as documented now.)

    A unit ends where the input of a request ends, where its reply ends, where two requests were seen to part, and after
    every `interval` tokens of long ones (None: nowhere). So A+B, then A+C hits nothing, but A+D after them hits A.
    A unit below `minimum` is not stored. The vendor documents the rules; minimum, interval and lifetime are ours.
    Raises AgentLabError for numbers that make no cache.
    """

    minimum: int = 64
    interval: int | None = 4096
    ttl_s: float = 2 * HOUR_S
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.ttl_s, self.minimum, interval=1 if self.interval is None else self.interval)

    def admit(self, prompt: Sequence[str], *, marks: Sequence[int], at: float) -> CacheUse:
        """The longest unit is read, the rest of the input is written. The mark that opens the reply is no input."""
        size = len(prompt) - 1
        stored = {end: life for end, life in self._memory.ends(prompt, at).items() if end <= size}
        hit = max(stored, default=0)
        parted = [min(length, size) for length, _ in self._memory.shared(prompt, at)]
        self._keep(prompt, [*stored, *parted, size], at)
        return CacheUse(hit, max(size - hit, 0) if size >= self.minimum else 0)

    def extend(self, prompt: Sequence[str], reply: Sequence[str], *, at: float) -> None:
        """The end of the reply is the end of a unit."""
        tokens = [*prompt, *reply]
        self._keep(tokens, [len(tokens)], at)

    def _keep(self, tokens: Sequence[str], ends: Iterable[int], at: float) -> None:
        regular = range(self.interval, len(tokens), self.interval) if self.interval else ()
        life = Life(at, self.ttl_s)
        self._memory.keep(tokens, {end: life for end in [*ends, *regular] if end >= max(self.minimum, 1)})


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many leading tokens two sequences share."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def _add(ends: dict[int, Life], more: Mapping[int, Life]) -> None:
    """Put more ends to those that are there; of two lives of one end, the one that ends later counts."""
    for end, life in more.items():
        ends[end] = max(life, ends.get(end, life), key=lambda one: one.until)


def _check(ttl_s: float, minimum: int, **at_least_one: int) -> None:
    if not ttl_s >= 0 or minimum < 0:
        raise AgentLabError("A cache's ttl_s and minimum cannot be negative: use 0 or more for both.")
    for name, value in at_least_one.items():
        if value < 1:
            raise AgentLabError(f"A cache's {name} must be 1 or more, not {value}.")
