"""Sliders, the Stop button, the chat panel and `run_sync`, driven through the real widgets and the real simulator."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import textwrap
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import ipywidgets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from ipywidgets.widgets.widget import _instances

from agentlab import draw
from agentlab.errors import AgentLabError, ProviderUnavailable, StreamError
from agentlab.loop import Called, Compacted, Done, Finished, Steered, Text, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.permissions import Policy
from agentlab.simulator import Fault, Simulator
from agentlab.steer import SteerQueue
from agentlab.tools import Registry, ToolResult
from agentlab.widgets import ChatPanel, Explorer, StreamPanel, chat, explore, run_sync, stream
from agentlab.widgets.explorer import control
from agentlab.widgets.live import LINES, TEXT_LIMIT, Live, Throttle, transcript

T = TypeVar("T")
VIEW = "application/vnd.jupyter.widget-view+json"
HANG_GUARD_S = 20
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x00\u202e\ud800'


def drive(coro: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; a hang is a failure."""
    return asyncio.run(asyncio.wait_for(coro, HANG_GUARD_S))


def words(markup: str) -> str:
    """What a reader sees of the markup, which has to be well-formed."""
    assert "<script" not in markup
    assert "<img" not in markup
    return "".join(ET.fromstring(f"<div>{markup}</div>").itertext())


async def until(happened: Callable[[], Any]) -> None:
    """Wait for what other tasks do."""
    while not happened():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def from_browser(widget: ipywidgets.Widget, **state: Any) -> None:
    """A change of a widget as its comm delivers it."""
    data = {"method": "update", "state": state, "buffer_paths": []}
    widget._handle_msg({"content": {"data": data}, "buffers": []})


def custom(widget: ipywidgets.Widget, **content: Any) -> None:
    """A click or a submit as its comm delivers it."""
    widget._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})


@contextmanager
def displayed() -> Iterator[list[dict[str, Any]]]:
    """The bundles that were displayed, as a front end gets them."""
    InteractiveShell.instance()
    bundles: list[dict[str, Any]] = []
    with capture_output() as captured:
        try:
            yield bundles
        finally:
            bundles += [output.data for output in captured.outputs]


def live_panel(bundle: dict[str, Any]) -> Any:
    return _instances[bundle[VIEW]["model_id"]]


# ── explore ─────────────────────────────────────────────────────────────────


def picture(**values: Any) -> draw.Html:
    return draw.element("div", f"{values}")


@pytest.mark.parametrize(
    ("spec", "kind", "start"),
    [
        ((1, 64), ipywidgets.IntSlider, 1),
        ((10, 50, 5), ipywidgets.IntSlider, 10),
        (range(3, 9, 2), ipywidgets.IntSlider, 3),
        ((0.0, 1.0), ipywidgets.FloatSlider, 0.0),
        ((0, 1, 0.25), ipywidgets.FloatSlider, 0.0),
        (["head", "tail"], ipywidgets.SelectionSlider, "head"),
        ([("few", 3), ("many", 30)], ipywidgets.SelectionSlider, 3),
        (True, ipywidgets.Checkbox, True),
        (False, ipywidgets.Checkbox, False),
    ],
)
def test_each_kind_of_keyword_has_its_control(spec: Any, kind: type, start: Any) -> None:
    made = control("knob", spec)
    assert type(made) is kind
    assert made.value == start
    assert made.description == "knob"
    if isinstance(spec, range | tuple):
        assert made.max == (7 if isinstance(spec, range) else spec[1])
    explorer = explore(picture, knob=spec)
    assert explorer.values == {"knob": start}
    assert words(explorer._screen.value) == str({"knob": start})


def test_what_takes_input_has_a_name_beside_it_and_is_reached_by_key() -> None:
    for spec in ((1, 64), (0.0, 1.0), ["a", "b"], True):
        made = control("cut", spec)
        assert made.description == "cut"
        assert made.tooltip  # without one, ipywidgets shows "null" to whoever points at a slider
        assert made.tabbable is not False

    async def panel() -> Any:
        return chat(Agent())

    field = asyncio.run(panel()).input
    assert field.description == "You"
    assert field.placeholder


