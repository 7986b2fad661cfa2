"""The conversation with one running MCP server: a `jsonrpc.Peer` on top of a `childpipe.Child`.

    request -> Peer.ask -> Child.write ......... server ......... Child -> Peer.feed -> the future of that request
                                                                              -> ping, roots/list: answered at once
                                                                              -> any other request: refused, -32601

Answers may come in any order. A request that is cancelled (Stop, Interrupt) or waits too long is called off at the
server, and its late answer means nothing. Progress gives a request more time as long as its number grows, and never
more than the limit for the whole. Whatever ends the server ends every request that waits for it. (MCP, "Progress",
"Timeouts".)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from agentlab.childpipe import Child
from agentlab.errors import ToolError
from agentlab.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Answer,
    Event,
    Failure,
    Message,
    Noise,
    Notice,
    Peer,
    Request,
    encode,
)

Progress = Callable[[float, float | None, str], object]
Trace = Callable[[Literal["sent", "received"], Event], object]

_LOOK_S = 0.5  # how often a request that waits looks at the clock and at the child
_QUEUE_BYTES = 1024 * 1024
_SAID_CHARS = 1000


class McpError(ToolError):
    """An MCP server could not be started, ended, did not answer in time, or answered with a JSON-RPC error.

    `code` is that error's code, None for all else.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class _Waiting:
    answer: asyncio.Future[Any]
    since: float
    on_progress: Progress | None
    done: float = -inf


