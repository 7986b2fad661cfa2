"""What Anthropic's Messages API refuses, in its own words. Every check reads the request once.

The shape of the whole request is judged first, then what the messages mean. Where a wording comes from is marked behind
it: [O] read in an official file, [X] read in a public thread or program, [R] recalled and not checked (most are the
words of pydantic, which validates the shape), [ours] written here because the vendor's words are not known.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentlab.simulator.dialect import Refusal, Request

Block = dict[str, Any]
Fields = Mapping[str, type]

# Keys as in the types of the official SDK [O]; the sampling settings are those of its older versions.
_REQUIRED: Fields = {"model": str, "max_tokens": int, "messages": list}
_OPTIONAL: Fields = {"stream": bool, "tools": list, "tool_choice": dict, "thinking": dict, "cache_control": dict}
_OTHERS = (
    "container diagnostics inference_geo metadata output_config service_tier speed stop_sequences system temperature"
    " top_k top_p user_profile_id workspace_id"
)
_BLOCKS: dict[str, tuple[Fields, str]] = {  # by type: what must be there, and what else may be
    "document": ({"source": dict}, "cache_control citations context title"),
    "image": ({"source": dict}, "cache_control transformations"),
    "redacted_thinking": ({"data": str}, ""),
    "search_result": ({"source": str, "title": str, "content": list}, "cache_control citations"),
    "text": ({"text": str}, "cache_control citations"),
    "thinking": ({"thinking": str, "signature": str}, ""),
    "tool_result": ({"tool_use_id": str}, "cache_control content is_error toolset_name"),
    "tool_use": ({"id": str, "name": str, "input": dict}, "cache_control caller toolset_name"),
}
_IN_RESULTS = ("document", "image", "search_result", "text")
_TOOL: Fields = {"name": str, "input_schema": dict}
_TOOL_OTHERS = (
    "allowed_callers cache_control defer_loading description eager_input_streaming input_examples strict type"
)
_KINDS = {str: "string", int: "integer", bool: "boolean", list: "list", dict: "dictionary"}
_ID, _NAME, _BREAKPOINTS = "[a-zA-Z0-9_-]+", "[a-zA-Z0-9_-]{1,128}", 4
_HOWTO = "https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview"


def sign(thinking: str) -> str:
    """The signature of a thinking block: a digest of its text, so that a changed text is found out."""
    digest = hashlib.sha256(b"agentlab " + thinking.encode("utf-8", "surrogatepass")).digest()
    return base64.b64encode(digest).decode()


def blocks_of(content: Any) -> list[Block]:
    """Content as blocks: a string is one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def refuse(request: Request) -> Refusal | None:
    """The first thing that Anthropic would refuse in this request, or None. Context overflow is judged elsewhere."""
    shape = next(_shape(request), "") or next(_meaning(request), "")
    return Refusal(shape) if shape else next(_calls(request), None)


# --- the shape


def _shape(request: Request) -> Iterator[str]:
    yield from _fields(request, "", _REQUIRED, _OPTIONAL, _OTHERS)
    if request["max_tokens"] < 1:
        yield "max_tokens: Input should be greater than or equal to 1"  # [R]
    system = request.get("system")
    if not isinstance(system, str | list | None):
        yield "system: Input should be a valid list"  # [R]
    for index, block in enumerate(system if isinstance(system, list) else []):
        yield from _block(block, f"system.{index}", ("text",))
    for index, message in enumerate(request["messages"]):
        where = f"messages.{index}"
        if not isinstance(message, dict):
            yield f"{where}: Input should be a valid dictionary or object to extract fields from"  # [R]
        yield from _fields(message, where, {"role": str}, {}, "content")
        yield from _content(message, where, tuple(_BLOCKS), required=True)
    for index, tool in enumerate(request.get("tools") or []):
        yield from _tool(tool, f"tools.{index}")


def _content(holder: Block, where: str, tags: tuple[str, ...], *, required: bool = False) -> Iterator[str]:
    where, content = f"{where}.content", holder.get("content")
    if "content" not in holder:
        if required:
            yield f"{where}: Field required"  # [R]
    elif not isinstance(content, str | list):
        yield f"{where}: Input should be a valid list"  # [R]
    for index, block in enumerate(content if isinstance(content, list) else []):
        yield from _block(block, f"{where}.{index}", tags)


