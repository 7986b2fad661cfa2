"""The `anthropic` dialect: messages made of content blocks, and a stream that opens and closes each block.

Going out: leading system messages become the `system` field; a tool result becomes a block of the next user message,
in front of the person's words; thinking that came signed goes back as it came. Ids must be unique in a whole request
and hold only letters, digits, `_` and `-`, so an id that breaks this gets another one, the same every time. Marks for
the prompt cache are set last (see `breakpoints`).

Coming in: `AnthropicStream` turns the events into OpenAI chat chunks. Blocks of the server's own tools are left out:
they were run over there and need no answer. (Anthropic: "Messages API" and "Streaming messages".)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from agentlab import jsonio
from agentlab.errors import StreamError
from agentlab.messages import Message, calls_of, wire
from agentlab.provider.breakpoints import Ttl, control, mark
from agentlab.provider.dialect import RESTART
from agentlab.sse import ajson_events

_VERSION = "2023-06-01"
_MAX_OUTPUT = 8192
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class Anthropic:
    """The Messages API. `ttl` is how long the prompt cache keeps a prefix, None to leave the cache unused."""

    def __init__(self, ttl: Ttl | None = "5m") -> None:
        if ttl is not None:
            control(ttl)
        self.ttl = ttl

    def url(self, base_url: str) -> str:
        return f"{base_url.removesuffix('/v1')}/v1/messages"

    def headers(self, api_key: str) -> dict[str, str]:
        key = {"x-api-key": api_key} if api_key else {}
        return {**key, "anthropic-version": _VERSION}

    def body(self, model: str, history: Sequence[Message], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        system, messages = convert(history)
        body: dict[str, Any] = {"model": model, "max_tokens": _MAX_OUTPUT, "messages": messages, "stream": True}
        if system:
            body["system"] = system
        if tools:
            body["tools"] = [_tool(spec["function"]) for spec in tools]
        return mark(body, self.ttl)

    async def events(
        self, chunks: AsyncIterable[bytes], on_done: Callable[[], object]
    ) -> AsyncGenerator[dict[str, Any], None]:
        stream = AnthropicStream()
        async with aclosing(ajson_events(chunks)) as events:
            async for event in events:
                for chunk in stream.feed(event):
                    yield chunk
                if stream.done:
                    break
        if stream.done:
            on_done()

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("error"):
            return body
        blocks = body["content"]
        calls = [
            {"index": i, "id": b["id"], "function": {"name": b["name"], "arguments": b["input"]}}
            for i, b in enumerate(blocks)
            if b.get("type") == "tool_use"
        ]
        delta = {
            "content": "".join(b["text"] for b in blocks if b.get("type") == "text"),
            "reasoning_content": "".join(b["thinking"] for b in blocks if b.get("type") == "thinking"),
            "thinking_blocks": [b for b in blocks if b.get("type") in ("thinking", "redacted_thinking")],
            "tool_calls": calls,
        }
        return {**_chunk(delta, _FINISH.get(body.get("stop_reason") or "")), "usage": body.get("usage")}

    def overflows(self, status: int, error: dict[str, Any]) -> bool:
        said = str(error.get("message"))
        return status in (400, 413) and ("prompt is too long" in said or "exceed context limit" in said)


def convert(history: Sequence[Message]) -> tuple[str, list[dict[str, Any]]]:
    """A history in the OpenAI chat shape as Anthropic's (system, messages). Neighbours of one role become one."""
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    asked: dict[str, list[str]] = {}  # by the history's id: the ids that were sent, still without a result
    uses: dict[str, int] = {}
    for message in wire(history):
        role = message.get("role")
        if role in ("system", "developer") and not messages:
            system.append(_text(message.get("content")))
            continue
        if role == "assistant":
            ids = [str(call.get("id") or "") for call in calls_of(message)]
            uniques = [_unique(id, uses) for id in ids]
            asked = {id: [new for old, new in zip(ids, uniques, strict=True) if old == id] for id in ids}
            blocks = _said(message, uniques)
        elif role == "tool":
            id = str(message.get("tool_call_id"))
            sent = asked[id].pop(0) if asked.get(id) else id
            blocks = [{"type": "tool_result", "tool_use_id": sent, "content": _text(message.get("content"))}]
        else:
            blocks = _parts(message.get("content"))
        role = "assistant" if role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return "\n\n".join(part for part in system if part.strip()), messages


