"""Retries: what is tried again, what never is, how long is waited, and that no tool runs twice."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from dataclasses import FrozenInstanceError
from typing import Any

import httpx
import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import (
    AgentLabError,
    ContextOverflow,
    ProviderRefused,
    ProviderUnavailable,
    RateLimited,
    StopRequested,
    StreamError,
)
from agentlab.interrupt import Stop
from agentlab.loop import Stopped, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.pairing import problems
from agentlab.provider import ChatClient, Retry, Retrying
from agentlab.simulator import Fault, Simulator
from agentlab.tools import Registry

HELLO = [user("Hello")]
DIALECTS = ["openai", "deepseek", "anthropic"]


class Waits(list[float]):
    """A sleep that only writes down how long it was to be."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def retrying(simulator: Simulator, **options: Any) -> tuple[Retrying, Waits, list[Retry]]:
    """A client that tries again without waiting and without chance, its waits, and what `on_retry` was told."""
    waits, told = Waits(), []
    options = {"sleep": waits, "jitter": lambda: 0.0, "on_retry": told.append, **options}
    return Retrying(simulator.client(), **options), waits, told


def failing(*faults: Fault, dialect: str = "openai", **options: Any) -> tuple[Any, Waits, list[Retry], Simulator]:
    """The error that comes out, or the message, when the answers are these faults and then "Fine."."""
    simulator = Simulator([*faults, "Fine."], dialect=dialect)
    client, waits, told = retrying(simulator, **options)

    async def main() -> Any:
        try:
            return await client.complete(HELLO)
        except AgentLabError as error:
            return error

    return run(main()), waits, told, simulator


BEFORE_A_WORD = {
    "429": Fault(status=429),
    "408": Fault(status=408),
    "500": Fault(status=500),
    "503": Fault(status=503),
    "529": Fault(status=529),
    "refused connection": Fault(refuse=True),
    "cut at once": Fault(step="Lost.", cut_at=0),
    "cut in the first event": Fault(step="Lost.", cut_at=20),
    "error at once": Fault(step="Lost.", error_after=0),
    "empty stream": Fault(step="", no_done=True, no_finish=True),
}


# ---------------------------------------------------------------- what is tried again


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", BEFORE_A_WORD)
def test_what_fails_before_a_word_is_tried_again(name: str, dialect: str) -> None:
    answer, waits, told, simulator = failing(BEFORE_A_WORD[name], dialect=dialect)
    assert answer["content"] == "Fine."
    assert waits == [1.0]
    (retry,) = told
    assert (retry.attempt, retry.of, retry.wait_s) == (1, 4, 1.0)
    first, second = simulator.requests
    assert first == second


def test_a_stall_before_the_first_byte_is_tried_again() -> None:
    simulator = Simulator([Fault(step="Lost.", stall_at=0), "Fine."])
    made = {"base_url": "http://s/v1", "model": "m", "timeout": 0.05}
    client = Retrying(ChatClient(**made, transport=simulator.transport()), sleep=Waits())
    assert run(client.complete(HELLO)) == assistant("Fine.")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_refusal_is_never_tried_again(status: int) -> None:
    error, waits, told, simulator = failing(Fault(status=status))
    assert isinstance(error, ProviderRefused)
    assert (waits, told, len(simulator.requests)) == ([], [], 1)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_overflow_is_never_tried_again(dialect: str) -> None:
    simulator = Simulator(["Fine."], dialect=dialect, context_window=50)
    client, waits, _ = retrying(simulator)
    with pytest.raises(ContextOverflow):
        run(client.complete([user("a long story " * 100)]))
    assert (waits, len(simulator.requests)) == ([], 1)


