"""The five tools on real files: nothing leaves the folder or is half written, and every failure says what next."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import case
from clean_run import run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_process import asleep, gone, nap

from agentlab.errors import AgentLabError, ToolError
from agentlab.interrupt import Stop
from agentlab.loop import Called, Done, Finished, run_turn
from agentlab.messages import assistant, call, user
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE, problems
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget, SpillStore
from agentlab.tools import Registry, ToolResult
from agentlab.workspace import EDIT_BYTES, LIST_ENTRIES, READ_LINES, Workspace

ANYTHING = Policy(default="allow")


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    root = tmp_path / "root"
    root.mkdir()
    return Workspace(root)


def use(space: Workspace, name: str, **arguments: Any) -> ToolResult:
    """The result of a call as the model gets it."""
    work = Registry(space.tools()).dispatch(call("c", name, **arguments), policy=ANYTHING)
    return run(work) if name == "run_shell" else asyncio.run(work)


def refused(space: Workspace, name: str, said: str = "", **arguments: Any) -> str:
    """The text of a call that fails: short, no traceback, and encodable."""
    result = use(space, name, **arguments)
    assert result.status == "failed", result.output
    assert said in result.output
    assert " failed: " not in result.output, "the handler raised something that it does not explain"
    assert "Error" not in result.output
    assert len(result.output) < 1500
    result.output.encode()
    return result.output


def files(space: Workspace) -> list[str]:
    """Everything in the folder, temporary files too."""
    return sorted(str(found.relative_to(space.root)) for found in space.root.rglob("*"))


@contextmanager
def without_privileges(*paths: Path) -> Iterator[None]:
    """Run as somebody whom permissions stop, also when root runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all() -> Iterator[Workspace]:
    """A folder that somebody without privileges can reach (pytest's own belong to who runs it)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Workspace(folder)
        for found in [Path(folder), *Path(folder).rglob("*")]:
            if not found.is_symlink():
                found.chmod(0o777)


# ---------------------------------------------------------------- the five as a model sees them


def test_what_the_model_is_told(space: Workspace) -> None:
    tools = {tool.name: tool for tool in space.tools()}
    assert list(tools) == ["read_file", "write_file", "edit_file", "list_dir", "run_shell"]
    assert [name for name, tool in tools.items() if tool.read_only] == ["read_file", "list_dir"]
    assert [name for name, tool in tools.items() if tool.log] == ["run_shell"]
    assert [name for name, tool in tools.items() if not tool.spillable] == ["read_file"]
    assert tools["read_file"].parameters["required"] == ["path"]
    assert tools["edit_file"].parameters["properties"]["edits"]["type"] == "array"
    assert all(tool.description for tool in tools.values())


def test_a_day_of_work(space: Workspace) -> None:
    assert use(space, "write_file", path="src/a.py", content="x = 1\ny = 2\n").output == (
        "Created src/a.py: 2 lines, 12 bytes."
    )
    assert use(space, "edit_file", path="src/a.py", old_string="x = 1", new_string="x = 3").output == (
        "Edited src/a.py: 1 replacement."
    )
    assert use(space, "read_file", path="src/a.py").output == "     1\tx = 3\n     2\ty = 2\n[2 lines, all shown]"
    assert use(space, "list_dir").output == ".: 1 folders, 0 files\nsrc/"
    assert use(space, "list_dir", path="src").output == "src: 0 folders, 1 files\na.py  12 bytes"
    assert use(space, "run_shell", command="cat src/a.py").output == "x = 3\ny = 2"
    assert use(space, "write_file", path="src/a.py", content="").output == "Replaced src/a.py: 0 lines, 0 bytes."
    assert files(space) == ["src", "src/a.py"]


def test_a_folder_that_is_not_there_cannot_be_a_workspace(tmp_path: Path) -> None:
    with pytest.raises(AgentLabError, match="Create it first"):
        Workspace(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(AgentLabError, match="Create it first"):
        Workspace(tmp_path / "file")


# ---------------------------------------------------------------- arguments as models send them


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("read_file", {"path": "a", "offset": "2"}, "     2\ttwo\n[lines 2 to 2 of 2]"),
        ("read_file", {"path": "a", "offset": 2.0, "limit": None, "column": None}, "     2\ttwo\n[lines 2 to 2 of 2]"),
        ("read_file", {"path": "a", "offset": None}, "     1\tone\n     2\ttwo\n[2 lines, all shown]"),
        ("read_file", {"path": "a", "limit": 10**12}, "     1\tone\n     2\ttwo\n[2 lines, all shown]"),
        ("list_dir", {"path": None}, ".: 0 folders, 1 files\na  8 bytes"),
        ("list_dir", {"path": ""}, ".: 0 folders, 1 files\na  8 bytes"),
        ("edit_file", {"path": "a", "old_string": "one", "new_string": "1", "edits": None}, "Edited a: 1 replacement."),
        ("edit_file", {"path": "a", "old_string": "one", "new_string": "1", "edits": []}, "Edited a: 1 replacement."),
        ("run_shell", {"command": "echo hi", "timeout_s": "5"}, "hi"),
        ("run_shell", {"command": "echo hi", "timeout_s": None}, "hi"),
        ("run_shell", {"command": "echo hi", "timeout_s": -5}, "hi"),
        ("run_shell", {"command": "echo hi", "timeout_s": 10**400}, "hi"),
    ],
)
def test_what_can_be_meant_is_taken(space: Workspace, name: str, arguments: dict[str, Any], output: str) -> None:
    (space.root / "a").write_text("one\ntwo\n")
    result = use(space, name, **arguments)
    assert (result.status, result.output) == ("completed", output)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", {"path": None}, "path must be text"),
        ("read_file", {"path": 5}, "path must be text"),
        ("read_file", {"path": ["a"]}, "path must be text"),
        ("read_file", {"path": {}}, "path must be text"),
        ("read_file", {"path": ""}, "is a folder"),
        ("read_file", {"path": "a", "offset": "one"}, "offset must be a whole number"),
        ("read_file", {"path": "a", "offset": ""}, "offset must be a whole number"),
        ("read_file", {"path": "a", "offset": 1.5}, "offset must be a whole number"),
        ("read_file", {"path": "a", "limit": [1]}, "limit must be a whole number"),
        ("read_file", {"path": "a", "limit": True}, "limit must be a whole number"),
        ("read_file", {"path": "a", "column": "9" * 50}, "column must be a whole number"),
        ("read_file", {"path": "a", "column": float("inf")}, "column must be a whole number"),
        ("read_file", {"path": "a", "offset": float("nan")}, "offset must be a whole number"),
        ("read_file", {"path": "a", "offset": 0}, "count from 1"),
        ("read_file", {"path": "a", "limit": "-1"}, "count from 1"),
        ("read_file", {"path": "a", "column": -(10**30)}, "count from 1"),
        ("read_file", {"path": "a", "offset": 3}, "has 2 lines: there is no line 3"),
        ("write_file", {"path": "b", "content": None}, "content must be text"),
        ("write_file", {"path": "b", "content": {"json": 1}}, "content must be text"),
        ("write_file", {"path": None, "content": ""}, "path must be text"),
        ("edit_file", {"path": 1, "old_string": "a", "new_string": "b"}, "path must be text"),
        ("edit_file", {"path": "a"}, "must be text"),
        ("edit_file", {"path": "a", "new_string": "b"}, "old_string must not be empty"),
        ("edit_file", {"path": "a", "old_string": "one"}, "must be text"),
        ("edit_file", {"path": "a", "edits": [{"old": "one"}]}, "edit 1: old_string and new_string must be text"),
        ("edit_file", {"path": "a", "old_string": None, "new_string": "x"}, "must be text"),
        ("edit_file", {"path": "a", "old_string": "one", "new_string": None}, "must be text"),
        ("edit_file", {"path": "a", "old_string": "o", "new_string": "x", "replace_all": "false"}, "true or false"),
        ("edit_file", {"path": "a", "edits": "[]"}, "edits must be a list"),
        ("edit_file", {"path": "a", "edits": {"old_string": "one"}}, "edits must be a list"),
        ("edit_file", {"path": "a", "edits": [None]}, "edit 1: "),
        ("edit_file", {"path": "a", "edits": ["one"]}, "edit 1: "),
        ("edit_file", {"path": "a", "edits": [{"old": "one"}], "old_string": "two"}, "either old_string or edits"),
        ("list_dir", {"path": 1}, "path must be text"),
        ("run_shell", {"command": None}, "command must be text"),
        ("run_shell", {"command": ["ls"]}, "command must be text"),
        ("run_shell", {"command": " \n"}, "command must not be empty"),
        ("run_shell", {"command": "true", "timeout_s": "soon"}, "timeout_s must be a whole number"),
        ("run_shell", {"command": "echo \0"}, "was not started"),
        ("run_shell", {"command": "echo \ud800"}, "was not started"),
        ("run_shell", {"command": "x" * 10_000_000}, "was not started: Argument list too long. Write a script file"),
    ],
)
def test_wrong_arguments_get_an_answer_with_the_next_step(
    space: Workspace, name: str, arguments: dict[str, Any], said: str
) -> None:
    (space.root / "a").write_text("one\ntwo\n")
    refused(space, name, said, **arguments)
    assert files(space) == ["a"]
    assert (space.root / "a").read_text() == "one\ntwo\n"


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["a", "d", ".."]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["old", "new"]), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=100)
@given(st.data())
def test_no_argument_whatever_makes_a_file_tool_raise(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(folder)
        (space.root / "a").write_text("one\n")
        (space.root / "d").mkdir()
        tool = data.draw(st.sampled_from(space.tools()[:4]))
        optional = dict.fromkeys(tool.parameters["properties"], any_json)
        required = {name: optional.pop(name) for name in tool.parameters["required"]}
        arguments = data.draw(st.fixed_dictionaries(required, optional=optional))
        try:
            assert isinstance(tool.handler(**arguments), str)
        except ToolError as error:
            str(error).encode()
            assert len(str(error)) < 1000


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file", "list_dir"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("..", "leads out of the workspace"),
        ("../secret", "leads out of the workspace"),
        ("sub/../../secret", "leads out of the workspace"),
        ("/etc/passwd", "leads out of the workspace"),
        ("../root-too/secret", "leads out of the workspace"),
        ("out", "leads out of the workspace"),
        ("out/deeper", "leads out of the workspace"),
        ("out-file", "leads out of the workspace"),
        ("chain", "leads out of the workspace"),
        ("dangling-out", "leads out of the workspace"),
        ("a\0b", "is no usable path"),
        ("\ud800", "is no usable path"),
        ("loop", ""),
        ("x" * 300, "File name too long"),
        ("x/" * 3000 + "x", "File name too long"),
        ("\udcff" * 300, "File name too long"),
        ("x" * 100_000, "File name too long"),
    ],
)
def test_paths_that_lead_nowhere_or_out(space: Workspace, name: str, path: str, said: str) -> None:
    outside = space.root.parent
    (outside / "secret").write_text("secret text")
    (outside / "root-too").mkdir()
    (outside / "root-too" / "secret").write_text("secret text")
    (space.root / "sub").mkdir()
    for link, target in {
        "out": "..",
        "out-file": "../secret",
        "chain": "out-file",
        "dangling-out": "../new",
        "loop": "loop",
    }.items():
        (space.root / link).symlink_to(target)
    more = {"write_file": {"content": "x"}, "edit_file": {"old_string": "secret", "new_string": "x"}}.get(name, {})
    there = files(space)
    text = refused(space, name, said, path=path, **more)
    assert "secret text" not in text
    assert (outside / "secret").read_text() == "secret text"
    assert not (outside / "new").exists()
    assert files(space) == there


def test_links_that_stay_inside_work_and_stay_links(space: Workspace) -> None:
    (space.root / "real").mkdir()
    (space.root / "real" / "a").write_text("one\n")
    (space.root / "link").symlink_to("real/a")
    (space.root / "folder").symlink_to("real", target_is_directory=True)
    (space.root / "new").symlink_to("real/made")
    assert "one" in use(space, "read_file", path="link").output
    assert "one" in use(space, "read_file", path="folder/../folder/a").output
    assert use(space, "edit_file", path="link", old_string="one", new_string="two").status == "completed"
    assert use(space, "write_file", path="new", content="made").status == "completed"
    assert (space.root / "link").is_symlink()
    assert (space.root / "new").is_symlink()
    assert (space.root / "real" / "a").read_text() == "two\n"
    assert (space.root / "real" / "made").read_text() == "made"


def test_absolute_paths_inside_work(space: Workspace) -> None:
    use(space, "write_file", path=str(space.root / "a"), content="one")
    assert "one" in use(space, "read_file", path=str(space.root / "a")).output


def test_a_workspace_behind_a_link_is_the_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    space = Workspace(tmp_path / "link")
    assert use(space, "write_file", path="a", content="x").status == "completed"
    assert use(space, "read_file", path=str(tmp_path / "link" / "a")).status == "completed"


def test_anywhere_is_anywhere(space: Workspace) -> None:
    everywhere = Workspace(space.root, reach="anywhere")
    (space.root.parent / "other").write_text("text\n")
    assert "text" in use(everywhere, "read_file", path="../other").output
    assert "root/" in use(everywhere, "list_dir", path="..").output
    assert use(everywhere, "write_file", path=str(space.root.parent / "other"), content="x").status == "completed"
    refused(everywhere, "read_file", "There is no file ../missing. Check the path.", path="../missing")


@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file"])
def test_what_is_no_file_is_neither_waited_for_nor_replaced(space: Workspace, name: str) -> None:
    """A named pipe would hold the turn for ever, and a device must not become a file."""
    os.mkfifo(space.root / "pipe")
    (space.root / "folder").mkdir()
    more = {"write_file": {"content": "x"}, "edit_file": {"old_string": "a", "new_string": "b"}}.get(name, {})
    refused(space, name, "pipe is no regular file. Use run_shell.", path="pipe", **more)
    refused(space, name, "folder is a folder. Look into it with list_dir.", path="folder", **more)
    refused(Workspace(space.root, reach="anywhere"), name, "/dev/null is no regular file", path="/dev/null", **more)
    assert Path("/dev/null").is_char_device()
    assert (space.root / "pipe").is_fifo()
    assert files(space) == ["folder", "pipe"]


def test_a_wrong_name_gets_the_near_ones(space: Workspace) -> None:
    (space.root / "src").mkdir()
    for name in ("config.toml", "setup.py", "src/main.py"):
        (space.root / name).touch()
    refused(space, "read_file", "There is no file config.tml. Did you mean config.toml?", path="config.tml")
    refused(space, "read_file", "There is no file src/mian.py. Did you mean src/main.py?", path="src/mian.py")
    refused(space, "read_file", "Look with list_dir('src').", path="src/zzz")
    refused(space, "edit_file", "Look with list_dir('src').", path="src/no/such/zzz", old_string="a", new_string="b")
    refused(space, "list_dir", "There is no scr. Did you mean src?", path="scr")
    refused(space, "list_dir", "src/main.py is a file, not a folder. Read it with read_file.", path="src/main.py")
    refused(space, "read_file", "There is no file src/main.py/x.", path="src/main.py/x")


def test_names_with_anything_in_them(space: Workspace) -> None:
    names = ["a\nb", "tab\t", "\x1b[31mred", "é日🐙", "\udcff", "<b>", "'quote'", " ", "-rf", "\u2028", "a\u202eb"]
    for name in names:
        (space.root / name).write_text("x")
    listing = use(space, "list_dir").output
    listing.encode()
    assert len(listing.split("\n")) == len(names) + 1
    assert "\x1b" not in listing
    assert "\u202e" not in listing
    for shown in ("'a\\nb'  1 bytes", "é日🐙  1 bytes", "'\\udcff'  1 bytes", "<b>  1 bytes"):
        assert shown in listing.split("\n")
    for name in names:
        assert use(space, "read_file", path=name).output.startswith("     1\tx\n")


# ---------------------------------------------------------------- listing


def test_a_listing_has_folders_first_and_says_what_links_are(space: Workspace) -> None:
    for folder in ("b", "a"):
        (space.root / folder).mkdir()
    (space.root / "Z").write_bytes(b"x" * 12_345)
    (space.root / "c").touch()
    for link, target in {"to-a": "a", "to-c": "c", "nowhere": "gone", "loop": "loop"}.items():
        (space.root / link).symlink_to(target)
    assert use(space, "list_dir").output.split("\n") == [
        ".: 3 folders, 5 files",
        *("a/", "b/", "to-a -> a"),
        *("Z  12,345 bytes", "c  0 bytes", "loop -> loop", "nowhere -> gone", "to-c -> c"),
    ]
    assert use(space, "list_dir", path="a").output == "a is empty."


def test_a_big_folder_is_bounded_and_counted(space: Workspace) -> None:
    for n in range(LIST_ENTRIES + 3):
        (space.root / f"{n:04}{'x' * 200}").symlink_to("y" * 4000)
    listing = use(space, "list_dir").output
    assert listing.startswith(f".: 0 folders, {LIST_ENTRIES + 3} files\n")
    assert "[3 more entries are not shown" in listing
    assert len(listing.split("\n")) == LIST_ENTRIES + 2
    assert len(listing) < LIST_ENTRIES * 500
    (space.root / "0000").touch()
    assert "Did you mean 0000?" in refused(space, "read_file", path="000")


# ---------------------------------------------------------------- editing and writing


@pytest.mark.parametrize("id", ["E01", "E04", "E08"])
def test_edits_of_real_cases(space: Workspace, id: str) -> None:
    found = case(id)
    sent, expected = found["input"], found["expected"].get("either", [found["expected"]])[0]
    before = bytes.fromhex(sent["file_hex"]) if "file_hex" in sent else sent["file"].encode()
    after = bytes.fromhex(expected["file_hex"]) if "file_hex" in expected else expected["file"].encode()
    (space.root / "f").write_bytes(before)
    result = use(space, "edit_file", path="f", old_string=sent["old_string"], new_string=sent["new_string"])
    assert (result.status, result.output) == ("completed", "Edited f: 1 replacement.")
    assert (space.root / "f").read_bytes() == after


def test_an_empty_old_string_shreds_nothing(space: Workspace) -> None:
    """Case E02."""
    found = case("E02")
    (space.root / "f").write_text(found["input"]["file"])
    for everywhere in found["input"]["replace_all"]:
        more = {"old_string": "", "new_string": found["input"]["new_string"], "replace_all": everywhere}
        refused(space, "edit_file", found["expected"]["error"], path="f", **more)
        refused(space, "edit_file", found["expected"]["error"], path="f", edits=[more])
    assert (space.root / "f").read_text() == found["expected"]["file"]


def test_several_edits_are_all_or_nothing(space: Workspace) -> None:
    """Case E05."""
    found = case("E05")
    (space.root / "f").write_text(found["input"]["file"])
    refused(space, "edit_file", found["expected"]["error"], path="f", edits=found["input"]["edits"])
    assert (space.root / "f").read_text() == found["expected"]["file"]
    good = [{"old_string": "one", "new_string": "1"}, {"old_string": "two", "new_string": "2", "replace_all": True}]
    assert use(space, "edit_file", path="f", edits=good).output == "Edited f: 3 replacements."
    assert (space.root / "f").read_text() == "1\n2\n2\n"
    in_order = [{"old": "1\n", "new": "a\n"}, {"old": "a\n2", "new": "b"}]
    assert use(space, "edit_file", path="f", edits=in_order).output == "Edited f: 2 replacements."
    assert (space.root / "f").read_text() == "b\n2\n"


def test_an_edit_that_matches_twice_changes_nothing(space: Workspace) -> None:
    """Case E06."""
    found = case("E06")
    (space.root / "f").write_text(found["input"]["file"])
    text = refused(
        space, "edit_file", path="f", old_string=found["input"]["old_string"], new_string=found["input"]["new_string"]
    )
    assert all(part in text for part in found["expected"]["error_contains"])
    assert (space.root / "f").read_text() == found["expected"]["file"]


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\n", "b", "c\nd", b"a\r\nc\r\nd\r\n"),
        (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\n", "\ufeffa", "b", None),  # the mark is not shown, so it is not part of the text
        (b"a\n\xef\xbb\xbfb", "\ufeffb", "c", b"a\nc"),
        (b"no end", "end", "end", None),
        (b"no end", "end", "stop", b"no stop"),
        (b"\xff\xfe x \x80", "x", "y", b"\xff\xfe y \x80"),
        (b"", "a", "b", None),
        (b"a\0b", "a", "b", None),
        ("a = 1\n".encode("utf-16"), "a", "b", None),
        (b"x" * 9000 + b"\0a", "a", "b", b"x" * 9000 + b"\0b"),
        ("日本".encode(), "本", "é", "日é".encode()),
        (b"a\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8b", "b", "c", b"a\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8c"),
        (b"caf\xe9", "caf\ufffd", "x", None),
    ],
)
def test_edits_of_real_files(space: Workspace, before: bytes, old: str, new: str, after: bytes | None) -> None:
    (space.root / "f").write_bytes(before)
    if after is None:
        refused(space, "edit_file", path="f", old_string=old, new_string=new)
    else:
        assert use(space, "edit_file", path="f", old_string=old, new_string=new).status == "completed"
    assert (space.root / "f").read_bytes() == (before if after is None else after)
    assert files(space) == ["f"]


@given(st.binary(max_size=80), st.binary(max_size=80), st.text("xyé日\\", min_size=1, max_size=6))
def test_an_edit_touches_no_other_byte(before: bytes, behind: bytes, new: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(folder)
        data = before + b"OLD" + behind
        (space.root / "f").write_bytes(data)
        try:
            space.edit_file("f", "OLD", new)
        except ToolError:
            assert b"\0" in data
            assert (space.root / "f").read_bytes() == data
        else:
            assert (space.root / "f").read_bytes() == before + new.encode() + behind
            assert new in space.read_file("f")


@given(st.text(max_size=60))
def test_what_was_written_can_be_read(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(folder)
        said = space.write_file("f", content)
        data = (space.root / "f").read_bytes()
        assert data == content.encode("utf-8", "replace")
        assert said.endswith(f", {len(data)} bytes.")
        if data and b"\0" not in data:
            assert f"{int(said.split()[2])} lines" in space.read_file("f")


def test_a_lone_surrogate_cannot_be_written_and_keeps_nothing_else_from_it(space: Workspace) -> None:
    assert use(space, "write_file", path="f", content="a\ud800b").output == "Created f: 1 line, 5 bytes."
    assert (space.root / "f").read_bytes() == "a\ufffdb".encode()


def test_a_file_keeps_its_mode(space: Workspace) -> None:
    for mode in (0o755, 0o600, 0o444):
        (space.root / "f").write_text("one")
        (space.root / "f").chmod(mode)
        use(space, "edit_file", path="f", old_string="one", new_string="two")
        assert (space.root / "f").stat().st_mode & 0o777 == mode
        use(space, "write_file", path="f", content="three")
        assert (space.root / "f").stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_mode_that_any_program_gives_it(space: Workspace) -> None:
    use(space, "write_file", path="f", content="x")
    (space.root / "g").touch()
    assert (space.root / "f").stat().st_mode == (space.root / "g").stat().st_mode


def test_a_very_large_file_is_not_edited_in_memory(space: Workspace) -> None:
    with open(space.root / "f", "wb") as file:
        file.truncate(EDIT_BYTES + 1)
    refused(space, "edit_file", "is larger than", path="f", old_string="a", new_string="b")


def test_a_page_has_a_limit_of_lines(space: Workspace) -> None:
    (space.root / "f").write_text("x\n" * (READ_LINES + 1))
    for limit in (READ_LINES + 1, 10**9):
        assert f"[lines 1 to {READ_LINES} of" in use(space, "read_file", path="f", limit=limit).output


# ---------------------------------------------------------------- what the system refuses


def test_a_file_that_may_not_be_read(open_to_all: Workspace) -> None:
    (open_to_all.root / "f").write_text("one")
    (open_to_all.root / "f").chmod(0)
    (open_to_all.root / "d").mkdir()
    (open_to_all.root / "d").chmod(0)
    for name, arguments, said in [
        ("read_file", {"path": "f"}, "Cannot read f: Permission denied."),
        ("edit_file", {"path": "f", "old_string": "one", "new_string": "two"}, "Cannot read f: Permission denied."),
        ("read_file", {"path": "d/x"}, "Cannot read d/x: Permission denied."),
        ("list_dir", {"path": "d"}, "Cannot list d: Permission denied."),
        ("list_dir", {"path": "d/x"}, "Cannot list d/x: Permission denied."),
        ("write_file", {"path": "d/x", "content": ""}, "Cannot write d/x: Permission denied."),
    ]:
        with without_privileges():
            handlers = {tool.name: tool.handler for tool in open_to_all.tools()}
            with pytest.raises(ToolError, match="list_dir") as caught:
                handlers[name](**arguments)
        assert said in str(caught.value)


def test_a_folder_that_may_not_be_written_to(open_to_all: Workspace) -> None:
    (open_to_all.root / "f").write_text("one")
    open_to_all.root.chmod(0o555)
    for write in (
        lambda: open_to_all.write_file("f", "two"),
        lambda: open_to_all.write_file("new/deep", "two"),
        lambda: open_to_all.edit_file("f", "one", "two"),
    ):
        with without_privileges(), pytest.raises(ToolError, match=r"Permission denied\. Nothing was changed"):
            write()
    assert (open_to_all.root / "f").read_text() == "one"
    assert files(open_to_all) == ["f"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a disk that fills up: a write of more bytes stops half way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1, 4096, 99_999])
def test_a_write_that_fails_half_way_leaves_the_old_file_whole(space: Workspace, size: int) -> None:
    (space.root / "f").write_text("one " + "x" * 99_996)
    for write in (
        lambda: space.write_file("f", "y" * 100_001),
        lambda: space.write_file("new", "y" * 100_001),
        lambda: space.edit_file("f", "one", "three"),
    ):
        with files_of_at_most(size), pytest.raises(ToolError, match=r"File too large\. Nothing was changed"):
            write()
    assert (space.root / "f").read_text() == "one " + "x" * 99_996
    assert files(space) == ["f"]


def test_a_full_disk(space: Workspace) -> None:
    disk = space.root / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no small disk can be mounted here; the limit on file sizes stands in for it")
    try:
        (disk / "f").write_text("one " + "x" * 40_000)
        full = os.strerror(errno.ENOSPC)
        refused(space, "write_file", f"{full}. Nothing was changed.", path="disk/f", content="y" * 100_000)
        refused(space, "write_file", f"{full}. Nothing was changed.", path="disk/g", content="y" * 100_000)
        refused(space, "edit_file", f"{full}. Nothing was changed.", path="disk/f", old_string="one", new_string="two")
        assert (disk / "f").read_text() == "one " + "x" * 40_000
        assert files(space) == ["disk", "disk/f"]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("path", ["f/x", "f/x/y"])
def test_a_file_where_a_folder_should_be(space: Workspace, path: str) -> None:
    (space.root / "f").write_text("one")
    refused(space, "write_file", f"Cannot write {path}: ", path=path, content="x")
    assert (space.root / "f").read_text() == "one"
    assert files(space) == ["f"]


def test_a_file_that_breaks_while_it_is_read(space: Workspace) -> None:
    everywhere = Workspace(space.root, reach="anywhere")
    refused(everywhere, "read_file", "Cannot read /proc/self/mem: ", path="/proc/self/mem")


# ---------------------------------------------------------------- the shell


@pytest.mark.parametrize(
    ("command", "status", "output"),
    [
        ("echo hello", "completed", "hello"),
        ("true", "completed", "(no output)"),
        ("printf '\\n\\n'", "completed", "(no output)"),
        ("echo out; echo err >&2", "completed", "out\nerr"),
        ("echo no; exit 3", "failed", "no\n[exit code 3]"),
        ("exit 1", "failed", "(no output)\n[exit code 1]"),
        ("kill -9 $$", "failed", f"(no output)\n[ended by signal 9: {signal.strsignal(9)}]"),
        ("cat", "completed", "(no output)"),
    ],
)
def test_what_the_shell_answers(space: Workspace, command: str, status: str, output: str) -> None:
    result = use(space, "run_shell", command=command)
    assert (result.status, result.output) == (status, output)


def test_the_shell_runs_in_the_folder_and_goes_on_after_a_failure(space: Workspace) -> None:
    use(space, "run_shell", command="echo text > made")
    assert files(space) == ["made"]
    assert use(space, "run_shell", command="pwd -P").output == str(space.root)


def test_the_time_limit_is_told_with_what_was_said(space: Workspace) -> None:
    slept = nap()
    text = refused(space, "run_shell", "[killed at the time limit of 1 s", command=f"echo so far; {slept}", timeout_s=1)
    assert text.startswith("so far\n")
    assert gone(slept)


def test_a_server_in_the_background_is_not_believed_to_run(space: Workspace) -> None:
    slept = nap()
    result = use(space, "run_shell", command=f"{slept} >/dev/null 2>&1 & echo up")
    assert result.output == "up\n[something that the command had started was still running, and was ended with it]"
    assert gone(slept)


def test_a_folder_that_is_gone(space: Workspace) -> None:
    space.root.rmdir()
    refused(space, "run_shell", "The command was not started: No such file or directory.", command="true")
    refused(space, "list_dir", "There is no .", path=".")
    refused(space, "read_file", "There is no file a.", path="a")


def test_keys_do_not_reach_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENT_API_KEY", "OPENAI_API_KEY", "lower_api_key", "API_KEY"):
        monkeypatch.setenv(name, "sk-secret")
    monkeypatch.setenv("API_KEY_NAME", "shown")
    printed = use(Workspace(tmp_path), "run_shell", command="env").output
    assert "sk-secret" not in printed
    assert "API_KEY_NAME=shown" in printed
    assert "sk-secret" in use(Workspace(tmp_path, env=os.environ), "run_shell", command="env").output
    assert "shown" not in use(Workspace(tmp_path, env={}), "run_shell", command="env").output


# ---------------------------------------------------------------- Stop, through the whole loop


def stopped_turn(space: Workspace, end: Callable[[Any, asyncio.Task[Any]], object]) -> tuple[Any, Simulator, list[Any]]:
    """A turn of three shell commands that is ended while the first one runs."""
    slept = nap()
    commands = [f"(trap '' TERM; {slept}; true) & {slept}; true", "touch second", "touch third"]
    calls = [call(id, "run_shell", command=command) for id, command in zip("abc", commands, strict=True)]
    simulator = Simulator([assistant("I start.", *calls), "I was stopped."])
    events: list[Any] = []

    async def main() -> Any:
        turn = run_turn([user("Work.")], simulator.client(), Registry(space.tools()), policy=ANYTHING)

        async def consume() -> None:
            async for event in turn:
                events.append(event)

        task = asyncio.create_task(consume())
        await asleep(slept, 2)
        end(turn, task)
        await asyncio.gather(task, return_exceptions=True)
        await turn.aclose()
        return turn

    turn = run(main())
    assert gone(slept)
    assert files(space) == []
    return turn, simulator, events


@pytest.mark.parametrize(
    ("end", "reason"),
    [(lambda turn, task: turn.stop.request(), "stopped"), (lambda turn, task: task.cancel(), "interrupted")],
    ids=["Stop", "Interrupt"],
)
def test_a_turn_that_is_ended_in_a_command_can_go_on(space: Workspace, end: Any, reason: str) -> None:
    turn, simulator, events = stopped_turn(space, end)
    assert turn.reason == reason
    assert [event.call["id"] for event in events if isinstance(event, Called)] == ["a"]
    results = {message["tool_call_id"]: message for message in turn.history if message["role"] == "tool"}
    assert {id: message["content"] for id, message in results.items()} == {
        "a": UNKNOWN_NOTE,
        "b": INTERRUPT_NOTE,
        "c": INTERRUPT_NOTE,
    }
    assert problems(turn.history) == []
    if reason == "stopped":
        assert [event.result.status for event in events if isinstance(event, Finished)] == ["interrupted"]
        assert events[-1] == Done("stopped", events[-1].why)

    async def go_on() -> Any:
        history = [*turn.history, user("What happened?")]
        return await run_turn(history, simulator.client(), Registry(space.tools()), policy=ANYTHING).run()

    after = run(go_on())
    assert (after.reason, after.history[-1]["content"]) == ("done", "I was stopped.")


# ---------------------------------------------------------------- outputs of any size


def test_with_a_store_a_stopped_command_leaves_no_half_file(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "spill", base=tmp_path)
    registry = Registry(Workspace(tmp_path, store=store).tools())

    async def main() -> ToolResult:
        stop = Stop()
        running = asyncio.create_task(
            registry.dispatch(call("c", "run_shell", command="yes"), stop=stop, policy=Policy(default="allow"))
        )
        while not list((tmp_path / "spill").glob(".*.part")):  # noqa: ASYNC110 -- a command fills it
            await asyncio.sleep(0.01)
        stop.request()
        return await running

    assert run(main()).status == "interrupted"
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of memory is read from /proc")
def test_a_gigabyte_is_whole_on_disk_in_bounded_memory(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, re, sys\n"
        "from agentlab.spill import SpillStore\n"
        "from agentlab.workspace import Workspace\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "tools = Workspace(root, store=SpillStore(root / 'spill', base=root))\n"
        "command = \"yes 'a line of a very long log' | head -c 1000000000\"\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak()\n"  # ru_maxrss would be the parent's, when that is larger
        "output = asyncio.run(tools.run_shell(command, 600))\n"
        "grown = peak() - before\n"
        "line, rest = b'a line of a very long log\\n', 1_000_000_000\n"
        "with open(root / output.output_path, 'rb') as file:\n"
        "    while block := file.read(26 * 40_000):\n"
        "        assert block == (line * 40_000)[:len(block)]\n"
        "        rest -= len(block)\n"
        "assert rest == 0 and len(output.text) < 2_300, (rest, output.text)\n"
        "print(f'1 GB spilled, {grown / 1024:.0f} MiB more memory at its peak')\n"
        "assert grown < 60_000, grown\n"  # KiB
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=True,
        cwd=Path(__file__).parents[1],
        timeout=600,
        capture_output=True,
        text=True,
    )
    print(done.stdout)


# ---------------------------------------------------------------- pages, hints, protection


def test_a_page_fits_into_the_budget_of_a_result(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("".join(f"row {n}\n" for n in range(5_000)))
    space = Workspace(tmp_path, budget=OutputBudget().for_window(8_000))
    page = space.read_file("rows.txt")
    assert len(page) <= 4_800
    assert page.splitlines()[-1].endswith("go on with offset=315]")
    tiny = Workspace(tmp_path, budget=OutputBudget(per_result=0)).read_file("rows.txt")
    assert tiny.startswith("     1\trow 0\n[lines 1 to 1 of 5000")  # never nothing: the model would stay where it is


def test_a_hint_names_a_path_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    with pytest.raises(ToolError, match=r"Did you mean notes/todo\.txt\?"):
        Workspace(tmp_path).read_file("notes/tofo.txt")


def test_a_store_that_the_model_cannot_reach_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for store in (
        SpillStore(tmp_path / "elsewhere"),
        SpillStore("spill"),
        SpillStore(tmp_path / "root" / "s", base="/"),
    ):
        with pytest.raises(AgentLabError, match="cannot follow the pointers"):
            Workspace(tmp_path / "root", store=store)
    Workspace(tmp_path / "root", store=SpillStore(tmp_path / "root" / "s", base=tmp_path / "root"))
    Workspace(tmp_path / "root", reach="anywhere", store=SpillStore(tmp_path / "elsewhere"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_not_replaced(space: Workspace) -> None:
    (space.root / "f").write_text("mine")
    (space.root / "f").chmod(0o400)
    with pytest.raises(ToolError, match="read-only"):
        space.write_file("f", "yours")
    assert (space.root / "f").read_text() == "mine"


def test_a_file_needs_a_name(space: Workspace) -> None:
    with pytest.raises(ToolError, match="names a folder"):
        space.write_file("new/", "x")
    assert list(space.root.iterdir()) == []
