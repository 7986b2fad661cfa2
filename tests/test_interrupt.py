"""Stop ends whatever waits, at once and cleanly, and can always be told from an Interrupt."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import StopRequested
from agentlab.interrupt import Stop, guard


def soon(action: Callable[[], object], ticks: int = 1) -> None:
    """Do this after so many rounds of the loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(action) if ticks <= 1 else loop.call_soon(soon, action, ticks - 1)


def from_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


async def for_ever() -> None:
    await asyncio.Event().wait()


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


class Source:
    """Items without a pause between them; writes down how it ended."""

    def __init__(self, count: int, *, hang: bool = False, fail: bool = False, before: Callable[[int], object] = id):
        self.given = 0
        self.closed = 0
        self.count, self.hang, self.fail, self.before = count, hang, fail, before

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for item in range(self.count):
                self.before(item)
                self.given += 1
                yield item
            if self.fail:
                raise ValueError("the source broke")
            if self.hang:
                await for_ever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)  # closing an HTTP stream takes a few rounds too
            self.closed += 1


# ---------------------------------------------------------------- scope


def test_a_request_before_the_scope_keeps_its_body_from_running() -> None:
    async def main() -> None:
        stop = Stop()
        stop.request()
        with pytest.raises(StopRequested, match="before this started"):
            async with stop.scope():
                pytest.fail("the body ran")
        assert cancelling() == 0

    run(main())


@pytest.mark.parametrize("ask", [lambda stop: soon(stop.request), lambda stop: from_thread(stop.request)])
def test_a_request_ends_what_waits(ask: Callable[[Stop], None]) -> None:
    async def main() -> None:
        stop = Stop()
        with pytest.raises(StopRequested):
            async with stop.scope():
                ask(stop)
                await for_ever()
        assert stop.requested
        assert cancelling() == 0
        await asyncio.sleep(0)  # nothing of the cancellation is left

    run(main())


