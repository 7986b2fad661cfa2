"""The `anthropic` dialect: the Messages API. Shapes as in recorded streams of it (claude-sonnet-4-6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from agentlab import jsonio
from agentlab.messages import Message
from agentlab.simulator import anthropic_rules
from agentlab.simulator.anthropic_rules import Block, blocks_of, sign
from agentlab.simulator.cache import HourMark
from agentlab.simulator.dialect import Ask, Count, Event, Finish, Refusal, Reply, Request, Words, sse
from agentlab.simulator.tokens import Piece, message_of, message_tokens, render

# [O] the types, [X] the words, read in public threads; the figures inside them are ours.
_FAILURES = {
    401: Refusal("invalid x-api-key", type="authentication_error"),  # [X]
    403: Refusal("Your API key may not use the specified resource.", type="permission_error"),  # [ours]
    429: Refusal(
        "This request would exceed your organization's rate limit of 30,000 input tokens per minute (org: offline,"
        " model: offline). For details, refer to: https://docs.claude.com/en/api/rate-limits. You can see the response"
        " headers for current usage. Please reduce the prompt length or the maximum tokens requested, or try again"
        " later. You may also contact sales at https://claude.com/contact-sales to discuss your options for a rate"
        " limit increase.",
        type="rate_limit_error",
    ),  # [X]
    529: Refusal("Overloaded", type="overloaded_error"),  # [X]
}
_FAILURE = Refusal("Internal server error", type="api_error")  # [X]
_STOP: dict[Finish, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "window": "model_context_window_exceeded",
}
_KIND = {"reasoning": "thinking", "text": "text", "call": "tool_use", "arguments": "tool_use"}


class Anthropic:
    """The dialect object. It has no state."""

    name = "anthropic"
    path = "/messages"
    words = Words(
        calls="tool_use blocks",
        results="one user message that begins with a tool_result block for each call",
        shape='a user message that begins with one {"type": "tool_result", "tool_use_id": "%s", "content": ...} for'
        " each call",
    )

    def admit(self, headers: Mapping[str, str]) -> Refusal | None:
        """The two headers that every request needs. Any key is welcome."""
        if not (headers.get("x-api-key") or headers.get("authorization")):
            return Refusal("x-api-key header is required", status=401, type="authentication_error")  # [X]
        if not headers.get("anthropic-version"):
            return Refusal("anthropic-version: header is required")  # [X]
        return None

    def refuse(self, request: Request, *, thinks: bool = False) -> Refusal | None:
        """See `anthropic_rules.refuse`. Thinking may be left out; what comes back must be as it was."""
        return anthropic_rules.refuse(request)

    def read(self, request: Request) -> Ask:
        """Take out what the simulator acts on, in the OpenAI chat shape. A mark on a tool is not part of the prompt."""
        sent = request.get("tools") or []
        tools = [{key: value for key, value in tool.items() if key != "cache_control"} for tool in sent]
        messages, marked = chat(request)
        sizes = [len(render(tools, ())) - 1]
        for message in messages if marked else ():
            sizes.append(sizes[-1] + len(message_tokens(message)))
        marks = [mark(len(render(tools[: at + 1], ())) - 1) for at, tool in enumerate(sent) if (mark := _mark(tool))]
        return Ask(
            messages=messages,
            model=request["model"],
            tools=tools,
            names=tuple(tool["name"] for tool in tools),
            may_call=(request.get("tool_choice") or {}).get("type") != "none",
            stream=bool(request.get("stream")),
            limit=request["max_tokens"],
            marks=(*marks, *(type(position)(sizes[position]) for position in marked)),
        )

    def overflow(self, ask: Ask, *, window: int, tools: int, messages: int) -> Refusal | None:
        """Only the prompt has to fit: a reply that fills the window stops there, as with current models. [O]"""
        total = tools + messages
        return Refusal(f"prompt is too long: {total} tokens > {window} maximum") if total > window else None

    def failure(self, status: int) -> Refusal:
        """The body for a status that the request did not cause."""
        other = _FAILURE if status >= 500 else Refusal("Invalid request")  # [R]
        return replace(_FAILURES.get(status, other), status=status)

    def lost(self, method: str, path: str) -> Refusal:
        """Nothing is served there. [R]"""
        hint = "The simulator serves POST /v1/messages and GET /v1/models."
        return Refusal("Not Found", status=404, type="not_found_error", hint=hint)

    def unreadable(self) -> Refusal:
        """The body was not a JSON object. [X]; what is wrong, and where, is ours."""
        return Refusal("The request body is not valid JSON: unexpected character: line 1 column 1 (char 0)")

    def error(self, refusal: Refusal, number: int) -> dict[str, Any]:
        """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
        return {**_error(refusal), "request_id": _request_id(number)}

    def headers(self, number: int) -> dict[str, str]:
        """The request's id, which the official clients show."""
        return {"request-id": _request_id(number)}

    def usage(self, count: Count) -> dict[str, Any]:
        """`input_tokens` are fresh ones only: what was read from the cache or written to it comes on top."""
        return {
            **_input(count),
            "cache_creation": {
                "ephemeral_5m_input_tokens": count.written - count.written_hour,
                "ephemeral_1h_input_tokens": count.written_hour,
            },
            "output_tokens": count.output,
            "service_tier": "standard",
            "inference_geo": "global",
        }

    def stream(self, reply: Reply, ask: Ask) -> Iterator[Event]:
        """The message opens, each block opens, grows and closes; then the reason and the usage, and the end."""
        yield _event("message_start", message=_message(reply, [], self.usage(replace(reply.count, output=1))))
        for index, (kind, pieces) in enumerate(_blocks(reply.pieces)):
            opening = pieces[0] if kind == "tool_use" else None
            block = _block(kind, [opening] if opening else [])
            yield _event("content_block_start", len(opening.tokens) if opening else 0, index=index, content_block=block)
            if index == 0:
                yield _event("ping")
            for fields, tokens in _deltas(kind, pieces):
                yield _event("content_block_delta", tokens, index=index, delta=fields)
            yield _event("content_block_stop", index=index)
        usage = {**_input(reply.count), "output_tokens": reply.count.output}
        end = _event("message_delta", delta=_stop(reply), usage=usage)
        yield replace(end, kind="finish")
        yield replace(_event("message_stop"), kind="done")

    def stream_error(self, refusal: Refusal) -> bytes:
        """An event named `error` that holds the error object."""
        return sse(_error(refusal), event="error")

    def whole(self, reply: Reply) -> dict[str, Any]:
        """A `message` object."""
        content = [_block(kind, pieces) for kind, pieces in _blocks(reply.pieces)]
        return {**_message(reply, content, self.usage(reply.count)), **_stop(reply)}

    def models(self) -> dict[str, Any]:
        """One model, named `offline`. Requests may name any other; they get the same."""
        model = {"type": "model", "id": "offline", "display_name": "offline", "created_at": "1970-01-01T00:00:00Z"}
        return {"data": [model], "has_more": False, "first_id": "offline", "last_id": "offline"}


