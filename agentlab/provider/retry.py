"""Try again, where nothing can be lost or happen twice by it.

    request -> fails before a word -> wait (stoppable) -> the same request -> ... -> the last error
                  after a word     -> the error at once: what was shown stays, and the person says 'continue'

1. Only what may pass is tried again: too many requests (429), no answer (5xx, time-outs, connections that broke), and
   a stream that ended before anything had arrived. A refusal, an overflow too, would come again.
2. Once a piece of the reply is there it is never asked for anew: a second reply is another one, and could call other
   tools. No tool runs before its reply is whole, so a retry never runs one twice.
3. A wait doubles from try to try, is no shorter than the provider asks for, and hears Stop at once. A provider that
   asks for more than the longest wait is not kept waiting for in silence: its error is raised.

(AWS Architecture Blog, "Exponential backoff and jitter"; RFC 9110, Retry-After.)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentlab.errors import AgentLabError, ProviderUnavailable, RateLimited, StopRequested, StreamError
from agentlab.interrupt import Stop
from agentlab.messages import Message
from agentlab.provider.client import Streamed, Streaming

WHY_CHARS = 200
_DOUBLINGS = 60  # more would pass every longest wait, and then what a float holds


class OneTry(Streamed, Protocol):
    """What is needed of a reply (`agentlab.provider.Reply` is one)."""

    def __aiter__(self) -> AsyncIterator[str]: ...
    async def aclose(self) -> None: ...


class Streams(Protocol):
    """What is needed of a client (`agentlab.provider.ChatClient` is one)."""

    def stream(
        self, history: Sequence[Message], tools: Sequence[dict[str, Any]] = (), stop: Stop | None = None
    ) -> OneTry: ...


@dataclass(frozen=True)
class Retry:
    """Try number `attempt` (from 1) of `of` has failed; the next one follows in `wait_s` seconds."""

    attempt: int
    of: int
    wait_s: float
    why: str
    """The error's first line, printable and at most 200 characters; it may quote the provider."""

    usage: dict[str, Any] | None = None
    """What the provider had reported for the try that failed, if anything: it may be on its bill."""

    @property
    def sentence(self) -> str:
        """What happens, for people."""
        return f"Try {self.attempt} of {self.of} failed; the next one in {self.wait_s:.3g} s. {self.why}"


class Retrying:
    """A client that tries again: `run_turn(history, Retrying(client), registry)`.

    `tries` counts the first one. The wait after the n-th is `base_s * 2**(n-1)` seconds, at most `max_s`, shortened by
    up to a half at random, so that many clients do not come back at the same moment; what the provider asks for
    (`retry-after`) is the least, and is not waited for when it is above `max_s`. `on_retry` is told before every wait.
    `sleep` (seconds) and `jitter` (a number from 0 to 1) can be replaced, for tests. All else is the client's own:
    `model`, `dialect`, `base_url`. Raises AgentLabError for numbers that make no sense.
    """

    def __init__(
        self,
        client: Streams,
        *,
        tries: int = 4,
        base_s: float = 1.0,
        max_s: float = 30.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        on_retry: Callable[[Retry], object] | None = None,
    ) -> None:
        if tries < 1 or not 0 <= base_s < float("inf") or not 0 <= max_s < float("inf"):
            raise AgentLabError("Retrying needs tries of 1 or more, and base_s and max_s in seconds, 0 or more.")
        self._client = client
        self._tries, self._base_s, self._max_s = tries, base_s, max_s
        self._sleep, self._jitter, self._on_retry = sleep, jitter, on_retry

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not there before __init__, as while unpickling: never look for `_client` in itself
            raise AttributeError(name)
        return getattr(self._client, name)

    def __repr__(self) -> str:
        return f"Retrying({self._client!r}, tries={self._tries})"

    def stream(
        self, history: Sequence[Message], tools: Sequence[dict[str, Any]] = (), stop: Stop | None = None
    ) -> RetryingReply:
        """Like the client's own `stream`: nothing is sent before the reply is iterated."""
        heard = Stop() if stop is None else stop
        return RetryingReply(lambda: self._client.stream(history, tools, heard), self._wait_for, heard)

    async def complete(
        self, history: Sequence[Message], tools: Sequence[dict[str, Any]] = (), stop: Stop | None = None
    ) -> Message:
        """The whole assistant message. Raises StopRequested when stopped before its end."""
        reply = self.stream(history, tools, stop)
        async for _ in reply:
            pass
        if not reply.complete:
            raise StopRequested("Stop was pressed before the reply was complete.")
        return reply.message()

    async def _wait_for(self, failed: int, error: AgentLabError, usage: dict[str, Any] | None, stop: Stop) -> bool:
        """Wait for the next try. False when there is none, and the error says why."""
        asked: float = getattr(error, "retry_after", None) or 0.0
        if failed >= self._tries:
            _add(error, f"It was tried {failed} times." if failed > 1 else "")
            return False
        if asked > self._max_s:
            _add(error, f"That is longer than {self._max_s:g} s, the longest wait: it was not tried again.")
            return False
        backoff = min(self._base_s * 2.0 ** min(failed - 1, _DOUBLINGS), self._max_s)
        wait_s = max(backoff * (1 - self._jitter() / 2), asked)
        async with stop.scope():
            if self._on_retry:
                self._on_retry(Retry(failed, self._tries, wait_s, _first_line(error), usage))
            await self._sleep(wait_s)
        return True


WaitFor = Callable[[int, AgentLabError, dict[str, Any] | None, Stop], Awaitable[bool]]


class RetryingReply(Streaming):
    """One streamed reply, by as many tries as it takes: iterate over its text, ask for the `message()` at any time.

    Iterating raises the error of the last try. After Stop it just ends, while it waits, too. `usage` is that of the
    current try.
    """

    def __init__(self, ask: Callable[[], OneTry], wait_for: WaitFor, stop: Stop) -> None:
        self._reply = self._source = ask()
        self._texts = self._read(ask, wait_for, stop)

    async def _read(self, ask: Callable[[], OneTry], wait_for: WaitFor, stop: Stop) -> AsyncGenerator[str, None]:
        shown, failed = False, 0
        while True:
            try:
                async for text in self._reply:
                    shown = True
                    yield text
                return
            except (RateLimited, ProviderUnavailable, StreamError) as error:
                failed += 1
                if shown or error.partial is not None:
                    raise
                try:
                    if not await wait_for(failed, error, self._reply.usage, stop):
                        raise
                except StopRequested:
                    return
            finally:
                await self._reply.aclose()
            self._reply = self._source = ask()


def _add(error: AgentLabError, sentence: str) -> None:
    error.args = (f"{error} {sentence}".rstrip(),)


def _first_line(error: AgentLabError) -> str:
    line = next(iter(str(error).splitlines()), "")
    return "".join(char if char.isprintable() else " " for char in line[:WHY_CHARS])
