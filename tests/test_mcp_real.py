"""The client against real servers, where they are installed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from mcpservers import children, real

from agentlab.jsonrpc import Request
from agentlab.mcp import McpConnection, McpError


def conversation(*calls: tuple[str, dict[str, Any]], program: str, args: tuple[str, ...] = (), **options: Any) -> Any:
    """Connect, call, close. The tools' names, and of each call its result or its error."""

    async def main() -> Any:
        results: list[Any] = []
        async with McpConnection("srv", real(program), args, connect_timeout_s=60, **options) as connection:
            names = [tool["name"] for tool in await connection.list_tools()]
            for name, arguments in calls:
                try:
                    results.append(await connection.call(name, arguments))
                except McpError as error:
                    results.append(error)
        return names, results

    before = children()
    found = run(main(), hang_guard_s=120)
    assert children() <= before
    return found


def test_time() -> None:
    names, (good, bad, unknown) = conversation(
        ("convert_time", {"source_timezone": "UTC", "time": "16:30", "target_timezone": "Asia/Tokyo"}),
        ("get_current_time", {"timezone": "No/Where"}),
        ("no_such_tool", {}),
        program="mcp-server-time",
    )
    assert names == ["get_current_time", "convert_time"]
    assert good.ok
    assert "+9.0h" in good.text
    assert not bad.ok
    assert "No/Where" in bad.text
    assert isinstance(unknown, McpError) or not unknown.ok


def test_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path)], check=True)
    (tmp_path / "big.txt").write_text("é" * 100_000, encoding="utf-8")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    names, (status, large, bad) = conversation(
        ("git_status", {"repo_path": str(tmp_path)}),
        ("git_show", {"repo_path": str(tmp_path), "revision": "HEAD"}),
        ("git_status", {"repo_path": str(tmp_path / "none")}),
        program="mcp-server-git",
    )
    assert "git_status" in names
    assert "On branch main" in status.text
    assert large.text.count("é") == 100_000
    assert not bad.ok


def test_everything() -> None:
    seen: list[Any] = []
    names, (echo, image, unknown) = conversation(
        ("echo", {"message": "a\u2028b"}),
        ("get-tiny-image", {}),
        ("no-such-tool", {}),
        program="mcp-server-everything",
        roots=["/"],
        trace=lambda way, message: seen.append((way, message)),
    )
    assert {"echo", "get-sum"} <= set(names)
    assert echo.text == "Echo: a\u2028b"
    assert "[image: image/png, " in image.text
    assert isinstance(unknown, McpError) or not unknown.ok
    asked = [message for way, message in seen if way == "received" and isinstance(message, Request)]
    assert asked[0] == Request(0, "roots/list")


def test_everything_with_work_in_flight() -> None:
    async def main() -> None:
        import asyncio

        heard: list[Any] = []
        async with McpConnection("srv", real("mcp-server-everything"), connect_timeout_s=60) as connection:
            work = asyncio.create_task(
                connection.call(
                    "trigger-long-running-operation",
                    {"duration": 300, "steps": 1000},
                    on_progress=lambda *what: heard.append(what),
                )
            )
            await connection.connect()
            while not heard:  # noqa: ASYNC110 -- the clean run is the guard
                await asyncio.sleep(0.05)
        with pytest.raises(McpError, match="was closed"):
            await work

    before = children()
    run(main(), hang_guard_s=120)
    assert children() <= before


def test_filesystem(tmp_path: Path) -> None:
    tmp_path = tmp_path.resolve()
    (tmp_path / "big.txt").write_text("x" * 4_000_000, encoding="utf-8")
    names, (listed, large, denied) = conversation(
        ("list_directory", {"path": str(tmp_path)}),
        ("read_text_file", {"path": str(tmp_path / "big.txt")}),
        ("read_text_file", {"path": "/etc/hostname"}),
        program="mcp-server-filesystem",
        args=(str(tmp_path),),
    )
    assert "read_text_file" in names
    assert listed.text == "[FILE] big.txt"
    assert len(large.text) == 4_000_000
    assert not denied.ok


def test_filesystem_works_in_our_roots(tmp_path: Path) -> None:
    tmp_path = tmp_path.resolve()
    seen: list[Any] = []
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    _, results = conversation(
        *[("list_directory", {"path": str(tmp_path / "ours")})] * 50,
        program="mcp-server-filesystem",
        args=(str(tmp_path / "theirs"),),
        roots=[tmp_path / "ours"],
        trace=lambda way, message: seen.append((way, message)),
    )
    assert ("received", Request(0, "roots/list")) in seen
    assert results[-1].ok  # the first ones may come before it has heard of them


@pytest.mark.soak
@pytest.mark.parametrize("program", ["mcp-server-time", "mcp-server-git"])
def test_two_thousand_failing_calls(program: str) -> None:
    async def main() -> None:
        async with McpConnection("srv", real(program), connect_timeout_s=60) as connection:
            for _ in range(2000):
                try:
                    assert not (await connection.call("no_such_tool")).ok
                except McpError as error:
                    assert error.code is not None
            assert connection.connected

    run(main(), hang_guard_s=600)