def chat(request: Request) -> tuple[list[Message], list[int]]:
    """The messages of a request in the OpenAI chat shape, and where the breakpoints are: behind so many messages.

    What a person says in several blocks becomes several messages, so that a block is known again wherever it stands.
    """
    messages: list[Message] = []
    marked: list[int] = []

    def add(message: Message, *blocks: Block) -> None:
        messages.append(message)
        if found := [mark for block in blocks if (mark := _mark(block))]:
            marked.append(found[-1](len(messages)))

    for block in blocks_of(request.get("system") or None):
        add({"role": "system", "content": block["text"]}, block)
    for message in request["messages"]:
        blocks = blocks_of(message["content"])
        if message["role"] == "assistant":
            add(_assistant(blocks), *blocks)
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                content = block.get("content") or ""
                add({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}, block)
            else:
                add({"role": "user", "content": block["text"] if block["type"] == "text" else [block]}, block)
    if mark := _mark(request):
        marked.append(mark(len(messages)))
    return messages, marked


def _assistant(blocks: Iterable[Block]) -> Message:
    calls = []
    texts = {"text": "", "thinking": ""}
    for block in blocks:
        if block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": jsonio.dumps(block["input"])}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif block["type"] in texts:
            texts[block["type"]] += block[block["type"]]
    message: Message = {"role": "assistant", "content": texts["text"]}
    if texts["thinking"]:
        message["reasoning_content"] = texts["thinking"]
    return {**message, "tool_calls": calls} if calls else message


