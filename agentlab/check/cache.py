"""The first exercise of chapter 06: a waste ledger, from nothing but the numbers that every response carries.

The answer is a class: `record(usage, at)` gives the tokens that were paid again and a verdict, `reset()` says that the
history was compacted. It is judged by what a row of requests comes to, against `agentlab.ledger`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
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
from agentlab.usage import CacheUsage, Entry, Ledger

HINTS = (
    say(
        "The last prompt was just computed, so this request should read all of it from the cache, or all "
        "of itself if it is the shorter one: `missed = min(before, usage.prompt) - usage.hit`. Up to "
        "`noise` it counts as 0."
    ),
    say(
        "Keep three things: the last prompt, the time of the last request, and whether this provider ever "
        "reported a hit or a write. While it never did, the verdict is `unknown`, and it stays known for "
        "good once it did."
    ),
    say(
        "`reset()` forgets the last prompt and nothing else: the time of the last request and the provider's habit"
        " remain. A pause of exactly the TTL is not too long."
    ),
)


@dataclass(frozen=True)
class Request:
    """One row of a session: the pause before it in seconds, and the tokens; `compacted`: `reset()` is called first."""

    gap_s: float
    prompt: int
    hit: int = 0
    written: int = 0
    compacted: bool = False
    reported: bool = True

    @property
    def usage(self) -> CacheUsage:
        return CacheUsage(self.prompt, self.hit, self.prompt - self.hit, self.written, reported=self.reported)

    def __str__(self) -> str:
        start = say("compacted; ") if self.compacted else ""
        return f"{start}+{self.gap_s:g} s: prompt {self.prompt:,}, hit {self.hit:,}, written {self.written:,}"


@dataclass(frozen=True)
class Case:
    """A session, and why its last rows are judged as they are."""

    name: str
    rows: tuple[Request, ...]
    why: str
    ttl_s: float = 300.0
    bonus: bool = False


START = (Request(0, 8_000, 0, 8_000), Request(10, 11_000, 8_000, 3_000))

CASES = (
    Case(
        say("a session that only grows"),
        (*START, Request(20, 14_000, 11_000, 3_000)),
        say("All of the last prompt was read."),
    ),
    Case(say("the first request"), (Request(0, 9_000),), say("It has nothing to be compared with: `unknown`, and 0.")),
    Case(
        say("a small difference"),
        (*START, Request(5, 12_000, 9_976), Request(5, 13_000, 11_000)),
        say("Blocks and marks are coarse: up to `noise` tokens nothing is wrong. The limit itself is still noise."),
    ),
    Case(
        say("one token above the noise"),
        (*START, Request(5, 12_000, 9_975)),
        say("Beyond the noise all of it counts, not only what lies above."),
    ),
    Case(
        say("a provider that never reports"),
        tuple(Request(n, 9_000 + n, reported=False) for n in (0, 5, 10)),
        say("Its 0 proves nothing: `unknown`, and 0."),
    ),
    Case(
        say("it reported once, then it is silent"),
        (*START, Request(10, 12_000), Request(10, 13_000, reported=False)),
        say("It can report, so its 0 is a miss now."),
    ),
    Case(
        say("a write is a report, too"),
        (START[0], Request(10, 9_000)),
        say("Who writes to a cache has one: the next 0 is a miss."),
    ),
    Case(
        say("the person was away"),
        (*START, Request(2_280, 13_000, 0, 13_000)),
        say("The pause was longer than the TTL, so the cache was gone: nobody's fault."),
    ),
    Case(
        say("somebody rewrote the history"),
        (*START, Request(12, 12_500, 3_000)),
        say("The cache was still warm. Somebody changed what had been sent."),
    ),
    Case(say("exactly the TTL"), (*START, Request(300, 13_000)), say("What was last used a TTL ago is still there.")),
    Case(say("another TTL"), (*START, Request(2_280, 13_000)), say("This provider keeps it for an hour."), ttl_s=3_600),
    Case(
        say("a prompt that became shorter"),
        (*START, Request(5, 6_000, 6_000)),
        say("It can read no more than itself: take the smaller of the two prompts."),
    ),
    Case(
        say("a compaction"),
        (*START, Request(5, 6_000, 1_000, compacted=True), Request(5, 7_000, 6_000)),
        say("A compaction pays once for a shorter prompt, on purpose: that is no waste."),
    ),
    Case(
        say("a miss after a compaction"),
        (*START, Request(5, 6_000, compacted=True), Request(400, 7_000)),
        say("`reset` forgets the last prompt, not that this provider reports, and not what comes after it."),
    ),
    Case(
        say("a request whose usage did not come"),
        (*START, Request(5, 0, reported=False), Request(5, 12_000, 4_000)),
        say("It has no verdict; the next one is compared with the last that had numbers."),
        bonus=True,
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no class."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(say("Give check.ledger your class, without brackets: check.ledger(MyLedger)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        mine, theirs = Ledger(case.ttl_s), answer(ttl_s=case.ttl_s, noise=1024)
        at = 0.0
        for number, row in enumerate(case.rows, 1):
            at += row.gap_s
            if row.compacted:
                mine.reset()
                theirs.reset()
            wanted = mine.record(row.usage, at)
            expected, got = (wanted.missed, wanted.verdict), _read(theirs.record(row.usage, at))
            if got != expected:
                return Difference(say("request {number}: (missed, verdict)", number=number), repr(expected), short(got))
        return None

    fed = say("ttl_s={ttl_s:g}; {requests}", ttl_s=case.ttl_s, requests=" | ".join(map(str, case.rows)))
    return finding(
        case, answer, run, fed=fed, instead=say("a verdict on every request"), bonus=case.bonus, why=case.why
    )


def _read(value: Any) -> Any:
    """What `record` gave as (missed, verdict); an Entry is as good, anything else stays what it is."""
    if isinstance(value, Entry):
        return value.missed, value.verdict
    return tuple(value) if isinstance(value, list) else value


PRICES = Prices(2.0, 10.0, read=0.2)
TTL_S, NOISE, STEP_S, AWAY_MIN = 300.0, 128, 10, 38
READS, TRIM_FROM, TRIM_TO = 4, 6, 80
TEXT = "\n".join(f"line {n}: the value of field {n} is {n * n % 97}" for n in range(60))


class _Stage:
    """A turn in which the person is away once and a hook trims an old result once, with the answer looking on."""

    def __init__(self, answer: Any) -> None:
        self.now = 0.0
        self.mine, theirs = Ledger(TTL_S, NOISE), answer(ttl_s=TTL_S, noise=NOISE)
        self.told: list[tuple[int, str]] = []
        registry = Registry()

        @registry.tool(read_only=True, spillable=False)
        def read_file(path: str) -> str:
            """Read a text file."""
            return TEXT

        @registry.tool(read_only=True)
        def wait_for_review(minutes: int) -> str:
            """Wait until the person has looked at it."""
            self.now += 60 * minutes
            return "Looks fine. Go on."

        @registry.tool(read_only=True)
        def cost() -> str:
            """What the cache has wasted in this session."""
            return _summary(self.told)

        def seen(usage: dict[str, Any]) -> None:
            read = bill([usage], PRICES).total
            self.mine.record(read, self.now)
            value = _read(theirs.record(read, self.now))
            self.told.append(value if isinstance(value, tuple) and len(value) == 2 else (0, short(value)))

        hooks = Hooks(before_request=self._sent, on_usage=seen)
        cache = BlockCache(block=64, minimum=128, ttl_s=TTL_S)
        simulator = Simulator(_story, cache=cache, clock=lambda: self.now)
        question = [user("Read the four files, let me look at them, and tell me what the cache has wasted.")]
        self.turn = run_turn(question, simulator.client(), registry, hooks=hooks)

    def _sent(self, history: list[Message]) -> list[Message]:
        self.now += STEP_S
        results = [at for at, message in enumerate(history) if message["role"] == "tool"]
        if len(results) < TRIM_FROM:
            return history
        return [{**m, "content": m["content"][:TRIM_TO]} if at == results[0] else m for at, m in enumerate(history)]


def _summary(rows: list[tuple[int, str]]) -> str:
    try:
        missed = [(amount, verdict) for amount, verdict in rows if amount]
        words = ", ".join(f"{amount:,} {verdict}" for amount, verdict in missed) or "nothing"
        return f"{sum(amount for amount, _ in missed):,} tokens in {len(missed)} misses: {words}"
    except (TypeError, ValueError):
        return f"a ledger that is no list of numbers and verdicts: {short(rows)}"


def _story(request: dict[str, Any]) -> Message | str:
    """Read three files, wait, read the last two, ask what it cost, and repeat what is told."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    done = len(results)
    if done == TRIM_FROM + 1:
        return f"Cache waste: {results[-1]}."
    id = f"call_{done + 1}"
    if done == TRIM_FROM:
        return assistant("", call(id, "cost"))
    if done == 2:
        return assistant("", call(id, "wait_for_review", minutes=AWAY_MIN))
    return assistant("", call(id, "read_file", path=f"part_{done}.txt"))


