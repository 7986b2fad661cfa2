"""Messages as plain dicts in the OpenAI chat shape: builders, atomic groups, wire form, canonical JSON and its size.

Two extra keys are ours: `origin` marks messages that no person wrote (`"watchdog"`, `"compaction"`, `"repair"`, ...),
`output_path` names the file that holds the whole of a tool's output. Only `wire` takes them off.
Nothing here changes what it is given. (Seed 001, "groups".)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio

OWN_KEYS = frozenset({"origin", "output_path"})

Message = dict[str, Any]
ToolCall = dict[str, Any]


def user(text: str) -> Message:
    """A message that a person wrote."""
    return {"role": "user", "content": text}


def assistant(text: str, *calls: ToolCall) -> Message:
    """A reply of the model: text, and the tool calls (from `call`) that it asks for."""
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(id: str, name: str, /, **arguments: Any) -> ToolCall:
    """One tool call. The arguments become a JSON string, as on the wire."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": jsonio.dumps(arguments)}}


def tool(call_id: str, text: str) -> Message:
    """The result of the tool call with this id."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def calls_of(message: Message) -> list[ToolCall]:
    """The tool calls of a message: empty for a message that has none, or that is no assistant message."""
    if message.get("role") != "assistant":
        return []
    calls = message.get("tool_calls")
    return [c for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []


@dataclass(frozen=True)
class Group:
    """Messages that stand or fall together: `history[start:end]`."""

    start: int
    end: int
    messages: tuple[Message, ...]


def groups(history: Sequence[Message]) -> list[Group]:
    """Cut a history into atomic groups, in order and without gaps.

    An assistant message with tool calls and all their results is one group; whatever stands between them belongs to
    it too, so that no cut between two groups parts a call from its result. Every other message is a group alone.
    """
    spans: list[list[int]] = []
    awaited: set[str] = set()
    opened = 0
    for position, message in enumerate(history):
        if message.get("role") == "assistant":
            awaited, opened = {str(c.get("id")) for c in calls_of(message)}, len(spans)
        elif message.get("role") == "tool" and str(message.get("tool_call_id")) in awaited:
            del spans[opened + 1 :]
            spans[opened][1] = position + 1
            continue
        spans.append([position, position + 1])
    return [Group(start, end, tuple(history[start:end])) for start, end in spans]


def wire(history: Iterable[Message]) -> list[Message]:
    """The history as a provider may see it: copies without `origin` and `output_path`."""
    return [{key: value for key, value in message.items() if key not in OWN_KEYS} for message in history]


def canonical_json(obj: Any) -> str:
    """The one text form of a JSON value: keys sorted, compact, not ASCII-escaped. Raises TypeError for other values."""
    return jsonio.dumps(obj, sort_keys=True)


def jsonl(history: Iterable[Message]) -> bytes:
    """One canonical JSON line per message, UTF-8, each ended by LF."""
    return "".join(canonical_json(message) + "\n" for message in history).encode()


def size_bytes(history: Iterable[Message]) -> int:
    """The size of `jsonl(history)` in bytes."""
    return len(jsonl(history))
