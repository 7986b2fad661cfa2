"""surfacemanager: the surface in the loop, over whole conversations, refusals, rewinds, resumed sessions."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_session import WINDOW, desk, get_through, offline_model

from agentlab.agent import Agent
from agentlab.compaction import CompactionError, Limits
from agentlab.context import ContextManager, Prepared, hooks
from agentlab.errors import ContextOverflow
from agentlab.interrupt import Stop
from agentlab.journal import Journal, replay
from agentlab.loop import Compacted, run_turn
from agentlab.messages import Message, assistant, call, jsonl, tool, user
from agentlab.pairing import problems, repair
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.simulator.tokens import render
from agentlab.summary import Breaker, summarizer
from agentlab.surface import Surface, SurfaceManager, sync
from agentlab.watchdog import LoopBudget
from tests.clean_run import run
from tests.strategies import torn_histories

SMALL = Limits(1_000)


class Scribe:
    """A summariser that counts: `S1`, `S2`, ..."""

    def __init__(self, answer: Callable[[int], Any] = lambda number: f"S{number}") -> None:
        self.sources: list[str] = []
        self.answer = answer

    def __call__(self, source: str) -> Any:
        self.sources.append(source)
        return self.answer(len(self.sources))


def rounds(count: int, *, first: int = 0, size: int = 200) -> list[Message]:
    history: list[Message] = []
    for n in range(first, first + count):
        history += [assistant("", call(f"c{n}", "read_file", path=f"a/{n}.py")), tool(f"c{n}", "x" * size)]
    return history


def prepared(manager: SurfaceManager, history: list[Message], usage: Any = None) -> Prepared:
    return run(manager.prepare(history, usage))


TASK = [{"role": "system", "content": "Rules."}, user("The task.")]


# prepare


def test_a_short_history_is_sent_as_it_is() -> None:
    manager, scribe = SurfaceManager(Scribe(), limits=SMALL), Scribe()
    history = [*TASK, *rounds(2)]
    found = prepared(manager, history)
    assert (found.history, found.shortened) == (history, False) and found.why and scribe.sources == []


def test_the_view_is_made_once_and_then_only_grows() -> None:
    scribe = Scribe()
    manager = SurfaceManager(scribe, limits=SMALL)
    history = [*TASK, *rounds(10)]
    before = copy.deepcopy(history)
    first = prepared(manager, history)
    assert first.shortened and "750" in first.why and history == before
    assert first.history[0] == TASK[0] and "S1" in first.history[1]["content"]
    assert "The task." in first.history[1]["content"] and first.history[2:] == history[-len(first.history) + 2 :]
    again = prepared(manager, history)
    assert jsonl(again.history) == jsonl(first.history) and not again.shortened
    grown = [*history, *rounds(1, first=10)]
    assert jsonl(prepared(manager, grown).history) == jsonl([*first.history, *grown[-2:]])
    assert len(scribe.sources) == 1
    assert "summarised" in first._repr_html_()


def test_what_the_provider_counts_decides() -> None:
    """The tools are large, or its tokens are short: the estimate alone would never find out."""
    scribe = Scribe()
    manager = SurfaceManager(scribe, limits=SMALL)
    history = [*TASK, *rounds(3)]
    assert not prepared(manager, history).shortened
    history += [assistant("I see.")]
    found = prepared(manager, history, {"prompt_tokens": 900, "completion_tokens": 3})
    assert found.shortened and len(scribe.sources) == 1
    manager = SurfaceManager(Scribe(), limits=Limits(4_000))
    prepared(manager, history)
    assert prepared(manager, history, {"total_tokens": 3_500}).shortened


def test_the_same_usage_is_looked_at_once() -> None:
    manager = SurfaceManager(Scribe(), limits=Limits(4_000))
    history, usage = [*TASK, *rounds(3)], {"prompt_tokens": 2_000}
    prepared(manager, history)
    prepared(manager, history, usage)
    overhead = manager.compactor.overhead
    for _ in range(2):
        prepared(manager, [*history, *rounds(2, first=9)], usage)
    assert manager.compactor.overhead == overhead > 1_500


def test_pressure_alone_never_ends_a_turn_and_is_not_tried_for_ever() -> None:
    scribe = Scribe(lambda _: "")
    manager = SurfaceManager(scribe, limits=SMALL, max_tries=2, breaker=Breaker(99))
    history, why = [*TASK, *rounds(10)], []
    for n in range(4):
        history += rounds(1, first=20 + n)
        found = prepared(manager, history)
        assert found.history == history and not found.shortened
        why.append(found.why)
    assert len(scribe.sources) == 2 and "returned nothing" in why[1] and "2 tries" in why[3]
    with pytest.raises(CompactionError, match="returned nothing"):
        run(manager.on_overflow(history))
    prepared(manager, history[:2])
    prepared(manager, history)
    assert len(scribe.sources) == 4, "it came below the threshold in between"


def test_a_rewind_takes_back_what_a_summary_knew() -> None:
    manager = SurfaceManager(Scribe(lambda n: f"knows c9, S{n}"), limits=SMALL)
    history = [*TASK, *rounds(10)]
    prepared(manager, history)
    branch = [*history[:4], user("Something else.")]
    assert prepared(manager, branch).history == branch
    assert [event["type"] for event in manager.surface.events][-2:] == ["rewind", "message"]
    other = [{"role": "system", "content": "Other rules."}, *branch[1:]]
    assert prepared(manager, other).history == other


def test_a_rewind_behind_the_summary_keeps_it() -> None:
    manager = SurfaceManager(Scribe(), limits=SMALL)
    history = [*TASK, *rounds(10)]
    view = prepared(manager, history).history
    longer = [*history, user("More.")]
    prepared(manager, longer)
    assert prepared(manager, [*history, user("Other.")]).history == [*view, user("Other.")]


def test_an_interrupt_while_summarising_changes_nothing() -> None:
    calls: list[str] = []

    async def slow(source: str) -> str:
        calls.append(source)
        await asyncio.sleep(60 if len(calls) == 1 else 0)
        return "S"

    manager = SurfaceManager(slow, limits=SMALL)
    history = [*TASK, *rounds(10)]

    async def main() -> Prepared:
        task = asyncio.create_task(manager.prepare(history))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert manager.surface.history() == history
        return await manager.prepare(history)

    assert run(main()).shortened


@settings(max_examples=40, deadline=None, derandomize=True)
@given(torn_histories(), st.data())
def test_any_history_is_followed(history: list[Message], data: st.DataObject) -> None:
    """Whatever comes next, the view is what a fresh surface would have: nothing withdrawn, nothing lost."""
    surface = Surface()
    for _ in range(3):
        sent = repair(data.draw(st.sampled_from([history, history[: len(history) // 2], history[1:]]))).history
        sync(surface, sent)
        assert surface.history() == sent and problems(sent) == []
        sync(surface, sent)
        assert surface.history() == sent
        history = [*history, user(f"words {surface.last}")]


def test_placeholders_of_a_repair_are_no_news() -> None:
    """A recorder leaves them out of the log, and the loop's history has them."""
    surface = Surface()
    surface.append_all([user("Go."), assistant("", call("a", "run")), user("Again.")])
    history = repair([message for _, message in surface.nodes]).history
    assert len(history) == 4 and sync(surface, [*history, assistant("Yes.")]) == [4]
    mended = Surface()
    broken = assistant("", call("a", "run"))
    broken["tool_calls"][0]["function"]["arguments"] = '{"path":'
    mended.append_all([user("Go."), broken, tool("a", "x")])
    assert sync(mended, repair([message for _, message in mended.nodes]).history) == []


