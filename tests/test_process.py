"""A command's output comes back clean and bounded, and whatever ends the command, nothing of it is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cases import case
from clean_run import run as run_clean
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentlab import process
from agentlab.process import Ended, Kept
from agentlab.terminal import clean, decode

HERE = Path(__file__).parent
_numbers = itertools.count(1)


def run(command: str, *, cwd: Path = HERE, timeout_s: float = 30, **options: Any) -> Ended:
    return run_clean(process.run(command, cwd=cwd, timeout_s=timeout_s, **options))


def nap() -> str:
    """A command that sleeps for an hour, and whose command line no other process on this machine has."""
    return f"sleep 3600.{os.getpid()}{next(_numbers):04}"


def sleepers(nap: str) -> list[psutil.Process]:
    """The living processes that are this nap. (A dead one that nobody has reaped has no command line any more.)"""
    return [found for found in psutil.process_iter(["cmdline"]) if " ".join(found.info["cmdline"] or []) == nap]


async def until(holds: Callable[[], Any]) -> None:
    """Wait for it. The time limit of the clean run is the guard."""
    while not holds():  # noqa: ASYNC110 -- what it waits for happens in another process
        await asyncio.sleep(0.01)


async def asleep(nap: str, count: int = 1) -> list[psutil.Process]:
    await until(lambda: len(sleepers(nap)) >= count)
    return sleepers(nap)


def shells(nap: str) -> list[psutil.Process]:
    """Our own children that have this nap in their command line."""
    ours = psutil.Process().pid
    found = psutil.process_iter(["ppid", "cmdline"])
    return [child for child in found if child.info["ppid"] == ours and nap in " ".join(child.info["cmdline"] or [])]


def gone(nap: str, *, within_s: float = 2.0) -> bool:
    """Whether nothing of it is alive any more after so many seconds."""
    end = time.monotonic() + within_s
    while sleepers(nap) and time.monotonic() < end:
        time.sleep(0.02)
    return not sleepers(nap)


def zombies() -> set[int]:
    """Our children that have ended and wait to be reaped."""
    ours = psutil.Process().pid
    found = psutil.process_iter(["ppid", "status"])
    return {child.pid for child in found if (child.info["ppid"], child.info["status"]) == (ours, psutil.STATUS_ZOMBIE)}


@pytest.fixture(autouse=True)
def every_child_is_reaped() -> Iterator[None]:
    before = zombies()
    yield
    assert zombies() <= before


# ---------------------------------------------------------------- what comes back


def test_a_command_that_works() -> None:
    assert run("echo hello") == Ended("hello\n", 0)


@pytest.mark.parametrize("code", [0, 1, 2, 126, 255])
def test_the_exit_code_is_the_shells(code: int) -> None:
    assert run(f"exit {code}") == Ended("", code)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_a_negative_code(signum: signal.Signals) -> None:
    assert run(f"kill -{int(signum)} $$") == Ended("", -signum)


def test_both_streams_are_one_text_in_order() -> None:
    assert run("echo 1; echo 2 >&2; echo 3; echo 4 >&2").output == "1\n2\n3\n4\n"


def test_it_runs_in_the_folder(tmp_path: Path) -> None:
    assert run("pwd -P", cwd=tmp_path).output == f"{tmp_path.resolve()}\n"


def test_stdin_is_empty_and_there_is_no_terminal() -> None:
    ours, (read_end, write_end) = os.dup(0), os.pipe()
    try:
        os.dup2(read_end, 0)  # somebody types while the agent works
        os.write(write_end, b"typed\n")
        assert run("cat; echo end").output == "end\n"
        assert run("read line").exit_code == 1
    finally:
        os.dup2(ours, 0)
        for end in (ours, read_end, write_end):
            os.close(end)
    assert run("(: </dev/tty) 2>/dev/null").exit_code != 0  # a password prompt fails at once


def test_the_environment_is_the_given_one() -> None:
    assert run("echo $SECRET-$SHOWN", env={"SHOWN": "1", "PATH": os.environ["PATH"]}).output == "-1\n"


def test_bytes_that_are_no_utf_8_do_not_break_it() -> None:
    """Case O07."""
    found = case("O07")
    ended = run(found["input"]["command"])
    assert ended.exit_code == 0
    assert all(part in ended.output for part in found["expected"]["contains"])
    assert ended.output == "before\n\ufffd\ufffd\nafter\n"


def test_the_output_is_cleaned() -> None:
    assert run(r"printf '\033[31mred\033[0m\r\n10%%\r100%%\n'").output == "red\n100%\n"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_no_byte_is_lost(size: int) -> None:
    assert run(f"head -c {size} /dev/zero | tr '\\0' x").output == "x" * size


def test_a_command_that_cannot_start_raises_and_leaves_no_file_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        run("true", cwd=tmp_path / "missing")
    with pytest.raises(OSError):
        run("x" * 10_000_000)
    with pytest.raises(ValueError):
        run("echo \0")
    run("true")
    assert len(os.listdir("/proc/self/fd")) == len(before)


# ---------------------------------------------------------------- time limit, and what is left in the background


def test_the_time_limit_ends_it_and_keeps_what_was_said() -> None:
    slept = nap()
    ended = run(f"echo first; {slept}; echo never", timeout_s=1)
    assert ended == Ended("first\n", None)
    assert gone(slept)


def test_a_command_that_floods_is_ended_at_the_limit_and_stays_bounded() -> None:
    ended = run("yes", timeout_s=0.3, limit=10_000)
    assert ended.exit_code is None
    assert len(ended.output) < 10_100
    assert "bytes left out]" in ended.output


@pytest.mark.parametrize(
    "start", ["{nap} &", "{nap} >/dev/null 2>&1 &", "(trap '' TERM; {nap}) &", "nohup {nap} >/dev/null 2>&1 &"]
)
def test_a_background_process_is_ended_and_told(start: str) -> None:
    slept = nap()
    ended = run(start.format(nap=slept) + " echo started", grace_s=0.1)
    assert ended == Ended("started\n", 0, left_running=True)
    assert gone(slept)


def test_nothing_is_told_when_nothing_was_left() -> None:
    assert not run("(sleep 0.05; echo late) & wait").left_running


def test_a_background_process_may_finish_what_it_was_saying() -> None:
    ended = run("(sleep 0.2; echo late) & echo early", grace_s=20)
    assert ended == Ended("early\nlate\n", 0)


def test_sigterm_comes_first() -> None:
    """A process that tidies up when it is asked to end has the time to do so."""
    tidy = "trap 'echo tidied; exit' TERM; echo ready; while :; do sleep 0.01; done"
    ended = run(tidy, timeout_s=1, grace_s=20)
    assert ended.output.splitlines()[-1] == "tidied"


def test_a_daemon_with_a_session_of_its_own_does_not_hold_the_call() -> None:
    slept = nap()

    async def main() -> None:
        ended = await process.run(f"setsid {slept} & echo on its own", cwd=HERE, timeout_s=30, grace_s=0.1)
        assert ended.output == "on its own\n"
        ended = await process.run("setsid yes 2>/dev/null & sleep 0.1", cwd=HERE, timeout_s=30, limit=1000)
        assert len(ended.output) < 1100
        ended = await process.run("yes | head -c 300000", cwd=HERE, timeout_s=30)  # the next call on this loop
        assert (len(ended.output), ended.exit_code) == (300_000, 0)

    try:
        run_clean(main())
    finally:
        for left in sleepers(slept):
            left.kill()


def test_what_is_read_in_the_end_is_bounded_though_a_daemon_writes_on() -> None:
    class Echo(Kept):
        def add(self, data: bytes) -> None:
            super().add(data)
            os.write(self.write_end, data)

    async def main() -> None:
        kept = Echo()
        with process._pipe_into(kept) as (kept.write_end, _):
            os.write(kept.write_end, b"for ever")
        os.close(kept.write_end)
        assert kept.text().startswith("for everfor ever")

    run_clean(main())


# ---------------------------------------------------------------- Stop and Interrupt

TREES = {
    "the shell itself": "exec {nap}",
    "a child": "{nap}; true",
    "a pipeline": "{nap} | cat; true",
    "a grandchild that ignores SIGTERM": "sh -c \"trap '' TERM; {nap}; true\"; true",
    "all of them ignore SIGTERM": "trap '' TERM INT HUP; ({nap}; true) & ({nap}; true) & wait; wait",
    "its own group, by timeout": "timeout 3000 {nap}; true",
    "its own group, by job control": "bash -c 'set -m; {nap} & wait'; true",
    "an orphan": "(({nap}) &); sleep 3600",
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_a_cancelled_command_leaves_nobody(tree: str) -> None:
    """Case I07, and worse."""
    expected = case("I07")["expected"]
    slept = nap()

    async def main() -> None:
        task = asyncio.create_task(process.run(tree.format(nap=slept), cwd=HERE, timeout_s=60))
        await asleep(slept, tree.count("{nap}"))
        (shell,) = shells(slept)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled() is expected["task.cancelled()"]
        assert shell.is_running() is not expected["child_reaped"]  # a zombie would still count as running

    run_clean(main())
    assert gone(slept) is not expected["child_alive_after_2s"]


@pytest.mark.parametrize("ticks", range(12))
def test_a_cancellation_while_the_shell_is_being_started_leaves_nobody(ticks: int) -> None:
    slept = nap()

    async def main() -> None:
        task = asyncio.create_task(process.run(f"{slept} & {slept}; true", cwd=HERE, timeout_s=60))
        for _ in range(ticks):
            await asyncio.sleep(0)
        if shells(slept):
            while len(sleepers(slept)) < 2:  # without giving the loop a chance to notice
                time.sleep(0.01)  # noqa: ASYNC251
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    before = len(os.listdir("/proc/self/fd"))
    run_clean(main())
    assert gone(slept)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 0.4])
def test_a_second_cancellation_does_not_save_anybody(pause_s: float) -> None:
    """Stop, and then Interrupt by somebody who does not want to wait for the grace."""
    slept = nap()

    async def main() -> None:
        command = f"trap '' TERM; ({slept}; true) & {slept}; true"
        task = asyncio.create_task(process.run(command, cwd=HERE, timeout_s=60))
        await asleep(slept, 2)
        task.cancel()
        await asyncio.sleep(pause_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    run_clean(main())
    assert gone(slept)


def test_a_stopped_process_is_ended_too() -> None:
    slept = nap()

    async def main() -> None:
        task = asyncio.create_task(process.run(f"{slept}; true", cwd=HERE, timeout_s=60))
        for sleeper in await asleep(slept):
            sleeper.suspend()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_clean(main())
    assert gone(slept)


def test_other_peoples_processes_live_on() -> None:
    """Only the command's own session is ended, not its neighbours, and not those who run beside it."""
    mine, other = nap(), nap()
    outside = subprocess.Popen(other.split())
    try:

        async def main() -> None:
            first = asyncio.create_task(process.run(f"{mine}; true", cwd=HERE, timeout_s=60))
            second = asyncio.create_task(process.run("sleep 0.3; echo done", cwd=HERE, timeout_s=60))
            await asleep(mine)
            first.cancel()
            assert await second == Ended("done\n", 0)
            await asyncio.gather(first, return_exceptions=True)

        run_clean(main())
        assert gone(mine)
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