class Link:
    """One server process from its start to its end. Must be made, used and closed in one event loop.

    `on_change` is called with the method of each `list_changed` notification, `trace` with every message that is sent
    or received, noise included. Raises OSError or ValueError when the process cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path | None = None,
        roots: Iterable[str | Path] = (),
        max_line_bytes: int,
        secrets: Iterable[str] = (),
        on_change: Callable[[str], object] = lambda method: None,
        trace: Trace | None = None,
    ) -> None:
        self.name = name
        self.ignored = 0
        self.ended = False
        self._how = ""
        self._reaper: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._peer = Peer(max_line_bytes=max_line_bytes)
        self._waiting: dict[int, _Waiting] = {}
        self._roots = [_root(Path(root)) for root in roots]
        self._secrets = sorted((text for text in secrets if len(text) >= 4), key=len, reverse=True)
        self._on_change, self._trace = on_change, trace
        self.child = Child(
            command, args, env=env, cwd=cwd, on_output=lambda data: self._read(self._peer.feed(data)), on_end=self._end
        )

    @property
    def alive(self) -> bool:
        """Whether requests can be sent."""
        return not self.ended and self.child.exit_code is None

    @property
    def stderr_tail(self) -> str:
        """The end of what the server wrote to stderr, without the secrets that it was given."""
        return self.hide(self.child.stderr_tail)

    def hide(self, text: str) -> str:
        """The text without the values that the server was given in its environment."""
        for secret in self._secrets:
            text = text.replace(secret, "[hidden]")
        return text

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout_s: float | None,
        limit_s: float | None = None,
        on_progress: Progress | None = None,
        progress: Literal["asked", "none"] = "none",
    ) -> Any:
        """Send a request and wait for its result.

        `timeout_s` seconds without an answer are too long, and without progress that grows if progress is asked for;
        `limit_s` seconds in all are too long in any case. Raises McpError. A cancellation tells the server and passes
        through.
        """
        request = self._peer.ask(method, params)
        if progress == "asked":
            request.params["_meta"] = {"progressToken": request.id}
        assert isinstance(request.id, int)
        waiting = self._waiting[request.id] = _Waiting(self._loop.create_future(), self._loop.time(), on_progress)
        try:
            self._send(request)
            await self._wait(waiting, timeout_s, limit_s)
            return waiting.answer.result()
        except ConnectionError:
            raise await self._obituary() from None
        except (TypeError, ValueError) as error:
            raise McpError(f"The arguments cannot be sent as JSON: {error}. Send plain JSON values.") from None
        except (asyncio.CancelledError, TimeoutError) as error:
            if method != "initialize":  # the one request that must not be called off
                self.notify("notifications/cancelled", {"requestId": request.id, "reason": "no longer needed"})
            if isinstance(error, TimeoutError):
                unknown = " Its effects are unknown: look before you try again." if method == "tools/call" else ""
                raise McpError(
                    f"MCP server {self.name!r} did not answer {method} {error}, and was told to drop it.{unknown}"
                ) from None
            raise
        finally:
            del self._waiting[request.id]
            self._peer.forget(request.id)

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification. Nothing happens when the server has ended."""
        with suppress(ConnectionError):
            self._send(Notice(method, params or {}))

    async def close(self, grace_s: float) -> None:
        """End the server politely, with `grace_s` seconds before each harder step. Requests that wait fail."""
        self._end("was closed")
        if self._reaper:
            self._reaper.cancel()
        await self.child.close(grace_s)

    def kill(self) -> None:
        """End the server at once."""
        self._end("was closed")
        self.child.kill()

    async def _wait(self, waiting: _Waiting, timeout_s: float | None, limit_s: float | None) -> None:
        timeout_s, limit_s = inf if timeout_s is None else timeout_s, inf if limit_s is None else limit_s
        last = waiting.since + limit_s
        while not waiting.answer.done():
            exited = self.child.exit_code is not None
            left_s = min(waiting.since + timeout_s, last) - self._loop.time()
            await asyncio.wait([waiting.answer], timeout=max(0, min(_LOOK_S, left_s)))
            if waiting.answer.done():
                break
            if exited:  # and a grandchild holds the pipe open, or we would have seen its end
                raise ConnectionError
            now = self._loop.time()
            if now >= last:
                raise TimeoutError(f"within {seconds(limit_s)} in all")
            if now >= waiting.since + timeout_s:
                raise TimeoutError(f"within {seconds(timeout_s)}")

    def _send(self, message: Message) -> None:
        line = encode(message)
        if self.ended:
            raise ConnectionError
        self._tell("sent", message)
        self.child.write(line)

    def _reply(self, message: Message) -> None:
        """Unless the server asks and asks, and never reads an answer."""
        if self.child.queued_bytes < _QUEUE_BYTES:
            self._send(message)

    def _read(self, events: list[Event]) -> None:
        for event in events:
            self._tell("received", event)
            if self.ended:
                return
            if isinstance(event, Request):
                self._serve(event)
            elif isinstance(event, Notice):
                self._note(event)
            elif isinstance(event, Noise):
                self.ignored += 1
            else:
                self._settle(event)

    def _serve(self, request: Request) -> None:
        if request.id is None:
            self._reply(Failure(None, INVALID_REQUEST, "Invalid Request: its id is neither a number nor a text"))
        elif request.method == "ping":
            self._reply(Answer(request.id, {}))
        elif request.method == "roots/list":
            self._reply(Answer(request.id, {"roots": self._roots}))
        else:
            self._reply(Failure(request.id, METHOD_NOT_FOUND, f"Method not found: {request.method[:80]}"))

    def _note(self, notice: Notice) -> None:
        if notice.method.endswith("/list_changed"):
            self._on_change(notice.method)
        elif notice.method == "notifications/progress":
            self._progress(notice.params)

    def _progress(self, params: dict[str, Any]) -> None:
        token = str(params.get("progressToken"))
        waiting = next((found for id, found in self._waiting.items() if str(id) == token), None)
        if waiting is None:
            return
        done, total, said = params.get("progress"), params.get("total"), params.get("message")
        if not isinstance(done, int | float):
            return
        if done > waiting.done:  # the same number again is a sign of life, and of no progress
            waiting.done, waiting.since = done, self._loop.time()
        if waiting.on_progress:
            with suppress(Exception):  # a listener's fault is not the call's
                waiting.on_progress(
                    done, total if isinstance(total, int | float) else None, said if isinstance(said, str) else ""
                )

    def _settle(self, event: Answer | Failure) -> None:
        waiting = self._waiting.get(event.id) if isinstance(event.id, int) else None
        if waiting is None or waiting.answer.done():
            return
        if isinstance(event, Answer):
            waiting.answer.set_result(event.result)
            return
        code = "" if event.code is None else f" ({event.code})"
        said = self.hide(event.message)[:_SAID_CHARS]
        waiting.answer.set_exception(
            McpError(f"MCP server {self.name!r} answered with an error{code}: {said}", code=event.code)
        )

    def _end(self, how: str = "") -> None:
        """No answer comes any more, but for a last line without its end."""
        if not self.ended:
            self._read(self._peer.close())
            self._how, self.ended = how, True
            if not how:
                self._reaper = self._loop.call_later(_LOOK_S, self.child.kill)  # and what it may have left running
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionError())

    def _tell(self, direction: Literal["sent", "received"], event: Event) -> None:
        if self._trace:
            with suppress(Exception):
                self._trace(direction, event)

    async def _obituary(self) -> McpError:
        """What is known of a server that has ended."""
        if not self._how:
            await self.child.ended(_LOOK_S)
            self.child.drain_errors()
        code, said = self.child.exit_code, self.stderr_tail.strip()
        how = self._how or ("closed its output" if code is None else f"ended with exit code {code}")
        if said:
            said = f" The end of its stderr: {said[-_SAID_CHARS:]}"
        return McpError(
            f"MCP server {self.name!r} {how} before it answered. Its effects are unknown: "
            f"look before you try again.{said}"
        )


def seconds(span_s: float) -> str:
    """A time as a sentence says it: "1 second", "0.4 seconds"."""
    span = f"{round(span_s, 2):g}"
    return f"{span} second" if span == "1" else f"{span} seconds"


def _root(folder: Path) -> dict[str, str]:
    return {"uri": folder.absolute().as_uri(), "name": folder.name or str(folder)}
