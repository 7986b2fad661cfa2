"""Configuration files: later ones win, nothing of a project starts unasked, and no mistake in them is an error."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.mcp import ServerConfig, read_configs
from agentlab.mcpconfig import MAX_FILE_BYTES, _server
from tests.strategies import json_values

HERE = Path(__file__).parent


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


def servers(**commands: str) -> dict[str, Any]:
    return {"mcpServers": {name: {"command": command} for name, command in commands.items()}}


def started(found: Any) -> dict[str, str]:
    return {config.name: config.command for config in found.servers}


def test_later_files_win(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.json", servers(x="1", y="1")), write(tmp_path / "b.json", servers(y="2", z="2"))]
    found = read_configs([*paths, tmp_path / "missing.json"])
    assert started(found) == {"x": "1", "y": "2", "z": "2"}
    assert (found.pending, found.notes) == ([], [])


def test_the_inner_object_alone_and_settings_of_another_kind(tmp_path: Path) -> None:
    inner = {"x": {"command": "1", "args": ["a"], "env": {"N": 5}, "cwd": "/"}, "theme": "dark", "hooks": {"on": []}}
    found = read_configs([write(tmp_path / "settings.json", inner)])
    assert found.servers == [ServerConfig("x", "1", ("a",), {"N": "5"}, "/", "settings.json")]
    assert found.notes == []


def test_one_path_is_one_path(tmp_path: Path) -> None:
    path = write(tmp_path / "mcp.json", servers(x="1"))
    assert read_configs(path).servers == read_configs(str(path)).servers == read_configs([path]).servers
    assert started(read_configs(str(path))) == {"x": "1"}


def test_a_later_file_disables_an_earlier_entry(tmp_path: Path) -> None:
    user = write(tmp_path / "a.json", servers(x="1", y="1"))
    off = write(tmp_path / "b.json", {"mcpServers": {"x": {"disabled": True}, "gone": {"disabled": "true"}}})
    found = read_configs([user, off], project=tmp_path / "project")
    assert started(found) == {"y": "1"}
    assert found.notes == [f"'{name}' in b.json was skipped: it is disabled" for name in ("x", "gone")]
    again = read_configs([user, off, write(tmp_path / "c.json", servers(x="3"))], project=tmp_path / "project")
    assert started(again) == {"y": "1", "x": "3"}


@pytest.mark.parametrize(
    ("approve", "left"),
    [((), {"x": "mine"}), (["x"], {}), ("x", {}), (lambda config: True, {"x": "mine"})],
    ids=["nobody", "names", "one name", "function"],
)
def test_a_project_disables_a_users_server_only_when_approved(tmp_path: Path, approve: Any, left: Any) -> None:
    user = write(tmp_path / "home.json", servers(x="mine"))
    off = write(tmp_path / "project" / ".mcp.json", {"mcpServers": {"x": {"command": "c", "disabled": True}}})
    found = read_configs([user, off], project=tmp_path / "project", approve=approve)
    assert (started(found), found.pending, len(found.notes)) == (left, [], 1)
    assert ("approval" in found.notes[0]) == bool(left)


def test_what_is_disabled_waits_for_no_approval(tmp_path: Path) -> None:
    project = tmp_path / "project"
    asked = write(project / ".mcp.json", servers(x="theirs", y="theirs"))
    off = write(project / "local.json", {"mcpServers": {"x": {"disabled": True}, "y": {"disabled": True}}})
    user = write(tmp_path / "home.json", servers(x="mine"))
    found = read_configs([user, asked, off], project=project)
    assert (started(found), found.pending) == ({"x": "mine"}, [])
    assert (started(read_configs([asked, off], project=project, approve=lambda config: True))) == {}


@pytest.mark.parametrize("name", [".mcp.json", ".MCP.json"])
def test_a_projects_file_is_known_by_its_name_and_behind_a_link(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "elsewhere" / name, servers(x="theirs"))
    (tmp_path / "link.json").symlink_to(path)
    for given_path in (path, tmp_path / "link.json"):
        assert started(read_configs([given_path], project=tmp_path / "project")) == {}


def test_what_is_no_file_neither_hangs_nor_floods(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**33)
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    odd = ["pipe.json", "zero.json", "huge.json", "circle.json", "nu\0ll.json"]
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    paths = [tmp_path / name for name in (".", *odd)] + [write(tmp_path / "good.json", servers(x="1"))]
    result: list[Any] = []
    reader = threading.Thread(target=lambda: result.append(read_configs(paths)), daemon=True)
    reader.start()
    reader.join(20)  # a hang guard
    [found] = result
    assert started(found) == {"x": "1"}
    assert len(found.notes) == 6
    assert [note for note in found.notes if "no regular file" in note] == [
        f"{name} was skipped: it is no regular file" for name in odd[:2]
    ]
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"mcpServers": None}, "mcpServers is no object"),
        ({"mcpservers": {"x": {"command": "c"}}}, "has its servers under 'mcpservers'"),
        ({"mcp_servers": {"x": {"command": "c"}}}, "has its servers under 'mcp_servers'"),
        ({"servers": {"x": {"command": "c"}}, "inputs": []}, "has its servers under 'servers': none is read."),
        ({"servers": None}, "has its servers under 'servers'"),
        ({"x": {"cmd": "c"}}, "'x' in mcp.json was skipped: it needs a name and a command"),
        ({"x": {"args": []}, "theme": "dark"}, "'x' in mcp.json was skipped: it needs a name and a command"),
        ({"x": {"type": "http", "url": "http://h"}}, "'x' in mcp.json was skipped: it has a url"),
        ({"x": {"disabled": True, "command": "c"}}, "it is disabled"),
        ({"x": {"disabled": True}}, "it is disabled"),
    ],
    ids=range(10),
)
def test_a_file_that_names_no_server_says_why(tmp_path: Path, content: Any, says: str) -> None:
    found = read_configs([write(tmp_path / "mcp.json", content)], project=tmp_path / "project")
    assert (found.servers, found.pending, len(found.notes)) == ([], [], 1)
    assert says in found.notes[0]


def test_a_projects_servers_wait(tmp_path: Path) -> None:
    user = write(tmp_path / "home" / "mcp.json", servers(x="mine"))
    project = tmp_path / "project"
    inside = write(project / ".agentlab" / "settings.json", servers(y="theirs"))
    named = write(tmp_path / "elsewhere" / ".mcp.json", servers(x="evil", z="theirs"))
    link = tmp_path / "link.json"
    link.symlink_to(inside)
    found = read_configs([user, inside, named], project=project)
    assert started(found) == {"x": "mine"}
    assert {config.name for config in found.pending} == {"x", "y", "z"}
    assert len(found.notes) == 3
    assert all("approval" in note for note in found.notes)
    assert started(read_configs([link], project=project)) == {}


def test_the_current_folder_is_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mcp.json", servers(x="1"))
    assert started(read_configs(["mcp.json"])) == {}


def explode(config: ServerConfig) -> bool:
    raise RuntimeError(config.name)


@pytest.mark.parametrize(
    ("approve", "expected"),
    [
        ((), {}),
        (["x"], {"x": "1"}),
        ("x", {"x": "1"}),
        ("xy", {}),
        (lambda config: config.command == "2", {"y": "2"}),
        (lambda config: "yes", {}),
        (explode, {}),
        ([ServerConfig("x", "1").digest], {"x": "1"}),
        ([ServerConfig("x", "other").digest], {}),
    ],
    ids=["nobody", "names", "one name", "part of a text", "function", "not quite true", "raises", "digest", "changed"],
)
def test_approval(tmp_path: Path, approve: Any, expected: dict[str, str]) -> None:
    path = write(tmp_path / ".mcp.json", servers(x="1", y="2"))
    found = read_configs([path], approve=approve)
    assert started(found) == expected
    assert {config.name for config in found.pending} == {"x", "y"} - set(expected)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "skipped"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe{}", "skipped"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (MAX_FILE_BYTES + 1), "larger than"),
        ({"mcpServers": []}, "mcpServers is no object"),
        ({"mcpServers": {"x": 5}}, "'x' in mcp.json was skipped: it is no object"),
        ({"mcpServers": {"x": {}}}, "needs a name and a command"),
        ({"mcpServers": {"x": {"command": ["a"]}}}, "needs a name and a command"),
        ({"mcpServers": {"": {"command": "a"}}}, "needs a name and a command"),
        ({"mcpServers": {"x": {"url": "http://h"}}}, "only servers with a command"),
        ({"mcpServers": {"x": {"command": "a", "args": "b"}}}, "args"),
        ({"mcpServers": {"x": {"command": "a", "args": [1]}}}, "args"),
        ({"mcpServers": {"x": {"command": "a", "env": ["A=1"]}}}, "env"),
        ({"mcpServers": {"x": {"command": "a", "env": {"A": True}}}}, "env"),
        ({"mcpServers": {"x": {"command": "a", "cwd": 1}}}, "cwd"),
        ({"mcpServers": {"x": {"command": "a", "disabled": True}}}, "disabled"),
    ],
    ids=range(17),
)
def test_a_mistake_is_a_note_and_the_rest_counts(tmp_path: Path, content: Any, says: str) -> None:
    if isinstance(content, dict) and isinstance(content["mcpServers"], dict):
        content["mcpServers"]["good"] = {"command": "g"}
    good = write(tmp_path / "good.json", servers(good="g"))
    found = read_configs([good, write(tmp_path / "mcp.json", content)])
    assert started(found) == {"good": "g"}
    assert len(found.notes) == 1
    assert says in found.notes[0]
    assert str(tmp_path) not in found.notes[0]


def test_a_folder_and_a_bom(tmp_path: Path) -> None:
    path = write(tmp_path / "bom.json", b"\xef\xbb\xbf" + json.dumps(servers(x="1")).encode())
    found = read_configs([tmp_path, path])
    assert started(found) == {"x": "1"}
    assert "directory" in found.notes[0]


def test_variables_are_filled_in_late() -> None:
    config = ServerConfig(
        "x",
        "${BIN}/run",
        ("--key=${KEY}", "${A}${B}", "${NO:-none}", "${EMPTY:-e}", "$KEY", "${1}"),
        {"K": "${KEY}"},
        "${BIN}",
    )
    environ = {"BIN": "/b", "KEY": "sk-1", "A": "a", "B": "${KEY}", "EMPTY": ""}
    full = config.expanded(environ)
    assert (full.command, full.cwd, dict(full.env)) == ("/b/run", "/b", {"K": "sk-1"})
    assert full.args == ("--key=sk-1", "a${KEY}", "none", "e", "$KEY", "${1}")
    assert ServerConfig("x", "${EMPTY}").expanded(environ).command == ""
    with pytest.raises(AgentLabError, match="GONE is not set"):
        ServerConfig("x", "a", env={"K": "${GONE}"}).expanded(environ)


def test_no_secret_is_shown() -> None:
    assert "sk-1" not in repr(ServerConfig("x", "a", env={"KEY": "sk-1"}))


@given(content=json_values, name=st.text(max_size=5))
def test_no_entry_breaks_it(content: Any, name: str) -> None:
    try:
        config = _server(name, content, "f", foreign=True)
    except ValueError:
        return
    assert config.name
    assert config.project


@given(entry=st.dictionaries(st.sampled_from(["command", "args", "env", "cwd", "url"]), json_values))
def test_only_texts_get_through(entry: dict[str, Any]) -> None:
    try:
        config = _server("x", entry, "f", foreign=False)
    except ValueError:
        return
    assert all(isinstance(text, str) for text in [config.command, *config.args, *config.env, *config.env.values()])
