"""One MCP server: handshake, tools, calls, and that nothing of it is left behind, whatever it does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from mcpservers import CLOCK, asleep, children, nap, scripted, sleepers

from agentlab.interrupt import Stop
from agentlab.jsonrpc import Answer, Failure, Notice, Request
from agentlab.mcp import PROTOCOLS, McpConnection, McpError, McpResult
from agentlab.mcplink import seconds
from agentlab.tools import Registry, Tool
from tests.cases import case


@pytest.fixture(autouse=True)
def every_child_is_reaped() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


async def answer(connection: McpConnection, tool: str, **arguments: Any) -> McpResult:
    """The result of one call; the server ends afterwards."""
    async with connection:
        return await connection.call(tool, arguments)


async def tool_names(connection: McpConnection) -> list[str]:
    async with connection:
        return [tool["name"] for tool in await connection.list_tools()]


def fails(connection: McpConnection, tool: str = "echo", **arguments: Any) -> McpError:
    with pytest.raises(McpError) as caught:
        run(answer(connection, tool, **arguments))
    return caught.value


# ---------------------------------------------------------------- the handshake


def test_the_conversation_in_order() -> None:
    seen: list[Any] = []

    async def main() -> None:
        clock = McpConnection("clock", sys.executable, [CLOCK], trace=lambda way, message: seen.append((way, message)))
        assert not clock.connected
        assert seen == []  # nothing runs before it is used
        async with clock:
            assert (await clock.call("now")).text == "2026-01-05T09:00:00"
            assert clock.connected
            assert clock.server["serverInfo"]["name"] == "clock"
        assert not clock.connected

    run(main())
    assert [way for way, _ in seen] == ["sent", "received", "sent", "sent", "received", "sent", "received"]
    kinds = [Request, Answer, Notice, Request, Answer, Request, Answer]
    assert [type(message) for _, message in seen] == kinds
    assert [message.id for _, message in seen if not isinstance(message, Notice)] == [0, 0, 1, 1, 2, 2]
    assert [m.method for _, m in seen if isinstance(m, Request | Notice)] == [
        "initialize", "notifications/initialized", "tools/list", "tools/call",
    ]  # fmt: skip


@pytest.mark.parametrize("version", PROTOCOLS)
def test_every_version_that_is_known(version: str) -> None:
    assert run(answer(scripted("version", version), "echo")).text == "{}"


def test_a_version_that_nobody_knows() -> None:
    assert "'1999-01-01'" in str(fails(scripted("version", "1999-01-01")))


def test_a_server_that_never_answers() -> None:
    error = fails(McpConnection("slow", sys.executable, [CLOCK, "--fault", "silence"], connect_timeout_s=0.5))
    assert "0.5 seconds" in str(error)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-program-here", "No such file"),
        ("/", "denied"),
        ("a\0b", "null byte"),
        ("true", "ended with exit code 0"),
        ("cat", "Method not found"),  # it says what it hears
    ],
)
def test_a_command_that_is_no_server(command: str, says: str) -> None:
    assert says in str(fails(McpConnection("x", command)))


def test_an_end_at_start_tells_what_stderr_said() -> None:
    error = fails(McpConnection("x", "sh", ["-c", "echo module missing >&2; exit 7"]))
    assert "exit code 7" in str(error)
    assert "module missing" in str(error)


# ---------------------------------------------------------------- the list of tools


def test_all_pages_are_read() -> None:
    """Case M04."""
    asked: list[Any] = []
    names = run(tool_names(scripted("pages", trace=lambda way, message: asked.append(message))))
    assert names == case("M04")["expected"]["tools"]
    lists = [message for message in asked if isinstance(message, Request) and message.method == "tools/list"]
    assert len(lists) == case("M04")["expected"]["requests"]


def test_pages_in_a_circle() -> None:
    connection = scripted("circle")
    assert run(tool_names(connection)) == ["t", "t1", "t2"]
    assert "circles" in connection.notes[0]


def test_pages_without_end() -> None:
    connection = McpConnection("clock", sys.executable, [CLOCK, "--fault", "pages"])
    assert len(run(tool_names(connection))) == 200
    assert "no end" in connection.notes[0]


def test_the_same_page_again_and_again() -> None:
    connection = scripted("same")
    assert run(tool_names(connection)) == ["a", "b"]
    assert len(connection.notes) == 1
    assert "circles: the 2 found" in connection.notes[0]


@pytest.mark.parametrize("cursor", [2, True, {"page": 2}, ["x"], 0, False])
def test_a_cursor_that_is_no_text(cursor: Any) -> None:
    connection = scripted("cursor", json.dumps(cursor))
    assert run(tool_names(connection)) == ["a"]
    assert connection.notes == ["its nextCursor is no text: the 1 tools found up to then are used"]


@pytest.mark.parametrize("cursor", [None, ""], ids=repr)
def test_a_cursor_that_says_the_end(cursor: Any) -> None:
    connection = scripted("cursor", json.dumps(cursor))
    assert run(tool_names(connection)) == ["a"]
    assert connection.notes == []


@pytest.mark.parametrize(("mode", "says"), [("late-page", "within"), ("bad-page", "bad cursor")])
def test_a_page_that_does_not_come_leaves_those_before_it(mode: str, says: str) -> None:
    async def main() -> None:
        async with scripted(mode, connect_timeout_s=1.0) as connection:
            assert [tool["name"] for tool in await connection.list_tools()] == ["a", "b"]
            assert len(connection.notes) == 1
            assert "page 2 of its tools failed" in connection.notes[0]
            assert says in connection.notes[0]
            assert (await connection.call("echo")).text == "{}"

    run(main())


def test_a_server_that_ends_between_two_pages() -> None:
    with pytest.raises(McpError, match="exit code 5"):
        run(tool_names(scripted("page-crash")))


@pytest.mark.parametrize("code", [-32601, -32601.0, "-32601"])
def test_a_server_without_tools(code: Any) -> None:
    connection = scripted("no-tools", json.dumps(code))
    assert run(tool_names(connection)) == []
    assert connection.notes == []


def test_a_list_that_changed_is_read_again() -> None:
    async def main() -> None:
        async with scripted() as connection:
            assert [tool["name"] for tool in await connection.list_tools()] == ["echo"]
            await connection.call("change")
            assert connection.stale
            assert [tool["name"] for tool in await connection.list_tools()] == ["echo", "new"]
            assert not connection.stale

    run(main())


# ---------------------------------------------------------------- calls


def test_arguments_and_text_pass_unchanged() -> None:
    value = 'a\nb\r\u2028\x85 é 😀 \\ " <&'
    assert json.loads(run(answer(scripted(), "echo", text=value, n=1.5, none=None)).text) == {
        "text": value, "n": 1.5, "none": None,
    }  # fmt: skip


def test_a_result_that_says_it_failed() -> None:
    """Case M06."""
    result = run(answer(scripted(), "is-error"))
    assert (result.ok, result.text) == (False, case("M06")["expected"]["model_sees"])


def test_a_json_rpc_error_has_its_code() -> None:
    error = fails(scripted(), "error")
    assert error.code == -32602
    assert "no such tool" in str(error)


def test_an_id_that_comes_back_as_text() -> None:
    assert run(answer(scripted(), "string-id")).text == "by a text"


def test_answers_out_of_order() -> None:
    async def main() -> list[str]:
        async with scripted() as connection:
            async with asyncio.TaskGroup() as group:
                held = [group.create_task(connection.call("hold")) for _ in range(3)]
                await asyncio.sleep(0)
                last = group.create_task(connection.call("release"))
            return [task.result().text for task in [*held, last]]

    assert run(main()) == ["2", "3", "4", "5"]


def test_a_long_line_and_a_small_answer_behind_it() -> None:
    """Case M09, and 4 MB."""
    found = case("M09")

    async def main() -> list[int]:
        async with scripted() as connection:
            sizes = []
            for size in (found["input"]["server_line_bytes"], 4_000_000):
                sizes.append(len((await connection.call("big", {"bytes": size})).text.encode()))
                assert (await connection.call("echo")).text == "{}"
            return sizes

    assert run(main()) == [132_000, 4_000_000]


def test_a_line_above_the_limit_fails_its_call_only() -> None:
    async def main() -> None:
        async with scripted(max_line_bytes=100_000) as connection:
            with pytest.raises(McpError, match="at most 100,000"):
                await connection.call("big", {"bytes": 300_000})
            assert (await connection.call("echo")).text == "{}"

    run(main())


def test_arguments_larger_than_a_pipe() -> None:
    assert len(run(answer(scripted(), "echo", text="x" * 2_000_000)).text) > 2_000_000


def test_arguments_that_are_no_json() -> None:
    assert "JSON" in str(fails(scripted(), "echo", x=object()))


def test_noise_and_a_flood_on_stderr() -> None:
    """Cases M01 and M02: banners on stdout, more on stderr than a pipe holds, without line ends."""

    async def main() -> None:
        async with McpConnection("clock", sys.executable, [CLOCK, "--fault", "noise"]) as clock:
            assert (await clock.call("now")).ok
            assert clock.ignored == 5
            assert "tick" in clock.stderr_tail
            assert len(clock.stderr_tail.encode()) <= case("M02")["expected"]["stderr_tail_kept_bytes_max"]
        async with scripted("early-stderr") as connection:
            for _ in range(3):
                assert (await connection.call("stderr")).text == "still here"

    run(main())


# ---------------------------------------------------------------- what the server asks


def test_what_the_server_asks_is_answered() -> None:
    async def main() -> list[Any]:
        async with scripted(roots=["/tmp/a b"]) as connection:
            await connection.call("ask")
            return list(json.loads((await connection.call("log")).text))

    log = run(main())
    assert log[0]["params"]["capabilities"] == {"roots": {}}
    answers = [message for message in log if "method" not in message]
    assert answers[0] == {"jsonrpc": "2.0", "id": "0", "result": {}}
    assert answers[1] == {
        "jsonrpc": "2.0", "id": 1, "result": {"roots": [{"uri": "file:///tmp/a%20b", "name": "a b"}]},
    }  # fmt: skip
    assert [(message["id"], message["error"]["code"]) for message in answers[2:]] == [("2", -32601), (3, -32601)]


def test_a_question_without_a_usable_id_is_refused() -> None:
    async def main() -> list[Any]:
        async with scripted() as connection:
            await connection.call("ask-without-id")
            return list(json.loads((await connection.call("log")).text))

    answers = [message for message in run(main()) if "method" not in message]
    assert [(message["id"], message["error"]["code"]) for message in answers] == [(None, -32600)] * 3 + [(1.5, -32601)]


def test_a_server_that_asks_and_never_reads_fills_no_memory() -> None:
    async def main() -> None:
        async with scripted() as connection:
            assert (await connection.call("flood")).text == "flooded"
            assert connection._link is not None
            assert connection._link.child.queued_bytes < 2 * 1024 * 1024
            assert (await connection.call("echo")).text == "{}"

    run(main())


# ---------------------------------------------------------------- giving up


async def cancelled_ids(connection: McpConnection) -> list[int]:
    log = json.loads((await connection.call("log")).text)
    return [item["params"]["requestId"] for item in log if item.get("method") == "notifications/cancelled"]


def test_stop_reaches_a_call_and_its_late_answer_means_nothing() -> None:
    async def main() -> None:
        async with scripted() as connection:
            await connection.connect()
            stop = Stop()

            async def held(**arguments: Any) -> str:
                asyncio.get_running_loop().call_later(0.1, stop.request)
                return (await connection.call("hold")).text

            registry = Registry([Tool("held", "", {"type": "object", "properties": {}}, held, read_only=True)])
            call = {"id": "c", "type": "function", "function": {"name": "held", "arguments": "{}"}}
            result = await registry.dispatch(call, stop=stop)
            assert result.status == "interrupted"
            assert await cancelled_ids(connection) == [2]
            ignored = connection.ignored
            assert (await connection.call("release")).text == "4"
            assert (await connection.call("echo")).text == "{}"
            assert connection.ignored == ignored + 1

    run(main())


def test_an_interrupt_while_it_connects_leaves_nothing() -> None:
    async def main(command: str) -> None:
        connection = McpConnection("x", "sh", ["-c", f"{command} & wait"])
        task = asyncio.create_task(connection.connect())
        await asleep(command)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not sleepers(command)

    run(main(nap()))


def test_one_caller_gives_up_connecting_and_the_other_goes_on() -> None:
    async def main() -> None:
        async with scripted() as connection:
            first, second = (asyncio.create_task(connection.call("echo")) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).text == "{}"
            assert first.cancelled()

    run(main())


def test_all_who_wait_for_a_connection_share_one_attempt(tmp_path: Path) -> None:
    script = "echo x >>started; sleep 0.2; echo the reason >&2; exit 7"

    async def main() -> None:
        connection = McpConnection("x", "sh", ["-c", script], cwd=tmp_path)
        first, *others = [asyncio.create_task(connection.connect()) for _ in range(3)]
        later = asyncio.create_task(connection.call("echo"))
        ends = await asyncio.gather(first, *others, later, return_exceptions=True)
        assert all(isinstance(end, McpError) and "exit code 7" in str(end) for end in ends)
        assert all("the reason" in str(end) for end in ends)
        assert (tmp_path / "started").read_text() == "x\n"
        with pytest.raises(McpError, match="exit code 7"):  # who asks afterwards gets a new one
            await connection.connect()
        assert (tmp_path / "started").read_text() == "x\nx\n"
        await connection.close()

    run(main())


def test_a_call_that_takes_too_long_is_called_off() -> None:
    async def main() -> None:
        async with scripted(call_timeout_s=0.3) as connection:
            with pytest.raises(McpError, match=r"0\.3 seconds"):
                await connection.call("hold")
            assert await cancelled_ids(connection) == [2]

    run(main())


def test_progress_is_heard_and_keeps_a_call_alive() -> None:
    heard: list[Any] = []

    def listen(*what: Any) -> None:
        heard.append(what)
        raise RuntimeError("a listener's fault")

    async def main() -> None:
        async with scripted(call_timeout_s=1.0) as connection:
            result = await connection.call("progress", {"steps": 12}, on_progress=listen)
            assert result.text == "done"

    run(main())
    assert heard == [(step, None, "on") for step in range(12)]


def test_progress_that_does_not_grow_gives_no_time() -> None:
    heard: list[Any] = []

    async def main() -> None:
        async with scripted(call_timeout_s=0.4, grace_s=0.05) as connection:
            with pytest.raises(McpError, match=r"within 0\.4 seconds,"):
                await connection.call(
                    "progress", {"steps": 60, "pause_s": 0.05, "grows": 0}, on_progress=lambda *what: heard.append(what)
                )

    run(main())
    assert len(heard) > 1


@pytest.mark.parametrize(
    ("span_s", "said"), [(1, "1 second"), (1.0, "1 second"), (0.4, "0.4 seconds"), (15, "15 seconds")]
)
def test_one_second_is_one(span_s: float, said: str) -> None:
    assert seconds(span_s) == said


def test_progress_has_an_end() -> None:
    async def main() -> None:
        async with scripted(call_timeout_s=30, call_limit_s=0.4, grace_s=0.05) as connection:
            with pytest.raises(McpError, match=r"within 0\.4 seconds in all,"):
                await connection.call("progress", {"steps": 60, "pause_s": 0.05})

    run(main())
    limits = [scripted(call_timeout_s=limit)._call_limit_s for limit in (2, None)]
    assert limits == [20, None]


# ---------------------------------------------------------------- its end


def test_a_crash_fails_what_waits_and_the_next_call_starts_anew() -> None:
    async def main() -> None:
        async with scripted(env={"TOKEN": "sk-very-secret"}) as connection:
            held = asyncio.create_task(connection.call("hold"))
            await asyncio.sleep(0)
            with pytest.raises(McpError, match="exit code 3") as caught:
                await connection.call("crash")
            assert "out of memory" in str(caught.value)
            assert "secret" not in str(caught.value) + connection.stderr_tail
            with pytest.raises(McpError, match="exit code 3"):
                await held
            assert (await connection.call("echo")).text == "{}"

    run(main())


def test_a_last_answer_without_a_line_end_counts() -> None:
    assert run(answer(scripted(), "half")).text == "no line end"


def test_a_launcher_that_leaves_a_grandchild() -> None:
    """Case M10."""

    async def main(command: str) -> float:
        connection = McpConnection("x", "sh", ["-c", f"{command} & wait"], grace_s=0.2)
        task = asyncio.create_task(connection.connect())
        await asleep(command)
        start = asyncio.get_running_loop().time()
        await connection.close()
        assert not sleepers(command)
        with pytest.raises(McpError, match="was closed"):
            await task
        return asyncio.get_running_loop().time() - start

    limit = min(map(float, case("M10")["expected"]["alive_in_group_after_s"]))
    assert run(main(nap())) < limit


@pytest.mark.parametrize("mode", ["family", "stubborn"])
def test_stubborn_servers_and_grandchildren_end(mode: str) -> None:
    async def main(command: str) -> None:
        async with scripted(mode, command, grace_s=0.2) as connection:
            await connection.connect()
            await asleep(command)
        assert not sleepers(command)

    run(main(nap()))


def test_a_grandchild_of_a_server_that_crashed_ends_too() -> None:
    async def main(command: str) -> None:
        async with scripted("family", command) as connection:
            await connection.connect()
            await asleep(command)
            with pytest.raises(McpError):
                await connection.call("crash")
        assert not sleepers(command)

    run(main(nap()))


@pytest.mark.parametrize(
    ("script", "heard"),
    [
        ("touch up; cat >/dev/null; sleep 0.2; echo EOF >heard", "EOF"),
        ("trap 'echo TERM >heard; exit' TERM; touch up; while :; do sleep 0.02; done", "TERM"),
    ],
)
def test_the_end_is_asked_for_before_it_is_forced(tmp_path: Path, script: str, heard: str) -> None:
    async def main() -> None:
        connection = McpConnection("x", "sh", ["-c", script], cwd=tmp_path, grace_s=0.6)
        task = asyncio.create_task(connection.connect())
        while not (tmp_path / "up").exists():  # noqa: ASYNC110 -- the clean run is the guard
            await asyncio.sleep(0.01)
        await connection.close()
        with pytest.raises(McpError):
            await task

    run(main())
    assert (tmp_path / "heard").read_text() == f"{heard}\n"


def test_close_while_several_callers_wait_for_the_connection() -> None:
    async def main(command: str) -> None:
        connection = McpConnection("x", "sh", ["-c", f"{command} & wait"], grace_s=0.2)
        tasks = [asyncio.create_task(connection.call("x")) for _ in range(3)]
        await asleep(command)
        await connection.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, McpError) and "was closed" in str(result) for result in results)
        assert not sleepers(command)

    run(main(nap()))


def test_a_server_at_work_ends() -> None:
    async def main() -> None:
        connection = scripted("deaf", grace_s=0.2)
        await connection.connect()
        held = asyncio.create_task(connection.call("hold"))
        await asyncio.sleep(0.05)
        await connection.close()
        with pytest.raises(McpError, match="was closed"):
            await held

    run(main())


def test_closed_is_closed_until_connect() -> None:
    async def main() -> None:
        connection = scripted()
        await connection.close()
        with pytest.raises(McpError, match="closed"):
            await connection.call("echo")
        await connection.connect()
        assert (await connection.call("echo")).ok
        await connection.close()
        await connection.close()

    run(main())


def test_another_event_loop_gets_a_new_process() -> None:
    connection = scripted()
    assert asyncio.run(connection.call("echo")).ok
    assert asyncio.run(connection.call("echo")).ok
    asyncio.run(connection.close())


def test_a_connection_that_nobody_closes_ends_with_the_program() -> None:
    import subprocess

    command = nap()
    program = (
        "import asyncio, sys; from agentlab.mcp import McpConnection\n"
        f"c = McpConnection('x', sys.executable, [{scripted()._args[0]!r}, 'stubborn', {command!r}])\n"
        "print(asyncio.run(c.call('echo')).text)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("{}\n", "")
    assert not sleepers(command)


# ---------------------------------------------------------------- the environment


def test_the_environment_is_passed_on_purpose_only() -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": "/h", "AGENT_API_KEY": "k", "OPENAI_API_KEY": "k", "LANG": "C.UTF-8"}
    env = json.loads(run(answer(scripted(environ=environ, env={"TOKEN": "t", "HOME": "/x"}), "env")).text)
    added = {"LC_CTYPE", "PWD", "SHLVL", "_"}  # what a Python or a shell gives itself
    assert {name: value for name, value in env.items() if name not in added} == {
        "PATH": os.environ["PATH"], "HOME": "/x", "LANG": "C.UTF-8", "TOKEN": "t",
    }  # fmt: skip


# ---------------------------------------------------------------- for long


@pytest.mark.soak
def test_two_thousand_failing_calls() -> None:
    async def main() -> None:
        async with scripted() as connection:
            for _ in range(1000):
                with pytest.raises(McpError):
                    await connection.call("error")
                assert (await connection.call("stderr")).ok

    run(main(), hang_guard_s=300)


async def hostile_seconds(seconds: float, seed: int) -> int:
    loop, calls = asyncio.get_running_loop(), 0
    end = loop.time() + seconds
    async with scripted("hostile", str(seed)) as connection:
        while loop.time() < end or not calls:
            assert json.loads((await connection.call("echo", {"n": calls})).text) == {"n": calls}
            if calls % 10 == 0:
                assert [tool["name"] for tool in await connection.list_tools()] == ["echo"]
            calls += 1
    return calls


def test_a_hostile_server_leaves_the_client_usable() -> None:
    async def main() -> None:
        async with scripted("hostile", "7") as connection:
            for n in range(100):
                assert json.loads((await connection.call("echo", {"n": n})).text) == {"n": n}
            assert connection.ignored > 50

    run(main())


@pytest.mark.soak
def test_a_hostile_server_for_a_minute() -> None:
    assert run(hostile_seconds(60, seed=1), hang_guard_s=120) > 100


def test_failures_are_messages_too() -> None:
    """What a trace shows of an error is the message itself."""
    seen: list[Any] = []
    fails(scripted(trace=lambda way, message: seen.append(message)), "error")
    assert seen[-1] == Failure(2, -32602, "no such tool")
