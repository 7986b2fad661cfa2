"""`agentlab chat` in a pseudo-terminal: a real process, keys in, a screen out."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty")
pytest.importorskip("prompt_toolkit")
pytest.importorskip("rich")

HANG_GUARD_S = 60.0
CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.|\x08")
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """The other end of a terminal in which a chat runs: `type` keys, wait `until` a text has been drawn."""

    def __init__(self, folder, *arguments, code=None):
        self.master, slave = pty.openpty()
        run = ["-c", code] if code else ["-m", "agentlab.cli"]
        self.process = subprocess.Popen(
            [sys.executable, *run, "chat", "--folder", str(folder), *arguments],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        )  # fmt: skip
        os.close(slave)
        self.raw = b""
        self.seen = 0
        """How much of the text has been waited for."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    @property
    def text(self):
        return CODES.sub("", self.raw.decode("utf-8", "ignore"))

    def type(self, keys):
        os.write(self.master, keys.encode())

    def until(self, pattern):
        """Wait for a text after the last one that was waited for."""
        while not (found := re.compile(pattern).search(self.text, self.seen)):
            assert self._read(), f"{pattern!r} never came: {self.text[self.seen :][-2000:]!r}"
        self.seen = found.end()
        return found

    def end(self):
        """Wait for the end of the process; returns its exit code."""
        while self._read():
            pass
        return self.process.wait(HANG_GUARD_S)

    def _read(self):
        ready, _, _ = select.select([self.master], [], [], HANG_GUARD_S)
        try:
            data = os.read(self.master, 65536) if ready else b""
        except OSError:  # the other end is closed
            data = b""
        self.raw += data
        return data


def test_a_reply_streams_ctrl_c_stops_it_and_then_leaves(tmp_path):
    with Terminal(tmp_path, "--offline") as terminal:
        id = terminal.until(r"session (\w+)")[1]
        terminal.type("count to 900\r")
        terminal.until("> count to 900")
        terminal.until("21")
        terminal.type(CTRL_C)
        terminal.until("stopped: what had arrived is kept")
        terminal.type(CTRL_C)
        terminal.until(f"--resume {id}")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert "900" not in terminal.text.replace("count to 900", "")


def test_words_typed_during_a_turn_steer_it(tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.until("session")
        terminal.type("count to 60\r")
        terminal.until("11")
        terminal.type("say banana\r")
        terminal.until("queued: say banana")
        terminal.until("1 queued")
        terminal.until("> say banana")
        terminal.until("banana")
        terminal.until("session hits")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_questions_are_answered_with_enter(tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.until("session")
        terminal.type("run touch one\r")
        terminal.until("command: touch one")
        terminal.until("Run run_shell\\? \\[y\\]es")
        terminal.type("perhaps\r")  # no answer; the words wait
        terminal.until("answer y, n or a")
        assert not (tmp_path / "one").exists()
        terminal.type("n\r")
        terminal.until("rejected")
        terminal.until("> perhaps")
        terminal.until("session hits")
        terminal.type("run touch two\r")
        terminal.until("command: touch two")
        terminal.type("always\r")
        terminal.until("session hits")
        terminal.type("run touch three\r")
        terminal.until("three")
        terminal.until("session hits")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert {path.name for path in tmp_path.iterdir()} == {".agentlab", "two", "three"}


def test_rewind_gives_the_words_back_to_be_changed(tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.until("session")
        terminal.type("say one\r")
        terminal.until("session hits")
        terminal.type("/rewind\r")
        terminal.until("1  say one")
        terminal.type("/rewind 1\r")
        terminal.until("taken back to before: say one")
        terminal.type(" more\r")
        terminal.until("> say one more")
        terminal.until("session hits")
        terminal.type("/rewind\r")
        terminal.until("1  say one more")
        terminal.type(CTRL_C)
        terminal.until("again leaves")
        terminal.type(CTRL_C)
        assert terminal.end() == 0


def test_a_session_goes_on_after_it_was_killed(tmp_path):
    with Terminal(tmp_path) as terminal:
        id = terminal.until(r"session (\w+)")[1]
        terminal.type("say first\r")
        terminal.until("session hits")
        terminal.type("count to 900\r")
        terminal.until("21")
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait(HANG_GUARD_S)
    with Terminal(tmp_path, "--resume", id) as terminal:
        terminal.until(f"session {id}")
        terminal.until("words of yours so far: 2, the last: count to 900")
        terminal.type("what do you see?\r")
        terminal.until("4 user|3 user")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_without_its_packages_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['prompt_toolkit'] = None; from agentlab.cli import main; sys.exit(main())"
    with Terminal(tmp_path, code=code) as terminal:
        terminal.until(r"pip install agentlab-kernel\[chat\]")
        assert terminal.end() == 1
    assert "Traceback" not in terminal.text


def test_a_terminated_chat_leaves_cleanly(tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.until("session")
        terminal.type("count to 900\r")
        terminal.until("21")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.until("resume with")
        assert terminal.end() == 0
