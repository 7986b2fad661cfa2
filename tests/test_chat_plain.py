"""`agentlab chat` through a pipe: a real process, plain text, exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from agentlab.chat.plain import LINE_BYTES
from agentlab.simulator import Fault, Simulator, serve

KEY = "sk-live-0123456789abcdef"
WITHOUT_EXTRAS = (
    "import sys; sys.modules['prompt_toolkit'] = sys.modules['rich'] = None; "
    "from agentlab.cli import main; sys.exit(main())"
)


def command(*arguments, code=None):
    return [sys.executable, *(["-c", code] if code else ["-m", "agentlab.cli"]), "chat", *arguments]


def pipe(folder, said, *arguments, code=None, **environ):
    done = subprocess.run(
        command("--folder", str(folder), *arguments, code=code),
        input=said if isinstance(said, bytes) else said.encode(),
        capture_output=True,
        env={**os.environ, **environ},
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_every_line_is_said_and_the_end_ends_it(tmp_path):
    code, output, errors = pipe(tmp_path, "say hi\n/cost\nsay last without an end", "--offline")
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    id = re.match(r"session (\w+)", lines[0])[1]
    assert "hi" in lines and "last without an end" in lines
    assert re.search(r"^requests +1$", output, re.M)
    assert lines[-1].endswith(f"--resume {id}")
    code, output, _ = pipe(tmp_path, "/rewind\n", "--resume", id)
    assert code == 0
    assert "  2  say last without an end" in output.splitlines()


def test_it_works_without_the_packages_of_the_terminal(tmp_path):
    code, output, errors = pipe(tmp_path, "say hi\r\n", code=WITHOUT_EXTRAS)
    assert (code, errors) == (0, "")
    assert "hi" in output.splitlines()


def test_what_has_to_be_asked_is_denied(tmp_path):
    code, output, _ = pipe(tmp_path, "run touch a\n/quit\nrun touch b\n")
    assert code == 0
    assert "nobody is there to be asked" in output
    assert output.count("rejected") == 1  # nothing is said after /quit
    assert sorted(path.name for path in tmp_path.iterdir()) == [".agentlab"]


def test_errors_are_one_line_and_count(tmp_path):
    with serve(Simulator([Fault(status=401), "Hello."])) as server:
        code, output, errors = pipe(
            tmp_path, "hi\nhi again\n", AGENT_BASE_URL=server.url, AGENT_API_KEY=KEY, AGENT_MODEL="m"
        )
    assert code == 1
    assert "Hello." in output  # the rest goes on
    assert re.fullmatch(r"agentlab: error: .*401.*\n", errors)
    assert KEY not in output + errors


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["--resume", "nonsense"], {}),
        (["--prices", "nowhere.json"], {}),
        ([], {"AGENT_API_KEY": KEY}),
        ([], {"AGENT_BASE_URL": "nonsense", "AGENT_MODEL": "m"}),
        ([], {"AGENT_CONTEXT_WINDOW": "many"}),
    ],
    ids=["session", "prices", "no url", "bad url", "window"],
)
def test_what_cannot_start_is_one_line(tmp_path, arguments, environ):
    code, output, errors = pipe(tmp_path, "say hi\n", *arguments, **environ)
    assert (code, output) == (1, "")
    assert re.fullmatch(r"agentlab: .+\n", errors)
    assert KEY not in errors


def test_input_that_is_no_text_and_a_line_without_end(tmp_path):
    code, output, _ = pipe(tmp_path, b"say \xff\x00\x1b[2J\n\n\n")
    assert code == 0
    assert "�" in output
    code, output, errors = pipe(tmp_path, b"x" * (LINE_BYTES + 200_000))
    assert code == 1
    assert re.fullmatch(r"agentlab: A line of more than .+\n", errors)
    assert "resume with" in output


def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    with subprocess.Popen(
        command("--folder", str(tmp_path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"count to 1000\n" * 3)
        process.stdin.close()
        errors = process.stderr.read()
        assert process.wait(60) == 1
    assert errors == b""


def test_ctrl_c_stops_the_turn_and_then_leaves(tmp_path):
    with (
        serve(Simulator([Fault(step="one two three four", stall_at=900), "Fine."])) as server,
        subprocess.Popen(
            command("--folder", str(tmp_path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "AGENT_BASE_URL": server.url, "AGENT_MODEL": "m"},
        ) as process,
    ):
        guard = threading.Timer(60, process.kill)
        guard.start()

        def until(text):
            seen = b""
            while text not in seen:
                piece = process.stdout.read1()
                assert piece, seen
                seen += piece

        try:
            process.stdin.write(b"go\n")
            process.stdin.flush()
            until(b"one")
            process.send_signal(signal.SIGINT)
            until(b"stopped: what had arrived is kept")
            process.stdin.write(b"go on\n")
            process.stdin.flush()
            until(b"Fine.\nprompt")
            process.send_signal(signal.SIGINT)  # while it waits for a line, or is about to
            until(b"resume with")  # the end of the input, which comes next, would be a reason to leave, too
            _, errors = process.communicate(timeout=60)
        finally:
            guard.cancel()
            process.kill()
    assert process.returncode == 130
    assert errors == b""
