"""Every chapter's agent sends the same tools and the same system prompt, byte for byte, as long as its session lasts.

Each chapter is run once, cell by cell, in a shell of this process: no kernel has to start, so it takes seconds, and
what is checked is what the cells really sent. A cell that breaks the prefix on purpose carries the tag `breaks-prefix`;
one that carries it and breaks nothing is a mistake, too.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from agentlab import jsonio
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, user
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.tools import Registry
from scripts import book

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
TAG = "breaks-prefix"
SYSTEM_ROLES = ("system", "developer")


def front(request):
    """Tools and system prompt of a request as text, in the two dialects' forms; None for one that is no agent's.

    A request without tools asks for something else, such as a summary.
    """
    if not request.get("tools"):
        return None
    messages = request.get("messages") or []
    leading = next((i for i, m in enumerate(messages) if m.get("role") not in SYSTEM_ROLES), len(messages))
    return jsonio.dumps([request["tools"], request.get("system"), messages[:leading]])


class Recorder:
    """Every simulator that was made, and how many of its requests have been looked at."""

    def __init__(self, monkeypatch):
        self.simulators, self._looked, made = [], {}, Simulator.__init__

        def recorded(simulator, *args, **kwargs):
            made(simulator, *args, **kwargs)
            self.simulators.append(simulator)

        monkeypatch.setattr(Simulator, "__init__", recorded)

    def breaks(self):
        """How many requests since the last call sent another front than the one before them in the same simulator."""
        found = 0
        for simulator in self.simulators:
            fronts = [text for request in simulator.requests if (text := front(request)) is not None]
            start = max(self._looked.get(id(simulator), 0) - 1, 0)
            found += sum(one != other for one, other in pairwise(fronts[start:]))
            self._looked[id(simulator)] = len(fronts)
        return found


@pytest.mark.parametrize("name", book.names(FOLDER))
def test_a_chapters_agents_keep_their_tools_and_system_prompt(name, monkeypatch, capsys):
    for variable in ("AGENT_BASE_URL", "AGENT_MODEL", "AGENT_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(FOLDER)
    recorder, shell = Recorder(monkeypatch), InteractiveShell()
    problems = []

    async def run():
        for number, cell in book.code_cells(book.read_text(book.text_path(FOLDER, name))):
            tags = cell.metadata.get("tags", [])
            ran = await shell.run_cell_async(cell.source, transformed_cell=shell.transform_cell(cell.source))
            if "raises-exception" not in tags:
                ran.raise_error()
            breaks = recorder.breaks()
            if breaks and TAG not in tags:
                problems.append(f"cell {number} changed tools or system prompt {breaks} times, and has no tag {TAG}")
            if not breaks and TAG in tags:
                problems.append(f"cell {number} has the tag {TAG}, and changed nothing")

    asyncio.run(run())
    capsys.readouterr()
    assert problems == []


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("broken", ["nothing", "system", "tools"])
def test_the_recorder_sees_a_front_that_changes(dialect, broken, monkeypatch):
    recorder = Recorder(monkeypatch)
    clock = iter(range(99))

    class Careless(Registry):
        def specs(self):
            specs = super().specs()
            return specs[::-1] if broken == "tools" and next(clock) % 2 else specs

    registry = Careless()
    for name in ("one", "two"):
        registry.tool(name=name, read_only=True)(lambda: "ok")
    script = [assistant("", call(f"c{n}", "one")) for n in range(3)] + ["Done."]
    client = Simulator(script, dialect=dialect, cache=BlockCache()).client()

    async def turns():
        for n in range(2):
            system = f"Be kind. {next(clock) if broken == 'system' else ''}"
            await run_turn([{"role": "system", "content": system}, user(f"Go {n}.")], client, registry).run()

    asyncio.run(turns())
    assert len(recorder.simulators) == 1
    assert (recorder.breaks() > 0) is (broken != "nothing")
    assert recorder.breaks() == 0