# Resumed sessions


@pytest.mark.parametrize("whole", [False, True], ids=["the view", "all that was said"])
def test_a_session_goes_on_after_a_restart(tmp_path: Path, whole: bool) -> None:
    scribe, history = Scribe(), [*TASK, *rounds(10)]
    with Journal.create(tmp_path, {}, id="s") as journal:
        view = prepared(SurfaceManager(scribe, surface=Surface(journal), limits=SMALL), history).history
    with Journal.open(tmp_path, "s") as journal:
        before = journal.path.read_bytes()
        manager = SurfaceManager(scribe, surface=Surface(journal), limits=SMALL)
        history = history if whole else replay(journal.events()).history
        assert prepared(manager, history).history == view and journal.path.read_bytes() == before
        for n in range(10):
            history += rounds(1, first=30 + n)
            sent = prepared(manager, history).history
            assert sent == replay(journal.events()).history and problems(sent) == []
        kinds = [event["type"] for event in journal.events()]
        assert kinds.count("rewind") == 0 and kinds.count("message") == 42 and len(scribe.sources) > 1
        back = prepared(manager, history[:-4])
        assert back.history == replay(journal.events()).history and back.history[-1] == history[-5]


def test_a_view_that_was_resumed_may_be_cut_down_to_its_summary() -> None:
    manager = SurfaceManager(Scribe(), limits=SMALL)
    prepared(manager, [*TASK, *rounds(10)])
    again = SurfaceManager(Scribe(), surface=Surface(events=manager.surface.events), limits=SMALL)
    view = prepared(again, manager.surface.history()).history
    for history in (view[:2], [*view[:2], user("Now this.")]):
        assert prepared(again, history).history == history


# Refusals


def test_a_limit_that_cannot_be_reached_ends_in_a_clear_error() -> None:
    scribe = Scribe()
    manager = SurfaceManager(scribe, limits=SMALL)
    history = [*TASK, user("y" * 9_999)]
    prepared(manager, history)
    with pytest.raises(CompactionError, match="9,999"):
        run(manager.on_overflow(history))
    assert scribe.sources == []


def test_an_answer_in_between_starts_the_count_anew() -> None:
    manager = SurfaceManager(Scribe(), limits=Limits(100_000))
    history = [*TASK, *rounds(12)]
    prepared(manager, history)
    run(manager.on_overflow(history))
    with pytest.raises(CompactionError):
        run(manager.on_overflow(history))
    history += rounds(12, first=20)
    prepared(manager, history)
    assert len(run(manager.on_overflow(history))) == 4
    for n in range(5):
        history += rounds(3, first=50 + 3 * n)
        prepared(manager, history)
        assert len(run(manager.on_overflow(history))) == 4


