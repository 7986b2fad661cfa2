"""From the command line and the environment to an agent: which model, which session, which servers.

    AGENT_BASE_URL, AGENT_API_KEY, ... -> a provider's client  |  nothing set, or --offline -> the simulator
    --resume ID -> the model that its log names, at the environment's server; a difference is said
    .mcp.json in the folder -> servers that wait for approval

A key goes only to the server that the environment names: an address that stands in a log came with the folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentlab import prices
from agentlab.agent import Agent
from agentlab.compaction import Limits
from agentlab.errors import AgentLabError
from agentlab.mcp import McpManager, read_configs
from agentlab.permissions import Policy
from agentlab.project import listed, open_agent, recorded
from agentlab.provider import ChatClient
from agentlab.provider.retry import Retry, Retrying
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache

MCP_FILE = ".mcp.json"


class Opener:
    """Opens the sessions of one folder. `offline` means the simulator, `pace` its seconds between two pieces.

    `model` replaces the environment's, and the one that a session was recorded with; `price_list` is a file. `notes`,
    and `model` in words, are those of the session that was opened last. Raises AgentLabError for a folder or a price
    list that is not there.
    """

    def __init__(
        self,
        folder: str | Path = ".",
        *,
        offline: bool = False,
        model: str | None = None,
        price_list: str | Path | None = None,
        pace: float = 0.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise AgentLabError(f"There is no folder {str(folder)!r}: make it, or name another with --folder.")
        self.environ = environ
        self.notes: list[str] = []
        self.model = ""
        self.approved: set[str] = set()
        """Digests of the servers that a person has approved in this chat."""
        self.on_retry: Callable[[Retry], object] = lambda retry: None
        self.on_note: Callable[[str], object] = lambda text: None
        self._live = not offline and bool(environ.get("AGENT_BASE_URL") or environ.get("AGENT_API_KEY"))
        self._model, self._pace = model, pace
        self._prices = prices.PriceList.read(price_list) if price_list else None
        self._simulators: dict[int, Simulator] = {}

    def session(self, text: str) -> str:
        """The id of the session that a person means: the whole id, or its first characters. Raises AgentLabError."""
        ids = [info.id for info in listed(self.folder)]
        found = [id for id in ids if id == text] or [id for id in ids if id.startswith(text)]
        if len(found) != 1:
            what = f"{len(found)} sessions begin with" if found else "There is no session"
            raise AgentLabError(f"{what} {text[:60]!r} in this folder: /resume lists those that there are.")
        return found[0]

    def open(self, resume: str | None, *, policy: Policy) -> Agent:
        """The agent of a new session, or of one that is there. Raises AgentLabError."""
        id = self.session(resume) if resume is not None else None
        meta = recorded(self.folder, id) if id is not None else {}
        self.notes = []
        client = self._client(meta)
        return open_agent(
            self.folder,
            Retrying(client, on_retry=lambda retry: self.on_retry(retry)),
            resume=id,
            policy=policy,
            mcp=self._servers(),
            prices=self._price(client.model),
        )

    def _client(self, meta: Mapping[str, Any]) -> ChatClient:
        was_model, was_server = _text(meta, "model"), _text(meta, "base_url")
        offline = self._simulator(meta).client()
        was_offline = was_server == offline.base_url
        if not self._live or (was_offline and not self._model):
            if was_model and not was_offline:
                self.notes.append(
                    f"This session was recorded with {was_model} at {was_server}; now the offline model answers. "
                    "Set AGENT_BASE_URL and AGENT_API_KEY to go on with it."
                )
            elif self._live:
                self.notes.append("This session is an offline one and stays so; --model NAME moves it to your server.")
            elif self._model:
                self.notes.append("--model is for a provider: without AGENT_BASE_URL the offline model answers.")
            self.model = "offline: a handful of rules, no language model; say hello, or /help"
            return offline
        wanted = self._model or ("" if was_offline else was_model) or self.environ.get("AGENT_MODEL", "")
        env = {name: value for name, value in self.environ.items() if name.startswith("AGENT_")}
        client = ChatClient.from_env(env | ({"AGENT_MODEL": wanted} if wanted else {}))
        if was_server and was_server != client.base_url:
            self.notes.append(
                f"This session was recorded at {was_server}; AGENT_BASE_URL says {client.base_url}, which is used."
            )
        if was_model and was_model != wanted:
            self.notes.append(f"This session was recorded with {was_model}; --model says {wanted}, which is used.")
        self.model = f"{client.model} at {client.base_url}"
        return client

    def _simulator(self, meta: Mapping[str, Any]) -> Simulator:
        """One for each window, as long as the chat lasts: what is in its cache stays there."""
        said = meta.get("context_window")
        window = said if isinstance(said, int) and said > 0 else Limits.from_env(self.environ).context_window
        if window not in self._simulators:
            self._simulators[window] = Simulator(
                cache=BlockCache(), context_window=window, pace=self._pace, clock=time.time
            )
        return self._simulators[window]

    def _servers(self) -> McpManager | None:
        configs = read_configs([self.folder / MCP_FILE], project=self.folder, approve=self.approved)
        self.notes += configs.notes[: len(configs.notes) - len(configs.pending)]  # the rest: those that wait
        if not (configs.servers or configs.pending):
            return None
        return McpManager(
            replace(configs, notes=[]),
            environ=self.environ,
            roots=[self.folder],
            on_note=lambda text: self.on_note(text),
        )

    def _price(self, model: str) -> prices.Prices | None:
        try:
            return self._prices.find(model) if self._prices else None
        except prices.UnknownPrice as error:
            self.notes.append(str(error))
            return None


def _text(meta: Mapping[str, Any], name: str) -> str:
    value = meta.get(name)
    return value if isinstance(value, str) else ""
