"""A session in bad weather: broken streams, refusals for a while, silence, Stop and crashes at random moments.

    turn -> faults of the provider, Stop, words slipped in, interrupts, at moments that dice choose
         -> what the person said, what ran, what the log holds and what the provider accepts are looked at
         -> next turn, now and then from the log alone

The dice have a fixed seed. The model is one that goes by what it sees: it works through the plan of the newest task,
makes a call again when the history says that it never ran, and leaves it when nobody knows. So a history that says
the wrong thing about a call makes it run twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections import Counter
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentlab.agent import Agent, Context
from agentlab.errors import AgentLabError, ProviderRefused
from agentlab.journal import Journal, replay
from agentlab.layersummary import FIELDS, FIELDS_PROMPT
from agentlab.loop import Called
from agentlab.messages import Message, assistant, call, calls_of
from agentlab.pairing import INTERRUPT_NOTE, problems
from agentlab.permissions import Policy
from agentlab.provider import ChatClient
from agentlab.provider.retry import Retry, Retrying
from agentlab.simulator import Fault, Simulator, serve
from agentlab.spill import OutputBudget, SpillStore
from agentlab.summary import SUMMARY_PROMPT
from agentlab.tools import Registry
from tests.clean_run import run

PLAN = 4  # calls of a task
TASK = re.compile(r"task (\d+)\.")


@dataclass
class Weather:
    """The model, and the dice that decide what becomes of its answers."""

    dice: random.Random
    chance: float
    asked: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: dict[str, Any]) -> Any:
        self.asked += 1
        said = self.answer(request["messages"])
        if self.dice.random() >= self.chance:
            return said
        kind = self.dice.choice(["cut", "cut", "error", "429", "500", "503", "refused", "stall", "no end", "empty"])
        self.kinds[kind] += 1
        at = self.dice.choice([0, 60, 200, 400, 700, 1200])
        faults: dict[str, Fault | str] = {
            "cut": Fault(cut_at=at, step=said),
            "error": Fault(error_after=self.dice.randrange(8), step=said),
            "429": Fault(status=429, retry_after=0.25),
            "500": Fault(status=500),
            "503": Fault(status=503),
            "refused": Fault(refuse=True),
            "stall": Fault(stall_at=at, step=said),
            "no end": Fault(no_done=True, no_finish=True, step=said),
            "empty": "",
        }
        return faults[kind]

    def answer(self, messages: list[Message]) -> Any:
        if messages[0]["content"] == SUMMARY_PROMPT:
            return "The person gave some tasks, and they are done."
        if messages[0]["content"] == FIELDS_PROMPT:
            return json.dumps(dict.fromkeys(FIELDS, "The person gave some tasks, and they are done."))
        found = [(at, match) for at, m in enumerate(messages) if m["role"] == "user" and (match := task_of(m))]
        if not found:
            return "What is the task?"
        at, match = found[-1]
        seen = {m["tool_call_id"]: str(m["content"]) for m in messages[at:] if m["role"] == "tool"}
        ran = {
            made["function"]["arguments"]
            for message in messages[at:]
            for made in calls_of(message)
            if seen.get(made["id"]) != INTERRUPT_NOTE
        }
        numbers = [int(match) * PLAN + step for step in range(PLAN)]
        left = [n for n in numbers if call("x", "work", n=n)["function"]["arguments"] not in ran]
        if not left:
            return "All of that is done now."
        batch = left[: self.dice.choice([1, 1, 2])]
        return assistant("I go on with it.", *(call(f"c{self.asked}-{n}", "work", n=n) for n in batch))


def task_of(message: Message) -> str | None:
    found = TASK.findall(str(message["content"]))
    return found[-1] if found else None


class Session:
    """One session and its person, over all its agents."""

    def __init__(
        self, folder: Path, weather: Weather, simulator: Simulator, context: Context | None, http: str | None
    ) -> None:
        self.folder, self.weather, self.simulator, self.dice = folder, weather, simulator, weather.dice
        self.context, self.http = context, http
        self.crashing = False
        self.crashed: bytes | None = None
        self.client = self.reach(0.3 if http else 0.02)
        self.ran: Counter[int] = Counter()
        self.words: list[str] = []
        self.usages: list[dict[str, Any]] = []
        self.reasons: Counter[str] = Counter()
        self.task, self.fresh = 0, True
        self.task_running: asyncio.Task[None] | None = None
        self.resumed = 0
        self.agent = self.open(Journal.create(folder, {"model": "offline"}, id="chaos", clock=lambda: 0.0))

    def reach(self, timeout: float) -> ChatClient:
        transport = None if self.http else self.simulator.transport()
        return ChatClient(base_url=self.http or "http://s/v1", model="offline", transport=transport, timeout=timeout)

    def open(self, journal: Journal) -> Agent:
        registry = Registry()

        @registry.tool
        async def work(n: int) -> str:
            """Do a piece of work that must not be done twice."""
            self.ran[n] += 1
            for _ in range(self.dice.randrange(4)):
                await asyncio.sleep(0)
            if self.crashing and self.task_running:  # what a kill -9 leaves: the log as it is in the middle of a tool
                self.crashing, self.crashed = False, journal.path.read_bytes()
                self.task_running.cancel()
                await asyncio.sleep(60)
            return f"Piece {n} is done. " + "word " * self.dice.choice([1, 1, 400])

        async def at_once(seconds: float) -> None:
            await asyncio.sleep(0)

        def retried(retry: Retry) -> None:
            self.usages += [retry.usage] if retry.usage else []

        return Agent(
            Retrying(self.client, tries=3, sleep=at_once, jitter=lambda: 0.0, on_retry=retried),
            registry,
            system="You do what the person says.",
            policy=Policy(default="allow"),
            context=self.context,
            store=SpillStore(self.folder / "spill"),
            output=OutputBudget(per_result=500, per_batch=800, preview=200, tail=50),
            journal=journal,
        )

    async def turn(self) -> None:
        """One turn, and what happens to it."""
        agent, dice = self.agent, self.dice
        if self.fresh or (agent.turn and agent.turn.reason == "done" and dice.random() < 0.8):
            self.task, self.fresh = self.task + 1, False
            self.words.append(f"w{len(self.words)}: task {self.task}.")
        else:
            self.words.append(f"w{len(self.words)}: go on.")
        turn = agent.send(self.words[-1])
        what = dice.choice(["nothing", "nothing", "stop", "steer", "leave", "tick stop", "interrupt", "crash"])
        self.crashing, self.crashed = what == "crash", None
        moment = dice.randrange(1, 40)

        async def consume() -> None:
            seen = 0
            async with aclosing(turn):
                async for event in turn:
                    seen += 1 + 3 * isinstance(event, Called)
                    if seen < moment:
                        continue
                    seen = -(10**9)
                    if what == "stop":
                        turn.stop.request()
                    elif what == "steer":
                        self.words.append(f"w{len(self.words)}: and be quick.")
                        agent.steer.put(self.words[-1])
                    elif what == "leave":
                        return

        task = self.task_running = asyncio.create_task(consume())
        if what in ("tick stop", "interrupt"):
            for _ in range(moment):
                await asyncio.sleep(0)
            turn.stop.request() if what == "tick stop" else task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert outcome is None or isinstance(outcome, AgentLabError | asyncio.CancelledError), repr(outcome)
        assert not isinstance(outcome, ProviderRefused), outcome
        self.reasons[str(turn.reason)] += 1
        self.crashing = False
        if self.crashed is not None and agent.journal:
            self.reasons["crashed"] += 1
            agent.journal.close()
            agent.journal.path.write_bytes(self.crashed)
            self.usages += agent.usages
            self.agent = self.open(Journal.open(self.folder, "chaos", clock=lambda: 0.0))

    def look(self) -> None:
        """What must hold after every turn."""
        agent = self.agent
        waiting = [message["content"] for message in agent.steer.drain()]
        for text in waiting:
            agent.steer.put(text)
        assert sorted([*(said.text for said in agent.said()), *waiting]) == sorted(self.words), "words were lost"
        assert problems(agent.history) == []
        assert problems(agent.surface.history()) == []
        assert agent.journal
        events = list(agent.journal.events())
        assert replay(event for event in events if event["type"] != "replace").history == agent.history
        assert replay(events).history == agent.surface.history()
        assert not [n for n, times in self.ran.items() if times > 1], f"ran twice: {self.ran}"
        assert self.http or len(self.simulator.requests) == self.weather.asked, "a request was refused"

    async def between(self) -> None:
        """Now and then: a crash or a proper end, and on from the log; a compaction."""
        if self.dice.random() < 0.25:
            agent, self.resumed = self.agent, self.resumed + 1
            before = agent.history
            if self.dice.random() < 0.5:
                await agent.aclose()
            elif agent.journal:
                agent.journal.close()  # the process is gone: nobody has tidied anything up
            waiting = agent.steer.drain()
            self.usages += agent.usages
            self.agent = self.open(Journal.open(self.folder, "chaos", clock=lambda: 0.0))
            for message in waiting:
                self.agent.steer.put(message["content"])
            assert self.agent.history == before
        elif self.agent.turn and self.agent.turn.reason == "done" and self.dice.random() < 0.2:
            try:
                await self.agent.compact()
                self.fresh = True  # the results are in no view now: to go on would be to do it all again
            except AgentLabError as error:
                self.reasons[type(error).__name__] += 1

    async def live(self, turns: int) -> None:
        for _ in range(turns):
            await self.turn()
            self.look()
            await self.between()
            self.look()
        self.usages += self.agent.usages
        await self.agent.aclose()
        self.weather.chance = 0.0  # the sun comes out: all that was kept is good for a turn
        self.client = self.reach(60.0)
        self.agent = self.open(Journal.open(self.folder, "chaos", clock=lambda: 0.0))
        self.words.append("w-last: go on.")
        turn = await self.agent.send(self.words[-1]).run()
        self.look()
        assert turn.reason == "done" and turn.history[-1]["role"] == "assistant"
        self.usages += self.agent.usages
        await self.agent.aclose()


def live(
    folder: Path, seed: int, turns: int, *, context: Context | None = "surface", http: bool, hang_guard_s: float = 60.0
) -> Session:
    weather = Weather(random.Random(seed), 0.35)
    simulator = Simulator(weather, chunk=90)
    open_before = _open_files()
    with ExitStack() as stack:
        url = stack.enter_context(serve(simulator)).url if http else None
        session = Session(folder, weather, simulator, context, url)
        run(session.live(turns), hang_guard_s=hang_guard_s)
    assert psutil.Process().children(recursive=True) == []
    assert _open_files() <= open_before
    assert len(simulator.requests) == weather.asked, "a request was refused"
    known = Counter(map(repr, simulator.usages))
    paid = Counter(map(repr, session.usages))
    assert paid <= known, "the bill has something that the provider never said"
    logged = [event["usage"] for event in Journal.open(folder, "chaos").events() if event["type"] == "usage"]
    assert Counter(map(repr, logged)) <= known
    return session


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.mark.parametrize("context", ["surface", "layers", "segments", None])
def test_twenty_turns(context: Context | None, tmp_path: Path) -> None:
    session = live(tmp_path, 1, 20, context=context, http=False)
    assert len(session.ran) > 10 and session.resumed
    assert {"done", "error", "stopped", "interrupted", "crashed"} <= set(session.reasons), session.reasons


def test_twenty_turns_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    session = live(tmp_path, 5, 20, http=True)
    assert session.ran, "no tool ever ran"  # what else happens depends on the machine's speed


@pytest.mark.soak
@pytest.mark.parametrize("context", ["surface", "layers", "segments", None])
@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_turns(seed: int, context: Context | None, tmp_path: Path) -> None:
    session = live(tmp_path, seed, 200, context=context, http=False, hang_guard_s=600.0)
    assert len(session.weather.kinds) > 5 and session.resumed > 10 and session.reasons["crashed"]


@pytest.mark.soak
def test_two_hundred_turns_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert live(tmp_path, 0, 200, http=True, hang_guard_s=600.0).ran