def turn(answer: Any) -> Turn:
    """A turn with a pause and a trimmed result in it, whose `cost` tool tells what the answer's ledger says."""
    return _Stage(answer).turn


def live(answer: Any) -> Live:
    """Run the turn, and compare what the agent was told with the provider's bill."""
    from agentlab.widgets.sync import run_sync

    try:
        stage = _Stage(answer)
        run_sync(stage.turn.run())
    except Exception as error:
        return Live(False, say("Your class raised in the loop: {error}", error=blame(error, answer)))
    told = str(stage.turn.history[-1].get("content") or "")
    history = tuple(stage.turn.history)
    right = f"Cache waste: {_summary([(e.missed, e.verdict) for e in stage.mine.entries[:-1]])}."
    paid = bill(stage.turn.usages, PRICES)
    if told != right:
        return Live(
            False, say("The agent was told: {told}\nThe bill says: {right}", told=short(told), right=right), history
        )
    worth = stage.mine.wasted * (PRICES.input - (PRICES.read or 0.0)) / 1e6
    return Live(
        True,
        say(
            "{told} The bill: USD {actual:.4f}, of which this waste is {worth:.4f}.",
            told=told,
            actual=paid.actual,
            worth=worth,
        ),
        history,
    )


class Solution:
    def __init__(self, ttl_s: float = 300, noise: int = 1024) -> None:
        self.ttl_s, self.noise = ttl_s, noise
        self.before: int | None = None  # the last prompt
        self.at: float | None = None
        self.reports = False

    def record(self, usage: CacheUsage, at: float) -> tuple[int, str]:
        idle = 0.0 if self.at is None else at - self.at
        self.at = at
        self.reports = self.reports or usage.hit > 0 or usage.written > 0
        if not usage.prompt:
            return 0, "unknown"
        before, self.before = self.before, usage.prompt
        if before is None or not self.reports:
            return 0, "unknown"
        missed = min(before, usage.prompt) - usage.hit
        if missed <= self.noise:
            return 0, "ok"
        return missed, "expired" if idle > self.ttl_s else "rewritten"

    def reset(self) -> None:
        self.before = None


ledger = Exercise("ledger", judge=judge, turn=turn, live=live, hints=HINTS, solution=Solution)
