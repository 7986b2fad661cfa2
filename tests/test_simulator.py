"""The simulator's core: what it answers, counts, refuses, breaks and notices."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.messages import assistant, call, tool, user
from agentlab.simulator import Fault, Hangup, Simulator
from agentlab.simulator.cache import CacheUse
from agentlab.simulator.openai_rules import refuse
from agentlab.simulator.shown import Memory, missing_history
from agentlab.simulator.tokens import pieces, render, tokenize

READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
ASKS = assistant("", call("call_1", "read_file", path="notes.txt"))
RESULT = tool("call_1", "The code is 4711.")
STORY = [ASKS, "The code is 4711, says the file."]


def request(*messages: dict[str, Any], tools: bool = True, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **({"tools": [READ]} if tools else {}), **more}


def ask(simulator: Simulator, *messages: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    status, _, chunks = simulator.respond(request(*messages, **more))
    return status, json.loads(b"".join(chunks))


def said(body: dict[str, Any]) -> dict[str, Any]:
    return body["choices"][0]["message"]


def events(data: bytes) -> list[dict[str, Any]]:
    blocks = [block for block in data.decode().split("\n\n") if block]
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block != "data: [DONE]"]


def stream(script: Any, *, options: dict[str, Any] | None = None, **more: Any) -> bytes:
    return b"".join(Simulator(script, **(options or {})).respond(request(user("Go"), stream=True, **more)).chunks)


# --- the shape of an answer


def test_a_stream_has_a_role_one_delta_per_token_a_finish_reason_and_an_end_mark() -> None:
    data = stream(["Hello, wörld!"])
    assert data.endswith(b"data: [DONE]\n\n")
    chunks = events(data)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    deltas = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:-1]]
    assert deltas == tokenize("Hello, wörld!")
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all("usage" not in chunk for chunk in chunks)
    assert {(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks} == {
        ("chatcmpl-1", 0, "chat.completion.chunk")
    }


def test_usage_comes_in_a_last_chunk_without_choices_when_asked_for() -> None:
    chunks = events(stream(["One two three"], stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_calls_stream_with_index_id_and_name_first_then_pieces_of_arguments() -> None:
    answer = assistant("", call("a", "read_file", path="one.txt"), call("b", "read_file", path="two.txt"))
    chunks = events(stream([answer]))
    assert chunks[0]["choices"][0]["delta"]["content"] is None
    deltas = [delta for chunk in chunks[1:-1] for delta in chunk["choices"][0]["delta"]["tool_calls"]]
    opened = [delta for delta in deltas if "id" in delta]
    assert [(d["index"], d["id"], d["type"], d["function"]) for d in opened] == [
        (0, "a", "function", {"name": "read_file", "arguments": ""}),
        (1, "b", "function", {"name": "read_file", "arguments": ""}),
    ]
    for index, expected in enumerate(['{"path":"one.txt"}', '{"path":"two.txt"}']):
        fragments = [d["function"]["arguments"] for d in deltas if d["index"] == index]
        assert len(fragments) > 2 and "".join(fragments) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_whole_body_holds_the_message_as_the_script_has_it() -> None:
    answer = assistant("Let me look.", call("a", "read_file", path="é.txt"))
    status, body = ask(Simulator([answer]), user("Go"))
    assert (status, body["object"], body["choices"][0]["finish_reason"]) == (200, "chat.completion", "tool_calls")
    assert said(body) == {**answer, "refusal": None}


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_a_limit_cuts_text_and_arguments(key: str) -> None:
    _, body = ask(Simulator(["one two three"]), user("Go"), **{key: 2})
    assert (said(body)["content"], body["choices"][0]["finish_reason"]) == ("one two", "length")
    assert body["usage"]["completion_tokens"] == 2
    opening = next(iter(pieces(ASKS)))
    _, body = ask(Simulator([ASKS]), user("Go"), **{key: len(opening.tokens) + 2})
    assert said(body)["tool_calls"][0]["function"]["arguments"] == '{"path'
    assert body["choices"][0]["finish_reason"] == "length"


def test_an_exact_limit_cuts_nothing() -> None:
    _, body = ask(Simulator(["one two three"]), user("Go"), max_tokens=3)
    assert body["choices"][0]["finish_reason"] == "stop"


def test_ids_count_up_and_created_comes_from_the_clock() -> None:
    simulator = Simulator(lambda request: "yes", clock=lambda: 12.9)
    bodies = [ask(simulator, user("Go"))[1] for _ in range(2)]
    assert [(body["id"], body["created"]) for body in bodies] == [("chatcmpl-1", 12), ("chatcmpl-2", 12)]


TEXT = "Grüße, 日本🐙! \u2028 'quoted' \n\n" + "word " * 5


@settings(deadline=None, max_examples=60, derandomize=True)
@given(sizes=st.one_of(st.integers(1, 700), st.lists(st.integers(1, 90), min_size=1, max_size=5)), said=st.text())
def test_cuts_change_no_byte(sizes: int | list[int], said: str) -> None:
    script = [assistant(said or TEXT, call("a", "read_file", path=TEXT))]
    whole = stream(script)
    chunks = list(Simulator(script, chunk=sizes).respond(request(user("Go"), stream=True)).chunks)
    assert b"".join(chunks) == whole
    wanted = [sizes] if isinstance(sizes, int) else sizes
    assert [len(chunk) for chunk in chunks[:-1]] == [wanted[i % len(wanted)] for i in range(len(chunks) - 1)]


def test_without_chunk_every_chunk_is_one_event() -> None:
    chunks = list(Simulator([TEXT]).respond(request(user("Go"), stream=True)).chunks)
    assert len(chunks) > 10 and all(c.startswith(b"data: ") and c.count(b"\n\n") == 1 for c in chunks)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(text=st.text(), arguments=st.dictionaries(st.text(), st.text(), max_size=3))
def test_a_stream_and_a_whole_body_say_the_same(text: str, arguments: dict[str, str]) -> None:
    answer = assistant(text, call("a", "read_file", **{f"k{key}": value for key, value in arguments.items()}))
    _, body = ask(Simulator([answer]), user("Go"))
    deltas = [chunk["choices"][0]["delta"] for chunk in events(stream([answer]))]
    assert "".join(delta.get("content") or "" for delta in deltas) == (said(body)["content"] or "") == text
    fragments = [c["function"]["arguments"] for delta in deltas for c in delta.get("tool_calls", [])]
    assert "".join(fragments) == said(body)["tool_calls"][0]["function"]["arguments"]


# --- counting


@settings(deadline=None, max_examples=200, derandomize=True)
@given(head=st.text(), tail=st.text())
def test_tokens_lose_nothing_and_stay_when_text_grows(head: str, tail: str) -> None:
    tokens = tokenize(head)
    assert "".join(tokens) == head
    settled = tokens[:-1]
    assert tokenize(head + tail)[: len(settled)] == settled


def test_a_token_is_a_short_piece_of_the_text() -> None:
    shown = ["Call", " read", "_", "file", "({", " ", '"', "path", '":', " ", "12", "})", "\n", "日", "本"]
    assert tokenize('Call read_file({ "path": 12})\n日本') == shown
    assert tokenize("internationally 12345  x") == ["internat", "ionally", " ", "123", "45", "  ", "x"]


def test_a_growing_conversation_is_a_growing_list_of_tokens() -> None:
    history: list[dict[str, Any]] = [user("Read it.")]
    before = render([READ], history)
    for message in (ASKS, RESULT, assistant("Done."), user("Thanks, wörld")):
        history.append(message)
        now = render([READ], history)
        assert now[: len(before) - 1] == before[:-1] and len(now) > len(before)
        before = now
    swapped = {key: READ[key] for key in reversed(READ)}
    assert render([swapped], history) != before


def test_usage_is_counted_not_scripted() -> None:
    simulator = Simulator(["one two three four"])
    _, body = ask(simulator, user("Say some words."))
    assert body["usage"]["prompt_tokens"] == len(render([READ], [user("Say some words.")]))
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 4
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert simulator.usages == [body["usage"]]
    _, longer = ask(Simulator(["one two three four"]), user("Say some words." + " more" * 10))
    assert longer["usage"]["prompt_tokens"] == body["usage"]["prompt_tokens"] + 10


class _HalfCached:
    """A cache that has seen half of everything, and keeps what it was told."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int, float]] = []

    def admit(self, prompt: Any, *, marks: Any, at: float) -> CacheUse:
        return CacheUse(hit=len(prompt) // 2)

    def extend(self, prompt: Any, reply: Any, *, at: float) -> None:
        self.kept.append((len(prompt), len(reply), at))


def test_a_cache_policy_drives_usage_and_hears_of_the_reply() -> None:
    cache = _HalfCached()
    _, body = ask(Simulator(["one two"], cache=cache, clock=lambda: 7.0), user("Say some words."))
    prompt = body["usage"]["prompt_tokens"]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt // 2
    assert cache.kept == [(prompt, 2, 7.0)]


def test_requests_are_kept_as_they_were_sent() -> None:
    simulator = Simulator(["yes"])
    sent, refused = request(user("Go")), request(RESULT)
    for each in (sent, refused):
        simulator.respond(each)
    expected = copy.deepcopy([sent, refused])
    sent["messages"].append(user("later"))
    assert simulator.requests == expected
    assert len(simulator.usages) == 1


def test_the_request_and_the_script_are_left_alone() -> None:
    script = copy.deepcopy(STORY)
    history = [user("Go"), ASKS, RESULT]
    before = copy.deepcopy(history)
    simulator = Simulator(script)
    ask(simulator, *history[:1])
    ask(simulator, *history)
    assert (script, history) == (STORY, before)


def test_a_script_that_changes_later_changes_nothing() -> None:
    script: list[Any] = [assistant("first")]
    simulator = Simulator(script)
    script[0]["content"] = "changed"
    script.append("more")
    _, body = ask(simulator, user("Go"))
    assert said(body)["content"] == "first"
    assert "script is over" in said(ask(simulator, user("Go"), said(body), user("On"))[1])["content"]


# --- refusals: (what is sent, part of the vendor's words, param, code)

MISSING_RESULTS = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The"
    " following tool_call_ids did not have response messages: "
)
ORPHAN = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
TWO = assistant("", call("a", "f"), call("b", "f"))


