"""A chat through a pipe: every line of stdin is said in turn, and plain text comes out.

    stdin -> lines -> Chat -> stdout (replies, tools, notes), stderr (errors)

Nobody is there to be asked, so every question is answered no. Ctrl+C stops the turn, a second one leaves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TextIO

from agentlab.chat.opening import Opener
from agentlab.chat.session import Answer, Chat, Kind
from agentlab.errors import AgentLabError

LINE_BYTES = 1_000_000
_READ_BYTES = 64 * 1024


class Plain:
    """A screen that is a stream of text."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._open = False
        self.left = self.gone = False
        self.on_gone: Callable[[], object] = lambda: None

    def text(self, piece: str) -> None:
        if not piece or (piece == "\n" and not self._open):
            return
        self._write(self._out, piece)
        self._open = not piece.endswith("\n")

    def line(self, text: str, kind: Kind = "note") -> None:
        if self._open:
            self.text("\n")
        if kind == "error":
            self._write(self._err, f"agentlab: {text}\n")
        else:
            self._write(self._out, f"{text}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError:  # nobody reads any more: nothing is left to say, at exit neither
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            self.left = self.gone = True
            self.on_gone()

    async def ask(self, question: str) -> Answer:
        self.line(f"{question} no: nobody is there to be asked")
        return "no"

    def draft(self, text: str) -> None:
        """There is nothing to type into."""

    def changed(self) -> None:
        """There is no status to draw anew."""

    def leave(self) -> None:
        self.left = True


async def run(opener: Opener, stdin: int, out: TextIO, err: TextIO, *, resume: str | None = None) -> int:
    """Chat until the descriptor `stdin` ends. Returns the exit status: 0, 1 after any error, 130 after Ctrl+C."""
    screen = Plain(out, err)
    chat = Chat(opener, screen, resume=resume)
    screen.on_gone = chat.interrupt
    loop, main = asyncio.get_running_loop(), asyncio.current_task()

    def pressed() -> None:
        if (chat.interrupt() or not chat.busy) and main:
            main.cancel()

    with suppress(NotImplementedError, RuntimeError):  # not on this system, or not in the main thread
        loop.add_signal_handler(signal.SIGINT, pressed)
    interrupted = False
    try:
        chat.start()
        await chat.settled()
        async for line in lines(stdin):
            chat.submit(line)
            await chat.settled()
            if screen.left:
                break
    except asyncio.CancelledError:
        interrupted = True
        if main:
            main.uncancel()
    finally:
        await chat.leave()
        with suppress(NotImplementedError, RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)
    return 130 if interrupted else int(chat.failed or screen.gone)


async def lines(descriptor: int) -> AsyncIterator[str]:
    """The lines that can be read there. Raises AgentLabError for one that never seems to end."""
    held = b""
    while data := await _read(descriptor):
        *whole, held = (held + data).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if len(held) > LINE_BYTES:
            raise AgentLabError(f"A line of more than {LINE_BYTES:,} bytes: break it into several, or name a file.")
    if held:
        yield held.decode("utf-8", "replace")


async def _read(descriptor: int) -> bytes:
    """What comes next, b"" at the end. In a thread that nobody has to wait for: Ctrl+C must get through."""
    loop = asyncio.get_running_loop()
    data: asyncio.Future[bytes] = loop.create_future()

    def settle(read: bytes) -> None:
        if not data.done():
            data.set_result(read)

    def work() -> None:
        try:
            read = os.read(descriptor, _READ_BYTES)
        except OSError:
            read = b""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, read)

    threading.Thread(target=work, name="stdin", daemon=True).start()
    return await data
