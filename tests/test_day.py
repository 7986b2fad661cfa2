"""A day in the life of one session, from the first word to the bill.

    start, stream -> stop -> steer -> a retry -> crash (kill -9 in the middle of a tool) -> resume -> overflow
    -> compact -> rewind -> fork -> cost

Twice: with the provider in this process, and over real HTTP. What is looked at in the end: nothing that was sent was
refused, but for the one overflow; no word is lost; nothing ran twice; every token is on the bill, and no other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentlab.agent import Agent
from agentlab.journal import Journal, replay
from agentlab.loop import Called, Compacted, Text
from agentlab.messages import Message, assistant, call, canonical_json, tool
from agentlab.pairing import UNKNOWN_NOTE, problems
from agentlab.permissions import Policy
from agentlab.prices import Prices
from agentlab.project import HIDDEN, listed, open_agent
from agentlab.provider import ChatClient
from agentlab.provider.retry import Retry, Retrying
from agentlab.simulator import Fault, Simulator, serve
from agentlab.simulator.cache import BlockCache
from agentlab.summary import SUMMARY_PROMPT
from agentlab.tools import Registry, Tool
from agentlab.usage import read_usage, total
from tests.clean_run import run

POEM = " ".join(f"word{n}" for n in range(400))
BIG = ["big1.txt", "big2.txt", "big3.txt", "big4.txt"]
WINDOW = 9_000  # tokens; the agent believes in more


def reading(path: str) -> Message:
    return assistant("", call(f"r-{path.removesuffix('.txt')}", "read_file", path=path))


class Model:
    """Goes by the newest words of the person that it knows; what it says to them, step by step, was written before."""

    def __init__(self) -> None:
        self.asked = 0
        self.left: dict[str, list[Any]] = {
            "What do the notes say?": [reading("notes.txt"), "They say that there are three notes."],
            "Write a long poem.": [POEM],
            "Read a and b.": [reading("a.txt"), reading("b.txt")],
            "And c, please.": [reading("c.txt"), "All three are read."],
            "Say hello.": [Fault(status=429, retry_after=0.1), Fault(no_done=True, no_finish=True), "Hello."],
            "Pay the bill.": [assistant("I pay it.", call("pay-1", "pay", amount=5))],
            "What happened?": ["Nobody knows whether it is paid: look before you pay again."],
            "Read the big ones.": [*map(reading, BIG), "All four are read."],
            "Say red.": ["Red."],
            "Say blue.": ["Blue."],
            "Say green.": ["Green."],
        }

    def __call__(self, request: dict[str, Any]) -> Any:
        self.asked += 1
        messages = request["messages"]
        if messages[0]["content"] == SUMMARY_PROMPT:
            return "The person had files read, a poem stopped, and wants a bill paid only once."
        for message in reversed(messages):
            for words, steps in self.left.items():
                if message["role"] == "user" and words in str(message["content"]):
                    return steps.pop(0) if steps else f"There is nothing left to do for: {words}"
        return "What shall I do?"


def paying(folder: Path, wait_s: float = 0.0) -> Tool:
    registry = Registry()

    @registry.tool
    def pay(amount: int) -> str:
        """Pay a bill."""
        with open(folder / "paid.txt", "a") as file:
            file.write(f"{amount}\n")
        time.sleep(wait_s)
        return "paid"

    (name,) = registry.names()
    made = registry.get(name)
    assert made
    return made


def child(folder: str, url: str) -> None:
    """The process that will be killed: it goes on with the session, and hangs in its tool."""
    agent = open_agent(
        folder,
        ChatClient(base_url=url, model="offline"),
        resume="day",
        policy=Policy(default="allow"),
        tools=[paying(Path(folder), 60.0)],
        clock=lambda: 0.0,
    )
    run(agent.send("Pay the bill.").run(), hang_guard_s=120.0)


class Day:
    """The person, and what they have seen of the session."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder = folder
        self.lost: list[dict[str, Any]] = []  # on the bill of tries that failed
        self.retries: list[Retry] = []
        self.client = Retrying(client, base_s=0.0, on_retry=self.retried)
        for name, text in {"notes.txt": "1, 2, 3\n", "a.txt": "A\n", "b.txt": "B\n", "c.txt": "C\n"}.items():
            (folder / name).write_text(text)
        for name in BIG:
            (folder / name).write_text("a line of ten words that says nothing at all\n" * 180)

    def retried(self, retry: Retry) -> None:
        self.retries.append(retry)
        self.lost += [retry.usage] if retry.usage else []

    def agent(self, **options: Any) -> Agent:
        options = {"policy": Policy(default="allow"), "tools": [paying(self.folder)], **options}
        return open_agent(self.folder, self.client, clock=lambda: 0.0, **options)

    def root(self) -> Path:
        return self.folder / HIDDEN / "sessions"

    def look(self, agent: Agent) -> None:
        """The log tells all that the agent knows, and both can be sent."""
        assert problems(agent.history) == []
        assert agent.journal
        events = list(Journal.open(self.root(), agent.journal.id).events())
        assert replay(events).history == agent.surface.history()
        assert replay(event for event in events if event["type"] != "replace").history == agent.history

    async def say(self, agent: Agent, words: str, watch: Callable[[Any], object] = lambda event: None) -> list[Any]:
        turn, events = agent.send(words), []
        async for event in turn:
            events.append(event)
            watch(event)
        self.look(agent)
        return events


