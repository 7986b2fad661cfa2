"""Configuration files: later ones win, nothing of a project starts unasked, and no mistake in them is an error."""

from __future__ import annotations

import json
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
