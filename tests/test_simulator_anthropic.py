"""The simulator's `anthropic` dialect: the official client reads it, and what Anthropic refuses is refused.

Some tests here run over all dialects: what a story needs to see, and what a repaired history is worth.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import malformed_histories, torn_histories

from agentlab.assemble import Assembler
from agentlab.errors import ContextOverflow, ProviderRefused
from agentlab.loop import Text, Turn, run_turn
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.pairing import repair
from agentlab.provider.anthropic import AnthropicStream
from agentlab.simulator import Fault, Hangup, Simulator, serve
from agentlab.simulator.anthropic_rules import refuse, sign
from agentlab.simulator.cache import CacheUse
from agentlab.simulator.core import DIALECTS
from agentlab.simulator.tokens import message_tokens, pieces, render, tokenize
from agentlab.sse import SSEDecoder, json_events
from agentlab.tools import Registry

GUARD_S = 20.0
STREAMS = Path(__file__).parent.parent / "data" / "streams"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA}
READ_SPEC = {"type": "function", "function": {"name": "read_file", "description": "", "parameters": SCHEMA}}
ASKS = assistant("", call("call_1", "read_file", path="notes.txt"))
STORY = [ASKS, "The code is 4711, says the file."]
THINKS = {**assistant("Let me look. ", *ASKS["tool_calls"]), "reasoning_content": "The code is in the file."}


def use(id: str = "call_1", name: str = "read_file", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {"path": "notes.txt"}, **more}


def result(id: str = "call_1", content: Any = "The code is 4711.", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def says(role: str, *blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]}


ASK = user("What is the code in notes.txt?")
CALLED = says("assistant", use())
RESULT = says("user", result())


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    sent = {"model": "m", "max_tokens": 1000, "messages": list(messages), "tools": [READ], **more}
    return {key: value for key, value in sent.items() if value is not None}


def ask(simulator: Simulator, *messages: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    status, _, chunks = simulator.respond(request(*messages, **more))
    return status, json.loads(b"".join(chunks))


def text_of(body: dict[str, Any]) -> str:
    return "".join(block["text"] for block in body["content"] if block["type"] == "text")


def new(script: Any = None, **options: Any) -> Simulator:
    return Simulator(script, dialect="anthropic", **options)


def stream(script: Any, *, options: dict[str, Any] | None = None, **more: Any) -> bytes:
    return b"".join(new(script, **(options or {})).respond(request(user("Go"), stream=True, **more)).chunks)


def events(data: bytes) -> list[dict[str, Any]]:
    decoded = SSEDecoder().feed(data)
    read = [json.loads(event.data) for event in decoded]
    assert [event.event for event in decoded] == [event["type"] for event in read]
    return read


def run(make: Any) -> Any:
    """Run a coroutine; the limit only keeps a hanging test from hanging for ever."""

    async def guarded() -> Any:
        async with asyncio.timeout(GUARD_S):
            return await make

    return asyncio.run(guarded())


# --- the shape of an answer


def test_a_stream_opens_fills_and_closes_each_block() -> None:
    answer = {**THINKS, "tool_calls": [*ASKS["tool_calls"], call("call_2", "read_file", path="b")]}
    seen = events(stream([answer]))
    assert [seen[0]["type"], *(event["type"] for event in seen[-2:])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    blocks: dict[int, list[Any]] = {}
    for event in seen[1:-2]:
        if event["type"] != "ping":
            blocks.setdefault(event["index"], []).append(event)
    opened = [block[0]["content_block"] for block in blocks.values()]
    direct = {"caller": {"type": "direct"}}
    assert opened == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "call_1", "name": "read_file", "input": {}, **direct},
        {"type": "tool_use", "id": "call_2", "name": "read_file", "input": {}, **direct},
    ]
    assert all(block[0]["type"] == "content_block_start" for block in blocks.values())
    assert all(block[-1]["type"] == "content_block_stop" for block in blocks.values())
    deltas = [[event["delta"] for event in block[1:-1]] for block in blocks.values()]
    thought = "The code is in the file."
    assert [delta["thinking"] for delta in deltas[0][:-1]] == tokenize(thought)
    assert deltas[0][-1] == {"type": "signature_delta", "signature": sign(thought)}
    assert [delta["text"] for delta in deltas[1]] == tokenize("Let me look. ")
    assert deltas[2][0] == {"type": "input_json_delta", "partial_json": ""}
    assert "".join(delta["partial_json"] for delta in deltas[2]) == '{"path":"notes.txt"}'
    assert seen[-2]["delta"]["stop_reason"] == "tool_use"


def test_usage_is_counted_and_comes_twice() -> None:
    simulator = new(["one two three"])
    seen = events(b"".join(simulator.respond(request(user("Go"), stream=True)).chunks))
    prompt = len(render([READ], [user("Go")]))
    start, end = seen[0]["message"]["usage"], seen[-2]["usage"]
    assert start == simulator.usages[0] | {"output_tokens": 1}
    assert end == {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 3,
    }
    assert end.items() <= simulator.usages[0].items()


def test_a_whole_body_is_a_message() -> None:
    status, body = ask(new([THINKS]), ASK)
    thought = "The code is in the file."
    assert status == 200 and body["content"] == [
        {"type": "thinking", "thinking": thought, "signature": sign(thought)},
        {"type": "text", "text": "Let me look. "},
        use(caller={"type": "direct"}),
    ]
    assert {key: body[key] for key in body if key not in ("content", "usage")} == {
        "model": "m",
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
    }
    assert body["usage"]["output_tokens"] == sum(len(piece.tokens) for piece in pieces(THINKS))


@pytest.mark.parametrize(
    ("max_tokens", "window", "text", "reason"),
    [
        (2, 1000, "one two", "max_tokens"),
        (3, 1000, "one two three", "end_turn"),
        (1000, 2, "one two", "model_context_window_exceeded"),
    ],
)
def test_a_limit_cuts_the_reply_and_says_which(max_tokens: int, window: int, text: str, reason: str) -> None:
    size = len(render([READ], [user("Go")]))
    simulator = new(["one two three"], context_window=size + window)
    _, body = ask(simulator, user("Go"), max_tokens=max_tokens)
    assert (text_of(body), body["stop_reason"]) == (text, reason)


@pytest.mark.parametrize("arguments", ['{"path": "no', "[1]"])
def test_input_that_is_no_object_is_an_empty_one(arguments: str) -> None:
    function = {"name": "read_file", "arguments": arguments}
    _, body = ask(new([assistant("", {"id": "a", "type": "function", "function": function})]), ASK)
    assert body["content"][0]["input"] == {}


def test_an_empty_answer_has_no_blocks() -> None:
    assert [event["type"] for event in events(stream([""]))] == ["message_start", "message_delta", "message_stop"]


SPOKEN = {**assistant("Grüße 🐙 \u2028\n", call("a", "read_file", path="日本")), "reasoning_content": "Ä 🐙"}
WHOLE = stream([SPOKEN])


@given(sizes=st.one_of(st.integers(1, 900), st.lists(st.integers(1, 90), min_size=1, max_size=5)))
def test_cuts_change_no_byte_and_the_client_reads_them(sizes: int | list[int]) -> None:
    chunks = list(new([SPOKEN], chunk=sizes).respond(request(user("Go"), stream=True)).chunks)
    assert b"".join(chunks) == WHOLE
    converted, assembler = AnthropicStream(), Assembler()
    for event in json_events(chunks):
        for chunk in converted.feed(event):
            assembler.feed(chunk)
    blocks = [{"type": "thinking", "thinking": "Ä 🐙", "signature": sign("Ä 🐙")}]
    assert converted.done and assembler.message() == {**SPOKEN, "thinking_blocks": blocks}


# --- as recorded


def shape(value: Any) -> Any:
    """A JSON value without what it says: its keys and types."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in ("server_tool_use", "container")}
    return type(value).__name__