def _block(block: Any, where: str, tags: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(block, dict):
        yield f"{where}: Input should be a valid dictionary or object to extract fields from"  # [R]
    kind = block.get("type")
    if kind is None:
        yield f"{where}: Unable to extract tag using discriminator 'type'"  # [R]
    if kind not in tags:
        listed = ", ".join(f"'{tag}'" for tag in tags)  # [X]; those that run on the vendor's servers are not here
        yield f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {listed}"
    required, others = _BLOCKS[kind]
    where = f"{where}.{kind}"
    yield from _fields(block, where, required, {"is_error": bool} if kind == "tool_result" else {}, f"type {others}")
    yield from _cache_control(block, where)
    for key in ("id", "tool_use_id"):
        if key in required and not re.fullmatch(_ID, block[key]):
            yield f"{where}.{key}: String should match pattern '^{_ID}$'"  # [X]
    if kind == "tool_result":
        yield from _content(block, where, _IN_RESULTS)


def _tool(tool: Any, where: str) -> Iterator[str]:
    if not isinstance(tool, dict):
        yield f"{where}: Input should be a valid dictionary or object to extract fields from"  # [R]
    kind = tool.get("type") or "custom"
    if kind != "custom":
        text = f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: 'custom'"
        yield text  # [X]; tools that the vendor runs are not here
    where = f"{where}.custom"
    yield from _fields(tool, where, _TOOL, {"description": str}, _TOOL_OTHERS)
    yield from _cache_control(tool, where)
    if not re.fullmatch(_NAME, tool["name"]):
        yield f"{where}.name: String should match pattern '^{_NAME}$'"  # [X]
    if tool["input_schema"].get("type") is None:
        yield f"{where}.input_schema.type: Field required"  # [X]
    if tool["input_schema"]["type"] != "object":
        yield f"{where}.input_schema.type: Input should be 'object'"  # [R]


def _cache_control(holder: Block, where: str) -> Iterator[str]:
    mark = holder.get("cache_control")
    kind = mark.get("type") if isinstance(mark, dict) else mark
    if mark is not None and kind != "ephemeral":
        text = f"{where}.cache_control: Input tag '{kind}' found using 'type' does not match any of the expected tags:"
        yield f"{text} 'ephemeral'"  # [R]


def _fields(holder: Block, where: str, required: Fields, optional: Fields, others: str) -> Iterator[str]:
    """What is missing [X], of another type (a string [X], a dictionary [X], the rest [R]), or too much [X]."""
    prefix = f"{where}." if where else ""
    for key, kind in {**required, **optional}.items():
        value = holder.get(key)
        if key not in holder and key in required:
            yield f"{prefix}{key}: Field required"
        elif value is None and key in optional:
            continue
        elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            yield f"{prefix}{key}: Input should be a valid {_KINDS[kind]}"
    known = {*required, *optional, *others.split()}
    yield from (f"{prefix}{key}: Extra inputs are not permitted" for key in holder if key not in known)


# --- the meaning


def _meaning(request: Request) -> Iterator[str]:
    messages, tools = request["messages"], request.get("tools") or []
    if not messages:
        yield "messages: at least one message is required"  # [X]
    for index, message in enumerate(messages):
        yield from _message(message, index, last=index == len(messages) - 1)
    yield from _texts(request.get("system") or None, "system")
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."  # [X]
    choice = request.get("tool_choice") or {}
    if choice.get("type") == "any" and not names:
        yield "tool_choice.any may only be specified while providing tools"  # [X]
    if choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"Tool '{choice.get('name')}' not found in provided tools"  # [X]
    marked = breakpoints(request)
    if marked > _BREAKPOINTS:
        yield f"A maximum of {_BREAKPOINTS} blocks with cache_control may be provided. Found {marked}."  # [X]


def breakpoints(request: Request) -> int:
    """How many `cache_control` marks the request holds."""
    blocks = [request, *(request.get("tools") or []), *blocks_of(request.get("system"))]
    for message in request["messages"]:
        for block in blocks_of(message["content"]):
            blocks += [block, *(blocks_of(block.get("content")) if block["type"] == "tool_result" else ())]
    return sum(block.get("cache_control") is not None for block in blocks)


def _message(message: Block, index: int, *, last: bool) -> Iterator[str]:
    role, where = message["role"], f"messages.{index}"
    if role == "system":
        text = 'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not'
        yield f'{text} "system" as an input message role.'  # [X]
    if role not in ("user", "assistant"):
        text = f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant". For instructions on how'
        yield f"{text} to use tools, see {_HOWTO}."  # [X]
    if not message["content"] and not (last and role == "assistant"):
        text = "all messages must have non-empty content except for the optional final assistant message"
        yield f"{where}: {text}"  # [X]
    yield from _texts(message["content"] or None, "messages")
    for position, block in enumerate(blocks_of(message["content"])):
        kind = block["type"]
        if kind == "tool_result" and role != "user":
            yield f"{where}: `tool_result` blocks can only be in `user` messages"  # [X]
        if kind == "tool_use" and role != "assistant":
            yield f"{where}: `tool_use` blocks can only be in `assistant` messages"  # [X]
        if kind in ("thinking", "redacted_thinking") and role != "assistant":
            yield f"{where}.content: thinking blocks may only be in `assistant` messages"  # [X]
        if kind == "thinking" and block["signature"] != sign(block["thinking"]):
            yield f"{where}.content.{position}: Invalid `signature` in `thinking` block"  # [X]
        if kind == "redacted_thinking":  # the simulator makes none, so it is somebody else's
            yield f"{where}.content.{position}: Invalid `data` in `redacted_thinking` block"  # [X]


def _texts(content: Any, where: str) -> Iterator[str]:
    for block in blocks_of(content):
        if block["type"] == "text" and not block["text"]:
            yield f"{where}: text content blocks must be non-empty"  # [X]
        if block["type"] == "text" and not block["text"].strip():
            yield f"{where}: text content blocks must contain non-whitespace text"  # [X]


# --- calls and results


def _calls(request: Request) -> Iterator[Refusal]:
    messages = request["messages"]
    yield from _unique(messages)
    yield from _pairing(messages)
    yield from _names(request)
    if messages[-1]["role"] == "assistant":
        text = "This model does not support assistant message prefill. The conversation must end with a user message."
        hint = "Your request ends with the model's own words: append what the person says next."
        yield Refusal(text, hint=hint)  # [X]


def _unique(messages: list[Block]) -> Iterator[Refusal]:
    seen: set[str] = set()
    for index, position, block in _uses(messages):
        if block["id"] in seen:
            text = f"messages.{index}.content.{position}: `tool_use` ids must be unique"  # [X]
            hint = f"`{block['id']}` names an earlier call too: give every call of a request an id of its own."
            yield Refusal(text, hint=hint)
        seen.add(block["id"])


def _uses(messages: list[Block]) -> Iterator[tuple[int, int, Block]]:
    for index, message in enumerate(messages):
        for position, block in enumerate(blocks_of(message["content"])):
            if block["type"] == "tool_use":
                yield index, position, block


def _pairing(messages: list[Block]) -> Iterator[Refusal]:
    """The message right behind a call begins with the results of all its calls, one for each, in any order."""
    asked: list[str] = []
    for index, message in enumerate([*messages, {"role": "user", "content": ""}]):
        blocks = blocks_of(message["content"])
        answered: set[str] = set()
        leading = True
        seen: set[str] = set()
        for position, block in enumerate(blocks):
            if block["type"] != "tool_result":
                leading = False
                continue
            id, where = block["tool_use_id"], f"messages.{index}.content.{position}"
            if id not in asked:
                text = f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result`"
                text += " block must have a corresponding `tool_use` block in the previous message."  # [O]
                yield Refusal(text, kind="orphan", ids=(id,))
            if id in seen:
                text = f"{where}: each tool_use must have a single result. Found multiple `tool_result` blocks with id:"
                yield Refusal(f"{text} {id}", kind="duplicate", ids=(id,))  # [X]
            seen.add(id)
            if leading:
                answered.add(id)
        missing = tuple(id for id in asked if id not in answered)
        if missing:
            text = f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after:"
            text += f" {', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in"
            yield Refusal(f"{text} the next message.", kind="unanswered", ids=missing)  # [X]
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]


def _names(request: Request) -> Iterator[Refusal]:
    """A call of a tool that this request does not offer. Without any `tools` earlier calls may stand."""
    names = {tool["name"] for tool in request.get("tools") or []}
    for index, position, block in _uses(request["messages"]) if names else ():
        if block["name"] not in names:
            text = f"messages.{index}.content.{position}: Tool '{block['name']}' not found in provided tools"
            hint = f"Your `tools` do not hold `{block['name']}`, but the messages call it: send its definition too, or"
            yield Refusal(text, hint=f"{hint} have it called through a tool that is always there.")  # [ours]