@pytest.mark.parametrize("fault", ["cut", "error", "no end"])
@pytest.mark.parametrize(
    ("kind", "dialect"),
    [(kind, dialect) for kind in ("text", "call") for dialect in DIALECTS]
    + [("reasoning", "deepseek"), ("reasoning", "anthropic")],  # OpenAI keeps its reasoning to itself
)
def test_after_a_piece_has_arrived_nothing_is_tried_again(kind: str, fault: str, dialect: str) -> None:
    steps: dict[str, Message] = {
        "text": assistant("One two three four five."),
        "call": assistant("", call("c", "look", path="a long path to a file of some kind")),
        "reasoning": {**assistant("Yes."), "reasoning_content": "a thought that goes on and on and on"},
    }
    step = steps[kind]
    sizes = len(b"".join(_bytes(step, dialect)))
    faults = {
        "cut": Fault(step=step, cut_at=sizes * 2 // 3 if kind != "reasoning" else sizes // 2),
        "error": Fault(step=step, error_after=6),
        "no end": Fault(step=step, no_finish=True, no_done=True),
    }
    simulator = Simulator([faults[fault], "Fine."], dialect=dialect)
    client, waits, told = retrying(simulator)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def main() -> Any:
        reply = client.stream(HELLO, tools)
        texts = []
        try:
            async for text in reply:
                texts.append(text)
        except (StreamError, ProviderUnavailable) as error:
            assert error.partial == reply.message()
            assert "".join(texts) == reply.message()["content"]
            return error
        finally:
            await reply.aclose()

    error = run(main())
    assert "say 'continue' to go on" in str(error)
    assert "tried" not in str(error)
    assert (waits, told, len(simulator.requests)) == ([], [], 1)


def _bytes(step: Message, dialect: str) -> Any:
    body: dict[str, Any] = {"model": "offline", "messages": HELLO, "stream": True, "max_tokens": 999}
    tool: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    if dialect == "anthropic":
        tool = {"name": "look", "input_schema": {"type": "object"}}
    return Simulator([step], dialect=dialect).respond({**body, "tools": [tool]}).chunks


def test_text_that_the_server_took_back_was_shown_all_the_same() -> None:
    """Anthropic may begin its message anew; when that breaks, too, what the person saw is not asked for again."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}
    opened = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Shown."}}
    raw = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in (start, opened, start))
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

    inner = ChatClient(base_url="http://h", model="m", dialect="anthropic", transport=httpx.MockTransport(answer))
    with pytest.raises(StreamError):
        run(Retrying(inner, sleep=Waits()).complete(HELLO))
    assert len(seen) == 1


# ---------------------------------------------------------------- how often, and how long


def test_the_last_error_comes_out_and_says_how_often_it_was_tried() -> None:
    error, waits, told, simulator = failing(*[Fault(status=500)] * 5)
    assert type(error) is ProviderUnavailable
    assert (error.status, error.body["error"]["message"] in str(error)) == (500, True)
    assert str(error).endswith("It was tried 4 times.")
    assert waits == [1.0, 2.0, 4.0]
    assert [(retry.attempt, retry.of, retry.wait_s) for retry in told] == [(1, 4, 1.0), (2, 4, 2.0), (3, 4, 4.0)]
    assert len(simulator.requests) == 4


def test_one_try_is_the_client_alone() -> None:
    error, waits, told, simulator = failing(Fault(status=500), tries=1)
    assert "tried" not in str(error)
    assert (waits, told, len(simulator.requests)) == ([], [], 1)


@given(
    st.integers(1, 12),
    st.floats(0, 10),
    st.floats(0, 40),
    st.floats(0, 1),
    st.lists(st.none() | st.integers(0, 60), min_size=11, max_size=11),
)
def test_waits_double_up_to_a_limit_and_are_never_shorter_than_asked_for(
    tries: int, base_s: float, max_s: float, jitter: float, asked: list[int | None]
) -> None:
    faults = [Fault(status=429, retry_after=seconds) for seconds in asked]
    options = {"tries": tries, "base_s": base_s, "max_s": max_s, "jitter": lambda: jitter}
    answer, waits, told, simulator = failing(*faults, **options)
    impatient = next((at for at, seconds in enumerate(asked) if (seconds or 0) > max_s), 99)
    assert len(waits) == min(impatient, tries - 1, 11) == len(simulator.requests) - 1
    assert waits == [retry.wait_s for retry in told]
    for n, wait in enumerate(waits):
        most = min(base_s * 2**n, max_s)
        least = most / 2
        assert max(least, asked[n] or 0) <= wait + 1e-9
        assert wait <= max(most, asked[n] or 0) + 1e-9
    assert isinstance(answer, RateLimited) == (min(impatient, tries - 1) < 11)


def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    error, waits, told, simulator = failing(Fault(status=429, retry_after=31))
    assert type(error) is RateLimited
    assert error.retry_after == 31
    assert str(error).endswith("Wait 31 seconds. That is longer than 30 s, the longest wait: it was not tried again.")
    assert (waits, told, len(simulator.requests)) == ([], [], 1)
    answer, waits, _, _ = failing(Fault(status=429, retry_after=30))
    assert (answer, waits) == (assistant("Fine."), [30.0])


def test_a_thousand_tries_overflow_nothing() -> None:
    answer, waits, _, _ = failing(*[Fault(status=500)] * 1100, tries=1101, base_s=1e300, max_s=5)
    assert answer == assistant("Fine.")
    assert set(waits) == {5.0}


@pytest.mark.parametrize(
    "options", [{"tries": 0}, {"base_s": -1}, {"max_s": -0.1}, {"base_s": float("nan")}, {"max_s": float("inf")}]
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(AgentLabError, match="tries of 1 or more"):
        Retrying(Simulator().client(), **options)


def test_what_on_retry_is_told() -> None:
    _, _, (retry,), _ = failing(Fault(status=429, retry_after=2), dialect="anthropic")
    assert retry.why.startswith("The provider answered 429: This request would exceed your organization's rate limit")
    assert len(retry.why) == 200
    assert retry.sentence == f"Try 1 of 4 failed; the next one in 2 s. {retry.why}"
    assert retry.usage is None
    with pytest.raises(FrozenInstanceError):
        retry.attempt = 2  # type: ignore[misc]


def test_the_reason_is_one_printable_line() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, json={"error": {"message": "bad\x1b[2J\ttimes\nsecond line"}})

    told: list[Retry] = []
    inner = ChatClient(base_url="http://h", model="m", transport=httpx.MockTransport(answer))
    with pytest.raises(ProviderUnavailable):
        run(Retrying(inner, tries=2, sleep=Waits(), on_retry=told.append).complete(HELLO))
    assert told[0].why == "The provider answered 500: bad [2J times"


def test_usage_of_a_try_that_failed_is_not_lost() -> None:
    """Anthropic reports the input when its message opens: the provider may bill it although no word came."""
    opening = len(next(_bytes(assistant("Lost."), "anthropic")))
    _, _, (retry,), _ = failing(Fault(step="Lost.", cut_at=opening), dialect="anthropic")
    assert retry.usage is not None
    assert retry.usage["input_tokens"] > 0


# ---------------------------------------------------------------- a client like any other


def test_it_looks_like_the_client_that_it_holds() -> None:
    inner = Simulator(["Fine."], dialect="deepseek").client()
    client = Retrying(inner)
    assert (client.model, client.dialect, client.base_url) == ("offline", "deepseek", "http://simulator/v1")
    assert repr(client) == f"Retrying({inner!r}, tries=4)"
    with pytest.raises(AttributeError):
        _ = client.nothing
    with pytest.raises(AttributeError):
        _ = client._key
    assert pickle.loads(pickle.dumps(Retrying(None, tries=2)))._tries == 2  # type: ignore[arg-type]


def test_a_reply_can_be_asked_at_any_time() -> None:
    simulator = Simulator([Fault(status=500), "One two."])
    client, _, _ = retrying(simulator)

    async def main() -> None:
        reply = client.stream(HELLO)
        assert (reply.message(), reply.finish_reason, reply.usage, reply.complete) == (assistant(""), None, None, False)
        assert simulator.requests == [], "nothing is sent before it is iterated"
        texts = [text async for text in reply]
        assert "".join(texts) == "One two." == reply.message()["content"]
        assert (reply.finish_reason, reply.complete) == ("stop", True)
        assert reply.usage == simulator.usages[-1]

    run(main())


def test_a_history_that_is_none_is_refused_at_once() -> None:
    client, _, _ = retrying(Simulator(["Fine."]))
    bad: Any = "Hello"
    with pytest.raises(AgentLabError, match="A history is a list"):
        client.stream(bad)


# ---------------------------------------------------------------- Stop, cancellation, closing


async def _after(seconds: float, act: Any) -> None:
    await asyncio.sleep(seconds)
    act()


def test_stop_ends_the_wait_at_once() -> None:
    async def main() -> None:
        simulator = Simulator([Fault(status=429, retry_after=3000), "Fine."])
        waiting, stop = asyncio.Event(), Stop()
        client = Retrying(simulator.client(), max_s=3600, on_retry=lambda _: waiting.set())
        reply = client.stream(HELLO, stop=stop)

        async def press() -> None:
            await waiting.wait()
            stop.request()

        pressing = asyncio.create_task(press())
        assert [text async for text in reply] == []  # the hang guard of `run` is shorter than the wait
        await pressing
        assert not reply.complete
        assert len(simulator.requests) == 1

    run(main())


def test_stop_from_on_retry_or_beforehand_sends_nothing_more() -> None:
    stop = Stop()
    client, _, told = retrying(simulator := Simulator([Fault(status=500), "Fine."]), on_retry=lambda _: stop.request())
    with pytest.raises(StopRequested):
        run(client.complete(HELLO, stop=stop))
    assert len(simulator.requests) == 1
    with pytest.raises(StopRequested):
        run(client.complete(HELLO, stop=stop))
    assert len(simulator.requests) == 1
    assert told == []


def test_a_cancellation_passes_through_the_wait() -> None:
    async def main() -> None:
        waiting = asyncio.Event()
        simulator = Simulator([Fault(status=500), "Fine."])
        client = Retrying(simulator.client(), base_s=3000, max_s=3000, on_retry=lambda _: waiting.set())
        task = asyncio.create_task(client.complete(HELLO, stop=Stop()))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(simulator.requests) == 1

    run(main())


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_leaving_early_closes_the_stream_behind_it(pieces: int) -> None:
    async def main() -> None:
        simulator = Simulator([Fault(status=500), "One two three four five."])
        client, _, _ = retrying(simulator)
        reply = client.stream(HELLO)
        texts = aiter(reply)
        seen = [await anext(texts) for _ in range(pieces)]
        await reply.aclose()
        assert reply.message() == assistant("".join(seen))
        assert len(simulator.hangups) == (pieces > 0)

    run(main())


def test_an_on_retry_that_fails_is_not_hidden() -> None:
    def broken(_: Retry) -> None:
        raise ZeroDivisionError("the screen is gone")

    client, _, _ = retrying(Simulator([Fault(status=500), "Fine."]), on_retry=broken)
    with pytest.raises(ZeroDivisionError):
        run(client.complete(HELLO))


# ---------------------------------------------------------------- in the loop

STEPS: list[Message] = [
    assistant("First.", call("a", "push", what="one")),
    assistant("", call("b", "push", what="two"), call("c", "push", what="three")),
    assistant("Done."),
]


def pushing() -> tuple[Registry, Counter[str]]:
    """A tool that must not run twice, and how often it ran for what."""
    registry, ran = Registry(), Counter[str]()

    @registry.tool(read_only=True)
    def push(what: str) -> str:
        """Push it."""
        ran[what] += 1
        return f"pushed {what}"

    return registry, ran


FAULTS = st.sampled_from(sorted(BEFORE_A_WORD)).map(BEFORE_A_WORD.__getitem__)


@given(st.lists(st.lists(FAULTS, max_size=3), min_size=3, max_size=3), st.sampled_from(DIALECTS))
def test_faults_at_each_step_run_no_tool_twice(faults: list[list[Fault]], dialect: str) -> None:
    script = [step for before, said in zip(faults, STEPS, strict=True) for step in (*before, said)]
    simulator = Simulator(script, dialect=dialect)
    client, waits, _ = retrying(simulator)
    registry, ran = pushing()
    turn = run(run_turn([user("Push.")], client, registry).run())
    assert turn.reason == "done"
    assert ran == {"one": 1, "two": 1, "three": 1}
    assert turn.history[-1]["content"] == "Done."
    assert problems(turn.history) == []
    assert len(waits) == sum(map(len, faults))
    assert len(turn.usages) == 3


@given(st.integers(0, 2), st.integers(0, 2500), st.sampled_from(DIALECTS))
def test_a_cut_at_any_byte_of_any_step_runs_no_tool_twice(at: int, byte: int, dialect: str) -> None:
    """Tried again when nothing had come; else the error comes out, and what ran before is in the history, once."""
    script: list[Any] = list(STEPS)
    script.insert(at, Fault(step=STEPS[at], cut_at=byte))
    client, waits, _ = retrying(Simulator(script, dialect=dialect))
    registry, ran = pushing()
    turn = run_turn([user("Push.")], client, registry)

    async def main() -> None:
        try:
            await turn.run()
        except (ProviderUnavailable, StreamError) as error:
            assert error.partial is not None
            assert "continue" in str(error)
            assert waits == []

    run(main())
    assert max(ran.values(), default=0) <= 1
    assert problems(turn.history) == []
    results = [message for message in turn.history if str(message.get("content")).startswith("pushed")]
    assert len(results) == sum(ran.values())


def test_stop_while_a_turn_waits_ends_it_with_all_that_was_done() -> None:
    async def main() -> None:
        waiting, stop = asyncio.Event(), Stop()
        simulator = Simulator([STEPS[0], Fault(status=429, retry_after=900), *STEPS[1:]])
        client = Retrying(simulator.client(), max_s=3600, on_retry=lambda _: waiting.set())
        registry, ran = pushing()
        turn = run_turn([user("Push.")], client, registry, stop=stop)

        async def press() -> None:
            await waiting.wait()
            stop.request()

        pressing = asyncio.create_task(press())
        events = [event async for event in turn]
        await pressing
        assert any(isinstance(event, Stopped) for event in events)
        assert turn.reason == "stopped"
        assert ran == {"one": 1}
        assert [message["role"] for message in turn.history] == ["user", "assistant", "tool"]

    run(main())


def test_after_the_last_try_the_history_can_be_sent_again() -> None:
    simulator = Simulator([STEPS[0], *[Fault(status=500)] * 4, *STEPS[1:]])
    client, _, _ = retrying(simulator)
    registry, ran = pushing()
    turn = run_turn([user("Push.")], client, registry)
    with pytest.raises(ProviderUnavailable, match="tried 4 times"):
        run(turn.run())
    assert turn.reason == "error"
    following = run(run_turn([*turn.history, user("continue")], client, registry).run())
    assert following.reason == "done"
    assert ran == {"one": 1, "two": 1, "three": 1}


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_the_wait_that_any_status_asks_for_is_kept(status: int) -> None:
    answer, waits, _, _ = failing(Fault(status=status, retry_after=7))
    assert (answer, waits) == (assistant("Fine."), [7.0])
