"""The agent owns one conversation, turn after turn."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from clean_run import run

from agentlab.agent import Agent, Context
from agentlab.compaction import CompactionError, Limits
from agentlab.devmode import DevMode
from agentlab.disclosure import Catalog
from agentlab.errors import AgentLabError, ContextOverflow, ProviderUnavailable, StreamError
from agentlab.journal import Journal, replay
from agentlab.layers import CompactionManager
from agentlab.layersummary import FIELDS, FIELDS_PROMPT
from agentlab.loop import Called, Hooks, Text
from agentlab.mcp import McpManager
from agentlab.messages import Message, assistant, call, calls_of, canonical_json, user
from agentlab.pairing import UNKNOWN_NOTE, problems
from agentlab.permissions import Policy
from agentlab.prices import Prices
from agentlab.segments import SegmentManager
from agentlab.simulator import Fault, Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.spill import OutputBudget, SpillStore
from agentlab.summary import SUMMARY_PROMPT
from agentlab.surface import Surface, SurfaceManager
from agentlab.tools import Registry

CLOCK = Path(__file__).resolve().parents[1] / "data" / "mcp" / "clock_server.py"
CONTEXTS: list[Context | None] = ["surface", "layers", "segments", None]


def say(agent: Agent, text: str) -> str:
    """A whole turn; what the model said last."""
    run(agent.send(text).run())
    return str(agent.history[-1]["content"])


def shell(words: int = 400) -> Registry:
    registry = Registry()

    @registry.tool(read_only=True)
    def cat(n: int) -> str:
        """Print a file."""
        return f"file {n}: " + "word " * words

    return registry


def model(request: dict[str, Any]) -> Any:
    """Answers both kinds of summary; else it looks at one file for each word of the person, and names it."""
    messages = request["messages"]
    prompt = messages[0]["content"]
    if prompt == SUMMARY_PROMPT:
        return "Files were looked at."
    if prompt == FIELDS_PROMPT:
        return json.dumps(dict.fromkeys(FIELDS, "Files were looked at."))
    if messages[-1]["role"] == "tool":
        return "I have seen it."
    return assistant("", call(f"c{len(messages)}", "cat", n=len(messages)))


def log(agent: Agent) -> list[dict[str, Any]]:
    return list(agent.surface.events)


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


# ---------------------------------------------------------------- each part, and what breaks without it


def test_without_a_context_manager_a_long_session_overflows() -> None:
    def session(context: Context | None) -> Agent:
        simulator = Simulator(model, context_window=3_000)
        return Agent(simulator.client(), shell(), context=context, limits=Limits(3_000))

    agent = session(None)
    with pytest.raises(ContextOverflow):
        for n in range(12):
            say(agent, f"Look at {n}.")
    assert problems(agent.history) == [] and "Look at 0." in str(agent.history)
    agent = session("surface")
    assert [say(agent, f"Look at {n}.") for n in range(12)] == ["I have seen it."] * 12


def test_without_a_store_one_large_output_ends_the_turn(tmp_path: Path) -> None:
    def session(store: SpillStore | None) -> Agent:
        simulator = Simulator(model, context_window=8_000)
        budget = OutputBudget().for_window(8_000)
        return Agent(simulator.client(), shell(9_000), context=None, store=store, output=budget)

    with pytest.raises(ContextOverflow):
        say(session(None), "Look.")
    agent = session(SpillStore(tmp_path))
    assert say(agent, "Look.") == "I have seen it."
    result = agent.history[2]
    assert len(result["content"]) < 5_000
    assert Path(result["output_path"]).read_text() == "file 1: " + "word " * 9_000


def test_without_a_journal_there_is_nothing_to_resume(tmp_path: Path) -> None:
    agent = Agent(Simulator(["Hi."]).client(), system="S")
    say(agent, "I am Ada.")
    with pytest.raises(AgentLabError, match="journal"):
        agent.fork()

    agent = Agent(Simulator(["Hi."]).client(), system="S", journal=Journal.create(tmp_path, {}, id="a"))
    say(agent, "I am Ada.")
    assert agent.journal
    agent.journal.close()  # and the process dies
    again = Agent(Simulator(["Hi, Ada."]).client(), system="Another", journal=Journal.open(tmp_path, "a"))
    assert again.history == agent.history and again.history[0]["content"] == "S"
    assert [said.text for said in again.said()] == ["I am Ada."]


@pytest.mark.parametrize("watched", [True, False])
def test_without_a_budget_a_turn_runs_in_circles(watched: bool) -> None:
    asked = 0

    def circles(request: dict[str, Any]) -> Message:
        nonlocal asked
        asked += 1
        if asked == 60:
            turn.stop.request()  # the only way out
        return assistant("", call(f"c{asked}", "cat", n=1))

    options: dict[str, Any] = {} if watched else {"budget": None}
    turn = Agent(Simulator(circles).client(), shell(1), **options).send("Look.")
    run(turn.run())
    assert (turn.reason, asked) == (("repeated_call", 8) if watched else ("stopped", 60))


def test_parts_that_do_not_go_together_are_told_at_once(tmp_path: Path) -> None:
    client = Simulator([]).client()
    with pytest.raises(AgentLabError, match="no context manager"):
        Agent(client, context=cast(Any, "diary"))
    with pytest.raises(AgentLabError, match="store"):
        Agent(client, context="layers")
    with pytest.raises(AgentLabError, match="Catalog"):
        Agent(client, mcp=McpManager.from_config([]))


# ---------------------------------------------------------------- context managers


@pytest.mark.parametrize("context", ["surface", "layers", "segments"])
def test_a_long_session_in_a_small_window(context: Context, tmp_path: Path) -> None:
    simulator = Simulator(model, context_window=4_000)
    journal = Journal.create(tmp_path, {}, id="a")
    options: dict[str, Any] = {"store": SpillStore(tmp_path / "spill"), "output": OutputBudget(per_result=900)}
    agent = Agent(
        simulator.client(),
        shell(),
        system="Be short.",
        context=context,
        limits=Limits(4_000),
        journal=journal,
        **options,
    )
    for n in range(50):
        assert say(agent, f"Look at {n}.") == "I have seen it."
        assert f"Look at {n}." in str(simulator.requests[-1]["messages"]), "the newest words are never forgotten"
    kinds = {"surface": SurfaceManager, "layers": CompactionManager, "segments": SegmentManager}
    assert type(agent.context) is kinds[context]
    assert [said.text for said in agent.said()] == [f"Look at {n}." for n in range(50)]
    fronts = {
        canonical_json([r.get("tools"), r["messages"][0]])
        for r in simulator.requests
        if r["messages"][0]["content"] not in (SUMMARY_PROMPT, FIELDS_PROMPT)
    }
    assert len(fronts) == 1 and len(simulator.requests) > 100 + (context != "layers")
    assert len(str(simulator.requests[-1]["messages"])) < len(str(agent.history)) // 4
    assert agent.usages == simulator.usages, "summaries are on the bill"
    run(agent.aclose())
    again = Agent(
        simulator.client(),
        shell(),
        context=context,
        limits=Limits(4_000),
        journal=Journal.open(tmp_path, "a"),
        **options,
    )
    assert again.history == agent.history
    assert say(again, "Once more.") == "I have seen it."
    run(again.aclose())


def test_a_manager_of_the_readers_own_brings_its_surface(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, {}, id="a")
    manager = SurfaceManager(lambda source: "Short.", surface=Surface(journal), limits=Limits(9_000))
    for agent in (
        Agent(Simulator(model).client(), shell(), context=manager),
        Agent(Simulator(model).client(), shell(), context=manager, journal=journal),
    ):
        assert agent.surface is manager.surface and agent.journal is journal
        say(agent, "Look.")
    kinds = [event["type"] for event in journal.events()]
    assert kinds.count("message") == 8, "every message was written once"
    assert "became a summary" in run(agent.compact())
    assert [event["type"] for event in journal.events()].count("replace") == 1
    run(agent.aclose())


def test_an_overflow_is_nobodys_fault_and_every_view_passes_the_readers_hook() -> None:
    simulator = Simulator(model, context_window=12_000, cache=BlockCache())
    hooks = Hooks(before_request=lambda view: [*view[:1], user("note"), *view[1:]])
    agent = Agent(simulator.client(), shell(1_500), system="S", hooks=hooks, dev=DevMode(on=True), clock=lambda: 0.0)
    answers = [say(agent, f"Look at {n}.") for n in range(8)]
    assert answers == ["I have seen it."] * 8
    refused = len(simulator.requests) - len(simulator.usages)
    assert refused > 0
    turns = [request["messages"] for request in simulator.requests if request["messages"][0]["content"] == "S"]
    assert all(messages[1] == user("note") for messages in turns)
    assert (agent.ledger.wasted, agent.miss) == (0, None)


# ---------------------------------------------------------------- between turns


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_call_that_a_crash_cut_off_may_have_run(context: Context | None, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, {}, id="a")
    journal.append_all([{"type": "message", "message": m} for m in ({"role": "system", "content": "S"}, user("Pay."))])
    caller = journal.append({"type": "message", "message": assistant("", call("c", "pay"), call("d", "pay"))})
    journal.append({"type": "tool_call", "record": {"message": caller, "id": "c", "name": "pay", "status": "running"}})
    journal.close()
    simulator = Simulator(["Who knows?"])
    store = SpillStore(tmp_path / "spill")
    agent = Agent(simulator.client(), context=context, store=store, journal=Journal.open(tmp_path, "a"))
    assert problems(agent.history) == []
    say(agent, "Well?")
    for history in (agent.history, simulator.requests[0]["messages"]):
        notes = {m["tool_call_id"]: m["content"] for m in history if m["role"] == "tool"}
        assert notes["c"] == UNKNOWN_NOTE != notes["d"]
    assert replay(log(agent)).history == agent.history
    run(agent.aclose())


def test_rewind_takes_words_back_and_never_the_system_prompt() -> None:
    simulator = Simulator(lambda request: "Yes.")
    agent = Agent(simulator.client(), system="S")
    say(agent, "one")
    before = agent.history
    say(agent, "two")
    agent.rewind(agent.said()[-1].seq)
    assert agent.history == before and [said.text for said in agent.said()] == ["one"]
    say(agent, "three")
    assert "two" not in str(simulator.requests[-1]) and agent.history[:3] == before
    agent.rewind(1)
    assert agent.history == [{"role": "system", "content": "S"}]
    say(agent, "four")
    assert [message["content"] for message in simulator.requests[-1]["messages"]] == ["S", "four"]
    with pytest.raises(AgentLabError, match="cannot go back"):
        agent.rewind(10_000)


def test_a_fork_leaves_the_original_alone(tmp_path: Path) -> None:
    agent = Agent(Simulator(lambda request: "Yes.").client(), system="S", journal=Journal.create(tmp_path, {}, id="a"))
    say(agent, "one")
    say(agent, "two")
    original = agent.history
    other = Agent(agent.client, system="S", journal=agent.fork(agent.said()[1].seq, id="b"))
    assert other.history == original[:3]
    whole = Agent(agent.client, journal=agent.fork())
    assert whole.history == original
    say(other, "three")
    assert agent.history == original
    for one in (agent, other, whole):
        run(one.aclose())


def test_nothing_is_taken_back_while_a_turn_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with Agent(
            Simulator(["one two three four"], pace=0.01).client(), journal=Journal.create(tmp_path, {}, id="a")
        ) as agent:
            task = asyncio.create_task(agent.send("go").run())
            await asyncio.sleep(0.02)
            assert agent.running
            for act in (lambda: agent.rewind(2), agent.fork):
                with pytest.raises(AgentLabError, match="running"):
                    act()
            with pytest.raises(AgentLabError, match="running"):
                await agent.compact()
            await task
            assert not agent.running

    run(main())


@pytest.mark.parametrize("context", CONTEXTS)
def test_compact_by_hand(context: Context | None, tmp_path: Path) -> None:
    simulator = Simulator(model)
    agent = Agent(simulator.client(), shell(), context=context, store=SpillStore(tmp_path))
    for n in range(4):
        say(agent, f"Look at {n}.")
    whole = agent.history
    if context in ("segments", None):
        with pytest.raises(AgentLabError, match="'surface' or 'layers'"):
            run(agent.compact())
        return
    assert "summary" in run(agent.compact())
    assert agent.history == whole, "the log keeps everything"
    say(agent, "Look at 4.")
    sent = next(r["messages"] for r in reversed(simulator.requests) if "Look at 4." in str(r["messages"][-1]))
    assert len(sent) < len(whole) // 2


def test_nothing_to_compact_is_said_and_changes_nothing() -> None:
    agent = Agent(Simulator(["Hi."], cache=BlockCache()).client(), clock=lambda: 0.0)
    say(agent, "Hi.")
    assert run(agent.compact()) == "There is nothing to compact."


def test_a_summary_that_fails_is_told() -> None:
    agent = Agent(Simulator(model).client(), shell(), summarize=lambda source: "")
    say(agent, "Look.")
    say(agent, "Look.")
    before = agent.surface.history()
    with pytest.raises(CompactionError):
        run(agent.compact())
    assert agent.surface.history() == before


def test_collect_deletes_only_what_nothing_points_to(tmp_path: Path) -> None:
    store = SpillStore(tmp_path)
    agent = Agent(Simulator(model).client(), shell(), store=store, output=OutputBudget(per_result=900))
    with pytest.raises(AgentLabError, match="store"):
        Agent(Simulator(model).client()).collect()
    say(agent, "Look.")
    stray = Path(store.save("nobody's").path)
    assert [Path(name).name for name in agent.collect().removed] == [stray.name] and stray.exists()
    agent.rewind(agent.said()[0].seq)  # what was withdrawn is in the log, and may be looked at again
    assert len(agent.collect(dry_run=False).removed) == 1
    assert not stray.exists() and len(list(tmp_path.glob("*.txt"))) == 1


# ---------------------------------------------------------------- turns that end in odd ways


def test_a_turn_that_was_left_is_over() -> None:
    async def main() -> None:
        agent = Agent(Simulator(["one two three four five", "Fine."]).client())
        async with aclosing(agent.send("count")) as turn:
            async for event in turn:
                if isinstance(event, Text):
                    break
        assert not agent.running
        await agent.send("and?").run()
        assert [message["content"] for message in agent.history] == ["count", "one", "and?", "Fine."]
        assert replay(log(agent)).history == agent.history

    run(main())


@pytest.mark.parametrize("context", ["surface", None])
def test_an_old_turn_that_goes_on_later_writes_nothing(context: Context | None) -> None:
    registry, ran = Registry(), []

    @registry.tool(read_only=True)
    def look() -> str:
        ran.append(1)
        return "seen"

    async def main() -> None:
        script = [assistant("I look.", call("c", "look")), "Fine.", "Good."]
        agent = Agent(Simulator(script).client(), registry, context=context)
        first = agent.send("look")
        async for event in first:
            if isinstance(event, Called):
                await agent.send("no, wait").run()
        assert (first.reason, ran) == ("stopped", [])
        await agent.send("thanks").run()
        assert replay(log(agent)).history == agent.history
        assert [m["content"] for m in agent.history if m["role"] == "user"] == ["look", "no, wait", "thanks"]
        said = [event["message"] for event in log(agent) if event["type"] == "message"]
        assert said == agent.history, "and nothing was written twice"

    run(main())


def test_two_replies_that_break_off_at_the_same_word_are_both_kept() -> None:
    half = Fault(error_after=9, step=assistant("I look.", call("c", "cat", n=1)))  # in the middle of the call
    agent = Agent(Simulator([half, half, "Fine."]).client(), shell())
    for words in ("one", "two"):
        with pytest.raises(StreamError):
            say(agent, words)
        assert replay(log(agent)).history == agent.history
    assert say(agent, "three") == "Fine."
    replies = [(m["content"], len(calls_of(m))) for m in agent.history if m["role"] == "assistant"]
    assert replies == [("I look.", 1), ("I look.", 1), ("Fine.", 0)]
    assert replay(log(agent)).history == agent.history


def test_words_of_a_turn_that_never_began_are_kept(tmp_path: Path) -> None:
    agent = Agent(Simulator(["Fine."]).client(), journal=Journal.create(tmp_path, {}, id="a"))
    agent.send("one")
    agent.send("two")
    run(agent.aclose())
    assert [m["content"] for m in replay(Journal.open(tmp_path, "a").events()).history] == ["one", "two"]
    say(agent, "three")
    assert [said.text for said in agent.said()] == ["one", "two", "three"]
    run(agent.aclose())


def test_what_a_broken_reply_reported_is_on_the_bill() -> None:
    simulator = Simulator([Fault(cut_at=900, step="one two three four five six seven"), "Fine."], dialect="anthropic")
    agent = Agent(simulator.client())
    with pytest.raises(ProviderUnavailable):
        say(agent, "count")
    assert len(agent.usages) == 1 and agent.usages[0]["input_tokens"] == simulator.usages[0]["input_tokens"]
    say(agent, "again")
    assert len(agent.usages) == 2


# ---------------------------------------------------------------- cost, development mode


def test_cost_and_status() -> None:
    simulator = Simulator(lambda request: "Yes.", cache=BlockCache())
    agent = Agent(simulator.client(), system="word " * 2_000, prices=Prices(1.0, 4.0, read=0.1), clock=lambda: 0.0)
    assert agent.status() == ""
    say(agent, "one")
    say(agent, "two")
    prompts = [usage["prompt_tokens"] for usage in simulator.usages]
    assert f"{sum(prompts):,}" in agent.cost() and "offline" in agent.cost()
    assert f"prompt {prompts[1]:,}" in agent.status() and "hit 0" not in agent.status()
    assert agent.usages == simulator.usages
    assert agent.ledger.wasted == 0


def test_development_mode_names_the_culprit() -> None:
    count = 0

    def stamped(view: list[Message]) -> list[Message]:
        nonlocal count
        count += 1
        return [{**view[0], "content": f"At {count}: {view[0]['content']}"}, *view[1:]]

    agent = Agent(
        Simulator(lambda request: "Yes.", cache=BlockCache()).client(),
        system="word " * 3_000,
        hooks=Hooks(before_request=stamped),
        dev=DevMode(on=True),
        clock=lambda: 0.0,
    )
    say(agent, "one")
    agent.hooks = Hooks()  # the stamp stays away, and what follows has a stable prefix
    say(agent, "two")
    say(agent, "three")
    agent.hooks = Hooks(before_request=stamped)
    say(agent, "four")
    assert agent.miss and agent.miss.diff.culprit == "system"
    assert agent.ledger.wasted > 2_000


# ---------------------------------------------------------------- many tools


def clock(tmp_path: Path) -> McpManager:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"clock": {"command": sys.executable, "args": [str(CLOCK)]}}}))
    return McpManager.from_config([path])


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_tools_of_a_server_are_found_and_run(dialect: str, tmp_path: Path) -> None:
    strict = dialect == "anthropic"
    direct = call("b", "mcp__clock__now") if strict else call("b", "run_tool", name="mcp__clock__now", input={})
    script = [assistant("", call("a", "search_tool", query="time on the clock")), assistant("", direct), "It is nine."]
    simulator = Simulator(script, dialect=dialect)
    catalog = Catalog(shell(), protocol="strict" if strict else "free-text")

    async def main() -> Agent:
        async with Agent(
            simulator.client(), catalog, mcp=clock(tmp_path), system="S", policy=Policy(default="allow")
        ) as agent:
            await agent.send("What time is it?").run()
            return agent

    agent = run(main())
    assert agent.history[-1]["content"] == "It is nine."
    assert "2026-01-05T09:00:00" in agent.history[-2]["content"]
    tools = [canonical_json(request["tools"]) for request in simulator.requests]
    assert len(set(tools)) == (2 if strict else 1)
    names = [[tool.get("name") for tool in request["tools"]] for request in simulator.requests]
    if strict:
        assert all("mcp__clock__now" in name for name in names[1:]) and "mcp__clock__now" not in names[0]


def test_a_strict_session_that_is_resumed_shows_what_it_had_called(tmp_path: Path) -> None:
    deferred = Registry()

    @deferred.tool(read_only=True)
    def weather() -> str:
        """The weather of today."""
        return "rain"

    def catalog() -> Catalog:
        return Catalog(shell(), deferred, protocol="strict")

    script = [assistant("", call("a", "search_tool", query="weather")), assistant("", call("b", "weather")), "Rain."]
    simulator = Simulator([*script, "Still rain."], dialect="anthropic")
    agent = Agent(simulator.client(), catalog(), system="S", journal=Journal.create(tmp_path, {}, id="a"))
    assert say(agent, "How is the weather?") == "Rain."
    run(agent.aclose())
    again = Agent(simulator.client(), catalog(), system="S", journal=Journal.open(tmp_path, "a"))
    assert say(again, "And now?") == "Still rain."
    assert "weather" in [tool["name"] for tool in simulator.requests[-1]["tools"]]
    assert len(simulator.usages) == len(simulator.requests), "nothing was refused"
    run(again.aclose())


def test_an_empty_reply_is_not_sent_again_and_withdraws_nothing() -> None:
    simulator = Simulator(lambda request: "" if len(request["messages"]) == 1 else "Fine.")
    agent = Agent(simulator.client())
    say(agent, "one")
    say(agent, "two")
    assert [message["content"] for message in simulator.requests[-1]["messages"]] == ["one", "two"]
    assert [message["content"] for message in agent.history] == ["one", "two", "Fine."]
    assert "rewind" not in [event["type"] for event in log(agent)]
