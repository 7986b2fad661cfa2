"""The command line: one line for each error, and a provider that answers until Ctrl-C."""

import importlib.metadata
import re
import signal
import socket
import subprocess
import sys
import tempfile

import httpx
import pytest

import agentlab
from agentlab.cli import main


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"agentlab {agentlab.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["serve", "--port", "many"], ["serve", "--nonsense"]])
def test_a_wrong_command_line_gets_one_line_and_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert re.fullmatch(r"agentlab.*--help.*\n", errors)


def test_what_cannot_be_served_gets_one_line_and_code_1(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert re.fullmatch(rf"agentlab: .*{port}.*\n", errors)
    assert main(["serve", "--port", "0", "--dialect", "nonsense"]) == 1
    assert re.fullmatch(r"agentlab: .*nonsense.*\n", capsys.readouterr().err)


def test_serve_answers_until_interrupted():
    command = [sys.executable, "-m", "agentlab.cli", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"http://127\.0\.0\.1:\d+/v1", server.stdout.readline())[0]
            question = {"model": "offline", "messages": [{"role": "user", "content": "count to 3"}]}
            answer = httpx.post(f"{url}/chat/completions", json=question, timeout=30, trust_env=False)
            server.send_signal(signal.SIGINT)
            output, errors = server.communicate(timeout=30)
        finally:
            server.kill()
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"
    assert (server.returncode, output, errors) == (0, "", "")


def test_the_installed_command_is_this_one():
    try:
        scripts = importlib.metadata.distribution("agentlab-kernel").entry_points.select(group="console_scripts")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("agentlab-kernel is not installed here")
    assert [(script.name, script.value) for script in scripts] == [("agentlab", "agentlab.cli:main")]


def test_chat_through_a_pipe():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "agentlab.cli", "chat", "--offline", "--folder", folder],
            input="say hi\n/cost\n", capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "hi" in done.stdout.splitlines()


def test_a_chat_in_a_folder_that_is_not_there_gets_one_line_and_code_1(capsys):
    assert main(["chat", "--offline", "--folder", "no/such/folder"]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert re.fullmatch(r"agentlab: .*no/such/folder.*\n", errors)


def test_audit_gets_its_arguments_as_they_are(tmp_path, capsys):
    session = tmp_path / "s.json"
    session.write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]')
    assert main(["audit", "--json", str(session)]) == 0
    assert '"sessions"' in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "nowhere.jsonl")]) == 1
    assert main(["audit", "--nonsense"]) == 2
    assert "agentlab audit" in capsys.readouterr().err
