"""One turn, whole and broken at every point: what had arrived is kept, and the history can always be sent."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from clean_run import run
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import loop
from agentlab.errors import (
    AgentLabError,
    ContextOverflow,
    ProviderRefused,
    ProviderUnavailable,
    RateLimited,
    StreamError,
)
from agentlab.interrupt import Stop
from agentlab.loop import (
    Called,
    Compacted,
    Done,
    Finished,
    Hooks,
    Steered,
    Stopped,
    Text,
    Turn,
    UsageSeen,
    run_turn,
)
from agentlab.messages import Message, assistant, call, calls_of, tool, user
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE, problems
from agentlab.permissions import Policy
from agentlab.provider import ChatClient
from agentlab.simulator import Fault, Simulator, serve
from agentlab.steer import SteerQueue
from agentlab.tools import Registry
from agentlab.watchdog import LoopBudget, StopReason

ANYTHING = Policy(default="allow")
GO = [user("Look at both files, then write.")]
STORY = [
    assistant("Let me look.", call("r1", "read_file", path="a"), call("r2", "read_file", path="b")),
    assistant("", call("w1", "write_file", path="c"), call("r3", "read_file", path="c")),
    "All three files are done now.",
]


EVENTS = 23  # that a turn of this story gives


class Desk:
    """The tools of the tests, and a record of what ran: `+id` when a handler starts, `-id` when it returns."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.registry = Registry()
        self.on_run: Callable[[str], Any] = lambda path: None

        @self.registry.tool(read_only=True)
        async def read_file(path: str) -> str:
            return await self._run(path, f"text of {path}")

        @self.registry.tool
        async def write_file(path: str) -> str:
            return await self._run(path, f"wrote {path}")

    async def _run(self, path: str, output: str) -> str:
        self.log.append(f"+{path}")
        if inspect.isawaitable(pending := self.on_run(path)):
            await pending
        await asyncio.sleep(0)
        self.log.append(f"-{path}")
        return output


def turn_of(simulator: Simulator, desk: Desk, history: Sequence[Message] = GO, **options: Any) -> Turn:
    return run_turn(history, simulator.client(), desk.registry, **{"policy": ANYTHING, **options})


def whole(*args: Any, **options: Any) -> tuple[Turn, list[Any]]:
    """Run a turn to its end."""

    async def main() -> tuple[Turn, list[Any]]:
        turn = turn_of(*args, **options)
        return turn, [event async for event in turn]

    return run(main())


def said(turn: Turn) -> list[str]:
    return [message["content"] for message in turn.history if message["role"] == "assistant"]


def outline(history: Sequence[Message]) -> list[str]:
    """`assistant r1 r2`, `tool r1`, `user`, ..."""
    return [
        " ".join([message["role"], *(c["id"] for c in calls_of(message)), *filter(None, [message.get("tool_call_id")])])
        for message in history
    ]


async def check_sendable(turn: Turn, simulator: Simulator) -> None:
    """The provider takes the history, and the next turn goes on from it."""
    history = turn.history
    assert problems(history) == []
    refused = len(simulator.requests)
    simulator_says = [event async for event in turn_of(simulator, Desk(), [*history, user("Go on.")])]
    assert simulator_says[-1] == Done("done")
    assert len(simulator.requests) > refused
    sent = simulator.requests[-1]["messages"]
    assert not any("cannot see" in str(message["content"]) for message in sent), "the story lost something"


# ---------------------------------------------------------------- a whole turn


def test_a_whole_turn() -> None:
    simulator, desk = Simulator(STORY, chunk=7), Desk()
    given = copy.deepcopy(GO)
    turn, events = whole(simulator, desk, given)

    assert [type(event).__name__ for event in events if not isinstance(event, Text)] == [
        *("UsageSeen", "Called", "Called", "Finished", "Finished"),
        *("UsageSeen", "Called", "Finished", "Called", "Finished"),
        *("UsageSeen", "Done"),
    ]
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Let me look." + STORY[2]
    results = [event.result for event in events if isinstance(event, Finished)]
    assert [(r.call_id, r.status, r.output) for r in results] == [
        ("r1", "completed", "text of a"),
        ("r2", "completed", "text of b"),
        ("w1", "completed", "wrote c"),
        ("r3", "completed", "text of c"),
    ]
    assert len(events) == EVENTS
    assert turn.history == [
        *GO,
        STORY[0],
        tool("r1", "text of a"),
        tool("r2", "text of b"),
        STORY[1],
        tool("w1", "wrote c"),
        tool("r3", "text of c"),
        assistant(STORY[2]),
    ]
    assert (turn.reason, events[-1]) == ("done", Done("done"))
    assert turn.usages == simulator.usages == [event.usage for event in events if isinstance(event, UsageSeen)]
    assert turn.usage == simulator.usages[-1]
    assert len(simulator.requests) == 3
    assert all(request["tools"] == desk.registry.specs() for request in simulator.requests)
    assert given == GO


def test_run_goes_to_the_end_without_a_consumer() -> None:
    async def main() -> None:
        turn = turn_of(Simulator(STORY), Desk())
        assert (turn.reason, turn.usage, turn.history) == (None, None, GO)
        assert await turn.run() is turn
        assert turn.reason == "done"
        assert [event async for event in turn] == []  # it is over

    run(main())


def test_the_history_can_be_sent_at_every_moment_of_a_turn() -> None:
    async def main() -> None:
        simulator = Simulator(STORY, chunk=11)
        turn = turn_of(simulator, Desk())
        seen = [(problems(turn.history), len(turn.history)) async for _ in turn]
        assert all(found == [] for found, _ in seen)
        assert [length for _, length in seen] == sorted(length for _, length in seen)  # and it only grows

    run(main())


@pytest.mark.parametrize("chunk", [None, 5, 4096])
def test_how_the_bytes_are_cut_changes_nothing(chunk: int | None) -> None:
    expected, _ = whole(Simulator(STORY), Desk())
    turn, _ = whole(Simulator(STORY, chunk=chunk), Desk())
    assert turn.history == expected.history
    assert turn.usages == expected.usages


