"""What a dialect is: how one vendor reads a request, refuses it, counts it and answers it.

A dialect is one object without state. Adding a vendor is one file with one such object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentlab import jsonio
from agentlab.messages import Message
from agentlab.simulator.tokens import Piece

Request = dict[str, Any]
Finish = Literal["stop", "tool_calls", "length", "window"]
"""Why a reply ends: said all, wants tools, `"length"`: has as many tokens as were asked for, `"window"`: fills it."""


@dataclass(frozen=True)
class Words:
    """How a vendor's requests show a call and its result: for the hints that say what to append."""

    calls: str
    results: str
    shape: str  # with %s for the id


CHAT = Words(
    calls="tool_calls",
    results="one tool message for each call",
    shape='one {"role": "tool", "tool_call_id": "%s", "content": ...} for each call',
)
"""The words of OpenAI's chat shape."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused. `message`, `type`, `param` and `code` go into the vendor's error body.

    `kind` is `"unanswered"`, `"orphan"` or `"duplicate"` when calls and results do not match, with their `ids`.
    `hint` says in plain words what to change, if that is known here.
    """

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400
    type: str = "invalid_request_error"
    kind: str = ""
    ids: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Ask:
    """What a request asks for, in one form for all dialects: `messages` are in the OpenAI chat shape.

    `tools` are in the vendor's shape, `names` are their names, `limit` is the most tokens that the reply may have,
    `marks` are explicit cache breakpoints as numbers of leading tokens.
    """

    messages: list[Message]
    model: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    may_call: bool = True
    stream: bool = False
    with_usage: bool = False
    limit: int | None = None
    marks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Count:
    """Tokens of one exchange: `prompt` is all input, `hit` was read from a cache, `written` was stored in it.

    `reasoning` is the part of `output` that the model thought before it spoke; `written_hour` is the part of `written`
    that is kept for an hour.
    """

    prompt: int
    output: int
    hit: int = 0
    written: int = 0
    reasoning: int = 0
    written_hour: int = 0


@dataclass(frozen=True)
class Reply:
    """One answer, ready to be sent: the how many-th it is (from 1), when in seconds, and what it says."""

    number: int
    created: int
    model: str
    pieces: list[Piece]
    finish: Finish
    count: Count


@dataclass(frozen=True)
class Event:
    """One event of a stream: its bytes, the completion tokens that it carries, and what it is for."""

    data: bytes
    tokens: int = 0
    kind: Literal["delta", "finish", "usage", "done"] = "delta"


class Dialect(Protocol):
    """One vendor's API. None of these methods keeps or changes anything."""

    @property
    def name(self) -> str:
        """The name that selects it."""

    @property
    def path(self) -> str:
        """Where requests are posted, below the version: `/chat/completions`."""

    @property
    def words(self) -> Words:
        """How its requests show calls and results."""

    def admit(self, headers: Mapping[str, str]) -> Refusal | None:
        """What is wrong with the headers of a request, their names in lower case; None when nothing is."""

    def refuse(self, request: Request, *, thinks: bool = False) -> Refusal | None:
        """What is wrong with this request, in the vendor's words; None when nothing is.

        `thinks`: the model has shown its reasoning in an earlier answer.
        """

    def read(self, request: Request) -> Ask:
        """What a request asks for, once `refuse` found nothing wrong."""

    def overflow(self, ask: Ask, *, window: int, tools: int, messages: int) -> Refusal | None:
        """The refusal of a request that does not fit into `window` tokens; it has so many in tools and messages."""

    def failure(self, status: int) -> Refusal:
        """What the vendor says with this HTTP status when it is not the request's fault: 401, 429, 500, ..."""

    def lost(self, method: str, path: str) -> Refusal:
        """What the vendor says about a URL that serves nothing."""

    def unreadable(self) -> Refusal:
        """What the vendor says about a body that is not a JSON object."""

    def error(self, refusal: Refusal, number: int) -> dict[str, Any]:
        """The body of a refusal of the so many-th request."""

    def headers(self, number: int) -> dict[str, str]:
        """Headers of the answer to the so many-th request, besides its content type."""

    def usage(self, count: Count) -> dict[str, Any]:
        """The usage object of an answer."""

    def stream(self, reply: Reply, ask: Ask) -> Iterator[Event]:
        """The answer as server-sent events."""

    def stream_error(self, refusal: Refusal) -> bytes:
        """One event that carries an error inside a stream."""

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The answer as one JSON body."""

    def models(self) -> dict[str, Any]:
        """The list of models."""


def sse(data: dict[str, Any] | str, *, event: str | None = None) -> bytes:
    """One server-sent event: JSON, or text as it is (`[DONE]`), with its event name if there is one."""
    text = data if isinstance(data, str) else jsonio.dumps(data)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()
