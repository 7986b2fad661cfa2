"""A running turn written down: whatever ends it, the resumed history is the one that it left."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.journal import Journal, replay
from agentlab.loop import Called, Finished, Steered, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.permissions import Policy
from agentlab.recorder import Recorder
from agentlab.simulator import Fault, Simulator
from agentlab.steer import SteerQueue
from agentlab.tools import Output, Registry

STORY = [
    assistant("I look.", call("a", "look", path="x"), call("a2", "look", path="y")),
    assistant("", call("a", "change", path="x")),
    "It is done.",
    "And that too.",
]


def desk() -> Registry:
    registry = Registry()

    @registry.tool(read_only=True)
    async def look(path: str) -> Output:
        return Output(f"content of {path}", f".spill/{path}.txt")

    @registry.tool
    async def change(path: str) -> str:
        raise ValueError("no")

    return registry


def types(journal: Journal) -> list[Any]:
    return [
        event["record"]["status"]
        if event["type"] == "tool_call"
        else event.get("message", {}).get("role", event["type"])
        for event in journal.events()
    ]


def test_a_turn_and_the_next_are_written_down_in_order(tmp_path: Path) -> None:
    async def go() -> None:
        client = Simulator(STORY).client()
        steer = SteerQueue()
        with Journal.create(tmp_path, {"model": "m"}) as journal:
            recorder = Recorder(journal)
            history = [{"role": "system", "content": "You are."}, user("go")]
            turn = run_turn(history, client, desk(), hooks=recorder.hooks, policy=Policy(default="allow"), steer=steer)
            async for event in turn:
                if isinstance(event, Finished) and event.result.call_id == "a2":
                    steer.put("by the way")
                if isinstance(event, Steered):
                    assert event.messages[-1] == user("by the way")
            recorder.finish(turn.history)
            assert types(journal) == [
                "session_meta", "system", "user", "assistant", "running", "running", "usage",
                "completed", "tool", "completed", "tool", "user", "assistant", "running", "usage", "failed", "tool",
                "assistant", "usage",
            ]  # fmt: skip
            session = replay(journal.events())
            assert session.history == turn.history and session.skipped == 0
            assert [(id, record["status"]) for (_, id), record in session.tool_calls.items()] == [
                ("a", "completed"), ("a2", "completed"), ("a", "failed"),
            ]  # fmt: skip
            assert session.tool_calls[4, "a"]["output_path"] == ".spill/x.txt"
            assert session.tool_calls[4, "a"]["input"] == {"path": "x"}
            assert session.usage.prompt > 0 and len(turn.usages) == 3
        with Journal.open(tmp_path, journal.id) as journal:
            resumed = replay(journal.events()).history
            recorder = Recorder(journal, resumed)
            second = await run_turn([*resumed, user("and that?")], client, desk(), hooks=recorder.hooks).run()
            recorder.finish(second.history)
            assert replay(journal.events()).history == second.history
            assert [message["content"] for message in second.history[-2:]] == ["and that?", "And that too."]

    asyncio.run(go())


@pytest.mark.parametrize("at", range(30))
def test_stop_at_any_event_leaves_the_same_history_in_the_log(at: int, tmp_path: Path) -> None:
    async def go() -> None:
        stop = Stop()
        with Journal.create(tmp_path, {}) as journal:
            recorder = Recorder(journal)
            turn = run_turn([user("go")], Simulator(STORY, chunk=40).client(), desk(), stop=stop, hooks=recorder.hooks)
            seen = 0
            async for _ in turn:
                if seen == at:
                    stop.request()
                seen += 1
            recorder.finish(turn.history)
            assert replay(journal.events()).history == turn.history
            assert all(
                it["status"] in ("completed", "rejected", "failed")
                for it in replay(journal.events()).tool_calls.values()
            )

    asyncio.run(go())


@pytest.mark.parametrize("at", range(0, 20, 2))
def test_a_turn_that_is_given_up_anywhere(at: int, tmp_path: Path) -> None:
    async def go() -> None:
        with Journal.create(tmp_path, {}) as journal:
            recorder = Recorder(journal)
            turn = run_turn([user("go")], Simulator(STORY, chunk=40).client(), desk(), hooks=recorder.hooks)
            seen = 0
            async for _ in turn:
                if seen == at:
                    break
                seen += 1
            left: list[Message] = turn.history
            recorder.finish(left)
            await turn.aclose()
            assert replay(journal.events()).history == left
            size = journal.path.stat().st_size
            recorder.finish(left)
            assert journal.path.stat().st_size == size

    asyncio.run(go())


def test_a_call_that_ended_before_the_turn_was_cancelled_has_completed(tmp_path: Path) -> None:
    async def go() -> None:
        registry = Registry()
        never = asyncio.Event()
        runs = asyncio.Event()

        @registry.tool
        async def quick() -> str:
            return "quick as that"

        @registry.tool
        async def slow() -> str:
            runs.set()
            await never.wait()
            return ""

        story = [assistant("", call("A", "quick"), call("B", "slow"))]
        with Journal.create(tmp_path, {}) as journal:
            recorder = Recorder(journal)
            client = Simulator(story).client()
            turn = run_turn([user("go")], client, registry, hooks=recorder.hooks, policy=Policy(default="allow"))
            task = asyncio.create_task(turn.run())
            await runs.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            recorder.finish(turn.history)
            session = replay(journal.events())
            assert session.history == turn.history and session.history[2]["content"] == "quick as that"
            ended = {id: (record["status"], record.get("crashed")) for (_, id), record in session.tool_calls.items()}
            assert ended == {"A": ("completed", None), "B": ("failed", True)}
            assert types(journal)[-3:] == ["completed", "tool", "tool"]

    asyncio.run(go())


def test_a_stream_that_breaks_keeps_the_half_reply(tmp_path: Path) -> None:
    async def go() -> None:
        client = Simulator([Fault(step="A rather long answer that breaks off.", cut_at=1200)], chunk=40).client()
        with Journal.create(tmp_path, {}) as journal:
            recorder = Recorder(journal)
            turn = run_turn([user("go")], client, desk(), hooks=recorder.hooks)
            with suppress(AgentLabError):
                async for event in turn:
                    assert not isinstance(event, Called)
            recorder.finish(turn.history)
            assert turn.reason == "error"
            assert replay(journal.events()).history == turn.history
            assert turn.history[0] == user("go") and turn.history[1]["content"].startswith("A ")

    asyncio.run(go())


def test_a_crash_while_a_tool_runs(tmp_path: Path) -> None:
    async def go() -> None:
        journal = Journal.create(tmp_path, {})
        recorder = Recorder(journal)
        turn = run_turn([user("go")], Simulator(STORY).client(), desk(), hooks=recorder.hooks)
        async for event in turn:
            if isinstance(event, Called):
                break
        session = replay(Journal.open(tmp_path, journal.id).events())  # nothing was told to the recorder
        assert [record.get("crashed") for record in session.tool_calls.values()] == [True, True]
        assert [message["role"] for message in session.history] == ["user", "assistant", "tool", "tool"]
        await turn.aclose()
        journal.close()

    asyncio.run(go())
