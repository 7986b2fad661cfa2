"""The agent owns one conversation, turn after turn."""

from __future__ import annotations

import asyncio

import pytest
from clean_run import run

from agentlab.agent import Agent
from agentlab.errors import AgentLabError
from agentlab.loop import Text
from agentlab.messages import assistant, call, user
from agentlab.pairing import problems
from agentlab.simulator import Simulator
from agentlab.tools import Registry


def test_the_history_grows_turn_by_turn_behind_one_system_prompt() -> None:
    simulator = Simulator(["Hello Ada.", "Ada, as you said."])
    agent = Agent(simulator.client(), system="Be short.")
    run(agent.send("I am Ada.").run())
    run(agent.send("Who am I?").run())
    assert [message["content"] for message in agent.history] == [
        "Be short.",
        "I am Ada.",
        "Hello Ada.",
        "Who am I?",
        "Ada, as you said.",
    ]
    assert [request["messages"][0] for request in simulator.requests] == [
        {"role": "system", "content": "Be short."}
    ] * 2


def test_a_registry_that_is_filled_later_is_the_same_registry() -> None:
    registry = Registry()
    simulator = Simulator([assistant("", call("1", "late")), "Done."])
    agent = Agent(simulator.client(), registry)

    @registry.tool(read_only=True)
    def late() -> str:
        return "x"

    run(agent.send("hi").run())
    assert agent.history[-1]["content"] == "Done."


def test_words_that_waited_go_before_the_next_ones() -> None:
    agent = Agent(Simulator(["Yes."]).client())
    agent.steer.put("first")
    run(agent.send("second").run())
    assert agent.history[:2] == [user("first"), user("second")]


def test_the_next_words_stop_a_turn_that_still_runs() -> None:
    agent = Agent(Simulator(["one two three four five", "Fine."]).client())

    async def main() -> None:
        first = agent.send("count")
        async for event in first:
            if isinstance(event, Text):
                second = agent.send("enough")
        assert first.reason == "stopped"
        await second.run()

    run(main())
    assert problems(agent.history) == []
    assert agent.history[-1]["content"] == "Fine."


def test_a_conversation_has_one_turn_at_a_time() -> None:
    agent = Agent(Simulator(["one two three four five"], pace=0.01).client())

    async def main() -> None:
        task = asyncio.create_task(agent.send("count").run())
        for _ in range(3):
            await asyncio.sleep(0)  # let it begin
        with pytest.raises(AgentLabError, match="steer"):
            agent.send("now")
        await task

    run(main())
    assert [message["role"] for message in agent.history] == ["user", "assistant"]
