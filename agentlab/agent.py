"""An agent: one conversation, turn after turn, with every mechanism wired to the one loop.

    send(words) -> run_turn, with these hooks:
        before_request   servers connect -> log -> context manager (prune, compact) -> development mode -> the view
        after_message    log
        after_results    fold, spill -> log
        on_usage         log -> ledger, bill
        on_overflow      context manager -> development mode -> a shorter view

Each part is one argument, and None switches it off. The log (a `Surface`, on a `Journal` where there is one) is the
conversation; all else is worked out from it, so that an agent that is opened on an old log goes on where that ended.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Literal, Self, get_args

from agentlab.compaction import Limits
from agentlab.context import ContextManager
from agentlab.devmode import DevMode, Miss
from agentlab.disclosure import Catalog
from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.journal import Journal, fork
from agentlab.layers import CompactionManager, Thresholds, fields_summarizer
from agentlab.loop import Client, Done, Event, Hooks, Stopped, Turn, run_turn
from agentlab.mcp import McpManager
from agentlab.messages import Message, user
from agentlab.outputs import reducer
from agentlab.permissions import Policy
from agentlab.recorder import Recorder
from agentlab.replay import replay
from agentlab.segments import SegmentManager
from agentlab.spill import Collected, OutputBudget, SpillStore, collect
from agentlab.steer import SteerQueue
from agentlab.summary import Summarize, summarizer, text_of, wrote
from agentlab.surface import Surface, SurfaceManager
from agentlab.tools import Registry, ToolResult
from agentlab.usage import Ledger, Prices, cost_view, status_line
from agentlab.watchdog import LoopBudget

Context = Literal["surface", "layers", "segments"]


def require_parts(context: Context | ContextManager | None, store: SpillStore | None) -> None:
    """Raise AgentLabError when there is no such context manager, or it lacks what it needs."""
    if isinstance(context, str) and context not in get_args(Context):
        raise AgentLabError(f"{context!r} is no context manager: use 'surface', 'layers', 'segments' or None.")
    if context == "layers" and store is None:
        raise AgentLabError("The four layers write files: give the agent a store.")


def unwatched() -> LoopBudget:
    """A budget that never says stop: what `budget=None` means."""
    return LoopBudget(10**9, 0, 1, 10**9, 10**9, 10**9)


@dataclass(frozen=True)
class Said:
    """Words of the person in the conversation so far, and the number of the event that holds them."""

    seq: int
    text: str


class Agent:
    """Owns one conversation. `send` starts a turn; iterate over it, or give it to `widgets.stream`.

    `system` is the system prompt: it stays the same bytes for the whole conversation. Every turn has its own Stop and
    its own `budget()`. Words put into `steer` go into the running turn, or wait for the next one.

    `context` keeps requests within `limits`: one of three managers by name, one of your own, or None. It asks
    `summarize`, by default the client's own model. `store` takes long outputs (`output` is their budget), `journal` the
    log, `mcp` brings deferred tools and needs a `Catalog` for registry. `ledger` counts cache waste, `prices` make a
    bill; `dev` names who broke the cache. `clock` gives seconds. `hooks` are your own: `before_request` sees every view
    that is sent, `after_results` what is kept. A SurfaceManager of your own brings its surface, which is the log then.

    Raises AgentLabError for a context manager that does not exist, layers without a store, and servers without a
    Catalog.
    """

    def __init__(
        self,
        client: Client,
        registry: Registry | None = None,
        *,
        system: str = "",
        policy: Policy | None = None,
        hooks: Hooks | None = None,
        budget: Callable[[], LoopBudget] | None = LoopBudget,
        context: Context | ContextManager | None = "surface",
        limits: Limits | None = None,
        summarize: Summarize | None = None,
        store: SpillStore | None = None,
        output: OutputBudget | None = None,
        journal: Journal | None = None,
        mcp: McpManager | None = None,
        ledger: Ledger | None = None,
        prices: Prices | None = None,
        dev: DevMode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_parts(context, store)
        self.client = client
        self.registry = Registry() if registry is None else registry  # an empty one may be filled later
        if mcp and not isinstance(self.registry, Catalog):
            raise AgentLabError("Tools of MCP servers are always deferred: give the agent a Catalog as its registry.")
        self.policy = policy
        self.hooks = hooks or Hooks()
        self.limits = limits or Limits()
        self.store, self.mcp = store, mcp
        self.ledger = Ledger() if ledger is None else ledger
        self.prices, self.dev, self.clock = prices, dev or DevMode(), clock
        self.steer = SteerQueue()
        self.turn: Turn | None = None
        self.usages: list[dict[str, Any]] = []
        """The usage of every request of this process, summaries included."""
        self.miss: Miss | None = None
        """The newest cache miss that development mode looked into."""
        self._budget = budget or unwatched
        self._context, self._summarize, self._output = context, summarize, output
        self._reduce = reducer(self.registry, store, output) if store else None
        self._system = system
        theirs = context.surface if isinstance(context, SurfaceManager) else None
        self.surface = theirs if theirs and journal in (None, theirs.journal) else Surface(journal)
        self.journal = self.surface.journal
        self._wire()

    def _wire(self) -> None:
        """Begin anew from the log: at the start, and when it has been taken back."""
        self.turn = None
        self._usage: dict[str, Any] | None = None
        self.context = self._manager()
        if self._system and not self.surface.nodes:
            self.surface.append({"role": "system", "content": self._system})
        whole = isinstance(self.context, SurfaceManager)  # it makes the view itself, from all that was ever said
        events = (event for event in self.surface.events if not (whole and event.get("type") == "replace"))
        self._before = replay(events).history  # replay knows which calls had started when a process died
        self._recorder = Recorder(self.surface, self._before)

    def _manager(self) -> ContextManager | None:
        if self._context is None or not isinstance(self._context, str):
            return self._context
        ask = self._summarize or summarizer(self.client, on_usage=self._pay)
        if self._context == "surface":
            return SurfaceManager(ask, surface=self.surface, limits=self.limits)
        if self._context == "segments":
            return SegmentManager(ask, limits=self.limits)
        assert self.store  # it is the layers
        fields = self._summarize or fields_summarizer(self.client, on_usage=self._pay)
        thresholds = Thresholds().for_window(self.limits.context_window)
        return CompactionManager(self.store.root / "layers", fields, thresholds=thresholds, base=self.store.base)

    # --- turns

    @property
    def running(self) -> bool:
        """Whether somebody iterates over a turn right now."""
        return bool(self.turn and self.turn.running)

    @property
    def history(self) -> list[Message]:
        """The conversation so far, sendable at any moment."""
        return self.turn.history if self.turn else list(self._before)

    def send(self, text: str) -> Turn:
        """Start a turn with the person's words; words still waiting in `steer` go before them.

        A conversation has one turn at a time: raises AgentLabError while one is running. A turn that was left half-way
        is stopped where it stands.
        """
        if self.running:
            raise AgentLabError("A turn is running: put words into agent.steer, or stop it and wait for its end.")
        if self.turn and self.turn.reason is None:
            self.turn.stop.request()
            self.turn.reason = "stopped"
        history = self.history
        self._recorder.finish(history)
        history += [*self.steer.drain(), user(text)]
        turn = run_turn(
            history,
            self.client,
            self.registry,
            stop=Stop(),
            steer=self.steer,
            budget=self._budget(),
            policy=self.policy,
            hooks=Hooks(
                before_request=self._before_request,
                after_message=self._after_message,
                after_results=self._after_results,
                on_usage=self._on_usage,
                on_overflow=self._on_overflow,
                repair=self.hooks.repair,
            ),
        )
        turn._events = self._to_the_end(turn, turn._events)
        self.turn = turn
        return turn

    async def _to_the_end(self, turn: Turn, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The turn's events; however it ends, the log has what had arrived, and the bill what it is known to cost.

        A turn that another one has followed meanwhile, or a rewind, is over: nothing more of it is written down.
        """
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
                    if self.turn is not turn:
                        yield Stopped("Another turn has begun, or this one was taken back.")
                        yield Done("stopped")
                        break
        finally:
            if self.turn is turn:
                if turn._reply and turn._reply.usage:  # it broke in the middle: what was reported is paid all the same
                    self._pay(turn._reply.usage)
                self._recorder.finish(turn.history)

    async def _before_request(self, history: list[Message]) -> list[Message]:
        if isinstance(self.registry, Catalog):
            if self.mcp:
                self.registry.add_deferred(await self.mcp.tools())
            self.registry.see(history)
        self._recorder.before_request(history)
        view = history
        if self.context:
            prepared = await self.context.prepare(history, self._usage)
            view = prepared.history
            if prepared.shortened:
                self._forget_cache()
        return await self._sent(view)

    async def _on_overflow(self, view: list[Message]) -> list[Message]:
        if self.context is None:
            return list(await _ask(self.hooks.on_overflow, view))
        shorter = await self.context.on_overflow(view)
        self._forget_cache()
        return await self._sent(shorter)

    async def _sent(self, view: list[Message]) -> list[Message]:
        view = list(await _ask(self.hooks.before_request, view))
        self.dev.sent({"tools": self.registry.specs(), "messages": view})
        return view

    def _forget_cache(self) -> None:
        """The view was changed on purpose: that its tokens are paid again is nobody's fault."""
        self.ledger.reset()
        self.dev.reset()

    async def _after_message(self, message: Message) -> Message:
        message = await _ask(self.hooks.after_message, message)
        self._recorder.after_message(message)
        return message

    async def _after_results(self, results: list[ToolResult]) -> list[ToolResult]:
        if self._reduce:
            results = self._reduce(results)
        if isinstance(self.context, CompactionManager):
            results = self.context.after_results(results)
        results = await _ask(self.hooks.after_results, results)
        self._recorder.after_results(results)
        return results

    async def _on_usage(self, usage: dict[str, Any]) -> None:
        self._usage = usage
        self._pay(usage)
        self.miss = self.dev.answered(self.ledger.record(usage, self.clock())) or self.miss
        await _ask(self.hooks.on_usage, usage)

    def _pay(self, usage: dict[str, Any]) -> None:
        self.usages.append(usage)
        self._recorder.on_usage(usage)

    # --- between turns

    def said(self) -> list[Said]:
        """What the person has said so far, in order: each with the number that `rewind` and `fork` know it by."""
        return [
            Said(seq, text_of(message.get("content"))) for seq, message in self.surface.transcript() if wrote(message)
        ]

    def rewind(self, seq: int) -> None:
        """Withdraw everything from event number `seq` on, for example words that should be said otherwise.

        What the log holds stays there, and the system prompt is never lost. Raises AgentLabError while a turn is
        running, and for a number to come.
        """
        self._idle("rewind")
        self.surface.rewind(seq - 1)
        self._wire()
        self._forget_cache()

    def fork(self, seq: int | None = None, *, id: str | None = None) -> Journal:
        """A new session with the events before number `seq`, or with all: open another agent on it.

        Raises AgentLabError while a turn is running, and without a journal.
        """
        self._idle("fork")
        if self.journal is None:
            raise AgentLabError("Only a session with a journal can be forked: give the agent one.")
        return fork(self.journal, self.surface.last if seq is None else seq - 1, id=id)

    async def compact(self) -> str:
        """Compact now, whatever the size; says in a sentence what came of it. Raises AgentLabError when it cannot."""
        self._idle("compact")
        if isinstance(self.context, SurfaceManager):
            made = await self.context.compactor.compact_now()
            said = f"{len(made.source)} messages became a summary." if made else "There is nothing to compact."
            changed = made is not None
        elif isinstance(self.context, CompactionManager):
            layered = await self.context.compact_proactively(self.history)
            said, changed = layered.why, layered.shortened
        else:
            raise AgentLabError("This agent's context manager compacts by itself only. Use 'surface' or 'layers'.")
        if changed:
            self._forget_cache()
        return said

    def collect(self, *, dry_run: bool = True) -> Collected:
        """Delete spilled outputs that neither the log nor the conversation points to; by default only list them.

        Only for a store that no other session writes into. Raises AgentLabError without a store.
        """
        if self.store is None:
            raise AgentLabError("This agent spills nothing: it has no store.")
        return collect(self.store, [self.surface.events, self.history], dry_run=dry_run)

    def _idle(self, what: str) -> None:
        if self.running:
            raise AgentLabError(f"A turn is running: stop it and wait for its end before you {what}.")
        if self.turn:
            self._recorder.finish(self.turn.history)

    # --- what it costs

    def cost(self) -> str:
        """The `/cost` view: tokens, money where prices are known, the bill without a cache, the waste."""
        model = getattr(self.client, "model", "")
        return cost_view(self.usages, self.prices, model=model, ledger=self.ledger)

    def status(self) -> str:
        """One line on the last request; "" before the first."""
        if not self._usage:
            return ""
        return status_line(self._usage, session=self.usages, **({"prices": self.prices} if self.prices else {}))

    async def aclose(self) -> None:
        """End a turn that was left half-way, end the servers for good, and give the journal's lock back.

        An agent without servers can go on afterwards. A turn that another task runs is only told to stop: wait for its
        end before, since it writes to the journal.
        """
        try:
            if self.turn and self.turn.running:
                self.turn.stop.request()
            elif self.turn:
                await self.turn.aclose()
                self._recorder.finish(self.turn.history)
        finally:
            try:
                if self.mcp:
                    await self.mcp.close()
            finally:
                if self.journal:
                    self.journal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


async def _ask(hook: Callable[[Any], Any] | None, value: Any) -> Any:
    """What a hook of the reader's own makes of a value; None leaves it as it is."""
    answer = hook(value) if hook else None
    answer = await answer if isawaitable(answer) else answer
    return value if answer is None else answer
