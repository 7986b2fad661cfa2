"""What chapter 12 tries out on the whole agent: a morning with one part left out, a day in windows of several sizes.

`new_agent(folder, simulator, window, **options)` is the chapter's own; the model is `agent.coder`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlab.agent import Agent
from agentlab.check.agent import coder
from agentlab.errors import AgentLabError, ContextOverflow
from agentlab.language import say
from agentlab.loop import Called, Turn
from agentlab.messages import calls_of
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache

NewAgent = Callable[..., AbstractAsyncContextManager[Agent]]
PATIENCE = 25
"""Requests of one turn after which somebody presses Stop."""


def new_simulator(window: int) -> Simulator:
    return Simulator(coder(), context_window=window, cache=BlockCache())


async def morning(
    new_agent: NewAgent, folder: Path, wishes: Sequence[str], *, window: int = 6_000, **options: Any
) -> tuple[str, str, str]:
    """What the agent says in the end, the rule in leap.py as it stands then, and what is known of it the next day."""
    simulator = new_simulator(window)
    async with new_agent(folder, simulator, window, id="day", **options) as agent:
        ending = await _answers(agent, wishes)
    try:
        async with new_agent(folder, simulator, window, resume="day") as again:
            known = say("{known} of {all} wishes", known=len(again.said()), all=len(wishes))
    except AgentLabError as error:
        known = str(error).split(". ")[0]
    return ending, (folder / "leap.py").read_text().split("return")[1].strip(), known


async def _answers(agent: Agent, wishes: Sequence[str]) -> str:
    try:
        for wish in wishes:
            turn = agent.send(wish)
            async for event in turn:
                if isinstance(event, Called) and len(turn.usages) > PATIENCE:
                    turn.stop.request()
    except ContextOverflow as refused:
        return str(refused).splitlines()[0]
    if turn.reason != "done":
        return say("stopped by hand: {circle}", circle=_circle(turn))
    return str(agent.history[-1]["content"])


def _circle(turn: Turn) -> str:
    calls = Counter(each["function"]["name"] for message in turn.history for each in calls_of(message))
    return ", ".join(f"{times} x {name}" for name, times in calls.items())


@dataclass(frozen=True)
class Day:
    """What a day took. `right` says whether the agent found the four years."""

    usages: list[dict[str, Any]]
    prunings: int
    summaries: int
    right: bool


async def whole_day(new_agent: NewAgent, folder: Path, wishes: Sequence[str], window: int) -> Day:
    """All wishes, one after the other, in a window of so many tokens that the agent knows."""
    async with new_agent(folder, new_simulator(window), window, id="day") as agent:
        for wish in wishes:
            await agent.send(wish).run()
    made = [event.get("reason") for event in agent.surface.events if event["type"] == "replace"]
    right = "1700, 1800, 1900, 2100" in str(agent.surface.transcript())
    return Day(agent.usages, made.count("prune"), made.count("compaction"), right)
