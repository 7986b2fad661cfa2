"""When does compacting pay? A simulation of the bill, and the break-even point of one compaction.

    pauses -> simulate(threshold, TTL, prices) -> the usage of every request -> bill -> cost
              grid: threshold x pause -> cost      best_threshold: the cheapest for one pause

A session is a row of turns; in a turn, requests follow each other closely, and each prompt is a little longer than the
last. A pause longer than the TTL empties the cache. A compaction costs one more request, which reads the whole prompt
and writes the summary, and leaves a prompt of which only the fixed front can be a hit. Nothing here knows what a
compaction does to the quality of the work: this is only about money. (Seed 000, prompt cache, first question.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentlab.cacheusage import CacheUsage
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.prices import Prices, bill

When = Literal["any", "after_expiry", "before_pause"]
WHEN: tuple[When, ...] = ("any", "after_expiry", "before_pause")

THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
PAUSES_S = (30.0, 120.0, 300.0, 900.0, 3600.0, 14400.0)
FORCED = 0.95


@dataclass(frozen=True)
class Work:
    """What a session is like, in tokens, requests and seconds."""

    window: int = 200_000
    """The context window."""

    fixed: int = 10_000
    """System prompt and tools: they stand in front and survive a compaction unchanged."""

    kept: int = 12_000
    """What a compaction leaves behind them: the summary and the newest messages."""

    growth: int = 2_000
    """How much longer each request is than the one before."""

    output: int = 400
    """Output of a request."""

    summary: int = 1_500
    """Output of the request that summarises; 0 tokens and no such request when `summarizes` is False."""

    summarizes: bool = True
    """Whether a model writes the summary. Code that cuts or extracts costs nothing."""

    rework: int = 0
    """Requests after a compaction that only read again what it lost."""

    steps: int = 8
    """Requests in a turn."""

    step_s: float = 10.0
    """Seconds between two requests of a turn."""

    turns: int = 80
    """Turns in a session."""

    def __post_init__(self) -> None:
        counts = (self.window, self.fixed, self.kept, self.growth, self.output, self.summary, self.rework)
        if min(counts) < 0 or not self.step_s >= 0 or min(self.window, self.steps, self.turns) < 1:
            raise AgentLabError("Work needs counts of 0 or more, and a window, steps and turns of at least 1.")
        if self.restored + self.growth > FORCED * self.window:
            raise AgentLabError("What a compaction leaves must fit into the window: make it smaller.")

    @property
    def compacted(self) -> int:
        """The prompt right after a compaction."""
        return self.fixed + self.kept

    @property
    def restored(self) -> int:
        """The prompt once what the compaction lost has been read again."""
        return self.compacted + self.rework * self.growth


@dataclass(frozen=True)
class Run:
    """One simulated session: its cost, in the currency of the prices, and how it came about."""

    cost: float
    compactions: int
    expiries: int
    usages: tuple[CacheUsage, ...]


def pauses(idle_s: float, turns: int, *, seed: int | None = None) -> list[float]:
    """The pause before each turn, in seconds: all alike, or with a seed drawn around that mean (exponential)."""
    if seed is None:
        return [idle_s] * turns
    draw = random.Random(seed)
    return [idle_s * draw.expovariate(1.0) for _ in range(turns)]


def simulate(
    threshold: float,
    waits: Sequence[float],
    *,
    ttl_s: float,
    prices: Prices,
    work: Work | None = None,
    when: When = "any",
) -> Run:
    """The bill of one session that compacts from `threshold` (a share of the window) on.

    `waits` are the seconds before each turn. `when` says at which requests a compaction is allowed: at any, only at
    the first after the cache expired, or only at the end of a turn, while the cache is warm. At 95 % of the window it
    happens in any case. Raises AgentLabError for a threshold outside 0 to 1 and for an unknown `when`.
    """
    if not isinstance(threshold, int | float) or not 0 < threshold <= 1 or when not in WHEN:
        raise AgentLabError(
            f"The threshold is a share of the window above 0, up to 1; when is one of {', '.join(WHEN)}."
        )
    work = work or Work()
    usages: list[CacheUsage] = []
    prompt, cached, compactions, expiries = work.compacted, 0, 0, 0

    def request(output: int) -> None:
        nonlocal cached
        usages.append(_request(prompt, cached, output))
        cached = prompt

    def compact() -> None:
        nonlocal prompt, cached, compactions
        if work.summarizes:
            request(work.summary)
        compactions += 1
        prompt, cached = work.compacted, min(cached, work.fixed)
        for _ in range(work.rework):
            request(work.output)
            prompt += work.growth

    for wait in waits:
        for step in range(work.steps):
            expired = (wait if step == 0 else work.step_s) > ttl_s
            if expired:
                expiries += cached > 0
                cached = 0
            allowed = when == "any" or (when == "after_expiry" and expired)
            if prompt > work.restored and _full(prompt, threshold if allowed else FORCED, work):
                compact()
            request(work.output)
            prompt += work.growth
        if when == "before_pause" and prompt > work.restored and _full(prompt, threshold, work):
            compact()
    return Run(bill(usages, prices).actual, compactions, expiries, tuple(usages))


def _request(prompt: int, cached: int, output: int) -> CacheUsage:
    """A request of so many tokens when that much of it is in the cache; the rest is written to it."""
    hit = min(cached, prompt)
    return CacheUsage(prompt, hit, prompt - hit, prompt - hit, output)


def _full(prompt: int, threshold: float, work: Work) -> bool:
    return prompt >= min(threshold, FORCED) * work.window


@dataclass(frozen=True)
class Grid:
    """What a session costs, by threshold (rows) and mean pause (columns): `costs[row][column]`."""

    thresholds: tuple[float, ...]
    pauses_s: tuple[float, ...]
    costs: tuple[tuple[float, ...], ...]

    def best(self, column: int) -> float:
        """The cheapest threshold for one pause; of equals the highest, which compacts least.

        Raises AgentLabError where there is no threshold at all.
        """
        if not self.costs:
            raise AgentLabError("There is no threshold to choose from: give at least one, a share of the window.")
        cheapest = min(row[column] for row in self.costs)
        return max(t for t, row in zip(self.thresholds, self.costs, strict=True) if row[column] <= cheapest)

    def relative(self) -> tuple[tuple[float, ...], ...]:
        """The costs as multiples of the cheapest one in their column, for a heat map."""
        lowest = [min(row[i] for row in self.costs) or 1.0 for i in range(len(self.pauses_s))]
        return tuple(tuple(cost / low for cost, low in zip(row, lowest, strict=True)) for row in self.costs)

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = [
            (f"{threshold:.0%}", *(f"{cost:.2f}" for cost in row))
            for threshold, row in zip(self.thresholds, self.relative(), strict=True)
        ]
        head = (say("threshold"), *(say("pause {pause:g} s", pause=pause) for pause in self.pauses_s))
        caption = say("Cost, as a multiple of the cheapest in its column")
        return draw.table(rows, head=head, caption=caption)._repr_html_()


def grid(
    prices: Prices,
    *,
    ttl_s: float,
    thresholds: Sequence[float] = THRESHOLDS,
    pauses_s: Sequence[float] = PAUSES_S,
    work: Work | None = None,
    when: When = "any",
    seed: int | None = 1,
) -> Grid:
    """The cost of a session for every threshold and every mean pause. All rows of a column see the same pauses."""
    work = work or Work()
    waits = [pauses(pause, work.turns, seed=seed) for pause in pauses_s]
    costs = tuple(
        tuple(simulate(t, wait, ttl_s=ttl_s, prices=prices, work=work, when=when).cost for wait in waits)
        for t in thresholds
    )
    return Grid(tuple(thresholds), tuple(pauses_s), costs)


def best_threshold(
    prices: Prices,
    *,
    ttl_s: float,
    idle_s: float,
    thresholds: Sequence[float] = THRESHOLDS,
    work: Work | None = None,
    when: When = "any",
    seed: int | None = 1,
) -> float:
    """The cheapest of these thresholds when people pause for `idle_s` seconds on average."""
    found = grid(prices, ttl_s=ttl_s, thresholds=thresholds, pauses_s=[idle_s], work=work, when=when, seed=seed)
    return found.best(0)


@dataclass(frozen=True)
class BreakEven:
    """Compact now, or go on as it is? Costs in the currency of the prices.

    `keep` and `compact` are what it takes up to and with the next request, `per_request` is what each later one costs
    less after a compaction. `requests` is how many must follow for it to pay, the next one included; None: it never
    does.
    """

    requests: int | None
    keep: float
    compact: float
    per_request: float


def break_even(
    prompt: int,
    *,
    idle_s: float,
    ttl_s: float,
    prices: Prices,
    work: Work | None = None,
    pause_s: float = 0.0,
) -> BreakEven:
    """How many requests must follow until compacting a prompt of so many tokens pays.

    `idle_s` is how long ago the last request was, `pause_s` how long it will be from now to the next one: 0 and 3600
    is a compaction before a break, 3600 and 0 one after it. Raises AgentLabError for a negative prompt.
    """
    if prompt < 0:
        raise AgentLabError("A prompt has 0 tokens or more.")
    work = work or Work()
    warm_now, warm_then = idle_s <= ttl_s, pause_s <= ttl_s
    after = min(prompt, work.compacted)
    front = work.fixed if warm_then and (warm_now or work.summarizes) else 0
    extra = [_request(prompt, prompt if warm_now else 0, work.summary)] if work.summarizes else []
    for _ in range(work.rework):
        extra.append(_request(after, front, work.output))
        front, after = after, after + work.growth
    keep = prices.cost(_request(prompt, prompt if idle_s + pause_s <= ttl_s else 0, 0))
    compact = sum(map(prices.cost, extra)) + prices.cost(_request(after, front, 0))
    per_request = prices.cost(_request(prompt, prompt, 0)) - prices.cost(_request(after, after, 0))
    if compact <= keep:
        return BreakEven(1, keep, compact, per_request)
    later = math.ceil((compact - keep) / per_request) if per_request > 0 else None
    return BreakEven(None if later is None else 1 + later, keep, compact, per_request)