def crash(folder: Path, url: str) -> None:
    """kill -9 of a real process, in the middle of its tool."""
    code = f"from tests.test_day import child; child({str(folder)!r}, {url!r})"
    root = Path(__file__).resolve().parents[1]
    env = {**os.environ, "NO_PROXY": "127.0.0.1", "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, env=env, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "paid.txt").exists():
            assert process.poll() is None and time.monotonic() < deadline, (process.communicate()[1] or b"")[-2000:]
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("http", [False, True], ids=["in process", "over http"])
def test_a_day(http: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    model = Model()
    simulator = Simulator(model, context_window=WINDOW, cache=BlockCache(), pace=0.001 if http else 0.0)
    with serve(simulator) as server:
        client = ChatClient(base_url=server.url, model="offline") if http else simulator.client()
        day = Day(tmp_path, client)
        run(morning(day), hang_guard_s=60.0)
        crash(tmp_path, server.url)
        fork_id, cut = run(afternoon(day, simulator), hang_guard_s=60.0)
        deadline = time.monotonic() + 10
        while not simulator.hangups and time.monotonic() < deadline:
            time.sleep(0.01)  # the server notices when it sends the next piece

    # Nothing was refused, but for the overflow; tools and system prompt kept their bytes.
    assert len(simulator.requests) - model.asked == 1
    turns = [request for request in simulator.requests if request["messages"][0]["content"] != SUMMARY_PROMPT]
    assert {canonical_json([request["tools"], request["messages"][0]]) for request in turns} == {
        canonical_json([turns[0]["tools"], turns[0]["messages"][0]])
    }
    assert len(simulator.requests) - len(turns) >= 2, "the overflow and the person's wish took a summary each"
    assert (tmp_path / "paid.txt").read_text() == "5\n", "it was paid once"
    assert [retry.attempt for retry in day.retries] == [1, 2]

    # The bill: every token that the provider counted, but for the answer that Stop cut off before it was counted.
    logged = [event["usage"] for event in Journal.open(day.root(), "day").events() if event["type"] == "usage"]
    branch = Journal.open(day.root(), fork_id).events()
    logged += [event["usage"] for event in branch if event["type"] == "usage" and event["seq"] > cut]
    known, paid = Counter(map(canonical_json, simulator.usages)), Counter(map(canonical_json, [*logged, *day.lost]))
    assert paid - known == Counter()
    (stopped,) = [usage for usage in simulator.usages if canonical_json(usage) in known - paid]
    (hangup,) = simulator.hangups
    assert stopped["completion_tokens"] == hangup.produced < hangup.total
    counted = total([usage for usage in simulator.usages if usage != stopped])
    assert total([*logged, *day.lost]) == counted
    assert counted.hit > 0


async def morning(day: Day) -> None:
    agent = day.agent(id="day")
    events = await day.say(agent, "What do the notes say?")
    assert "".join(event.text for event in events if isinstance(event, Text)) == "They say that there are three notes."
    assert "1, 2, 3" in agent.history[3]["content"]

    pieces: list[str] = []

    def stop(event: Any) -> None:
        pieces.extend([event.text] if isinstance(event, Text) else [])
        if len(pieces) == 3 and agent.turn:
            agent.turn.stop.request()

    await day.say(agent, "Write a long poem.", stop)
    assert agent.turn and agent.turn.reason == "stopped"
    assert agent.history[-1] == assistant("".join(pieces)) and POEM.startswith("".join(pieces)) and len(pieces) == 3

    def steer(event: Any) -> None:
        if isinstance(event, Called) and event.call["id"] == "r-a":
            agent.steer.put("And c, please.")

    await day.say(agent, "Read a and b.", steer)
    assert [said.text for said in agent.said()][-2:] == ["Read a and b.", "And c, please."]
    assert agent.history[-1]["content"] == "All three are read."

    await day.say(agent, "Say hello.")
    assert agent.history[-1]["content"] == "Hello."
    assert len(day.lost) == 1
    logged = [event["usage"] for event in agent.surface.events if event["type"] == "usage"]
    assert agent.usages == logged
    await agent.aclose()


async def afternoon(day: Day, simulator: Simulator) -> tuple[str, int]:
    agent = day.agent(resume="day")
    assert agent.history[-1] == tool("pay-1", UNKNOWN_NOTE) | {"origin": "repair"}
    day.look(agent)
    before = agent.history
    await day.say(agent, "What happened?")
    assert agent.history[: len(before)] == before
    assert simulator.requests[-1]["messages"][-2] == tool("pay-1", UNKNOWN_NOTE)

    events = await day.say(agent, "Read the big ones.")
    assert any(isinstance(event, Compacted) for event in events), "it never overflowed"
    assert agent.turn and agent.turn.reason == "done" and agent.history[-1]["content"] == "All four are read."
    assert "Write a long poem." in [said.text for said in agent.said()], "the log has what the view has not"

    view = len(agent.surface.nodes)
    assert "became a summary" in await agent.compact()
    assert len(agent.surface.nodes) < view
    day.look(agent)

    await day.say(agent, "Say red.")
    red = next(said.seq for said in agent.said() if said.text == "Say red.")
    agent.rewind(red)
    day.look(agent)
    await day.say(agent, "Say blue.")
    assert "Say red." not in canonical_json(simulator.requests[-1])
    assert [said.text for said in agent.said()][-1] == "Say blue."

    blue = agent.said()[-1].seq
    branch = agent.fork(blue, id="branch")
    assert sorted(info.id for info in listed(day.folder)) == ["branch", "day"]
    main = agent.history
    async with day.agent(resume=branch.id) as other:
        assert other.history == main[:-2]
        await day.say(other, "Say green.")
        assert "Say blue." not in canonical_json(simulator.requests[-1])
    assert agent.history == main

    agent.prices = Prices(1.0, 4.0, read=0.1)
    asked = total(map(read_usage, agent.usages))
    assert f"{asked.prompt:,}" in agent.cost() and f"{asked.output:,}" in agent.cost()
    assert agent.status()
    await agent.aclose()
    return branch.id, blue - 1
