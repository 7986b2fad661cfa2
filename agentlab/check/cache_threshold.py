"""The third exercise of chapter 06: when should an agent compact, given prices, the cache's lifetime and the work?

The answer is a function of the prices, the TTL, the mean pause and a `ttl.Work`. It returns a threshold, a share of
the window. It is judged by what a simulated session costs with it, then by the bill of a real loop that compacts there.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.prices import Prices, bill
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.tools import Registry
from agentlab.ttl import Work, pauses, simulate
from agentlab.watchdog import LoopBudget

HINTS = (
    say(
        "Do not guess. `ttl.simulate(0.5, ttl.pauses(pause_s, work.turns, seed=1), ttl_s=ttl_s, prices=prices,"
        " work=work).cost` is what a session costs that compacts at half the window."
    ),
    say(
        "Ask for every threshold from 10 % to 95 %, in steps of 5 or less, with the same pauses for all, "
        "and take the one that costs least: `min(thresholds, key=cost)`."
    ),
    say(
        "Chance decides which pause falls on which turn. Add up three or four seeds before you compare. A "
        "prompt is never compacted below what a compaction leaves, so thresholds under `work.restored / "
        "work.window` are all the same."
    ),
)

TOLERANCE = 0.05
SEEDS = (11, 12)
CANDIDATES = (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9)

SONNET = Prices(2.0, 10.0, read=0.2, write=2.5)
CHEAP_READS = Prices(0.15, 0.6, read=0.003)
NO_CACHE = Prices(1.0, 4.0)
HOUR_S = 3600.0


@dataclass(frozen=True)
class Case:
    """Prices, a lifetime, a mean pause and a kind of work; `why` says what makes the threshold high or low."""

    name: str
    prices: Prices
    ttl_s: float
    pause_s: float
    work: Work
    why: str


_WORK = Work(turns=16)
CASES = (
    Case(
        say("five minutes, long pauses"),
        SONNET,
        300,
        900,
        _WORK,
        say("After every pause the whole prompt is paid for at full price: keep it short."),
    ),
    Case(
        say("two hours, long pauses"),
        SONNET,
        2 * HOUR_S,
        900,
        _WORK,
        say("Even read from the cache a long prompt costs something, with every single request."),
    ),
    Case(
        say("no cache at all"),
        NO_CACHE,
        0,
        60,
        _WORK,
        say("Without a cache every token is paid for in full, in every request."),
    ),
    Case(
        say("reading costs next to nothing"),
        CHEAP_READS,
        2 * HOUR_S,
        600,
        replace(_WORK, rework=4),
        say("The longer the cache lives and the less it costs to read, the longer a prompt may stay long."),
    ),
    Case(
        say("a compaction loses much"),
        SONNET,
        HOUR_S,
        600,
        replace(_WORK, rework=16),
        say("What was lost is read again, request by request: compact rarely."),
    ),
    Case(
        say("a small window"),
        SONNET,
        300,
        300,
        Work(window=48_000, fixed=8_000, kept=6_000, growth=1_000, turns=16),
        say("The share depends on the window: what a compaction leaves is a large part of this one."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.threshold a plain function, without brackets: check.threshold(my_threshold).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        got = answer(case.prices, case.ttl_s, case.pause_s, case.work)
        if found := _no_share(got):
            return found
        best = min(CANDIDATES, key=lambda threshold: _cost(case, threshold))
        lowest, cost = _cost(case, best), _cost(case, float(got))
        if cost <= lowest * (1 + TOLERANCE):
            return None
        expected = say(
            "at most {tolerance:.0%} above USD {lowest:.3f}, which it costs at {best:.0%}",
            tolerance=TOLERANCE,
            lowest=lowest,
            best=best,
        )
        return Difference(
            say("the session's cost"),
            expected,
            say("USD {cost:.3f} at {got:.0%}: {more:.0%} more", cost=cost, got=got, more=cost / lowest - 1),
        )

    fed = say(
        "input {input:g}, read {read}, write {write}; ttl_s={ttl_s:g}, pause_s={pause_s:g}, "
        "window {window:,}, growth {growth:,}, rework {rework}",
        input=case.prices.input,
        read=case.prices.read,
        write=case.prices.write,
        ttl_s=case.ttl_s,
        pause_s=case.pause_s,
        window=case.work.window,
        growth=case.work.growth,
        rework=case.work.rework,
    )
    return finding(case, answer, run, fed=fed, instead=say("a share of the window, such as 0.5"), why=case.why)


def _no_share(got: Any) -> Difference | None:
    if isinstance(got, int | float) and not isinstance(got, bool) and 0 < got <= 1:
        return None
    why = say("The threshold is a share of the window, above 0 and up to 1.")
    return Difference(say("what it returns"), say("a share of the window, such as 0.5"), short(repr(got)), why)


@lru_cache(maxsize=512)
def _cost(case: Case, threshold: float) -> float:
    """The mean cost of the session over pauses that the reader has not seen."""
    runs = [
        simulate(
            threshold,
            pauses(case.pause_s, case.work.turns, seed=seed),
            ttl_s=case.ttl_s,
            prices=case.prices,
            work=case.work,
        )
        for seed in SEEDS
    ]
    return sum(run.cost for run in runs) / len(runs)


# The live loop: a model reads one page after the other, and is away for ten minutes now and then.

PRICES = Prices(2.0, 10.0, read=0.2)
WINDOW, TTL_S, AWAY_S, STEP_S, PAGES, TURN_PAGES = 4_000, 300.0, 600, 10, 40, 8
PAGE = " ".join(f"word {n}" for n in range(40))
SUMMARY = "Summary: every page so far holds forty words, and nothing in them was odd. " * 2
ASK = "Summarise the work so far in two sentences."
RULES = "You read pages, one after the other, and look for something odd. " * 8
KEPT = 4
WORK = Work(
    window=WINDOW,
    fixed=192,
    kept=336,
    growth=143,
    output=12,
    summary=35,
    steps=TURN_PAGES,
    step_s=STEP_S,
    turns=PAGES // TURN_PAGES,
)


class _Stage:
    """A turn whose view is compacted, by the model itself, once a prompt has reached the answer's threshold."""

    def __init__(self, threshold: float) -> None:
        self.now, self.used, self.cut, self.compactions = 0.0, 0, 0, 0
        self._threshold = threshold
        registry = Registry()

        @registry.tool(read_only=True, spillable=False)
        def read_page(page: int) -> str:
            """Read one page."""
            if page % TURN_PAGES == 0:
                self.now += AWAY_S
            return f"Page {page}. {PAGE}"

        self._specs = registry.specs()
        cache = BlockCache(block=16, minimum=64, ttl_s=TTL_S)
        self.simulator = Simulator(_story, cache=cache, clock=lambda: self.now, context_window=2 * WINDOW)
        self._client = self.simulator.client()
        history = [{"role": "system", "content": RULES}, user(f"Read pages 1 to {PAGES}.")]
        hooks = Hooks(before_request=self._view, on_usage=self._seen)
        budget = LoopBudget(base_steps=2 * PAGES)
        self.turn = run_turn(history, self._client, registry, hooks=hooks, budget=budget)

    def _seen(self, usage: dict[str, Any]) -> None:
        self.used = usage["prompt_tokens"]

    async def _view(self, history: list[Message]) -> list[Message]:
        self.now += STEP_S
        grown = len(history) - max(self.cut, 2) > 2 * KEPT
        if grown and self.used >= min(self._threshold, 0.95) * WINDOW:
            await self._client.complete([*self._shown(history), user(ASK)], self._specs)
            self.cut, self.compactions = len(history) - KEPT, self.compactions + 1
        return self._shown(history)

    def _shown(self, history: list[Message]) -> list[Message]:
        if not self.cut:
            return history
        pages = sum(message["role"] == "tool" for message in history[: self.cut])
        summary = user(f"{history[1]['content']} {SUMMARY}Read so far: {pages}.") | {"origin": "compaction"}
        return [history[0], summary, *history[self.cut :]]

    @property
    def cost(self) -> float:
        return bill(self.simulator.usages, PRICES).actual


