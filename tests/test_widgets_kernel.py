"""What takes input, in a real kernel, driven by the messages that a front end sends: JupyterLab, VS Code, any other.

All that these know of a widget is in the messages: `comm_open` with its state, an output that names it, `comm_msg` both
ways. So a notebook that passes here works wherever the standard widgets are drawn.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[1]
HANG_GUARD_S = 30

SETUP = """
import asyncio
from agentlab.loop import run_turn
from agentlab.messages import user
from agentlab.simulator import Fault, Simulator
from agentlab.steer import SteerQueue
from agentlab.tools import Registry
from agentlab.widgets import chat, explore, run_sync, stream

STALLED = Fault(stall_at=900, step="word " * 40)  # text, then silence

def turn_of(*steps):
    return run_turn([user("go")], Simulator(list(steps)).client(), Registry())
"""
VIEW = "application/vnd.jupyter.widget-view+json"
STANDARD = {"@jupyter-widgets/base", "@jupyter-widgets/controls"}
VERDICT = "print(turn.reason, 'word' in turn.history[-1]['content'])"


@dataclass
class Cell:
    """One running cell and what it has sent so far."""

    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stdout(self) -> str:
        return "".join(m["content"]["text"] for m in self.messages if m["msg_type"] == "stream")

    @property
    def errors(self) -> list[str]:
        return [m["content"]["ename"] for m in self.messages if m["msg_type"] == "error"]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The forms of each output, by their mime types."""
        return [m["content"]["data"] for m in self.messages if m["msg_type"] in ("display_data", "execute_result")]

    @property
    def done(self) -> bool:
        return any(m["msg_type"] == "status" and m["content"]["execution_state"] == "idle" for m in self.messages)


class Kernel:
    """A kernel and the part of a front end that the tests need."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(ROOT))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=HANG_GUARD_S)
        self.widgets: dict[str, dict[str, Any]] = {}  # the state of every widget, by the id of its comm
        self.run(SETUP)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def start(self, code: str) -> Cell:
        return Cell(self.client.execute(code))

    def run(self, code: str) -> Cell:
        cell = self.start(code)
        self.wait(cell, lambda: cell.done)
        return cell

    def wait(self, cell: Cell, happened: Callable[[], Any]) -> None:
        """Read what the kernel sends until it has happened."""
        end = time.monotonic() + HANG_GUARD_S
        while not happened():
            try:
                message = self.client.get_iopub_msg(timeout=max(end - time.monotonic(), 0))
            except queue.Empty:
                pytest.fail(f"nothing happened for {HANG_GUARD_S} s; so far: {cell.stdout} {cell.errors}")
            content = message["content"]
            if message["msg_type"] == "comm_open":
                self.widgets[content["comm_id"]] = dict(content["data"]["state"])
            elif message["msg_type"] == "comm_msg" and content["data"].get("method") == "update":
                self.widgets[content["comm_id"]].update(content["data"]["state"])
            if message["parent_header"].get("msg_id") == cell.id:
                cell.messages.append(message)

    def find(self, css_class: str) -> str:
        """The comm of the newest widget of this class."""
        return [comm for comm, state in self.widgets.items() if css_class in state.get("_dom_classes", ())][-1]

    def shows(self, text: str) -> bool:
        return any(text in str(state.get("value", "")) for state in self.widgets.values())

    def send(self, comm: str, data: dict[str, Any], *, subshell: str | None = None) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)

    def click(self, css_class: str, *, subshell: str | None = None) -> None:
        self.send(self.find(css_class), {"method": "custom", "content": {"event": "click"}}, subshell=subshell)

    def subshell(self) -> str:
        request = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(request)
        reply = self.client.get_control_msg(timeout=HANG_GUARD_S)
        return str(reply["content"]["subshell_id"])


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.fixture(autouse=True)
def forget_widgets(kernel: Kernel) -> None:
    kernel.widgets.clear()


def start_stalled_turn(kernel: Kernel) -> Cell:
    cell = kernel.start("turn = turn_of(STALLED)\nassert await stream(turn) is turn\nprint('after')")
    kernel.wait(cell, lambda: kernel.shows("word word"))
    assert not cell.done
    return cell


@pytest.mark.parametrize("way", ["shell", "subshell", "interrupt", "interrupt_request"])
def test_a_running_turn_ends_and_the_cell_goes_on(kernel: Kernel, way: str) -> None:
    subshell = kernel.subshell() if way == "subshell" else None
    cell = start_stalled_turn(kernel)
    if way.startswith("interrupt"):
        time.sleep(0.3)  # nothing happens on the loop any more, so nothing but the panel wakes it
    if way == "interrupt":
        kernel.manager.interrupt_kernel()
    elif way == "interrupt_request":
        kernel.client.control_channel.send(kernel.client.session.msg("interrupt_request", {}))
    else:
        kernel.click("agentlab-stop", subshell=subshell)
    kernel.wait(cell, lambda: cell.done)
    assert cell.errors == []
    assert cell.stdout == "after\n"
    verdict = kernel.run(VERDICT)
    assert verdict.stdout == ("interrupted True\n" if way.startswith("interrupt") else "stopped True\n")
    assert kernel.widgets[kernel.find("agentlab-stop")]["disabled"] is True


def test_nothing_is_drawn_after_the_end(kernel: Kernel) -> None:
    kernel.run("turn = await stream(turn_of('word ' * 40), click_after=7)")
    later = kernel.run("await asyncio.sleep(0.2)")
    assert [m["msg_type"] for m in later.messages if m["msg_type"] != "status"] == ["execute_input"]
    assert kernel.run("print(turn.reason, turn.history[-1]['content'].count('word'))").stdout.startswith("stopped ")


def test_an_error_reaches_the_cell_and_the_next_one_runs(kernel: Kernel) -> None:
    cell = kernel.run("turn = turn_of(Fault(status=500))\nawait stream(turn)")
    assert cell.errors == ["ProviderUnavailable"]
    assert kernel.shows("error: ProviderUnavailable")
    assert kernel.run("print(turn.reason)").stdout == "error\n"


PANELS = {
    "explore": "explore(lambda cut, fold, how: f'cut at {cut}', cut=(1, 64), fold=False, how=['a', 'b'])",
    "stream": "turn = await stream(turn_of('Done.'))",
    "ask": "from agentlab.widgets import AskPanel\nAskPanel()",
    "chat": """
