"""A long session in a small window, which every context manager must get through."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlab.agent import Agent
from agentlab.messages import assistant, call
from agentlab.simulator import Simulator
from agentlab.simulator.tokens import render
from agentlab.tools import Registry

WINDOW = 2_000


def desk(size: int) -> Registry:
    """One tool, whose results have about so many characters."""
    registry = Registry()

    @registry.tool(read_only=True)
    def read_file(path: str) -> str:
        return f"{path}: " + "some words of code; " * (size // 20)

    return registry


def offline_model(request: dict[str, Any]) -> Any:
    """Reads a file for every word of the person, then answers. Without tools it is being asked for a summary."""
    messages = request["messages"]
    if "tools" not in request:
        source = messages[1]["content"]
        return f"1. Task: as quoted. 2. Done: read {source.count('tool result')} files. 3. Open. 4. Files. 5. None."
    if messages[-1]["role"] == "tool":
        return "Done with this one."
    return assistant("", call(f"c{len(messages)}", "read_file", path=f"src/module_{len(messages)}.py"))


def get_through(agent: Agent, simulator: Simulator, turns: int) -> int:
    """So many turns of two requests: none refused, the person's words in each, nothing lost. Returns the summaries."""

    async def main() -> None:
        for turn in range(turns):
            words = f"Task number {turn}: tidy module {turn} up."
            await agent.send(words).run()
            assert agent.turn and agent.turn.reason == "done"
            sent = simulator.requests[-1]["messages"]
            assert any(words in message["content"] for message in sent if message["role"] == "user"), turn

    asyncio.run(main())
    chats = [request for request in simulator.requests if "tools" in request]
    tokens = [len(render(request["tools"], request["messages"])) for request in chats]
    assert len(chats) == 2 * turns and max(tokens) < WINDOW, "one was refused"
    assert len(render([], agent.history)) > turns // 10 * WINDOW, "something was lost"
    return len(simulator.requests) - len(chats)
