"""JupyterLab in Chromium as a reader has it, on a copy of the notebooks and with settings of its own.

    server(folder)  ->  address          one JupyterLab
    reading(chromium, address)  ->  Lab  one page of it: open a chapter, run it, close it; what it asked for
    explorers(lab)  ->  Explorer         the sliders of a chapter and the picture under them, moved by keys

The page stays the same for all chapters, since JupyterLab takes longer to load than most chapters take to run.
"""

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")

ROOT = Path(__file__).parents[1]
TOKEN = "for-this-test-only"
HANG_GUARD_S = 60
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
HERE = re.compile(r"(http|ws)://127\.0\.0\.1:|data:|blob:")
SHOWN = ".jp-NotebookPanel:not(.lp-mod-hidden)"

# The end of a command is waited for where there is a time limit.
COMMAND = "([name, args]) => { void window.jupyterapp.commands.execute(name, args) }"
READY = """path => {
    const context = window.jupyterapp?.shell.currentWidget?.context;
    return context?.path === path && context.isReady && context.sessionContext.session?.kernel?.status === 'idle';
}"""
# A cell that fails ends the run, unless its tags say that it will.
RAN = """() => {
    const panel = window.jupyterapp.shell.currentWidget;
    const code = [...panel.content.model.cells].filter(cell => cell.type === 'code' && cell.sharedModel.source.trim());
    const idle = panel.context.sessionContext.session?.kernel?.status === 'idle';
    const failed = cell => !(cell.getMetadata('tags') ?? []).includes('raises-exception')
        && cell.outputs.toJSON().some(output => output.output_type === 'error');
    return idle && (code.every(cell => cell.executionCount !== null) || code.some(failed));
}"""
FAILURES = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .filter(cell => cell.type === 'code' && !(cell.getMetadata('tags') ?? []).includes('raises-exception'))
    .flatMap(cell => cell.outputs.toJSON())
    .filter(output => output.output_type === 'error').map(output => output.ename + ': ' + output.evalue)"""
FORGET = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    if (!panel?.context) { return; }
    await panel.context.sessionContext.shutdown();
    panel.context.model.dirty = false;
    panel.dispose();
}"""
CLEAR = """() => {
    for (const cell of window.jupyterapp.shell.currentWidget.content.model.cells)
        if (cell.type === 'code') { cell.clearExecution(); }
}"""
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


@contextmanager
def server(home: Path) -> Iterator[str]:
    """JupyterLab on a copy of the notebooks in `home`. Gives its address."""
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
    """The page, and what it asked for and complained about since the last `open`."""

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
        """Open a chapter by its path below `notebooks`, in the page that is there already, and start its kernel."""
        if self.page.url == "about:blank":
            self.page.goto(f"{self.address}/lab/tree/{chapter}?token={TOKEN}&reset")
        else:
            self.asked.clear()
            self.complaints.clear()
            self.command("docmanager:open", path=chapter)
        self.page.wait_for_function(READY, arg=chapter)

    def command(self, name: str, **args: Any) -> None:
        self.page.evaluate(COMMAND, [name, args])

    def run_all(self) -> None:
        """Run every cell and wait for the last one, or for the one that failed."""
        self.page.evaluate(CLEAR)
        self.command("notebook:run-all-cells")
        self.page.wait_for_function(RAN)

    def run(self, code: str) -> Any:
        """Run code in a new cell at the end. Returns the cell, which may still be running."""
        self.page.evaluate(ADD, code)
        self.command("notebook:run-cell")
        return self.page.locator(f"{SHOWN} .jp-Notebook .jp-Cell").last

    def close(self) -> None:
        """Shut the kernel down and close the chapter, without keeping what the run changed."""
        self.page.evaluate(FORGET)

    def failures(self) -> list[str]:
        """The errors that cells ended in and that no tag announced."""
        return self.page.evaluate(FAILURES)

    def strangers(self) -> list[str]:
        """What was asked of another machine."""
        return [url for url in self.asked if not HERE.match(url)]


@contextmanager
def reading(chromium: str, address: str, **page: Any) -> Iterator[Lab]:
    """A browser with one page; nothing is loaded yet."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        try:
            yield Lab(browser.new_page(**page), address)
        finally:
            browser.close()


# Ways to move a control, and the key that leads back. JupyterLab keeps the arrow keys up and down for its cells.
WAYS = {
    "slider": [("ArrowRight", "ArrowLeft"), ("End", "ArrowLeft"), ("Home", "ArrowRight")],
    "checkbox": [("Space", "Space")],
    "select-one": [("End", "Home"), ("Home", "End")],
}


class Control:
    """One control of an explorer, moved by keys as a person without a mouse does."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.handle = root.locator(".noUi-handle, input[type=checkbox], select").first
        self.kind = self.handle.evaluate("handle => handle.type ?? 'slider'")
        self.ways = WAYS[self.kind]

    @property
    def position(self) -> str:
        """What the reader sees of its value."""
        if self.kind == "checkbox":
            return str(self.handle.is_checked())
        if self.kind == "select-one":
            return self.handle.input_value()
        return self.root.locator(".widget-readout").text_content()

    def press(self, key: str) -> bool:
        """Press a key on the control. Returns whether its value is another one now."""
        before = self.position
        self.handle.press(key)
        return self.position != before


class Explorer:
    """What `explore` shows: controls, and one picture under them."""

    def __init__(self, root: Any) -> None:
        *controls, self.screen = root.locator("> *").all()
        self.controls = [Control(each) for each in controls]

    @property
    def picture(self) -> str:
        return self.screen.inner_html()

    def becomes(self, test: str, picture: str, *, limit_s: float = HANG_GUARD_S) -> bool:
        """Whether the picture is soon `"==="` the one given, or `"!=="` it."""
        try:
            self.screen.page.wait_for_function(
                f"([screen, picture]) => screen.innerHTML {test} picture",
                arg=[self.screen.element_handle(), picture],
                timeout=limit_s * 1000,
            )
        except sync_api.TimeoutError:
            return False
        return True

    def move(self, control: Control, *, patience_s: float = 3) -> str | None:
        """Move the control until the picture is another: a step, else to its end, else to its start.

        Returns the key that leads back, or None when no position changes the picture.
        """
        before = self.picture
        for key, back in control.ways:
            if control.press(key) and self.becomes("!==", before, limit_s=patience_s):
                return back
        return None

    def errors(self) -> list[str]:
        """What the view raised instead of drawing."""
        return self.screen.locator("[role=alert]").all_text_contents()


def explorers(lab: Lab) -> list[Explorer]:
    """The explorers of the open chapter that are alive, from the top."""
    return [Explorer(root) for root in lab.page.locator(f"{SHOWN} .agentlab-explore").all()]
