"""`agentlab audit`: files and folders, text and JSON, errors that cost only their file, exit status, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentlab import auditcli

SAMPLES = Path(__file__).parent.parent / "data" / "sessions"
ONE = SAMPLES / "codex_rollout_0.129.0_small.jsonl"


def run(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, str, str]:
    status = auditcli.main([str(argument) for argument in argv])
    return (status, *capsys.readouterr())


def test_a_folder_as_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in (ONE.name, "claude_code_1.0.x_edge_cases.jsonl", "openai_chat_tau_airline_3.json"):
        (tmp_path / "deep").mkdir(exist_ok=True)
        (tmp_path / "deep" / name).write_bytes((SAMPLES / name).read_bytes())
    status, out, err = run(capsys, tmp_path)
    assert (status, err) == (0, "") and out.endswith("5 sessions in 3 files\n")
    assert "messages     9; about 201 tokens: system 60, user 104, assistant 37, tool 0" in out
    assert "pairing      2 unanswered" in out and "left out     1 x a list instead of a record (line 16)" in out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = run(capsys, "--json", ONE, tmp_path / "none", SAMPLES / "openai_chat_tau_airline_3.json")
    read = json.loads(out)
    assert status == 1 and [one["number"] for one in read["sessions"]] == [1, 1, 2, 3]
    assert read["sessions"][0]["cache"]["hit"] == 1024 and read["errors"][0]["path"].endswith("none")
    assert json.loads(run(capsys, "--json", tmp_path)[1]) == {
        "sessions": [],
        "errors": [
            {"path": str(tmp_path), "error": f"the folder holds no file that ends in {', '.join(auditcli.SUFFIXES)}"}
        ],
    }


def test_bad_files_cost_only_themselves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = ONE.read_bytes()
    bad = {
        "binary.jsonl": bytes(range(256)) * 20,
        "empty.json": b"",
        "half.jsonl": whole[: len(whole) * 2 // 3],
        "half.traj": b'{"history": [{"role": "us',
        "wrong.json": b'{"a": 1}',
    }
    for name, content in {**bad, "good.jsonl": whole, "ignored.txt": b"x"}.items():
        (tmp_path / name).write_bytes(content)
    status, out, err = run(capsys, tmp_path)
    assert status == 1 and out.endswith("2 sessions in 6 files\n")
    told = err.splitlines()
    assert [line.split(": ")[1].rsplit(os.sep, 1)[1] for line in told] == sorted(bad)
    assert "read in part: 1 line or message left out" in told[2]


def test_odd_files_and_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.jsonl")
        (tmp_path / "link.jsonl").symlink_to(ONE)
        (tmp_path / "loop").symlink_to(tmp_path)
        (tmp_path / "a\x1b[31m\n.jsonl").write_bytes(ONE.read_bytes())
        status, out, err = run(capsys, tmp_path)
        assert status == 1 and "no regular file" in err and err.count("\n") == 1
        assert "1 session in 2 files" in out and "\x1b" not in out


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["--nonsense", "x"], 2), (["--help"], 0)])
def test_the_command_line(argv: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert auditcli.main(argv) == status


def test_the_bar_goes_to_stderr_and_ends_clean(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = run(capsys, ONE)
    _, out, err = run(capsys, "--progress", "always", ONE)
    assert out == plain and "100% codex_rollout" in err and err.endswith("\r\x1b[K")


def test_a_reader_that_goes_away() -> None:
    code = "import sys; from agentlab.auditcli import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, *[str(SAMPLES)] * 40]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1
    process.stderr.close()


MEASURE = """
import resource, sys
from agentlab.auditcli import main
status = main(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.mark.soak
@pytest.mark.parametrize("body", ["ok", "".join(f"{n:6}→ line {n}\n" for n in range(60)), "a" * 2000 + "🟡"])
def test_a_file_of_100_mb_takes_less_than_300_mb(tmp_path: Path, body: str) -> None:
    path, written, number = tmp_path / "a.jsonl", 0, 0
    with path.open("wb") as file:
        while written < 100_000_000:
            number += 1
            use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": f"ls {number}"}}
            usage = {"input_tokens": 9, "cache_read_input_tokens": number, "output_tokens": 8}
            reply = {"id": f"m{number}", "role": "assistant", "content": [use], "usage": usage}
            result = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": body}]
            for kind, message in (("assistant", reply), ("user", {"role": "user", "content": result})):
                record = {"type": kind, "uuid": f"{kind}{number}", "sessionId": "s", "message": message}
                written += file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    done = subprocess.run([sys.executable, "-c", MEASURE, "--json", str(path)], capture_output=True, check=True)
    status, megabytes = map(int, done.stderr.split())
    assert status == 0 and megabytes < 300
    assert sum(one["messages"] for one in json.loads(done.stdout)["sessions"]) == 2 * number
