"""The one loop. It does not grow: mechanisms reach it through hooks.

    history -> repair -> before_request -> provider -> assistant message -> tools -> results in call order
            -> after_results -> watchdog -> words slipped in -> again, or done

`async for event in run_turn(...)` steps through one turn: all that happens between two words of the person.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from agentlab.errors import AgentLabError, ContextOverflow, StopRequested
from agentlab.interrupt import Stop
from agentlab.messages import Message, ToolCall, calls_of
from agentlab.pairing import repair
from agentlab.permissions import Policy
from agentlab.steer import SteerQueue
from agentlab.tools import Registry, ToolResult, read_call
from agentlab.watchdog import LoopBudget, nudge

T = TypeVar("T")

CUT_OFF = frozenset({"length", "content_filter"})
OVERFLOW_TRIES = 3


@dataclass(frozen=True)
class Text:
    """A piece of the reply's text."""

    text: str


@dataclass(frozen=True)
class Called:
    """A tool is about to run."""

    call: ToolCall


@dataclass(frozen=True)
class Finished:
    """A tool has run, or was refused."""

    result: ToolResult


@dataclass(frozen=True)
class UsageSeen:
    """The provider reported the usage of one request, in its own words."""

    usage: dict[str, Any]


@dataclass(frozen=True)
class Compacted:
    """A hook shortened what is sent. Counts are messages."""

    before: int
    after: int


@dataclass(frozen=True)
class Steered:
    """Words of the person went in while the turn was running."""

    messages: list[Message]


@dataclass(frozen=True)
class Stopped:
    """Stop ended the turn."""

    why: str


@dataclass(frozen=True)
class Done:
    """The turn is over: `done`, or what cut it short, and a sentence on it where there is one."""

    reason: str
    why: str = ""


Event = Text | Called | Finished | UsageSeen | Compacted | Steered | Stopped | Done


@dataclass(frozen=True)
class Hooks:
    """Where mechanisms reach into the loop: plain data in and out, plain or async functions.

    `before_request(history)` returns what is sent. `after_message(message)` and `after_results(results)` return what
    is kept. `on_usage(usage)` only looks. `on_overflow(history)` returns a shorter history to try. A hook that returns
    None has only looked: everything stays as it is. `repair(history)` stands in for `pairing.repair` before every
    request, for a reader's own. Stop cuts off what happens before a request (a summariser may wait for a model); the
    other hooks, which may be writing something down, run to their end.
    """

    before_request: Callable[[list[Message]], Any] | None = None
    after_message: Callable[[Message], Any] | None = None
    after_results: Callable[[list[ToolResult]], Any] | None = None
    on_usage: Callable[[dict[str, Any]], Any] | None = None
    on_overflow: Callable[[list[Message]], Any] | None = None
    repair: Callable[[list[Message]], Any] | None = None


class Reply(Protocol):
    """What the loop needs of a streamed reply: its text piece by piece, and at any time the message so far."""

    @property
    def usage(self) -> dict[str, Any] | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    def __aiter__(self) -> AsyncIterator[str]: ...
    def message(self) -> Message: ...
    async def aclose(self) -> None: ...


class Client(Protocol):
    """What the loop needs of a provider (`agentlab.provider.ChatClient` is one)."""

    def stream(
        self, history: Sequence[Message], tools: Sequence[dict[str, Any]] = (), stop: Stop | None = None
    ) -> Reply: ...


class Turn:
    """One running turn: iterate over its events, or `await turn.run()`.

    `history` is sendable at any moment: while running, after Stop, after an error. `usages` holds the usage of every
    request so far, `usage` the last. `reason` is None while running; at the end it is `done`, `stopped`,
    `interrupted`, `error`, `length` (the reply was cut off), or the watchdog's kind of reason.
    """

    def __init__(self, history: Sequence[Message], stop: Stop) -> None:
        self.stop = stop
        self.reason: str | None = None
        self.usages: list[dict[str, Any]] = []
        self._messages = list(history)
        self._reply: Reply | None = None  # while it streams
        self._results: list[ToolResult] = []  # of the batch that is running
        self._started: list[str] = []
        self._events: AsyncGenerator[Event, None]

    @property
    def history(self) -> list[Message]:
        partial = [self._reply.message()] if self._reply else []
        results = [result.message() for result in self._results]
        return repair([*self._messages, *partial, *results], started=self._started).history

    @property
    def running(self) -> bool:
        """Whether somebody is iterating right now, and waits for the next event."""
        # Python 3.11 leaves ag_running set on a generator that was closed half-way; its frame is gone then
        return bool(getattr(self._events, "ag_running", False) and getattr(self._events, "ag_frame", None))

    @property
    def usage(self) -> dict[str, Any] | None:
        return self.usages[-1] if self.usages else None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def run(self) -> Turn:
        """Run to the end without looking at the events."""
        async for _ in self:
            pass
        return self

    async def aclose(self) -> None:
        """Give the turn up where it stands: close its HTTP stream. For a consumer that stops iterating early."""
        await self._events.aclose()


