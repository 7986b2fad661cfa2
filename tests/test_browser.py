"""A chapter in JupyterLab as a reader sees it: real clicks and keys in Chromium, on a copy of the notebooks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[1]
CHAPTER = "04_interrupt.ipynb"
TOKEN = "for-this-test-only"
HANG_GUARD_S = 60
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
# The end of a command is waited for where there is a time limit.
COMMAND = "name => { void window.jupyterapp.commands.execute(name) }"
READY = """() => {
    const context = window.jupyterapp?.shell.currentWidget?.context;
    return context?.isReady && context.sessionContext.session?.kernel?.status === 'idle';
}"""
ALL_RAN = """() => {
    const panel = window.jupyterapp.shell.currentWidget;
    const code = [...panel.content.model.cells].filter(cell => cell.type === 'code');
    const idle = panel.context.sessionContext.session?.kernel?.status === 'idle';
    return idle && code.every(cell => cell.executionCount !== null);
}"""
ERRORS = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .flatMap(cell => cell.type === 'code' ? cell.outputs.toJSON() : [])
    .filter(output => output.output_type === 'error').map(output => output.ename + ': ' + output.evalue)"""
ADD = """code => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.model.sharedModel.addCell({cell_type: 'code', source: code});
    notebook.activeCellIndex = notebook.widgets.length - 1;
}"""


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything that it started."""
    for sign in signal.SIGTERM, signal.SIGKILL:
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab on a copy of the notebooks, with settings of its own."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "data", home / "data")
    shutil.copytree(ROOT / "notebooks", home / "notebooks", ignore=shutil.ignore_patterns(".*"))
    folders = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    folders |= {f"JUPYTERLAB_{name}_DIR": str(home / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        *("--no-browser", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *(f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    log = home / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            cwd=home / "notebooks",
            env={**os.environ, **folders, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + HANG_GUARD_S
        while True:
            try:
                urllib.request.urlopen(f"{address}/api", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"JupyterLab did not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
        yield address
    finally:
        stop(process)


class Lab:
    """The page, and what it asked for and complained about."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.set_default_timeout(HANG_GUARD_S * 1000)

    def open(self, chapter: str) -> None:
        self.page.goto(f"{self.address}/lab/tree/{chapter}?token={TOKEN}&reset")
        self.page.wait_for_function(READY)

    def run(self, code: str) -> Any:
        """Run code in a new cell at the end. Returns the cell, which may still be running."""
        self.page.evaluate(ADD, code)
        self.page.evaluate(COMMAND, "notebook:run-cell")
        return self.page.locator(".jp-Notebook .jp-Cell").last


@pytest.fixture(scope="module")
def lab(chromium: str, address: str) -> Iterator[Lab]:
    """The chapter with every cell run."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        try:
            lab = Lab(browser.new_page(), address)
            lab.open(CHAPTER)
            lab.page.evaluate(COMMAND, "notebook:run-all-cells")
            lab.page.wait_for_function(ALL_RAN)
            yield lab
        finally:
            browser.close()


def test_every_cell_runs_and_nothing_leaves_this_machine(lab: Lab) -> None:
    assert lab.page.evaluate(ERRORS) == []
    assert [url for url in lab.asked if not re.match(r"(http|ws)://127\.0\.0\.1:|data:|blob:", url)] == []
    assert any(url.startswith("ws:") for url in lab.asked), "no kernel was asked: the check above saw nothing"
    assert [text for text in lab.complaints if re.search("agentlab|widget", text, re.I)] == []


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
    assert lab.page.evaluate(ERRORS) == []


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
    assert lab.page.evaluate(ERRORS) == []
    assert [text for text in lab.complaints if re.search("agentlab|widget", text, re.I)] == []
