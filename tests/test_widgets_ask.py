"""The Allow and Deny buttons: real widgets, real policies, the real loop."""

from __future__ import annotations

import asyncio
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
from ipywidgets.widgets.widget import _instances
from jupyter_client.manager import KernelManager

from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.loop import Finished, run_turn
from agentlab.messages import assistant, call, user
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.tools import Registry
from agentlab.widgets import AskPanel
from agentlab.widgets.askpanel import ARGUMENTS, ROWS, described

T = TypeVar("T")
HANG_GUARD_S = 20
SEND = SimpleNamespace(name="email_send", read_only=False)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x00\u202e\ud800'


def drive(coro: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coro, HANG_GUARD_S))


def words(markup: str) -> str:
    """What a reader sees of the markup, which has to be well-formed."""
    assert "<script" not in markup and "<img" not in markup
    return "".join(ET.fromstring(f"<div>{markup}</div>").itertext())


@pytest.fixture
def on_screen() -> Iterator[Callable[[AskPanel], AskPanel]]:
    """Shows a panel, so that somebody can click."""
    InteractiveShell.instance()

    def show(panel: AskPanel) -> AskPanel:
        with capture_output():
            display(panel)
        return panel

    yield show
    InteractiveShell.clear_instance()


async def asked(panel: AskPanel, tool: Any = SEND, **input: Any) -> asyncio.Task[bool]:
    """A question that waits for its answer."""
    task = asyncio.create_task(panel(tool, input))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(("button", "answer"), [("allow", True), ("deny", False)])
def test_a_click_is_the_answer(on_screen: Any, button: str, answer: bool) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel())
        task = await asked(panel, to="a@example.com")
        [question] = panel.questions
        assert "waits for an answer" in words(question._text.value)
        assert "email_send" in words(question._text.value) and "to: a@example.com" in words(question._text.value)
        getattr(question, button).click()
        assert await task is answer
        assert question.allow.disabled and question.deny.disabled
        assert question.state == ("allowed" if answer else "denied")

    drive(main())


def test_the_click_of_a_browser_from_another_thread(on_screen: Any) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel())
        task = await asked(panel)
        message = {"content": {"data": {"method": "custom", "content": {"event": "click"}}}, "buffers": []}
        thread = threading.Thread(target=panel.questions[0].allow._handle_msg, args=[message])
        thread.start()
        assert await task is True
        thread.join()

    drive(main())


def test_a_late_or_second_click_answers_nothing_else(on_screen: Any) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel())
        first, second = await asked(panel, n=1), await asked(panel, n=2)
        one, two = panel.questions
        one.deny.click()
        one.allow.click()
        one.allow.click()
        assert await first is False
        one.allow.click()
        await asyncio.sleep(0.01)
        assert not second.done() and two.state == "waits for an answer"
        assert list(panel.children) == [one, two]  # nothing moves under the pointer
        two.allow.click()
        assert await second is True

    drive(main())


def test_answers_go_to_the_question_of_their_buttons(on_screen: Any) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel())
        tasks = [await asked(panel, n=n) for n in range(3)]
        panel.questions[2].allow.click()
        panel.questions[0].deny.click()
        panel.questions[1].allow.click()
        assert await asyncio.gather(*tasks) == [False, True, True]

    drive(main())


def test_where_nobody_can_see_it_the_answer_is_no() -> None:
    panel = AskPanel()
    assert drive(panel(SEND, {})) is False  # type: ignore[arg-type]
    assert drive(Policy(ask=panel).permits(SEND, {})) is False
    assert repr(panel) == "ask: 2 questions: denied, denied"


def test_a_script_clicks_the_real_buttons_and_then_says_no(on_screen: Any) -> None:
    clicked: list[str] = []

    class Watched(AskPanel):
        def _add(self, question: Any) -> None:
            for button in question.allow, question.deny:
                button.on_click(lambda it: clicked.append(it.description))
            super()._add(question)

    async def main() -> list[bool]:
        panel = on_screen(Watched(script=[True, False, True]))
        return [await panel(SEND, {"n": n}) for n in range(5)]

    assert drive(main()) == [True, False, True, False, False]
    assert clicked == ["Allow", "Deny", "Allow", "Deny", "Deny"]


def test_answer_next_takes_the_open_question_or_the_next(on_screen: Any) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel())
        panel.answer_next(False)
        assert await panel(SEND, {}) is False
        one, two = await asked(panel), await asked(panel)
        panel.answer_next(True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        panel.answer_next(False)
        assert await one is True and await two is False
        hurried = [await asked(panel), await asked(panel)]
        panel.answer_next(True)
        panel.answer_next(False)  # before the loop has seen the first
        assert sorted(await asyncio.gather(*hurried)) == [False, True]

    drive(main())


@pytest.mark.parametrize("answer", ["no", 1, 0, None])
def test_only_true_and_false_are_answers(answer: Any) -> None:
    with pytest.raises(AgentLabError, match="Give True or False"):
        AskPanel(script=[answer])
    with pytest.raises(AgentLabError, match="Give True or False"):
        AskPanel().answer_next(answer)


def test_patience_ends(on_screen: Any) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel(wait_s=0.01))
        assert await panel(SEND, {}) is False
        assert panel.questions[0].state == "not answered" and panel.questions[0].allow.disabled

    drive(main())


