"""The third exercise of chapter 05: what a time in the summary message does to the next request.

The answer is a function of a summary, the messages behind it, and the time now. It returns the messages of the request,
and the model must be able to read the time in them. The offline provider has a prefix cache and reports what it read
from it: a time in the first message changes the first bytes, and all behind them is paid again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import pairing
from agentlab.check.compaction_session import session
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, user, wire
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.simulator.tokens import render
from agentlab.summary import text_of
from agentlab.tools import Registry

HINTS = (
    say(
        "Build the messages for two times, `'10:23:01'` and `'10:23:21'`, and compare the first message of "
        "both. Everything from the first difference on is read, and paid, anew."
    ),
    say(
        "The summary message must be the same bytes in every request, and so must the tail. What changes has one place:"
        " behind all that has been sent before."
    ),
    say(
        "Return the summary message, the tail, and one more user message with the time, with an `origin`: "
        "no person wrote it. It is not kept, so the next request has the new time in its place."
    ),
)

SUMMARY = "1. Task: port everything to v2. 2. Done: a.py. 3. Open: b.py. 4. src/a.py, src/b.py. 5. None."
TIMES = [
    f"2026-03-0{day} {hour:02}:{minute:02}:{second:02}"
    for day, hour, minute, second in (
        (1, 10, 23, 1),
        (1, 10, 23, 21),
        (1, 10, 24, 2),
        (1, 11, 0, 3),
        (2, 0, 0, 1),
    )
]
TAIL = session()[6:]
BLOCK = 16
ALLOWED = 3 * BLOCK
"""Tokens of the last request that may be paid again: the time itself, and the block that the cache cannot fill."""


def _cache() -> BlockCache:
    return BlockCache(block=BLOCK, minimum=2 * BLOCK)


@dataclass(frozen=True)
class Case:
    """Requests one after the other: how many messages of the tail each has, and the time of each."""

    name: str
    sizes: Sequence[int]
    times: Sequence[str]


_PAID = say("From the first changed byte on, everything is paid again: the summary, and the whole tail behind it.")

CASES = (
    Case(say("twenty seconds later"), (9, 11), TIMES[:2]),
    Case(say("five requests, two days"), (5, 9, 13, 17, 21), TIMES),
)


def judge(answer: Any) -> list[Finding]:
    """What a request must hold, then one finding per series. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.stable_summary a plain function, without brackets: check.stable_summary(my_view).")
        )
    told = say("a summary, a tail of 9 messages, now={times}", times=TIMES[0])
    holds = finding(
        Case(say("what one request holds"), (), ()), answer, lambda: _holds(answer), fed=told, instead=say("messages")
    )
    return [holds, *(_judge(case, answer) for case in CASES)]


def _holds(answer: Any) -> Difference | None:
    tail = copy.deepcopy(TAIL[:9])
    view = answer(SUMMARY, tail, TIMES[0])
    if tail != TAIL[:9]:
        return Difference(
            say("the tail"),
            say("as it was"),
            say("changed"),
            say("Build a new list: the history keeps these messages."),
        )
    if not isinstance(view, list) or not all(isinstance(message, dict) for message in view):
        return Difference(
            say("what it returns"), say("a list of messages"), short(view), say("It is the request's history.")
        )
    texts = [text_of(message.get("content")) for message in view]
    if not any(SUMMARY in text for text in texts):
        return Difference(
            say("the request"), say("the summary in it"), short(texts), say("Nothing else is left of what was dropped.")
        )
    if SUMMARY not in texts[0]:
        return Difference(
            say("the first message"), say("the summary"), short(texts[0]), say("What was first stands first.")
        )
    if not any(TIMES[0] in text for text in texts):
        why = say("Without the time nothing breaks the cache, but the model shall know how late it is.")
        return Difference(say("the request"), say("{times} in it", times=TIMES[0]), short(texts), why)
    if [message for message in view if message in TAIL] != TAIL[:9]:
        return Difference(
            say("the tail"),
            say("its 9 messages in order, verbatim"),
            short(view),
            say("The tail is not yours to edit."),
        )
    if found := pairing.problems(view):
        return Difference("pairing.problems", "[]", found[0].sentence, say("A call and its results stand together."))
    added = [message for message in view if message not in TAIL]
    if any(message.get("role") != "user" or not message.get("origin") for message in added):
        why = say("An `origin` says that no person wrote it: the next split must not take it for the person's words.")
        return Difference(say("the messages that you add"), say("role user, with an origin"), short(added), why)
    return None


