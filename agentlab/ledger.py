"""What broken caches cost: tokens that the last request had just computed and that this one paid for again.

    usage, time -> Ledger.record -> Entry: missed = min(previous prompt, this prompt) - hit
                                           above the noise?  idle longer than the TTL?  -> expired, else rewritten

It needs no request text, only the numbers that every response carries. Three rules keep it from crying wolf: small
differences are noise (blocks and breakpoints are coarse), a first request and a provider that never reported a hit
prove nothing, and a compaction pays for a shorter prefix on purpose (`reset`). (Seed 000, prompt cache, the ledger.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentlab.cacheusage import CacheUsage, read_usage
from agentlab.errors import AgentLabError
from agentlab.language import say

Verdict = Literal["ok", "expired", "rewritten", "unknown"]
Start = Literal["", "session", "compaction"]

_NOTHING = CacheUsage(0, 0, 0, reported=False)
_LONG_S = 1e15
STEADY, FALLEN = 0.9, 0.5


@dataclass(frozen=True)
class Entry:
    """One request in the ledger. `missed` are tokens, 0 up to the noise floor; `idle_s` are seconds since the last."""

    missed: int
    idle_s: float
    verdict: Verdict
    usage: CacheUsage = _NOTHING
    start: Start = ""
    """`session` or `compaction` when there was no earlier request to compare with."""

    late: bool = False
    """Whether the pause was longer than the TTL."""

    def _repr_html_(self) -> str:
        return _table([self])


@dataclass
class Ledger:
    """The waste of one session. `ttl_s` is how long an unused cache lives, in seconds; `noise` is in tokens."""

    ttl_s: float = 300.0
    noise: int = 1024
    entries: list[Entry] = field(default_factory=list, init=False)
    _prompt: int | None = field(default=None, init=False, repr=False)
    _at: float | None = field(default=None, init=False, repr=False)
    _reports: bool = field(default=False, init=False, repr=False)
    _compacted: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not all(isinstance(number, int | float) and number >= 0 for number in (self.ttl_s, self.noise)):
            raise AgentLabError(
                "A ledger's ttl_s and noise cannot be negative, and are numbers. Use 0 or more for both."
            )

    @property
    def wasted(self) -> int:
        """All tokens that were paid for again."""
        return sum(entry.missed for entry in self.entries)

    @property
    def misses(self) -> int:
        """How many requests paid again."""
        return sum(entry.missed > 0 for entry in self.entries)

    def record(self, usage: Any, at: float) -> Entry:
        """Add one request: its usage (raw, or a CacheUsage) and when it was sent, in seconds of any steady clock.

        A clock that went back counts as no pause. A request whose usage did not come has no verdict; the next one is
        compared with the last that had one. Once a provider has reported a hit or a write, silence counts as no hit.
        Raises AgentLabError for a time that is no number.
        """
        if not isinstance(at, int | float) or not -_LONG_S < at < _LONG_S:
            raise AgentLabError("A request needs the time at which it was sent, in seconds: a finite number.")
        read = read_usage(usage)
        idle = max(0.0, at - self._at) if self._at is not None else 0.0
        late = idle > self.ttl_s
        self._at = at
        self._reports = self._reports or read.hit > 0 or read.written > 0
        if not read.prompt:
            return self._add(Entry(0, idle, "unknown", read, late=late))
        before, self._prompt = self._prompt, read.prompt
        if before is None:
            start: Start = "compaction" if self._compacted else "session"
            return self._add(Entry(0, idle, "unknown", read, start, late))
        if not self._reports:
            return self._add(Entry(0, idle, "unknown", read, late=late))
        missed = min(before, read.prompt) - read.hit
        if missed <= self.noise:
            return self._add(Entry(0, idle, "ok", read, late=late))
        return self._add(Entry(missed, idle, "expired" if late else "rewritten", read, late=late))

    def reset(self) -> None:
        """The history was compacted: the next request has nothing to be compared with. The sums stay."""
        self._prompt = None
        self._compacted = bool(self.entries)

    def _add(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        return entry

    def _repr_html_(self) -> str:
        return _table(
            self.entries,
            say("Cache waste: {wasted:,} tokens in {misses} misses", wasted=self.wasted, misses=self.misses),
        )


def _table(entries: Sequence[Entry], caption: str | None = None) -> str:
    from agentlab import draw

    rows = [
        (i, e.usage.prompt, e.usage.hit, f"{e.usage.hit_ratio:.1%}", e.missed, f"{e.idle_s:g} s", e.verdict)
        for i, e in enumerate(entries, 1)
    ]
    head = (say("request"), say("prompt"), say("hit"), say("ratio"), say("paid again"), say("idle"), say("verdict"))
    return draw.table(rows, head=head, caption=caption)._repr_html_()


@dataclass(frozen=True)
class Symptom:
    """One row of the diagnosis: what it looks like, what it means, and the requests (from 1) that show it."""

    sign: str
    meaning: str
    requests: tuple[int, ...] = ()

    @property
    def found(self) -> bool:
        """Whether any request shows it."""
        return bool(self.requests)


class Diagnosis(tuple[Symptom, ...]):
    """The four symptoms, always in the same order."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = [(s.sign, ", ".join(map(str, s.requests)) or say("no"), s.meaning) for s in self]
        head = (say("symptom"), say("seen in request"), say("what it means"))
        return draw.table(rows, head=head)._repr_html_()


def diagnose(entries: Iterable[Entry], *, saved: float | None = None, noise: int = 1024) -> Diagnosis:
    """Which of four symptoms a ledger shows: never a hit, a sudden fall, a compaction, hits that save nothing.

    `saved` is what the bill says was saved, in any currency, if there is a bill. Prompts of up to `noise` tokens are
    too short to be cached anywhere and are passed over. (Seed 000, prompt cache, the table of symptoms.)
    """
    rows = list(enumerate(entries, 1))
    telling = [(i, e) for i, e in rows if not e.start and not e.late and e.usage.prompt > noise and e.usage.reported]
    compacted = [i for i, e in rows if e.start == "compaction" and e.usage.hit_ratio < FALLEN]
    never = [i for i, e in telling] if telling and not any(e.usage.hit for _, e in telling) else []
    fell = [i for i, e in rows if e.verdict == "rewritten" and i not in never and _was_steady(rows, i)]
    unread = [i for i, e in rows if e.usage.prompt > noise and (not e.usage.reported or e.usage.anomaly)]
    if not unread and saved is not None and saved <= 0:
        unread = [i for i, e in telling if e.usage.hit_ratio >= STEADY]
    front = "The prefix breaks at its very start: look for a clock or a counter in the system prompt or the tools."
    middle = "Old messages were rewritten: look for code that trims or edits what was already sent."
    paid = "Expected: the history was replaced once, and every request from here on is shorter."
    fields = "Check that the provider caches at all, that its usage is read right, and what writing costs."
    return Diagnosis(
        [
            Symptom("0 % in every request", front, tuple(never)),
            Symptom("steady hits, then a sudden fall", middle, tuple(fell)),
            Symptom("close to 0 % right after a compaction", paid, tuple(compacted)),
            Symptom("hits look right or are missing, the bill does not fall", fields, tuple(unread)),
        ]
    )


def _was_steady(rows: list[tuple[int, Entry]], request: int) -> bool:
    """Whether some request before this one, back to the last start, was read from the cache."""
    for _, entry in reversed(rows[: request - 1]):
        if entry.usage.hit:
            return True
        if entry.start:
            return False
    return False
