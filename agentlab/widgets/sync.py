"""`run_sync`: the answer of a coroutine for plain code, in a script and inside a running loop alike.

In a notebook a loop is already running, so `asyncio.run` refuses. The main form there is `await`; `run_sync` is for
code that cannot say it: a callback, a test, another library. (Cases N01: pydantic-ai 144, openai-agents-python 77.)
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Literal, TypeVar

from agentlab.errors import AgentLabError
from agentlab.language import say

T = TypeVar("T")

LOOK_S = 0.05
"""Seconds between two looks at the worker thread. A wait without an end may not see an Interrupt."""


def run_sync(coro: Coroutine[Any, Any, T], *, how: Literal["thread", "nested"] = "thread") -> T:
    """Run a coroutine to its end and return its result, or raise what it raises.

    Without a running loop this is `asyncio.run`. With one:

    * `how="thread"`: a loop of its own in a worker thread, while the caller waits. Interrupt (Ctrl+C) cancels the
      coroutine there, waits for its clean-up, and goes on as KeyboardInterrupt; a second one stops waiting.
      Context variables are carried over. Objects bound to the caller's loop must not be used inside.
    * `how="nested"`: on the caller's own loop, patched by nest_asyncio for the rest of the process. Needed only for
      objects that are bound to that loop. Interrupt reaches the caller; the coroutine is never told.
    """
    if how not in ("thread", "nested"):
        coro.close()
        raise AgentLabError(say('how is {how!r}: use "thread", or "nested" for objects of the running loop.', how=how))
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coro)
    if how == "thread":
        return _in_thread(coro)
    try:
        import nest_asyncio
    except ImportError:
        coro.close()
        raise AgentLabError(
            say('how="nested" needs nest_asyncio: pip install nest-asyncio, or leave `how` out.')
        ) from None
    nest_asyncio.apply(running)
    result: T = running.run_until_complete(coro)
    return result


def _in_thread(coro: Coroutine[Any, Any, T]) -> T:
    outcome: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def supervised() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await coro

    def work() -> None:
        try:
            outcome.set_result(asyncio.run(supervised()))
        except BaseException as error:  # SystemExit too: it is the caller's
            outcome.set_exception(error)

    worker = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="run_sync", daemon=True)
    try:
        worker.start()
        _wait(outcome)
    except KeyboardInterrupt:
        either: tuple[Future[Any], ...] = (started, outcome)
        wait(either, return_when=FIRST_COMPLETED)
        if started.done():
            loop, task = started.result()
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
        _wait(outcome)
        raise
    return outcome.result()


def _wait(outcome: Future[Any]) -> None:
    """Not `Thread.join`: once interrupted, it takes a thread that still runs for a dead one (CPython 3.11)."""
    while not outcome.done():
        wait((outcome,), timeout=LOOK_S)
