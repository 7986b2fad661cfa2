"""The checker of chapter 01: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import check
from agentlab.check.loop import CASES, PLACE, RIGHT
from agentlab.errors import AgentLabError, ToolError
from agentlab.workspace import Workspace

right = check.list_dir.solution


def failed(report, name):
    """The finding of the case whose name begins like this, which must have failed."""
    found = next(f for f in report.findings if f.name.startswith(name))
    assert not found.passed, f"{name!r} passed"
    return found


def names(report, *, passed):
    return [f.name for f in report.findings if f.passed is passed and not f.bonus]


def changed(change):
    """The solution, with its text passed through `change`."""
    return lambda root, path: change(right(root, path))


# --- right answers ----------------------------------------------------------------------------------------------------


def test_the_solution_passes_and_runs_the_agent():
    report = check.list_dir(right)
    assert report.passed and all(f.passed for f in report.findings)
    assert report.live.passed and report.live.said == RIGHT
    asked = [each["function"]["arguments"] for m in report.live.history for each in m.get("tool_calls", [])]
    assert asked == ['{"path":"fruits"}', '{"path":"."}', '{"path":"fruit"}']


def test_the_workspaces_own_tool_passes():
    report = check.list_dir(lambda root, path: Workspace(root).list_dir(path))
    assert report.passed and report.live.said == RIGHT


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        ("📁 {name}", "{name}: {size}"),
        ("dir  {name}", "file {size:>9,} {name}"),
        ("{name} (folder)", "{name}\t{size} B"),
    ],
)
def test_any_look_will_do(folder, file):
    def mine(root, path):
        text = right(root, path)
        if path == "notes/old":
            return text
        entries = sorted((root / path).iterdir(), key=lambda entry: entry.name)
        folders = [folder.format(name=each.name) for each in entries if each.is_dir()]
        files = [file.format(name=each.name, size=each.stat().st_size) for each in entries if each.is_file()]
        return "\n".join([*files, *folders, f"({len(files)} files and {len(folders)} folders)"])

    assert names(check.list_dir(mine), passed=False) == []


# --- the likely wrong ones --------------------------------------------------------------------------------------------


def test_names_only():
    report = check.list_dir(lambda root, path: "\n".join(os.listdir(root / path)))
    assert not report.passed and len(names(report, passed=False)) == 9
    assert failed(report, "an empty folder").got == "an empty text"
    missing = failed(report, "a folder that is not there")
    assert "FileNotFoundError" in missing.got and PLACE in missing.got and "listdir" in missing.got
    assert "note" in missing.fed and "notes/todo.txt (120 bytes)" in missing.fed
    assert "give up" in report.live.said and PLACE in report.live.said
    assert "/tmp" not in repr(report) + str(report.live.history)


@pytest.mark.parametrize(
    ("answer", "case", "where"),
    [
        (changed(lambda text: text.replace("/\n", "\n")), "a folder with", "the type of old"),
        (changed(lambda text: text.replace("  ", "/  ")), "a folder with", "the type of todo.txt"),
        (changed(lambda text: text.replace("120", "121")), "a folder with", "the size of todo.txt"),
        (changed(lambda text: text.replace("1048576 bytes", "1.0 MB")), "names that sort", "the size of c.txt"),
        (changed(lambda text: "\n".join(text.splitlines()[1:])), "the counts", "the counts"),
        (changed(lambda text: " ".join(text.splitlines())), "only folders", "two"),
        (changed(lambda text: text.replace("old/", "")), "a folder with", "old"),
        (
            changed(lambda text: "\n".join([*reversed(text.splitlines())])),
            "names that sort",
            "the order of the folders",
        ),
        (changed(str.splitlines), "only folders", "what it returns"),
        (lambda root, path: right(root, path) + f"\nin {root}", "only folders", "the text"),
        (lambda root, path: "" if path == "notes/old" else right(root, path), "an empty folder", "what it says"),
    ],
)
def test_a_fault_in_the_list(answer, case, where):
    assert failed(check.list_dir(answer), case).where == where


def test_an_error_must_be_a_status_and_say_what_to_do():
    def returns(root, path):
        try:
            return right(root, path)
        except ToolError as error:
            return str(error)

    def curt(root, path):
        try:
            return right(root, path)
        except ToolError:
            raise ToolError(f"Error: {path}") from None

    def says_less(root, path):
        try:
            return right(root, path)
        except ToolError:
            raise ToolError("Error: -1. Try list_dir or read_file.") from None

    for name in "a folder that is not there", "a file":
        assert failed(check.list_dir(returns), name).where == "the status"
        assert failed(check.list_dir(curt), name).where == "the next step"
        assert failed(check.list_dir(says_less), name).where == "the text"
    assert not check.list_dir(curt).live.passed and "give up" in check.list_dir(curt).live.said


def test_a_way_out_is_seen_and_not_shown():
    def open_door(root, path):
        return "\n".join(sorted(os.listdir(root / path))) if path == "../.." else right(root, path)

    finding = failed(check.list_dir(open_door), "a path that leads out")
    assert finding.where == "the status" and "outside" not in finding.got


def test_a_kind_that_is_not_there_need_not_be_counted():
    assert check.list_dir(changed(lambda text: text.replace(", 0 files", ""))).passed


@pytest.mark.parametrize("answer", [None, "list_dir", 3])
def test_what_is_no_function_is_said_at_once(answer):
    with pytest.raises(AgentLabError, match="without brackets"):
        check.list_dir(answer)


def test_an_async_function_is_said_at_once():
    async def mine(root, path):
        return right(root, path)

    with pytest.raises(AgentLabError, match="plain function"):
        check.list_dir(mine)


# --- whatever comes ---------------------------------------------------------------------------------------------------


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.one_of(st.none(), st.integers(), st.text(max_size=40), st.sampled_from([KeyError("x"), ToolError("no")])))
def test_any_answer_gives_a_report_and_none_but_the_right_ones_passes(value):
    def mine(root, path):
        if isinstance(value, Exception):
            raise value
        return value

    report = check.list_dir(mine)
    assert not report.passed and len(report.findings) == len(CASES) and repr(report) and report._repr_html_()


def test_the_folder_of_a_turn_is_gone_with_it():
    seen = []

    def mine(root, path):
        seen.append(root)
        return right(root, path)

    check.list_dir._live(mine)
    import gc

    gc.collect()
    assert seen and not seen[-1].exists()
