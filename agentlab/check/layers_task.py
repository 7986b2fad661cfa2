"""The long task of chapter 07, and the scripts that play its models: they know only what they are shown.

worker     goes on behind the last module that it can see; every 20 steps it runs the tests, too, in the same batch
scribe     a summary in five fields, as the four layers want it; `tell` is one for the three segments
work       the whole task, with a context manager or without
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from agentlab.context import ContextManager, hooks
from agentlab.errors import ContextOverflow
from agentlab.layersummary import FIELDS
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, groups, user
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.tools import Registry, ToolResult
from agentlab.watchdog import LoopBudget

STEPS = 60
JOB = f"Port the {STEPS} modules to v2, one by one. Leave all comments as they are."
TOOLS = Registry()


@TOOLS.tool(read_only=True, spillable=False)  # a file is in a file already
def port(path: str) -> str:
    """Port one module."""
    lines = 6 + int(path[7:]) * 7 % 23
    return f"{path} was ported.\n" + "\n".join(["changed from version one to version two"] * lines)


@TOOLS.tool(read_only=True)
def run_tests() -> str:
    """Run all tests."""
    return ("ok" + " " * 40 + "checked without problems\n") * 480 + "1 of 481 failed: leapyear"


def worker(request: dict[str, Any]) -> Message | str:
    shown = json.dumps(request["messages"])
    if JOB not in shown:
        return "I do not know what I was asked to do."
    n = 1 + _last_module(shown)
    if n > STEPS:
        return "All are ported."
    tests = [call(f"test_{n}", "run_tests")] if n % 20 == 0 else []
    return assistant("", call(f"port_{n}", "port", path=f"module_{n}"), *tests)


def scribe(text: str) -> str:
    """The five fields of a summary of `text`, as JSON."""
    told = ["Port all.", "leapyear fails", f"up to module_{_last_module(text)}", "the rest", "Leave comments."]
    return json.dumps(dict(zip(FIELDS, told, strict=True)))


def tell(text: str) -> str:
    return f"1. Task: as quoted. 2. Done: up to module_{_last_module(text)}."


def _last_module(text: str) -> int:
    return max(map(int, re.findall(r"module_(\d+)", text)), default=0)


def entered(
    history: Sequence[Message],
    batches: Sequence[Sequence[ToolResult]],
    after_results: Callable[[list[ToolResult]], list[ToolResult]],
) -> list[Message]:
    """The history as it is when its results, one batch for each message with calls, come in through `after_results`."""
    out: list[Message] = []
    left = iter(batches)
    for group in groups(history):
        out.append(group.messages[0])
        if len(group.messages) > 1:
            out += [result.message() for result in after_results(list(next(left)))]
    return out


async def work(
    window: int, manager: ContextManager | None = None, after_results: Callable[[list[ToolResult]], Any] | None = None
) -> tuple[Simulator, Turn, str]:
    """The task in a window of so many tokens: the provider, the turn, and how it ended."""
    provider = Simulator(worker, context_window=window, cache=BlockCache(slots=2), clock=lambda: 0.0)
    wired = Hooks(after_results=after_results or getattr(manager, "after_results", None))
    if manager:
        wired = hooks(manager, wired)
    turn = run_turn([user(JOB)], provider.client(), TOOLS, hooks=wired, budget=LoopBudget(2 * STEPS))
    try:
        ending = str((await turn.run()).history[-1]["content"])
    except ContextOverflow as refused:
        ending = str(refused).split("\n")[0]
    return provider, turn, ending
