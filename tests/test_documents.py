"""What the documents say is true: code runs, links lead somewhere, names exist, and messages are the real ones."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import types
import warnings
from pathlib import Path

import httpx
import nbformat
import pytest

from agentlab import check
from agentlab.check.report import Exercise
from agentlab.cli import main as agentlab_command
from agentlab.errors import ProviderUnavailable, RateLimited
from agentlab.journal import Journal
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, user
from agentlab.pairing import problems
from agentlab.provider import ChatClient
from agentlab.simulator import Fault, Simulator
from agentlab.tools import Registry
from agentlab.watchdog import LoopBudget
from scripts import book, environment, lab

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "TROUBLESHOOTING.md",
    "CHANGELOG.md",
    "docs/GLOSSARY.md",
    "docs/GLOSSARY.zh.md",
    "data/README.md",
]
CHAPTERS = book.names(ROOT / "notebooks")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def chapter(name):
    return read(f"notebooks/text/{name}.py")


def blocks(text, language="python"):
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def prose(text):
    """A document without its code."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.M | re.S)


# --- links and names


def anchors(text):
    """The names by which GitHub and JupyterLab know the headings."""
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(text, folder):
    """Links to files or headings that are not there."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        place, _, anchor = target.partition("#")
        if re.match(r"https?:|mailto:", target):
            continue
        path = (folder / place) if place else None
        missing = path is not None and not path.exists()
        if missing or (anchor and anchor not in anchors(path.read_text(encoding="utf-8") if path else text)):
            found.append(target)
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_links_of_a_document_lead_somewhere(name):
    assert broken_links(read(name), (ROOT / name).parent) == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_links_of_a_chapter_lead_somewhere(name):
    cells = [cell.source for cell in book.read_text(book.text_path(ROOT / "notebooks", name)).cells]
    assert broken_links("\n\n".join(cells), ROOT / "notebooks") == []


def test_a_link_to_nowhere_is_found():
    text = "# Some Heading, really\n[a](none.md) [b](#some-heading-really) [c](#other) `[d](none)` [e](https://x.y)"
    assert broken_links(text, ROOT) == ["none.md", "#other"]


def modules():
    """What stands directly in agentlab/: modules, and packages with their dots."""
    paths = [path for path in (ROOT / "agentlab").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return {path.stem for path in paths} - {"__init__"}


def test_the_readme_names_every_module_and_no_other():
    table = read("README.md").split("## Modules")[1].split("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert len(named) == len(set(named))
    assert set(named) == modules()


def test_the_changelog_names_only_modules_and_names_that_exist():
    named = set(re.findall(r"`(\w+)`", read("CHANGELOG.md")))
    assert named - modules() == set()


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "TROUBLESHOOTING.md", "README.md", "CHANGELOG.md"])
def test_dotted_names_can_be_imported_and_files_are_there(name):
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", read(name), flags=re.M | re.S))
    for text in quoted:
        if found := re.match(r"(agentlab(?:\.\w+)+)", text):
            value = __import__("agentlab")
            for part in found[1].split(".")[1:]:
                value = getattr(value, part, None) or __import__(f"{value.__name__}.{part}", fromlist=[part])
        elif re.fullmatch(r"(?:agentlab|tests|scripts|notebooks|data|docs)/[\w./]*", text) and "99" not in text:
            assert (ROOT / text).exists(), text


def test_make_targets_and_commands_that_are_shown_exist():
    targets = re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.M)[1].split()
    for name in DOCUMENTS:
        quoted = "\n".join(re.findall(r"`[^`\n]+`", read(name)))
        indented = "\n".join(re.findall(r"^    (.+)$", read(name), re.M))
        for target in re.findall(r"(?:^|`)make ([a-z]+)", f"{quoted}\n{indented}", re.M):
            assert target in targets, f"{name}: make {target}"
        for command in re.findall(r"(?:^|`)agentlab ([a-z]+)", f"{quoted}\n{indented}", re.M):
            try:
                code = agentlab_command([command, "--help"])
            except SystemExit as ended:
                code = ended.code
            assert code == 0, f"{name}: agentlab {command}"


def test_every_chapter_is_in_the_readme_in_the_contents_and_on_the_map():
    listed = re.findall(r"^\| \[(\w+)\]\(notebooks/(\w+)\.ipynb\) \|", read("README.md"), re.M)
    assert listed == [(name, name) for name in CHAPTERS]
    start = chapter(CHAPTERS[0])
    contents = start.split("**Contents:**")[1].split("glossary")[0]
    assert re.findall(r"\((\d\d\w+)\.ipynb\)", contents) == CHAPTERS[1:]
    assert set(re.findall(r"\((\d\d\w+)\.ipynb\)", start.split("## The map")[1])) == set(CHAPTERS[1:])
    assert "(../docs/GLOSSARY.md)" in start


def test_every_chapter_leads_to_the_next_one():
    for name, following in itertools.pairwise(CHAPTERS):
        (target,) = re.findall(r"^# \*\*Next:\*\* \[[^]]+\]\((\w+)\.ipynb\)", chapter(name), re.M)
        assert target == following


# --- the glossary


def entries():
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| \[(\d\d)\]\(\.\./notebooks/(\w+)\.ipynb\) \|$", read("docs/GLOSSARY.md"), re.M
    )
    assert len(rows) == len(re.findall(r"^\|", read("docs/GLOSSARY.md"), re.M)) - 2
    return rows


def test_the_glossary_has_one_sentence_a_term_in_order_and_a_term_from_every_chapter():
    rows = entries()
    terms = [term.lower() for term, *_ in rows]
    assert terms == sorted(set(terms))
    for term, sentence, number, name in rows:
        assert re.fullmatch(r"[A-Z][^.!?]*\.", sentence), f"{term}: {sentence}"
        assert name.startswith(f"{number}_")
    assert {name for *_, name in rows} == set(CHAPTERS)


@pytest.mark.parametrize(("term", "name"), [(term, name) for term, _, _, name in entries()])
def test_the_chapter_of_a_term_uses_it(term, name):
    text = re.sub(r"[\s#-]+", " ", chapter(name)).lower()
    stems = [word.removesuffix("ing").removesuffix("e") for word in term.lower().replace("-", " ").split()]
    assert " ".join(stems) in text or all(stem in text for stem in stems)


def test_the_glossary_in_chinese_has_the_same_terms_and_one_sentence_each():
    found = re.findall(
        r"^\| (.+?) \| (.+?) \| ([^|]+) \| \[(\d\d)\]\(\.\./notebooks/zh/(\w+)\.ipynb\) \|$",
        read("docs/GLOSSARY.zh.md"),
        re.M,
    )
    assert [(term, number, name) for term, _, _, number, name in found] == [(t, n, name) for t, _, n, name in entries()]
    for term, _, sentence, *_ in found:
        assert re.fullmatch(r"[^。]*[\u4e00-\u9fff][^。]*。", sentence), f"{term}: {sentence}"


# --- code


def test_the_code_in_the_readme_repairs_a_history():
    (code,) = blocks(read("README.md"))
    names = {"history": [user("hi"), assistant("", call("c", "look")), user("go on")]}
    exec(compile(code, "README.md", "exec"), names)
    assert problems(names["history"]) == []


@pytest.mark.parametrize("code", blocks(read("TROUBLESHOOTING.md")), ids=lambda code: code.split()[1])
def test_the_code_in_troubleshooting_runs(code):
    names = {}
    exec(compile(code, "TROUBLESHOOTING.md", "exec"), names)
    assert problems(names.get("history", [])) == []


@pytest.fixture
def contributing():
    """The chapter and the exercise that CONTRIBUTING shows."""
    started, exercise, words = blocks(read("CONTRIBUTING.md"))
    assert started.startswith("# %%") and exercise.startswith('"""The exercise') and "say(" in words
    return started, exercise, words