def test_a_refusal_before_the_first_look() -> None:
    assert len(run(SurfaceManager(Scribe()).on_overflow([*TASK, *rounds(12)]))) == 4


# In the loop


def test_a_refused_request_is_compacted_and_sent_again() -> None:
    simulator = Simulator(lambda request: "Fine.", context_window=1_200)
    manager = SurfaceManager(Scribe(), limits=Limits(100_000))
    history = [*TASK, *rounds(12, size=800), user("And now?")]

    async def main() -> list[Any]:
        turn = run_turn(history, simulator.client(), desk(10), hooks=hooks(manager))
        return [event async for event in turn]

    events = run(main())
    assert any(isinstance(event, Compacted) for event in events) and events[-1].reason == "done"
    assert simulator.requests[-1]["messages"][-1]["content"] == "And now?"
    assert all("origin" not in message for message in simulator.requests[-1]["messages"])


def test_one_result_that_fills_the_window_does_not_end_the_turn() -> None:
    simulator = Simulator([assistant("", call("a", "read_file", path="big.txt")), "It is big."], context_window=2_000)
    manager = SurfaceManager(Scribe(), limits=Limits(2_000))
    agent = Agent(simulator.client(), desk(7_000), context=None, hooks=hooks(manager))
    turn = run(agent.send("Read it.").run())
    assert turn.reason == "done" and len(simulator.requests) == 2
    assert "pruned" in simulator.requests[-1]["messages"][-1]["content"]
    assert len(agent.history[2]["content"]) > 7_000, "the turn's history has all of it"


def test_a_request_that_never_fits_ends_the_turn_and_keeps_the_history() -> None:
    simulator = Simulator(lambda request: "Fine.", context_window=500)
    history = [*TASK, *rounds(12), user("y " * 2_000)]

    async def main() -> Any:
        manager = SurfaceManager(Scribe(), limits=Limits(500))
        turn = run_turn(history, simulator.client(), desk(10), hooks=hooks(manager))
        with pytest.raises((CompactionError, ContextOverflow)):
            await turn.run()
        return turn

    turn = run(main())
    assert turn.history == history and len(simulator.requests) <= 3


def test_stop_reaches_the_summariser_and_the_history_stays() -> None:
    stop = Stop()

    async def never(source: str) -> str:
        stop.request()
        await asyncio.Event().wait()
        return "S"

    simulator = Simulator(["Fine."], context_window=1_000)
    manager = SurfaceManager(never, limits=SMALL)
    history = [*TASK, *rounds(12)]
    turn = run(run_turn(history, simulator.client(), desk(10), stop=stop, hooks=hooks(manager)).run())
    assert turn.reason == "stopped" and turn.history == history and simulator.requests == []
    assert manager.surface.history() == history


@pytest.mark.parametrize("turns", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_many_turns_in_a_small_window(tmp_path: Path, turns: int) -> None:
    simulator = Simulator(offline_model, context_window=WINDOW)
    client = simulator.client()
    with Journal.create(tmp_path, {}) as journal:
        manager = SurfaceManager(summarizer(client), surface=Surface(journal), limits=Limits(WINDOW))
        agent = Agent(client, desk(600), system="You are careful.", context=None, hooks=hooks(manager))
        summaries = get_through(agent, simulator, turns)
        assert replay(journal.events()).history == manager.surface.history()
        kinds = [event["type"] for event in journal.events()]
    assert 0 < summaries < 0.4 * turns, "not a summary at every step"
    assert "rewind" not in kinds and kinds.count("message") == 4 * turns, "the last reply was not sent yet"


def test_one_task_of_many_steps_is_never_forgotten() -> None:
    task = "Port every module to v2, and do not touch the tests."
    left = iter(range(60))

    def script(request: dict[str, Any]) -> Any:
        if "tools" not in request:
            return "1. Task: porting. 2. Done: some. 3. Open: the rest. 4. Files: many. 5. None."
        n = next(left, None)
        return "All done." if n is None else assistant("", call(f"c{n}", "read_file", path=f"{n}.py"))

    simulator = Simulator(script, context_window=WINDOW)
    manager = SurfaceManager(summarizer(simulator.client()), limits=Limits(WINDOW))
    agent = Agent(
        simulator.client(),
        desk(600),
        context=None,
        hooks=hooks(manager),
        budget=lambda: LoopBudget(99),
        policy=Policy(default="allow"),
    )
    turn = asyncio.run(agent.send(task).run())
    assert turn.reason == "done"
    chats = [request for request in simulator.requests if "tools" in request]
    assert len(chats) == 61 and max(len(render(r["tools"], r["messages"])) for r in chats) < WINDOW
    assert all(any(task in str(m["content"]) for m in r["messages"] if m["role"] == "user") for r in chats)


def test_it_is_a_context_manager() -> None:
    manager: ContextManager = SurfaceManager(Scribe(), limits=SMALL)
    assert run(manager.prepare([*TASK, *rounds(10)], None)).shortened
