"""`make` says what is wrong in one line, and repairs an environment that was left half done. Nothing is downloaded."""

import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import environment, lab, lock

ROOT = Path(__file__).resolve().parent.parent
PIP = """
import os, signal, sys
print("Collecting something", flush=True)
{first}
print("Installing collected packages: something", flush=True)
{then}
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on PATH")


def make(folder, *arguments, **variables):
    """Run make in `folder` without what an outer make or the user's pip settings would add."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PIP_")) and k != "PYTHON"}
    command = ["make", "--no-print-directory", *arguments]
    environ = clean | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"} | variables
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


def complaints(result):
    """The lines on stderr, without the one by which make repeats that a recipe failed."""
    return [line for line in result.stderr.splitlines() if not re.match(r"make(\[\d+\])?: \*\*\*", line)]


@pytest.fixture
def project(tmp_path):
    """The files that make needs, in a folder with a space in its name."""
    folder = tmp_path / "my project"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    (folder / "notebooks").mkdir()
    (folder / "notebooks/00_start.ipynb").touch()
    return folder


@pytest.fixture
def finished(project):
    """A project whose environment has its stamp (and no packages: nothing here may need them)."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    environment.write_stamp(project, ["test"])
    return project


def put_pip(project, *, first="", then=""):
    """Give the environment a pip of our own, and a lock that it has not seen."""
    (package,) = project.glob(".venv/lib/python*/site-packages")
    (package / "pip").mkdir()
    (package / "pip/__init__.py").touch()
    (package / "pip/__main__.py").write_text(PIP.format(first=first, then=then))
    (project / "requirements.lock").write_text("")


def fake_python(folder, version):
    """An executable that claims to be another version of Python."""
    path = folder / "python3"
    pretend = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    path.write_text(
        f"#!/bin/sh\nif [ $1 = -V ]; then echo Python {version[0]}.{version[1]}; "
        f"else exec '{sys.executable}' -c '{pretend}' \"$2\"; fi\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def busy_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


# The targets


def targets():
    return re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


def test_plain_make_lists_every_target(project):
    listed = re.findall(r"^ +make (\w+) +\S", make(project).stdout, re.MULTILINE)
    assert listed == targets()


@pytest.mark.parametrize("target", targets())
def test_every_target_can_be_shown_without_running_it(project, target):
    (project / "tests/bench").mkdir(parents=True)
    (project / "tests/bench/bench_x.py").touch()
    result = make(project, "-n", target)
    assert (result.returncode, result.stderr) == (0, "")
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("flags", [[], ["-n"]])
def test_an_unknown_target_gets_one_line_that_names_the_way_out(project, flags):
    result = make(project, *flags, "nonsense")
    assert result.returncode != 0
    assert re.fullmatch(r".*'nonsense'.*`make`.*\n", result.stderr)


def test_a_file_is_a_target_without_work(project):
    assert make(project, "pyproject.toml", "Makefile").returncode == 0


def test_without_benchmarks_bench_says_so(finished):
    result = make(finished, "bench")
    assert result.returncode != 0
    assert "no benchmarks" in result.stderr


def test_clean_removes_what_was_made_and_nothing_else(finished):
    before = {path for path in finished.rglob("*") if ".venv" not in path.parts}
    (finished / "scripts/__pycache__").mkdir()
    (finished / ".mypy_cache").mkdir()
    assert make(finished, "clean").returncode == 0
    assert set(finished.rglob("*")) == before


# Which Python


@pytest.mark.parametrize("target", ["lab", "test", "check"])
def test_a_missing_python_gets_one_line(project, target):
    result = make(project, target, "PYTHON=/nonexistent/python")
    assert result.returncode != 0
    (line,) = complaints(result)
    assert "/nonexistent/python" in line
    assert f"make {target} PYTHON=" in line


def test_a_python_that_is_too_old_gets_one_line(project, tmp_path):
    old = fake_python(tmp_path, (3, 9))
    result = make(project, "lab", f"PYTHON={old}")
    assert result.returncode != 0
    (line,) = complaints(result)
    assert "Python 3.9" in line
    assert "make lab PYTHON=" in line
    assert not (project / ".venv").exists()


def test_a_finished_environment_keeps_its_python_whatever_python3_is(finished, tmp_path, busy_port):
    fake_python(tmp_path, (3, 9))
    result = make(finished, "lab", f"PORT={busy_port}", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert f"port {busy_port} is in use" in result.stderr


# The environment


def spoil_folder(project):
    stamp = environment.read_stamp(project) | {"folder": "/elsewhere"}
    (project / ".venv/agentlab.json").write_text(json.dumps(stamp))


def spoil_version(project):
    stamp = environment.read_stamp(project) | {"python": "3.8"}
    (project / ".venv/agentlab.json").write_text(json.dumps(stamp))


def spoil_python(project):
    for python in project.glob(".venv/bin/python*"):
        python.unlink()
    (project / ".venv/bin/python").symlink_to("/nonexistent/python3.11")


SPOILS = {
    "there is no .venv": lambda project: shutil.rmtree(project / ".venv"),
    "never finished": lambda project: (project / ".venv/agentlab.json").unlink(),
    "was never finished": lambda project: (project / ".venv/agentlab.json").write_text("[1"),
    "another folder": spoil_folder,
    "made by Python 3.8": spoil_version,
    "no longer runs": spoil_python,
}


@pytest.mark.parametrize("reason", SPOILS)
def test_an_environment_that_cannot_be_used_is_found_out(finished, reason):
    assert environment.unusable(finished) is None
    SPOILS[reason](finished)
    assert reason in environment.unusable(finished)


def test_a_broken_environment_is_made_anew_and_a_failed_install_is_not_taken_for_a_finished_one(finished):
    spoil_python(finished)
    (finished / ".venv/left-over").touch()
    result = make(finished, "lab", f"PYTHON={sys.executable}")
    assert result.returncode != 0
    assert "no longer runs" in result.stdout
    assert "the install failed" in complaints(result)[-1]
    assert "Traceback" not in result.stderr
    assert not (finished / ".venv/left-over").exists()
    assert "never finished" in environment.unusable(finished)


def test_a_finished_environment_is_left_alone(finished):
    before = sorted(finished.rglob("*"))
    subprocess.run([sys.executable, "-B", finished / "scripts/environment.py", "lab"], check=True)
    assert sorted(finished.rglob("*")) == before


def test_a_new_lock_or_a_missing_group_is_installed(finished):
    put_pip(finished)
    for group in ("lab", "test", "lab"):
        run = subprocess.run(
            [sys.executable, finished / "scripts/environment.py", group], capture_output=True, text=True
        )
        assert (run.returncode, run.stderr) == (0, "")
    stamp = environment.read_stamp(finished)
    assert (stamp["groups"], stamp["lock"]) == (["test"], environment.lock_hash(finished))
    overrides = json.loads((finished / ".venv/share/jupyter/lab/settings/overrides.json").read_bytes())
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert overrides["@jupyter-widgets/jupyterlab-manager:plugin"]["saveState"] is False


def test_modules_are_compiled_even_where_the_user_asks_for_no_bytecode(finished):
    put_pip(finished, first="sys.exit(os.environ.get('PYTHONDONTWRITEBYTECODE'))")
    (package,) = finished.glob(".venv/lib/python*/site-packages")
    (package / "some_package.py").write_text("x = 1")
    (line,) = complaints(make(finished, "lab", "PORT=x", PYTHONDONTWRITEBYTECODE="1"))
    assert "PORT=x" in line
    assert list(package.glob("__pycache__/some_package.*.pyc"))


def test_an_install_that_fails_before_it_changes_anything_leaves_the_environment_usable(finished):
    stamp = environment.read_stamp(finished)
    put_pip(finished, first="sys.exit('no network')")
    result = make(finished, "lab")
    assert result.returncode != 0
    assert [line[:29] for line in complaints(result)] == ["no network", "agentlab: the install failed,"]
    assert environment.read_stamp(finished) == stamp


@pytest.mark.parametrize(
    "end", ["sys.exit(1)", "os.kill(os.getppid(), signal.SIGKILL)", "os.kill(os.getppid(), signal.SIGINT); sys.exit(1)"]
)
def test_an_install_that_ends_halfway_leaves_no_stamp(finished, end):
    put_pip(finished, then=end)
    result = make(finished, "lab")
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert "never finished" in environment.unusable(finished)


def test_what_a_killed_install_left_running_is_waited_for(finished):
    put_pip(finished, then="os.kill(os.getppid(), signal.SIGKILL); sys.stdin.read()")
    script = [sys.executable, finished / "scripts/environment.py", "lab"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as first:
        assert first.wait(60) == -signal.SIGKILL
        with (finished / "pyproject.toml").open() as gate, pytest.raises(BlockingIOError):
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        first.stdin.close()  # the orphan ends
        with (finished / "pyproject.toml").open() as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)


def test_the_second_of_two_installs_says_that_it_waits(finished):
    with (finished / "pyproject.toml").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        script = [sys.executable, finished / "scripts/environment.py", "lab"]
        with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as second:
            try:
                assert "waiting for another install" in second.stdout.readline()
                fcntl.flock(gate, fcntl.LOCK_UN)
                assert second.wait(60) == 0
            finally:
                second.kill()


# JupyterLab


@pytest.mark.parametrize("port", ["0", "70000", "-1", "many", "88 88", "٨٨٨٨", ""])
def test_what_is_no_port_gets_one_line(finished, port):
    result = make(finished, "lab", f"PORT={port}")
    assert result.returncode != 0
    (line,) = complaints(result)
    assert line.startswith(f"agentlab: PORT={port} is no port number")
    assert "make lab PORT=" in line


def test_a_port_in_use_gets_one_line_that_names_another(finished, busy_port):
    result = make(finished, "lab", f"PORT={busy_port}")
    assert result.returncode != 0
    (line,) = complaints(result)
    assert f"port {busy_port} is in use" in line
    assert "make lab PORT=" in line


def test_a_missing_first_chapter_gets_one_line(finished):
    (finished / "notebooks/00_start.ipynb").unlink()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = make(finished, "lab", f"PORT={port}")
    assert result.returncode != 0
    (line,) = complaints(result)
    assert "notebooks/00_start.ipynb is missing" in line


@pytest.mark.parametrize("user", [0, 1000])
def test_jupyterlab_stays_on_this_machine_with_its_token(monkeypatch, user):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    command = lab.command("8890", "--no-browser")
    assert ("--allow-root" in command) == (user == 0)
    assert {"--ServerApp.ip=127.0.0.1", "--ServerApp.port=8890", "--ServerApp.port_retries=0"} <= set(command)
    assert {"--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb", "--no-browser"} <= set(command)
    assert f"--LabApp.workspaces_dir={lab.ROOT / '.agentlab/workspaces'}" in command  # no tabs of other projects
    assert not any("token" in option or "password" in option for option in command)


def test_no_browser_is_asked_for_by_a_variable(project):
    assert "--no-browser" in make(project, "-n", "lab", "NO_BROWSER=1").stdout
    assert "--no-browser" not in make(project, "-n", "lab").stdout


# The lock


def test_the_lock_holds_versions_only():
    assert lock.foreign((ROOT / "requirements.lock").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://mirror.invalid/simple",
        "--find-links /opt/wheels",
        "httpx @ file:///tmp/httpx.whl",
        "-e .",
        "httpx>=0.28",
        "httpx==0.28.1 --hash=sha256:00",
        "/opt/wheels/httpx.whl",
    ],
)
def test_what_would_tie_the_lock_to_one_machine_is_found(line):
    assert lock.foreign(f"# a comment\nanyio==4.16.0 ; python_version < '3.12'\n{line}\n") == [line]


def test_the_lock_satisfies_every_requirement_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split(" ;")[0].split("==")
            pinned.setdefault(name, []).append(version)
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in map(Requirement, itertools.chain.from_iterable(groups)):
        assert pinned.get(requirement.name), f"{requirement.name} is not in requirements.lock: make lock"
        for version in pinned[requirement.name]:
            assert version in requirement.specifier
