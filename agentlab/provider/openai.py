"""The `openai` dialect: chat completions, as OpenAI and most others serve them."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from typing import Any

from agentlab.messages import Message, ToolCall, calls_of, wire
from agentlab.sse import ajson_events

_MAX_ID, _MAX_NAME = 40, 64
_OVERFLOW_CODES = ("context_length_exceeded", "exceed_context_size_error")
_OVERFLOW_WORDS = (  # of servers that have no code for it
    "maximum context length",  # vLLM, DeepSeek, OpenRouter
    "available context size",  # llama.cpp
    "exceeds the context window",
    "greater than the context length",  # LM Studio
    "maximum prompt length is",  # xAI
    "exceeds the maximum number of tokens allowed",  # Gemini
    "prompt is too long",  # Anthropic, through a router
)


def without(message: Message, *keys: str) -> Message:
    """A copy of the message without these keys."""
    return {key: value for key, value in message.items() if key not in keys}


def fitting(message: Message) -> Message:
    """The message with ids of at most 40 and names of at most 64 characters.

    Other vendors' ids may be longer, and one that OpenAI refuses would end the conversation for good. The same id
    always becomes the same short one.
    """
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _short(message["tool_call_id"])}
    calls = calls_of(message)
    if not calls:
        return message
    return {**message, "tool_calls": [_fitting_call(call) for call in calls]}


def _fitting_call(call: ToolCall) -> ToolCall:
    function = call.get("function")
    function = {**function, "name": str(function.get("name"))[:_MAX_NAME]} if isinstance(function, dict) else function
    return {**call, "id": _short(call.get("id")), "function": function}


def _short(id: Any) -> Any:
    if not isinstance(id, str) or len(id) <= _MAX_ID:
        return id
    return f"{id[: _MAX_ID - 9]}_{zlib.crc32(id.encode('utf-8', 'surrogatepass')):08x}"


class OpenAI:
    """Chat completions. Reasoning is kept in the history, but not sent: OpenAI refuses unknown keys."""

    def url(self, base_url: str) -> str:
        return f"{base_url}/chat/completions"

    def headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def body(self, model: str, history: Sequence[Message], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": self._messages(wire(history))}
        if tools:
            body["tools"] = list(tools)
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def _messages(self, history: list[Message]) -> list[Message]:
        return [fitting(without(message, "reasoning_content", "thinking_blocks")) for message in history]

    def events(
        self, chunks: AsyncIterable[bytes], on_done: Callable[[], object]
    ) -> AsyncGenerator[dict[str, Any], None]:
        return ajson_events(chunks, on_done=on_done)

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        choices = [{**choice, "delta": choice["message"]} for choice in body.get("choices") or ()]
        return {**body, "choices": choices}

    def overflows(self, status: int, error: dict[str, Any]) -> bool:
        """By code where there is one, else by the vendors' words, as their users report them."""
        if status not in (400, 413):
            return False
        if error.get("code") in _OVERFLOW_CODES or error.get("type") in _OVERFLOW_CODES:
            return True
        said = str(error.get("message")).lower()
        return any(words in said for words in _OVERFLOW_WORDS)