def _call(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{**call("a", "f"), **changes}]}


def _function(**changes: Any) -> dict[str, Any]:
    return _call(function={"name": "f", "arguments": "{}", **changes})


REFUSALS: dict[str, tuple[dict[str, Any], str, str | None, str | None]] = {
    "call without result": (request(user("x"), TWO), MISSING_RESULTS + "a, b", "messages", None),
    "one result of two": (request(user("x"), TWO, tool("b", "")), MISSING_RESULTS + "a", "messages", None),
    "user before the result": (
        request(user("x"), TWO, tool("a", ""), user("y"), tool("b", "")),
        MISSING_RESULTS + "b",
        "messages.[3].role",
        None,
    ),
    "assistant before the result": (
        request(user("x"), TWO, assistant("y"), tool("a", ""), tool("b", "")),
        MISSING_RESULTS + "a, b",
        "messages.[2].role",
        None,
    ),
    "result without call": (request(user("x"), tool("a", "")), ORPHAN, "messages.[1].role", None),
    "result of a call that is over": (
        request(user("x"), _call(), tool("a", ""), assistant("y"), tool("a", "")),
        ORPHAN,
        "messages.[4].role",
        None,
    ),
    "result with a foreign id": (request(user("x"), TWO, tool("c", "")), ORPHAN, "messages.[2].role", None),
    "two results": (
        request(user("x"), TWO, tool("a", "1"), tool("a", "2"), tool("b", "")),
        "Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3].",
        "messages.[3].tool_call_id",
        None,
    ),
    "two calls with one id": (
        request(user("x"), assistant("", call("a", "f"), call("a", "g")), tool("a", "")),
        "Invalid 'messages[1].tool_calls[1].id': 'a' names another call of this message already.",
        "messages[1].tool_calls[1].id",
        "invalid_value",
    ),
    "no tool_call_id": (
        request(user("x"), _call(), {"role": "tool", "content": ""}),
        "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
        "messages.[2].tool_call_id",
        None,
    ),
    "arguments cut short": (
        request(user("x"), _function(arguments='{"path": "no'), tool("a", "")),
        "Invalid 'messages[1].tool_calls[0].function.arguments': expected a string that holds a JSON object.",
        "messages[1].tool_calls[0].function.arguments",
        "invalid_value",
    ),
    "arguments that are no object": (
        request(user("x"), _function(arguments="null"), tool("a", "")),
        "Invalid 'messages[1].tool_calls[0].function.arguments': expected a string that holds a JSON object.",
        "messages[1].tool_calls[0].function.arguments",
        "invalid_value",
    ),
    "arguments as an object": (
        request(user("x"), _function(arguments={}), tool("a", "")),
        "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object"
        " instead.",
        "messages[1].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    "an index left in a call": (
        request(user("x"), _call(index=0), tool("a", "")),
        "Unknown parameter: 'messages[1].tool_calls[0].index'.",
        "messages[1].tool_calls[0].index",
        "unknown_parameter",
    ),
    "a call without type": (
        request(user("x"), {"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}),
        "Missing required parameter: 'messages[1].tool_calls[0].type'.",
        "messages[1].tool_calls[0].type",
        "missing_required_parameter",
    ),
    "a call of another type": (
        request(user("x"), _call(type="tool"), tool("a", "")),
        "Invalid value: 'tool'. Supported values are: 'function'.",
        "messages[1].tool_calls[0].type",
        "invalid_value",
    ),
    "a call with a bad name": (
        request(user("x"), _function(name="read file"), tool("a", "")),
        "Invalid 'messages[1].tool_calls[0].function.name': string does not match pattern. Expected a string that"
        " matches the pattern '^[a-zA-Z0-9_-]+$'.",
        "messages[1].tool_calls[0].function.name",
        "invalid_value",
    ),
    "a call with a long id": (
        request(user("x"), _call(id="i" * 41), tool("i" * 41, "")),
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a"
        " string with length 41 instead.",
        "messages[1].tool_calls[0].id",
        "string_above_max_length",
    ),
    "empty tool_calls": (
        request(user("x"), {**assistant("y"), "tool_calls": []}),
        "Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array"
        " instead.",
        "messages[1].tool_calls",
        "empty_array",
    ),
    "unknown key in a message": (
        request(user("x"), {**assistant("y"), "origin": "repair"}),
        "Unknown parameter: 'messages[1].origin'.",
        "messages[1].origin",
        "unknown_parameter",
    ),
    "calls of a user": (
        request({**user("x"), "tool_calls": [call("a", "f")]}),
        "Unknown parameter: 'messages[0].tool_calls'.",
        "messages[0].tool_calls",
        "unknown_parameter",
    ),
    "unknown key at the top": (
        request(user("x"), system="y"),
        "Unknown parameter: 'system'.",
        "system",
        "unknown_parameter",
    ),
    "bad role": (
        request({"role": "bot", "content": "x"}),
        "Invalid value: 'bot'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and"
        " 'developer'.",
        "messages[0].role",
        "invalid_value",
    ),
    "no role": (
        request({"content": "x"}),
        "Missing required parameter: 'messages[0].role'.",
        "messages[0].role",
        "missing_required_parameter",
    ),
    "message that is no object": (
        {"model": "m", "messages": ["x"]},
        "Invalid type for 'messages[0]': expected an object, but got a string instead.",
        "messages[0]",
        "invalid_type",
    ),
    "neither content nor calls": (
        request(user("x"), {"role": "assistant", "content": None}),
        "Invalid value for 'content': expected a string, got null.",
        "messages.[1].content",
        None,
    ),
    "no content": (
        request({"role": "user"}),
        "Invalid value for 'content': expected a string, got null.",
        "messages.[0].content",
        None,
    ),
    "content as an object": (
        request({"role": "user", "content": {}}),
        "Invalid type for 'messages[0].content': expected one of a string or array of objects, but got an object"
        " instead.",
        "messages[0].content",
        "invalid_type",
    ),
    "content part as a string": (
        request({"role": "user", "content": ["x"]}),
        "Invalid type for 'messages[0].content[0]': expected an object, but got a string instead.",
        "messages[0].content[0]",
        "invalid_type",
    ),
    "content part of an unknown type": (
        request({"role": "user", "content": [{"type": "tool_result"}]}),
        "Invalid value: 'tool_result'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', 'audio',"
        " and 'file'.",
        "messages[0].content[0].type",
        "invalid_value",
    ),
    "text part without text": (
        request({"role": "user", "content": [{"type": "text"}]}),
        "Invalid type for 'messages[0].content[0].text': expected a string, but got null instead.",
        "messages[0].content[0].text",
        "invalid_type",
    ),
    "empty content": (
        request({"role": "user", "content": []}),
        "Invalid 'messages[0].content': empty array. Expected an array with minimum length 1, but got an empty array"
        " instead.",
        "messages[0].content",
        "empty_array",
    ),
    "no model": ({"messages": [user("x")]}, "you must provide a model parameter", None, None),
    "no messages": (
        {"model": "m"},
        "Missing required parameter: 'messages'.",
        "messages",
        "missing_required_parameter",
    ),
    "empty messages": (
        {"model": "m", "messages": []},
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        "messages",
        "empty_array",
    ),
    "messages as text": (
        {"model": "m", "messages": "x"},
        "Invalid type for 'messages': expected an array of objects, but got a string instead.",
        "messages",
        "invalid_type",
    ),
    "empty tools": (
        {**request(user("x")), "tools": []},
        "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        "tools",
        "empty_array",
    ),
    "too many tools": (
        {**request(user("x")), "tools": [READ] * 129},
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129"
        " instead.",
        "tools",
        "array_above_max_length",
    ),
    "bad tool name": (
        {**request(user("x")), "tools": [{"type": "function", "function": {"name": "mcp.read"}}]},
        "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the pattern"
        " '^[a-zA-Z0-9_-]+$'.",
        "tools[0].function.name",
        "invalid_value",
    ),
    "tool name with a line end": (
        {**request(user("x")), "tools": [{"type": "function", "function": {"name": "read\n"}}]},
        "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the pattern"
        " '^[a-zA-Z0-9_-]+$'.",
        "tools[0].function.name",
        "invalid_value",
    ),
    "long tool name": (
        {**request(user("x")), "tools": [{"type": "function", "function": {"name": "n" * 65}}]},
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string"
        " with length 65 instead.",
        "tools[0].function.name",
        "string_above_max_length",
    ),
    "tool in another vendor's shape": (
        {**request(user("x")), "tools": [{"name": "read_file", "input_schema": {}}]},
        "Unknown parameter: 'tools[0].name'.",
        "tools[0].name",
        "unknown_parameter",
    ),
    "tool without function": (
        {**request(user("x")), "tools": [{"type": "function"}]},
        "Missing required parameter: 'tools[0].function'.",
        "tools[0].function",
        "missing_required_parameter",
    ),
    "schema that is no object": (
        {**request(user("x")), "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]},
        "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"x\"'.",
        "tools[0].function.parameters",
        "invalid_function_parameters",
    ),
    "tool_choice without tools": (
        request(user("x"), tools=False, tool_choice="auto"),
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
        "tool_choice",
        None,
    ),
    "stream_options without stream": (
        request(user("x"), stream_options={"include_usage": True}),
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        "stream_options",
        None,
    ),
    "stream as text": (
        request(user("x"), stream="yes"),
        "Invalid type for 'stream': expected a boolean, but got a string instead.",
        "stream",
        "invalid_type",
    ),
    "max_tokens of nothing": (
        request(user("x"), max_tokens=0),
        "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        "max_tokens",
        "integer_below_min_value",
    ),
    "max_tokens as a boolean": (
        request(user("x"), max_tokens=True),
        "Invalid type for 'max_tokens': expected an integer, but got a boolean instead.",
        "max_tokens",
        "invalid_type",
    ),
    "two choices": (request(user("x"), n=2), "This simulator answers with one choice: leave out 'n'.", "n", None),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name: str) -> None:
    sent, message, param, code = REFUSALS[name]
    simulator = Simulator(["never"])
    status, headers, chunks = simulator.respond(sent)
    error = json.loads(b"".join(chunks))["error"]
    assert (status, headers["content-type"]) == (400, "application/json")
    assert error == {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    assert simulator.requests == [sent] and simulator.usages == []
    assert said(ask(simulator, user("Go"))[1])["content"] == "never"


PAIR = [_call(), tool("a", "x")]
ACCEPTED: dict[str, list[dict[str, Any]]] = {
    "text": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, user("x")],
    "an id that comes back in a later turn": [user("x"), *PAIR, assistant("y"), user("z"), *PAIR, *PAIR],
    "results in another order": [user("x"), TWO, tool("b", ""), tool("a", "")],
    "no user message": PAIR,
    "an empty text": [user(""), assistant("")],
    "an answer of the whole body": [user("x"), {"role": "assistant", "content": "y", "refusal": None}],
    "a call without content": [user("x"), {"role": "assistant", "tool_calls": [call("a", "f")]}, tool("a", "")],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}],
    "names": [{**user("x"), "name": "ada"}, _call(), {**tool("a", ""), "name": "f"}],
    "a name of 64": [user("x"), _function(name="n" * 64), tool("a", "")],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str) -> None:
    status, body = ask(Simulator(["yes"]), *ACCEPTED[name])
    assert (status, said(body)["content"]) == (200, "yes"), body


def test_a_prompt_that_does_not_fit_is_refused_with_the_vendors_words() -> None:
    words = user("word " * 100)
    size = len(render([], [words]))
    simulator = Simulator(["one two three"], context_window=size - 1)
    status, body = ask(simulator, words, tools=False)
    assert (status, body["error"]) == (
        400,
        {
            "message": f"This model's maximum context length is {size - 1} tokens. However, your messages resulted in"
            f" {size} tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        },
    )
    functions = len(render([READ], [])) - 1
    _, body = ask(simulator, words)
    assert (
        f"{size + functions} tokens ({size} in the messages, {functions} in the functions)" in body["error"]["message"]
    )
    _, body = ask(Simulator(["x"], context_window=size), words, tools=False, max_tokens=1)
    assert f"you requested {size + 1} tokens ({size} in the messages, 1 in the completion)" in body["error"]["message"]
    _, body = ask(Simulator(["one two three"], context_window=size), words, tools=False)
    assert (said(body)["content"], body["choices"][0]["finish_reason"]) == ("", "length")
    _, body = ask(Simulator(["one two three"], context_window=size + 2), words, tools=False)
    assert (said(body)["content"], body["choices"][0]["finish_reason"]) == ("one two", "length")


class _Counted(dict[str, Any]):
    """A message that counts how often it is looked into."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        _Counted.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        _Counted.looks += 1
        return super().__getitem__(key)


def test_a_long_history_is_judged_in_one_pass() -> None:
    def looks(turns: int) -> int:
        plain = [user("x"), *(message for _ in range(turns) for message in (*PAIR, assistant("y"), user("z")))]
        history = [_Counted(message) for message in plain]
        memory = Memory()
        memory.show(history)
        memory.say(PAIR[0])
        _Counted.looks = 0
        assert refuse(request(*history)) is None
        assert missing_history(history, memory) is None
        return _Counted.looks

    assert looks(200) > 800
    assert looks(2000) < 10 * looks(200)


# --- scripts, and what a request must show

QUESTION = user("What is the code in notes.txt?")


def test_a_story_goes_on_when_the_request_shows_it_all() -> None:
    simulator = Simulator([*STORY, "You are welcome."])
    _, first = ask(simulator, QUESTION)
    assert said(first)["tool_calls"] == ASKS["tool_calls"]
    _, second = ask(simulator, QUESTION, said(first), RESULT)
    assert said(second)["content"] == STORY[1]
    _, third = ask(simulator, QUESTION, ASKS, RESULT, said(second), user("Thanks"))
    assert said(third)["content"] == "You are welcome."
    _, over = ask(simulator, QUESTION, ASKS, RESULT, said(second), user("Thanks"), said(third), user("More"))
    assert "script is over" in said(over)["content"]


def broken(*messages: dict[str, Any], tools: bool = True) -> tuple[int, str]:
    """The second request of the story, sent by a broken loop: its status and what it says is missing."""
    simulator = Simulator(STORY)
    ask(simulator, QUESTION)
    status, body = ask(simulator, *messages, tools=tools)
    missing = body["agentlab"]["missing"] if status == 400 else said(body)["content"]
    assert "4711, says" not in json.dumps(body)
    if status == 400:
        assert body["error"]["message"].startswith((MISSING_RESULTS, ORPHAN))
    _, mended = ask(simulator, QUESTION, ASKS, RESULT)
    assert said(mended)["content"] == STORY[1], "a request that shows too little must not use up the step"
    return status, missing


def test_broken_loop_no_tools_sent() -> None:
    simulator = Simulator(STORY)
    status, body = ask(simulator, QUESTION, tools=False)
    assert status == 200 and body["choices"][0]["finish_reason"] == "stop"
    assert "I wanted to call `read_file`" in said(body)["content"] and "no `tools`" in said(body)["content"]
    assert said(ask(simulator, QUESTION)[1])["tool_calls"] == ASKS["tool_calls"]


def test_broken_loop_result_not_appended() -> None:
    status, missing = broken(QUESTION, ASKS)
    assert status == 400
    assert "my message that asks for call_1 (read_file), but not the result" in missing


def test_broken_loop_assistant_message_not_appended() -> None:
    status, missing = broken(QUESTION, RESULT)
    assert status == 400
    assert "the result of call_1 (read_file), but not my message that asked for it" in missing


def test_broken_loop_history_cut_to_the_last_message() -> None:
    status, missing = broken(RESULT)
    assert status == 400
    assert missing.startswith("Your history was cut: all that I can see is the result of call_1 (read_file).")


def test_broken_loop_nothing_appended() -> None:
    status, missing = broken(QUESTION)
    assert status == 200
    assert "I asked for call_1 (read_file), and I can see neither my message nor its result." in missing
    assert "cut" not in missing


def test_broken_loop_question_lost() -> None:
    status, missing = broken(ASKS, RESULT)
    assert status == 200 and "no user message" in missing


def test_broken_loop_chat_without_history() -> None:
    simulator = Simulator(["Nice to meet you, Ada.", "Your name is Ada."])
    ask(simulator, user("I am Ada."))
    status, body = ask(simulator, user("Who am I?"))
    assert status == 200 and "Your name" not in said(body)["content"]
    assert 'I cannot see my own last answer ("Nice to meet you, Ada.")' in said(body)["content"]
    assert "Of the 1 messages that I had seen, 0 are left: your history was cut." in said(body)["content"]


TWO_READS = [ASKS, assistant("", call("call_2", "read_file", path="more.txt")), "Both say 4711."]


def test_no_final_answer_when_an_earlier_result_vanished() -> None:
    simulator = Simulator(TWO_READS)
    ask(simulator, QUESTION)
    ask(simulator, QUESTION, ASKS, RESULT)
    status, body = ask(simulator, QUESTION, TWO_READS[1], tool("call_2", "4711"))
    assert status == 200 and "the result of call_1 (read_file) any more" in said(body)["content"]
    _, body = ask(simulator, QUESTION, ASKS, RESULT, TWO_READS[1], tool("call_2", "4711"))
    assert said(body)["content"] == "Both say 4711."


def test_ids_that_come_back_are_counted() -> None:
    again = [ASKS, ASKS, "Twice 4711."]
    simulator = Simulator(again)
    ask(simulator, QUESTION)
    ask(simulator, QUESTION, ASKS, RESULT)
    _, body = ask(simulator, QUESTION, ASKS, RESULT)
    assert "the result of call_1" in said(body)["content"]
    _, body = ask(simulator, QUESTION, ASKS, RESULT, ASKS, RESULT)
    assert said(body)["content"] == "Twice 4711."


def test_a_summary_may_stand_for_what_vanished_and_a_short_result_is_a_result() -> None:
    simulator = Simulator([*TWO_READS, "And so on."])
    ask(simulator, QUESTION)
    ask(simulator, QUESTION, ASKS, tool("call_1", "[cleared]"))
    compacted = [user("Summary: notes.txt says 4711."), TWO_READS[1], tool("call_2", "4711")]
    _, body = ask(simulator, *compacted)
    assert said(body)["content"] == "Both say 4711."
    _, body = ask(simulator, *compacted, said(body), user("Go on"))
    assert said(body)["content"] == "And so on."


def test_a_summary_of_everything_is_told_from_a_cut_history() -> None:
    whole = [user("Summary: call_1 gave 4711.")]
    simulator = Simulator([*STORY, "Bye."])
    ask(simulator, QUESTION)
    assert said(ask(simulator, *whole)[1])["content"] == STORY[1]
    assert said(ask(simulator, user("Summary: all is told."), user("Bye"))[1])["content"] == "Bye."


def test_a_changing_system_prompt_hides_nothing() -> None:
    simulator = Simulator(STORY)
    ask(simulator, {"role": "system", "content": "It is 10:00."}, QUESTION)
    _, body = ask(simulator, {"role": "system", "content": "It is 10:01."}, QUESTION, ASKS, RESULT)
    assert said(body)["content"] == STORY[1]


def test_a_tool_may_be_called_when_its_name_was_read() -> None:
    wanted = assistant("", call("call_1", "get_weather", city="Oslo"))
    status, body = ask(Simulator([wanted]), user("How is the weather?"))
    assert status == 200 and "your `tools` offer only `read_file`" in said(body)["content"]
    _, body = ask(Simulator([wanted]), {"role": "system", "content": "Deferred: get_weather."}, user("Weather?"))
    assert said(body)["tool_calls"] == wanted["tool_calls"]
    _, body = ask(Simulator(STORY), QUESTION, tool_choice="none")
    assert 'forbids it with tool_choice "none"' in said(body)["content"]


def test_a_function_reacts_to_results() -> None:
    def model(request: dict[str, Any]) -> Any:
        last = request["messages"][-1]
        request["messages"].clear()
        if last["role"] == "tool":
            return f"It says: {last['content']}"
        return ASKS if last["content"] != "nothing" else None

    simulator = Simulator(model)
    sent = request(QUESTION)
    assert simulator.respond(sent).status == 200 and sent["messages"] == [QUESTION]
    assert said(ask(simulator, QUESTION, ASKS, tool("call_1", "42"))[1])["content"] == "It says: 42"
    assert "no answer" in said(ask(simulator, user("nothing"))[1])["content"]
    assert "no `tools`" in said(ask(simulator, QUESTION, tools=False)[1])["content"]
    status, body = ask(simulator, QUESTION, RESULT)
    assert status == 400 and "but not my message" in body["agentlab"]["missing"]


def test_hints_for_messages_of_somebody_else() -> None:
    _, body = ask(Simulator(), user("x"), tool("a", ""))
    assert "the result of a, but not the assistant message" in body["agentlab"]["missing"]
    _, body = ask(Simulator(), {**user("x"), "origin": "watchdog"})
    assert "messages.wire" in body["agentlab"]["missing"]
    _, body = ask(Simulator(), user("x"), unknown=1)
    assert "agentlab" not in body


def _rules(words: str, **more: Any) -> dict[str, Any]:
    return said(ask(Simulator(), user(words), **more)[1])


def test_the_rules_do_what_they_say_and_nothing_else() -> None:
    assert _rules("Hello!")["content"].startswith("Hello! I am a handful of rules, not a language model.")
    assert _rules("what is 2 + 3?")["content"] == "2 + 3 = 5"
    assert _rules("7 / 0")["content"] == "I cannot divide by zero."
    assert _rules("count to 4")["content"] == "1 2 3 4"
    assert len(_rules("count to 999999999")["content"].split()) == 1000
    assert _rules("say äöü, twice")["content"] == "äöü, twice"
    assert _rules("what do you see?")["content"].startswith("I see 1 message(s) (1 user) and `read_file`.")
    assert "I only know how to" in _rules("Write me a poem about the sea")["content"]


def test_the_rules_call_what_is_offered_and_report_what_came_back() -> None:
    answer = _rules("read the file notes.txt")
    assert answer["tool_calls"] == ASKS["tool_calls"]
    assert _rules("read_file notes.txt")["tool_calls"] == ASKS["tool_calls"]
    simulator = Simulator()
    _, body = ask(simulator, QUESTION, answer, tool("call_1", "x" * 500))
    assert "`read_file` answered 500 characters" in said(body)["content"] and len(said(body)["content"]) < 300
    assert "your request offers no tool for that: it offers only `read_file`" in _rules("run ls")["content"]
    assert "it has no `tools`" in _rules("read notes.txt", tools=False)["content"]
    assert "forbids" in _rules("read notes.txt", tool_choice="none")["content"]
    _, body = ask(simulator, QUESTION, answer, tool("call_1", ""), assistant("y"), user("read b.txt"))
    assert said(body)["tool_calls"][0]["id"] == "call_2"


# --- faults


def test_status_faults_have_the_vendors_body_and_leave_the_next_step() -> None:
    simulator = Simulator([Fault(status=429, retry_after=2.5), Fault(status=500), Fault(status=401), "Hello"])
    answers = [simulator.respond(request(user("Go"))) for _ in range(3)]
    errors = [json.loads(b"".join(answer.chunks))["error"] for answer in answers]
    assert [answer.status for answer in answers] == [429, 500, 401]
    assert [answer.headers.get("retry-after") for answer in answers] == ["2.5", None, None]
    assert errors[0]["message"].startswith("Rate limit reached for ")
    assert [(error["type"], error["param"], error["code"]) for error in errors] == [
        ("tokens", None, "rate_limit_exceeded"),
        ("server_error", None, None),
        ("invalid_request_error", None, "invalid_api_key"),
    ]
    assert errors[1]["message"] == "The server had an error while processing your request. Sorry about that!"
    assert said(ask(simulator, user("Go"))[1])["content"] == "Hello"
    assert len(simulator.usages) == 1


def test_refused_connections_are_refused() -> None:
    with pytest.raises(ConnectionRefusedError):
        Simulator([Fault(refuse=True)]).respond(request(user("Go")))


@pytest.mark.parametrize("chunk", [None, 1, 50])
@pytest.mark.parametrize("at", [0, 1, 300, 701])
@pytest.mark.parametrize("ending", ["cut", "stall"])
def test_cut_and_stall_end_after_exactly_so_many_bytes(ending: str, at: int, chunk: int | None) -> None:
    whole = stream([TEXT])
    simulator = Simulator([Fault(step=TEXT, **{f"{ending}_at": at})], chunk=chunk)
    body = simulator.respond(request(user("Go"), stream=True)).chunks
    assert b"".join(body) == whole[:at]
    assert body.ending == ending
    body.close()
    assert len(simulator.hangups) == (ending == "stall")


def test_an_answer_that_arrived_broken_need_not_be_shown() -> None:
    for fault in (
        Fault(cut_at=400, step="Hello"),
        Fault(error_after=1, step=ASKS),
        Fault(no_finish=True, step="Hello"),
    ):
        simulator = Simulator([fault, "Hello again"])
        b"".join(simulator.respond(request(user("Go"), stream=True)).chunks)
        assert said(ask(simulator, user("Go"))[1])["content"] == "Hello again"


def test_an_error_inside_the_stream_ends_it() -> None:
    data = stream([Fault(error_after=3, step="one two three four")])
    chunks = events(data)
    assert len(chunks) == 4 and "choices" in chunks[2]
    assert chunks[3]["error"]["type"] == "server_error"
    assert b"[DONE]" not in data
    assert Simulator([Fault(error_after=3)]).respond(request(user("Go"))).status == 500


def test_end_mark_and_finish_reason_can_be_left_out() -> None:
    whole = stream(["one two"])
    assert stream([Fault(no_done=True, step="one two")]) == whole.removesuffix(b"data: [DONE]\n\n")
    chunks = events(stream([Fault(no_finish=True, step="one two")]))
    assert chunks == events(whole)[:-1]


@pytest.mark.parametrize("ending", ["cut_at", "stall_at"])
def test_nothing_is_produced_behind_the_last_byte(ending: str) -> None:
    simulator = Simulator(["one two three"])
    blocks = list(simulator.respond(request(user("Go"), stream=True)).chunks)
    at = len(blocks[0] + blocks[1])
    simulator = Simulator([Fault(step="one two three", **{ending: at})])
    assert b"".join(simulator.respond(request(user("Go"), stream=True)).chunks) == blocks[0] + blocks[1]
    assert simulator.usages[0]["completion_tokens"] == 1
    simulator = Simulator(["one two three"], chunk=at)
    assert next(simulator.respond(request(user("Go"), stream=True)).chunks) == blocks[0] + blocks[1]
    assert simulator.usages[0]["completion_tokens"] == 1


def test_hangups_tell_how_far_it_got() -> None:
    simulator = Simulator(["one two three four", "five six"])
    simulator.respond(request(user("Refused"), RESULT))
    body = simulator.respond(request(user("Go"), stream=True)).chunks
    for _ in range(3):
        next(body)
    body.close()
    body.close()
    assert list(body) == []
    assert simulator.hangups == [Hangup(request=1, produced=2, total=4)]
    assert simulator.usages[0]["completion_tokens"] == 2
    assert simulator.usages[0]["total_tokens"] == simulator.usages[0]["prompt_tokens"] + 2
    assert said(ask(simulator, user("Go"))[1])["content"] == "five six"
    unread = Simulator(["one"])
    unread.respond(request(user("Go"))).chunks.close()
    assert unread.hangups == [Hangup(0, 0, 1)]


def test_a_client_that_leaves_after_the_finish_reason_did_not_hang_up() -> None:
    simulator = Simulator(["one two"])
    body = simulator.respond(request(user("Go"), stream=True)).chunks
    while b'"stop"' not in next(body):
        pass
    body.close()
    assert simulator.hangups == [] and simulator.usages[0]["completion_tokens"] == 2


# --- options


@pytest.mark.parametrize(
    "make",
    [
        lambda: Simulator(dialect="cobol"),
        lambda: Simulator("Hello"),
        lambda: Simulator([42]),
        lambda: Simulator([user("x")]),
        lambda: Simulator([Fault(status=500, step=tool("a", ""))]),
        lambda: Simulator([assistant("", {"id": "a"})]),
        lambda: Simulator(chunk=0),
        lambda: Simulator(chunk=[]),
        lambda: Simulator(chunk=[3, -1]),
        lambda: Fault(),
        lambda: Fault(step="Hello"),
        lambda: Fault(status=200),
        lambda: Fault(cut_at=-1),
        lambda: Simulator(lambda request: 42).respond(request(user("Go"))),
    ],
)
def test_what_cannot_work_is_said_at_once(make: Any) -> None:
    with pytest.raises(AgentLabError):
        make()
