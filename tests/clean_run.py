"""Run a coroutine as `asyncio.run` does, and see that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

HARMLESS = ("ByteStream.__aiter__",)  # httpx: over the bytes of a request, left when its sending is cancelled


def run(main: Coroutine[Any, Any, T], *, hang_guard_s: float = 30.0) -> T:
    """The result of `main`, run on a loop in debug mode.

    Fails when a task is still pending afterwards, an async generator was left open, the loop had something to complain
    about (a task destroyed, an exception nobody looked at), or Python warned (never awaited, a socket left open).
    """
    complaints: list[str] = []
    left: list[str] = []

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 60
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        generators: list[Any] = []  # held, so that the garbage collector closes none of them for us
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(lambda opened: (generators.append(opened), hooks.firstiter(opened)), hooks.finalizer)
        try:
            async with asyncio.timeout(hang_guard_s):
                return await main
        finally:
            names = [g.__qualname__ for g in generators if g.ag_frame is not None]
            left.extend(f"generator {name}" for name in names if name not in HARMLESS)
            left.extend(str(task) for task in asyncio.all_tasks() - {asyncio.current_task()})
            generators.clear()
            gc.collect()

    gc.freeze()  # what was there before is not searched: that makes the two collections cheap
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            return asyncio.run(watched(), debug=True)
        finally:
            gc.collect()
            gc.unfreeze()
            found = [*left, *complaints, *(str(w.message) for w in warned)]
            if sys.exc_info()[0] is None or isinstance(sys.exc_info()[1], TimeoutError):
                assert not found, "\n".join(found)
