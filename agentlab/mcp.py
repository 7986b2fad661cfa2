"""MCP: tools from other programs. All servers behind one manager, their tools like any others.

    configuration files -> McpManager -> McpConnection -> one child process per server
    the model's call: mcp__clock__now -> the table: (clock, now) -> tools/call -> text

The model's name for a tool says which server it comes from, but nobody ever takes it apart: a table leads back. Chat
APIs refuse a whole request for one name with a dot in it, so names are made fit, always in the same way.

Nothing is started before it is needed. A server that fails is left out with a note, and the others work. (Seed 003,
MCP. There a name is split at its `__`, failures are silent, a list of tools is one page and is read once.)

| module | what is in it |
|---|---|
| `jsonrpc` | bytes to messages and back, without input or output |
| `childpipe`, `mcplink` | the child process; the conversation with it |
| `mcpclient` | one server: handshake, list of tools, calls, its end |
| `mcpresult`, `mcpconfig` | results as text; configuration files |
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentlab import jsonio
from agentlab.errors import AgentLabError, ToolError
from agentlab.jsonrpc import Event
from agentlab.language import say
from agentlab.mcpclient import CALL_S, CONNECT_S, GRACE_S, PROTOCOLS, McpConnection, child_environment
from agentlab.mcpconfig import Configs, ServerConfig, read_configs
from agentlab.mcplink import McpError
from agentlab.mcpresult import McpResult, describe, read_result
from agentlab.tools import Tool

__all__ = [
    "PROTOCOLS", "Configs", "McpConnection", "McpError", "McpManager", "McpResult", "ServerConfig", "Tools",
    "child_environment", "describe", "exposed_name", "read_configs", "read_result",
]  # fmt: skip

NAME_CHARS = 64
DESCRIPTION_CHARS = 2_000
SCHEMA_CHARS = 50_000
_HASH_CHARS = 8
_NOTE_CHARS = 600


def exposed_name(server: str, tool: str) -> str:
    """The name that the model sees: `mcp__server__tool`, of letters, digits, _ and -, 64 characters at most.

    It depends on nothing but these two names. One that had to be changed, or is ambiguous, ends with a hash of both.
    """
    fit = f"mcp__{_fit(server)}__{_fit(tool)}"
    ambiguous = "__" in server or server.endswith("_") or not server
    if fit == f"mcp__{server}__{tool}" and len(fit) <= NAME_CHARS and not ambiguous:
        return fit
    mark = hashlib.sha256(jsonio.dumps([server, tool]).encode()).hexdigest()[:_HASH_CHARS]
    fit = f"mcp__{_fit(server)[:24]}__{_fit(tool)}"
    return f"{fit[: NAME_CHARS - _HASH_CHARS - 1]}_{mark}"


def _fit(name: str) -> str:
    return re.sub("[^a-zA-Z0-9_-]", "_", name)


class Tools(list[Tool]):
    """The tools that are known now. `await` it to connect to the servers first, and hear what has changed."""

    def __init__(self, manager: McpManager) -> None:
        super().__init__(manager._tools.values())
        self._manager = manager

    def __await__(self) -> Generator[Any, None, list[Tool]]:
        yield from self._manager.connect().__await__()
        return list(self._manager._tools.values())


class McpManager:
    """All servers of a session. `environ` is the environment that variables in a configuration are filled in from.

    The limits in seconds and `roots` are those of `McpConnection`. `on_note(text)` hears every note when it is made;
    `notes` has them all. `trace(server, direction, message)` sees the conversations. A `with` block (async) ends all
    servers.
    """

    def __init__(
        self,
        configs: Configs,
        *,
        environ: Mapping[str, str] | None = None,
        roots: Iterable[str | Path] = (),
        connect_timeout_s: float = CONNECT_S,
        call_timeout_s: float | None = CALL_S,
        call_limit_s: float | None = None,
        grace_s: float = GRACE_S,
        on_note: Callable[[str], object] = lambda text: None,
        trace: Callable[[str, Literal["sent", "received"], Event], object] | None = None,
    ) -> None:
        self.pending = {config.name: config for config in configs.pending}
        """The project's servers that wait for `approve`."""
        self.table: dict[str, tuple[str, str]] = {}
        """From the names that the model sees to (server, the server's own name for the tool)."""
        self.failed: dict[str, str] = {}
        """Servers that are left out, and why. `retry` tries one again."""
        self.notes: list[str] = []
        self._environ = os.environ if environ is None else environ
        self._on_note, self._trace = on_note, trace
        self._limits: dict[str, Any] = {
            "roots": tuple(roots),
            "connect_timeout_s": connect_timeout_s,
            "call_timeout_s": call_timeout_s,
            "call_limit_s": call_limit_s,
            "grace_s": grace_s,
        }
        self._closed = False
        self._connecting: tuple[asyncio.AbstractEventLoop | None, asyncio.Lock] = None, asyncio.Lock()
        self._configs = {config.name: config for config in configs.servers}
        self._connections: dict[str, McpConnection] = {}
        self._tools: dict[str, Tool] = {}
        for note in configs.notes:
            self._note(note)

    @classmethod
    def from_config(
        cls,
        paths: str | Path | Iterable[str | Path],
        *,
        project: str | Path | None = None,
        approve: Callable[[ServerConfig], bool] | Iterable[str] = (),
        **options: Any,
    ) -> McpManager:
        """The servers of these files: the user's first, later ones win; see `read_configs`. Nothing is started.

        `options` are those of the class: limits, environ, on_note, trace.
        """
        known = approve if callable(approve) or isinstance(approve, str) else frozenset(approve)
        return cls(read_configs(paths, project=project, approve=known), **options)

    async def __aenter__(self) -> McpManager:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def approve(self, name: str) -> None:
        """Let a project's server start, in place of a user's one of this name. Raises AgentLabError if none waits."""
        if name not in self.pending:
            raise AgentLabError(
                f"No server named {name!r} waits for approval. Waiting: {', '.join(self.pending) or '-'}."
            )
        if name in self._connections:
            raise AgentLabError(f"Another server named {name!r} is connected. Approve before the first use.")
        self._configs[name] = self.pending.pop(name)
        self.failed.pop(name, None)

    def retry(self, name: str) -> None:
        """Forget that this server failed: the next use tries it again."""
        self.failed.pop(name, None)

    def tools(self) -> Tools:
        """The tools of all connected servers, for a `Registry`. `await manager.tools()` connects first.

        Their results are ordinary outputs. None counts as read-only, whatever its server says about it.
        """
        return Tools(self)

    async def connect(self) -> None:
        """Connect to every server that is not connected yet and has not failed; ask again where tools changed.

        Whoever asks while this goes on waits for it, so no server is tried twice at once.
        """
        loop = asyncio.get_running_loop()
        if self._connecting[0] is not loop:
            self._connecting = loop, asyncio.Lock()
        async with self._connecting[1]:
            if self._closed:
                raise McpError(
                    "The MCP servers of this session were closed. Make a new McpManager to start them again."
                )
            async with asyncio.TaskGroup() as group:
                for name in self._configs:
                    if name not in self.failed:
                        group.create_task(self._refresh(name))
            self._collect()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> McpResult:
        """Call a tool by the name that the model sees. A tool that fails gives a result that is not ok.

        Raises McpError for a name that nobody offers, and as `McpConnection.call` does.
        """
        if name not in self.table:
            await self.connect()
        if name not in self.table:
            known = ", ".join(list(self.table)[:50]) or "none"
            left_out = f" Servers that are left out: {', '.join(self.failed)}." if self.failed else ""
            raise McpError(f"There is no MCP tool named {name[:80]!r}. There are: {known}.{left_out}")
        server, tool = self.table[name]
        return await self._connections[server].call(tool, arguments)

    async def close(self) -> None:
        """End all servers, all at the same time, for good."""
        self._closed = True
        connections, self._connections = self._connections, {}
        self._tools, self.table = {}, {}
        async with asyncio.TaskGroup() as group:
            for connection in connections.values():
                group.create_task(connection.close())

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = []
        for name in [*self._configs, *(waiting for waiting in self.pending if waiting not in self._configs)]:
            offered = sum(server == name for server, _ in self.table.values())
            state = say("connected") if name in self._connections else say("not started")
            if name in self.failed:
                state = say("failed")
            if name in self.pending:
                state = say("waits for approval")
            rows.append([name, state, offered, self.failed.get(name, "")])
        return draw.table(rows, head=(say("server"), say("state"), say("tools"), say("why")))._repr_html_()

    async def _refresh(self, name: str) -> None:
        try:
            if name not in self._connections:
                config = self._configs[name].expanded(self._environ)
                self._connections[name] = McpConnection(
                    name,
                    config.command,
                    config.args,
                    config.env,
                    cwd=config.cwd,
                    environ=self._environ,
                    trace=partial(self._trace, name) if self._trace else None,
                    **self._limits,
                )
            await self._connections[name].list_tools()
        except AgentLabError as error:
            if broken := self._connections.pop(name, None):
                self._collect()
                await broken.close()
            self.failed[name] = str(error)
            self._note(f"{name[:80]!r} is left out: {error}")

    def _collect(self) -> None:
        """The tools of all servers, in the order of the configuration, each server's in its own order."""
        self._tools, self.table = {}, {}
        for server in self._configs:
            if connection := self._connections.get(server):
                for note in connection.notes:
                    self._note(f"{server[:80]!r}: {note}")
                for info in connection.tools:
                    self._add(server, info)

    def _add(self, server: str, info: dict[str, Any]) -> None:
        original = info["name"]
        name = exposed_name(server, original)
        problem = ""
        if not original:
            problem = "it has no name"
        elif name in self.table:
            problem = "another tool has its name"
        else:
            parameters = _parameters(info.get("inputSchema"))
            if len(jsonio.dumps(parameters)) > SCHEMA_CHARS:
                problem = f"its schema is longer than {SCHEMA_CHARS:,} characters"
        if problem:
            self._note(f"tool {original[:80]!r} of {server[:80]!r} is left out: {problem}")
            return
        said = info.get("description")
        description = said if isinstance(said, str) and said else f"{original} of the MCP server {server}"
        self.table[name] = server, original
        self._tools[name] = Tool(
            name, jsonio.sendable(description[:DESCRIPTION_CHARS]), parameters, self._handler(name)
        )

    def _handler(self, name: str) -> Callable[..., Any]:
        async def handler(**arguments: Any) -> str:
            result = await self.call(name, arguments)
            if not result.ok:
                raise ToolError(result.text)
            return result.text

        return handler

    def _note(self, text: str) -> None:
        text = text[:_NOTE_CHARS]
        if text in self.notes:
            return
        self.notes.append(text)
        with suppress(Exception):  # a listener's fault is not the server's
            self._on_note(text)


def _parameters(schema: Any) -> dict[str, Any]:
    """The tool's own schema. Where it is none that a chat API takes, one that allows every argument.

    JSON Schema lets in every name that a schema does not forbid. A `Registry` does so only where it is said; so it is
    said, and the server judges the arguments.
    """
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        schema = {}
    properties = schema.get("properties")
    fixed = {"type": "object", "properties": properties if isinstance(properties, dict) else {}}
    return {"additionalProperties": True, **schema, **fixed}
