"""Where an Anthropic request is marked, so that the whole conversation so far is read from the cache.

    tools ......... system ......... messages ... asks #3 | answers | asks #4
    last tool #1    last block #2                 end of the request before    end of this one

A prefix is stored where a mark stands and nowhere else, and a mark finds one only up to 20 blocks back: one step with
many results would lose everything. So the end of the request before keeps its mark (#3) while the end of this one gets
a new one (#4), which the next request will find, however much comes between. The first two outlive a compaction.
A mark that moves on changes no content. (Anthropic: "Prompt caching": 4 marks, order tools, system, messages.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agentlab.errors import AgentLabError

Ttl = Literal["5m", "1h"]
Block = dict[str, Any]

_KEY = "cache_control"
_MARKABLE = ("text", "tool_use", "image", "document", "search_result")


def control(ttl: Ttl) -> dict[str, str]:
    """The value of one mark; five minutes are the vendor's default. Raises AgentLabError for any other lifetime."""
    if ttl not in ("5m", "1h"):
        raise AgentLabError(f"Anthropic keeps a cached prefix for '5m' or '1h', not {ttl!r}: choose one, or None.")
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def mark(body: Mapping[str, Any], ttl: Ttl | None) -> dict[str, Any]:
    """The body of a request with at most four marks; what was passed in stays as it is.

    `ttl` is how long a prefix is kept after its last use, None for no marks. A body that holds marks already keeps
    those and gets no others: who sets some knows better, and the lifetimes of one request may not be mixed at will.
    """
    if ttl is None or has_marks(body):
        return dict(body)
    on = control(ttl)
    marked = dict(body)
    if tools := body.get("tools"):
        marked["tools"] = [*tools[:-1], {**tools[-1], _KEY: on}]
    if system := body.get("system"):
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
        marked["system"] = [*blocks[:-1], {**blocks[-1], _KEY: on}]
    messages = list(body["messages"])
    for index in _ends(messages):
        messages[index] = _marked(messages[index], on)
    return {**marked, "messages": messages}


def has_marks(body: Mapping[str, Any]) -> bool:
    """Whether a body, or a part of one, holds a mark: at its top, or on a tool or a block."""
    blocks = [body, *(body.get("tools") or []), *_blocks(body.get("system"))]
    for message in body.get("messages") or []:
        for block in _blocks(message.get("content")):
            blocks += [block, *_blocks(block.get("content"))]
    return any(block.get(_KEY) is not None for block in blocks)


def _ends(messages: list[Block]) -> list[int]:
    """The last message, and the one that ended the request before: the last words in front of the last answer."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    before = answers[-1] - 1 if answers else -1
    return sorted({index for index in (before, len(messages) - 1) if index >= 0})


def _marked(message: Block, on: dict[str, str]) -> Block:
    blocks = message["content"]
    at = next((index for index in reversed(range(len(blocks))) if _may_be_marked(blocks[index])), None)
    if at is None:
        return message
    return {**message, "content": [*blocks[:at], {**blocks[at], _KEY: on}, *blocks[at + 1 :]]}


def _may_be_marked(block: Block) -> bool:
    """The API refuses marks on thinking and on empty text, so an empty result is passed over too."""
    return block.get("type") in _MARKABLE or (block.get("type") == "tool_result" and bool(block.get("content")))


def _blocks(content: Any) -> list[Block]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