def recorded(name: str) -> list[dict[str, Any]]:
    data = (STREAMS / name).read_bytes()
    if name.endswith(".sse"):
        return list(json_events([data]))
    return [json.loads(line) for line in data.splitlines()]


def by_kind(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """The shape of each kind of event, those of server tools aside; what the model chose as input has none."""
    shapes = {}
    for event in seen:
        inner = event.get("content_block") or event.get("delta") or {}
        shapes[f"{event['type']} {inner.get('type', '')}"] = shape(event)
    return {kind: found for kind, found in shapes.items() if "server" not in kind and "_tool_result" not in kind}


def blocks_in(seen: list[dict[str, Any]]) -> list[list[str]]:
    """The stream as the kinds of its events, block by block: repeats and pings, and server tools, aside."""
    names = [
        (event.get("index"), f"{event['type']} {(event.get('content_block') or event.get('delta') or {}).get('type')}")
        for event in seen
        if event["type"] != "ping"
    ]
    grouped = [[kind for kind, _ in groupby(kind for _, kind in group)] for _, group in groupby(names, lambda n: n[0])]
    kept = [group for group in grouped if "server" not in group[0] and "_tool_result" not in group[0]]
    return [group for group, _ in groupby(kept)]


OURS = events(stream([THINKS]))


@pytest.mark.parametrize("name", ["anthropic_tool_use.sse", "anthropic_thinking_server_tool.sse"])
def test_every_event_has_the_keys_of_the_recorded_one(name: str) -> None:
    ours, theirs = by_kind(OURS), by_kind(recorded(name))
    assert len(theirs) >= 8
    assert theirs.items() <= ours.items()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("anthropic_tool_use.sse", assistant("Let me. I found it.", call("a", "f", x=1))),
        ("anthropic_tool_no_args.chunks.jsonl", assistant("I'll update it.", call("a", "f"))),
        ("anthropic_thinking_server_tool.sse", {**assistant("Following it."), "reasoning_content": "Let me."}),
    ],
)
def test_the_events_come_in_the_recorded_order(name: str, answer: Message) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    assert blocks_in(events(stream([answer], tools=tools))) == blocks_in(recorded(name))


def test_a_ping_follows_the_first_opening() -> None:
    names = [[event["type"] for event in seen[:3]] for seen in (OURS, recorded("anthropic_tool_use.sse"))]
    assert names == [["message_start", "content_block_start", "ping"]] * 2


# --- refusals


