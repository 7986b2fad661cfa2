"""What DeepSeek's chat API refuses, in its own words. It reads a request as a Rust program does: type by type.

Keys that it does not know it ignores. Where a wording comes from is marked behind it: [X] read in a public thread or
program, [R] recalled and not checked, [ours] written here because the vendor's words are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentlab import jsonio
from agentlab.messages import Message, calls_of
from agentlab.simulator.dialect import Refusal, Request
from agentlab.simulator.openai_rules import is_object, mismatches

CODE = "invalid_request_error"
_MOST_OUTPUT = 393_216
_ROLES = ("system", "user", "assistant", "tool")
_NAME = re.compile("[a-zA-Z0-9_-]+")
_KINDS = {str: "a string", bool: "a boolean", int: "u32", list: "a sequence", dict: "a map"}


def refuse(request: Request, *, thinks: bool = False) -> Refusal | None:
    """The first thing that DeepSeek would refuse in this request, or None. Context overflow is judged elsewhere.

    `thinks`: the model has shown its reasoning in an earlier answer.
    """
    return next(_wrong(request, thinks), None)


def _wrong(request: Request, thinks: bool) -> Iterator[Refusal]:
    shape = next(_shape(request), "")
    if shape:
        text = f"Failed to deserialize the JSON body into the target type: {shape} at line 1 column"  # [X]
        yield Refusal(f"{text} {len(jsonio.dumps(request))}", code=CODE)  # the figure is ours
    limit = request.get("max_tokens")
    if limit is not None and not 1 <= limit <= _MOST_OUTPUT:
        text = f"Invalid max_tokens value, the valid range of max_tokens is [1, {_MOST_OUTPUT}]"  # [X]
        yield Refusal(text, code=CODE)
    for position, tool in enumerate(request.get("tools") or []):
        if not _NAME.fullmatch(tool["function"]["name"]):
            text = f"Invalid 'tools[{position}].function.name': string does not match pattern. Expected a string that"
            yield Refusal(f"{text} matches the pattern '^[a-zA-Z0-9_-]+$'.", code=CODE)  # [X]
    if not request["messages"]:
        yield Refusal("Empty input messages", code=CODE)  # [X]
    for position, message in enumerate(request["messages"]):
        if message["role"] == "assistant" and message.get("content") is None and not calls_of(message):
            yield Refusal("Invalid assistant message: content or tool_calls must be set", code=CODE)  # [X]
        yield from _calls(message, position)
    yield from _pairing(request["messages"])
    yield from _reasoning(request, thinks)


def _calls(message: Message, position: int) -> Iterator[Refusal]:
    seen: set[str] = set()
    for index, call in enumerate(calls_of(message)):
        at = f"messages[{position}].tool_calls[{index}]"
        if not is_object(call["function"]["arguments"]):
            text = f"Invalid '{at}.function.arguments': expected a string that holds a JSON object."  # [ours]
            yield Refusal(text, code=CODE, hint="Put {} in place of arguments cut short.")
        if call["id"] in seen:
            text = f"Invalid '{at}.id': '{call['id']}' names another call of this message already."  # [ours]
            yield Refusal(text, code=CODE, hint="Every call of one message needs an id of its own.")
        seen.add(call["id"])


def _pairing(messages: list[Message]) -> Iterator[Refusal]:
    for found in mismatches(messages):
        if found.kind == "duplicate":
            text = f"Duplicate value for 'tool_call_id' of {found.ids[0]} in message[{found.position}]"  # [X]
        elif found.kind == "orphan":
            text = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"  # [X]
        else:
            text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
            text += " 'tool_call_id'. (insufficient tool messages following tool_calls message)"  # [X]
        yield Refusal(text, code=CODE, kind=found.kind, ids=found.ids)


def _reasoning(request: Request, thinks: bool) -> Iterator[Refusal]:
    """In thinking mode every message with tool calls comes back with its reasoning: empty is accepted, missing is not.

    `thinking` says which mode it is; without it, what the model or the request shows.
    """
    mode = (request.get("thinking") or {}).get("type")
    shows = thinks or any(message.get("reasoning_content") for message in request["messages"])
    if mode == "disabled" or not (shows or mode == "enabled"):
        return
    for position, message in enumerate(request["messages"]):
        if calls_of(message) and message.get("reasoning_content") is None:
            text = "The `reasoning_content` in the thinking mode must be passed back to the API."  # [X]
            hint = f"messages[{position}] asks for tools, and came back without its `reasoning_content`: keep it."
            yield Refusal(text, code=CODE, hint=hint)


def _shape(request: Request) -> Iterator[str]:
    """What does not have the type that it must have, in the words of Rust's serde. [X], unless marked otherwise."""
    yield from _typed(request, "messages", list, "")
    yield from _typed(request, "model", str, "")
    for key, kind in (("max_tokens", int), ("stream", bool), ("tools", list), ("thinking", dict)):
        yield from _typed(request, key, kind, "", required=False)  # [R]
    for position, message in enumerate(request["messages"]):
        where = f"messages[{position}]"
        if not isinstance(message, dict):
            yield _type(where, message, "a map")  # [R]
        yield from _typed(message, "role", str, where)
        if message["role"] not in _ROLES:
            listed = ", ".join(f"`{role}`" for role in _ROLES)
            yield f"{where}.role: unknown variant `{message['role']}`, expected one of {listed}"
        yield from _content(message, where)
        yield from _typed(message, "reasoning_content", str, where, required=False)  # [R]
        if message["role"] == "tool":
            yield from _typed(message, "tool_call_id", str, where)
        if message["role"] == "assistant":
            yield from _typed(message, "tool_calls", list, where, required=False)  # [R]
            for call in message.get("tool_calls") or []:
                yield from _function(call, where, arguments=True)
                yield from _typed(call, "id", str, where)
    for position, tool in enumerate(request.get("tools") or []):
        yield from _function(tool, f"tools[{position}]", arguments=False)


def _content(message: Message, where: str) -> Iterator[str]:
    content = message.get("content")
    if content is None and message["role"] != "assistant":
        yield f"{where}: missing field `content`"  # [R]
    if not isinstance(content, str | list | None):
        yield f"{where}: data did not match any variant of untagged enum ChatCompletionRequestContent"
    for part in content if isinstance(content, list) else []:
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else part
            yield f"{where}.content: unknown variant `{kind}`, expected `text`"
        yield from _typed(part, "text", str, where)


def _function(holder: Any, where: str, *, arguments: bool) -> Iterator[str]:
    """A tool, or a call of one: `{"type": "function", "function": {"name", ...}}`."""
    if not isinstance(holder, dict):
        yield _type(where, holder, "a map")  # [R]
    yield from _typed(holder, "type", str, where)
    yield from _typed(holder, "function", dict, where)
    yield from _typed(holder["function"], "name", str, where)
    if arguments:
        yield from _typed(holder["function"], "arguments", str, where)


def _typed(holder: dict[str, Any], key: str, kind: type, where: str, *, required: bool = True) -> Iterator[str]:
    value = holder.get(key)
    if key not in holder and required:
        yield f"{where}: missing field `{key}`".removeprefix(": ")
    elif value is None and not required:
        return
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield _type(where or key, value, _KINDS[kind])


def _type(where: str, value: Any, expected: str) -> str:
    kinds = {bool: "boolean", int: "integer", float: "floating point", str: "string", list: "sequence"}
    got = "null" if value is None else kinds.get(type(value), "map")
    if isinstance(value, int | float | str):
        got += f" `{jsonio.dumps(value)}`" if not isinstance(value, str) else f' "{value}"'
    return f"{where}: invalid type: {got}, expected {expected}"
