"""The client: one request, streamed, with every failure as one clear error that keeps what had arrived."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import httpx

from agentlab import jsonio
from agentlab.assemble import Assembler
from agentlab.errors import (
    KEPT,
    NOTHING_CAME,
    AgentLabError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    StopRequested,
    StreamError,
)
from agentlab.interrupt import Stop, guard
from agentlab.messages import Message
from agentlab.provider.anthropic import Anthropic
from agentlab.provider.breakpoints import Ttl, has_marks
from agentlab.provider.deepseek import DeepSeek
from agentlab.provider.dialect import RESTART, Dialect, refusal
from agentlab.provider.openai import OpenAI

if TYPE_CHECKING:
    import ssl

_DIALECTS: dict[str, Dialect] = {"openai": OpenAI(), "deepseek": DeepSeek(), "anthropic": Anthropic()}
_MAX_ERROR_BYTES = 256 * 1024
_MAX_WHOLE_BYTES = 64 * 1024 * 1024
_SECRET_CHARS = 8
_CONNECT_S = 15.0

_HEAD_BYTES = 200
_FIELDS = (b":", b"data", b"event", b"id", b"retry", b"\xef\xbb\xbf")

Events = Callable[[Callable[[], object]], AsyncGenerator[dict[str, Any], None]]


class Assembles(Protocol):
    """What a reply needs of an assembler (`agentlab.assemble.Assembler` is one; a reader's own may be another)."""

    finish_reason: str | None
    usage: dict[str, Any] | None

    @property
    def complete(self) -> bool: ...
    def feed(self, event: dict[str, Any], /) -> str: ...
    def done(self) -> None: ...
    def message(self) -> Message: ...


class Streamed(Protocol):
    """What knows a reply so far: an assembler, or the reply of one try."""

    def message(self) -> Message: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def usage(self) -> dict[str, Any] | None: ...
    @property
    def complete(self) -> bool: ...


class Streaming:
    """A reply while it streams: `_texts` brings its text, `_source` knows it so far, and may be replaced meanwhile."""

    _source: Streamed
    _texts: AsyncGenerator[str, None]

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts

    def message(self) -> Message:
        """The assistant message so far, as a dict."""
        return self._source.message()

    @property
    def finish_reason(self) -> str | None:
        """Why the model ended, or None while it has not said so."""
        return self._source.finish_reason

    @property
    def usage(self) -> dict[str, Any] | None:
        """The usage as the provider reports it, or None."""
        return self._source.usage

    @property
    def complete(self) -> bool:
        """Whether the stream proved its own end."""
        return self._source.complete

    async def aclose(self) -> None:
        """Close the HTTP stream. What had arrived stays in `message()`."""
        await self._texts.aclose()


class Reply(Streaming):
    """One streamed reply: iterate over its text, then (or at any time) ask for the `message()` so far.

    Iterating raises ProviderError or StreamError; their `partial` is the message so far. After Stop it just ends.
    """

    def __init__(self, events: Events, new_assembler: Callable[[], Assembles], stop: Stop) -> None:
        self._new_assembler = new_assembler
        self._assembler = self._source = new_assembler()
        self._texts = self._read(events(lambda: self._assembler.done()), stop)

    async def _read(self, events: AsyncGenerator[dict[str, Any], None], stop: Stop) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(guard(events, stop)) as guarded:
                async for event in guarded:
                    if RESTART in event:
                        self._assembler = self._source = self._new_assembler()
                    elif text := self._assembler.feed(event):
                        yield text
        except (ProviderError, StreamError) as error:
            error.partial = self._arrived()
            if error.partial is None:
                error.args = (str(error).replace(KEPT, NOTHING_CAME),)
            lost_only_the_end = self.complete and isinstance(error, ProviderUnavailable)
            if not (lost_only_the_end or stop.requested):  # after Stop nobody waits for more, nor for its failure
                raise
        if not (self.complete or stop.requested):
            partial = self._arrived()
            raise StreamError(
                "The stream ended without a finish reason or [DONE]: the reply is cut off. "
                f"{KEPT if partial else NOTHING_CAME}",
                partial=partial,
            )

    def _arrived(self) -> Message | None:
        message = self.message()
        return message if any(value for key, value in message.items() if key != "role") else None


class ChatClient:
    """Speaks to one model of one provider.

    `base_url` usually ends with `/v1`. `timeout` is the longest silence to wait for, in seconds (None: no limit).
    `options` are added to the body of every request (`{"temperature": 0}`). `transport` replaces the network:
    `Simulator(...).transport()`. `assembler` makes what puts the deltas together. `cache_ttl` is for Anthropic, whose
    prompt cache wants marks: `"5m"`, `"1h"`, or None for no marks; options with marks of their own mean None, too.
    Every request has its own connection, so a client may be used from any event loop and needs no closing.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str | None = "",
        model: str,
        dialect: str = "openai",
        transport: httpx.AsyncBaseTransport | None = None,
        timeout: float | None = 120.0,
        options: Mapping[str, Any] | None = None,
        assembler: Callable[[], Assembles] = Assembler,
        cache_ttl: Ttl | None = "5m",
    ) -> None:
        if dialect not in _DIALECTS:
            raise AgentLabError(f"There is no dialect {dialect!r}. Choose one of: {', '.join(_DIALECTS)}.")
        self.base_url = _checked_url(base_url)
        self.model = model
        self.dialect = dialect
        self._key = (api_key or "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise AgentLabError("The API key holds a character that no HTTP header may hold. Check AGENT_API_KEY.")
        self._transport = transport
        self._timeout = timeout
        self._options = dict(options or {})
        self._assembler = assembler
        marking = Anthropic(None if has_marks(self._options) else cache_ttl)
        self._dialects = {**_DIALECTS, "anthropic": marking}

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> ChatClient:
        """The client that the environment describes: AGENT_BASE_URL, AGENT_MODEL, AGENT_API_KEY, AGENT_DIALECT.

        Raises AgentLabError that names what is missing.
        """
        if missing := [name for name in ("AGENT_BASE_URL", "AGENT_MODEL") if not env.get(name)]:
            raise AgentLabError(f"Set {' and '.join(missing)} (and AGENT_API_KEY, if your provider wants a key).")
        url = _checked_url(env["AGENT_BASE_URL"])
        host = urlsplit(url).hostname or ""
        guess = next((name for name in _DIALECTS if name in host), "openai")
        dialect = env.get("AGENT_DIALECT") or guess
        return cls(base_url=url, api_key=env.get("AGENT_API_KEY", ""), model=env["AGENT_MODEL"], dialect=dialect)

    def __repr__(self) -> str:
        return f"ChatClient({self.model!r} at {self.base_url!r}, dialect={self.dialect!r})"

    def stream(
        self, history: Sequence[Message], tools: Sequence[dict[str, Any]] = (), stop: Stop | None = None
    ) -> Reply:
        """Send one request; the reply streams as it is iterated. Nothing is sent before that.

        `tools` as `Registry.specs()` gives them. `stop` reaches the connection being made, too.
        """
        if isinstance(history, str | bytes | dict):
            raise AgentLabError("A history is a list of messages: client.stream([messages.user('...')]).")
        body = self._dialects[self.dialect].body(self.model, history, tools) | self._options
        return Reply(partial(self._events, body), self._assembler, Stop() if stop is None else stop)

    async def complete(
        self, history: Sequence[Message], tools: Sequence[dict[str, Any]] = (), stop: Stop | None = None
    ) -> Message:
        """Send one request and return the whole assistant message. Raises StopRequested when stopped before its end."""
        reply = self.stream(history, tools, stop)
        async for _ in reply:
            pass
        if not reply.complete:
            raise StopRequested("Stop was pressed before the reply was complete.")
        return reply.message()

    async def _events(
        self, body: dict[str, Any], on_done: Callable[[], object]
    ) -> AsyncGenerator[dict[str, Any], None]:
        dialect = self._dialects[self.dialect]
        headers = {"content-type": "application/json", "accept": "text/event-stream", **dialect.headers(self._key)}
        content = jsonio.request_body(body)
        tls = True if self._transport else _tls()
        patience = _CONNECT_S if self._timeout is None else min(self._timeout, _CONNECT_S)
        try:
            async with (
                httpx.AsyncClient(
                    transport=self._transport, verify=tls, timeout=httpx.Timeout(self._timeout, connect=patience)
                ) as http,
                http.stream("POST", dialect.url(self.base_url), content=content, headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise refusal(dialect, response.status_code, response.headers, await self._error_body(response))
                kind = response.headers.get("content-type", "").lower()
                if kind.startswith("application/json"):
                    yield self._hide_in_error(_as_chunk(dialect, await _whole_body(response)))
                    on_done()
                elif kind.startswith("text/html"):
                    raise ProviderRefused(
                        f"{self.base_url} answered with a web page, not with a model's reply. "
                        "Check AGENT_BASE_URL: it usually ends with /v1.",
                        status=200,
                    )
                else:
                    head, seen = bytearray(), False
                    async with (
                        aclosing(_chunks(response, head)) as chunks,
                        aclosing(dialect.events(chunks, on_done)) as events,
                    ):
                        async for event in events:
                            seen = True
                            yield self._hide_in_error(event)
                    if not seen and not head.lstrip().startswith(_FIELDS):
                        raise StreamError(_no_stream(head))
        except StreamError as error:
            raise StreamError(self._hide(str(error))) from None
        except httpx.TimeoutException as error:
            connecting = isinstance(error, httpx.ConnectTimeout)
            what, limit = ("connect", patience) if connecting else ("send or receive anything", self._timeout)
            raise ProviderUnavailable(
                f"Could not {what} within the time limit ({limit:g} s of silence) at {self.base_url}. {KEPT} "
                "Or give the client a longer timeout."
            ) from None
        except httpx.ConnectError:
            raise ProviderUnavailable(
                f"No connection to {self.base_url}. Check AGENT_BASE_URL, and that the server is running."
            ) from None
        except httpx.RequestError as error:
            raise ProviderUnavailable(
                f"The connection to {self.base_url} broke off ({type(error).__name__}). {KEPT}"
            ) from None

    async def _error_body(self, response: httpx.Response) -> Any:
        data = bytearray()
        async with aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > _MAX_ERROR_BYTES:
                    break
        text = data[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
        try:
            return self._hide(jsonio.loads(text))
        except ValueError:
            return self._hide(text)

    def _hide(self, value: Any) -> Any:
        """The JSON value without the key: some servers quote the key that they refuse."""
        if len(self._key) < _SECRET_CHARS:  # "none" or "x", for a server that wants no key, is part of many words
            return value
        return jsonio.loads(jsonio.dumps(value).replace(jsonio.dumps(self._key)[1:-1], "***"))

    def _hide_in_error(self, event: dict[str, Any]) -> dict[str, Any]:
        return cast(dict[str, Any], self._hide(event)) if event.get("error") else event


def _no_stream(head: bytearray) -> str:
    begins = f"It begins: {head.decode('utf-8', 'replace')!r}." if head.strip() else "It is empty."
    return f"The provider answered 200, but not with a stream of events. {begins} Check AGENT_BASE_URL and AGENT_MODEL."


async def _chunks(response: httpx.Response, head: bytearray | None = None) -> AsyncGenerator[bytes, None]:
    chunks = response.aiter_bytes()
    try:
        async for chunk in chunks:
            if head is not None and len(head) < _HEAD_BYTES:
                head += chunk[: _HEAD_BYTES - len(head)]
            yield chunk
    finally:
        try:
            await response.aclose()
        finally:  # a cancellation may hit the closing, too
            with suppress(Exception):  # generators inside httpx that nobody closes: on a closed response they end
                async with asyncio.timeout(0):
                    async for _ in chunks:
                        pass


async def _whole_body(response: httpx.Response) -> dict[str, Any]:
    data = bytearray()
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) > _MAX_WHOLE_BYTES:
                raise StreamError(f"The answer passed {_MAX_WHOLE_BYTES:,} bytes. Check AGENT_BASE_URL.")
    try:
        body = jsonio.loads(bytes(data))
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise StreamError("The provider's answer is no JSON object. Check AGENT_BASE_URL.")
    return body


def _as_chunk(dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    try:
        chunk = dialect.whole(body)
    except (KeyError, TypeError, AttributeError):
        chunk = {}
    if not (chunk.get("choices") or chunk.get("error")):
        raise StreamError(f"The answer holds no reply: {str(body)[:80]!r}. Check AGENT_BASE_URL and the dialect.")
    return chunk


def _checked_url(base_url: str) -> str:
    try:
        url = urlsplit(base_url.strip())
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        good = False
    if not good:
        raise AgentLabError("The base URL must look like https://host/v1. Check AGENT_BASE_URL.")
    if "@" in url.netloc or url.query or url.fragment:
        raise AgentLabError("The base URL may hold no user, password or query. A key belongs in AGENT_API_KEY.")
    return base_url.strip().rstrip("/")


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()
