"""The simulator behind httpx in this process, and behind a loopback server: real clients, real hang-ups."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from agentlab.errors import AgentLabError
from agentlab.messages import assistant, call, tool, user
from agentlab.simulator import Fault, Hangup, Simulator, run_server, serve
from agentlab.simulator.tokens import tokenize

GUARD_S = 20.0
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}]
ASKS = assistant("", call("call_1", "read_file", path="notes.txt"))
LONG = "word " * 50_000


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages) or [user("Go")], **more}


def here(simulator: Simulator, timeout: float | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://simulator/v1", transport=simulator.transport(), timeout=timeout)


def run(make: Any) -> Any:
    """Run a coroutine; the limit only keeps a hanging test from hanging for ever."""

    async def guarded() -> Any:
        async with asyncio.timeout(GUARD_S):
            return await make

    return asyncio.run(guarded())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


# --- in this process


def test_both_ways_give_the_bytes_of_the_core() -> None:
    script = ["Hello, wörld 🐙", ASKS]
    sent = [request(stream=True), request(user("Go"), assistant(script[0]), user("On"), tools=TOOLS)]
    core = Simulator(script)
    expected = [b"".join(core.respond(each).chunks) for each in sent]

    async def posts(client: httpx.AsyncClient) -> list[bytes]:
        async with client:
            return [(await client.post("/chat/completions", json=each)).content for each in sent]

    assert run(posts(here(Simulator(script, chunk=7)))) == expected
    with serve(Simulator(script)) as server:
        assert run(posts(httpx.AsyncClient(base_url=server.url))) == expected


def test_other_urls_and_other_bodies() -> None:
    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        async with client:
            return [
                await client.get("/models"),
                await client.post("/completions", json={}),
                await client.get("/chat/completions"),
                await client.post("/chat/completions", content=b"{not json"),
                await client.post("/chat/completions", content=b"[1]"),
                await client.post("/chat/completions", content=b'{"model": "\xff", "messages": "\\ud800"}'),
            ]

    simulator = Simulator()
    with serve(simulator) as server:
        for client in (here(simulator), httpx.AsyncClient(base_url=server.url)):
            answers = run(calls(client))
            assert [answer.status_code for answer in answers] == [200, 404, 404, 400, 400, 400]
            assert answers[0].json()["data"][0]["id"] == "offline"
            errors = [answer.json()["error"] for answer in answers[1:]]
            assert errors[0]["message"] == "Invalid URL (POST /v1/completions)"
            assert errors[2]["message"] == errors[3]["message"]
            assert errors[2]["message"].startswith("We could not parse the JSON body of your request. (HINT: ")
            assert errors[4]["param"] == "messages"


def test_refused_connection_and_broken_connection() -> None:
    async def calls(client: httpx.AsyncClient) -> list[bytes]:
        async with client:
            return [
                chunk
                async for chunk in (
                    await client.send(
                        client.build_request("POST", "/chat/completions", json=request(stream=True)), stream=True
                    )
                ).aiter_raw()
            ]

    with pytest.raises(httpx.ConnectError):
        run(calls(here(Simulator([Fault(refuse=True)]))))
    with pytest.raises(httpx.RemoteProtocolError):
        run(calls(here(Simulator([Fault(cut_at=300, step="Hello")]))))


def test_leaving_early_is_a_hangup_and_stops_the_answer() -> None:
    simulator = Simulator([LONG])

    async def leave() -> None:
        async with (
            here(simulator) as client,
            client.stream("POST", "/chat/completions", json=request(stream=True)) as got,
        ):
            seen = 0
            async for _ in got.aiter_raw():
                seen += 1
                if seen == 4:
                    break

    run(leave())
    assert simulator.hangups == [Hangup(request=0, produced=3, total=50_001)]
    assert simulator.usages[0]["completion_tokens"] == 3


def test_a_cancelled_task_is_a_hangup() -> None:
    simulator = Simulator([Fault(stall_at=700, step=LONG)])
    stalled = asyncio.Event()

    async def read() -> None:
        async with (
            here(simulator) as client,
            client.stream("POST", "/chat/completions", json=request(stream=True)) as got,
        ):
            async for _ in got.aiter_raw():
                stalled.set()

    async def scene() -> None:
        task = asyncio.create_task(read())
        await stalled.wait()
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []

    run(scene())
    assert len(simulator.hangups) == 1 and 0 < simulator.hangups[0].produced < 10


def test_a_stall_ends_with_the_clients_own_read_timeout() -> None:
    async def read() -> None:
        async with here(Simulator([Fault(stall_at=0)]), timeout=0.01) as client:
            await client.post("/chat/completions", json=request(stream=True))

    with pytest.raises(httpx.ReadTimeout):
        run(read())


def test_other_tasks_run_between_two_chunks() -> None:
    async def scene() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with here(Simulator(["one two three"])) as client:
            await client.post("/chat/completions", json=request(stream=True))
        ticking.cancel()
        return ticks

    assert run(scene()) >= 6


def test_the_client_talks_to_this_simulator() -> None:
    simulator = Simulator(["Hello, wörld"], chunk=5)

    async def scene() -> list[Any]:
        return [event async for event in simulator.client().stream([user("Go")], None)]

    assert run(scene())
    assert simulator.requests[0]["messages"] == [user("Go")]
    assert simulator.usages[0]["completion_tokens"] == len(tokenize("Hello, wörld"))


# --- over HTTP


def test_the_openai_sdk_streams_from_the_server() -> None:
    simulator = Simulator([assistant("Let me look. ", *ASKS["tool_calls"]), "It says 4711. 🐙"])

    async def scene(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            messages: list[Any] = [user("What is in notes.txt?")]
            async with client.chat.completions.stream(
                model="m", messages=messages, tools=TOOLS, stream_options={"include_usage": True}
            ) as stream:
                async for _ in stream:
                    pass
                first = await stream.get_final_completion()
            message = first.choices[0].message
            assert message.content == "Let me look. " and first.choices[0].finish_reason == "tool_calls"
            assert message.tool_calls and message.tool_calls[0].function.arguments == '{"path":"notes.txt"}'
            assert first.usage and first.usage.model_dump(exclude_none=True) == simulator.usages[0]
            sent = message.model_dump(exclude_none=True)
            for each in sent["tool_calls"]:
                each.pop("index", None)
                each["function"].pop("parsed_arguments", None)
            sent.pop("parsed", None)
            second = await client.chat.completions.create(
                model="m", messages=[*messages, sent, tool("call_1", "4711")], tools=TOOLS
            )
            assert second.choices[0].message.content == "It says 4711. 🐙"
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=[*messages, sent], tools=TOOLS)
            assert "The following tool_call_ids did not have response messages: call_1" in str(refused.value)
            assert refused.value.param == "messages"
            assert [model.id async for model in client.models.list()] == ["offline"]

    with serve(simulator) as server:
        run(scene(server.url))


def test_the_openai_sdk_names_the_faults() -> None:
    script = [Fault(status=429, retry_after=0.01), Fault(status=401), Fault(error_after=2, step="one two"), "again"]

    async def scene(url: str) -> None:
        client = openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0)
        ask = {"model": "m", "messages": [user("Go")]}
        async with client:
            with pytest.raises(openai.RateLimitError) as limited:
                await client.chat.completions.create(**ask)
            assert limited.value.response.headers["retry-after"] == "0.01"
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(**ask)
            with pytest.raises(openai.APIError, match="The server had an error"):
                async for _ in await client.chat.completions.create(**ask, stream=True):
                    pass
            answer = await client.chat.completions.create(**ask)
            assert answer.choices[0].message.content == "again"

    with serve(Simulator(script)) as server:
        run(scene(server.url))


def test_leaving_a_real_connection_stops_the_answer() -> None:
    simulator = Simulator([LONG])
    with serve(simulator) as server:
        with httpx.stream("POST", f"{server.url}/chat/completions", json=request(stream=True)) as got:
            next(got.iter_raw())
        until(lambda: len(simulator.hangups) == 1)
    hangup = simulator.hangups[0]
    assert 0 < hangup.produced < hangup.total == 50_001
    assert simulator.usages[0]["completion_tokens"] == hangup.produced


def test_a_stalled_real_connection_ends_when_the_client_leaves() -> None:
    simulator = Simulator([Fault(stall_at=600, step=LONG)])
    with serve(simulator) as server:
        with httpx.stream("POST", f"{server.url}/chat/completions", json=request(stream=True)) as got:
            seen = b""
            for chunk in got.iter_raw():
                seen += chunk
                if len(seen) == 600:
                    break
        until(lambda: len(simulator.hangups) == 1)


def test_a_cut_real_connection_breaks_in_the_client_and_is_no_hangup() -> None:
    simulator = Simulator([Fault(cut_at=600, step=LONG), "Hello"])
    with serve(simulator) as server:
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", f"{server.url}/chat/completions", json=request(stream=True)) as got,
        ):
            seen = b""
            for chunk in got.iter_raw():
                seen += chunk
        assert len(seen) <= 600
        assert httpx.post(f"{server.url}/chat/completions", json=request()).status_code == 200
    assert simulator.hangups == []


def test_a_refused_connection_is_an_empty_503_over_http() -> None:
    with serve(Simulator([Fault(refuse=True)])) as server:
        answer = httpx.post(f"{server.url}/chat/completions", json=request())
    assert (answer.status_code, answer.content) == (503, b"")


def test_many_clients_at_once() -> None:
    simulator = Simulator(lambda request: f"You said {request['messages'][0]['content']}.")

    async def scene(url: str) -> list[str]:
        async with httpx.AsyncClient(base_url=url) as client:
            posts = [client.post("/chat/completions", json=request(user(str(n)))) for n in range(20)]
            return [got.json()["choices"][0]["message"]["content"] for got in await asyncio.gather(*posts)]

    with serve(simulator) as server:
        assert run(scene(server.url)) == [f"You said {n}." for n in range(20)]
    assert len(simulator.requests) == len(simulator.usages) == 20


def test_the_server_stops_with_its_block_and_leaves_nothing_behind() -> None:
    before = threading.active_count()
    simulator = Simulator([Fault(stall_at=0)])
    with serve(simulator) as server:
        open_connection = socket.create_connection((server.host, server.port))
        body = json.dumps(request(stream=True)).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        open_connection.sendall(head + body)
        until(lambda: len(simulator.requests) == 1)
    assert threading.active_count() == before
    open_connection.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/models")


def test_a_port_in_use_is_one_clear_line() -> None:
    with serve(Simulator()) as server:
        for start in (
            lambda: serve(Simulator(), port=server.port).__enter__(),
            lambda: run_server(Simulator(), "127.0.0.1", server.port),
        ):
            with pytest.raises(AgentLabError, match=rf"^Cannot listen on 127\.0\.0\.1:{server.port} .*another port.*$"):
                start()
    with pytest.raises(AgentLabError, match="Cannot listen on"):
        run_server(Simulator(), "127.0.0.1", 99_999)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(AgentLabError, match=r"agentlab-kernel\[serve\]"), serve(Simulator()):
        pass


def test_run_server_serves_until_it_is_interrupted() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from agentlab.simulator import Simulator, run_server; run_server(Simulator(), '127.0.0.1', {port})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:

        def up() -> bool:
            assert process.poll() is None, process.communicate()[0].decode()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
            except httpx.ConnectError:
                return False

        until(up)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output) == (0, b"")


def test_the_core_needs_no_http() -> None:
    code = (
        "import sys; sys.modules['httpx'] = sys.modules['uvicorn'] = sys.modules['starlette'] = None\n"
        "from agentlab.simulator.core import Simulator\n"
        "ask = {'model': 'm', 'messages': [{'role': 'user', 'content': 'Go'}]}\n"
        "print(Simulator(['Hello']).respond(ask).status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert done.stdout == "200\n", done.stderr
