"""What a reader has tried and solved is kept in their own file, and keeping it breaks no check."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import check
from agentlab.check.progress import EXERCISES, MAX_BYTES, VARIABLE, note, progress
from agentlab.check.report import Exercise, Finding, Live, Report
from agentlab.errors import AgentLabError
from agentlab.loop import run_turn
from agentlab.messages import user
from agentlab.simulator import Simulator
from agentlab.tools import Registry
from scripts import book, lab

ROOT = Path(__file__).resolve().parent.parent
NEW = dict.fromkeys(EXERCISES, "not tried")


def exercise(name="list_dir", shown=()):
    """An exercise whose right answers are the even numbers and the texts of even length."""

    def right(answer):
        return (answer if isinstance(answer, int) else len(answer)) % 2 == 0

    def judge(answer):
        if answer is None:
            raise AgentLabError("Give a number.")
        return [Finding("even", right(answer))]

    return Exercise(
        name,
        judge=judge,
        turn=lambda answer: run_turn([user("hi")], Simulator().client(), Registry()),
        live=lambda answer: Live(True, "fine"),
        hints=("one",),
        solution=2,
        shown=shown,
    )


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file that AGENTLAB_PROGRESS names; it and its folder are not there yet."""
    place = tmp_path / ".agentlab" / "progress.json"
    monkeypatch.setenv(VARIABLE, str(place))
    return place


# --- the list of exercises


def test_every_exercise_is_listed_once_and_no_other():
    exercises = {name for name in check.__all__ if isinstance(getattr(check, name), Exercise)}
    assert exercises == set(EXERCISES)
    assert {name: getattr(check, name).name for name in exercises} == {name: name for name in exercises}


def test_each_is_checked_in_the_chapter_that_it_is_listed_under_and_in_its_order():
    assert list(EXERCISES.values()) == sorted(EXERCISES.values())
    for chapter in dict.fromkeys(EXERCISES.values()):
        text = (ROOT / "notebooks/text" / f"{chapter}.py").read_text(encoding="utf-8")
        checked = dict.fromkeys(re.findall(r"^check\.(\w+)\(", text, re.M))
        assert list(checked) == [name for name, place in EXERCISES.items() if place == chapter]


# --- without a file


def test_without_the_variable_everything_is_new_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert exercise()(4).passed
    assert check.progress().states == NEW
    assert check.progress().kept == "Nothing is kept: AGENTLAB_PROGRESS names no file. `make lab` sets it."
    assert list(tmp_path.iterdir()) == []


def test_an_empty_variable_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    assert not note("list_dir", True)
    assert list(tmp_path.iterdir()) == []


def test_the_first_chapter_is_saved_with_a_new_readers_table():
    notebook = nbformat.read(ROOT / "notebooks/00_start.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell.source == "check.progress()"]
    data = cell.outputs[0].data
    assert data["text/plain"] == repr(progress())
    assert data["text/html"].count(">not tried<") == len(set(EXERCISES.values()))


# --- what is kept


def test_a_check_is_kept_as_tried_then_as_solved_and_stays_solved(kept):
    ask = exercise()
    assert not ask(3).passed
    assert check.progress().states == {**NEW, "list_dir": "tried"}
    assert ask(4).passed
    assert check.progress().states == {**NEW, "list_dir": "solved"}
    ask(3)
    assert check.progress().states["list_dir"] == "solved"
    assert check.progress().kept == "Kept in .agentlab/progress.json."
    assert [path.name for path in kept.parent.iterdir()] == ["progress.json"]


def test_what_the_chapter_gives_away_is_no_progress(kept):
    ask = exercise(shown=("in", "given"))
    assert ask(ask.solution).passed and ask("in").passed and not ask("given").passed
    assert not kept.exists()
    assert ask("mine").passed
    assert check.progress().states["list_dir"] == "solved"


def test_an_answer_that_cannot_be_checked_is_not_kept(kept):
    with pytest.raises(AgentLabError):
        exercise()(None)
    assert not kept.exists()


def test_a_real_exercise_keeps_a_readers_answer(kept):
    check.wording("aborted")
    assert check.progress().states == {**NEW, "wording": "tried"}
    check.wording("This call was interrupted: it did not run. It is not an error; call it again if you still need it.")
    assert check.progress().states == {**NEW, "wording": "solved"}


@given(st.lists(st.tuples(st.sampled_from(list(EXERCISES)), st.booleans()), max_size=20))
def test_the_file_says_what_was_ever_reached(tmp_path_factory, tries):
    place = tmp_path_factory.mktemp("kept") / "progress.json"
    for name, passed in tries:
        assert note(name, passed, path=place)
    tried, solved = {name for name, _ in tries}, {name for name, passed in tries if passed}
    wanted = {name: "solved" if name in solved else "tried" if name in tried else "not tried" for name in EXERCISES}
    assert progress(place).states == wanted


def test_entries_of_another_version_are_left_as_they_are(kept):
    kept.parent.mkdir()
    kept.write_text('{"some_day": "solved", "cut": ["?"], "repair": "tried"}')
    assert progress().states == {**NEW, "repair": "tried"}
    assert note("snip", True)
    assert json.loads(kept.read_text()) == {"some_day": "solved", "cut": ["?"], "repair": "tried", "snip": "solved"}


# --- a disk that does not play along


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b" " * (MAX_BYTES + 1) + b"{}"],
    ids=range(7),
)
def test_a_file_that_makes_no_sense_is_put_aside_and_begun_anew(kept, content):
    kept.parent.mkdir()
    kept.write_bytes(content)
    assert progress().states == NEW
    assert progress().kept == ".agentlab/progress.json holds no progress: the next check begins a new one."
    assert exercise()(4).passed
    assert progress().states == {**NEW, "list_dir": "solved"}
    assert kept.with_name("progress.json.broken").read_bytes() == content


