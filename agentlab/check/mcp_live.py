"""The live part of chapter 11's exercises: the smallest client, with the reader's code in it, and the agent above it.

    the model's call: now -> ask_clock -> a child process, `mcp_server.py`
                                bytes -> the reader's lines -> the reader's answer -> the child

Beside the reader's code runs `jsonrpc.Peer` on the same bytes: it knows when an answer has come and was not seen, so
nobody has to wait for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentlab.check.report import Live, short
from agentlab.childpipe import Child
from agentlab.errors import ToolError
from agentlab.jsonrpc import Answer, Failure, Notice, Peer, encode
from agentlab.loop import Turn, run_turn
from agentlab.mcp import child_environment, read_result
from agentlab.messages import Message, assistant, call, user
from agentlab.simulator import Simulator
from agentlab.tools import Registry

SERVER = Path(__file__).with_name("mcp_server.py")
RIGHT = "The clock says 09:00 on Monday."
GUARD_S = 30.0
GRACE_S = 1.0


class SmallClient:
    """One conversation. `lines` has `feed(chunk) -> messages`, `answer(message)` gives the reply or None.

    Must be made in the loop that is to serve it.
    """

    def __init__(self, lines: Any, answer: Callable[[Any], Any]) -> None:
        self._lines, self._answer = lines, answer
        self._truth = Peer()
        self._asked: int | float | str | None = -1
        self._why = ""  # what ended the conversation
        self._future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._future.set_result({})  # nothing is waited for yet
        self.child = Child(
            sys.executable,
            [str(SERVER)],
            env=child_environment({}, os.environ),
            cwd=None,
            on_output=self._read,
            on_end=self._ended,
        )

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises ToolError."""
        if self._why:
            raise ToolError(self._why)
        request = self._truth.ask(method, params)
        self._asked, self._future = request.id, asyncio.get_running_loop().create_future()
        self.child.write(encode(request))
        return await self._future

    def notify(self, method: str) -> None:
        """Send a notification."""
        self.child.write(encode(Notice(method)))

    def _read(self, data: bytes) -> None:
        try:
            for message in self._lines.feed(data):
                self._take(message)
        except Exception as error:
            self._fail(_blamed(error))
        came = [event for event in self._truth.feed(data) if isinstance(event, Answer | Failure)]
        if came and not self._future.done():
            self._fail("The server's answer had come, and was not among the messages that were read.")

    def _take(self, message: Any) -> None:
        reply = self._answer(message)
        if reply is not None:
            self.child.write(json.dumps(reply).encode() + b"\n")
        mine = isinstance(message, dict) and "method" not in message and message.get("id") == self._asked
        if mine and not self._future.done():
            self._future.set_result(message)

    def _ended(self) -> None:
        said = self.child.stderr_tail.strip().splitlines() or ["it did not say why"]
        self._fail(f"The server left: {said[-1]}")

    def _fail(self, why: str) -> None:
        self._why = self._why or why
        if not self._future.done():
            self._future.set_exception(ToolError(self._why))


async def ask_clock(lines: Any, answer: Callable[[Any], Any]) -> str:
    """What the clock says, over a new connection, which is closed behind it. Raises ToolError."""
    client = SmallClient(lines, answer)
    try:
        async with asyncio.timeout(GUARD_S):
            info = {"name": "small", "version": "1"}
            await client.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
            client.notify("notifications/initialized")
            await client.ask("tools/list")
            reply = await client.ask("tools/call", name="now", arguments={})
            return read_result(reply.get("result")).text
    except TimeoutError:
        raise ToolError("The conversation did not come to an end.") from None
    finally:
        await client.child.close(GRACE_S)


def _blamed(error: Exception) -> str:
    """An error of the reader's code as the tool reports it to the model: in English, whatever the reader's language."""
    return f"Your code raised: {type(error).__name__}: {short(str(error))}"


def _story(request: dict[str, Any]) -> Message | str:
    """Ask the clock, then say what came of it."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    if not results:
        return assistant("I look at the clock.", call("call_1", "now"))
    if "09:00" in results[-1]:
        return f"The clock says {' '.join(results[-1].split())}."
    return f"I cannot tell the time. {results[-1]}"


def turn(make_lines: Callable[[], Any], answer: Callable[[Any], Any]) -> Turn:
    """A turn of an agent whose one tool asks the clock."""
    registry = Registry()

    @registry.tool(read_only=True)
    async def now() -> str:
        """The time on the clock."""
        try:
            lines = make_lines()
        except Exception as error:
            raise ToolError(_blamed(error)) from None
        return await ask_clock(lines, answer)

    return run_turn([user("What time is it?")], Simulator(_story).client(), registry)


def live(running: Turn) -> Live:
    """Run the turn and say how it ended."""
    from agentlab.widgets.sync import run_sync

    run_sync(running.run())
    history = tuple(running.history)
    said = str(history[-1].get("content") or "")
    return Live(said == RIGHT, short(said), history)