def run_turn(
    history: Sequence[Message],
    client: Client,
    registry: Registry,
    *,
    stop: Stop | None = None,
    steer: SteerQueue | None = None,
    budget: LoopBudget | None = None,
    policy: Policy | None = None,
    hooks: Hooks | None = None,
) -> Turn:
    """Start one turn on a history that ends with the person's words. Nothing runs until the turn is iterated.

    `history` is not changed; the turn keeps its own. Without a `policy` reading tools run and all others are refused,
    since nobody is there to be asked. Iterating raises the provider's errors (`agentlab.errors`) and lets a
    cancellation pass; `turn.history` holds what had arrived in both cases.
    """
    if isinstance(history, str | bytes | dict):
        raise AgentLabError("A history is a list of messages: run_turn([messages.user('...')], ...).")
    turn = Turn(history, Stop() if stop is None else stop)
    steer = SteerQueue() if steer is None else steer  # an empty queue is false
    turn._events = _steps(turn, client, registry, steer, budget or LoopBudget(), policy, hooks or Hooks())
    return turn


async def _steps(
    turn: Turn,
    client: Client,
    registry: Registry,
    steer: SteerQueue,
    budget: LoopBudget,
    policy: Policy | None,
    hooks: Hooks,
) -> AsyncGenerator[Event, None]:
    nudged, why = False, ""
    try:
        while turn.reason is None and not turn.stop.requested:
            if not budget.can_continue():
                turn.reason, why = budget.exhausted().kind, budget.exhausted().message
                break

            history = await _hook(hooks.repair or _repaired, list(turn._messages), turn.stop)
            view = await _hook(hooks.before_request, history, turn.stop)
            for tries_left in reversed(range(OVERFLOW_TRIES)):
                if len(view) < len(history):
                    yield Compacted(len(history), len(view))
                reply = turn._reply = client.stream(view, registry.specs(), turn.stop)
                try:
                    async for text in reply:
                        yield Text(text)
                    break
                except ContextOverflow:
                    shorter = await _hook(hooks.on_overflow, view, turn.stop) if tries_left else view
                    if not shorter or shorter == view:
                        raise
                    history, view = view, shorter

            message = await _hook(hooks.after_message, reply.message())
            turn._messages.append(message)
            turn._reply = None
            if reply.usage:
                turn.usages.append(reply.usage)
                await _hook(hooks.on_usage, reply.usage)
                yield UsageSeen(reply.usage)

            cut_off = reply.finish_reason in CUT_OFF
            for calls in _together(message, registry):
                if turn.stop.requested:
                    break
                if cut_off:
                    turn._results += [_cut_off(call) for call in calls]
                else:
                    for call in calls:
                        yield Called(call)
                    await _run(turn, calls, registry, policy)
                for result in turn._results[-len(calls) :]:
                    yield Finished(result)
            results = await _kept(turn, hooks)
            if turn.stop.requested:
                break

            problem = budget.record(results)
            if words := steer.drain():
                turn._messages += words
                yield Steered(words)
            elif not results:
                turn.reason = reply.finish_reason if cut_off else "done"
                why = "" if message.get("content") else "The model ended without a word."
            elif problem and problem.recoverable and not nudged:
                nudged = True
                turn._messages.append(nudge(problem))
            elif problem:
                turn.reason, why = problem.kind, problem.message

        if turn.stop.requested:
            turn.reason = "stopped"
            yield Stopped("Stop was pressed. What had arrived is kept, and the history can be sent.")
        yield Done(turn.reason or "done", why)
    except BaseException as error:
        turn.reason = turn.reason or ("error" if isinstance(error, Exception) else "interrupted")
        raise
    finally:
        if turn._reply:
            await turn._reply.aclose()


def _repaired(history: list[Message]) -> list[Message]:
    return repair(history).history


def _together(message: Message, registry: Registry) -> list[list[ToolCall]]:
    """The calls in order, neighbours that only read side by side: those may run at once."""
    batches: list[list[ToolCall]] = []
    reading = False
    for call in calls_of(message):
        tool = registry.get(read_call(call)[1])
        if reading and tool and tool.read_only:
            batches[-1].append(call)
        else:
            batches.append([call])
        reading = bool(tool and tool.read_only)
    return batches


async def _run(turn: Turn, calls: list[ToolCall], registry: Registry, policy: Policy | None) -> None:
    """Run these calls at once. Whatever ends them early, the results that are there are kept."""
    turn._started = []
    started = turn._started.append
    tasks: list[asyncio.Task[ToolResult]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(registry.dispatch(call, stop=turn.stop, policy=policy, on_start=started))
                for call in calls
            ]
    finally:
        ended = [task for task in tasks if task.done() and not task.cancelled()]
        turn._results += [task.result() for task in ended if task.exception() is None]


def _cut_off(call: ToolCall) -> ToolResult:
    text = "The reply was cut off before its end, so this call was not run. Make the call again, in smaller parts."
    id, name, _ = read_call(call)
    return ToolResult(id, name, {}, "failed", text)


async def _kept(turn: Turn, hooks: Hooks) -> list[ToolResult]:
    """The batch's results as the hook leaves them; now they are part of the history."""
    results = await _hook(hooks.after_results, turn._results)
    if len(results) != len(turn._results):
        raise AgentLabError("after_results must return one result for each that it was given, in their order.")
    turn._messages += [result.message() for result in results]
    turn._results, turn._started = [], []
    return results


async def _hook(hook: Callable[[T], Any] | None, value: T, stop: Stop | None = None) -> T:
    """What the hook makes of the value. With `stop`, Stop cuts it off: the value stays, and the turn ends at once."""
    if hook is None:
        return value
    answer = hook(value)
    if isinstance(answer, Awaitable):
        try:
            async with stop.scope() if stop else nullcontext():
                answer = await answer
        except StopRequested:
            return value
    return value if answer is None else cast(T, answer)
