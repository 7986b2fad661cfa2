"""The `deepseek` dialect: OpenAI's wire shape with DeepSeek's words, its reasoning and its count of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agentlab.simulator import deepseek_rules
from agentlab.simulator.deepseek_rules import CODE
from agentlab.simulator.dialect import Ask, Count, Event, Refusal, Reply, Request, sse
from agentlab.simulator.openai import OpenAI, call_delta, finish_reason
from agentlab.simulator.tokens import message_of

# [X] read in a public thread, [R] recalled. A key is never shown, not even shortened.
_FAILURES = {
    401: Refusal("Authentication Fails, Your api key: **** is invalid", type="authentication_error", code=CODE),  # [X]
    402: Refusal("Insufficient Balance", type="unknown_error", code=CODE),  # [X], the type [R]
    429: Refusal("Rate limit reached", type="rate_limit_reached_error", code=CODE),  # [R]
    503: Refusal("Service is too busy.", type="service_unavailable_error", code=CODE),  # [R]
}
_FAILURE = Refusal("Internal Server Error", type="internal_error", code=CODE)  # [R]


class DeepSeek(OpenAI):
    """The dialect object. It has no state."""

    name = "deepseek"

    def refuse(self, request: Request, *, thinks: bool = False) -> Refusal | None:
        """See `deepseek_rules.refuse`."""
        return deepseek_rules.refuse(request, thinks=thinks)

    def overflow(self, ask: Ask, *, window: int, tools: int, messages: int) -> Refusal | None:
        """One must read the words: the code is that of any other bad request. [X]; tools count as messages. [R]"""
        limit = ask.limit or 0
        total = tools + messages + limit
        if total <= window:
            return None
        text = f"This model's maximum context length is {window} tokens. However, you requested {total} tokens"
        text += f" ({tools + messages} in the messages, {limit} in the completion). Please reduce the length of the"
        return Refusal(f"{text} messages or completion.", code=CODE)

    def failure(self, status: int) -> Refusal:
        """The body for a status that the request did not cause."""
        return replace(_FAILURES.get(status, _FAILURE), status=status)

    def unreadable(self) -> Refusal:
        """The body was not a JSON object. [R]; the place in it is ours."""
        return Refusal("Failed to parse the request body as JSON: expected value at line 1 column 1", code=CODE)

    def usage(self, count: Count) -> dict[str, Any]:
        """The cache stands at the top level too, in DeepSeek's own words."""
        thought = {"completion_tokens_details": {"reasoning_tokens": count.reasoning}} if count.reasoning else {}
        return {
            "prompt_tokens": count.prompt,
            "completion_tokens": count.output,
            "total_tokens": count.prompt + count.output,
            "prompt_tokens_details": {"cached_tokens": count.hit},
            **thought,
            "prompt_cache_hit_tokens": count.hit,
            "prompt_cache_miss_tokens": count.prompt - count.hit,
        }

    def stream(self, reply: Reply, ask: Ask) -> Iterator[Event]:
        """The role, the reasoning, the text, the calls; the last chunk holds the finish reason and the usage."""
        thinks = reply.count.reasoning > 0

        def chunk(fields: dict[str, Any], finish: str | None = None, usage: dict[str, Any] | None = None) -> bytes:
            choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}
            return sse({**_head(reply, "chat.completion.chunk"), "choices": [choice], "usage": usage})

        def text(said: str | None, thought: str | None = None) -> dict[str, Any]:
            return {"content": said, "reasoning_content": thought} if thinks else {"content": said}

        yield Event(chunk({"role": "assistant", **(text(None, "") if thinks else text(""))}))
        for piece in reply.pieces:
            if piece.kind == "reasoning":
                fields = text(None, piece.text)
            else:
                fields = text(piece.text) if piece.kind == "text" else call_delta(piece)
            yield Event(chunk(fields), len(piece.tokens))
        yield Event(chunk(text(""), finish_reason(reply), self.usage(reply.count)), kind="finish")
        yield Event(sse("[DONE]"), kind="done")

    def whole(self, reply: Reply) -> dict[str, Any]:
        """A `chat.completion` object with one choice. Its tool calls carry an `index`, as the stream's do. [R]"""
        message = message_of(reply.pieces)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
        return {**_head(reply, "chat.completion"), "choices": [choice], "usage": self.usage(reply.count)}


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": f"offline-{reply.number}",
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": "fp_offline",
    }
