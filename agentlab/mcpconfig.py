"""Which MCP servers there are: configuration files, from the user's to the project's.

    [user file, project file, .mcp.json] -> read_configs -> Configs(servers, pending, notes)

A file holds `{"mcpServers": {name: {"command", "args", "env", "cwd"}}}`, or the inner object alone. Of two servers of
one name the one in the later file wins; `"disabled": true` there takes the earlier one out. A project's file came with
somebody's code: what it names is **pending**, and starts nothing until a person has approved it; until then it neither
replaces the user's server of its name nor disables it.

Nothing here fails: what cannot be read, or makes no sense, becomes a note for people, and the rest counts. `${NAME}`
and `${NAME:-default}` are filled in at the last moment, so that no key stands in a config that is shown. (Seed 003.)
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlab import jsonio
from agentlab.errors import AgentLabError

MAX_FILE_BYTES = 1024 * 1024
_NEAR_MISSES = ("mcpserver", "mcpservers", "mcp", "server", "servers")
_SERVER_KEYS = ("command", "cmd", "args", "url", "serverUrl", "httpUrl", "disabled")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class ServerConfig:
    """One server as a file describes it, variables not filled in. The values of `env` are not shown."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    source: str = ""
    """The file's name."""
    project: bool = False
    """It came with a project, so a person has to approve it."""

    @property
    def digest(self) -> str:
        """Changes with everything that is run: what an approval that is kept for later should hold on to."""
        what = [self.name, self.command, list(self.args), dict(self.env), self.cwd]
        return hashlib.sha256(jsonio.dumps(what, sort_keys=True).encode()).hexdigest()[:16]

    def expanded(self, environ: Mapping[str, str]) -> ServerConfig:
        """With the variables filled in. Raises AgentLabError for one that is not set and has no default."""

        def fill(text: str) -> str:
            return _VARIABLE.sub(value, text)

        def value(found: re.Match[str]) -> str:
            name, default = found.groups()
            if environ.get(name) or (default is None and name in environ):
                return environ[name]
            if default is None:
                raise AgentLabError(f"the variable {name} is not set. Set it, or write ${{{name}:-default}}.")
            return str(default)

        env = {name: fill(text) for name, text in self.env.items()}
        cwd = None if self.cwd is None else fill(self.cwd)
        return ServerConfig(
            self.name, fill(self.command), tuple(map(fill, self.args)), env, cwd, self.source, self.project
        )


class _Disabled(ServerConfig):
    """An entry that is not to be started, and neither is one of its name in an earlier file."""


Approve = Callable[[ServerConfig], bool] | Collection[str]


@dataclass(frozen=True)
class Configs:
    """The servers that may be started, those that wait for approval, and what people should know."""

    servers: list[ServerConfig]
    pending: list[ServerConfig]
    notes: list[str]


def read_configs(
    paths: str | Path | Iterable[str | Path], *, project: str | Path | None = None, approve: Approve = ()
) -> Configs:
    """Read configuration files (or one), later ones win. A file that does not exist is none.

    A file is the project's when it is named `.mcp.json` or lies in the folder `project` (None: the current one).
    `approve` says which of its servers may start: names or digests, or a function, which is asked once for each and
    whose failure means no.
    """
    folder = Path.cwd() if project is None else Path(project)
    servers: dict[str, ServerConfig] = {}
    pending: dict[str, ServerConfig] = {}
    notes: list[str] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        foreign = _inside(path, folder)
        for config in _read(path, foreign, notes):
            name, earlier = config.name, servers.get(config.name)
            counts = not foreign or _approved(config, approve)
            if isinstance(config, _Disabled):
                pending.pop(name, None)
                if counts or earlier is None or earlier.project:
                    servers.pop(name, None)
                    notes.append(f"{name[:80]!r} in {config.source} was skipped: it is disabled")
                else:
                    notes.append(f"{name[:80]!r} stays, though {config.source} disables it: your approval is needed")
            elif counts:
                servers.pop(name, None)
                servers[name] = config
                pending.pop(name, None)
            else:
                pending[name] = config
    notes += [
        f"{config.name[:80]!r} in {config.source} is not started: a project's server needs your approval first"
        for config in pending.values()
    ]
    return Configs(list(servers.values()), list(pending.values()), notes)


def _inside(path: Path, folder: Path) -> bool:
    """Whether a file is the project's, by its name or by what a link leads to. One that cannot be told is."""
    try:
        found = ((path.absolute(), folder.absolute()), (path.resolve(), folder.resolve()))
    except (OSError, RuntimeError, ValueError):  # links in a circle, a null byte
        return True
    return any(file.name.lower() == ".mcp.json" or file.is_relative_to(place) for file, place in found)


def _approved(config: ServerConfig, approve: Approve) -> bool:
    if isinstance(approve, str):  # of which any part would count as a name
        return approve in (config.name, config.digest)
    if not callable(approve):
        return config.name in approve or config.digest in approve
    try:  # a disabled one starts nothing, so there is nothing to ask
        return not isinstance(config, _Disabled) and approve(config) is True
    except Exception:
        return False


def _read(path: Path, foreign: bool, notes: list[str]) -> list[ServerConfig]:
    try:
        content = jsonio.loads(_bytes_of(path).decode("utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        notes.append(f"{path.name} was skipped: {reason}")
        return []
    named = content.get("mcpServers", content)
    if not isinstance(named, dict):
        notes.append(f"{path.name} was skipped: mcpServers is no object")
        return []
    if named is content:  # the inner object alone, or settings of another kind
        named = {name: entry for name, entry in content.items() if _looks_like_a_server(entry)}
        if wrong := [key for key in content if key not in named and re.sub("[-_ ]", "", key.lower()) in _NEAR_MISSES]:
            notes.append(f"{path.name} has its servers under {wrong[0][:80]!r}: none is read. Write mcpServers.")
    found = []
    for name, entry in named.items():
        try:
            found.append(_server(name, entry, path.name, foreign))
        except ValueError as error:
            notes.append(f"{name[:80]!r} in {path.name} was skipped: {error}")
    return found


def _bytes_of(path: Path) -> bytes:
    """A file's bytes. Never waits: for a pipe that nobody writes to, for a device. Raises OSError and ValueError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
    return data


def _looks_like_a_server(entry: Any) -> bool:
    return isinstance(entry, dict) and any(key in entry for key in _SERVER_KEYS)


def _server(name: str, entry: Any, source: str, foreign: bool) -> ServerConfig:
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    if name and entry.get("disabled") in (True, "true"):
        return _Disabled(name, "", source=source, project=foreign)
    if "command" not in entry and "url" in entry:
        raise ValueError("it has a url, and only servers with a command (stdio) are supported")
    command, args, env, cwd = entry.get("command"), entry.get("args") or [], entry.get("env") or {}, entry.get("cwd")
    if not name or not isinstance(command, str) or not command.strip():
        raise ValueError("it needs a name and a command, a text")
    if not isinstance(args, list) or not all(isinstance(item, str) for item in args):
        raise ValueError("args must be a list of texts")
    if not isinstance(env, dict) or not all(type(value) in (str, int) for value in env.values()):
        raise ValueError("env must be an object of texts")
    if not isinstance(cwd, str | None):
        raise ValueError("cwd must be a text")
    return ServerConfig(
        name, command, tuple(args), {key: str(value) for key, value in env.items()}, cwd, source, foreign
    )
