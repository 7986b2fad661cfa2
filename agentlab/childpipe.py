"""A child process to talk with over its stdin and stdout, which leaves nothing behind.

    write -> stdin [child] stdout -> on_output, then on_end        stderr -> drained, the last bytes kept

Both outputs are read all the time and in bounded pieces: a child whose stderr nobody reads hangs after some 64 KB. The
pipes are watched by the event loop itself: no thread, and no task that somebody would have to await.

The child leads its own session. The way out has three steps: stdin ends, SIGTERM, SIGKILL; the last two reach the whole
session, since a launcher such as npx starts the real server as a grandchild. (MCP, "Lifecycle: shutdown"; seed 003.)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

from agentlab.process import ask_to_end, kill_session, session_of

STDERR_BYTES = 8192
_CHUNK_BYTES = 256 * 1024
_DRAIN_READS = 8
_LOOK_S = 0.02


class Child:
    """A running child process. Made inside the event loop that is to serve it.

    `env` is all the environment that it gets. Raises OSError or ValueError when it cannot be started.
    """

    def __init__(
        self,
        command: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path | None,
        on_output: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_output, self._on_end = on_output, on_end
        self._process = subprocess.Popen(
            [command, *args],
            stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0, env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        self._abandoned = weakref.finalize(self, _abandon, self._process)  # runs at the end of Python too
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout, self._stderr = (
            pipe.fileno() for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._to_send = bytearray()
        self._errors = bytearray()
        self._writable = True
        for end in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(end, False)
        self._loop.add_reader(self._stdout, self._read_output)
        self._loop.add_reader(self._stderr, self._read_errors)

    @property
    def pid(self) -> int:
        """The child's process id, which is its session's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative number of a signal that ended it."""
        return self._process.poll()

    @property
    def stderr_tail(self) -> str:
        """The last bytes that it wrote to stderr, 8,192 at most."""
        return self._errors[-STDERR_BYTES:].decode("utf-8", "replace")

    @property
    def queued_bytes(self) -> int:
        """What was written and the child has not taken yet."""
        return len(self._to_send)

    def write(self, data: bytes) -> None:
        """Send bytes as soon as the child takes them. Nothing happens when it no longer does."""
        if self._writable:
            waiting = bool(self._to_send)
            self._to_send += data
            if not waiting:
                self._flush()

    async def close(self, grace_s: float) -> None:
        """End the child: stdin ends, SIGTERM, SIGKILL, with `grace_s` seconds before each signal. All is gone then."""
        try:
            self._end_input()
            await self.ended(grace_s)
            await ask_to_end(self.pid, session_of(self.pid), grace_s)
        finally:
            self.kill()

    async def ended(self, within_s: float) -> None:
        """Wait until it has ended, at most so many seconds."""
        end = time.monotonic() + within_s
        while self.exit_code is None and time.monotonic() < end:  # noqa: ASYNC110 -- it happens in another process
            await asyncio.sleep(_LOOK_S)

    def kill(self) -> None:
        """End the child and its whole session at once. Safe at any time, any number of times."""
        if not self._abandoned.alive:
            return
        self._end_input()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.remove_reader(self._stdout)
            self._loop.remove_reader(self._stderr)
        self.drain_errors()
        self._abandoned()

    def drain_errors(self) -> None:
        """Take what has been written to stderr up to now."""
        for _ in range(_DRAIN_READS):
            if not self._take_errors():
                break

    def _end_input(self) -> None:
        self._to_send.clear()
        if self._writable:
            self._writable = False
            with suppress(RuntimeError):
                self._loop.remove_writer(self._stdin)
            assert self._process.stdin
            with suppress(OSError):
                self._process.stdin.close()

    def _flush(self) -> None:
        try:
            while self._to_send:
                del self._to_send[: os.write(self._stdin, self._to_send[:_CHUNK_BYTES])]
        except BlockingIOError:
            self._loop.add_writer(self._stdin, self._flush)
        except OSError:  # nobody reads any more
            self._end_input()
        else:
            self._loop.remove_writer(self._stdin)

    def _read_output(self) -> None:
        data = _read(self._stdout)
        if data:
            self._on_output(data)
        elif data is not None:
            self._loop.remove_reader(self._stdout)
            self.drain_errors()
            self._on_end()

    def _read_errors(self) -> None:
        if self._take_errors() == b"":
            self._loop.remove_reader(self._stderr)

    def _take_errors(self) -> bytes | None:
        data = _read(self._stderr)
        self._errors += data or b""
        del self._errors[:-STDERR_BYTES]
        return data


def _read(end: int) -> bytes | None:
    """What there is: None for nothing yet, no bytes for the end."""
    try:
        return os.read(end, _CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _abandon(process: subprocess.Popen[bytes]) -> None:
    kill_session(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):
                pipe.close()
