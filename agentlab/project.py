"""An agent in a folder: its tools work there, and a hidden folder inside of it keeps its sessions and long outputs.

    folder/                      what the model's tools read and write
    folder/.agentlab/sessions/   one log per session
    folder/.agentlab/spill/      long outputs of all sessions, which may share files through forks

`open_agent` wires every part; `without` names those that are left out, to see what they are good for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Literal

from agentlab.agent import Agent, Context, require_parts
from agentlab.compaction import Limits
from agentlab.context import ContextManager
from agentlab.devmode import DevMode
from agentlab.disclosure import Catalog, protocol_of
from agentlab.errors import AgentLabError
from agentlab.journal import Journal, SessionInfo, replay, sessions
from agentlab.loop import Client
from agentlab.mcp import McpManager
from agentlab.permissions import Policy
from agentlab.spill import Collected, OutputBudget, SpillStore, collect
from agentlab.summary import Summarize
from agentlab.tools import Registry, Tool
from agentlab.usage import Prices
from agentlab.watchdog import LoopBudget
from agentlab.workspace import Workspace

HIDDEN = ".agentlab"
PARTS = ("spill", "journal", "context", "watchdog")
Part = Literal["spill", "journal", "context", "watchdog"]

SYSTEM = """\
You are a coding agent. You work in one folder with the tools that you are given, and all paths count from there. \
Look before you change anything, change as little as will do, and run the tests afterwards. Long outputs are saved to \
files: follow the pointer with read_file instead of running a command again. Say in a sentence or two what you did."""


def open_agent(
    folder: str | Path,
    client: Client,
    *,
    resume: str | None = None,
    id: str | None = None,
    without: Collection[Part] = (),
    system: str = SYSTEM,
    policy: Policy | None = None,
    tools: Iterable[Tool] = (),
    deferred: Iterable[Tool] = (),
    mcp: McpManager | None = None,
    context: Context | ContextManager = "surface",
    limits: Limits | None = None,
    output: OutputBudget | None = None,
    summarize: Summarize | None = None,
    prices: Prices | None = None,
    dev: DevMode | None = None,
    clock: Callable[[], float] = time.time,
) -> Agent:
    """An agent with the five workspace tools, the further `tools`, and deferred ones (and those of `mcp`) to look up.

    A new session gets the id `id`, random by default; `resume` goes on with one that is there, with the limits that its
    log names. Limits otherwise come from AGENT_CONTEXT_WINDOW and AGENT_COMPACT_PERCENT. Output budgets follow the
    window. Raises AgentLabError for a part that does not exist or lacks another, and for a session that is not there.
    """
    if unknown := sorted(set(without) - set(PARTS)):
        raise AgentLabError(f"{unknown[0]!r} is no part that can be left out. These are: {', '.join(PARTS)}.")
    if resume is not None and "journal" in without:
        raise AgentLabError("A session without a journal cannot be resumed: leave the journal in.")
    root = Path(folder).resolve()
    meta = recorded(root, resume) if resume is not None else {}
    limits = limits or _limits(meta)
    output = output or OutputBudget().for_window(limits.context_window)
    store = None if "spill" in without else SpillStore(_hidden(root) / "spill", base=root)
    require_parts(None if "context" in without else context, store)
    workspace = [*Workspace(root, store=store, budget=output).tools(), *tools]
    deferred = list(deferred)
    registry: Registry = Registry(workspace)
    if deferred or mcp:
        protocol = protocol_of(getattr(client, "dialect", "openai"))
        registry = Catalog(workspace, deferred, protocol=protocol)
        system = f"{system}\n\n{registry.listing}" if registry.listing else system
    journal = None
    if resume is not None:
        journal = Journal.open(_hidden(root) / "sessions", resume, clock=clock)
    elif "journal" not in without:
        journal = Journal.create(_hidden(root) / "sessions", _meta(client, limits), id=id, clock=clock)
    return Agent(
        client,
        registry,
        system=system,
        policy=policy,
        budget=None if "watchdog" in without else LoopBudget,
        context=None if "context" in without else context,
        limits=limits,
        summarize=summarize,
        store=store,
        output=output,
        journal=journal,
        mcp=mcp,
        prices=prices,
        dev=dev,
        clock=clock,
    )


def recorded(folder: str | Path, id: str) -> dict[str, Any]:
    """What the log of a session says about its model and settings, so that it goes on with them.

    Raises AgentLabError for a session that is not there.
    """
    return replay(Journal.open(Path(folder).resolve() / HIDDEN / "sessions", id).events()).meta


def listed(folder: str | Path) -> list[SessionInfo]:
    """The sessions of a folder, the newest first."""
    return sessions(Path(folder).resolve() / HIDDEN / "sessions")


def tidy(folder: str | Path, *, dry_run: bool = True, min_age_s: float = 0.0) -> Collected:
    """Delete long outputs that no session of the folder points to any more; by default only list them.

    Every log counts, with all that was replaced or withdrawn in it. While an agent runs in the folder, give a
    `min_age_s` longer than its tools may take: their outputs are files before the log knows of them. Raises
    AgentLabError, and deletes nothing, when a log cannot be read.
    """
    root = Path(folder).resolve() / HIDDEN
    alive = [list(Journal.open(root / "sessions", info.id).events()) for info in sessions(root / "sessions")]
    return collect(SpillStore(root / "spill"), alive, dry_run=dry_run, min_age_s=min_age_s)


def _hidden(root: Path) -> Path:
    """The hidden folder, made for its owner only, and kept out of version control."""
    hidden = root / HIDDEN
    try:
        hidden.mkdir(mode=0o700, exist_ok=True)
        if not (ignore := hidden / ".gitignore").exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise AgentLabError(
            f"Cannot keep sessions in {HIDDEN}: {error.strerror}. Choose a folder of your own."
        ) from None
    return hidden


def _meta(client: Client, limits: Limits) -> dict[str, Any]:
    known = {name: getattr(client, name, None) for name in ("model", "dialect", "base_url")}
    meta = {name: value for name, value in known.items() if isinstance(value, str)}
    return {**meta, "context_window": limits.context_window, "compact_percent": limits.trigger_percent}


def _limits(meta: dict[str, Any]) -> Limits:
    default = Limits.from_env()
    window, percent = meta.get("context_window"), meta.get("compact_percent")
    return Limits(
        window if isinstance(window, int) else default.context_window,
        percent if isinstance(percent, int) else default.trigger_percent,
    )
