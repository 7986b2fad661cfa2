"""Work of others within a time limit, and with Stop: what comes late, or after Stop, does not count.

    begin() -> answer                          a plain function: looked at afterwards, since nothing can end it
            -> awaitable -> a task of its own -> in time: its outcome
                                              -> late, Stop, a cancellation: cancelled, and soon left behind

A time limit that only cancels is no limit: code may swallow the cancellation and answer all the same, or never end.
A summariser is somebody else's code. (Seed 000, compaction: it must never cost the session.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext
from inspect import isawaitable
from typing import Any

from agentlab.errors import AgentLabError, StopRequested
from agentlab.interrupt import Stop

GRACE_S = 0.5  # to close what it holds


class Late(AgentLabError):
    """The answer did not come in time."""


async def within(begin: Callable[[], Any], seconds: float | None = None, *, stop: Stop | None = None) -> Any:
    """What `begin` returns, awaited if need be, when it comes within so many seconds (None: no limit).

    Raises Late when it does not, StopRequested when Stop was pressed by then, and whatever the work itself raises. A
    cancellation passes; one that the work raises itself becomes an AgentLabError.
    """
    clock = asyncio.get_running_loop().time
    end = math.inf if seconds is None else clock() + seconds
    async with stop.scope() if stop else nullcontext():
        try:
            answer = begin()
        except asyncio.CancelledError:
            raise AgentLabError("it was cancelled, and not by us") from None
        if isawaitable(answer):
            answer = await _outcome(asyncio.ensure_future(answer), None if seconds is None else end - clock())
    if stop and stop.requested:
        raise StopRequested("Stop was pressed before the work was complete.")
    if clock() > end:
        raise Late(f"no answer within {seconds} s")
    return answer


async def _outcome(task: asyncio.Future[Any], seconds: float | None) -> Any:
    task.add_done_callback(_look_at)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
    if not done:
        raise Late(f"no answer within {seconds} s")
    if task.cancelled():
        raise AgentLabError("it was cancelled, and not by us")
    return task.result()


def _look_at(task: asyncio.Future[Any]) -> None:
    """Look at what became of a task, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()