def test_it_runs_on_the_loop_of_another_thread() -> None:
    """A notebook's kernel may run a cell on a loop that is not the main thread's."""

    async def main() -> Ended:
        work: Coroutine[Any, Any, Ended] = process.run("echo there", cwd=HERE, timeout_s=30)
        return await asyncio.to_thread(asyncio.run, work)

    assert run_clean(main()) == Ended("there\n", 0)


# ---------------------------------------------------------------- what is kept of a long output


def kept(chunks: list[bytes], limit: int) -> str:
    output = Kept(limit)
    for chunk in chunks:
        output.add(chunk)
    return output.text()


def cut(text: str) -> tuple[str, int, str] | None:
    """The text before the cut, the bytes left out, the text behind."""
    found = re.fullmatch(r"(.*)\n\[([\d,]+) bytes left out\]\n(.*)", text, re.S)
    return (found[1], int(found[2].replace(",", "")), found[3]) if found else None


def test_the_middle_of_a_long_output_is_dropped_and_counted() -> None:
    assert kept([b"a" * 1000], 100) == "a" * 50 + "\n[900 bytes left out]\n" + "a" * 50
    assert kept([b"a" * 100], 100) == "a" * 100
    assert kept([b"a" * 101], 100) == "a" * 50 + "\n[1 bytes left out]\n" + "a" * 50


