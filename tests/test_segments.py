"""segments and context: a whole conversation in a small window, refusals, rewinds, a limit that cannot be reached."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from clean_run import run
from hypothesis import given, settings
from hypothesis import strategies as st
from long_session import WINDOW, desk, get_through, offline_model

from agentlab.agent import Agent
from agentlab.compaction import CompactionError, Limits
from agentlab.context import ContextManager, Prepared, hooks
from agentlab.errors import AgentLabError, ContextOverflow
from agentlab.interrupt import Stop
from agentlab.loop import Compacted, Hooks, run_turn
from agentlab.messages import Message, assistant, call, jsonl, tool, user
from agentlab.pairing import problems
from agentlab.permissions import Policy
from agentlab.segments import SegmentManager
from agentlab.simulator import Simulator
from agentlab.simulator.tokens import render
from agentlab.summary import summarizer
from agentlab.watchdog import LoopBudget

FULL, ROOMY = {"total_tokens": 900}, {"total_tokens": 100}
SMALL = Limits(1_000)


def rounds(count: int, *, first: int = 0, size: int = 200) -> list[Message]:
    history: list[Message] = []
    for n in range(first, first + count):
        history += [assistant("", call(f"c{n}", "read_file", path=f"a/{n}.py")), tool(f"c{n}", "x" * size)]
    return history


class Scribe:
    """A summariser that counts: `S1`, `S2`, ..."""

    def __init__(self, answer: Callable[[int], Any] = lambda number: f"S{number}") -> None:
        self.sources: list[str] = []
        self.answer = answer

    def __call__(self, source: str) -> Any:
        self.sources.append(source)
        return self.answer(len(self.sources))


def prepared(manager: SegmentManager, history: list[Message], usage: Any = None) -> Prepared:
    return run(manager.prepare(history, usage))


TASK = [{"role": "system", "content": "Rules."}, user("The task.")]


# prepare


def test_nothing_happens_below_the_threshold_or_without_a_usage() -> None:
    scribe = Scribe()
    manager = SegmentManager(scribe, limits=SMALL)
    history = [*TASK, *rounds(10)]
    for usage in (None, ROOMY, {}):
        found = prepared(manager, history, usage)
        assert (found.history, found.shortened) == (history, False) and found.why
    assert scribe.sources == [] and manager.last is None
    assert "Only" in prepared(manager, TASK, FULL).why


def test_the_view_is_made_once_and_then_only_grows() -> None:
    scribe = Scribe()
    manager = SegmentManager(scribe, limits=SMALL)
    history = [*TASK, *rounds(10)]
    before = copy.deepcopy(history)
    first = prepared(manager, history, FULL)
    assert first.shortened and "900" in first.why
    assert len(scribe.sources[0]) < 700, "half a character for every token of the window"
    assert [m["role"] for m in first.history[:3]] == ["system", "user", "assistant"]
    assert "S1" in first.history[1]["content"] and "The task." in first.history[1]["content"]
    assert first.history[2:] == history[-8:]
    for usage in (FULL, None, ROOMY):
        again = prepared(manager, history, usage)
        assert jsonl(again.history) == jsonl(first.history) and not again.shortened
    grown = [*history, *rounds(2, first=10)]
    assert jsonl(prepared(manager, grown, ROOMY).history) == jsonl([*first.history, *grown[-4:]])
    assert len(scribe.sources) == 1 and history == before


def test_the_next_compaction_starts_from_the_view() -> None:
    scribe = Scribe()
    manager = SegmentManager(scribe, limits=SMALL, goal="Ship it.")
    history = [*TASK, *rounds(10)]
    prepared(manager, history, FULL)
    history += rounds(10, first=10)
    prepared(manager, history, ROOMY)
    second = prepared(manager, history, FULL)
    assert second.shortened and second.history[2:] == history[-8:]
    assert "S1" in scribe.sources[1] and "/0.py" not in scribe.sources[1] and "/6.py" in scribe.sources[1]
    assert all("Ship it." in source for source in scribe.sources)
    assert "The task." in second.history[1]["content"] and second.history[0] == TASK[0]


def test_a_pinned_task_does_not_keep_it_from_compacting() -> None:
    """The task is the first message and affordable: pinned it would leave nothing to replace."""
    found = prepared(SegmentManager(Scribe(), limits=SMALL), [user("The task."), *rounds(8, size=10)], FULL)
    assert found.shortened and "The task." in found.history[0]["content"]


def test_words_in_reach_are_pinned() -> None:
    history = [*rounds(6), user("The task."), *rounds(6, first=6, size=10)]
    found = prepared(SegmentManager(Scribe(), limits=SMALL), history, FULL)
    assert found.history[1:] == history[12:]


def test_each_compaction_that_is_not_enough_keeps_less_until_it_gives_up() -> None:
    scribe = Scribe()
    manager = SegmentManager(scribe, limits=SMALL, min_messages=1, max_tries=3)
    history, kept = [*TASK, *rounds(12)], []
    for n in range(6):
        history += rounds(1, first=100 + n)
        found = prepared(manager, history, {"total_tokens": 900 + n})
        kept.append(len(found.history) - 2 if found.shortened else 0)
    assert kept == [8, 8, 4, 0, 0, 0]
    assert "3 compactions in a row" in found.why and len(scribe.sources) == 3
    prepared(manager, history, ROOMY)
    assert prepared(manager, history, FULL).shortened


@pytest.mark.parametrize(
    "answer", ["", None, "y" * 99_999, assistant("", call("a", "run"))], ids=["blank", "none", "long", "call"]
)
def test_a_failing_summariser_degrades_and_says_so(answer: Any) -> None:
    manager = SegmentManager(Scribe(lambda number: answer), limits=Limits(8_000))
    history = [*TASK, *rounds(30, size=900)]
    found = prepared(manager, history, {"total_tokens": 7_000})
    assert manager.last and len(manager.last.summary) < 4_100
    assert found.shortened and "summar" in found.why.lower()
    assert manager.last and manager.last.degraded and manager.last.reason in found.why
    assert "The task." in found.history[1]["content"]


def test_an_interrupt_while_summarising_changes_nothing() -> None:
    calls: list[str] = []

    async def slow(source: str) -> str:
        calls.append(source)
        await asyncio.sleep(60 if len(calls) == 1 else 0)
        return "S"

    manager = SegmentManager(slow, limits=SMALL)
    history = [*TASK, *rounds(10)]

    async def main() -> Prepared:
        task = asyncio.create_task(manager.prepare(history, FULL))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await manager.prepare(history)).history == history
        return await manager.prepare(history, FULL)

    assert run(main()).shortened


def test_a_rewind_keeps_the_summary_as_long_as_it_tells_no_future() -> None:
    manager = SegmentManager(Scribe(), limits=SMALL)
    history = [*TASK, *rounds(10)]
    view = prepared(manager, history, FULL).history
    assert prepared(manager, history[:-4]).history == view[:-4]
    edited = [*history[:4], user("Something else."), *history[6:]]
    assert prepared(manager, edited).history == edited
    manager = SegmentManager(Scribe(), limits=SMALL)
    prepared(manager, history, FULL)
    assert prepared(manager, history[:6]).history == history[:6]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.sampled_from([None, 100, 800, 900])), max_size=12))
def test_any_conversation(steps: list[tuple[int, bool, int | None]]) -> None:
    async def main() -> None:
        manager = SegmentManager(Scribe(), limits=SMALL, keep_recent=4, min_messages=4)
        history, words = list(TASK), "The task."
        for number, (count, speaks, used) in enumerate(steps):
            history += rounds(count, first=100 * number)
            if speaks:
                words = f"Words {number}."
                history.append(user(words))
            before = jsonl(history)
            view = (await manager.prepare(history, used and {"total_tokens": used})).history
            assert jsonl(history) == before and problems(view) == []
            assert any(words in str(message["content"]) for message in view)
            assert view[0] == TASK[0] and view[-1] == history[-1]
            assert (await manager.prepare(history, used and {"total_tokens": used})).history == view

    asyncio.run(main())


# Refusals


def test_a_limit_that_cannot_be_reached_ends_in_a_clear_error() -> None:
    scribe = Scribe()
    manager = SegmentManager(scribe, limits=SMALL, max_tries=3)
    history = [*TASK, *rounds(12), *rounds(1, first=50, size=9_999)]
    prepared(manager, history)
    sizes: list[int] = []

    async def main() -> None:
        view = history
        while True:
            view = await manager.on_overflow(view)
            sizes.append(len(view))

    with pytest.raises(CompactionError, match=r"3 tries .* 9,9\d\d|3 tries .* 10,0\d\d") as error:
        run(main())
    assert sizes == [10, 6, 4] and len(scribe.sources) == 3
    assert isinstance(error.value, AgentLabError) and "larger window" in str(error.value)


def test_a_history_that_holds_nothing_to_drop_is_refused_at_once() -> None:
    manager = SegmentManager(Scribe(), limits=SMALL)
    with pytest.raises(CompactionError, match="nothing more"):
        run(manager.on_overflow([user("x" * 9_999)]))


def test_an_answer_in_between_starts_the_count_anew() -> None:
    manager = SegmentManager(Scribe(), limits=SMALL, max_tries=1)
    history = [*TASK, *rounds(12)]
    prepared(manager, history)
    run(manager.on_overflow(history))
    history += rounds(12, first=20)
    prepared(manager, history, ROOMY)
    assert len(run(manager.on_overflow(history))) == 10
    with pytest.raises(CompactionError):
        run(manager.on_overflow(history))


# In the loop


def test_a_refused_request_is_compacted_and_sent_again() -> None:
    simulator = Simulator(lambda request: "Fine.", context_window=1_200)
    manager = SegmentManager(Scribe(), limits=Limits(1_200))
    history = [*TASK, *rounds(12, size=800), user("And now?")]

    async def main() -> list[Any]:
        turn = run_turn(history, simulator.client(), desk(10), hooks=hooks(manager))
        return [event async for event in turn]

    events = run(main())
    assert any(isinstance(event, Compacted) for event in events) and events[-1].reason == "done"
    assert simulator.requests[-1]["messages"][-1]["content"] == "And now?"
    assert all("origin" not in message for message in simulator.requests[-1]["messages"])


def test_a_request_that_never_fits_ends_the_turn_and_keeps_the_history() -> None:
    simulator = Simulator(lambda request: "Fine.", context_window=500)
    history = [*TASK, *rounds(12), user("y " * 2_000)]

    async def main() -> Any:
        turn = run_turn(
            history, simulator.client(), desk(10), hooks=hooks(SegmentManager(Scribe(), limits=Limits(500)))
        )
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
    manager = SegmentManager(never, limits=Limits(1_000))
    wired = hooks(manager)
    history = [*TASK, *rounds(12)]

    async def main() -> Any:
        assert wired.on_usage
        wired.on_usage(FULL)
        return await run_turn(history, simulator.client(), desk(10), stop=stop, hooks=wired).run()

    turn = run(main())
    assert turn.reason == "stopped" and turn.history == history and simulator.requests == []


def test_other_hooks_stay() -> None:
    seen: list[Any] = []
    wired = hooks(SegmentManager(Scribe()), Hooks(on_usage=seen.append, after_message=seen.append))
    assert wired.on_usage and wired.after_message is not None
    wired.on_usage(ROOMY)
    assert seen == [ROOMY]


@pytest.mark.parametrize("turns", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_many_turns_in_a_small_window(turns: int) -> None:
    simulator = Simulator(offline_model, context_window=WINDOW)
    client = simulator.client()
    manager = SegmentManager(summarizer(client), limits=Limits(WINDOW))
    agent = Agent(client, desk(600), system="You are careful.", context=None, hooks=hooks(manager))
    summaries = get_through(agent, simulator, turns)
    assert summaries < 0.6 * turns, "not a summary at every step"
    assert manager.last and not manager.last.degraded


def test_one_task_of_two_hundred_steps_is_never_forgotten() -> None:
    task = "Port every module to v2, and do not touch the tests."
    left = iter(range(200))

    def script(request: dict[str, Any]) -> Any:
        if "tools" not in request:
            return "1. Task: porting. 2. Done: some. 3. Open: the rest. 4. Files: many. 5. None."
        n = next(left, None)
        return "All done." if n is None else assistant("", call(f"c{n}", "read_file", path=f"{n}.py"))

    simulator = Simulator(script, context_window=WINDOW)
    manager = SegmentManager(summarizer(simulator.client()), limits=Limits(WINDOW))
    agent = Agent(
        simulator.client(),
        desk(600),
        context=None,
        hooks=hooks(manager),
        budget=lambda: LoopBudget(300),
        policy=Policy(default="allow"),
    )
    turn = asyncio.run(agent.send(task).run())
    assert turn.reason == "done"
    chats = [request for request in simulator.requests if "tools" in request]
    assert len(chats) == 201 and max(len(render(r["tools"], r["messages"])) for r in chats) < WINDOW
    assert all(any(task in str(m["content"]) for m in r["messages"] if m["role"] == "user") for r in chats)


def test_it_is_a_context_manager_and_its_views_draw_themselves() -> None:
    manager: ContextManager = SegmentManager(Scribe(), limits=SMALL)
    found = run(manager.prepare([*TASK, *rounds(10)], FULL))
    assert "summarised" in found._repr_html_()


def test_equal_numbers_for_another_history_are_another_usage() -> None:
    scribe = Scribe()
    manager = SegmentManager(scribe, limits=SMALL)
    short = [*TASK, *rounds(2)]
    assert "Only" in prepared(manager, short, FULL).why
    grown = [*short, *rounds(10, first=2)]
    assert not prepared(manager, grown, FULL).shortened, "the very same report"
    assert prepared(manager, grown, dict(FULL)).shortened
    assert not prepared(manager, grown, dict(FULL)).shortened and len(scribe.sources) == 1


def test_a_system_message_between_others_stands_first_and_once() -> None:
    manager = SegmentManager(Scribe(), limits=SMALL)
    mode = {"role": "system", "content": "MODE"}
    history = [*TASK, *rounds(10), mode, *rounds(2, first=10)]
    view = prepared(manager, history, FULL).history
    assert view[:2] == [TASK[0], mode] and view[2]["origin"] == "compaction" and view.count(mode) == 1
    history += rounds(9, first=12)
    grown = prepared(manager, history).history
    assert grown == [*view, *history[-18:]]
    again = prepared(manager, history, dict(FULL)).history
    assert again[:2] == [TASK[0], mode] and again[3:] == history[-8:]
    assert prepared(manager, history).history == again


def test_an_image_that_cannot_go_is_named_with_its_size() -> None:
    picture = user("") | {"content": [{"type": "image_url", "image_url": {"url": "x" * 300_000}}]}
    with pytest.raises(CompactionError, match=r"has 300,0\d\d characters"):
        run(SegmentManager(Scribe(), limits=SMALL).on_overflow([picture]))