def test_the_words_in_contributing_are_said(contributing, capsys):
    exec(contributing[2], {})
    assert capsys.readouterr().out == "3 of 9 cases pass\n"


def test_the_chapter_to_start_from_builds_and_says_what_it_says_it_does(contributing, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/99_name.py").write_text(contributing[0])
    assert book.main(["build", "99"], tmp_path) == 0
    assert book.main(["check", "99"], tmp_path) == 0
    notebook = nbformat.read(tmp_path / "99_name.ipynb", as_version=4)
    said = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert "must be a response to a preceeding message with 'tool_calls'" in said[0]
    assert said[1] == "1 orphan: repair\n"
    assert "jupytext" in (tmp_path / "text/99_name.py").read_text()


def test_the_exercise_in_contributing_passes_what_is_right_and_fails_what_is_wrong(contributing):
    module = types.ModuleType("shout")
    sys.modules["shout"] = module  # dataclasses look their module up
    try:
        exec(compile(contributing[1], "CONTRIBUTING.md", "exec"), module.__dict__)
    finally:
        del sys.modules["shout"]
    shout = module.shout
    assert isinstance(shout, Exercise)
    assert shout(shout.solution).passed and shout(lambda text: str.upper(text)).passed
    report = shout(lambda text: text)
    (failed,) = [finding for finding in report.findings if not finding.passed]
    assert (failed.fed, failed.expected, failed.got) == ("'hello'", "HELLO", "'hello'")
    assert failed.why == "Nobody hears you otherwise."
    assert report.live.said and not report.live.passed
    broken = shout(lambda text: 1 // 0)
    assert "ZeroDivisionError" in broken.findings[0].got and "ZeroDivisionError" in broken.live.said
    assert [repr(shout.hint(number))[:11] for number in (1, 2, 3)] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3"]


@pytest.mark.skipif(shutil.which("ruff", path=str(Path(sys.executable).parent)) is None, reason="ruff is not installed")
def test_the_exercise_in_contributing_is_clean_code(contributing, tmp_path):
    (tmp_path / "name.py").write_text(contributing[1])
    ruff = Path(sys.executable).parent / "ruff"
    for command in (["check"], ["format", "--check"]):
        command = [ruff, *command, "--no-cache", "--config", ROOT / "pyproject.toml", tmp_path / "name.py"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# --- messages


def entries_of_troubleshooting():
    """The messages by their titles, each as one line."""
    found = re.findall(r"^### (\d+)\. ([^\n]+)\n\n```text\n(.*?)```$", read("TROUBLESHOOTING.md"), re.M | re.S)
    assert [int(number) for number, *_ in found] == list(range(1, 21))
    return {title: one_line(message) for _, title, message in found}


def one_line(text):
    return " ".join(text.split())


def raised(work):
    """The error that a function or a coroutine ends in, as a notebook shows it."""
    with pytest.raises(Exception) as found:
        asyncio.run(work) if asyncio.iscoroutine(work) else work()
    return f"{found.type.__name__}: {found.value}"


MESSAGES = {}


def message(title):
    """Register what makes the message of this title appear."""

    def register(function):
        MESSAGES[title] = function
        return function

    return register


@message("No Python")
def _(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", "lab", "PYTHON=python3.99"]
    return subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True).stderr.splitlines()[0]


@message("The install failed")
def _(tmp_path, capsys, monkeypatch):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ]\n')  # it runs, and its pip fails
    python.chmod(0o755)
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).touch()
    environment.write_stamp(tmp_path, [])
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["environment.py", "lab"])
    assert environment.main() == 1
    return capsys.readouterr().err


