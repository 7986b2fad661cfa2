"""The offline provider: a request goes in; a status, headers and byte chunks come out. No socket, thread or wait."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.simulator import tokens
from agentlab.simulator.anthropic import Anthropic
from agentlab.simulator.cache import CachePolicy, CacheUse
from agentlab.simulator.deepseek import DeepSeek
from agentlab.simulator.dialect import Ask, Count, Dialect, Event, Finish, Refusal, Reply, Request
from agentlab.simulator.faults import Fault, check_chunk, cut, rechunk
from agentlab.simulator.openai import OpenAI
from agentlab.simulator.script import Script, Story, Turn
from agentlab.simulator.shown import explain

if TYPE_CHECKING:
    import httpx

    from agentlab.provider import ChatClient

DIALECTS: dict[str, Dialect] = {"openai": OpenAI(), "deepseek": DeepSeek(), "anthropic": Anthropic()}
_JSON = "application/json"


@dataclass(frozen=True)
class Hangup:
    """A client that went away: `produced` of `total` completion tokens had been made for `requests[request]`."""

    request: int
    produced: int
    total: int


class Body:
    """The bytes of one answer: an iterator of chunks. `close()` says that the client went away.

    `ending` says how it ends, once the chunks are used up: `"whole"`; `"cut"`, the connection breaks here; or
    `"stall"`, nothing more comes and the connection stays open. An adapter does that part.
    """

    def __init__(
        self, chunks: Iterator[bytes], ending: str = "whole", on_close: Callable[[], None] | None = None
    ) -> None:
        self._chunks = chunks
        self._on_close = on_close
        self.ending = ending

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        """Stop producing. Closing twice, or after the end, does nothing."""
        self._chunks = iter(())
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()


class Response(NamedTuple):
    """An HTTP answer: `status, headers, chunks = simulator.respond(request)`."""

    status: int
    headers: dict[str, str]
    chunks: Body


class _Answer:
    """One answer while it is being produced: how far it is decides the usage and what a later request must show."""

    def __init__(self, request: int, turn: Turn, reply: Reply) -> None:
        self.request, self.turn, self.reply = request, turn, reply
        self.produced = 0
        self.finished = False
        self.size = 0  # bytes produced
        self.finish_at: int | None = None  # the answer is whole for a client that has so many bytes


class Simulator:
    """A model and its provider, offline, that keeps the vendor's rules.

    `script` is what the model says (see `script`): a list of steps, a function of the request, or None for a few rules.
    `dialect` is the vendor's API. `cache` is a policy from `cache`, or None for a provider without a prefix cache.
    `context_window` is in tokens. `chunk` cuts the bytes of every answer: a size in bytes, a list of sizes taken in
    turn, or None for one event at a time. `pace` is a wait in seconds before every chunk, kept by the transports.
    `clock` gives the time in seconds, for `created` and for the cache.
    Raises AgentLabError for a script or an option that it cannot use.
    """

    def __init__(
        self,
        script: Script = None,
        *,
        dialect: str = "openai",
        cache: CachePolicy | None = None,
        context_window: int = 128_000,
        chunk: int | Sequence[int] | None = None,
        pace: float = 0.0,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        if dialect not in DIALECTS:
            raise AgentLabError(f"There is no dialect {dialect!r}: use one of {', '.join(DIALECTS)}.")
        check_chunk(chunk)
        self.dialect = dialect
        self.pace = pace
        self._dialect = DIALECTS[dialect]
        self._story = Story(script, self._dialect.words)
        self._cache, self._window, self._chunk, self._clock = cache, context_window, chunk, clock
        self._lock = threading.RLock()
        self._requests: list[Request] = []
        self._answers: list[_Answer] = []
        self._hangups: list[Hangup] = []

    @property
    def requests(self) -> list[Request]:
        """Every request that came in, accepted or refused, in order: copies as they were sent."""
        return list(self._requests)

    @property
    def usages(self) -> list[dict[str, Any]]:
        """The usage of every request that was answered, in order; what has been produced so far for one under way."""
        return [self._dialect.usage(self._count(answer)) for answer in self._answers]

    @property
    def hangups(self) -> list[Hangup]:
        """Every client that went away before its answer was complete."""
        return list(self._hangups)

    def respond(self, request: Request, headers: Mapping[str, str] | None = None) -> Response:
        """Answer one request. Raises ConnectionRefusedError when the script asks for that fault.

        `headers` are the request's, None for a call that did not come over HTTP: then none are missed. Close the
        chunks when you stop reading early.
        """
        with self._lock:
            self._requests.append(copy.deepcopy(request))
            refusal = None
            if headers is not None:
                refusal = self._dialect.admit({name.lower(): value for name, value in headers.items()})
            refusal = refusal or self._dialect.refuse(request, thinks=self._story.memory.thinks)
            if refusal:
                return self._refuse(refusal, request)
            ask = self._dialect.read(request)
            prompt = tokens.render(ask.tools, ask.messages)
            for_tools = len(tokens.render(ask.tools, ())) - 1
            refusal = self._dialect.overflow(
                ask, window=self._window, tools=for_tools, messages=len(prompt) - for_tools
            )
            if refusal:
                return self._refuse(refusal, request)
            turn = self._story.turn(ask, request)
            if turn.fault and turn.fault.refuse:
                raise ConnectionRefusedError("The script says that this connection is refused.")
            if turn.fault and (turn.fault.status or (turn.fault.error_after is not None and not ask.stream)):
                return self._refuse(self._dialect.failure(turn.fault.status or 500), request, turn.fault)
            return self._deliver(ask, turn, prompt)

    def handle(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
        """Answer one HTTP request, whatever it is: the part that both transports share."""
        place = path.removeprefix("/v1").rstrip("/")
        if method == "GET" and place == "/models":
            return Response(200, self._headers(), Body(iter([jsonio.dumps(self._dialect.models()).encode()])))
        if method != "POST" or place != self._dialect.path:
            return self._refuse(self._dialect.lost(method, path), {})
        try:
            request = jsonio.loads(body)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            return self._refuse(self._dialect.unreadable(), {})
        return self.respond(request, headers)

    def transport(self) -> httpx.AsyncBaseTransport:
        """An httpx transport in this process: no port, no thread."""
        from agentlab.simulator.transport import SimulatorTransport

        return SimulatorTransport(self)

    def client(self) -> ChatClient:
        """A `ChatClient` that talks to this simulator in this process."""
        from agentlab.provider import ChatClient

        return ChatClient(
            base_url="http://simulator/v1",
            api_key="offline",
            model="offline",
            dialect=self.dialect,
            transport=self.transport(),
        )

    def _refuse(self, refusal: Refusal, request: Request, fault: Fault | None = None) -> Response:
        body = self._dialect.error(refusal, len(self._requests))
        shown = self._dialect.read(request).messages if refusal.kind else []
        missing = explain(refusal, shown, self._story.memory, self._dialect.words)
        if missing:
            body["agentlab"] = {"missing": missing}
        headers = self._headers()
        if fault and fault.retry_after is not None:
            headers["retry-after"] = f"{fault.retry_after:g}"
        return Response(refusal.status, headers, Body(rechunk([jsonio.dumps(body).encode()], self._chunk)))

    def _deliver(self, ask: Ask, turn: Turn, prompt: list[str]) -> Response:
        if turn.message.get("reasoning_content"):
            self._story.memory.thinks = True
        now, room = self._clock(), self._window - len(prompt)
        use = self._cache.admit(prompt, marks=ask.marks, at=now) if self._cache else CacheUse()
        limit = room if ask.limit is None else min(ask.limit, room)
        taken, complete = tokens.take(tokens.pieces(turn.message), limit)
        finish: Finish = "tool_calls" if turn.message.get("tool_calls") else "stop"
        if not complete:
            finish = "length" if limit == ask.limit else "window"
        thought = tokens.count(piece for piece in taken if piece.kind == "reasoning")
        count = Count(len(prompt), tokens.count(taken), use.hit, use.written, thought, use.written_hour)
        reply = Reply(len(self._answers) + 1, int(now), ask.model, taken, finish, count)
        answer = _Answer(len(self._requests) - 1, turn, reply)
        self._answers.append(answer)
        fault = turn.fault
        events = self._events(ask, answer, prompt)
        blocks: Iterator[bytes] = _with_faults(events, fault, self._dialect) if fault else (e.data for e in events)
        ending = "whole"
        for at, name in ((fault.cut_at, "cut"), (fault.stall_at, "stall")) if fault else ():
            if at is not None:
                blocks, ending = cut(blocks, at), name
        handed_over = self._hand_over(rechunk(blocks, self._chunk), answer, prompt)
        chunks = Body(handed_over, ending, lambda: self._closed(answer))
        return Response(200, self._headers("text/event-stream; charset=utf-8" if ask.stream else _JSON), chunks)

    def _hand_over(self, chunks: Iterator[bytes], answer: _Answer, prompt: list[str]) -> Iterator[bytes]:
        """The chunks; an answer has been given when the client has its last piece, not when it was produced."""
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if answer.finish_at is not None and size >= answer.finish_at and not answer.finished:
                self._finish(answer, prompt)
            yield chunk

    def _finish(self, answer: _Answer, prompt: list[str]) -> None:
        with self._lock:
            answer.finished = True
            if answer.turn.counts and answer.reply.finish in ("stop", "tool_calls"):
                self._story.memory.say(answer.turn.message)
            if self._cache:
                produced = [token for piece in answer.reply.pieces for token in piece.tokens]
                self._cache.extend(prompt, produced, at=self._clock())

    def _events(self, ask: Ask, answer: _Answer, prompt: list[str]) -> Iterator[Event]:
        """The events of an answer; what has been produced is written down before each is given away."""
        reply = answer.reply
        whole = (
            Event(jsonio.dumps(self._dialect.whole(reply)).encode(), reply.count.output, "finish")
            if not ask.stream
            else None
        )
        for event in [whole] if whole else self._dialect.stream(reply, ask):
            with self._lock:
                answer.produced += event.tokens
                answer.size += len(event.data)
                if event.kind == "finish" and answer.finish_at is None:
                    # a fault may leave out what the bytes are counted by
                    answer.finish_at = 0 if answer.turn.fault else answer.size
            yield event

    def _closed(self, answer: _Answer) -> None:
        """The client went away. A connection that the script broke is not a client that hung up."""
        fault = answer.turn.fault
        broken = fault and (fault.cut_at is not None or fault.error_after is not None)
        if not answer.finished and not broken:
            with self._lock:
                self._hangups.append(Hangup(answer.request, answer.produced, answer.reply.count.output))

    def _count(self, answer: _Answer) -> Count:
        count = answer.reply.count
        return replace(count, output=answer.produced, reasoning=min(answer.produced, count.reasoning))

    def _headers(self, content_type: str = _JSON) -> dict[str, str]:
        return {"content-type": content_type, **self._dialect.headers(len(self._requests))}


def _with_faults(events: Iterator[Event], fault: Fault, dialect: Dialect) -> Iterator[bytes]:
    for position, event in enumerate(events):
        if position == fault.error_after:
            yield dialect.stream_error(dialect.failure(500))
            return
        if (event.kind == "done" and fault.no_done) or (event.kind == "finish" and fault.no_finish):
            continue
        yield event.data