def _mark(block: Block) -> type[int] | None:
    """The kind of breakpoint that a block, or a block in its result, holds: it lives for an hour, or as is usual."""
    if control := block.get("cache_control"):
        return HourMark if control.get("ttl") == "1h" else int
    inner = blocks_of(block.get("content")) if block.get("type") == "tool_result" else []
    return next((mark for part in reversed(inner) if (mark := _mark(part))), None)


def _blocks(pieces: Iterable[Piece]) -> Iterator[tuple[str, list[Piece]]]:
    """The pieces of each content block of a reply, with the block's type."""
    for (kind, _), group in groupby(pieces, lambda piece: (_KIND[piece.kind], piece.call)):
        yield kind, list(group)


def _block(kind: str, pieces: Iterable[Piece]) -> Block:
    """A content block: whole, or as it opens when there are no pieces, or only the one that opens a call."""
    message = message_of(pieces)
    if kind == "text":
        return {"type": kind, "text": message["content"]}
    if kind == "thinking":
        thinking = message.get("reasoning_content", "")
        return {"type": kind, "thinking": thinking, "signature": sign(thinking) if thinking else ""}
    call = message["tool_calls"][0]
    arguments = call["function"]["arguments"]
    try:
        value = jsonio.loads(arguments)
    except ValueError:  # cut short, or none yet
        value = None
    value = value if isinstance(value, dict) else {}
    direct = {"type": "direct"}
    return {"type": kind, "id": call["id"], "name": call["function"]["name"], "input": value, "caller": direct}


def _deltas(kind: str, pieces: list[Piece]) -> Iterator[tuple[dict[str, Any], int]]:
    """The deltas of a block, each with the tokens that it carries. A call starts with an empty one, as recorded."""
    if kind == "tool_use":
        yield {"type": "input_json_delta", "partial_json": ""}, 0
        for piece in pieces[1:]:
            yield {"type": "input_json_delta", "partial_json": piece.text}, len(piece.tokens)
        return
    for piece in pieces:
        yield {"type": f"{kind}_delta", kind: piece.text}, len(piece.tokens)
    if kind == "thinking":
        yield {"type": "signature_delta", "signature": _block(kind, pieces)["signature"]}, 0


def _event(name: str, tokens: int = 0, **fields: Any) -> Event:
    return Event(sse({"type": name, **fields}, event=name), tokens)


def _message(reply: Reply, content: list[Block], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": reply.model,
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage,
    }


def _stop(reply: Reply) -> dict[str, Any]:
    return {"stop_reason": _STOP[reply.finish], "stop_sequence": None, "stop_details": None}


def _input(count: Count) -> dict[str, int]:
    return {
        "input_tokens": count.prompt - count.hit - count.written,
        "cache_creation_input_tokens": count.written,
        "cache_read_input_tokens": count.hit,
    }


def _error(refusal: Refusal) -> dict[str, Any]:
    return {"type": "error", "error": {"type": refusal.type, "message": refusal.message}}


def _request_id(number: int) -> str:
    return f"req_{number}"