def _thinking(thinking: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def _marked(times: int) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * times


TWO = says("assistant", use("a"), use("b"))
UNANSWERED = "`tool_use` ids were found without `tool_result` blocks immediately after:"
EACH_USE = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
EACH_RESULT = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
PATTERN = "String should match pattern '^[a-zA-Z0-9_-]+$'"
OBJECT = "Input should be a valid dictionary or object to extract fields from"
TAGS = "'document', 'image', 'redacted_thinking', 'search_result', 'text', 'thinking', 'tool_result', 'tool_use'"
NO_TAG = "found using 'type' does not match any of the expected tags:"
EMPTY = "all messages must have non-empty content except for the optional final assistant message"

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    # calls and results
    "call without result": (request(ASK, TWO), f"messages.1: {UNANSWERED} a, b. {EACH_USE}"),
    "one result of two": (
        request(ASK, TWO, says("user", result("b"))),
        f"messages.1: {UNANSWERED} a. {EACH_USE}",
    ),
    "words before the results": (
        request(ASK, TWO, says("user", "So:", result("a"), result("b"))),
        f"messages.1: {UNANSWERED} a, b. {EACH_USE}",
    ),
    "words between the results": (
        request(ASK, TWO, says("user", result("a"), "So:", result("b"))),
        f"messages.1: {UNANSWERED} b. {EACH_USE}",
    ),
    "results in two messages": (
        request(ASK, TWO, says("user", result("a")), says("user", result("b"))),
        f"messages.1: {UNANSWERED} b. {EACH_USE}",
    ),
    "words instead of a result": (request(ASK, CALLED, user("Go on")), f"messages.1: {UNANSWERED} call_1. {EACH_USE}"),
    "assistant before the result": (
        request(ASK, CALLED, assistant("So."), RESULT),
        f"messages.1: {UNANSWERED} call_1. {EACH_USE}",
    ),
    "result without call": (
        request(ASK, says("user", "So:", result("T1"))),
        f"messages.1.content.1: unexpected `tool_use_id` found in `tool_result` blocks: T1. {EACH_RESULT}",
    ),
    "result of a call that is over": (
        request(ASK, CALLED, RESULT, RESULT),
        f"messages.3.content.0: unexpected `tool_use_id` found in `tool_result` blocks: call_1. {EACH_RESULT}",
    ),
    "two results": (
        request(ASK, TWO, says("user", result("a"), result("b"), result("a"))),
        "messages.2.content.2: each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
    ),
    "an id twice in one message": (
        request(ASK, says("assistant", use("a"), use("a")), says("user", result("a"))),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "an id that comes back": (
        request(ASK, CALLED, RESULT, says("assistant", "Once more.", use()), RESULT),
        "messages.3.content.1: `tool_use` ids must be unique",
    ),
    "a tool that is not offered": (
        request(ASK, says("assistant", use(name="notify")), RESULT),
        "messages.1.content.0: Tool 'notify' not found in provided tools",
    ),
    "the model's words last": (
        request(ASK, assistant("It is")),
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    ),
    # messages
    "no messages": (request(), "messages: at least one message is required"),
    "messages missing": (
        {"model": "m", "max_tokens": 1},
        "messages: Field required",
    ),
    "messages as text": ({**request(), "messages": "x"}, "messages: Input should be a valid list"),
    "a message as text": ({**request(), "messages": ["x"]}, f"messages.0: {OBJECT}"),
    "system as a role": (
        request({"role": "system", "content": "x"}, ASK),
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as'
        " an input message role.",
    ),
    "tool as a role": (
        request(ASK, CALLED, {"role": "tool", "content": "4711"}),
        'messages: Unexpected role "tool". Allowed roles are "user" or "assistant". For instructions on how to use'
        " tools, see https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview.",
    ),
    "no role": (request({"content": "x"}), "messages.0.role: Field required"),
    "no content": (request({"role": "user"}), "messages.0.content: Field required"),
    "content null": (request({"role": "user", "content": None}), "messages.0.content: Input should be a valid list"),
    "content empty": (request(user("")), f"messages.0: {EMPTY}"),
    "no blocks": (request(ASK, says("assistant"), user("Go")), f"messages.1: {EMPTY}"),
    "an empty text": (request(says("user", "x", "")), "messages: text content blocks must be non-empty"),
    "a blank text": (request(user(" \n")), "messages: text content blocks must contain non-whitespace text"),
    "an unknown key": (request({**ASK, "origin": "repair"}), "messages.0.origin: Extra inputs are not permitted"),
    "calls of another vendor": (
        request(ASK, ASKS),
        "messages.1.tool_calls: Extra inputs are not permitted",
    ),
    # blocks
    "a block as text": (request({"role": "user", "content": ["x"]}), f"messages.0.content.0: {OBJECT}"),
    "a block without type": (
        request(says("user", {"text": "x"})),
        "messages.0.content.0: Unable to extract tag using discriminator 'type'",
    ),
    "a block of another vendor": (
        request(says("user", "x", {"type": "image_url"})),
        f"messages.0.content.1: Input tag 'image_url' {NO_TAG} {TAGS}",
    ),
    "a text block without text": (
        request(says("user", {"type": "text"})),
        "messages.0.content.0.text.text: Field required",
    ),
    "a text that is none": (
        request(says("user", {"type": "text", "text": None})),
        "messages.0.content.0.text.text: Input should be a valid string",
    ),
    "an index left in a call": (
        request(ASK, says("assistant", use(index=0)), RESULT),
        "messages.1.content.0.tool_use.index: Extra inputs are not permitted",
    ),
    "input as text": (
        request(ASK, says("assistant", use(input='{"path": "x"}')), RESULT),
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    "a call with a bad id": (
        request(ASK, says("assistant", use("read:0")), RESULT),
        f"messages.1.content.0.tool_use.id: {PATTERN}",
    ),
    "a call without an id": (
        request(ASK, says("assistant", use("")), RESULT),
        f"messages.1.content.0.tool_use.id: {PATTERN}",
    ),
    "a result with a bad id": (
        request(ASK, CALLED, says("user", result("read:0"))),
        f"messages.2.content.0.tool_result.tool_use_id: {PATTERN}",
    ),
    "a result with another vendor's block": (
        request(ASK, CALLED, says("user", result(content=[use()]))),
        f"messages.2.content.0.tool_result.content.0: Input tag 'tool_use' {NO_TAG} 'document', 'image',"
        " 'search_result', 'text'",
    ),
    "is_error as text": (
        request(ASK, CALLED, says("user", result(is_error="yes"))),
        "messages.2.content.0.tool_result.is_error: Input should be a valid boolean",
    ),
    "a call of the person": (
        request(says("user", use())),
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
    ),
    "a result of the model": (
        request(ASK, says("assistant", result())),
        "messages.1: `tool_result` blocks can only be in `user` messages",
    ),
    # thinking
    "a thought without signature": (
        request(ASK, says("assistant", {"type": "thinking", "thinking": "x"}, "y"), ASK),
        "messages.1.content.0.thinking.signature: Field required",
    ),
    "a thought that was changed": (
        request(ASK, says("assistant", "y", _thinking("changed", sign("x"))), ASK),
        "messages.1.content.1: Invalid `signature` in `thinking` block",
    ),
    "a hidden thought of another model": (
        request(ASK, says("assistant", {"type": "redacted_thinking", "data": "Eqk"}, "y"), ASK),
        "messages.1.content.0: Invalid `data` in `redacted_thinking` block",
    ),
    "a thought of the person": (
        request(says("user", _thinking("x", sign("x")))),
        "messages.0.content: thinking blocks may only be in `assistant` messages",
    ),
    "a breakpoint on a thought": (
        request(ASK, says("assistant", {**_thinking("x", sign("x")), "cache_control": {"type": "ephemeral"}}), ASK),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    # the rest of the request
    "no model": ({"max_tokens": 1, "messages": [ASK]}, "model: Field required"),
    "no max_tokens": ({"model": "m", "messages": [ASK]}, "max_tokens: Field required"),
    "max_tokens as a boolean": (request(ASK, max_tokens=True), "max_tokens: Input should be a valid integer"),
    "max_tokens of nothing": (
        request(ASK, max_tokens=0),
        "max_tokens: Input should be greater than or equal to 1",
    ),
    "stream as text": (request(ASK, stream="yes"), "stream: Input should be a valid boolean"),
    "an unknown key at the top": (request(ASK, n=1), "n: Extra inputs are not permitted"),
    "system as an object": (request(ASK, system={}), "system: Input should be a valid list"),
    "system with an image": (
        request(ASK, system=[{"type": "image"}]),
        f"system.0: Input tag 'image' {NO_TAG} 'text'",
    ),
    "a blank system": (
        request(ASK, system=" "),
        "system: text content blocks must contain non-whitespace text",
    ),
    "five breakpoints": (
        request(says("user", *_marked(3)), system=_marked(1), tools=[{**READ, "cache_control": {"type": "ephemeral"}}]),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "a breakpoint inside a result": (
        request(ASK, CALLED, says("user", result(content=_marked(2)), *_marked(3))),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "a breakpoint of another kind": (
        request(says("user", {"type": "text", "text": "x", "cache_control": {"type": "forever"}})),
        f"messages.0.content.0.text.cache_control: Input tag 'forever' {NO_TAG} 'ephemeral'",
    ),
    # tools
    "a tool as text": (request(ASK, tools=["f"]), f"tools.0: {OBJECT}"),
    "a tool twice": (request(ASK, tools=[READ, READ]), "tools: Tool names must be unique."),
    "a tool of another vendor": (
        request(ASK, tools=[READ_SPEC]),
        f"tools.0: Input tag 'function' {NO_TAG} 'custom'",
    ),
    "a tool with a bad name": (
        request(ASK, tools=[{**READ, "name": "mcp.read"}]),
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    ),
    "a tool with a line end": (
        request(ASK, tools=[{**READ, "name": "read\n"}]),
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    ),
    "a tool without schema": (request(ASK, tools=[{"name": "f"}]), "tools.0.custom.input_schema: Field required"),
    "a schema without type": (
        request(ASK, tools=[{"name": "f", "input_schema": {}}]),
        "tools.0.custom.input_schema.type: Field required",
    ),
    "a schema that is no object": (
        request(ASK, tools=[{"name": "f", "input_schema": {"type": "array"}}]),
        "tools.0.custom.input_schema.type: Input should be 'object'",
    ),
    "a tool with an unknown key": (
        request(ASK, tools=[{**READ, "parameters": {}}]),
        "tools.0.custom.parameters: Extra inputs are not permitted",
    ),
    "any tool of none": (
        request(ASK, tools=None, tool_choice={"type": "any"}),
        "tool_choice.any may only be specified while providing tools",
    ),
    "a choice that is not offered": (
        request(ASK, tool_choice={"type": "tool", "name": "get_weather"}),
        "Tool 'get_weather' not found in provided tools",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name: str) -> None:
    sent, message = REFUSALS[name]
    before = copy.deepcopy(sent)
    simulator = new(["never"])
    status, headers, chunks = simulator.respond(sent)
    body = json.loads(b"".join(chunks))
    assert body["error"] == {"type": "invalid_request_error", "message": message}
    assert (status, body["type"], body["request_id"], headers["request-id"]) == (400, "error", "req_1", "req_1")
    assert sent == before and simulator.requests == [before] and simulator.usages == []
    assert text_of(ask(simulator, user("Go"))[1]) == "never"


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
ACCEPTED: dict[str, dict[str, Any]] = {
    "a string and blocks": request(user("x"), says("assistant", "y"), says("user", "z", IMAGE), system="s"),
    "the model's words first, neighbours of one role": request(assistant("a"), user("b"), user("c")),
    "results in another order, with words behind": request(
        ASK, TWO, says("user", result("b", is_error=True), result("a", [IMAGE]), "Go on")
    ),
    "a result without content": request(ASK, CALLED, says("user", {"type": "tool_result", "tool_use_id": "call_1"})),
    "an empty result": request(ASK, CALLED, says("user", result(content=""))),
    "an answer as it came": request(
        ASK, says("assistant", _thinking("x", sign("x")), "y", use(caller={"type": "direct"})), RESULT
    ),
    "thoughts left out": request(ASK, CALLED, RESULT),
    "earlier calls without tools": request(ASK, CALLED, RESULT, tools=None),
    "four breakpoints": request(says("user", *_marked(4)), system=""),
    "settings": request(
        ASK, temperature=0, thinking={"type": "enabled", "budget_tokens": 1}, tool_choice={"type": "auto"}
    ),
    "a choice without tools": request(ASK, tools=None, tool_choice={"type": "auto"}),
    "a strict tool": request(ASK, tools=[{**READ, "type": "custom", "strict": True}]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str) -> None:
    status, _, chunks = new(["yes"]).respond(ACCEPTED[name])
    body = json.loads(b"".join(chunks))
    assert status == 200, body
    assert text_of(body) == "yes"


def test_a_prompt_that_does_not_fit_is_refused_with_the_vendors_words() -> None:
    size = len(render([READ], [user("word " * 100)]))
    status, body = ask(new(["x"], context_window=size - 1), user("word " * 100))
    assert (status, body["error"]["message"]) == (400, f"prompt is too long: {size} tokens > {size - 1} maximum")
    assert ask(new(["x"], context_window=size), user("word " * 100))[0] == 200


class _Counted(dict[str, Any]):
    """A message that counts how often it is looked into."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        _Counted.looks += 1
        return super().__getitem__(key)


def test_a_long_history_is_judged_in_one_pass() -> None:
    def looks(turns: int) -> int:
        pairs = [(says("assistant", use(f"a{n}")), says("user", result(f"a{n}"))) for n in range(turns)]
        history = [_Counted(message) for pair in [(assistant("x"), user("y")), *pairs] for message in pair]
        _Counted.looks = 0
        assert refuse(request(*history)) is None
        return _Counted.looks

    assert looks(100) > 400
    assert looks(1000) < 11 * looks(100)


@pytest.mark.parametrize(
    ("headers", "status", "kind", "message"),
    [
        ({"anthropic-version": "2023-06-01"}, 401, "authentication_error", "x-api-key header is required"),
        ({"X-Api-Key": "k"}, 400, "invalid_request_error", "anthropic-version: header is required"),
    ],
)
def test_the_headers_that_a_request_needs(headers: dict[str, str], status: int, kind: str, message: str) -> None:
    simulator = new(["yes"])
    answer = simulator.respond(request(user("Go")), headers)
    body = json.loads(b"".join(answer.chunks))
    assert (answer.status, body["error"]) == (status, {"type": kind, "message": message})
    good = {"X-Api-Key": "k", "Anthropic-Version": "2023-06-01"}
    assert simulator.respond(request(user("Go")), good).status == 200
    bearer = {"authorization": "Bearer k", "anthropic-version": "2023-06-01"}
    assert simulator.respond(request(user("Go")), bearer).status == 200


# --- the cache


class _Cache:
    """A cache that remembers what it was asked."""

    def __init__(self, use: CacheUse = CacheUse()) -> None:  # noqa: B008 (frozen)
        self.use = use
        self.asked: list[tuple[list[str], list[int]]] = []

    def admit(self, prompt: Any, *, marks: Any, at: float) -> CacheUse:
        self.asked.append((list(prompt), list(marks)))
        return self.use

    def extend(self, prompt: Any, reply: Any, *, at: float) -> None:
        pass


def test_cached_tokens_come_on_top_of_the_fresh_ones() -> None:
    simulator = new(["yes"], cache=_Cache(CacheUse(hit=5, written=3)))
    _, body = ask(simulator, user("Say some words."))
    prompt = len(render([READ], [user("Say some words.")]))
    assert body["usage"] == simulator.usages[0]
    assert {key: body["usage"][key] for key in list(body["usage"])[:4]} == {
        "input_tokens": prompt - 8,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 5,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 0},
    }


def test_breakpoints_are_numbers_of_leading_tokens() -> None:
    cache = _Cache()
    mark = {"cache_control": {"type": "ephemeral"}}
    other = {**READ, "name": "write_file"}
    sent = request(
        says("user", "Read it."),
        CALLED,
        says("user", result(content=[{"type": "text", "text": "The code is 4711.", **mark}]), "And?"),
        tools=[{**READ, **mark}, other],
        system=[{"type": "text", "text": "Be kind.", **mark}, {"type": "text", "text": "It is 10:00."}],
        cache_control={"type": "ephemeral"},
    )
    new(["yes"], cache=cache).respond(sent)
    prompt, marks = cache.asked[0]
    kind = {"role": "system", "content": "Be kind."}
    clock = {"role": "system", "content": "It is 10:00."}
    history = [kind, clock, user("Read it."), ASKS, tool("call_1", "The code is 4711."), user("And?")]
    assert prompt == render([READ, other], history)
    assert [prompt[:at] for at in marks] == [
        render([READ], [])[:-1],
        render([READ, other], [kind])[:-1],
        render([READ, other], history[:5])[:-1],
        prompt[:-1],
    ]
    assert prompt[marks[2] :][: len(message_tokens(user("And?")))] == message_tokens(user("And?"))
    cache.asked.clear()
    new(["yes"], cache=cache).respond(request(ASK))
    assert cache.asked[0][1] == []


# --- scripts, and what a request must show: the same hints as in OpenAI's shape


def test_a_story_goes_on_when_the_request_shows_it_all() -> None:
    simulator = new([*STORY, "You are welcome."])
    _, first = ask(simulator, ASK)
    assert first["content"] == [use(caller={"type": "direct"})]
    _, second = ask(simulator, ASK, {"role": "assistant", "content": first["content"]}, RESULT)
    assert text_of(second) == STORY[1]
    _, third = ask(simulator, ASK, CALLED, RESULT, says("assistant", STORY[1]), user("Thanks"))
    assert text_of(third) == "You are welcome."


def broken(*messages: dict[str, Any]) -> tuple[int, str]:
    """The second request of the story, sent by a broken loop: its status and what it says is missing."""
    simulator = new(STORY)
    ask(simulator, ASK)
    status, body = ask(simulator, *messages, system="Be kind.")
    assert "4711, says" not in json.dumps(body)
    missing = body["agentlab"]["missing"] if status == 400 else text_of(body)
    assert text_of(ask(simulator, ASK, CALLED, RESULT)[1]) == STORY[1]
    return status, missing


BROKEN: dict[str, tuple[list[dict[str, Any]], int, str]] = {
    "result not appended": (
        [ASK, CALLED],
        400,
        "my message that asks for call_1 (read_file), but not the result right behind it: append a user message that"
        ' begins with one {"type": "tool_result", "tool_use_id": "call_1", "content": ...} for each call.',
    ),
    "assistant message not appended": (
        [ASK, RESULT],
        400,
        "the result of call_1 (read_file), but not my message that asked for it right before: append the whole"
        " assistant message, with its tool_use blocks, before its results.",
    ),
    "history cut": (
        [RESULT],
        400,
        "Your history was cut: all that I can see is the result of call_1 (read_file).",
    ),
    "nothing appended": (
        [ASK],
        200,
        "I can see neither my message nor its result. Append my message, with its tool_use blocks, and then one user"
        " message that begins with a tool_result block for each call",
    ),
    "question lost": ([CALLED, RESULT], 200, "no user message"),
    "two results": (
        [ASK, CALLED, says("user", result(), result())],
        400,
        "Your request holds two results for call_1 (read_file): keep one.",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_loops(name: str) -> None:
    messages, status, missing = BROKEN[name]
    got = broken(*messages)
    assert got[0] == status and missing in got[1]


def test_broken_loop_no_tools_sent() -> None:
    simulator = new(STORY)
    status, body = ask(simulator, ASK, tools=None)
    assert status == 200 and "I wanted to call `read_file`" in text_of(body) and "no `tools`" in text_of(body)
    _, body = ask(simulator, ASK, tool_choice={"type": "none"})
    assert 'forbids it with tool_choice "none"' in text_of(body)


def test_a_vanished_result_is_missed_although_the_calls_have_new_ids() -> None:
    simulator = new([ASKS, ASKS, ASKS, "Thrice 4711."])
    renamed = [[says("assistant", use(id)), says("user", result(id))] for id in ("call_1", "call_1_2", "call_1_3")]
    shown: list[dict[str, Any]] = [ASK]
    for pair in renamed:
        assert ask(simulator, *shown)[1]["content"][0]["id"] == "call_1"
        shown += pair
    _, body = ask(simulator, ASK, *renamed[1], *renamed[2])
    assert "the result of call_1 (read_file) any more" in text_of(body)
    status, body = ask(simulator, *shown[:-1])
    assert status == 400 and "my message that asks for call_1 (read_file)" in body["agentlab"]["missing"]
    assert '"tool_use_id": "call_1_3"' in body["agentlab"]["missing"]
    assert text_of(ask(simulator, *shown)[1]) == "Thrice 4711."


def test_a_function_sees_the_chat_shape_and_the_models_own_ids() -> None:
    seen: list[dict[str, Any]] = []

    def model(request: dict[str, Any]) -> Any:
        seen.append(request)
        return ASKS if request["messages"][-1]["role"] == "user" else "Done."

    simulator = new(model)
    ask(simulator, ASK)
    ask(simulator, ASK, says("assistant", use("x_1")), says("user", result("x_1")), system="Be kind.")
    kind = {"role": "system", "content": "Be kind."}
    assert seen[1]["messages"] == [kind, ASK, ASKS, tool("call_1", "The code is 4711.")]
    assert seen[1]["tools"] == [READ] and seen[1]["max_tokens"] == 1000


def test_the_rules_work_in_this_shape() -> None:
    simulator = new()
    _, body = ask(simulator, says("user", "<context/>", "read notes.txt"))
    assert body["content"] == [use(caller={"type": "direct"})]
    _, body = ask(simulator, ASK, CALLED, RESULT)
    assert text_of(body) == "`read_file` answered 17 characters:\nThe code is 4711."


def test_a_deferred_tool_can_be_called_but_its_call_is_refused_in_the_next_request() -> None:
    wanted = assistant("", call("call_1", "get_weather", city="Oslo"))
    simulator = new([wanted, "Rain."])
    status, body = ask(simulator, ASK, system="Deferred: get_weather.")
    assert status == 200 and body["content"][0]["name"] == "get_weather"
    shown = [ASK, says("assistant", use(name="get_weather")), RESULT]
    status, body = ask(simulator, *shown)
    assert status == 400 and "send its definition too" in body["agentlab"]["missing"]
    _, body = ask(simulator, *shown, tools=[READ, {**READ, "name": "get_weather"}])
    assert text_of(body) == "Rain."


# --- faults


def test_status_faults_have_the_vendors_body() -> None:
    statuses = [401, 403, 404, 429, 500, 529, 408]
    simulator = new([*(Fault(status=status, retry_after=2) for status in statuses), "Hello"])
    answers = [simulator.respond(request(user("Go"))) for _ in statuses]
    errors = [json.loads(b"".join(answer.chunks))["error"] for answer in answers]
    assert [answer.status for answer in answers] == statuses
    assert answers[3].headers["retry-after"] == "2"
    kinds = [error["type"] for error in errors]
    assert kinds[:4] == ["authentication_error", "permission_error", "invalid_request_error", "rate_limit_error"]
    assert kinds[4:] == ["api_error", "overloaded_error", "invalid_request_error"]
    assert [errors[at]["message"] for at in (0, 4, 5)] == ["invalid x-api-key", "Internal server error", "Overloaded"]
    assert errors[3]["message"].startswith("This request would exceed your organization's rate limit of ")
    assert text_of(ask(simulator, user("Go"))[1]) == "Hello"


def test_an_error_inside_the_stream_is_an_event() -> None:
    data = stream([Fault(error_after=4, step="one two three")])
    assert data.endswith(
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Internal server error"}}\n\n'
    )
    assert [event["type"] for event in events(data)][3:] == ["content_block_delta", "error"]


def test_the_end_can_be_left_out() -> None:
    whole = [event["type"] for event in events(stream(["one"]))]
    assert [event["type"] for event in events(stream([Fault(no_done=True, step="one")]))] == whole[:-1]
    left = [event["type"] for event in events(stream([Fault(no_finish=True, step="one")]))]
    assert left == [name for name in whole if name != "message_delta"]


def test_hangups_tell_how_far_it_got() -> None:
    simulator = new([THINKS])
    body = simulator.respond(request(ASK, stream=True)).chunks
    for chunk in body:
        if b"tool_use" in chunk:
            break
    body.close()
    opening = [piece for piece in pieces(THINKS) if piece.kind != "arguments"]
    produced = sum(len(piece.tokens) for piece in opening)
    assert simulator.hangups == [Hangup(0, produced, sum(len(piece.tokens) for piece in pieces(THINKS)))]
    assert simulator.usages[0]["output_tokens"] == produced


# --- the client of this package, in all dialects


def registry() -> Registry:
    tools = Registry()

    @tools.tool(read_only=True)
    def read_file(path: str) -> str:
        """Read a file."""
        return f"{path} says 4711."

    return tools


def with_reasoning(text: str, message: Message | str) -> Message:
    return {**(assistant(message) if isinstance(message, str) else message), "reasoning_content": text}


async def turns(simulator: Simulator, *words: str) -> list[Turn]:
    """Whole turns, each on the history of the one before."""
    done: list[Turn] = []
    for word in words:
        history = done[-1].history if done else []
        done.append(await run_turn([*history, user(word)], simulator.client(), registry()).run())
    return done


LOOK = assistant("I look.", call("a", "read_file", path="x"), call("b", "read_file", path="y"))
AGAIN = assistant("", call("a", "read_file", path="z"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whole_turns_with_two_steps_and_ids_that_come_back(dialect: str) -> None:
    script = [LOOK, AGAIN, "All say 4711.", AGAIN, LOOK, "Still 4711.", "Bye."]
    simulator = Simulator(script, dialect=dialect, chunk=11)
    first, second, third = run(turns(simulator, "Read them.", "Once more.", "Thanks."))
    assert [turn.reason for turn in (first, second, third)] == ["done"] * 3
    assert [message["content"] for message in third.history if message["role"] == "assistant"] == [
        "I look.",
        "",
        "All say 4711.",
        "",
        "I look.",
        "Still 4711.",
        "Bye.",
    ]
    assert [m["content"] for m in third.history if m["role"] == "tool"] == [
        f"{name} says 4711." for name in ("x", "y", "z", "z", "x", "y")
    ]
    assert [len(turn.usages) for turn in (first, second, third)] == [3, 3, 1]
    assert [usage for turn in (first, second, third) for usage in turn.usages] == simulator.usages


@pytest.mark.parametrize("dialect", ["deepseek", "anthropic"])
def test_reasoning_is_kept_and_sent_back_over_three_turns(dialect: str) -> None:
    script = [with_reasoning(f"Thought {n}.", step) for n, step in enumerate([LOOK, AGAIN, "One.", AGAIN, "Two.", "3"])]
    simulator = Simulator(script, dialect=dialect, chunk=5)
    last = run(turns(simulator, "Read them.", "Once more.", "Thanks."))[-1]
    thoughts = [f"Thought {n}." for n in range(6)]
    assert [m["reasoning_content"] for m in last.history if m["role"] == "assistant"] == thoughts
    sent = json.dumps(simulator.requests[-1])
    assert [thought for thought in thoughts if thought in sent] == thoughts[:5]
    assert all("signature" not in json.dumps(message) for message in last.history) == (dialect == "deepseek")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("cut", range(6))
def test_stop_in_the_middle_and_then_another_turn(dialect: str, cut: int) -> None:
    script = [with_reasoning("Hm.", "one two three four five six"), LOOK, "Both say 4711."]
    simulator = Simulator(script, dialect=dialect, chunk=9)

    async def scene() -> tuple[Turn, Turn]:
        stopped = run_turn([user("Count.")], simulator.client(), registry())
        seen = 0
        async for event in stopped:
            seen += isinstance(event, Text)
            if seen == cut:
                stopped.stop.request()
        history = [*stopped.history, user("Now read them.")]
        return stopped, await run_turn(history, simulator.client(), registry()).run()

    stopped, second = run(scene())
    assert stopped.reason == ("stopped" if cut else "done")
    if cut:
        assert stopped.history[-1]["content"] == " ".join(["one", "two", "three", "four", "five", "six"][:cut])
        assert len(simulator.hangups) == 1
    assert (second.reason, second.history[-1]["content"]) == ("done", "Both say 4711.")


@given(history=st.one_of(torn_histories(), malformed_histories()))
def test_a_repaired_history_is_accepted_in_all_dialects(history: list[Any]) -> None:
    sent = [*repair(history).history, user("Go on.")]
    names = ["read_file", "run", "r", "r_x__"]
    tools = [{"type": "function", "function": {**READ_SPEC["function"], "name": name}} for name in names]

    async def answers() -> list[Message]:
        simulators = [Simulator(lambda request: "yes", dialect=dialect) for dialect in DIALECTS]
        return [await simulator.client().complete(sent, tools) for simulator in simulators]

    assert [answer["content"] for answer in asyncio.run(answers())] == ["yes"] * 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_torn_history_is_refused_in_words_that_the_client_passes_on(dialect: str) -> None:
    simulator = Simulator([ASKS, "never"], dialect=dialect)

    async def scene() -> None:
        client = simulator.client()
        asked = await client.complete([ASK], [READ_SPEC])
        with pytest.raises(ProviderRefused, match=r"my message that asks for call_1 \(read_file\)"):
            await client.complete([ASK, asked, user("Well?")], [READ_SPEC])

    run(scene())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_overflow_is_known_as_one(dialect: str) -> None:
    with pytest.raises(ContextOverflow):
        run(Simulator(["x"], dialect=dialect, context_window=20).client().complete([user("word " * 50)]))


# --- over both transports


def posts(client: httpx.AsyncClient, *paths: str) -> list[httpx.Response]:
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}

    async def all_of_them() -> list[httpx.Response]:
        async with client:
            sent = [request(ASK, stream=stream) for stream in (True, False)]
            return [await client.post(path, json=each, headers=headers) for path in paths for each in sent]

    done: list[httpx.Response] = run(all_of_them())
    return done


def clients(simulator: Simulator) -> Iterator[httpx.AsyncClient]:
    yield httpx.AsyncClient(base_url="http://simulator", transport=simulator.transport())
    with serve(simulator) as server:
        yield httpx.AsyncClient(base_url=server.url.removesuffix("/v1"))


def test_both_transports_serve_both_paths() -> None:
    core = new(lambda request: THINKS)
    expected = [b"".join(core.respond(request(ASK, stream=stream)).chunks) for stream in (True, False)]
    expected[1] = expected[1].replace(b'"msg_2"', b'"msg_1"')
    for at, client in enumerate(clients(new(lambda request: THINKS))):
        answers = posts(client, "/v1/messages", "/messages")
        kinds = [answer.headers["content-type"].split(";")[0] for answer in answers]
        assert kinds == ["text/event-stream", "application/json"] * 2
        assert [re.sub(rb'"msg_\d+"', b'"msg_1"', answer.content) for answer in answers] == expected * 2
        assert [answer.headers["request-id"] for answer in answers] == [f"req_{4 * at + n}" for n in (1, 2, 3, 4)]


def test_other_urls_and_other_bodies() -> None:
    simulator = new(["yes"])
    for method, path, body, status, kind in (
        ("POST", "/v1/chat/completions", b"{}", 404, "not_found_error"),
        ("POST", "/v1/messages", b"{not json", 400, "invalid_request_error"),
        ("POST", "/v1/messages", b"[1]", 400, "invalid_request_error"),
    ):
        answer = simulator.handle(method, path, body)
        said = json.loads(b"".join(answer.chunks))
        assert (answer.status, said["error"]["type"], said["request_id"]) == (status, kind, "req_0")
    assert said["error"]["message"].startswith("The request body is not valid JSON: ")
    models = json.loads(b"".join(simulator.handle("GET", "/v1/models", b"").chunks))
    assert [model["id"] for model in models["data"]] == ["offline"]


# --- the official client


def official(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="x", max_retries=0)


def test_the_official_sdk_streams_from_the_server() -> None:
    parallel = {**THINKS, "tool_calls": [*ASKS["tool_calls"], call("call_2", "read_file", path="b")]}
    simulator = new([parallel, "It says 4711. 🐙"], chunk=37)

    async def scene(url: str) -> None:
        async with official(url) as client:
            asked: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": [READ]}
            async with client.messages.stream(messages=[ASK], **asked) as stream:
                texts = [text async for text in stream.text_stream]
                first = await stream.get_final_message()
            assert "".join(texts) == "Let me look. " and first.stop_reason == "tool_use"
            thinking, text, *uses = first.content
            assert thinking.type == "thinking" and thinking.thinking == "The code is in the file."
            assert thinking.signature == sign(thinking.thinking)
            assert text.type == "text" and text.text == "Let me look. "
            assert [(block.type, getattr(block, "id", ""), getattr(block, "input", None)) for block in uses] == [
                ("tool_use", "call_1", {"path": "notes.txt"}),
                ("tool_use", "call_2", {"path": "b"}),
            ]
            assert first.usage.output_tokens == simulator.usages[0]["output_tokens"]
            assert first.usage.input_tokens == simulator.usages[0]["input_tokens"]
            history: list[Any] = [ASK, {"role": "assistant", "content": first.content}]
            results = says("user", result("call_1"), result("call_2"))
            second = await client.messages.create(messages=[*history, results], **asked)
            assert second.content[0].type == "text" and second.content[0].text == "It says 4711. 🐙"
            assert second.usage.model_dump(exclude_none=True) == simulator.usages[1]
            assert second._request_id == "req_2"
            with pytest.raises(anthropic.BadRequestError) as refused:
                async with client.messages.stream(messages=history, **asked) as stream:
                    await stream.get_final_message()
            said = f"messages.1: {UNANSWERED} call_1, call_2. {EACH_USE}"
            assert said in str(refused.value) and refused.value.request_id == "req_3"
            assert [model.id async for model in client.models.list()] == ["offline"]

    with serve(simulator) as server:
        run(scene(server.url))


def test_the_official_sdk_names_the_faults() -> None:
    faults = [Fault(status=429), Fault(status=401), Fault(status=529), Fault(error_after=4, step="one two three")]
    expected = [
        anthropic.RateLimitError,
        anthropic.AuthenticationError,
        anthropic.InternalServerError,
        anthropic.APIStatusError,
    ]

    async def scene(url: str) -> None:
        async with official(url) as client:
            for error in expected:
                with pytest.raises(error):
                    async with client.messages.stream(model="m", max_tokens=9, messages=[user("Go")]) as stream:
                        await stream.get_final_message()

    with serve(new(faults)) as server:
        run(scene(server.url))