def test_stop_ends_the_question_and_nothing_runs(on_screen: Any) -> None:
    async def main() -> None:
        panel, stop, registry = on_screen(AskPanel()), Stop(), Registry()
        ran: list[str] = []
        registry.tool(name="email_send")(lambda: ran.append("sent"))
        simulator = Simulator([assistant("", call("c1", "email_send")), "Done."])
        turn = run_turn([user("Send it.")], simulator.client(), registry, policy=Policy(ask=panel), stop=stop)
        results = []

        async def click() -> None:
            while not panel.questions:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            stop.request()

        clicking = asyncio.create_task(click())
        async for event in turn:
            results += [event.result.status] if isinstance(event, Finished) else []
        await clicking
        assert (turn.reason, results, ran) == ("stopped", ["interrupted"], [])
        [question] = panel.questions
        assert question.state == "not answered" and question.allow.disabled
        question.allow.click()
        await asyncio.sleep(0.01)
        assert ran == [] and question.state == "not answered"

    drive(main())


def test_in_the_loop_the_target_is_what_is_shown() -> None:
    from agentlab.disclosure import Catalog

    async def main() -> None:
        catalog, ran = Catalog(), []
        catalog.tool(name="email_send")(lambda to: ran.append(to))
        panel = AskPanel(script=[False, True])
        calls = [call(f"c{n}", "run_tool", name="email_send", input={"to": to}) for n, to in enumerate("ab")]
        simulator = Simulator([assistant("", *calls), "Done."])
        await run_turn([user("Send it.")], simulator.client(), catalog, policy=Policy(ask=panel)).run()
        assert ran == ["b"]
        assert [question.state for question in panel.questions] == ["denied", "allowed"]
        shown = words(panel.picture().markup)
        assert "email_send" in shown and "run_tool" not in shown and "to: a" in shown

    drive(main())


def test_a_click_after_the_loop_has_ended_is_harmless(on_screen: Any) -> None:
    panel = on_screen(AskPanel())

    async def main() -> Any:
        task = await asked(panel)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    drive(main())
    panel.questions[0].allow.click()
    assert panel.questions[0].state == "not answered"


def test_old_questions_go_and_open_ones_stay(on_screen: Any) -> None:
    async def main() -> None:
        panel = on_screen(AskPanel())
        waiting = await asked(panel, n="open")
        buttons = []
        for n in range(ROWS + 5):
            panel._answers.append(True)
            await panel(SEND, {"n": n})  # type: ignore[arg-type]
            buttons.append(panel.questions[-1].allow.model_id)
        assert len(panel.questions) == len(panel.children) == ROWS
        assert [button in _instances for button in buttons] == [False] * 6 + [True] * (ROWS - 1)
        assert panel.questions[0].state == "waits for an answer"
        assert f"n: {ROWS + 4}" in words(panel.questions[-1]._text.value)
        panel.questions[0].allow.click()
        assert await waiting is True

    drive(main())


# --- what is shown


def test_one_long_argument_hides_no_other() -> None:
    shown = words(described("write_file", {"content": "x" * 100_000, "path": "secrets.txt"}).markup)
    assert "path: secrets.txt" in shown and "99,600 more characters" in shown and len(shown) < 1_000


def test_more_arguments_than_fit_are_counted() -> None:
    shown = words(described("write_file", {f"a{n}": n for n in range(ARGUMENTS + 3)}).markup)
    assert shown.endswith("… and 3 more arguments")
    assert "more" not in words(described("write_file", {f"a{n}": n for n in range(ARGUMENTS)}).markup)


def test_hostile_and_odd_input_is_text() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    shown = words(described(HOSTILE, {HOSTILE: HOSTILE, "list": ["é", 1, None], "odd": {1, 2}, "deep": deep}).markup)
    assert "[U+202E]" in shown and 'list: ["é",1,null]' in shown and shown.count("that is no JSON") == 2
    while deep:
        deep = deep.pop()  # a recursive one would end the process


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(), st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.floats(), st.lists), max_size=30))
def test_any_input_is_well_formed_and_bounded(name: str, input: dict[str, Any]) -> None:
    assert len(words(described(name, input).markup)) < 10_000


def test_the_saved_form_is_the_picture() -> None:
    panel = AskPanel(script=[True])
    drive(panel(SEND, {"to": HOSTILE}))  # type: ignore[arg-type]
    bundle = panel._repr_mimebundle_()
    assert bundle is not None and bundle["text/plain"] == repr(panel) == "ask: 1 question: allowed"
    assert "allowed" in words(bundle["text/html"]) and "email_send" in words(bundle["text/html"])
    assert repr(AskPanel()) == "ask: 0 questions"


# --- a real kernel


CODE = """
from types import SimpleNamespace
from agentlab.widgets import AskPanel
panel = AskPanel()
print("answer:", await panel(SimpleNamespace(name="email_send", read_only=False), {"to": "a"}))
"""


def test_in_a_kernel_it_appears_in_the_running_cell_and_takes_the_click() -> None:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=HANG_GUARD_S)
        cell = client.execute(CODE)
        buttons: dict[str, str] = {}
        out, clicked, shown, end = "", False, False, time.monotonic() + HANG_GUARD_S
        while "answer:" not in out:
            assert time.monotonic() < end, "the click did not arrive"
            message = client.get_iopub_msg(timeout=HANG_GUARD_S)
            content = message["content"]
            if message["msg_type"] == "comm_open":
                state = content["data"].get("state", {})
                buttons[state.get("description", "")] = content["comm_id"]
            if message["msg_type"] == "display_data":
                assert message["parent_header"]["msg_id"] == cell
                shown = "application/vnd.jupyter.widget-view+json" in content["data"]
            if shown and not clicked:
                clicked = True
                data = {"method": "custom", "content": {"event": "click"}}
                request = {"comm_id": buttons["Allow"], "data": data}
                client.shell_channel.send(client.session.msg("comm_msg", request))
            out += content.get("text", "") if message["msg_type"] == "stream" else ""
            assert message["msg_type"] != "error", content
        assert out == "answer: True\n"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