def test_a_widget_is_taken_as_it_is() -> None:
    mine = ipywidgets.Dropdown(options=["a", "b"], value="b")
    assert control("knob", mine) is mine
    assert explore(picture, knob=mine).values == {"knob": "b"}


@pytest.mark.parametrize(
    "spec", ["text", 5, (1,), (5, 1), (1, 2, 0), (1, "2"), (True, 5), [], None, ipywidgets.HBox(), range(1)]
)
def test_what_makes_no_slider_is_refused_by_name(spec: Any) -> None:
    with pytest.raises(AgentLabError, match="knob="):
        explore(picture, knob=spec)


def test_set_moves_the_real_sliders_and_draws_once() -> None:
    drawn: list[dict[str, Any]] = []
    seen: list[Any] = []

    def view(**values: Any) -> draw.Html:
        drawn.append(values)
        return picture(**values)

    explorer = explore(view, cut=(1, 64), mode=["head", "tail"])
    explorer.children[0].observe(lambda change: seen.append(change["new"]), "value")
    assert explorer.set(cut=31, mode="tail") is explorer
    assert explorer.values == {"cut": 31, "mode": "tail"}
    assert explorer.children[0].value == 31
    assert seen == [31]
    assert drawn == [{"cut": 1, "mode": "head"}, {"cut": 31, "mode": "tail"}]
    assert explorer.picture == picture(cut=31, mode="tail")
    explorer.set(cut=31)
    assert len(drawn) == 2  # nothing moved


def test_a_drag_in_the_browser_redraws() -> None:
    explorer = explore(lambda cut: f"cut at {cut}", cut=(1, 64))
    for value in (2, 3, 31):
        from_browser(explorer.children[0], value=value)
        assert words(explorer._screen.value) == f"cut at {value}"
    assert explorer.picture == "cut at 31"


def test_set_refuses_what_the_control_does_not_take() -> None:
    explorer = explore(picture, cut=(1, 64), mode=["head", "tail"])
    with pytest.raises(AgentLabError, match="no control 'cot': cut, mode"):
        explorer.set(cot=3)
    with pytest.raises(AgentLabError, match="cut cannot be 99: its range made it 64"):
        explorer.set(cut=99)
    assert explorer.picture == picture(cut=64, mode="head")  # the picture shows where the slider stands
    with pytest.raises(AgentLabError, match="mode does not take 'middle'"):
        explorer.set(mode="middle")
    with pytest.raises(AgentLabError, match="cut does not take 'x'"):
        explorer.set(cut="x")


