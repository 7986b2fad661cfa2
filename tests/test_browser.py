"""A chapter in JupyterLab as a reader sees it: real clicks and keys in Chromium, on a copy of the notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.labpage import Lab, reading, server, sync_api

pytestmark = pytest.mark.browser

CHAPTER = "04_interrupt.ipynb"


@pytest.fixture(scope="module")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The chapter with every cell run."""
    with server(tmp_path_factory.mktemp("lab")) as address, reading(chromium, address) as lab:
        lab.open(CHAPTER)
        lab.run_all()
        yield lab


def test_every_cell_runs_and_nothing_leaves_this_machine(lab: Lab) -> None:
    assert lab.failures() == []
    assert lab.strangers() == []
    assert any(url.startswith("ws:") for url in lab.asked), "no kernel was asked: the check above saw nothing"
    assert lab.complaints == []


def test_stop_ends_a_reply_while_it_streams(lab: Lab) -> None:
    cell = lab.run(
        "turn = await stream(Agent(Simulator(pace=0.05).client()).send('count to 1000'))\n"
        "print('then', turn.reason, turn.history[-1]['content'].endswith('1000'))"
    )
    panel = cell.locator(".agentlab-stream")
    panel.get_by_text("1 2 3 4").wait_for()
    button = panel.locator(".agentlab-stop")
    assert button.is_enabled()
    button.click()
    cell.get_by_text("then stopped False").wait_for()
    sync_api.expect(button).to_be_disabled()
    assert "stopped" in panel.inner_text()
    assert lab.failures() == []


def test_words_typed_during_a_turn_go_into_it(lab: Lab) -> None:
    cell = lab.run("agent = Agent(Simulator(pace=0.05).client())\nchat(agent)")
    words = cell.locator(".agentlab-chat-input input")
    words.fill("count to 60")
    words.press("Enter")
    cell.get_by_text("1 2 3 4").wait_for()
    words.fill("say Thank you")
    words.press("Enter")
    cell.get_by_text("1 message waiting to go in").wait_for()
    cell.get_by_text("done", exact=True).wait_for()
    assert re.search(r"59 60\s+U\s*say Thank you\s+Thank you\b", cell.inner_text())

    words.fill("count to 1000")
    words.press("Enter")
    cell.get_by_text("1 2 3 4").nth(1).wait_for()
    cell.locator(".agentlab-stop").click()
    cell.get_by_text(re.compile("^stopped")).wait_for()
    check = lab.run("print([message['role'] for message in agent.history], agent.turn.reason)")
    check.get_by_text("['user', 'assistant', 'user', 'assistant', 'user', 'assistant'] stopped").wait_for()
    assert lab.failures() == []
    assert lab.complaints == []
