"""What OpenAI's chat API refuses, in its own words. Every check reads the request once, so a long history is cheap.

Where a wording comes from is marked behind it: [X] read in a public issue thread, [R] recalled and not checked, [ours]
written here because the vendor's words are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from agentlab import jsonio
from agentlab.messages import OWN_KEYS, Message, calls_of
from agentlab.simulator.dialect import Refusal, Request

_KEYS = (
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages"
    " metadata modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key"
    " prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream"
    " stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options"
)
_TOP_LEVEL = frozenset(_KEYS.split())
_MESSAGE_KEYS = {
    "system": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {"role", "content", "name", "tool_calls", "function_call", "refusal", "audio", "annotations"}
    ),
    "user": frozenset({"role", "content", "name"}),
    "function": frozenset({"role", "content", "name"}),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
    "developer": frozenset({"role", "content", "name"}),
}
_PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")
_NAME, _NAME_LENGTH, _ID_LENGTH, _TOOLS = re.compile("[a-zA-Z0-9_-]+"), 64, 40, 128


def refuse(request: Request) -> Refusal | None:
    """The first thing that OpenAI would refuse in this request, or None. Context overflow is judged elsewhere."""
    return next(_wrong(request), None)


def _wrong(request: Request) -> Iterator[Refusal]:
    if not request.get("model"):
        yield Refusal("you must provide a model parameter")  # [X]
    yield from _unknown(request, _TOP_LEVEL, "")
    yield from _typed(request, "model", str, "a string")
    yield from _typed(request, "stream", bool, "a boolean")
    for key in ("max_tokens", "max_completion_tokens", "n"):
        yield from _typed(request, key, int, "an integer")
        if request.get(key) is not None and request[key] < 1:
            message = (
                f"Invalid '{key}': integer below minimum value. Expected a value >= 1, but got {request[key]} instead."
            )
            yield Refusal(message, key, "integer_below_min_value")  # [X]
    if request.get("n") not in (None, 1):
        yield Refusal("This simulator answers with one choice: leave out 'n'.", "n")  # [ours]
    yield from _typed(request, "stream_options", dict, "an object")
    if request.get("stream_options") is not None and not request.get("stream"):
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."  # [X]
        yield Refusal(message, "stream_options")
    yield from _tools(request)
    if "messages" not in request:
        yield _missing("messages")
    yield from _typed(request, "messages", list, "an array of objects", null=False)
    if not request["messages"]:
        yield _empty("messages")
    for position, message in enumerate(request["messages"]):
        yield from _message(message, f"messages[{position}]", position)
    yield from _pairing(request["messages"])


def _tools(request: Request) -> Iterator[Refusal]:
    tools = request.get("tools")
    if tools is None:
        for key in ("tool_choice", "parallel_tool_calls"):
            if request.get(key) is not None:
                message = f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified."  # [X]
                yield Refusal(message, key)
        return
    yield from _typed(request, "tools", list, "an array of objects")
    if not tools:
        yield _empty("tools", "Leave `tools` out when there are none.")
    if len(tools) > _TOOLS:
        message = f"Invalid 'tools': array too long. Expected an array with maximum length {_TOOLS}, but got an array"
        yield Refusal(f"{message} with length {len(tools)} instead.", "tools", "array_above_max_length")  # [X]
    for position, tool in enumerate(tools):
        where = f"tools[{position}]"
        if not isinstance(tool, dict):
            yield _type(where, "an object", tool)
        yield from _unknown(tool, {"type", "function"}, where)
        if "type" not in tool:
            yield _missing(f"{where}.type")
        if tool["type"] != "function":
            yield _value(f"{where}.type", tool["type"], ("function",))
        if "function" not in tool:
            yield _missing(f"{where}.function")
        yield from _typed(tool, "function", dict, "an object", where, null=False)
        function, where = tool["function"], f"{where}.function"
        yield from _unknown(function, {"name", "description", "parameters", "strict"}, where)
        yield from _name(function, where)
        yield from _typed(function, "description", str, "a string", where)
        yield from _typed(function, "parameters", dict, "an object", where)
        kind = (function.get("parameters") or {}).get("type", "object")
        if kind != "object":
            message = f"Invalid schema for function '{function['name']}': schema must be a JSON Schema of"  # [X]
            message += f" 'type: \"object\"', got 'type: \"{kind}\"'."
            yield Refusal(message, f"{where}.parameters", "invalid_function_parameters")


def _message(message: Any, where: str, position: int) -> Iterator[Refusal]:
    if not isinstance(message, dict):
        yield _type(where, "an object", message)
    if "role" not in message:
        yield _missing(f"{where}.role")
    role = message["role"]
    if not isinstance(role, str) or role not in _MESSAGE_KEYS:
        yield _value(f"{where}.role", role, tuple(_MESSAGE_KEYS))
    own = [f"`{key}`" for key in sorted(OWN_KEYS & message.keys())]
    hint = f"{' and '.join(own)}: agentlab's own mark, send messages.wire(history)." if own else ""
    yield from _unknown(message, _MESSAGE_KEYS[role], where, hint)
    yield from _calls(message, where)
    content = message.get("content")
    if content is None and not calls_of(message) and not message.get("function_call"):
        text = "Invalid value for 'content': expected a string, got null."  # [X], for a missing content too [R]
        yield Refusal(text, f"messages.[{position}].content", hint="A message without text needs tool calls.")
    if not isinstance(content, str | list | None):
        yield _type(f"{where}.content", "one of a string or array of objects", content)
    if content == []:
        yield _empty(f"{where}.content")
    for index, part in enumerate(content if isinstance(content, list) else []):
        at = f"{where}.content[{index}]"
        if not isinstance(part, dict):
            yield _type(at, "an object", part)
        if part.get("type") not in _PARTS:
            yield _value(f"{at}.type", part.get("type"), _PARTS)
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            yield _type(f"{at}.text", "a string", part.get("text"))
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            text = "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."  # [X]
            yield Refusal(text, f"messages.[{position}].tool_call_id")
        if len(message["tool_call_id"]) > _ID_LENGTH:
            yield _long(f"{where}.tool_call_id", message["tool_call_id"], _ID_LENGTH)


def _calls(message: Message, where: str) -> Iterator[Refusal]:
    yield from _typed(message, "tool_calls", list, "an array of objects", where)
    calls = message.get("tool_calls")
    if calls == []:
        yield _empty(f"{where}.tool_calls", "Leave `tool_calls` out when there are none.")
    seen: set[str] = set()
    for index, call in enumerate(calls or []):
        at = f"{where}.tool_calls[{index}]"
        if not isinstance(call, dict):
            yield _type(at, "an object", call)
        yield from _unknown(call, {"id", "type", "function"}, at)
        for key in ("id", "type", "function"):
            if key not in call:
                yield _missing(f"{at}.{key}")
        yield from _typed(call, "id", str, "a string", at, null=False)
        if len(call["id"]) > _ID_LENGTH:
            yield _long(f"{at}.id", call["id"], _ID_LENGTH)
        if call["type"] != "function":
            yield _value(f"{at}.type", call["type"], ("function",))
        yield from _typed(call, "function", dict, "an object", at, null=False)
        function, inner = call["function"], f"{at}.function"
        yield from _unknown(function, {"name", "arguments"}, inner)
        yield from _name(function, inner)
        if "arguments" not in function:
            yield _missing(f"{inner}.arguments")
        yield from _typed(function, "arguments", str, "a string", inner, null=False)
        if not is_object(function["arguments"]):
            text = f"Invalid '{inner}.arguments': expected a string that holds a JSON object."  # [ours]
            yield Refusal(text, f"{inner}.arguments", "invalid_value", hint="Put {} in place of arguments cut short.")
        if call["id"] in seen:
            text = f"Invalid '{at}.id': '{call['id']}' names another call of this message already."  # [ours]
            yield Refusal(text, f"{at}.id", "invalid_value", hint="Every call of one message needs an id of its own.")
        seen.add(call["id"])


@dataclass(frozen=True)
class Mismatch:
    """A call or a result that does not match: the ids, and the message where that shows (None: behind the last).

    `first` is the message that holds the other result of a duplicate.
    """

    kind: Literal["unanswered", "orphan", "duplicate"]
    ids: tuple[str, ...]
    position: int | None
    first: int = 0


def mismatches(messages: list[Message]) -> Iterator[Mismatch]:
    """Calls and results that do not match, for messages that are well-formed otherwise; read it up to the first.

    The results of a call stand right behind the message that made it. An id may come back in a later message.
    """
    open_ids: dict[str, None] = {}
    given: dict[str, int] = {}
    for position, message in enumerate([*messages, None]):
        if message is not None and message["role"] == "tool":
            id = message["tool_call_id"]
            if id in given:
                yield Mismatch("duplicate", (id,), position, given[id])
            if id not in open_ids:
                yield Mismatch("orphan", (id,), position)
            del open_ids[id]
            given[id] = position
            continue
        if open_ids:
            yield Mismatch("unanswered", tuple(open_ids), None if message is None else position)
        open_ids = {call["id"]: None for call in calls_of(message or {})}
        given = {}


def _pairing(messages: list[Message]) -> Iterator[Refusal]:
    for found in mismatches(messages):
        at = f"messages.[{found.position}]"
        if found.kind == "duplicate":
            text = f"Invalid parameter: Duplicate value for 'tool_call_id' of '{found.ids[0]}', in"  # [X]
            text, param = f"{text} messages[{found.first}] and messages[{found.position}].", f"{at}.tool_call_id"
        elif found.kind == "orphan":
            text = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with"
            text, param = f"{text} 'tool_calls'.", f"{at}.role"  # [X]
        else:
            text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
            text += " 'tool_call_id'. The following tool_call_ids did not have response messages: "  # [X]
            text += ", ".join(found.ids)
            param = "messages" if found.position is None else f"{at}.role"  # [R]
        yield Refusal(text, param, kind=found.kind, ids=found.ids)


def is_object(text: str) -> bool:
    """Whether this is the JSON text of an object."""
    try:
        return isinstance(jsonio.loads(text), dict)
    except ValueError:
        return False


def _name(function: dict[str, Any], where: str) -> Iterator[Refusal]:
    if "name" not in function:
        yield _missing(f"{where}.name")
    yield from _typed(function, "name", str, "a string", where, null=False)
    name = function["name"]
    if not _NAME.fullmatch(name):
        message = f"Invalid '{where}.name': string does not match pattern. Expected a string that matches the pattern"
        yield Refusal(f"{message} '^[a-zA-Z0-9_-]+$'.", f"{where}.name", "invalid_value")  # [X]
    if len(name) > _NAME_LENGTH:
        yield _long(f"{where}.name", name, _NAME_LENGTH)


def _typed(
    holder: dict[str, Any], key: str, kind: type, expected: str, where: str = "", *, null: bool = True
) -> Iterator[Refusal]:
    value = holder.get(key)
    if value is None and (null or key not in holder):
        return
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield _type(f"{where}.{key}" if where else key, expected, value)


def _type(where: str, expected: str, value: Any) -> Refusal:
    kinds = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    got = "null" if value is None else kinds.get(type(value), "an object")
    return Refusal(
        f"Invalid type for '{where}': expected {expected}, but got {got} instead.", where, "invalid_type"
    )  # [X]


def _value(where: str, value: Any, supported: tuple[str, ...]) -> Refusal:
    listed = [f"'{name}'" for name in supported]
    choice = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + f", and {listed[-1]}"
    text = f"Invalid value: '{value}'. Supported values are: {choice}."  # [X]
    return Refusal(text, where, "invalid_value")


def _unknown(holder: dict[str, Any], known: Iterable[str], where: str, hint: str = "") -> Iterator[Refusal]:
    for key in holder:
        if key not in known:
            name = f"{where}.{key}" if where else key
            yield Refusal(f"Unknown parameter: '{name}'.", name, "unknown_parameter", hint=hint)  # [X]


def _missing(where: str) -> Refusal:
    return Refusal(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")  # [X]


def _empty(where: str, hint: str = "") -> Refusal:
    text = f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    return Refusal(text, where, "empty_array", hint=hint)  # [X]


def _long(where: str, value: str, most: int) -> Refusal:
    text = f"Invalid '{where}': string too long. Expected a string with maximum length {most}, but got a string with"
    return Refusal(f"{text} length {len(value)} instead.", where, "string_above_max_length")  # [X]