def _said(message: Message, ids: list[str]) -> list[dict[str, Any]]:
    uses = [
        {
            "type": "tool_use",
            "id": id,
            "name": call["function"]["name"],
            "input": _input(call["function"].get("arguments")),
        }
        for call, id in zip(calls_of(message), ids, strict=True)
    ]
    return [*(message.get("thinking_blocks") or []), *_parts(message.get("content")), *uses]


def _unique(id: str, uses: dict[str, int]) -> str:
    """The id in allowed characters, numbered when it is taken. Only earlier calls decide, never later ones."""
    clean = unique = re.sub(r"[^a-zA-Z0-9_-]", "_", id) or "call"
    while unique in uses:
        uses[clean] += 1
        unique = f"{clean}_{uses[clean]}"
    uses[unique] = 1
    return unique


def _input(arguments: Any) -> dict[str, Any]:
    try:
        value = jsonio.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _parts(content: Any) -> list[dict[str, Any]]:
    """Content as blocks. Blank text is left out: the API refuses it."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [part for part in parts if part.get("type") != "text" or str(part.get("text") or "").strip()]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description", ""), "input_schema": schema}


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


class AnthropicStream:
    """One stream, sans-IO: `feed` an event, get the chunks that it amounts to. `done` after `message_stop`.

    Usage keeps Anthropic's own fields; what `message_delta` reports replaces what `message_start` did. A second
    `message_start` means that the server began anew, and the first attempt is dropped.
    """

    def __init__(self) -> None:
        self.done = False
        self._usage: dict[str, Any] = {}
        self._started = False
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._pieces: dict[Any, dict[str, list[str]]] = {}

    def feed(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks for one event; an error event passes as it is. Raises StreamError for an unknown shape."""
        try:
            return self._feed(event)
        except (KeyError, TypeError, AttributeError):
            raise StreamError(f"An event of the stream has an unknown shape: {str(event)[:80]!r}") from None

    def _feed(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        kind, index = event.get("type"), event.get("index")
        if event.get("error"):
            return [event]
        if kind == "message_start":
            chunks = [{RESTART: True}] if self._started else []
            self._started, self._blocks, self._pieces = True, {}, {}
            self._usage = dict(event.get("message", {}).get("usage") or {})
            return [*chunks, {**_chunk({"role": "assistant"}), "usage": dict(self._usage)}]
        if kind == "content_block_start":
            block = self._blocks[index] = dict(event["content_block"])
            return self._opened(index, block)
        if kind == "content_block_delta":
            return self._delta(index, event["delta"])
        if kind == "content_block_stop":
            return self._closed(index, self._blocks.get(index, {}))
        if kind == "message_delta":
            news = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
            self._usage |= news
            reason = event["delta"].get("stop_reason")
            return [{**_chunk({}, _FINISH.get(reason, reason)), "usage": dict(self._usage)}]
        if kind == "message_stop":
            self.done = True
        return []

    def _opened(self, index: Any, block: dict[str, Any]) -> list[dict[str, Any]]:
        if block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": ""}
            return [_chunk({"tool_calls": [{"index": index, "id": block["id"], "function": function}]})]
        if block["type"] == "text" and block.get("text"):
            return [_chunk({"content": block["text"]})]
        return []

    def _delta(self, index: Any, delta: dict[str, Any]) -> list[dict[str, Any]]:
        kind = delta.get("type")
        pieces = self._pieces.setdefault(index, defaultdict(list))
        if kind == "text_delta":
            return [_chunk({"content": delta["text"]})]
        if kind == "thinking_delta":
            pieces["thinking"].append(delta["thinking"])
            return [_chunk({"reasoning_content": delta["thinking"]})]
        if kind == "signature_delta":
            pieces["signature"].append(delta["signature"])
        is_call = self._blocks.get(index, {}).get("type") == "tool_use"
        if kind == "input_json_delta" and delta["partial_json"] and is_call:
            pieces["input"] = []
            return [_chunk({"tool_calls": [{"index": index, "function": {"arguments": delta["partial_json"]}}]})]
        return []

    def _closed(self, index: Any, block: dict[str, Any]) -> list[dict[str, Any]]:
        pieces = self._pieces.pop(index, {})
        if block.get("type") in ("thinking", "redacted_thinking"):
            joined = {key: block.get(key, "") + "".join(texts) for key, texts in pieces.items()}
            return [_chunk({"thinking_blocks": [{**block, **joined}]})]
        if block.get("type") == "tool_use" and block.get("input") and "input" not in pieces:
            return [_chunk({"tool_calls": [{"index": index, "function": {"arguments": block["input"]}}]})]
        return []