from agentlab.agent import Agent
chat(Agent(Simulator(["Hi."]).client()))
""",
}


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_is_made_of_standard_widgets_and_has_a_form_without_them(kernel: Kernel, name: str) -> None:
    cell = kernel.run(PANELS[name])
    assert cell.errors == []
    opened = [m["content"] for m in cell.messages if m["msg_type"] == "comm_open"]
    assert {content["target_name"] for content in opened} == {"jupyter.widget"}
    assert {content["data"]["state"]["_model_module"] for content in opened} <= STANDARD
    assert {content["data"]["state"]["_view_module"] for content in opened} <= STANDARD | {None}
    for forms in cell.outputs:
        assert set(forms) <= {VIEW, "text/plain", "text/html"}
        assert forms[VIEW]["model_id"] in kernel.widgets
    assert "text/html" in cell.outputs[-1]
    values = [str(content["data"]["state"].get("value", "")) for content in opened]
    for markup in [*values, *(forms.get("text/html", "") for forms in cell.outputs)]:
        assert "<script" not in markup
        assert "var(--" not in markup  # colours of JupyterLab's themes, which others do not have


def test_the_saved_form_of_an_explorer_is_its_picture(kernel: Kernel) -> None:
    (forms,) = kernel.run("explore(lambda cut: f'cut at {cut}', cut=(1, 64)).set(cut=9)").outputs
    assert "cut at 9" in forms["text/html"]
    assert forms["text/plain"] == "explore(cut=9)"


def test_the_saved_form_of_a_turn_holds_its_text_and_how_it_ended(kernel: Kernel) -> None:
    live, saved = kernel.run("turn = await stream(turn_of('Some words.'))").outputs
    assert kernel.widgets[live[VIEW]["model_id"]]["_dom_classes"] == ["agentlab-stream"]
    layout = kernel.widgets[kernel.widgets[saved[VIEW]["model_id"]]["layout"].removeprefix("IPY_MODEL_")]
    assert layout["display"] == "none"
    assert "Some words." in saved["text/html"]
    assert ">done<" in saved["text/html"]


def test_a_slider_redraws_while_no_cell_runs(kernel: Kernel) -> None:
    kernel.run("explore(lambda cut: f'cut at {cut}', cut=(1, 64))")
    slider = next(comm for comm, state in kernel.widgets.items() if state.get("_model_name") == "IntSliderModel")
    kernel.send(slider, {"method": "update", "state": {"value": 31}, "buffer_paths": []})
    cell = kernel.start("print('next')")
    kernel.wait(cell, lambda: cell.done and kernel.shows("cut at 31"))


def test_a_chat_runs_turns_after_its_cell_has_ended(kernel: Kernel) -> None:
    kernel.run("""
class Agent:
    def __init__(self, *steps):
        self.client, self.steer, self.turn = Simulator(list(steps)).client(), SteerQueue(), None
    @property
    def history(self):
        return self.turn.history if self.turn else []
    def send(self, text):
        self.turn = run_turn([*self.history, user(text)], self.client, Registry(), steer=self.steer)
        return self.turn
agent = Agent(STALLED, "At once.")
panel = chat(agent)
panel
""")
    field = kernel.find("agentlab-chat-input")

    def enter(text: str) -> None:
        kernel.send(field, {"method": "custom", "content": {"event": "submit"}})
        kernel.send(field, {"method": "update", "state": {"value": text}, "buffer_paths": []})

    waiting = Cell("")
    enter("go")
    kernel.wait(waiting, lambda: kernel.shows("word word"))
    kernel.click("agentlab-stop")
    kernel.wait(waiting, lambda: kernel.shows("stopped"))
    enter("again")
    kernel.wait(waiting, lambda: kernel.shows("At once."))
    kernel.run("await panel.settled()")
    assert kernel.run("print([m['content'][:9] for m in agent.history])").stdout == (
        "['go', 'word word', 'again', 'At once.']\n"
    )


def test_interrupt_reaches_run_sync_in_a_plain_cell(kernel: Kernel) -> None:
    kernel.run("""
async def forever():
    print("started", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)
""")
    cell = kernel.start("run_sync(forever())")
    kernel.wait(cell, lambda: "started" in cell.stdout)
    kernel.manager.interrupt_kernel()
    kernel.wait(cell, lambda: cell.done)
    assert cell.errors == ["KeyboardInterrupt"]
    assert "cleaned up" in cell.stdout
    assert kernel.run("async def hi(): return 'hi'\nprint(run_sync(hi()))").stdout == "hi\n"
