"""A connection to one MCP server: started when it is first used, started again when it has crashed.

    initialize -> its version and what it can do -> notifications/initialized -> tools/list, page by page -> ready
    call -> tools/call -> McpResult                                            close -> the server and its children end

The server gets an environment that is made for it: a few names that every program needs, and what its configuration
names. Keys of the agent never get there by accident. (MCP, "Lifecycle", "Tools"; seed 003, connection and 15 s.)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlab import __version__
from agentlab.jsonrpc import MAX_LINE_BYTES, METHOD_NOT_FOUND
from agentlab.mcplink import Link, McpError, Progress, Trace, seconds
from agentlab.mcpresult import McpResult, read_result

PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
MAX_PAGES = 200
MAX_TOOLS = 5_000
CONNECT_S = 15.0
CALL_S = 300.0
LIMIT_CALLS = 10
GRACE_S = 1.0


def child_environment(extra: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a server: the names in PASSED_ON as `environ` has them, and `extra`."""
    return {name: environ[name] for name in PASSED_ON if name in environ} | dict(extra)


class McpConnection:
    """One server. Nothing runs until `connect`, `list_tools` or `call` needs it.

    `env` is what the server gets beside the few names that every program needs. `roots` are folders that it may be
    told of. `connect_timeout_s` bounds start, handshake and the list of tools together; `call_timeout_s` a call
    that neither answers nor reports progress (None: no limit); `call_limit_s` a call in all, whatever it reports
    (None: 10 times `call_timeout_s`). `grace_s` is how long the server has for each polite step of its end.
    `trace(direction, message)` sees the conversation. A `with` block (async) closes it.
    """

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
        roots: Iterable[str | Path] = (),
        connect_timeout_s: float = CONNECT_S,
        call_timeout_s: float | None = CALL_S,
        call_limit_s: float | None = None,
        grace_s: float = GRACE_S,
        max_line_bytes: int = MAX_LINE_BYTES,
        trace: Trace | None = None,
    ) -> None:
        self.name = name
        self.tools: list[dict[str, Any]] = []
        """What the server offers, as it said it when it was last asked."""
        self.server: dict[str, Any] = {}
        """The server's answer to `initialize`: protocolVersion, capabilities, serverInfo, instructions."""
        self.notes: list[str] = []
        """What was odd about the last list of tools, for people."""
        self.stale = False
        """The server has said that its list of tools has changed."""
        self._command, self._args, self._cwd = command, tuple(args), cwd
        self._env = dict(env or {})
        self._environ = os.environ if environ is None else environ
        self._roots = tuple(roots)
        self._connect_timeout_s, self._call_timeout_s, self._grace_s = connect_timeout_s, call_timeout_s, grace_s
        if call_limit_s is None and call_timeout_s is not None:
            call_limit_s = LIMIT_CALLS * call_timeout_s
        self._call_limit_s = call_limit_s
        self._max_line_bytes = max_line_bytes
        self._trace = trace
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._failure: McpError | None = None
        self._closed = False

    async def __aenter__(self) -> McpConnection:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether the server runs and has shaken hands."""
        return self._link is not None and self._link.alive and bool(self.server)

    @property
    def stderr_tail(self) -> str:
        """The last 8,192 bytes of the server's stderr, without the values that its configuration gave it."""
        return self._link.stderr_tail if self._link else ""

    @property
    def ignored(self) -> int:
        """How many lines of its stdout were no message, or answered nothing."""
        return self._link.ignored if self._link else 0

    async def connect(self) -> None:
        """Start the server, shake hands, list its tools; nothing if that is done. Raises McpError when it fails.

        Everybody who asks while an attempt runs gets what came of this one.
        """
        self._closed = False
        await self._live()

    async def list_tools(self) -> list[dict[str, Any]]:
        """The tools, asked for again if the server has said that they changed."""
        link = await self._live()
        if self.stale:
            await self._list(link, self._end_of_start())
        return self.tools

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, on_progress: Progress | None = None
    ) -> McpResult:
        """Call a tool by the server's own name for it.

        A tool that says it failed gives a result that is not `ok`. Raises McpError for everything else: a JSON-RPC
        error (with its code), a server that ended or does not answer. A cancellation (Stop) calls it off there too.
        `on_progress(done, total or None, message)` hears how far it is.
        """
        link = await self._live()
        params = {"name": tool, "arguments": dict(arguments or {})}
        result = await link.request(
            "tools/call",
            params,
            timeout_s=self._call_timeout_s,
            limit_s=self._call_limit_s,
            on_progress=on_progress,
            progress="asked",
        )
        return read_result(result)

    async def close(self) -> None:
        """End the server and all that it started: its stdin ends, then SIGTERM, then SIGKILL. `connect` starts anew."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None and self._loop is asyncio.get_running_loop():
            await link.close(self._grace_s)
        elif link is not None:
            link.kill()

    async def _live(self) -> Link:
        if self._closed:
            raise McpError(f"The connection to MCP server {self.name!r} was closed. Call connect() to start it again.")
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._drop()  # it belonged to a loop that has ended
            self._loop, self._connecting = loop, asyncio.Lock()
        if self._link is not None and self.connected:
            return self._link
        failure = self._failure
        async with self._connecting:
            if self._closed:  # while this waited for its turn
                raise McpError(f"The connection to MCP server {self.name!r} was closed.")
            if self._link is not None and self.connected:
                return self._link
            if self._failure is not None and self._failure is not failure:  # the attempt that this waited for
                raise McpError(str(self._failure), code=self._failure.code)
            self._drop()
            try:
                return await self._start()
            except McpError as error:
                self._failure = error
                raise

    def _end_of_start(self) -> float:
        return asyncio.get_running_loop().time() + self._connect_timeout_s

    def _drop(self) -> None:
        link, self._link, self.server = self._link, None, {}
        if link is not None:
            link.kill()

    async def _start(self) -> Link:
        try:
            link = self._link = Link(
                self.name,
                self._command,
                self._args,
                env=child_environment(self._env, self._environ),
                cwd=self._cwd,
                roots=self._roots,
                max_line_bytes=self._max_line_bytes,
                secrets=self._env.values(),
                on_change=self._changed,
                trace=self._trace,
            )
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise McpError(
                f"MCP server {self.name!r} cannot be started: {self._command[:200]}: {reason}. "
                "Check its command, and that the program is installed."
            ) from None
        ready = False
        end = self._end_of_start()
        try:
            await self._shake_hands(link, end)
            await self._list(link, end)
            ready = True
            return link
        except McpError:
            if not link.alive or _left(end):
                raise
            said = link.stderr_tail.strip()[-500:]
            raise McpError(
                f"MCP server {self.name!r} was not ready within {seconds(self._connect_timeout_s)}. Run its command "
                f"in a terminal to see why{f'; the end of its stderr: {said}' if said else '.'}"
            ) from None
        finally:
            if not ready:
                self.server = {}
                if self._link is link:  # else close() is about to end it politely
                    link.kill()

    async def _shake_hands(self, link: Link, end: float) -> None:
        params = {
            "protocolVersion": PROTOCOLS[0],
            "capabilities": {"roots": {}} if self._roots else {},
            "clientInfo": {"name": "agentlab", "version": __version__},
        }
        answer = await link.request("initialize", params, timeout_s=_left(end))
        if not isinstance(answer, dict):
            raise McpError(f"MCP server {self.name!r} answered initialize with no object. Is it an MCP server?")
        version = answer.get("protocolVersion", PROTOCOLS[0])
        if version not in PROTOCOLS:
            raise McpError(
                f"MCP server {self.name!r} speaks protocol {str(version)[:40]!r}; here it is {', '.join(PROTOCOLS)}. "
                "Use a version of the server that speaks one of these."
            )
        link.notify("notifications/initialized")
        self.server = {**answer, "protocolVersion": version}

    async def _list(self, link: Link, end: float) -> None:
        """All pages, as far as they come and make sense; a note says why a list is not whole.

        A cursor that comes again, no end of pages, and a page that does not come until `end` all end the list.
        """
        self.stale = False
        tools: list[dict[str, Any]] = []
        notes: list[str] = []
        cursor, seen = "", set[str]()
        known: dict[str, dict[str, Any]] = {}
        for page in range(MAX_PAGES + 1):
            if page == MAX_PAGES or len(tools) > MAX_TOOLS:
                notes.append(f"its list of tools has no end: the first {len(tools[:MAX_TOOLS])} are used")
                break
            try:
                params = {"cursor": cursor} if cursor else {}
                answer = await link.request("tools/list", params, timeout_s=_left(end))
            except McpError as error:
                if error.code is None and not (page and link.alive):
                    raise
                if error.code != METHOD_NOT_FOUND or page:
                    notes.append(f"page {page + 1} of its tools failed: {error}"[:300])
                break
            answer = answer if isinstance(answer, dict) else {}
            found = answer.get("tools")
            if not isinstance(found, list):
                notes.append("it answered tools/list without a list of tools")
                break
            named = [tool for tool in found if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
            tools += [tool for tool in named if known.get(tool["name"]) != tool]  # not what a page before had
            known |= {tool["name"]: tool for tool in named}
            following = answer.get("nextCursor")
            if following is None or following == "":
                break
            if not isinstance(following, str):
                notes.append(f"its nextCursor is no text: the {len(tools)} tools found up to then are used")
                break
            if following in seen:
                notes.append(f"its list of tools goes in circles: the {len(tools)} found up to then are used")
                break
            seen.add(following)
            cursor = following
        self.tools, self.notes = tools[:MAX_TOOLS], notes

    def _changed(self, method: str) -> None:
        if method == "notifications/tools/list_changed":
            self.stale = True


def _left(end: float) -> float:
    """The seconds until then, on the clock of the event loop."""
    return max(0.0, end - asyncio.get_running_loop().time())