def _judge(case: Case, answer: Any) -> Finding:
    pairs = zip(case.sizes, case.times, strict=True)
    fed = "; ".join(say("{size} messages at {time}", size=size, time=time) for size, time in pairs)

    def run() -> Difference | None:
        cache, before = _cache(), 0
        for size, time in zip(case.sizes, case.times, strict=True):
            prompt = render([], wire(answer(SUMMARY, copy.deepcopy(TAIL[:size]), time)))
            hit = cache.admit(prompt, marks=(), at=0.0).hit
            if before - hit > ALLOWED:
                where = say("read from the cache at {time}", time=time)
                return Difference(
                    where, say("nearly all of {before} tokens", before=before), say("{hit} tokens", hit=hit), _PAID
                )
            before = len(prompt)
        return None

    return finding(case, answer, run, fed=fed, instead=say("messages"))


STEPS = 5
SO_FAR = "1. Task: read the five modules, and say when you were done. 2. Done: nothing. 3. Open: all of it."


def _story(request: dict[str, Any]) -> Message | str:
    """Read five modules, then say how late it is: by the newest time that can be seen."""
    messages = request["messages"]
    step = sum(message["role"] == "tool" for message in messages)
    if step < STEPS:
        return assistant("", call(f"call_{step + 1}", "read_module", number=step + 1))
    texts = [text_of(message.get("content")) for message in messages]
    seen = [time for time in _times(STEPS + 1) if any(time in text for text in texts)]
    return f"I was done at {seen[-1]}." if seen else "I was done, but how late it is I cannot see."


def _times(count: int) -> list[str]:
    return [f"2026-03-01 10:{23 + number // 3}:{number % 3 * 20 + 1:02}" for number in range(count)]


def turn(answer: Any) -> Turn:
    """A turn of six requests, twenty seconds apart; the answer makes what each of them shows."""
    return _start(answer, [], Simulator(_story, cache=_cache()))


def _start(answer: Any, sent: list[list[Message]], simulator: Simulator) -> Turn:
    registry = Registry()
    clock: Iterator[str] = iter(_times(STEPS + 1))

    @registry.tool(read_only=True)
    def read_module(number: int) -> str:
        """Read a module."""
        return f"module {number}: " + f"line {number} of the code; " * 40

    def view(history: list[Message]) -> list[Message]:
        made = answer(SO_FAR, copy.deepcopy(history), next(clock))
        if not isinstance(made, list):
            raise AgentLabError(say("It returned {made}, and a request needs a list of messages.", made=short(made)))
        sent.append(made)
        return sent[-1]

    return run_turn([user("Go on, please.")], simulator.client(), registry, hooks=Hooks(before_request=view))


def live(answer: Any) -> Live:
    """Run the turn, and look at what the provider read from its cache."""
    sent: list[list[Message]] = []
    simulator = Simulator(_story, cache=_cache())
    done = run_live(_start(answer, sent, simulator), sent, answer, right=f"I was done at {_times(STEPS + 1)[-1]}.")
    if not done.passed:
        return done
    prompt = sum(usage["prompt_tokens"] for usage in simulator.usages)
    read = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in simulator.usages)
    bill = say(
        "{said} The bill: {prompt:,} tokens of input, {read:,} of them read from the cache.",
        said=done.said,
        prompt=prompt,
        read=read,
    )
    return Live(2 * read > prompt, bill, done.history)


def solution(summary: str, tail: list[Message], now: str) -> list[Message]:
    first = {"role": "user", "content": f"The earlier messages, in short:\n{summary}", "origin": "compaction"}
    return [first, *tail, {"role": "user", "content": f"It is {now}.", "origin": "clock"}]


stable_summary = Exercise("stable_summary", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
