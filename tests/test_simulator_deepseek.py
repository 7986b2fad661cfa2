"""The simulator's `deepseek` dialect: OpenAI's shape with DeepSeek's words, reasoning and count of the cache."""

from __future__ import annotations

import asyncio
import copy
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.assemble import Assembler
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.simulator import Fault, Hangup, Simulator, serve
from agentlab.simulator.cache import CacheUse
from agentlab.simulator.tokens import message_of, pieces, render, tokenize
from agentlab.sse import json_events

GUARD_S = 20.0
STREAMS = Path(__file__).parent.parent / "data" / "streams"
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
ASKS = assistant("", call("call_1", "read_file", path="notes.txt"))
RESULT = tool("call_1", "The code is 4711.")
THINKS = {**ASKS, "reasoning_content": "It is in the file."}
STORY = [THINKS, "The code is 4711, says the file."]
QUESTION = user("What is the code in notes.txt?")


def new(script: Any = None, **options: Any) -> Simulator:
    return Simulator(script, dialect="deepseek", **options)


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), "tools": [READ], **more}


def ask(simulator: Simulator, *messages: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    status, _, chunks = simulator.respond(request(*messages, **more))
    return status, json.loads(b"".join(chunks))


def said(body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = body["choices"][0]["message"]
    return message


def stream(script: Any, **more: Any) -> bytes:
    return b"".join(new(script).respond(request(user("Go"), stream=True, **more)).chunks)


def deltas(data: bytes) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in json_events([data])]


def run(make: Any) -> Any:
    """Run a coroutine; the limit only keeps a hanging test from hanging for ever."""

    async def guarded() -> Any:
        async with asyncio.timeout(GUARD_S):
            return await make

    return asyncio.run(guarded())


# --- the shape of an answer


def shape(value: Any) -> Any:
    """A JSON value without what it says: its keys and types."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value).__name__


def test_the_stream_has_the_chunks_of_the_recorded_one() -> None:
    lines = (STREAMS / "deepseek_reasoning_tool_cache.chunks.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    assembler = Assembler()
    for chunk in recorded:
        assembler.feed(chunk)
    answer = assembler.message()
    assert answer["reasoning_content"] and answer["tool_calls"]
    tools = [{"type": "function", "function": {"name": answer["tool_calls"][0]["function"]["name"]}}]
    ours = list(json_events([stream([answer], tools=tools)]))
    assert [kind for kind, _ in groupby(map(shape, ours))] == [kind for kind, _ in groupby(map(shape, recorded))]
    assert ours[0]["choices"][0]["delta"] == recorded[0]["choices"][0]["delta"]
    assert ours[-1]["choices"] == recorded[-1]["choices"]


def test_reasoning_comes_before_the_text_and_the_calls() -> None:
    answer = {**THINKS, "content": "Let me look."}
    seen = deltas(stream([answer]))
    assert seen[0] == {"role": "assistant", "content": None, "reasoning_content": ""}
    thoughts, texts = tokenize("It is in the file."), tokenize("Let me look.")
    spoken = [{"content": None, "reasoning_content": token} for token in thoughts]
    spoken += [{"content": token, "reasoning_content": None} for token in texts]
    assert seen[1 : len(spoken) + 1] == spoken
    calls = seen[len(spoken) + 1 : -1]
    assert all(set(delta) == {"tool_calls"} for delta in calls)
    assert "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in calls) == '{"path":"notes.txt"}'
    assert seen[-1] == {"content": "", "reasoning_content": None}


def test_without_reasoning_there_is_no_key_for_it() -> None:
    seen = deltas(stream(["one two"]))
    assert seen == [{"role": "assistant", "content": ""}, {"content": "one"}, {"content": " two"}, {"content": ""}]
    _, body = ask(new(["one two"]), user("Go"))
    assert said(body) == assistant("one two") and "completion_tokens_details" not in body["usage"]


def test_the_usage_stands_on_the_last_chunk() -> None:
    data = stream([THINKS])
    assert data.endswith(b"data: [DONE]\n\n")
    chunks = list(json_events([data]))
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    prompt, output = len(render([READ], [user("Go")])), sum(len(piece.tokens) for piece in pieces(THINKS))
    assert chunks[-1]["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(tokenize("It is in the file."))},
        "prompt_cache_hit_tokens": 0,
        "prompt_cache_miss_tokens": prompt,
    }


def test_the_cache_is_counted_in_both_places() -> None:
    class Cache:
        def admit(self, prompt: Any, *, marks: Any, at: float) -> CacheUse:
            return CacheUse(hit=7)

        def extend(self, prompt: Any, reply: Any, *, at: float) -> None:
            pass

    simulator = new(["yes"], cache=Cache())
    _, body = ask(simulator, user("Go"))
    usage = body["usage"]
    assert usage == simulator.usages[0] and usage["prompt_tokens_details"] == {"cached_tokens": 7}
    assert (usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"]) == (7, usage["prompt_tokens"] - 7)


def test_a_whole_body_holds_the_reasoning_and_an_index() -> None:
    _, body = ask(new([THINKS]), QUESTION)
    calls = [{"index": 0, **ASKS["tool_calls"][0]}]
    assert said(body) == {**THINKS, "tool_calls": calls}
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert ask(new(STORY[1:]), QUESTION, said(body), RESULT)[0] == 200


@pytest.mark.parametrize("options", [{"max_tokens": 3}, {"window": 3}])
def test_a_limit_counts_the_reasoning(options: dict[str, int]) -> None:
    size = len(render([READ], [QUESTION]))
    simulator = new([THINKS], context_window=size + options.pop("window", 1000))
    _, body = ask(simulator, QUESTION, **options)
    assert body["choices"][0]["finish_reason"] == "length"
    assert said(body) == {**assistant(""), "reasoning_content": "It is in"}
    assert simulator.usages[0]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_hangups_count_the_reasoning_that_was_produced() -> None:
    simulator = new([THINKS])
    body = simulator.respond(request(QUESTION, stream=True)).chunks
    for _ in range(3):
        next(body)
    body.close()
    assert simulator.hangups == [Hangup(0, 2, sum(len(piece.tokens) for piece in pieces(THINKS)))]
    assert simulator.usages[0]["completion_tokens_details"] == {"reasoning_tokens": 2}


SPOKEN = {**assistant("Grüße 🐙 \u2028\n", call("a", "read_file", path="日本")), "reasoning_content": "Ä 🐙"}
WHOLE = stream([SPOKEN])


@given(sizes=st.one_of(st.integers(1, 700), st.lists(st.integers(1, 90), min_size=1, max_size=5)))
def test_cuts_change_no_byte_and_the_client_reads_them(sizes: int | list[int]) -> None:
    chunks = list(new([SPOKEN], chunk=sizes).respond(request(user("Go"), stream=True)).chunks)
    assert b"".join(chunks) == WHOLE
    assembler = Assembler()
    for event in json_events(chunks):
        assembler.feed(event)
    assert assembler.message() == SPOKEN


@given(text=st.text(), reasoning=st.text(), count=st.integers(0, 3))
def test_pieces_make_up_the_message_that_was_cut(text: str, reasoning: str, count: int) -> None:
    message: Message = assistant(text, *(call(f"call_{n}", "f", text=text) for n in range(count)))
    if reasoning:
        message["reasoning_content"] = reasoning
    assert message_of(pieces(message)) == message


def test_openai_counts_the_reasoning_but_does_not_show_it() -> None:
    answer = {**THINKS, "content": "Let me look."}
    simulator = Simulator([answer, answer], dialect="openai")
    data = b"".join(simulator.respond(request(user("Go"), stream=True)).chunks)
    _, body = ask(simulator, user("Go"), ASKS, RESULT)
    assert b"reasoning_content" not in data and "reasoning_content" not in said(body)
    thought = len(tokenize("It is in the file."))
    for usage in simulator.usages:
        assert usage["completion_tokens"] == sum(len(piece.tokens) for piece in pieces(answer))
        assert usage["completion_tokens_details"]["reasoning_tokens"] == thought


# --- refusals


UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    " (insufficient tool messages following tool_calls message)"
)
ORPHAN = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."
TWO = assistant("", call("a", "f"), call("b", "f"))
TYPED = "Failed to deserialize the JSON body into the target type: "


def _call(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{**call("a", "f"), **changes}]}


def _without(holder: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in holder.items() if name != key}


def _bare(key: str) -> dict[str, Any]:
    made = call("a", "f")
    if key in made:
        return assistant("", _without(made, key))
    return assistant("", {**made, "function": _without(made["function"], key)})


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "call without result": (request(QUESTION, TWO), UNANSWERED),
    "one result of two": (request(QUESTION, TWO, tool("a", "")), UNANSWERED),
    "user before the result": (request(QUESTION, TWO, tool("a", ""), user("y"), tool("b", "")), UNANSWERED),
    "result without call": (request(QUESTION, RESULT), ORPHAN),
    "result of a call that is over": (request(QUESTION, ASKS, RESULT, assistant("y"), RESULT), ORPHAN),
    "result with a foreign id": (request(QUESTION, ASKS, tool("c", "")), ORPHAN),
    "two results": (
        request(QUESTION, ASKS, RESULT, RESULT),
        "Duplicate value for 'tool_call_id' of call_1 in message[3]",
    ),
    "reasoning left out once": (
        request(QUESTION, THINKS, RESULT, ASKS, RESULT),
        REASONING,
    ),
    "reasoning left out in thinking mode": (
        request(QUESTION, ASKS, RESULT, thinking={"type": "enabled"}),
        REASONING,
    ),
    "two calls with one id": (
        request(QUESTION, assistant("", call("a", "f"), call("a", "f")), tool("a", "")),
        "Invalid 'messages[1].tool_calls[1].id': 'a' names another call of this message already.",
    ),
    "arguments cut short": (
        request(QUESTION, _call(function={"name": "f", "arguments": '{"path": "no'}), tool("a", "")),
        "Invalid 'messages[1].tool_calls[0].function.arguments': expected a string that holds a JSON object.",
    ),
    "neither content nor calls": (
        request(QUESTION, {"role": "assistant", "content": None, "reasoning_content": "Hm."}),
        "Invalid assistant message: content or tool_calls must be set",
    ),
    "no messages": (request(), "Empty input messages"),
    "max_tokens of nothing": (
        request(QUESTION, max_tokens=0),
        "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]",
    ),
    "max_tokens of too many": (
        request(QUESTION, max_tokens=393_217),
        "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]",
    ),
    "a tool with a bad name": (
        request(QUESTION, tools=[{"type": "function", "function": {"name": "mcp.read"}}]),
        "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the pattern"
        " '^[a-zA-Z0-9_-]+$'.",
    ),
}
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "messages missing": ({"model": "m"}, "missing field `messages`"),
    "messages as text": (request() | {"messages": "x"}, 'messages: invalid type: string "x", expected a sequence'),
    "no model": ({"messages": [QUESTION]}, "missing field `model`"),
    "a message as text": (
        request() | {"messages": ["x"]},
        'messages[0]: invalid type: string "x", expected a map',
    ),
    "no role": (request({"content": "x"}), "messages[0]: missing field `role`"),
    "another vendor's role": (
        request({"role": "developer", "content": "x"}),
        "messages[0].role: unknown variant `developer`, expected one of `system`, `user`, `assistant`, `tool`",
    ),
    "no content": (request({"role": "user"}), "messages[0]: missing field `content`"),
    "content as an object": (
        request({"role": "user", "content": {}}),
        "messages[0]: data did not match any variant of untagged enum ChatCompletionRequestContent",
    ),
    "a part that is no text": (
        request({"role": "user", "content": [{"type": "image_url"}]}),
        "messages[0].content: unknown variant `image_url`, expected `text`",
    ),
    "a part without text": (
        request({"role": "user", "content": [{"type": "text"}]}),
        "messages[0]: missing field `text`",
    ),
    "no tool_call_id": (
        request(QUESTION, ASKS, {"role": "tool", "content": "x"}),
        "messages[2]: missing field `tool_call_id`",
    ),
    **{
        f"a call without {key}": (request(QUESTION, _bare(key), tool("a", "")), f"messages[1]: missing field `{key}`")
        for key in ("id", "type", "function", "name", "arguments")
    },
    "arguments as an object": (
        request(QUESTION, _call(function={"name": "f", "arguments": {}}), tool("a", "")),
        "messages[1]: invalid type: map, expected a string",
    ),
    "a call as text": (
        request(QUESTION, {**assistant(""), "tool_calls": ["f"]}),
        'messages[1]: invalid type: string "f", expected a map',
    ),
    "reasoning as a list": (
        request(QUESTION, {**assistant("x"), "reasoning_content": ["y"]}),
        "messages[1]: invalid type: sequence, expected a string",
    ),
    "a tool of another vendor": (
        request(QUESTION, tools=[{"type": "function", "name": "f"}]),
        "tools[0]: missing field `function`",
    ),
    "a tool without type": (request(QUESTION, tools=[{"function": {"name": "f"}}]), "tools[0]: missing field `type`"),
    "stream as a number": (request(QUESTION, stream=1), "stream: invalid type: integer `1`, expected a boolean"),
    "max_tokens as a boolean": (
        request(QUESTION, max_tokens=True),
        "max_tokens: invalid type: boolean `true`, expected u32",
    ),
}


@pytest.mark.parametrize("name", [*REFUSALS, *SHAPES])
def test_refuses(name: str) -> None:
    sent, message = (REFUSALS | SHAPES)[name]
    if name in SHAPES:
        message = f"{TYPED}{message} at line 1 column {len(json.dumps(sent, separators=(',', ':')))}"
    before = copy.deepcopy(sent)
    simulator = new(["never"])
    status, _, chunks = simulator.respond(sent)
    error = json.loads(b"".join(chunks))["error"]
    code = "invalid_request_error"
    assert (status, error) == (400, {"message": message, "type": code, "param": None, "code": code})
    assert sent == before and simulator.requests == [before] and simulator.usages == []
    assert said(ask(simulator, user("Go"))[1])["content"] == "never"


ACCEPTED: dict[str, dict[str, Any]] = {
    "an id that comes back": request(QUESTION, ASKS, RESULT, assistant("y"), user("z"), ASKS, RESULT, ASKS, RESULT),
    "results in another order": request(QUESTION, TWO, tool("b", ""), tool("a", "")),
    "empty reasoning": request(QUESTION, THINKS, RESULT, {**ASKS, "reasoning_content": ""}, RESULT),
    "no reasoning where there are no calls": request(QUESTION, THINKS, RESULT, assistant("y"), user("z")),
    "no reasoning outside thinking mode": request(
        QUESTION, THINKS, RESULT, ASKS, RESULT, thinking={"type": "disabled"}
    ),
    "no reasoning at all": request(QUESTION, ASKS, RESULT),
    "unknown keys": request({**QUESTION, "origin": "watchdog"}, seed=1, prompt_cache_key="x"),
    "text parts": request({"role": "user", "content": [{"type": "text", "text": "x"}]}),
    "an index left in a call": request(QUESTION, _call(index=0), tool("a", "")),
    "null options": request(QUESTION, tools=None, max_tokens=None, stream=None, thinking=None),
    "the most tokens": request(QUESTION, max_tokens=393_216),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str) -> None:
    status, _, chunks = new(["yes"], context_window=1_000_000).respond(ACCEPTED[name])
    body = json.loads(b"".join(chunks))
    assert status == 200, body
    assert said(body)["content"] == "yes"


def test_reasoning_that_the_model_showed_must_come_back() -> None:
    simulator = new(STORY)
    _, first = ask(simulator, QUESTION)
    status, body = ask(simulator, QUESTION, ASKS, RESULT)
    assert (status, body["error"]["message"]) == (400, REASONING)
    assert "messages[1] asks for tools, and came back without its `reasoning_content`" in body["agentlab"]["missing"]
    assert said(ask(simulator, QUESTION, said(first), RESULT)[1])["content"] == STORY[1]
    assert ask(new([ASKS, "x"]), QUESTION, ASKS, RESULT)[0] == 200


def test_a_prompt_that_does_not_fit_is_refused_with_the_vendors_words() -> None:
    words = user("word " * 100)
    size = len(render([READ], [words]))
    for limit in (0, 5):
        more = {"max_tokens": limit} if limit else {}
        status, body = ask(new(["x"], context_window=size + limit - 1), words, **more)
        assert (status, body["error"]) == (
            400,
            {
                "message": f"This model's maximum context length is {size + limit - 1} tokens. However, you requested"
                f" {size + limit} tokens ({size} in the messages, {limit} in the completion). Please reduce the length"
                " of the messages or completion.",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request_error",
            },
        )
        assert ask(new(["x"], context_window=size + limit), words, **more)[0] == 200


def test_broken_loops_get_the_same_hints() -> None:
    missing = []
    for shown in ([QUESTION, THINKS], [QUESTION, RESULT], [RESULT], [QUESTION]):
        simulator = new(STORY)
        ask(simulator, QUESTION)
        status, body = ask(simulator, *shown)
        missing.append((status, body["agentlab"]["missing"] if status == 400 else said(body)["content"]))
        assert said(ask(simulator, QUESTION, THINKS, RESULT)[1])["content"] == STORY[1]
    assert [status for status, _ in missing] == [400, 400, 400, 200]
    assert '{"role": "tool", "tool_call_id": "call_1", "content": ...}' in missing[0][1]
    assert "the result of call_1 (read_file), but not my message" in missing[1][1]
    assert missing[2][1].startswith("Your history was cut")
    assert "I can see neither my message nor its result" in missing[3][1]


def test_faults_have_the_vendors_body() -> None:
    statuses = [401, 402, 429, 500, 503]
    simulator = new([*(Fault(status=status) for status in statuses), "Hello"])
    answers = [ask(simulator, user("Go")) for _ in statuses]
    assert [status for status, _ in answers] == statuses
    assert [(body["error"]["message"], body["error"]["type"], body["error"]["code"]) for _, body in answers] == [
        ("Authentication Fails, Your api key: **** is invalid", "authentication_error", "invalid_request_error"),
        ("Insufficient Balance", "unknown_error", "invalid_request_error"),
        ("Rate limit reached", "rate_limit_reached_error", "invalid_request_error"),
        ("Internal Server Error", "internal_error", "invalid_request_error"),
        ("Service is too busy.", "service_unavailable_error", "invalid_request_error"),
    ]
    data = stream([Fault(error_after=3, step=THINKS)])
    assert list(json_events([data]))[-1]["error"]["message"] == "Internal Server Error" and b"[DONE]" not in data
    body = json.loads(b"".join(simulator.handle("POST", "/v1/chat/completions", b"{no json").chunks))
    assert body["error"]["message"].startswith("Failed to parse the request body as JSON: ")


# --- over both transports, and to the clients


def test_both_transports_give_the_bytes_of_the_core() -> None:
    sent = [request(QUESTION, stream=True), request(QUESTION, THINKS, RESULT)]
    core = new(STORY)
    expected = [b"".join(core.respond(each).chunks) for each in sent]

    async def posts(client: httpx.AsyncClient) -> list[bytes]:
        async with client:
            return [(await client.post("/chat/completions", json=each)).content for each in sent]

    here = httpx.AsyncClient(base_url="http://simulator", transport=new(STORY, chunk=7).transport())
    assert run(posts(here)) == expected
    with serve(new(STORY)) as server:
        assert run(posts(httpx.AsyncClient(base_url=server.url))) == expected


def test_the_official_sdk_streams_from_the_server() -> None:
    simulator = new([{**THINKS, "content": "Let me look. "}, "It says 4711. 🐙"], chunk=41)

    async def scene(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            asked: dict[str, Any] = {"model": "m", "tools": [READ]}
            thoughts, texts, calls, usage = "", "", [], None
            async for chunk in await client.chat.completions.create(messages=[QUESTION], stream=True, **asked):
                delta = chunk.choices[0].delta
                thoughts += getattr(delta, "reasoning_content", None) or ""
                texts += delta.content or ""
                calls += delta.tool_calls or []
                usage = chunk.usage
            assert (thoughts, texts) == ("It is in the file.", "Let me look. ")
            assert (calls[0].id, calls[0].function.name) == ("call_1", "read_file")
            assert "".join(piece.function.arguments for piece in calls) == '{"path":"notes.txt"}'
            assert usage is not None and usage.model_dump(exclude_none=True) == simulator.usages[0]
            sent = {**THINKS, "content": texts}
            second = await client.chat.completions.create(messages=[QUESTION, sent, RESULT], **asked)
            assert second.choices[0].message.content == "It says 4711. 🐙"
            for messages, words in (
                ([QUESTION, sent], UNANSWERED),
                ([QUESTION, RESULT], ORPHAN),
                ([QUESTION, _without(sent, "reasoning_content"), RESULT], REASONING),
            ):
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.chat.completions.create(messages=messages, **asked)
                assert refused.value.body["message"] == words
                assert (refused.value.param, refused.value.code) == (None, "invalid_request_error")

    with serve(simulator) as server:
        run(scene(server.url))


def test_our_client_is_never_refused_for_its_reasoning() -> None:
    """Whatever a loop dropped, or the model did not say, it sends an empty one, and that is accepted."""
    simulator = new([ASKS, THINKS, "Twice 4711."])

    async def scene() -> None:
        client = simulator.client()
        first = await client.complete([QUESTION], [READ])
        second = await client.complete([QUESTION, first, RESULT], [READ])
        assert (first, second) == (ASKS, THINKS)
        history = [QUESTION, first, RESULT, _without(second, "reasoning_content"), RESULT]
        assert (await client.complete(history, [READ]))["content"] == "Twice 4711."

    run(scene())
    calls = [message for message in simulator.requests[-1]["messages"] if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in calls] == ["", ""]
    assert ask(simulator, QUESTION, ASKS, RESULT)[1]["error"]["message"] == REASONING
