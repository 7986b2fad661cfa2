"""Stop that really stops: a flag for the deterministic cut, and a cancellation for whatever is waiting.

A flag alone does not reach a coroutine that waits for bytes that never come; a cancellation alone cannot tell Stop
from the kernel's Interrupt. So:

1. `request()` sets the flag, from any thread, any number of times. Whoever handles one token after another checks it
   between two of them, so the cut falls on the same token even when fifty arrive in one burst.
2. Work that waits runs inside `async with stop.scope()`. A request cancels it there; the scope ends with
   StopRequested. A cancellation from anywhere else (Interrupt, a time-out) passes through as CancelledError.
3. A Stop belongs to one turn. It is never cleared: a new turn gets a new one.

The scope counts cancellations the way `asyncio.timeout` does (PEP 789 tells why it must not surround a `yield`).
(Seed 000, "one AbortController through the HTTP layer and the tool loop".)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

from agentlab.errors import StopRequested

T = TypeVar("T")


@dataclass(eq=False)
class _Scope:
    task: asyncio.Task[object]
    loop: asyncio.AbstractEventLoop
    cancelled: bool = False
    closed: bool = False

    def cancel(self) -> None:
        """Runs on the task's own loop, so the scope cannot close in between."""
        if not (self.closed or self.cancelled):
            self.cancelled = True
            self.task.cancel()

    def take_back(self) -> int:
        """Close the scope, undo its own cancellation, and return how many others are left."""
        if self.cancelled and not self.closed:
            self.task.uncancel()
        self.closed = True
        return self.task.cancelling()


@dataclass(eq=False)
class Stop:
    """The Stop of one turn."""

    _requested: bool = False
    _scopes: set[_Scope] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self) -> None:
        """End the turn. Safe from any thread, any number of times, with or without anything running."""
        with self._lock:
            self._requested = True
            scopes = list(self._scopes)
        for scope in scopes:
            with suppress(RuntimeError):  # that loop has ended, and its work with it
                scope.loop.call_soon_threadsafe(scope.cancel)

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Run the body so that a request cancels it. Raises StopRequested when it did, or had come before.

        The body must not `yield` to a caller: a cancellation would hit the caller's code.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("stop.scope() needs a running task: call it inside a coroutine")
        scope = _Scope(task, asyncio.get_running_loop())
        with self._lock:
            if self._requested:
                raise StopRequested("Stop was pressed before this started.")
            self._scopes.add(scope)
        before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if scope.take_back() <= before and scope.cancelled:
                raise StopRequested("Stop was pressed.") from None
            raise
        finally:
            scope.take_back()  # the body finished, or failed, all the same
            with self._lock:
                self._scopes.discard(scope)


async def guard(achunks: AsyncIterable[T], stop: Stop | None) -> AsyncGenerator[T, None]:
    """Pass the items on until the source ends or Stop is requested, then close the source.

    After Stop no further item comes, not even one that had already arrived. Closing the source closes the HTTP stream
    behind it. An Interrupt closes it too, and goes on as CancelledError.
    """
    source = aiter(achunks)
    try:
        while True:
            try:
                if stop is None:
                    item = await anext(source)
                else:
                    async with stop.scope():
                        item = await anext(source)
            except (StopAsyncIteration, StopRequested):
                return
            if stop is not None and stop.requested:
                return
            yield item
    finally:
        if aclose := getattr(source, "aclose", None):
            await aclose()


@contextmanager
def ctrl_c(stop: Stop) -> Iterator[None]:
    """In a terminal, while a turn runs: the first Ctrl+C presses Stop, the second leaves with KeyboardInterrupt.

    Needs the running loop of the main thread, on a system with POSIX signals. (Seed 000: two intents, two presses.)
    """
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def pressed() -> None:
        if not stop.requested:
            stop.request()
            return
        loop.remove_signal_handler(signal.SIGINT)  # or the loop would hear this press twice
        signal.signal(signal.SIGINT, before)
        signal.raise_signal(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, pressed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