def test_the_cut_falls_between_two_lines() -> None:
    lines = [f"line {n}\n".encode() for n in range(10_000)]
    head, left_out, tail = cut(kept(lines, 4010)) or pytest.fail("nothing was cut")
    assert head.splitlines() == [f"line {n}" for n in range(len(head.splitlines()))]
    assert tail.splitlines() == [f"line {n}" for n in range(10_000 - len(tail.splitlines()), 10_000)]
    assert len(b"".join(lines)) == len(head) + 1 + left_out + len(tail)


@given(
    st.lists(st.sampled_from(["a", "é", "日", "🐙", "\n", "word ", "🐙" * 40, "x" * 150]), max_size=60).map("".join),
    st.integers(16, 400),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
)
def test_characters_stay_whole_and_nothing_is_miscounted(text: str, limit: int, sizes: list[int]) -> None:
    data, chunks, at = text.encode(), [], 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            break
        chunks.append(data[at : at + size])
        at += size
    found = kept(chunks, limit)
    assert found == kept([data], limit)  # however the bytes arrived
    assert "\ufffd" not in found
    assert len(found.encode()) <= limit + 40
    if len(data) <= limit - limit % 2:
        assert found == text
        return
    parts = cut(found)
    assert parts is not None
    head, left_out, tail = parts
    assert text.startswith(head)
    assert text.endswith(tail)
    line_end = len(data) - len(head.encode()) - left_out - len(tail.encode())  # the note stands on a line of its own
    assert line_end == 0 or (line_end == 1 and text.startswith(head + "\n"))


