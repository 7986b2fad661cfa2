"""What differs between vendors, behind one small interface.

Inside agentlab a history has the OpenAI chat shape, and a stream is a series of OpenAI chat chunks. A dialect turns
the first into a request of its vendor, the vendor's events into the second, and an error answer into an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from typing import Any, Protocol

from agentlab.errors import (
    ContextOverflow,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    RateLimited,
)
from agentlab.messages import Message

RESTART = "restart"
"""A chunk with this key says that the server began its message anew: what came before it does not count."""


class Dialect(Protocol):
    """One vendor's way of speaking."""

    def url(self, base_url: str) -> str:
        """Where a request goes. `base_url` has no slash at its end."""
        ...

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers of a request; the only place where the key goes."""
        ...

    def body(self, model: str, history: Sequence[Message], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The JSON body of a streaming request."""
        ...

    def events(
        self, chunks: AsyncIterable[bytes], on_done: Callable[[], object]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The byte stream as OpenAI chat chunks."""
        ...

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer (from a server that does not stream) as one OpenAI chat chunk."""
        ...

    def overflows(self, status: int, error: dict[str, Any]) -> bool:
        """Whether this error answer says that the request does not fit the context window."""
        ...


def error_of(body: Any) -> dict[str, Any]:
    """The error object of an error body: most vendors wrap it in `error`, some send it bare, some send a text."""
    if isinstance(body, list) and body:  # Gemini's compatible endpoint
        body = body[0]
    error = body.get("error") or body if isinstance(body, dict) else body
    return error if isinstance(error, dict) else {"message": str(error)}


def refusal(dialect: Dialect, status: int, headers: Mapping[str, str], body: Any) -> ProviderError:
    """The error for an HTTP answer that is not 200. `body` is decoded JSON, or text."""
    error = error_of(body)
    said = error.get("message") or error.get("detail") or error.get("type") or "no reason given"
    ours = body.get("agentlab") if isinstance(body, dict) else None  # the simulator explains what it refuses
    missing = ours.get("missing") if isinstance(ours, dict) else None
    text = f"The provider answered {status}: {str(said)[:2000]}" + (f"\n{str(missing)[:2000]}" if missing else "")
    if dialect.overflows(status, error):
        return ContextOverflow(f"{text}\nSend a shorter history: compact it first.", status=status, body=body)
    wait = _seconds(headers)
    hint = f"Wait {wait:g} seconds." if wait is not None else "Wait a little, then send it again."
    if status == 429:
        return RateLimited(f"{text}\n{hint}", retry_after=wait, status=status, body=body)
    if status in (408, 409, 425) or status >= 500:
        hint = "Nothing is wrong with the request: try again" + ("." if wait is None else f" in {wait:g} seconds.")
        return ProviderUnavailable(f"{text}\n{hint}", retry_after=wait, status=status, body=body)
    if 300 <= status < 400:
        moved = headers.get("location", "another address")[:200]
        return ProviderRefused(f"{text}\nThe server sends to {moved}: check AGENT_BASE_URL.", status=status, body=body)
    hint = {
        401: "Check AGENT_API_KEY.",
        403: "Check that the key may use this model.",
        404: "Check AGENT_BASE_URL (it usually ends with /v1) and AGENT_MODEL.",
    }.get(status, "The same request will be refused again: change it first.")
    return ProviderRefused(f"{text}\n{hint}", status=status, body=body)


def _seconds(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < 86_400:
            return seconds
    return None
