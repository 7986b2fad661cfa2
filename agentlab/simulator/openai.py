"""The `openai` dialect: OpenAI's chat completions API. Shapes as in recorded streams of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentlab.simulator import openai_rules
from agentlab.simulator.dialect import CHAT, Ask, Count, Event, Refusal, Reply, Request, sse
from agentlab.simulator.tokens import Piece, message_of

# [X] read in a public thread; the figures and names inside them are ours. A key is never shown, not even shortened.
_FAILURES = {
    401: Refusal(
        "Incorrect API key provided: ****. You can find your API key at https://platform.openai.com/account/api-keys.",
        code="invalid_api_key",
    ),  # [X]
    429: Refusal(
        "Rate limit reached for offline in organization org-offline on tokens per min (TPM): Limit 30000, Used 30000,"
        " Requested 154. Please try again in 308ms. Visit https://platform.openai.com/account/rate-limits to learn"
        " more.",
        type="tokens",
        code="rate_limit_exceeded",
    ),  # [X]
}
_FAILURE = Refusal(
    "The server had an error while processing your request. Sorry about that!", type="server_error"
)  # [X]


class OpenAI:
    """The dialect object. It has no state."""

    name = "openai"
    path = "/chat/completions"
    words = CHAT

    def admit(self, headers: Mapping[str, str]) -> Refusal | None:
        """Any key is welcome, and none is needed."""
        return None

    def refuse(self, request: Request, *, thinks: bool = False) -> Refusal | None:
        """See `openai_rules.refuse`."""
        return openai_rules.refuse(request)

    def read(self, request: Request) -> Ask:
        """Take out what the simulator acts on. Sampling settings are accepted and change nothing."""
        tools = request.get("tools") or []
        limits = [request[key] for key in ("max_tokens", "max_completion_tokens") if request.get(key) is not None]
        return Ask(
            messages=request["messages"],
            model=request["model"],
            tools=tools,
            names=tuple(tool["function"]["name"] for tool in tools),
            may_call=request.get("tool_choice") != "none",
            stream=bool(request.get("stream")),
            with_usage=bool((request.get("stream_options") or {}).get("include_usage")),
            limit=min(limits, default=None),
        )

    def overflow(self, ask: Ask, *, window: int, tools: int, messages: int) -> Refusal | None:
        """More prompt than the window holds, or more prompt and reply than it holds. [X]"""
        parts = [(messages, "messages"), (tools, "functions"), (ask.limit or 0, "completion")]
        total = sum(size for size, _ in parts)
        if total <= window:
            return None
        named = [(size, name) for size, name in parts if size]
        told = ", ".join(f"{size} in the {name}" for size, name in named)
        detail = f" ({told})" if len(named) > 1 else ""
        verb = "you requested" if ask.limit else "your messages resulted in"
        advice = [name for size, name in parts if size and (name != "functions" or not ask.limit)]
        text = f"This model's maximum context length is {window} tokens. However, {verb} {total} tokens{detail}."
        text += f" Please reduce the length of the {' or '.join(advice)}."
        return Refusal(text, "messages", "context_length_exceeded")

    def failure(self, status: int) -> Refusal:
        """The body for a status that the request did not cause."""
        return replace(_FAILURES.get(status, _FAILURE), status=status)

    def lost(self, method: str, path: str) -> Refusal:
        """Nothing is served there. [X]"""
        hint = "The simulator serves POST /v1/chat/completions and GET /v1/models."
        return Refusal(f"Invalid URL ({method} {path})", status=404, hint=hint)

    def unreadable(self) -> Refusal:
        """The body was not a JSON object. [X]"""
        return Refusal(
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP"
            " library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON. If you"
            " have trouble figuring out how to fix this, please contact us through our help center at help.openai.com.)"
        )

    def error(self, refusal: Refusal, number: int = 0) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        told = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
        return {"error": told}

    def headers(self, number: int) -> dict[str, str]:
        """None that a client would act on."""
        return {}

    def usage(self, count: Count) -> dict[str, Any]:
        """Cached tokens are part of `prompt_tokens`."""
        return {
            "prompt_tokens": count.prompt,
            "completion_tokens": count.output,
            "total_tokens": count.prompt + count.output,
            "prompt_tokens_details": {"cached_tokens": count.hit, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": count.reasoning,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    def stream(self, reply: Reply, ask: Ask) -> Iterator[Event]:
        """The role, one delta per piece, the finish reason, the usage if it was asked for, `[DONE]`.

        This API does not show reasoning: it is only counted, with the event that follows it.
        """
        shown = [piece for piece in reply.pieces if piece.kind != "reasoning"]
        hidden = reply.count.reasoning

        def event(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
            body = {**_head(reply, "chat.completion.chunk"), "choices": choices}
            return sse({**body, "usage": usage} if ask.with_usage else body)

        def delta(fields: dict[str, Any], finish: str | None = None) -> bytes:
            return event([{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}])

        silent = bool(shown) and shown[0].kind == "call"
        yield Event(delta({"role": "assistant", "content": None if silent else "", "refusal": None}))
        for piece in shown:
            fields = {"content": piece.text} if piece.kind == "text" else call_delta(piece)
            yield Event(delta(fields), hidden + len(piece.tokens))
            hidden = 0
        yield Event(delta({}, finish_reason(reply)), hidden, kind="finish")
        if ask.with_usage:
            yield Event(event([], self.usage(reply.count)), kind="usage")
        yield Event(sse("[DONE]"), kind="done")

    def stream_error(self, refusal: Refusal) -> bytes:
        """An event that holds the error object."""
        return sse(self.error(refusal))

    def whole(self, reply: Reply) -> dict[str, Any]:
        """A `chat.completion` object with one choice."""
        message = _message(reply)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
        return {**_head(reply, "chat.completion"), "choices": [choice], "usage": self.usage(reply.count)}

    def models(self) -> dict[str, Any]:
        """One model, named `offline`. Requests may name any other; they get the same."""
        return {
            "object": "list",
            "data": [{"id": "offline", "object": "model", "created": 0, "owned_by": "agentlab"}],
        }


def call_delta(piece: Piece) -> dict[str, Any]:
    """The delta that opens a tool call, or one that adds a piece to its arguments."""
    if piece.kind == "arguments":
        return {"tool_calls": [{"index": piece.call, "function": {"arguments": piece.text}}]}
    function = {"name": piece.text, "arguments": ""}
    return {"tool_calls": [{"index": piece.call, "id": piece.id, "type": "function", "function": function}]}


def finish_reason(reply: Reply) -> str:
    """The finish reason in the words of this API: a full window is a length like any other."""
    return "length" if reply.finish == "window" else reply.finish


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "service_tier": "default",
        "system_fingerprint": "fp_offline",
    }


def _message(reply: Reply) -> dict[str, Any]:
    """The message as this API shows it: without the reasoning, and with a `refusal`."""
    said = message_of(reply.pieces)
    calls = said.get("tool_calls")
    message = {"role": "assistant", "content": said["content"] or (None if calls else ""), "refusal": None}
    return {**message, "tool_calls": calls} if calls else message