def test_a_history_that_cannot_be_sent_is_mended_first_and_never_changed() -> None:
    torn = [
        *GO,
        STORY[0],
        tool("r2", "late"),
        tool("zz", "orphan"),
        {"role": "assistant", "content": ""},
        user("Go on"),
    ]
    before = copy.deepcopy(torn)
    turn, _ = whole(Simulator(["Fine."]), Desk(), torn)
    assert torn == before
    assert problems(turn.history) == []
    assert said(turn)[-1] == "Fine."


def test_two_turns_of_one_client_do_not_disturb_each_other() -> None:
    async def main() -> None:
        simulator, desk = Simulator(lambda request: request["messages"][-1]["content"]), Desk()
        client = simulator.client()
        turns = [run_turn([user(f"word {n}")], client, desk.registry) for n in range(5)]
        turns[2].stop.request()
        await asyncio.gather(*(turn.run() for turn in turns))
        assert [turn.reason for turn in turns] == ["done", "done", "stopped", "done", "done"]
        assert [said(turn) for turn in turns] == [["word 0"], ["word 1"], [], ["word 3"], ["word 4"]]

    run(main())


DIALECTS = ["openai", "deepseek", "anthropic"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_turn_in_every_dialect(dialect: str) -> None:
    expected, _ = whole(Simulator(STORY), Desk())
    simulator = Simulator(STORY, dialect=dialect, chunk=31)
    turn, events = whole(simulator, Desk())
    assert turn.history == expected.history
    assert turn.usages == simulator.usages
    assert events[-1] == Done("done")


@pytest.mark.parametrize("after", [1, 4, 7, 9, 12, 15, 19])
@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_stop_in_every_dialect(dialect: str, after: int) -> None:
    async def main() -> None:
        simulator, desk = Simulator([*STORY, "Later."], dialect=dialect), Desk()
        turn, seen = turn_of(simulator, desk), 0
        async for _ in turn:
            seen += 1
            if seen == after:
                turn.stop.request()
        assert turn.reason == "stopped"
        truthful(turn, desk.log, sure=True)
        await check_sendable(turn, simulator)

    run(main())


# ---------------------------------------------------------------- tools in a batch


def test_neighbours_that_only_read_run_at_once_and_others_do_not() -> None:
    paths = ["r-1", "r-2", "r-3", "w-4", "w-5", "r-6", "gone", "r-7", "r-8"]
    name = {"r": "read_file", "w": "write_file", "g": "no_such_tool"}
    batch = assistant("", *(call(path, name[path[0]], path=path) for path in paths))
    desk = Desk()

    async def main() -> Turn:
        together = {"r-1": 3, "r-2": 3, "r-3": 3, "w-4": 1, "w-5": 1, "r-6": 1, "r-7": 2, "r-8": 2}
        barriers = {3: asyncio.Barrier(3), 2: asyncio.Barrier(2), 1: asyncio.Barrier(1)}
        running: set[str] = set()
        most: dict[str, int] = {}

        async def meet(path: str) -> None:
            running.add(path)
            async with barriers[together[path]]:  # opens only when they are all here at the same time
                for other in running:
                    most[other] = max(most.get(other, 0), len(running))
                await asyncio.sleep(0)
            running.discard(path)

        desk.on_run = meet
        turn = run_turn(GO, Client(batch, "Done."), desk.registry, policy=ANYTHING)
        await turn.run()
        assert {path: most[path] for path in ("w-4", "w-5", "r-6")} == {"w-4": 1, "w-5": 1, "r-6": 1}
        return turn

    turn = run(main())
    assert outline(turn.history) == ["user", "assistant " + " ".join(paths), *(f"tool {p}" for p in paths), "assistant"]
    starts = [entry[1:] for entry in desk.log if entry[0] == "+"]
    assert starts == [path for path in paths if path != "gone"]
    assert desk.log.index("-w-4") < desk.log.index("+w-5") < desk.log.index("-w-5") < desk.log.index("+r-6")


def test_results_stand_in_call_order_whoever_is_first() -> None:
    async def main() -> None:
        desk = Desk()
        second_is_done = asyncio.Event()

        async def wait(path: str) -> None:
            await second_is_done.wait() if path == "a" else second_is_done.set()

        desk.on_run = wait
        turn = await turn_of(Simulator([*STORY[:1], "Done."]), desk).run()
        assert desk.log == ["+a", "+b", "-b", "-a"]
        assert outline(turn.history)[2:4] == ["tool r1", "tool r2"]
        assert [m["content"] for m in turn.history[2:4]] == ["text of a", "text of b"]

    run(main())


def test_what_the_policy_refuses_is_told_to_the_model() -> None:
    desk = Desk()
    turn, events = whole(Simulator(STORY), desk, policy=None)
    assert [e.result.status for e in events if isinstance(e, Finished)] == [
        "completed",
        "completed",
        "rejected",
        "completed",
    ]
    assert "+c" in desk.log  # read, not written
    assert desk.log.count("+c") == 1
    assert (turn.reason, problems(turn.history)) == ("done", [])


# ---------------------------------------------------------------- Stop and Interrupt at every point


def truthful(turn: Turn, log: list[str], *, sure: bool, since: int = 0) -> None:
    """What the history says of a call agrees with what ran. `sure`: never started also means that it says so."""
    at = {"r1": "a", "r2": "b", "w1": "c"}
    results = [message for message in turn.history[since:] if message["role"] == "tool"]
    for message in results:
        path = at.get(message["tool_call_id"])
        if path and sum(other["tool_call_id"] == message["tool_call_id"] for other in results) == 1:
            if f"+{path}" in log:
                assert message["content"] != INTERRUPT_NOTE
            elif sure:
                assert message["content"] == INTERRUPT_NOTE


@pytest.mark.parametrize("after", range(EVENTS + 1))
def test_stop_at_every_event(after: int) -> None:
    async def main() -> None:
        simulator, desk, steer = Simulator([*STORY, "Later."]), Desk(), SteerQueue()
        turn = turn_of(simulator, desk, steer=steer)
        if after == 0:
            turn.stop.request()
        seen: list[Any] = []
        async for event in turn:
            seen.append(event)
            if len(seen) == after:
                turn.stop.request()
        last = after >= EVENTS  # pressed when all was over
        assert turn.reason == ("done" if last else "stopped")
        if not last:
            assert isinstance(seen[-2], Stopped)
            assert seen[-1] == Done("stopped")
            assert not any(isinstance(event, Text) for event in seen[after:])
            assert not any(isinstance(event, Called) for event in seen[after:-2]) or isinstance(seen[after - 1], Called)
        truthful(turn, desk.log, sure=True)
        printed = "".join(event.text for event in seen if isinstance(event, Text))
        assert "".join(said(turn)) == printed
        assert all(message.get("tool_call_id", "r1") in ("r1", "r2", "r3", "w1") for message in turn.history)
        await check_sendable(turn, simulator)

    run(main())


@pytest.mark.parametrize("pressed_in", ["a", "b", "c"])
def test_stop_while_a_tool_runs(pressed_in: str) -> None:
    async def main() -> None:
        simulator, desk = Simulator([*STORY, "Later."]), Desk()
        turn = turn_of(simulator, desk)

        async def press(path: str) -> None:
            if path == pressed_in:
                turn.stop.request()
                await asyncio.Event().wait()

        desk.on_run = press
        events = [event async for event in turn]
        assert events[-1] == Done("stopped")
        interrupted = {"a": "r1", "b": "r2", "c": "w1"}[pressed_in]
        noted = {m["tool_call_id"]: m["content"] for m in turn.history if m["role"] == "tool"}
        assert noted[interrupted] == UNKNOWN_NOTE
        if pressed_in == "c":
            assert noted["r3"] == INTERRUPT_NOTE
        truthful(turn, desk.log, sure=True)
        await check_sendable(turn, simulator)

    run(main())


@pytest.mark.parametrize("way", ["stop", "interrupt"])
def test_a_result_that_was_there_is_kept_when_its_neighbour_is_interrupted(way: str) -> None:
    """Case I01: of two calls one had finished; the other was running, and the next batch had not begun."""

    async def main() -> None:
        story = [assistant("", *calls_of(STORY[0]), call("w1", "write_file", path="c")), "Later."]
        simulator, desk = Simulator(story), Desk()
        turn = turn_of(simulator, desk)

        async def press(path: str) -> None:
            if path == "b":
                for _ in range(10):  # until the other one is done
                    await asyncio.sleep(0)
                turn.stop.request() if way == "stop" else task.cancel()
                await asyncio.Event().wait()

        desk.on_run = press
        task = asyncio.create_task(turn.run())
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() is (way == "interrupt")
        assert turn.history[2:] == [
            tool("r1", "text of a"),
            {**tool("r2", UNKNOWN_NOTE), "origin": "repair"},
            {**tool("w1", INTERRUPT_NOTE), "origin": "repair"},
        ]
        await check_sendable(turn, simulator)

    run(main())


def test_stop_from_another_thread_reaches_a_stalled_stream() -> None:
    async def main() -> None:
        simulator = Simulator([Fault(stall_at=900, step="one two three four five six seven eight"), "Later."])
        turn = turn_of(simulator, Desk())
        async for event in turn:
            if isinstance(event, Text) and event.text:
                threading.Timer(0.02, turn.stop.request).start()
        assert turn.reason == "stopped"
        assert said(turn)[0].startswith("one")
        assert len(simulator.hangups) == 1
        await check_sendable(turn, simulator)

    run(main())


def rounds_of_story() -> int:
    """How many rounds of the loop a whole turn takes."""

    async def main() -> int:
        task = asyncio.create_task(turn_of(Simulator(STORY), Desk()).run())
        rounds = 0
        while not task.done():
            await asyncio.sleep(0)
            rounds += 1
        return rounds

    return run(main())


def interrupt_after(rounds: int) -> bool:
    """Cancel a turn after so many rounds of the loop, and check everything. Whether it was still running."""

    async def main() -> bool:
        simulator, desk = Simulator([*STORY, "Later."]), Desk()
        turn = turn_of(simulator, desk)
        printed: list[str] = []

        async def consume() -> None:
            async with aclosing(turn):
                async for event in turn:
                    if isinstance(event, Text):
                        printed.append(event.text)

        task = asyncio.create_task(consume())
        for _ in range(rounds):
            await asyncio.sleep(0)
        running = task.cancel()
        if running:
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert turn.reason == ("interrupted" if rounds else None)  # with 0 rounds nothing had begun
        truthful(turn, desk.log, sure=False)
        assert "".join(said(turn)).startswith("".join(printed))
        await check_sendable(turn, simulator)
        return running

    return run(main())


def test_an_interrupt_at_every_moment() -> None:
    rounds = rounds_of_story()
    assert rounds > 50
    assert all(interrupt_after(at) for at in range(0, rounds - 2, 3))


@pytest.mark.soak
def test_an_interrupt_at_really_every_moment() -> None:
    assert [interrupt_after(at) for at in range(rounds_of_story() + 5)].count(True) > 50


def test_a_time_limit_around_a_turn_is_a_time_limit() -> None:
    async def main() -> None:
        simulator = Simulator([Fault(stall_at=700, step="one two three"), "Later."])
        turn = turn_of(simulator, Desk())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await turn.run()
        assert turn.reason == "interrupted"
        await check_sendable(turn, simulator)

    run(main())


@pytest.mark.parametrize("after", range(1, EVENTS))
def test_a_consumer_that_leaves_early_closes_everything(after: int) -> None:
    async def main() -> None:
        simulator, desk = Simulator([*STORY, "Later."]), Desk()
        turn = turn_of(simulator, desk)
        seen = 0
        async for _ in turn:
            seen += 1
            if seen == after:
                break
        await turn.aclose()
        await turn.aclose()
        assert turn.reason in ("interrupted", "done")
        truthful(turn, desk.log, sure=True)
        await check_sendable(turn, simulator)

    run(main())


def test_a_turn_can_be_closed_before_it_began() -> None:
    async def main() -> None:
        turn = turn_of(Simulator(STORY), Desk())
        await turn.aclose()
        assert turn.history == GO

    run(main())


def test_a_second_stop_belongs_to_the_second_turn() -> None:
    async def main() -> None:
        simulator = Simulator(["one two three", "four five six", "seven"])
        stop = Stop()
        first = turn_of(simulator, Desk(), stop=stop)
        assert first.stop is stop
        async for event in first:
            if isinstance(event, Text):
                stop.request()
        second = await turn_of(simulator, Desk(), [*first.history, user("again")]).run()
        assert (first.reason, second.reason) == ("stopped", "done")
        assert not second.stop.requested

    run(main())


# ---------------------------------------------------------------- what the provider does wrong


class Client:
    """The smallest client: replies from a list, each an assistant message, a text or an error. No HTTP at all."""

    def __init__(self, *replies: Message | str | Exception, finish: str | None = None) -> None:
        self.replies = list(replies)
        self.finish = finish
        self.views: list[Any] = []

    def stream(self, history: Any, tools: Any = (), stop: Any = None) -> Any:
        self.views.append(copy.deepcopy(list(history)))
        return _Reply(self.replies.pop(0) if self.replies else "The end.", self.finish)


class _Reply:
    usage = None

    def __init__(self, reply: Any, finish: str | None) -> None:
        self.reply = assistant(reply) if isinstance(reply, str) else reply
        self.finish_reason = finish
        self.texts = self._read()

    async def _read(self) -> AsyncIterator[str]:
        if isinstance(self.reply, Exception):
            raise self.reply
        yield self.reply["content"]

    def __aiter__(self) -> AsyncIterator[str]:
        return self.texts

    def message(self) -> Message:
        return assistant("") if isinstance(self.reply, Exception) else self.reply

    async def aclose(self) -> None:
        await self.texts.aclose()  # type: ignore[attr-defined]


SAYS = "one two three four five six seven eight nine ten"
BROKEN = {
    "cut": (Fault(cut_at=2000, step=SAYS), ProviderUnavailable, True),
    "cut before the first byte": (Fault(cut_at=0, step=SAYS), ProviderUnavailable, False),
    "error inside": (Fault(error_after=4, step=SAYS), StreamError, True),
    "no end": (Fault(no_done=True, no_finish=True, step=SAYS), StreamError, True),
    "stall": (Fault(stall_at=2000, step=SAYS), ProviderUnavailable, True),
    "500": (Fault(status=500), ProviderUnavailable, False),
    "503": (Fault(status=503), ProviderUnavailable, False),
    "429": (Fault(status=429, retry_after=2), RateLimited, False),
    "401": (Fault(status=401), ProviderRefused, False),
    "refused": (Fault(refuse=True), ProviderUnavailable, False),
}


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("name", BROKEN)
def test_an_error_of_the_provider_keeps_what_had_arrived(name: str, before: int) -> None:
    fault, kind, arrives = BROKEN[name]
    story = outline(whole(Simulator(STORY), Desk())[0].history)

    async def main() -> None:
        simulator, desk = Simulator([*STORY[:before], fault, "Later."], chunk=50), Desk()
        client = ChatClient(
            base_url="http://simulator/v1",
            model="m",
            transport=simulator.transport(),
            timeout=0.03 if name == "stall" else 5,
        )
        turn = run_turn(GO, client, desk.registry, policy=ANYTHING)
        printed = ""
        with pytest.raises(AgentLabError) as caught:
            async for event in turn:
                if isinstance(event, Text) and len(turn.usages) == before:
                    printed += event.text
        assert type(caught.value) is kind
        assert turn.reason == "error"
        assert bool(printed) is arrives
        assert SAYS.startswith(printed)
        partial = caught.value.partial  # type: ignore[attr-defined]
        assert partial == (assistant(printed) if arrives else None)
        assert outline(turn.history) == [*story[: (1, 4, 7)[before]], *(["assistant"] * arrives)]
        if arrives:
            assert turn.history[-1] == assistant(printed)
        if name == "429":
            assert caught.value.retry_after == 2  # type: ignore[attr-defined]
        await check_sendable(turn, simulator)

    run(main())


def served(*blocks: bytes, status: int = 200, kind: str = "text/event-stream") -> ChatClient:
    """A client whose every request is answered with these bytes."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"content-type": kind}, content=b"".join(blocks))

    return ChatClient(base_url="http://elsewhere/v1", model="m", transport=httpx.MockTransport(answer))


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}).encode() + b"\n\n"
    )


def opened(arguments: str, id: str = "w1", name: str = "write_file") -> bytes:
    return delta(tool_calls=[{"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "ending",
    [b"data: {broken\n\n", b"data: [1]\n\n", b'data: {"choices": 7}\n\n', b'data: {"error": "overloaded"}\n\n', b""],
)
def test_nonsense_in_the_stream_is_an_error_that_keeps_the_text(ending: bytes) -> None:
    async def main() -> None:
        desk = Desk()
        turn = run_turn(
            GO, served(delta(content="Half a"), opened('{"path":"c"}'), ending), desk.registry, policy=ANYTHING
        )
        with pytest.raises(StreamError) as caught:
            await turn.run()
        assert caught.value.partial is not None
        assert caught.value.partial["content"] == "Half a"
        assert desk.log == []
        assert outline(turn.history) == ["user", "assistant w1", "tool w1"]
        assert turn.history[-1]["content"] == INTERRUPT_NOTE
        assert problems(turn.history) == []

    run(main())


@pytest.mark.parametrize("limit", range(1, 26))
def test_a_reply_cut_at_its_length_limit_runs_nothing(limit: int) -> None:
    """Case I05 and more: however much of a call had arrived, and even if it looks whole, it is not run."""

    async def main() -> None:
        story = assistant("Now I write.", call("w1", "write_file", path="c"), call("w2", "write_file", path="d"))
        simulator, desk = Simulator(lambda request: story), Desk()
        client = ChatClient(
            base_url="http://s/v1", model="m", transport=simulator.transport(), options={"max_completion_tokens": limit}
        )
        turn = run_turn(GO, client, desk.registry, policy=ANYTHING, budget=LoopBudget(1))
        events = [event async for event in turn]
        results = [event.result for event in events if isinstance(event, Finished)]
        assert desk.log == []
        assert {result.status for result in results} <= {"failed"}
        assert not any(isinstance(event, Called) for event in events)
        assert turn.reason == ("budget" if results else "length")
        assert problems(turn.history) == []
        assert [m["content"] for m in turn.history if m["role"] == "tool"] == [r.output for r in results]

    run(main())


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_call_that_looks_whole_in_a_reply_that_was_cut_off_is_not_run(finish: str) -> None:
    async def main() -> None:
        desk = Desk()
        client = Client(assistant("", call("w1", "write_file", path="c")), finish=finish)
        turn = run_turn(GO, client, desk.registry, policy=ANYTHING)
        await turn.run()
        assert desk.log == []
        assert "cut off" in turn.history[2]["content"]
        assert turn.history[2].get("origin") is None
        assert turn.reason == finish  # of the second reply, which was only text

    run(main())


def test_arguments_without_their_end_are_not_run_even_when_the_model_says_that_it_is_done() -> None:
    async def main() -> None:
        desk = Desk()
        turn = run_turn(
            GO,
            served(opened('{"path":"c'), delta("tool_calls"), b"data: [DONE]\n\n"),
            desk.registry,
            policy=ANYTHING,
            budget=LoopBudget(1),
        )
        results = [event.result async for event in turn if isinstance(event, Finished)]
        assert [(r.status, "not valid JSON" in r.output) for r in results] == [("failed", True)]
        assert desk.log == []
        assert turn.history[1]["tool_calls"][0]["function"]["arguments"] == "{}"  # what a provider takes

    run(main())


# ---------------------------------------------------------------- words slipped in


def test_words_typed_while_tools_run_go_behind_the_last_result() -> None:
    async def main() -> None:
        simulator, desk, steer = Simulator([*STORY[:2], "Yes, in French."]), Desk(), SteerQueue()
        desk.on_run = lambda path: steer.put(f"words typed in {path}") if path in ("a", "b") else None
        turn = turn_of(simulator, desk, steer=steer)
        events = [event async for event in turn]
        words = [user("words typed in a"), user("words typed in b")]
        assert [event.messages for event in events if isinstance(event, Steered)] == [words]
        assert outline(turn.history)[:6] == ["user", "assistant r1 r2", "tool r1", "tool r2", "user", "user"]
        assert turn.history[4:6] == words  # a person's words: no origin
        assert simulator.requests[1]["messages"][-2:] == words
        assert len(steer) == 0

    run(main())


def test_words_typed_during_the_last_reply_start_another_step() -> None:
    async def main() -> None:
        simulator, steer = Simulator(["One.", "Two."]), SteerQueue()
        turn = turn_of(simulator, Desk(), steer=steer)
        async for event in turn:
            if isinstance(event, Text) and not simulator.requests[1:]:
                steer.put("and now?") if not len(steer) else None
        assert outline(turn.history) == ["user", "assistant", "user", "assistant"]
        assert (said(turn), turn.reason) == (["One.", "Two."], "done")

    run(main())


def test_words_wait_for_the_next_turn_after_stop() -> None:
    async def main() -> None:
        simulator, steer = Simulator(["One two three.", "Two.", "Three."]), SteerQueue()
        turn = turn_of(simulator, Desk(), steer=steer)
        async for event in turn:
            if isinstance(event, Text):
                steer.put("later")
                turn.stop.request()
        assert (turn.reason, len(steer)) == ("stopped", 1)
        assert outline(turn.history) == ["user", "assistant"]
        following = await turn_of(simulator, Desk(), [*turn.history, user("Go on.")], steer=steer).run()
        assert following.history[-2] == user("later")
        assert len(steer) == 0

    run(main())


# ---------------------------------------------------------------- hooks


def both(function: Callable[[Any], Any]) -> list[Callable[[Any], Any]]:
    """A plain hook and the same one as an async function."""

    async def asynchronous(value: Any) -> Any:
        await asyncio.sleep(0)
        return function(value)

    return [function, asynchronous]


def test_before_request_shapes_what_is_sent_and_not_what_is_kept() -> None:
    note = {"role": "system", "content": "Be short."}
    for hook in both(lambda history: [note, *history]):
        simulator = Simulator(STORY)
        turn, events = whole(simulator, Desk(), hooks=Hooks(before_request=hook))
        assert all(request["messages"][0] == note for request in simulator.requests)
        assert all(message["role"] != "system" for message in turn.history)
        assert not any(isinstance(event, Compacted) for event in events)


def test_a_view_with_fewer_messages_is_announced() -> None:
    history = [user("old"), assistant("old"), *GO]
    for hook in both(lambda history: history[-1:]):
        client = Client("Fine.")

        async def main(client: Client = client, hook: Any = hook) -> Turn:
            turn = run_turn(history, client, Registry(), hooks=Hooks(before_request=hook))
            events = [event async for event in turn]
            assert events[0] == Compacted(3, 1)
            return turn

        assert run(main()).history == [*history, assistant("Fine.")]
        assert client.views == [GO]


def test_after_message_decides_what_is_kept() -> None:
    for hook in both(lambda message: {**message, "content": message["content"].upper()}):
        turn, _ = whole(Simulator(lambda request: "quiet"), Desk(), hooks=Hooks(after_message=hook))
        assert said(turn) == ["QUIET"]


def test_after_results_decides_what_is_kept() -> None:
    seen: list[Any] = []

    def shorten(results: Any) -> Any:
        seen.append([result.call_id for result in results])
        return [replace(result, output=result.output[:4]) for result in results]

    for hook in both(shorten):
        seen.clear()
        simulator = Simulator(STORY)
        turn, _ = whole(simulator, Desk(), hooks=Hooks(after_results=hook))
        assert seen == [["r1", "r2"], ["w1", "r3"], []]
        assert [m["content"] for m in turn.history if m["role"] == "tool"] == ["text", "text", "wrot", "text"]
        assert simulator.requests[1]["messages"][-1]["content"] == "text"


def test_on_usage_only_looks() -> None:
    seen: list[Any] = []
    for hook in both(seen.append):
        seen.clear()
        turn, _ = whole(Simulator(STORY), Desk(), hooks=Hooks(on_usage=hook))
        assert seen == turn.usages
        assert len(seen) == 3


def test_a_hook_that_returns_nothing_has_only_looked() -> None:
    seen: list[Any] = []
    for hook in both(seen.append):
        looks = Hooks(before_request=hook, after_message=hook, after_results=hook, on_usage=hook)
        turn, _ = whole(Simulator(STORY), Desk(), hooks=looks)
        assert turn.history == whole(Simulator(STORY), Desk())[0].history
        assert len(seen) == 12
        seen.clear()


@pytest.mark.parametrize("name", ["before_request", "after_message", "after_results", "on_usage"])
def test_a_hook_that_raises_ends_the_turn_and_loses_nothing(name: str) -> None:
    async def main() -> None:
        calls: list[Any] = []

        def hook(value: Any) -> Any:
            calls.append(value)
            if len(calls) == 2:
                raise LookupError("the hook broke")
            return value

        simulator, desk = Simulator([*STORY, "Later."]), Desk()
        turn = turn_of(simulator, desk, hooks=Hooks(**{name: hook}))
        with pytest.raises(LookupError, match="the hook broke"):
            await turn.run()
        assert turn.reason == "error"
        if name == "after_results":  # all had run, and the results are there
            assert [m["content"] for m in turn.history if m["role"] == "tool"][-2:] == ["wrote c", "text of c"]
        truthful(turn, desk.log, sure=True)
        await check_sendable(turn, simulator)

    run(main())


def test_a_readers_own_repair_stands_in_for_ours() -> None:
    torn = [*GO, STORY[0], tool("r2", "late")]
    for hook in both(lambda history: [message for message in history if message["role"] == "user"]):
        client = Client("Fine.")

        async def main(client: Client = client, hook: Any = hook) -> Turn:
            return await run_turn(torn, client, Registry(), hooks=Hooks(repair=hook)).run()

        turn = run(main())
        assert client.views == [GO]
        assert problems(turn.history) == []  # what is kept is mended by ours, whatever the reader's did
        assert said(turn) == ["Let me look.", "Fine."]


def test_a_repair_that_does_nothing_meets_the_providers_own_refusal() -> None:
    async def main() -> None:
        turn = turn_of(Simulator(STORY), Desk(), [*GO, STORY[0]], hooks=Hooks(repair=lambda history: None))
        with pytest.raises(ProviderRefused, match="must be followed by tool messages"):
            await turn.run()
        assert (turn.reason, problems(turn.history)) == ("error", [])

    run(main())


LONG = [user("word " * 40), assistant("word " * 40), user("word " * 40), assistant("Yes."), user("And now?")]


def test_on_overflow_gets_the_view_and_sends_a_shorter_one() -> None:
    for hook in both(lambda view: view[2:]):
        simulator = Simulator(lambda request: "Fits.", context_window=200)
        turn, events = whole(simulator, Desk(), LONG, hooks=Hooks(on_overflow=hook))
        assert [event for event in events if isinstance(event, Compacted)] == [Compacted(5, 3)]
        assert [len(request["messages"]) for request in simulator.requests] == [5, 3]
        assert turn.history == [*LONG, assistant("Fits.")]  # the log is whole
        assert turn.reason == "done"


@pytest.mark.parametrize(
    ("hook", "requests", "asked"),
    [
        (lambda view: view[1:], 3, 2),  # shorter each time, never short enough: bounded
        (lambda view: view, 1, 1),
        (lambda view: copy.deepcopy(view), 1, 1),
        (lambda view: None, 1, 1),
        (lambda view: [], 1, 1),
        (None, 1, 0),
    ],
)
def test_tries_after_an_overflow_are_bounded(hook: Any, requests: int, asked: int) -> None:
    asked_for: list[Any] = []

    def counting(view: Any) -> Any:
        asked_for.append(view)
        return hook(view)

    async def main() -> None:
        simulator = Simulator(lambda request: "Never.", context_window=9)
        turn = turn_of(simulator, Desk(), LONG, hooks=Hooks(on_overflow=counting if hook else None))
        with pytest.raises(ContextOverflow, match="compact"):
            await turn.run()
        assert (len(simulator.requests), len(asked_for)) == (requests, asked)
        assert (turn.reason, turn.history) == ("error", LONG)

    run(main())


def test_each_step_has_its_own_tries() -> None:
    overflow = ContextOverflow("too long")
    client = Client(overflow, overflow, STORY[0], overflow, overflow, "Done.")

    async def main() -> Turn:
        return await run_turn(
            GO, client, Desk().registry, hooks=Hooks(on_overflow=lambda view: [*view, user(f"shorter {len(view)}")])
        ).run()

    assert run(main()).reason == "done"
    assert len(client.views) == 6


# ---------------------------------------------------------------- how long a turn may go on


def test_a_used_up_budget_ends_the_turn_and_says_why() -> None:
    for steps in range(4):
        again = lambda request: assistant("", call(f"r{len(request['messages'])}", "read_file", path="a"))  # noqa: E731
        simulator = Simulator(again)
        turn, events = whole(simulator, Desk(), budget=LoopBudget(steps))
        assert len(simulator.requests) == steps
        assert turn.reason == "budget"
        assert events[-1] == Done("budget", LoopBudget(steps).exhausted().message)
        assert problems(turn.history) == []
        assert turn.history[-1]["role"] == ("tool" if steps else "user")


def test_a_turn_that_ends_with_its_last_step_is_done() -> None:
    turn, _ = whole(Simulator(STORY), Desk(), budget=LoopBudget(3))
    assert turn.reason == "done"


class Worried(LoopBudget):
    """Always has a reason to stop."""

    recoverable = True

    def record(self, results: Any) -> StopReason:
        super().record(results)
        return StopReason("worried", "This leads nowhere.", recoverable=self.recoverable)


def test_a_recoverable_reason_gets_one_nudge() -> None:
    simulator = Simulator(STORY)
    turn, events = whole(simulator, Desk(), budget=Worried())
    assert [m for m in turn.history if m.get("origin") == "watchdog"] == [turn.history[4]]
    assert "origin" not in simulator.requests[1]["messages"][-1]
    assert "leads nowhere" in simulator.requests[1]["messages"][-1]["content"]
    assert (turn.reason, events[-1]) == ("worried", Done("worried", "This leads nowhere."))
    assert len(simulator.requests) == 2


def test_another_reason_ends_the_turn_at_once_but_a_finished_one_is_done() -> None:
    stubborn = Worried()
    stubborn.recoverable = False
    turn, _ = whole(Simulator(STORY), Desk(), budget=stubborn)
    assert (turn.reason, len(turn.usages)) == ("worried", 1)
    turn, _ = whole(Simulator(["Fine."]), Desk(), budget=stubborn)
    assert turn.reason == "done"


# ---------------------------------------------------------------- a reader's own assembler


class Learned:
    """As a reader may write one: just enough for well-behaved streams."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.ended = False
        self.text = ""
        self.calls: dict[int, Any] = {}

    @property
    def complete(self) -> bool:
        return self.ended

    def feed(self, event: dict[str, Any]) -> str:
        text = ""
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            for piece in choice["delta"].get("tool_calls", []):
                made = self.calls.setdefault(
                    piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                made["id"] += piece.get("id", "")
                for key in ("name", "arguments"):
                    made["function"][key] += piece["function"].get(key) or ""
        self.usage = event.get("usage") or self.usage
        self.text += text
        return text

    def done(self) -> None:
        self.ended = True

    def message(self) -> Message:
        return assistant(self.text, *self.calls.values())


def learned(simulator: Simulator, assembler: Callable[[], Any]) -> ChatClient:
    return ChatClient(base_url="http://s/v1", model="m", transport=simulator.transport(), assembler=assembler)


def test_a_readers_own_assembler_runs_the_agent() -> None:
    async def main() -> Turn:
        return await run_turn(GO, learned(Simulator(STORY, chunk=5), Learned), Desk().registry, policy=ANYTHING).run()

    turn = run(main())
    assert turn.history == whole(Simulator(STORY), Desk())[0].history
    assert len(turn.usages) == 3


@pytest.mark.parametrize(
    "broken",
    [
        [{"id": "x", "type": "function"}],
        [{"type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"}'}}],
        [{"id": None, "type": "function", "function": {"name": "read_file", "arguments": {"path": "a"}}}],
        [{"id": "x", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"'}}],
        [{"id": "x", "function": {"name": None}}, "no call at all"],
        [{"id": "x", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"}'}}] * 2,
        "no list",
    ],
)
def test_calls_of_any_shape_leave_a_history_that_can_be_sent(broken: Any) -> None:
    class Half(Learned):
        def message(self) -> Message:
            message = super().message()
            return message if not calls_of(message) else {**message, "tool_calls": broken}

    async def main() -> None:
        simulator = Simulator(lambda request: STORY[0] if len(request["messages"]) == 1 else "Well.")
        turn = await run_turn(GO, learned(simulator, Half), Desk().registry, budget=LoopBudget(3)).run()
        assert problems(turn.history) == []
        assert turn.reason == "done"

    run(main())


# ---------------------------------------------------------------- over a real socket


@contextmanager
def socket_client(simulator: Simulator, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve(simulator) as server:
        yield ChatClient(base_url=server.url, model="m", **options)


def test_the_same_turn_over_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = whole(Simulator(STORY), Desk())
    simulator, desk = Simulator(STORY, chunk=13), Desk()
    with socket_client(simulator, monkeypatch) as client:
        turn = run(run_turn(GO, client, desk.registry, policy=ANYTHING).run())
    assert turn.history == expected.history
    assert turn.usages == expected.usages
    assert simulator.hangups == []


@pytest.mark.parametrize("way", ["stop", "interrupt", "leave"])
def test_the_server_sees_that_the_client_hangs_up(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator([" ".join(["word"] * 2000), "Later."], pace=0.005)

    async def main(client: ChatClient) -> None:
        turn = run_turn(GO, client, Desk().registry)

        async def consume() -> None:
            async with aclosing(turn):
                seen = 0
                async for event in turn:
                    seen += isinstance(event, Text)
                    if seen == 3 and way == "stop":
                        turn.stop.request()
                    if seen == 3 and way == "leave":
                        break
                    if seen == 3 and way == "interrupt":
                        seen += 1
                        asyncio.get_running_loop().call_later(0.02, task.cancel)

        task = asyncio.create_task(consume())
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() is (way == "interrupt")
        for _ in range(500):
            if simulator.hangups:
                break
            await asyncio.sleep(0.01)
        (hangup,) = simulator.hangups
        assert hangup.produced < hangup.total
        assert said(turn)[0].startswith("word word word")
        assert problems(turn.history) == []

    with socket_client(simulator, monkeypatch) as client:
        run(main(client))


def test_stop_reaches_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator([Fault(stall_at=0, step="never")])

    async def main(client: ChatClient) -> None:
        turn = run_turn(GO, client, Desk().registry)
        asyncio.get_running_loop().call_later(0.1, turn.stop.request)
        await turn.run()
        assert (turn.reason, turn.history) == ("stopped", GO)

    with socket_client(simulator, monkeypatch) as client:
        run(main(client))


@pytest.mark.soak
@pytest.mark.parametrize("way", ["stop", "interrupt"])
def test_an_end_at_many_moments_over_a_socket(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = []
    for moment in range(60):
        simulator = Simulator([*STORY, "Later."], pace=0.001)

        async def main(client: ChatClient, moment: int = moment) -> Turn:
            turn = run_turn(GO, client, Desk().registry, policy=ANYTHING)
            task = asyncio.create_task(turn.run())
            end = turn.stop.request if way == "stop" else task.cancel
            asyncio.get_running_loop().call_later(moment * 0.003, end)
            await asyncio.gather(task, return_exceptions=True)
            return turn

        with socket_client(simulator, monkeypatch) as client:
            turn = run(main(client))
        assert problems(turn.history) == []
        reasons.append(turn.reason)
    assert set(reasons) <= {"stopped", "interrupted", "done"}
    assert "done" not in reasons[:10]


# ---------------------------------------------------------------- one page


def test_the_loop_is_one_page() -> None:
    """A reader steps through all of it without scrolling. What does not fit belongs into a hook, not into the loop."""
    lines = [line for line in inspect.getsource(loop._steps).splitlines() if line.strip()]
    assert len(lines) <= 75


# ---------------------------------------------------------------- chaos


faults = st.sampled_from(
    [
        Fault(cut_at=1500, step=SAYS),
        Fault(error_after=3, step=SAYS),
        Fault(status=500),
        Fault(status=429),
        Fault(refuse=True),
        Fault(no_done=True, no_finish=True, step=SAYS),
        Fault(cut_at=2500, step=STORY[0]),
        Fault(error_after=6, step=STORY[1]),
    ]
)


def survive(script: list[Any], chunk: int, seed: int) -> None:
    """A session of turns against a broken provider, with Stop, Interrupt and words at random moments."""

    async def main() -> None:
        dice = random.Random(seed)
        simulator, history, steer = Simulator(script, chunk=chunk), list(GO), SteerQueue()
        client = ChatClient(base_url="http://s/v1", model="m", transport=simulator.transport(), timeout=5)
        for _ in range(6):
            desk = Desk()
            turn = run_turn(history, client, desk.registry, steer=steer, policy=ANYTHING)

            def interrupt() -> None:
                task.cancel()  # noqa: B023 -- called in this round

            actions: list[Callable[[], Any]] = [
                turn.stop.request,
                lambda: steer.put("words"),
                interrupt,
                lambda: 0,
            ]

            async def consume(turn: Turn = turn) -> None:
                async with aclosing(turn):
                    await turn.run()

            task = asyncio.create_task(consume())
            for _ in range(dice.randrange(80)):
                await asyncio.sleep(0)
            dice.choice(actions)()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert outcome is None or isinstance(outcome, AgentLabError | asyncio.CancelledError), repr(outcome)
            assert not isinstance(outcome, ProviderRefused), outcome  # the only thing that would be our fault
            assert problems(turn.history) == []
            truthful(turn, desk.log, sure=False, since=len(history))
            grown = turn.history
            assert grown[: len(history)] == history
            history = [*grown, user("Go on.")]
        assert not any("cannot see" in str(message["content"]) for message in history)

    run(main())


scripts = st.lists(faults | st.sampled_from(STORY), min_size=3, max_size=10)


@settings(max_examples=8)
@given(scripts, st.integers(40, 400), st.integers(0, 2**32))
def test_a_session_survives(script: list[Any], chunk: int, seed: int) -> None:
    survive(script, chunk, seed)


@pytest.mark.soak
@settings(max_examples=300)
@given(scripts, st.integers(40, 400), st.integers(0, 2**32))
def test_many_sessions_survive(script: list[Any], chunk: int, seed: int) -> None:
    survive(script, chunk, seed)


# What builders met


class Odd(BaseException):
    pass


@pytest.mark.parametrize("first", ["fast", "boom"])
def test_a_handler_that_raises_more_than_an_exception_takes_no_neighbour_along(first: str) -> None:
    registry, done = Registry(), asyncio.Event()

    @registry.tool(read_only=True)
    async def fast() -> str:
        done.set()
        return "FAST RESULT"

    @registry.tool(read_only=True)
    async def boom() -> str:
        await done.wait()
        raise Odd("hm")

    names = ["fast", "boom"] if first == "fast" else ["boom", "fast"]
    script = [assistant("", *[call(name, name) for name in names])]
    turn = run_turn(GO, Simulator(script).client(), registry)
    with pytest.raises(BaseExceptionGroup):
        run(turn.run())
    contents = {m["tool_call_id"]: m["content"] for m in turn.history if m["role"] == "tool"}
    assert contents == {"fast": "FAST RESULT", "boom": UNKNOWN_NOTE}


def test_a_hook_may_not_drop_a_result() -> None:
    desk = Desk()
    turn = run_turn(GO, Simulator(STORY).client(), desk.registry, hooks=Hooks(after_results=lambda results: []))
    with pytest.raises(AgentLabError, match="one result for each"):
        run(turn.run())
    assert problems(turn.history) == []
    assert "text of a" in json.dumps(turn.history), "what ran is kept"


@pytest.mark.parametrize("history", ["hi", {"role": "user", "content": "hi"}])
def test_what_is_no_history_starts_no_turn(history: Any) -> None:
    with pytest.raises(AgentLabError, match="list of messages"):
        run_turn(history, Simulator(["x"]).client(), Registry())


def test_an_empty_reply_is_said_to_be_one() -> None:
    client = ChatClient(
        base_url="http://s/v1",
        model="m",
        transport=httpx.MockTransport(
            lambda _: httpx.Response(200, content=b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"})
        ),
    )

    async def main() -> list[Any]:
        return [event async for event in run_turn([user("hi")], client, Registry())]

    assert run(main())[-1] == Done("done", "The model ended without a word.")


def test_plain_tools_that_hang_after_stop_keep_no_other_from_starting() -> None:
    registry, release = Registry(), threading.Event()

    @registry.tool(read_only=True)
    def hang() -> str:
        release.wait(60)
        return "late"

    @registry.tool(read_only=True)
    def quick() -> str:
        return "quick"

    async def main() -> str:
        for _ in range(40):
            stop = Stop()
            asyncio.get_running_loop().call_later(0.001, stop.request)
            assert (await registry.dispatch(call("h", "hang"), stop=stop)).status == "interrupted"
        return (await registry.dispatch(call("q", "quick"))).output

    try:
        assert run(main()) == "quick"
    finally:
        release.set()


def test_stop_cuts_off_a_hook_that_waits_before_a_request() -> None:
    async def summarise(history: list[Message]) -> None:
        await asyncio.sleep(3600)

    desk = Desk()

    async def main() -> Turn:
        turn = run_turn(GO, Simulator(STORY).client(), desk.registry, hooks=Hooks(before_request=summarise))
        asyncio.get_running_loop().call_later(0.01, turn.stop.request)
        return await turn.run()

    turn = run(main())
    assert (turn.reason, turn.history) == ("stopped", GO)


def test_stop_lets_a_hook_that_writes_something_down_finish() -> None:
    written: list[Message] = []

    async def journal(message: Message) -> None:
        await asyncio.sleep(0.05)
        written.append(message)

    async def main() -> Turn:
        turn = run_turn(GO, Simulator(["Hello."]).client(), Registry(), hooks=Hooks(after_message=journal))
        asyncio.get_running_loop().call_later(0.02, turn.stop.request)
        return await turn.run()

    assert run(main()).reason == "stopped"
    assert [message["content"] for message in written] == ["Hello."]


def test_a_question_that_was_never_answered_started_nothing() -> None:
    async def ask(tool: Any, input: dict[str, Any]) -> bool:
        await asyncio.sleep(3600)
        return True

    desk = Desk()
    script = [assistant("", call("w1", "write_file", path="c"))]
    turn = run_turn(GO, Simulator(script).client(), desk.registry, policy=Policy(ask=ask))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await turn.run()

    run(main())
    assert turn.history[-1]["content"] == INTERRUPT_NOTE
    assert desk.log == []