def test_an_error_in_the_view_is_shown_in_a_drag_and_raised_from_code() -> None:
    def view(cut: int) -> str:
        if cut == 13:
            raise ValueError(HOSTILE)
        return f"cut {cut}"

    explorer = explore(view, cut=(1, 64))
    from_browser(explorer.children[0], value=13)
    assert words(explorer._screen.value).startswith('ValueError: "><script>alert(1)')
    explorer.set(cut=14)
    assert words(explorer._screen.value) == "cut 14"
    with pytest.raises(ValueError, match="alert"):
        explorer.set(cut=13)
    with pytest.raises(ValueError, match="alert"):
        explorer.set(cut=13)  # still wrong
    with pytest.raises(ZeroDivisionError):
        explore(lambda cut: 1 // cut, cut=(0, 3))


def test_an_explorer_shows_itself_live_and_without_a_kernel() -> None:
    def shown() -> dict[str, Any]:
        with displayed() as bundles:
            from IPython.display import display

            display(
                explore(lambda cut, mode: draw.element("b", f"{mode} {cut}"), cut=(1, 64), mode=["head", "tail"]).set(
                    cut=31
                )
            )
        return bundles[0]

    first, again = shown(), shown()
    assert first["text/plain"] == "explore(cut=31, mode=head)"
    assert "<b>head 31</b>" in first["text/html"]
    assert words(first["text/html"]) == "cut=31, mode=headhead 31"
    assert isinstance(live_panel(first), Explorer)
    assert {k: v for k, v in first.items() if k != VIEW} == {k: v for k, v in again.items() if k != VIEW}


def test_whatever_the_view_returns_is_escaped_unless_it_draws_itself() -> None:
    explorer = explore(lambda text: text, text=[HOSTILE, "plain"])
    assert "[U+202E]" in words(explorer._screen.value)
    assert "[U+202E]" in words(explorer._repr_mimebundle_()["text/html"])
    assert "\x00" not in repr(explorer)


# ── run_sync ────────────────────────────────────────────────────────────────

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def answer() -> tuple[str, str, str]:
    await asyncio.sleep(0)
    return "hi", COLOUR.get(), threading.current_thread().name


async def fail() -> None:
    await asyncio.sleep(0)
    raise AgentLabError("as planned")


def test_run_sync_without_a_loop_is_asyncio_run() -> None:
    assert run_sync(answer())[0] == "hi"
    assert run_sync(answer())[2] == threading.current_thread().name
    with pytest.raises(AgentLabError, match="as planned"):
        run_sync(fail())


def test_run_sync_inside_a_running_loop_uses_a_thread_and_carries_context() -> None:
    async def cell() -> tuple[str, str, str]:
        COLOUR.set("blue")
        with pytest.raises(AgentLabError, match="as planned"):
            run_sync(fail())
        with pytest.raises(SystemExit):
            run_sync(leave())
        return run_sync(answer())

    async def leave() -> None:
        raise SystemExit(3)

    assert drive(cell()) == ("hi", "blue", "run_sync")


def test_run_sync_needs_no_nest_asyncio() -> None:
    script = """
        import asyncio, sys
        sys.modules["nest_asyncio"] = None  # importing it fails
        from agentlab.errors import AgentLabError
        from agentlab.widgets import run_sync

        async def answer():
            await asyncio.sleep(0)
            return "hi"

        async def cell():
            print(run_sync(answer()))
            try:
                run_sync(answer(), how="nested")
            except AgentLabError as error:
                print("pip install nest-asyncio" in str(error))

        asyncio.run(cell())
    """
    assert script_output(script) == "hi\nTrue\n"


def test_run_sync_nested_stays_on_the_callers_loop() -> None:
    script = """
        import asyncio
        from agentlab.widgets import run_sync

        async def inner():
            await asyncio.sleep(0)
            return asyncio.get_running_loop()

        async def cell():
            outer = asyncio.get_running_loop()
            print(run_sync(inner(), how="nested") is outer, run_sync(inner()) is outer)

        asyncio.run(cell())
    """
    assert script_output(script) == "True False\n"


def script_output(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_interrupt_reaches_a_coroutine_in_its_thread_and_waits_for_its_clean_up() -> None:
    script = """
        import asyncio
        from agentlab.widgets import run_sync

        async def work():
            print("started", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                print("cleaned up", flush=True)

        async def cell():
            try:
                run_sync(work())
            except KeyboardInterrupt:
                print("interrupted", flush=True)

        async def main():  # a kernel runs its cells with this handler, unlike asyncio.run
            import signal
            signal.signal(signal.SIGINT, signal.default_int_handler)
            await cell()

        asyncio.run(main())
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=HANG_GUARD_S)
    finally:
        child.kill()
    assert output == "cleaned up\ninterrupted\n"
    assert child.returncode == 0


# ── the turn on the screen ──────────────────────────────────────────────────


def registry(handler: Callable[..., Any] | None = None) -> Registry:
    tools = Registry()

    @tools.tool(read_only=True)
    async def look(path: str) -> str:
        """Look at a file."""
        result = handler(path) if handler else f"contents of {path}"
        return await result if asyncio.iscoroutine(result) else str(result)

    return tools


def turn_of(*steps: Any, handler: Callable[..., Any] | None = None, pace: float = 0.0, text: str = "go") -> Turn:
    return run_turn([user(text)], Simulator(list(steps), pace=pace).client(), registry(handler), policy=Policy())


LOOK = assistant("I will look. ", call("c1", "look", path="<a.txt>"))


def streamed(turn: Turn, **options: Any) -> tuple[Turn, StreamPanel, list[dict[str, Any]]]:
    with displayed() as bundles:
        result = drive(stream(turn, **options))
    return result, live_panel(bundles[0]), bundles


def test_stream_shows_text_calls_and_results_and_returns_the_turn() -> None:
    turn = turn_of(LOOK, "All is <b>well</b>.")
    result, panel, _ = streamed(turn)
    assert result is turn
    assert turn.reason == "done"
    shown = words(panel._screen.value)
    assert "I will look." in shown
    assert 'look({"path":"<a.txt>"})' in shown
    assert "completed, 19 characters: contents of <a.txt>" in shown
    assert (
        shown.index("I will look")
        < shown.index("look({")
        < shown.index("completed")
        < shown.index("All is <b>well</b>.")
    )
    assert panel.button.disabled
    assert words(panel._status.value) == "done"
    assert "agentlab-stop" in panel.button._dom_classes


def test_what_stream_saves_for_readers_without_a_kernel_is_the_same_in_every_run() -> None:
    def saved() -> list[dict[str, Any]]:
        _, _, bundles = streamed(turn_of(LOOK, "All is well."))
        return [{k: v for k, v in bundle.items() if k != VIEW} for bundle in bundles]

    first = saved()
    assert first == saved()
    assert first[0] == {"text/plain": "<stream: a live panel with a Stop button>"}
    assert first[1]["text/plain"].startswith("<stream: done, ")
    assert "All is well." in words(first[1]["text/html"])


def test_the_second_output_is_invisible_where_the_panel_lives() -> None:
    _, _, bundles = streamed(turn_of("hi"))
    assert len(bundles) == 2
    assert live_panel(bundles[1]).layout.display == "none"
    assert live_panel(bundles[1]).value == ""


@pytest.mark.parametrize("after", [1, 2, 5])
def test_click_after_stops_at_the_same_text_every_time(after: int) -> None:
    endings = []
    for _ in range(3):
        turn = turn_of("one two three four five six seven eight nine ten")
        result, panel, _ = streamed(turn, click_after=after)
        assert result.reason == "stopped"
        assert panel.live.texts == after
        assert panel.button.disabled
        assert words(panel._status.value).startswith("stopped")
        endings.append((result.history[-1]["content"], words(panel._screen.value)))
    assert endings[0] == endings[1] == endings[2]
    assert endings[0][0]
    assert "ten" not in endings[0][0]
    assert endings[0][0] in endings[0][1]


def test_an_error_is_shown_and_raised_and_the_text_before_it_stays() -> None:
    turn = turn_of(Fault(cut_at=900, step="word " * 40))
    with displayed() as bundles, pytest.raises((StreamError, ProviderUnavailable)):
        drive(stream(turn))
    panel = live_panel(bundles[0])
    assert "word word" in words(panel._screen.value)
    assert words(panel._status.value).startswith("error: ")
    assert panel.button.disabled
    assert "word word" in turn.history[-1]["content"]
    assert "word word" in words(bundles[-1]["text/html"])


def test_interrupt_keeps_what_came_and_the_cell_goes_on() -> None:
    turn = turn_of(Fault(stall_at=900, step="word " * 40))

    async def cell() -> tuple[Turn, int]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.2, task.cancel)
        result = await stream(turn)
        await asyncio.sleep(0)  # the next line of the cell
        return result, task.cancelling()

    with displayed() as bundles:
        result, cancelling = asyncio.run(cell())
    panel = live_panel(bundles[0])
    assert (result, cancelling) == (turn, 0)
    assert turn.reason == "interrupted"
    assert "word" in turn.history[-1]["content"]
    assert "word" in words(panel._screen.value)
    assert words(panel._status.value) == "interrupted"
    assert panel.button.disabled


def test_stop_from_another_thread_ends_a_stalled_turn() -> None:
    turn = turn_of(Fault(stall_at=900, step="word " * 40))

    async def cell() -> Turn:
        threading.Timer(0.2, turn.stop.request).start()
        return await stream(turn)

    with displayed() as bundles:
        assert drive(cell()).reason == "stopped"
    assert "word" in words(live_panel(bundles[0])._screen.value)


def test_hostile_text_stays_text_on_the_screen() -> None:
    hostile = HOSTILE.replace("\ud800", "")
    result, panel, bundles = streamed(turn_of(assistant(hostile, call("c1", "look", path=hostile)), hostile))
    assert result.reason == "done"
    for markup in (panel._screen.value, panel._status.value, bundles[1]["text/html"]):
        assert "[U+0000]" in words(markup) or markup == panel._status.value


def test_updates_are_paced_by_the_clock_and_the_last_one_is_forced() -> None:
    async def cell() -> tuple[list[str], StreamPanel]:
        values: list[str] = []
        turn = turn_of("x" * 3_000)
        panel = StreamPanel(turn.stop, clock=lambda: 7.0)
        panel._screen.observe(lambda change: values.append(words(change["new"])), "value")
        async for event in turn:
            panel.feed(event)
        panel.end("done")
        after_the_end = len(values)
        panel.feed(Text("late"))  # starts no timer that could fire
        await asyncio.sleep(0.12)
        assert len(values) == after_the_end
        return values, panel

    values, panel = drive(cell())
    assert panel.live.texts > 100
    assert values[-1] == "x" * 3_000
    assert len(values) <= 20


def test_a_throttle_draws_the_first_the_delayed_and_the_last_state() -> None:
    async def run() -> None:
        now, shown = [0.0], list[int]()
        state = [0]
        throttle = Throttle(lambda: shown.append(state[0]), clock=lambda: now[0])
        throttle.soon()
        assert shown == [0]
        for state[0] in range(1, 10):
            throttle.soon()
        assert shown == [0]
        await until(lambda: len(shown) == 2)  # the delayed one comes by itself
        assert shown == [0, 9]
        now[0] += 0.05
        state[0] = 10
        throttle.soon()
        assert shown == [0, 9, 10]
        state[0] = 11
        throttle.soon()
        throttle.close()
        assert shown == [0, 9, 10, 11]
        state[0] = 12
        throttle.soon()
        await asyncio.sleep(0.12)
        assert shown == [0, 9, 10, 11]

    drive(run())


def result_of(output: str) -> ToolResult:
    return ToolResult("c1", "look", {}, "failed", output)


events = st.one_of(
    st.text(max_size=30).map(Text),
    st.text(max_size=30).map(lambda t: Called(call("c1", "look", path=t))),
    st.text(max_size=30).map(lambda t: Finished(result_of(t))),
    st.text(max_size=30).map(lambda t: Steered([user(t)])),
    st.just(Compacted(9, 3)),
    st.just(Done("done", "said so")),
)


@given(st.lists(events, max_size=20))
def test_any_events_give_well_formed_lines_that_hold_all_text(seen: list[Any]) -> None:
    live = Live()
    for event in seen:
        live.feed(event)
    shown = words(live.html().markup)
    for event in seen:
        if isinstance(event, Text):
            assert draw.base.visible(event.text) in shown
    assert live.texts == sum(isinstance(event, Text) for event in seen)
    assert live.calls == sum(isinstance(event, Called) for event in seen)
    assert live.why == ("said so" if any(isinstance(event, Done) for event in seen) else "")


def test_a_long_turn_is_bounded_and_says_what_is_left_out() -> None:
    live = Live()
    live.feed(Text("<" * 1_000_000 + "the newest words"))
    assert "988,016 earlier characters" in words(live.html().markup)
    assert "the newest words" in words(live.html().markup)
    for i in range(5_000):
        live.feed(Called(call(f"c{i}", "look", path="x" * 10_000)))
        live.feed(Finished(result_of("y" * 100_000)))
    assert f"{10_001 - LINES:,} earlier lines" in words(live.html().markup)
    assert len(live.html().markup) < 100_000 + 6 * TEXT_LIMIT
    assert len(transcript([user("<" * 100_000)] * 1_000).markup) < 200_000
    assert "940 earlier messages" in words(transcript([user("x")] * 1_000).markup)


# ── chat ────────────────────────────────────────────────────────────────────


class Agent:
    """The smallest agent that keeps a conversation."""

    def __init__(self, *steps: Any, handler: Callable[..., Any] | None = None, pace: float = 0.0) -> None:
        self.simulator = Simulator(list(steps), pace=pace)
        self.steer = SteerQueue()
        self.turns: list[Turn] = []
        self.registry = registry(handler)

    @property
    def history(self) -> list[Message]:
        return self.turns[-1].history if self.turns else []

    def send(self, text: str, /) -> Turn:
        history = [*self.history, user(text)]
        self.turns.append(run_turn(history, self.simulator.client(), self.registry, steer=self.steer, policy=Policy()))
        return self.turns[-1]


def said(agent: Agent) -> list[str]:
    return [f"{m['role']}: {m['content']}" for m in agent.history]


def test_words_start_a_turn_when_idle_and_the_transcript_grows() -> None:
    async def cell() -> None:
        agent = Agent("Hello <you>!", "Bye.")
        panel = chat(agent)
        panel.say("hi")
        await panel.settled()
        assert said(agent) == ["user: hi", "assistant: Hello <you>!"]
        assert "Hello <you>!" in words(panel._screen.value)
        assert panel.input.value == ""
        assert panel.button.disabled
        assert words(panel._status.value) == "done"
        panel.say("and bye")
        await panel.settled()
        assert said(agent)[2:] == ["user: and bye", "assistant: Bye."]
        assert words(panel._screen.value).count("Hello <you>!") == 1
        assert repr(panel) == "chat(4 messages)"

    drive(cell())


def test_words_said_while_a_turn_runs_steer_it() -> None:
    async def cell() -> None:
        running, go_on = asyncio.Event(), asyncio.Event()

        async def slow(path: str) -> str:
            running.set()
            await go_on.wait()
            return "looked"

        agent = Agent(LOOK, "As you say.", handler=slow)
        panel = chat(agent)
        statuses: list[str] = []
        panel._status.observe(lambda change: statuses.append(words(change["new"])), "value")
        panel.say("look")
        await running.wait()
        assert not panel.button.disabled
        panel.say("but be brief")
        await until(lambda: len(agent.steer))
        go_on.set()
        await panel.settled()
        assert said(agent) == [
            "user: look", "assistant: I will look. ", "tool: looked", "user: but be brief", "assistant: As you say.",
        ]  # fmt: skip
        assert len(agent.turns) == 1
        assert statuses == ["running", "running · 1 message waiting to go in", "running", "done"]
        assert "but be brief" in words(panel._screen.value)

    drive(cell())


def test_stop_ends_the_turn_and_the_next_words_start_another() -> None:
    async def cell() -> None:
        agent = Agent(Fault(stall_at=900, step="word " * 40), "Fresh.")
        panel = chat(agent)
        panel.say("go")
        await until(lambda: "word" in panel._screen.value)
        panel.stop()
        await panel.settled()
        assert agent.turns[0].reason == "stopped"
        assert words(panel._status.value).startswith("stopped")
        assert "word" in words(panel._screen.value)
        panel.say("again")
        await panel.settled()
        assert said(agent)[-1] == "assistant: Fresh."

    drive(cell())


def test_stop_right_after_the_words_is_not_lost() -> None:
    async def cell() -> None:
        agent = Agent(Fault(stall_at=0, step="never"))
        panel = chat(agent)
        panel.say("go")
        panel.stop()
        await panel.settled()
        assert agent.turns[0].reason == "stopped"

    drive(cell())


def test_words_left_over_after_stop_are_announced() -> None:
    async def cell() -> None:
        agent = Agent(Fault(stall_at=0, step="never"), "Both.")
        panel = chat(agent)
        panel.say("go")
        await asyncio.sleep(0)
        panel.say("wait")
        panel.stop()
        await panel.settled()
        assert "1 message waiting for the next turn" in words(panel._status.value)

    drive(cell())


def test_an_error_is_shown_and_raised_by_settled_once() -> None:
    async def cell() -> None:
        agent = Agent(Fault(refuse=True), "Fine.")
        panel = chat(agent)
        panel.say("go")
        with pytest.raises(ProviderUnavailable):
            await panel.settled()
        assert words(panel._status.value).startswith("error: ProviderUnavailable")
        await panel.settled()
        panel.say("again")
        await panel.settled()
        assert said(agent)[-1] == "assistant: Fine."

    drive(cell())


def test_an_agent_that_refuses_the_words_is_shown_too() -> None:
    async def cell() -> None:
        def refuse(text: str) -> Turn:
            raise AgentLabError(f"no <{text}>")

        panel = chat(SimpleNamespace(history=[], steer=SteerQueue(), send=refuse))
        panel.say("go")
        with pytest.raises(AgentLabError, match="no <go>"):
            await panel.settled()
        assert words(panel._status.value) == "error: AgentLabError: no <go>"

    drive(cell())


def test_interrupt_of_settled_stops_the_turn() -> None:
    async def cell() -> None:
        agent = Agent(Fault(stall_at=900, step="word " * 40))
        panel = chat(agent)
        panel.say("go")
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.2, task.cancel)
        await panel.settled()
        assert agent.turns[0].reason == "stopped"
        assert task.cancelling() == 0

    asyncio.run(cell())


def test_enter_sends_what_the_field_shows_in_whichever_order_it_arrives() -> None:
    async def cell() -> None:
        agent = Agent("one", "two")
        panel = chat(agent)
        custom(panel.input, event="submit")  # Enter: first the event, then the value
        from_browser(panel.input, value="first words")
        await panel.settled()
        from_browser(panel.input, value="half a sen")  # leaving the field sends nothing
        await asyncio.sleep(0.3)
        assert said(agent) == ["user: first words", "assistant: one"]
        custom(panel.input, event="submit")
        from_browser(panel.input, value="half a sentence, finished")
        await panel.settled()
        assert said(agent)[2:] == ["user: half a sentence, finished", "assistant: two"]

    drive(cell())


def test_send_takes_words_that_had_arrived_before_and_ignores_an_empty_field() -> None:
    async def cell() -> None:
        agent = Agent("one")
        panel = chat(agent)
        custom(panel.submit, event="click")
        await panel.settled()
        assert agent.turns == []
        from_browser(panel.input, value="typed, then clicked")
        custom(panel.submit, event="click")
        await panel.settled()
        assert said(agent)[0] == "user: typed, then clicked"

    drive(cell())


def test_clicks_may_come_from_another_thread() -> None:
    async def cell() -> None:
        agent = Agent(Fault(stall_at=900, step="word " * 40))
        panel = chat(agent)
        await asyncio.to_thread(panel.say, "go")
        await until(lambda: "word" in panel._screen.value)
        await asyncio.to_thread(panel.stop)
        await panel.settled()
        assert agent.turns[0].reason == "stopped"

    drive(cell())


def test_chat_needs_a_running_loop() -> None:
    with pytest.raises(AgentLabError, match="running loop"):
        chat(Agent())


def test_a_chat_shows_itself_live_and_without_a_kernel() -> None:
    async def cell() -> None:
        from IPython.display import display

        hostile = HOSTILE.replace("\ud800", "")
        agent = Agent(hostile)
        panel = chat(agent)
        panel.say(hostile)
        await panel.settled()
        display(panel)

    with displayed() as bundles:
        drive(cell())
    assert bundles[0]["text/plain"] == "chat(2 messages)"
    assert words(bundles[0]["text/html"]).count("[U+202E]") == 2
    panel = live_panel(bundles[0])
    assert isinstance(panel, ChatPanel)
    assert "agentlab-chat" in panel._dom_classes
    assert "agentlab-chat-input" in panel.input._dom_classes
    assert "agentlab-stop" in panel.button._dom_classes


def test_run_sync_knows_two_ways_only() -> None:
    with pytest.raises(AgentLabError, match="nested"):
        run_sync(asyncio.sleep(0), how="bogus")  # type: ignore[arg-type]


def test_a_click_is_counted_from_one() -> None:
    turn = run_turn([user("hi")], Simulator(["Hello."]).client(), Registry())

    async def main() -> None:
        with pytest.raises(AgentLabError, match="from 1"):
            await stream(turn, click_after=0)
        await turn.aclose()

    asyncio.run(main())