def _story(request: dict[str, Any]) -> Message | str:
    """Read the page behind the last one that can be seen; summarise when asked to."""
    last = str(request["messages"][-1]["content"])
    if last == ASK:
        return SUMMARY
    seen = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    page = int(seen[-1].split()[1].rstrip(".")) + 1 if seen else 1
    if page > PAGES:
        return "All pages are read, and none was odd."
    return assistant("", call(f"call_{page}", "read_page", page=page))


def _answered(answer: Any) -> float:
    got = answer(PRICES, TTL_S, AWAY_S, WORK)
    if found := _no_share(got):
        raise AgentLabError(say("{why} It returned {got}.", why=found.why, got=found.got))
    return float(got)


def turn(answer: Any) -> Turn:
    """A turn over forty pages, with a pause beyond the TTL now and then, that compacts where the answer says."""
    return _Stage(_answered(answer)).turn


def live(answer: Any) -> Live:
    """Run that turn, and compare its bill with the lowest one of three thresholds."""
    from agentlab.widgets.sync import run_sync

    try:
        threshold = _answered(answer)
    except Exception as error:
        return Live(False, say("Your function raised: {error}", error=blame(error, answer)))
    stage = _Stage(threshold)
    run_sync(stage.turn.run())
    best, lowest = _cheapest()
    said = say(
        "Compacted at {threshold:.0%}, compactions: {compactions}. The bill is USD {cost:.4f}. The "
        "lowest that we found is USD {lowest:.4f}, at {best:.0%}.",
        threshold=threshold,
        compactions=stage.compactions,
        cost=stage.cost,
        lowest=lowest,
        best=best,
    )
    close = stage.cost <= lowest * (1 + 2 * TOLERANCE)
    if not close:
        said += say(
            " That is {more:.0%} more, and up to {allowed:.0%} would do.",
            more=stage.cost / lowest - 1,
            allowed=2 * TOLERANCE,
        )
    return Live(close, said, tuple(stage.turn.history))


@lru_cache(maxsize=1)
def _cheapest() -> tuple[float, float]:
    from agentlab.widgets.sync import run_sync

    costs = {}
    for threshold in (0.3, 0.4, 0.5):
        stage = _Stage(threshold)
        run_sync(stage.turn.run())
        costs[threshold] = stage.cost
    best = min(costs, key=lambda threshold: costs[threshold])
    return best, costs[best]


def solution(prices: Prices, ttl_s: float, pause_s: float, work: Work) -> float:
    rows = [pauses(pause_s, work.turns, seed=seed) for seed in (1, 2, 3)]

    def cost(threshold: float) -> float:
        return sum(simulate(threshold, row, ttl_s=ttl_s, prices=prices, work=work).cost for row in rows)

    return min((share / 100 for share in range(10, 96, 5)), key=cost)


threshold = Exercise("threshold", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
