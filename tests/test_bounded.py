"""bounded: late is late, however a piece of work takes its cancellation, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from clean_run import run

from agentlab.bounded import Late, within
from agentlab.errors import AgentLabError, StopRequested
from agentlab.interrupt import Stop


async def stubborn(turns: int, answer: Any = "late") -> Any:
    """Swallows so many cancellations, then answers."""
    while turns:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            turns -= 1
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_what_comes_in_time_counts() -> None:
    async def soon() -> str:
        await asyncio.sleep(0)
        return "async"

    assert run(within(soon, 30)) == "async" and run(within(lambda: "plain", 30)) == "plain"
    assert run(within(soon)) == "async" and run(within(lambda: "plain", stop=Stop())) == "plain"


def test_a_plain_function_that_takes_too_long_is_late() -> None:
    def slow() -> str:
        time.sleep(0.02)
        return "S"

    async def also() -> str:
        return slow()

    for work in (slow, also):
        with pytest.raises(Late, match=r"0\.01 s"):
            run(within(work, 0.01))


@pytest.mark.parametrize("answer", ["late", ValueError("late")], ids=["answers", "fails"])
def test_an_answer_after_the_cancellation_does_not_count(answer: Any) -> None:
    with pytest.raises(Late):
        run(within(lambda: stubborn(1, answer), 0.01))


def test_one_that_swallows_every_cancellation_is_left_behind() -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def never() -> None:
            while not ended.is_set():
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    continue
            raise ValueError("of no interest, and nobody complains that it was not looked at")

        with pytest.raises(Late):
            await within(never, 0.01)
        [left] = asyncio.all_tasks() - {asyncio.current_task()}
        ended.set()
        await asyncio.wait({left})

    run(main())


def test_stop_counts_even_where_it_is_swallowed() -> None:
    def pressing(stop: Stop, wait: bool) -> Callable[[], Any]:
        async def later() -> Any:
            stop.request()
            return await stubborn(1, "half") if wait else "whole"

        return later

    for wait in (True, False):
        stop = Stop()
        with pytest.raises(StopRequested):
            run(within(pressing(stop, wait), 30, stop=stop))
    stop = Stop()
    with pytest.raises(StopRequested):
        run(within(stop.request, 30, stop=stop))


def test_a_cancellation_of_its_own_is_a_failure() -> None:
    def plain() -> str:
        raise asyncio.CancelledError

    async def inner() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    for work in (plain, inner):
        with pytest.raises(AgentLabError, match="not by us"):
            run(within(work, 30, stop=Stop()))


def test_a_cancellation_from_outside_passes() -> None:
    async def main() -> None:
        task = asyncio.create_task(within(lambda: stubborn(1), 30))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