def test_a_thousand_requests_from_many_threads_are_one() -> None:
    async def main() -> None:
        stop = Stop()
        threads = [threading.Thread(target=lambda: [stop.request() for _ in range(100)]) for _ in range(10)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            with pytest.raises(StopRequested):
                async with stop.scope():
                    await for_ever()
            assert cancelling() == 0
        for thread in threads:
            thread.join()
        for _ in range(10):
            await asyncio.sleep(0)
        assert cancelling() == 0

    run(main())


def test_a_request_after_the_scope_touches_nothing() -> None:
    async def main() -> None:
        stop = Stop()
        async with stop.scope():
            await asyncio.sleep(0)
        stop.request()
        await asyncio.sleep(0)
        assert stop.requested
        assert cancelling() == 0

    run(main())


def test_a_request_in_the_last_moment_of_a_scope_does_not_leak_out_of_it() -> None:
    async def main() -> None:
        stop = Stop()
        async with stop.scope():
            stop.request()  # the cancellation is on its way, but the body does not wait any more
        for _ in range(3):
            await asyncio.sleep(0)
        assert cancelling() == 0

    run(main())


def test_an_interrupt_passes_through_as_itself() -> None:
    async def main() -> None:
        stop = Stop()

        async def work() -> None:
            async with stop.scope():
                await for_ever()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert not stop.requested

    run(main())


@pytest.mark.parametrize("stop_at", [0, 1, 2, 3])
@pytest.mark.parametrize("cancel_at", [0, 1, 2, 3])
def test_an_interrupt_that_meets_a_stop_is_never_lost(stop_at: int, cancel_at: int) -> None:
    """Whichever comes first: as long as the body still waits, a cancellation from outside wins."""

    async def main() -> None:
        stop = Stop()
        ended: list[str] = []

        async def work() -> None:
            try:
                async with stop.scope():
                    try:
                        await for_ever()
                    finally:
                        for _ in range(5):  # both arrive before the body is done
                            try:
                                await asyncio.sleep(0)
                            except asyncio.CancelledError:
                                ended.append("cancelled again")
            except StopRequested:
                ended.append("stopped")
                raise

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        for action, ticks in ((stop.request, stop_at), (task.cancel, cancel_at)):
            soon(action, ticks) if ticks else action()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert "stopped" not in ended

    run(main())


def test_a_timeout_inside_a_scope_is_a_timeout() -> None:
    async def main() -> None:
        stop = Stop()
        with pytest.raises(TimeoutError):
            async with stop.scope(), asyncio.timeout(0):
                await for_ever()
        assert cancelling() == 0

    run(main())


def test_a_timeout_around_a_scope_is_a_timeout() -> None:
    async def main() -> None:
        stop = Stop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                async with stop.scope():
                    await for_ever()
        assert cancelling() == 0

    run(main())


@pytest.mark.parametrize("timeout_outside", [True, False])
def test_stop_under_a_timeout_is_a_stop(timeout_outside: bool) -> None:
    async def main() -> None:
        stop = Stop()
        soon(stop.request)
        with pytest.raises(StopRequested):
            if timeout_outside:
                async with asyncio.timeout(60), stop.scope():
                    await for_ever()
            else:
                async with stop.scope(), asyncio.timeout(60):
                    await for_ever()
        assert cancelling() == 0

    run(main())


def test_nested_scopes_of_one_stop_end_together() -> None:
    async def main() -> None:
        stop = Stop()
        soon(stop.request)
        with pytest.raises(StopRequested):
            async with stop.scope():
                async with stop.scope():
                    await for_ever()
                pytest.fail("the outer body went on")
        assert cancelling() == 0

    run(main())


@pytest.mark.parametrize("pressed", ["inner", "outer"])
def test_nested_scopes_of_two_stops_are_told_apart(pressed: str) -> None:
    async def main() -> None:
        stops = {"inner": Stop(), "outer": Stop()}
        soon(stops[pressed].request)
        ended = []
        with pytest.raises(StopRequested):
            async with stops["outer"].scope():
                try:
                    async with stops["inner"].scope():
                        await for_ever()
                except BaseException as error:
                    ended.append(type(error))
                    raise
        assert ended == [StopRequested if pressed == "inner" else asyncio.CancelledError]
        assert cancelling() == 0

    run(main())


def test_a_scope_around_a_task_group_ends_all_its_tasks() -> None:
    async def main() -> None:
        stop = Stop()
        ended = []

        async def child() -> None:
            try:
                await for_ever()
            finally:
                ended.append("child")

        soon(stop.request, 3)
        with pytest.raises(StopRequested):
            async with stop.scope(), asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(child())
        assert ended == ["child"] * 3
        assert cancelling() == 0

    run(main())


def test_a_body_that_swallows_the_cancellation_goes_on_undisturbed() -> None:
    async def main() -> None:
        stop = Stop()
        soon(stop.request)
        async with stop.scope():
            with pytest.raises(asyncio.CancelledError):
                await for_ever()
            await asyncio.sleep(0)
        assert cancelling() == 0
        assert stop.requested
        await asyncio.sleep(0)

    run(main())


def test_a_body_that_fails_while_it_is_stopped_shows_its_failure() -> None:
    async def main() -> None:
        stop = Stop()
        soon(stop.request)
        with pytest.raises(ValueError, match="while closing"):
            async with stop.scope():
                try:
                    await for_ever()
                finally:
                    raise ValueError("while closing")
        assert cancelling() == 0

    run(main())


def test_an_earlier_swallowed_cancellation_does_not_hide_a_stop() -> None:
    async def main() -> None:
        stop = Stop()

        async def work() -> int:
            with pytest.raises(asyncio.CancelledError):
                await for_ever()
            soon(stop.request)
            with pytest.raises(StopRequested):
                async with stop.scope():
                    await for_ever()
            return cancelling()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == 1  # the swallowed one, as it was before

    run(main())


def test_a_stop_belongs_to_one_turn() -> None:
    async def main() -> None:
        first, second = Stop(), Stop()

        async def turn(stop: Stop) -> str:
            try:
                async with stop.scope():
                    await asyncio.Event().wait() if stop is first else await asyncio.sleep(0.01)
            except StopRequested:
                return "stopped"
            return "done"

        tasks = [asyncio.create_task(turn(stop)) for stop in (first, second)]
        await asyncio.sleep(0)
        first.request()
        assert await asyncio.gather(*tasks) == ["stopped", "done"]
        assert not second.requested
        with pytest.raises(StopRequested):  # and it is never cleared
            async with first.scope():
                pass

    run(main())


def test_a_request_for_a_loop_that_has_ended_is_harmless() -> None:
    stop = Stop()

    async def work() -> None:
        async with stop.scope():
            await for_ever()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it complains of the task that we leave behind on purpose
    coroutine = work()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    stop.request()
    coroutine.close()
    assert not task.done()


def test_a_scope_outside_of_a_task_says_what_is_wrong() -> None:
    async def enter() -> None:
        async with Stop().scope():
            pass

    loop = asyncio.new_event_loop()
    errors: list[BaseException] = []

    def callback() -> None:
        try:
            enter().send(None)
        except RuntimeError as error:
            errors.append(error)

    loop.call_soon(callback)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert "running task" in str(errors[0])


# ---------------------------------------------------------------- guard


@pytest.mark.parametrize("cut", range(12))
def test_the_cut_falls_on_the_same_item_even_in_one_burst(cut: int) -> None:
    async def main() -> None:
        source, stop, seen = Source(10), Stop(), []
        if cut == 0:
            stop.request()
        async with aclosing(guard(source.items(), stop)) as guarded:
            async for item in guarded:
                seen.append(item)
                if len(seen) == cut:
                    stop.request()
        assert seen == list(range(min(cut, 10)))
        assert source.given == len(seen)  # nothing was taken from the source in vain
        assert source.closed == (cut > 0)  # a generator that never ran has nothing to close
        assert cancelling() == 0

    run(main())


def test_an_item_that_arrives_together_with_stop_is_not_passed_on() -> None:
    async def main() -> None:
        stop = Stop()
        source = Source(10, before=lambda item: stop.request() if item == 3 else None)
        assert [item async for item in guard(source.items(), stop)] == [0, 1, 2]
        assert source.closed == 1

    run(main())


@pytest.mark.parametrize("ask", [lambda stop: soon(stop.request), lambda stop: from_thread(stop.request)])
def test_a_source_that_hangs_is_stopped(ask: Callable[[Stop], None]) -> None:
    async def main() -> None:
        source, stop, seen = Source(3, hang=True), Stop(), []
        async for item in guard(source.items(), stop):
            seen.append(item)
            if item == 2:
                ask(stop)
        assert seen == [0, 1, 2]
        assert source.closed == 1
        assert cancelling() == 0

    run(main())


def test_stop_does_not_cancel_the_consumer_between_two_items() -> None:
    async def main() -> None:
        source, stop, seen = Source(10), Stop(), []
        async for item in guard(source.items(), stop):
            stop.request()
            for _ in range(3):
                await asyncio.sleep(0)  # would raise if a cancellation were on its way
            seen.append(item)
        assert seen == [0]
        assert source.closed == 1

    run(main())


@pytest.mark.parametrize("stop", [None, Stop()])
def test_without_a_request_everything_passes(stop: Stop | None) -> None:
    async def main() -> None:
        source = Source(5)
        assert [item async for item in guard(source.items(), stop)] == [0, 1, 2, 3, 4]
        assert source.closed == 1

    run(main())


@pytest.mark.parametrize("stop", [None, Stop()])
def test_an_error_of_the_source_passes(stop: Stop | None) -> None:
    async def main() -> None:
        source, seen = Source(2, fail=True), []
        with pytest.raises(ValueError, match="the source broke"):
            async for item in guard(source.items(), stop):
                seen.append(item)
        assert seen == [0, 1]
        assert source.closed == 1
        assert cancelling() == 0

    run(main())


@pytest.mark.parametrize("stop", [None, Stop()])
def test_an_interrupt_closes_the_source_and_goes_on(stop: Stop | None) -> None:
    async def main() -> None:
        source, seen = Source(2, hang=True), []

        async def consume() -> None:
            async for item in guard(source.items(), stop):
                seen.append(item)

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert seen == [0, 1]
        assert source.closed == 1

    run(main())


def test_a_consumer_that_leaves_early_closes_the_source() -> None:
    async def main() -> None:
        source = Source(10)
        async with aclosing(guard(source.items(), Stop())) as guarded:
            async for _ in guarded:
                break
        assert source.closed == 1

    run(main())


def test_a_source_that_swallows_the_cancellation_gets_nothing_more_through() -> None:
    async def main() -> None:
        stop, closed = Stop(), []

        async def stubborn() -> AsyncIterator[int]:
            try:
                yield 1
                with pytest.raises(asyncio.CancelledError):
                    await for_ever()
                yield 2
                yield 3
            finally:
                closed.append(True)

        soon(stop.request, 3)
        assert [item async for item in guard(stubborn(), stop)] == [1]
        assert closed == [True]
        assert cancelling() == 0

    run(main())


def test_a_source_without_aclose_is_enough() -> None:
    class Plain:
        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> int:
            return 7

    async def main() -> None:
        stop, seen = Stop(), []
        async for item in guard(Plain(), stop):
            seen.append(item)
            if len(seen) == 4:
                stop.request()
        assert seen == [7] * 4

    run(main())


plans = st.lists(st.integers(0, 3), max_size=6)  # the rounds of the loop that each item takes


@given(plans, st.none() | st.integers(0, 15), st.none() | st.integers(0, 15), st.booleans())
def test_whatever_the_timing(plan: list[int], stop_at: int | None, cancel_at: int | None, hang: bool) -> None:
    """Stop and Interrupt at any moment: a prefix arrives, the source is closed once, and the two are never mixed up."""

    async def main() -> None:
        stop, seen, log = Stop(), [], []

        async def source() -> AsyncGenerator[int, None]:
            log.append("open")
            try:
                for item, rounds in enumerate(plan):
                    for _ in range(rounds):
                        await asyncio.sleep(0)
                    yield item
                if hang and (stop_at is not None or cancel_at is not None):
                    await for_ever()
            finally:
                log.append("closed")
                await asyncio.sleep(0)

        async def consume() -> int:
            async for item in guard(source(), stop):
                assert not stop.requested
                seen.append(item)
            log.append("ended")
            return cancelling()

        task = asyncio.create_task(consume())
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            if task.cancel():
                log.append("interrupted")

        for action, ticks in ((stop.request, stop_at), (interrupt, cancel_at)):
            if ticks is not None:
                soon(action, ticks) if ticks else loop.call_soon(action)
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        for _ in range(20):
            await asyncio.sleep(0)  # let a late request come

        assert seen == list(range(len(seen)))
        assert log.count("closed") == log.count("open")
        if "interrupted" in log and "ended" not in log:
            assert task.cancelled()
        else:
            assert result == 0, "an uncancelled end, with no cancellation left behind"
            assert stop.requested or seen == list(range(len(plan)))
        if stop_at is None and cancel_at is None:
            assert len(seen) == len(plan)

    run(main())


# In a terminal

TERMINAL = """
import asyncio
from agentlab.interrupt import Stop, ctrl_c
from agentlab.loop import run_turn
from agentlab.messages import user
from agentlab.simulator import Simulator
from agentlab.tools import Registry

async def main():
    client = Simulator(pace=0.01).client()
    for number in (1, 2, 3):
        turn = run_turn([user("count to 1000" if number < 3 else "say end")], client, Registry())
        with ctrl_c(turn.stop):
            async for event in turn:
                if type(event).__name__ == "Text" and not turn.stop.requested:
                    print("running", number, flush=True)
                    await asyncio.sleep(0.01)
                if number == 2 and turn.stop.requested:
                    print("stopping", flush=True)
                    await asyncio.sleep(60)
        print("ended", number, turn.reason, flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("left", flush=True)
"""

CLEANING = """
import asyncio, os, signal
from agentlab.interrupt import Stop, ctrl_c

async def main():
    loop = asyncio.get_running_loop()
    for after in (0.05, 0.15):
        loop.call_later(after, os.kill, os.getpid(), signal.SIGINT)
    with ctrl_c(Stop()):
        try:
            await asyncio.sleep(60)
        finally:
            print("cleaning", flush=True)
            await asyncio.sleep(0.2)
            print("cleaned", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("left", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals here")
def test_the_first_ctrl_c_stops_the_turn_and_the_second_leaves() -> None:
    child = subprocess.Popen([sys.executable, "-c", TERMINAL], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    guard = threading.Timer(60, child.kill)
    guard.start()
    said = []
    try:
        for line in child.stdout:
            said.append(line.strip())
            if line.strip() in ("running 1", "running 2", "stopping") and said.count(line.strip()) == 1:
                child.send_signal(signal.SIGINT)
    finally:
        guard.cancel()
        child.wait(10)
    told = [line for line in said if not line.startswith("running")]
    assert told == ["ended 1 stopped", "stopping", "left"]
    assert child.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals here")
def test_the_second_ctrl_c_lets_the_program_clean_up() -> None:
    child = subprocess.run([sys.executable, "-c", CLEANING], capture_output=True, text=True, timeout=60)
    assert child.stdout.split() == ["cleaning", "cleaned", "left"]