@given(st.binary(max_size=600), st.integers(2, 300))
@example(b"\x80" * 500, 100)
@example(b"\xf0\x9f\x90" * 100, 50)
def test_any_bytes_can_be_kept(data: bytes, limit: int) -> None:
    found = kept([data], limit)
    if len(data) <= limit - limit % 2:
        assert found == clean(decode(data))
    else:
        _, left_out, _ = cut(found) or pytest.fail("nothing was cut")
        assert len(data) - limit <= left_out <= len(data) - limit + 1 + limit // 8 + 8


def test_bytes_that_are_no_characters_are_not_thrown_away_at_the_cut() -> None:
    head, left_out, tail = cut(kept([b"\x80" * 500], 100)) or pytest.fail("nothing was cut")
    assert (len(head), left_out, len(tail)) == (50, 400, 50)
    head, left_out, tail = cut(kept([b"\x80" * 480 + b"a" * 20], 100)) or pytest.fail("nothing was cut")
    assert (len(head), left_out, len(tail)) == (50, 400, 50)


def test_only_what_is_kept_is_in_memory() -> None:
    output, chunk = Kept(10_000), b"x" * 5_000
    tracemalloc.start()
    try:
        for _ in range(2000):
            output.add(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert "[9,990,000 bytes left out]" in output.text()


def test_a_big_output_of_a_real_command() -> None:
    size = 30_000_000
    head, left_out, tail = cut(run(f"yes 日本語 | head -c {size}", limit=1000).output) or pytest.fail("nothing was cut")
    assert set(head.splitlines()) == {"日本語"}
    assert size == len(head.encode()) + 1 + left_out + len(tail.encode())


@pytest.mark.soak
def test_a_gigabyte_in_bounded_memory() -> None:
    program = (
        "import asyncio, pathlib, re\n"
        "from agentlab import process\n"
        "run = process.run('head -c 1000000000 /dev/zero', cwd=pathlib.Path('.'), timeout_s=300)\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak()\n"  # ru_maxrss would be the parent's, when that is larger
        "ended = asyncio.run(run)\n"
        "assert ended.exit_code == 0 and '991,611,392 bytes left out' in ended.output, ended.output[-200:]\n"
        "grown = peak() - before\n"
        "assert grown < 100_000, grown\n"  # KiB
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=HERE.parent, timeout=400)


@pytest.mark.soak
@settings(max_examples=40)
@given(st.floats(0, 0.15), st.sampled_from(list(TREES.values())))
def test_a_cancellation_at_any_moment(after_s: float, tree: str) -> None:
    slept = nap()

    async def main() -> None:
        task = asyncio.create_task(process.run(tree.format(nap=slept), cwd=HERE, timeout_s=60))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    run_clean(main())
    assert gone(slept)
