"""All servers behind one manager: names, the table back, notes for what fails, and tools like any others."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from hypothesis import example, given
from hypothesis import strategies as st
from mcpservers import CLOCK, SCRIPTED, children

from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.mcp import McpError, McpManager, _parameters, exposed_name
from agentlab.permissions import Policy
from agentlab.spill import OutputBudget, SpillStore, apply_budget
from agentlab.tools import Registry, Tool
from tests.cases import case

VALID = re.compile("[a-zA-Z0-9_-]{1,64}")


@pytest.fixture(autouse=True)
def every_child_is_reaped() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def scripted(*mode: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [SCRIPTED, *mode]}


def config(tmp_path: Path, name: str = "mcp.json", **servers: Any) -> Path:
    path = tmp_path / name
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return path


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("clock", "now", "mcp__clock__now"),
        ("a_b", "x__y", "mcp__a_b__x__y"),
        ("s", "_t", "mcp__s___t"),
        ("clock", "add.minutes", "mcp__clock__add_minutes_a68a6a91"),
    ],
)
def test_names(server: str, tool: str, name: str) -> None:
    assert exposed_name(server, tool) == name


names = (
    st.text(alphabet="ab_.-é/ ", max_size=6) | st.text(alphabet="ab_", min_size=55, max_size=70) | st.text(max_size=8)
)


@given(pairs=st.lists(st.tuples(names, names), max_size=12, unique=True))
@example(pairs=[("a", "b__c"), ("a__b", "c"), ("a_", "b"), ("a", "_b"), ("a_", "_b"), ("a__", "b")])
@example(pairs=[("s", "a.b"), ("s", "a_b"), ("s", "a/b"), ("s.", "a"), ("s_", "a")])
def test_names_are_fit_and_distinct(pairs: list[tuple[str, str]]) -> None:
    exposed = [exposed_name(*pair) for pair in pairs]
    assert all(VALID.fullmatch(name) for name in exposed)
    assert len(set(exposed)) == len(pairs)


def test_names_that_chat_apis_refuse(tmp_path: Path) -> None:
    """Case M07."""
    found = case("M07")
    originals = found["input"]["tools"]
    path = config(tmp_path, **{found["input"]["server"]: scripted("names", json.dumps(originals))})

    async def main() -> list[Any]:
        asked: list[Any] = []
        async with McpManager.from_config([path], trace=lambda *message: asked.append(message[2])) as manager:
            tools = await manager.tools()
            assert [manager.table[tool.name] for tool in tools] == [("my__srv", name) for name in originals]
            assert len({tool.name for tool in tools}) == found["expected"]["exposed_distinct"]
            assert all(VALID.fullmatch(tool.name) for tool in tools)
            for tool in tools:
                assert (await manager.call(tool.name, {})).ok
        return [message.params["name"] for message in asked if getattr(message, "method", "") == "tools/call"]

    assert run(main()) == originals


# ---------------------------------------------------------------- connecting


def test_nothing_starts_before_the_first_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with McpManager.from_config(
            [config(tmp_path, clock={"command": sys.executable, "args": [CLOCK]})]
        ) as manager:
            before = children()
            assert manager.tools() == []
            assert children() == before
            assert (await manager.call("mcp__clock__now")).text == "2026-01-05T09:00:00"
            assert [tool.name for tool in manager.tools()] == ["mcp__clock__now", "mcp__clock__add_minutes_a68a6a91"]
            assert await manager.tools() == manager.tools()

    run(main())


def test_a_server_that_fails_is_left_out_with_a_note(tmp_path: Path) -> None:
    heard: list[str] = []

    def listen(text: str) -> None:
        heard.append(text)
        raise RuntimeError("a listener's fault")

    path = config(
        tmp_path,
        gone={"command": "no-such-program"},
        slow={"command": sys.executable, "args": [CLOCK, "--fault", "silence"]},
        unset={"command": "x", "env": {"KEY": "${NOT_SET_ANYWHERE}"}},
        good=scripted(),
    )

    async def main() -> McpManager:
        async with McpManager.from_config([path], connect_timeout_s=1.5, on_note=listen) as manager:
            assert [tool.name for tool in await manager.tools()] == ["mcp__good__echo"]
            assert set(manager.failed) == {"gone", "slow", "unset"}
            with pytest.raises(McpError, match="left out: "):
                await manager.call("mcp__gone__x")
            assert len(manager.notes) == 3  # and nothing was tried again
            html = manager._repr_html_()
            assert "no-such-program" in html
            assert "connected" in html
            return manager

    manager = run(main())
    assert heard == manager.notes
    assert "NOT_SET_ANYWHERE" in " ".join(heard)


def test_a_server_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "server"
    path = config(tmp_path, x={"command": str(program), "args": []})

    async def main() -> None:
        async with McpManager.from_config([path]) as manager:
            assert await manager.tools() == []
            program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{CLOCK}'\n")
            program.chmod(0o755)
            assert await manager.tools() == []
            manager.retry("x")
            assert len(await manager.tools()) == 2

    run(main())


def test_connecting_at_the_same_time_is_connecting_once(tmp_path: Path) -> None:
    script = f"echo x >>'{tmp_path}/started'; sleep 0.2; echo the reason >&2; exit 7"
    path = config(tmp_path, bad={"command": "sh", "args": ["-c", script]}, good=scripted())

    async def main() -> None:
        async with McpManager.from_config([path]) as manager:
            await asyncio.gather(manager.connect(), manager.connect(), manager.connect())
            assert (tmp_path / "started").read_text() == "x\n"
            assert len(manager.notes) == 1
            assert "exit code 7" in manager.failed["bad"]
            assert "the reason" in manager.failed["bad"]
            assert [tool.name for tool in manager.tools()] == ["mcp__good__echo"]

    run(main())


def test_the_limit_of_a_call_is_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with McpManager.from_config([config(tmp_path, s=scripted())], call_limit_s=7) as manager:
            await manager.connect()
            assert manager._connections["s"]._call_limit_s == 7

    run(main())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"properties": {"a": True}},
        {"type": "object", "properties": ["a"]},
        {"anyOf": [{"required": ["a"]}]},
        None,
    ],
    ids=range(6),
)
def test_what_a_schema_leaves_open_is_the_servers_business(schema: Any) -> None:
    tool = Tool("t", "", _parameters(schema), lambda **arguments: str(sorted(arguments)), read_only=True)
    assert run(Registry([tool]).dispatch(call("t", a=1, b=2))).output == "['a', 'b']"


@pytest.mark.parametrize("closed", [{}, {"required": ["a"]}])
def test_what_a_schema_forbids_is_refused_here(closed: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": False, **closed}
    assert _parameters(schema) == schema
    tool = Tool("t", "", _parameters(schema), lambda **arguments: "", read_only=True)
    assert "Unknown argument: b" in run(Registry([tool]).dispatch(call("t", a=1, b=2))).output


def test_a_project_starts_nothing_until_it_is_approved(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    path = config(tmp_path, ".mcp.json", evil={"command": "touch", "args": [str(marker)]}, good=scripted())

    async def main() -> None:
        async with McpManager.from_config([path]) as manager:
            assert await manager.tools() == []
            assert len(manager.notes) == 2
            assert "waits for approval" in manager._repr_html_()
            manager.approve("good")
            assert [tool.name for tool in await manager.tools()] == ["mcp__good__echo"]
            with pytest.raises(AgentLabError, match="Waiting: evil"):
                manager.approve("other")

    run(main())
    assert not marker.exists()


def test_tools_that_changed_are_seen(tmp_path: Path) -> None:
    async def main() -> None:
        async with McpManager.from_config([config(tmp_path, s=scripted())]) as manager:
            before = [tool.spec() for tool in await manager.tools()]
            await manager._connections["s"].call("change")
            assert (await manager.call("mcp__s__new")).ok  # a name that is not known yet: it asks again
            after = await manager.tools()
            assert [tool.name for tool in after] == ["mcp__s__echo", "mcp__s__new"]
            assert [after[0].spec()] == before

    run(main())


def test_a_server_that_fails_later_is_left_out_and_ended(tmp_path: Path) -> None:
    async def main() -> None:
        path = config(tmp_path, s=scripted("list-once"), good=scripted())
        async with McpManager.from_config([path], grace_s=0.2) as manager:
            before = children()
            assert len(await manager.tools()) == 2
            manager._connections["s"]._connect_timeout_s = 0.3
            assert len(children() - before) == 2
            await manager.call("mcp__s__echo")
            await manager._connections["s"].call("change")
            assert [tool.name for tool in await manager.tools()] == ["mcp__good__echo"]
            assert "did not answer tools/list" in manager.failed["s"]
            assert len(children() - before) == 1

    run(main())


def test_odd_tools_do_not_reach_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with McpManager.from_config([config(tmp_path, s=scripted("odd-tools"))]) as manager:
            tools = {tool.name: tool for tool in await manager.tools()}
            assert list(tools) == [f"mcp__s__{name}" for name in ("same", "bare", "list", "long", "text")]
            assert [note.split(" of ")[0] for note in manager.notes] == ["tool ''", "tool 'same'", "tool 'wide'"]
            free = {"additionalProperties": True, "type": "object", "properties": {}}
            assert all(tools[f"mcp__s__{name}"].parameters == free for name in ("bare", "list", "text"))
            assert tools["mcp__s__bare"].description == "bare of the MCP server s"
            assert len(tools["mcp__s__long"].description) == 2000
            assert not any(tool.read_only for tool in tools.values())

    run(main())


@pytest.mark.parametrize("mode", [["crash"], ["pages"], ["noise"], ["ping"]], ids=lambda mode: mode[0])
def test_the_clocks_faults(tmp_path: Path, mode: list[str]) -> None:
    path = config(tmp_path, clock={"command": sys.executable, "args": [CLOCK, "--fault", *mode]})

    async def main() -> None:
        async with McpManager.from_config([path]) as manager:
            tools = await manager.tools()
            assert len(tools) == (200 if mode == ["pages"] else 2)
            if mode == ["crash"]:
                with pytest.raises(McpError, match="out of springs"):
                    await manager.call(tools[0].name)
            elif mode != ["pages"]:
                assert (await manager.call(tools[0].name)).ok
            assert bool(manager.notes) == (mode == ["pages"])

    run(main())


def test_closed_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        manager = McpManager.from_config([config(tmp_path, s=scripted())])
        tool = (await manager.tools())[0]
        await manager.close()
        await manager.close()
        assert manager.tools() == []
        with pytest.raises(McpError, match="closed"):
            await tool.handler()

    run(main())


# ---------------------------------------------------------------- in the loop


def test_a_registry_holds_them(tmp_path: Path) -> None:
    allow = Policy(default="allow")
    path = config(tmp_path, s=scripted("names", '["echo", "is-error", "error", "big", "hold", "self", "name"]'))

    async def main() -> None:
        async with McpManager.from_config([path]) as manager:
            registry = Registry(await manager.tools())

            async def result(name: str, **options: Any) -> tuple[str, str]:
                found = await registry.dispatch(call(f"mcp__s__{name}"), policy=options.pop("policy", allow), **options)
                return found.status, found.output

            assert await result("echo") == ("completed", "{}")
            assert (await result("echo", policy=None))[0] == "rejected"
            assert await result("is-error") == ("failed", "no such table")
            assert (await result("error"))[0] == "failed"
            stop = Stop()
            asyncio.get_running_loop().call_later(0.1, stop.request)
            assert (await result("hold", stop=stop))[0] == "interrupted"
            assert await result("echo") == ("completed", "{}")

    run(main())


def test_every_name_of_an_argument_passes(tmp_path: Path) -> None:
    async def main() -> None:
        async with McpManager.from_config([config(tmp_path, s=scripted())]) as manager:
            handler = (await manager.tools())[0].handler
            values = {"self": 1, "name": 2, "arguments": 3, "handler": 4}
            assert json.loads(await handler(**values)) == values

    run(main())


def test_results_go_through_the_output_budget(tmp_path: Path) -> None:
    schema_free = scripted("odd-tools")  # its tool "bare" takes anything

    async def main() -> Any:
        async with McpManager.from_config([config(tmp_path, s=schema_free)]) as manager:
            registry = Registry(await manager.tools())
            found = await registry.dispatch(call("mcp__s__bare", text="x" * 200_000), policy=Policy(default="allow"))
            return apply_budget([found], OutputBudget(), SpillStore(tmp_path / "spill", base=tmp_path))

    budget = run(main())
    assert (budget.before, len(budget.spilled)) == (200_012, 1)
    assert budget.after < 3_000
    assert budget.results[0].output_path