def test_a_folder_in_the_files_place_is_left_alone(kept):
    kept.mkdir(parents=True)
    (kept / "mine").touch()
    assert exercise()(4).passed
    assert not note("cut", True)
    assert progress().kept == ".agentlab/progress.json cannot be read."
    assert [path.name for path in kept.parent.iterdir()] == ["progress.json"] and (kept / "mine").exists()


@pytest.mark.parametrize("name", ["file/progress.json", "a\0b", "x" * 300, "\ud800"], ids=range(4))
def test_a_place_that_cannot_be_written_breaks_no_check(tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    if name.isascii() and "\0" not in name:  # what an environment can hold
        monkeypatch.setenv(VARIABLE, str(tmp_path / name))
        assert exercise()(4).passed
    assert not note("cut", True, path=tmp_path / name)
    assert progress(tmp_path / name).states == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_old_file_and_no_part_of_a_new_one(kept, monkeypatch):
    assert note("cut", False)
    before = kept.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not note("cut", True)
    assert exercise()(4).passed
    assert kept.read_bytes() == before
    assert [path.name for path in kept.parent.iterdir()] == ["progress.json"]


# --- the picture


def test_the_table_counts_what_is_solved_and_names_no_folder_of_the_machine(kept):
    for name, passed in (("repair", True), ("wording", False), ("list_dir", True)):
        note(name, passed)
    text, markup = repr(progress()), progress()._repr_html_()
    assert "✓ repair  … wording  · steering: 1 solved, 1 tried, 1 not tried" in text
    assert "01_loop           ✓ list_dir: solved" in text
    assert f"2 of {len(EXERCISES)} exercises solved" in markup
    assert "✓\xa0check.repair   …\xa0check.wording   ·\xa0check.steering" in markup
    assert str(kept.parent.parent) not in text + markup


def test_a_strange_name_of_the_file_is_escaped(tmp_path):
    assert "<b>" not in progress(tmp_path / "<b>.json")._repr_html_()


# --- who sets the variable


def test_make_lab_keeps_it_in_the_project_unless_the_reader_says_otherwise(monkeypatch):
    seen = []
    monkeypatch.setattr(os, "execv", lambda *_: seen.append(os.environ[VARIABLE]))
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(lab, "trouble", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["lab.py", "8888"])
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    lab.main()
    monkeypatch.setenv(VARIABLE, "mine.json")
    lab.main()
    assert seen == [str(ROOT / ".agentlab/progress.json"), "mine.json"]


def test_builds_and_tests_see_a_new_reader_even_in_a_terminal_of_make_lab(tmp_path, monkeypatch):
    place = tmp_path / "progress.json"
    monkeypatch.setenv(VARIABLE, str(place))
    code = "from agentlab.check.progress import note\nprint(note('cut', True))"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert book.run(notebook, tmp_path) is None
    assert notebook.cells[0].outputs[0].text == "False\n"
    program = "import tests.conftest, os; print(os.environ.get('AGENTLAB_PROGRESS'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert not place.exists()


def test_reading_chapter_04_from_top_to_bottom_solves_nothing(tmp_path, monkeypatch):
    place = tmp_path / "progress.json"
    notebook = book.read_text(ROOT / "notebooks/text/04_interrupt.py")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"import os; os.environ['{VARIABLE}'] = {str(place)!r}"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert book.run(notebook, ROOT / "notebooks") is None
    assert {state for name, state in progress(place).states.items() if name in ("repair", "wording", "steering")} == {
        "tried"
    }
    assert "solved" not in progress(place).states.values()


def test_two_failed_cases_are_shown_whole_and_the_others_open_with_a_click():
    report = Report("list_dir", tuple(Finding(f"case {n}", False, got=f"got {n}") for n in range(5)))
    whole, *folded = report._repr_html_().split("<details")
    assert [f"got {n}" in whole for n in range(5)] == [True, True, False, False, False]
    assert len(folded) == 3 and all("<summary" in part for part in folded)