@message("The port is taken")
def _():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = f"agentlab: {lab.trouble(str(port))}"
    return said.replace(str(port), "8888").replace(str(port % 65535 + 1), "8889")


@message("The notebook does not know agentlab")
def _(tmp_path):
    command = [sys.executable, "-I", "-S", "-c", "import agentlab"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr.splitlines()[-1]


@message("A loop is running already")
def _():
    async def cell():
        inner = asyncio.sleep(0)
        try:
            asyncio.run(inner)
        finally:
            inner.close()

    return raised(cell())


@message("Nothing happens")
def _():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Simulator().client().complete([user("hi")])
        gc.collect()
    (text,) = [f"{each.category.__name__}: {each.message}" for each in warned if "ChatClient" in str(each.message)]
    return text


@message("A text instead of a history")
def _():
    return raised(lambda: run_turn("hello", Simulator().client(), Registry()))


@message("The answer was called, not given")
def _():
    return raised(lambda: check.list_dir("notes: 1 file"))


@message("A call without its result")
def _():
    torn = [user("What is to do?"), assistant("", call("call_1", "read_file", path="todo.txt")), user("go on")]
    return raised(Simulator().client().complete(torn))


@message("A key that the provider does not know")
def _():
    request = {"model": "m", "messages": [{**user("hi"), "origin": "watchdog"}]}
    _, _, body = Simulator().respond(request)
    return json.loads(b"".join(body))["error"]["message"].splitlines()[0]


@message("Too long for the window")
def _():
    return raised(Simulator(context_window=100).client().complete([user("word " * 200)]))


@message("Too many requests")
def _():
    return raised(Simulator([Fault(status=429)]).client().complete([user("hi")]))


@message("No endpoint is named")
def _():
    return raised(lambda: ChatClient.from_env({}))


@message("Nobody answers")
def _():
    return raised(ChatClient(base_url="http://127.0.0.1:9/v1", model="m").complete([user("hi")]))


@message("A web page answers")
def _():
    page = httpx.MockTransport(lambda request: httpx.Response(200, html="<html>Welcome</html>"))
    client = ChatClient(base_url="http://127.0.0.1:8080", model="m", transport=page)
    return raised(client.complete([user("hi")]))


@message("The stream breaks off")
def _():
    return raised(Simulator([Fault(cut_at=600, step="word " * 40)]).client().complete([user("hi")]))


@message("Not permitted")
def _():
    registry = Registry()

    @registry.tool
    def write_file(path: str, text: str) -> str:
        """Write a file."""
        raise AssertionError("it ran")

    story = [assistant("", call("call_1", "write_file", path="a", text="b")), "Then not."]
    turn = asyncio.run(run_turn([user("write")], Simulator(story).client(), registry).run())
    return turn.history[2]["content"]


@message("Out of steps")
def _():
    registry = Registry()

    @registry.tool(read_only=True)
    def look(page: int) -> str:
        """Look at a page."""
        return "a page"

    def story(request):
        return assistant("", call(f"call_{len(request['messages'])}", "look", page=len(request["messages"])))

    async def last():
        turn = run_turn([user("look")], Simulator(story).client(), registry, budget=LoopBudget(growth=0))
        return [event async for event in turn][-1]

    return asyncio.run(last()).why


@message("The session is open elsewhere")
def _(tmp_path):
    writer = Journal.create(tmp_path, {"model": "m"}, id="monday")
    second = Journal.open(tmp_path, "monday")
    event = {"type": "message", "message": user("hi")}
    try:
        writer.append(event)
        return raised(lambda: second.append(event))
    finally:
        writer.close()
        second.close()


@message("The two forms of a chapter differ")
def _(tmp_path):
    shutil.copytree(ROOT / "notebooks/text", tmp_path / "text")
    shutil.copy(ROOT / "notebooks/00_start.ipynb", tmp_path)
    text = (tmp_path / "text/00_start.py").read_text(encoding="utf-8")
    (tmp_path / "text/00_start.py").write_text(text.replace("# # Start here", "# # Begin here"), encoding="utf-8")
    return book.check(tmp_path, "00_start")[0]


def test_there_are_twenty_messages_and_each_is_raised_by_a_test():
    assert list(MESSAGES) == list(entries_of_troubleshooting())
    assert len(MESSAGES) == 20


@pytest.mark.parametrize("title", entries_of_troubleshooting(), ids=str)
def test_a_message_is_the_real_one(title, request):
    if title == "No Python" and shutil.which("make") is None:
        pytest.skip("there is no make on PATH")
    function = MESSAGES[title]
    needs = function.__code__.co_varnames[: function.__code__.co_argcount]
    assert one_line(function(*map(request.getfixturevalue, needs))) == entries_of_troubleshooting()[title]


def test_every_message_has_a_why_and_something_to_do():
    sections = re.split(r"^### ", read("TROUBLESHOOTING.md").split("## Without a message")[0], flags=re.M)[1:]
    for section in sections:
        assert section.count("**Why:** ") == 1 and section.count("**Do:**") == 1, section


def test_what_troubleshooting_advises_on_broken_replies_is_there():
    wait = Fault(status=429, retry_after=3)
    with pytest.raises(RateLimited) as limited:
        asyncio.run(Simulator([wait]).client().complete([user("hi")]))
    assert limited.value.retry_after == 3
    with pytest.raises(ProviderUnavailable) as cut:
        asyncio.run(Simulator([Fault(cut_at=600, step="word " * 40)]).client().complete([user("hi")]))
    assert cut.value.partial["content"].startswith("word")


# --- Binder


def test_binder_installs_what_make_lab_installs_from_the_lock():
    post_build = read(".binder/postBuild")
    (install,) = [line for line in post_build.splitlines() if "pip install" in line]
    assert "-c requirements.lock" in install
    assert f'-e ".[{environment.EXTRAS["lab"]}]"' in install
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert set(environment.EXTRAS["lab"].split(",")) <= set(extras)
    assert (ROOT / "requirements.lock").is_file()
    version = re.fullmatch(r"python-3\.(\d+)\n", read(".binder/runtime.txt"))
    assert int(version[1]) >= 11


def test_binder_opens_the_first_chapter():
    url = json.loads(read(".binder/jupyter_lab_config.json"))["LabApp"]["default_url"]
    assert url == f"/lab/tree/{lab.start(lab.ENGLISH)}" and (ROOT / lab.start(lab.ENGLISH)).is_file()


def test_binders_start_hands_over_with_its_settings(tmp_path):
    shutil.copytree(ROOT / ".binder", tmp_path / "my repo/.binder")
    start = tmp_path / "my repo/.binder/start"
    program = "import os, sys; print(*map(os.environ.get, sys.argv[1:3]), sys.argv[3], sep='\\n')"
    names = ["JUPYTER_CONFIG_PATH", "AGENTLAB_PROGRESS"]
    environ = {"PATH": os.environ["PATH"], "JUPYTER_CONFIG_PATH": "/etc/other"}
    done = subprocess.run(
        [start, sys.executable, "-c", program, *names, "two words"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    here = start.parent
    assert done.stdout.splitlines() == [f"{here}:/etc/other", f"{here.parent}/.agentlab/progress.json", "two words"]


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_binders_programs_are_executable_and_good_bash(name):
    path = ROOT / ".binder" / name
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


# --- the way it is written


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_names_no_machine_and_leaves_nothing_open(name):
    assert not re.search(r"/work/|/home/|/root/|/tmp/|TODO|FIXME|localhost:\d", read(name))
    assert read(name).endswith("\n") and not read(name).endswith("\n\n")
    assert not re.search(r"[ \t]+$", read(name), re.M)
