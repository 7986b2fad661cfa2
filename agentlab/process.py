"""Run one shell command so that nothing of it is left behind.

The command leads its own session. Whatever ends the wait for it (its own end, the time limit, Stop, Interrupt), the
whole session is ended with it: first asked (SIGTERM), then killed. So grandchildren die too, also those that `timeout`
or job control put into groups of their own, and a background process that keeps the pipe open cannot hold the turn.
Only a program that makes itself a session (a daemon, `setsid`) goes on; where there is no /proc (macOS), one in
another group too. Memory is bounded: of a long output the middle is dropped.
(Seed 000: an abort that reaches the HTTP layer only leaves the command running.)
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Protocol

from agentlab.terminal import clean, decode

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024  # what a pipe holds at most (pipe(7))
_GRACE_S = 0.3
_KILL_S = 1.0  # nobody outlives SIGKILL for longer, unless the kernel holds him
_LOOK_S = 0.02  # between two looks at who is left

Shell = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Ended:
    """What came of a command. `exit_code` is None when the time limit ended it; negative numbers are signals."""

    output: str
    exit_code: int | None
    left_running: bool = False
    """The shell ended, but something that it had started was still running, and was ended."""


class Receiver(Protocol):
    """What takes a command's output, piece by piece, as it comes."""

    def add(self, data: bytes) -> None: ...


class Kept:
    """The first and the last bytes of an output, `limit` of them at most, and how many there were."""

    def __init__(self, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:  # seldom, so that a byte is moved about once
            del self._tail[: len(self._tail) - self._half]

    def text(self) -> str:
        """The output as text for the model: see `clean`. A cut falls between two lines, or else two characters."""
        head, tail = bytes(self._head), bytes(self._tail)
        if self._total <= 2 * self._half:
            return clean(decode(head + tail))
        tail = tail[len(tail) - self._half :]
        reach = self._half // 8
        head = head[: head.rfind(b"\n", len(head) - reach) + 1 or codecs.utf_8_decode(head, "replace", False)[1]]
        tail = tail[tail.find(b"\n", 0, reach) + 1 or _first_start(tail) :]
        left_out = self._total - len(head) - len(tail)
        return f"{clean(decode(head)).removesuffix(chr(10))}\n[{left_out:,} bytes left out]\n{clean(decode(tail))}"


def _first_start(data: bytes) -> int:
    """Where the first UTF-8 character starts: behind three bytes of the one before at most."""
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


async def run(
    command: str,
    *,
    cwd: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    into: Receiver | None = None,
    limit: int = MAX_OUTPUT_BYTES,
    grace_s: float = _GRACE_S,
) -> Ended:
    """Run a command in a shell, with stdout and stderr in one text, no input, at most `timeout_s` seconds.

    Of the output `limit` bytes are kept; or all of it goes `into` a receiver, and `Ended.output` is empty. What the
    shell leaves behind has `grace_s` seconds to close the output, and then again to heed SIGTERM. A cancellation (Stop,
    Interrupt) ends the session and passes on. Raises OSError or ValueError when the command cannot be started: no such
    folder, too long, a NUL in it.
    """
    kept = Kept(limit)
    exit_code: int | None = None
    with _pipe_into(into or kept) as (write_end, closed):
        shell = _start(command, write_end, cwd=cwd, env=env)  # from here on until the `try` nothing can cancel us
        try:
            async with asyncio.timeout(timeout_s):
                exit_code = await _end_of(shell)
            async with asyncio.timeout(grace_s):
                await closed.wait()
        except TimeoutError:
            pass
        finally:
            left = session_of(shell.pid)
            try:
                await ask_to_end(shell.pid, left, grace_s)
            finally:
                kill_session(shell)
    return Ended(kept.text(), exit_code, bool(left) and exit_code is not None)


@contextmanager
def _pipe_into(kept: Receiver) -> Iterator[tuple[int, asyncio.Event]]:
    """The end to write to, and an event for when nobody holds it any more.

    asyncio's own would be waited for until everybody has let go of it.
    """
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)

    def read() -> bytes:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(read_end, _CHUNK_BYTES)
            kept.add(data)
            if not data:
                loop.remove_reader(read_end)
                closed.set()
        return data

    loop.add_reader(read_end, read)
    try:
        yield write_end, closed
    finally:
        loop.remove_reader(read_end)
        for _ in range(_PIPE_BYTES // _CHUNK_BYTES):  # no more: a daemon may still be writing
            if not read():
                break
        os.close(read_end)


def _start(command: str, output: int, *, cwd: Path, env: Mapping[str, str] | None) -> Shell:
    try:
        return subprocess.Popen(
            command, shell=True, stdin=DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env, start_new_session=True
        )
    finally:
        os.close(output)


async def _end_of(shell: Shell) -> int:
    """The exit code, once there is one. Looking for it needs no thread, and works on every event loop."""
    pause_s = _LOOK_S / 16
    while (code := shell.poll()) is None:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_S)
    return code


async def ask_to_end(leader: int, left: Sequence[int], grace_s: float) -> None:
    """Send SIGTERM to these processes, and wait until the session is empty, `grace_s` seconds at most."""
    _signal(left, signal.SIGTERM)
    for _ in range(round(grace_s / _LOOK_S)):
        if not left:
            break
        await asyncio.sleep(_LOOK_S)
        left = session_of(leader)


def kill_session(shell: Shell) -> None:
    """End the session for good, and reap the shell. Without `await`: a second cancellation must not interrupt it."""
    for _ in range(round(_KILL_S / _LOOK_S)):  # again, for those that were being started meanwhile
        if not (left := session_of(shell.pid)):
            break
        _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_S / 4)
    with suppress(subprocess.TimeoutExpired):
        shell.wait(_KILL_S)


def session_of(leader: int) -> list[int]:
    """The living processes of a session, as `os.kill` takes them."""
    if not os.path.exists("/proc/self/stat"):
        with suppress(ProcessLookupError, PermissionError):  # macOS answers a group of zombies with the second
            os.kill(-leader, 0)
            return [-leader]
        return []
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            stat = Path("/proc", pid, "stat").read_bytes()
            state, _parent, _group, session = stat.rpartition(b")")[2].split()[:4]  # proc_pid_stat(5)
            if int(session) == leader and state not in (b"Z", b"X"):
                found.append(int(pid))
    return found


def _signal(processes: Sequence[int], signum: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signum)
