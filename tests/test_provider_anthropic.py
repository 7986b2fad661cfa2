"""Anthropic: blocks out, blocks in, compared with its own client where that is right, and better where it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2  # the HTTP library of anthropic's client
import pydantic
import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st
from strategies import torn_histories, whole_histories

from agentlab import jsonio
from agentlab.assemble import Assembler
from agentlab.cacheusage import read_usage
from agentlab.errors import (
    AgentLabError,
    ContextOverflow,
    ProviderRefused,
    ProviderUnavailable,
    RateLimited,
    StreamError,
)
from agentlab.loop import run_turn
from agentlab.messages import Message, assistant, call, canonical_json, tool, user
from agentlab.pairing import repair
from agentlab.permissions import Policy
from agentlab.prefix import assert_append_only
from agentlab.provider import ChatClient
from agentlab.provider.anthropic import Anthropic, AnthropicStream, convert
from agentlab.provider.dialect import RESTART
from agentlab.simulator import Simulator
from agentlab.simulator.anthropic_rules import breakpoints
from agentlab.simulator.cache import BreakpointCache
from agentlab.sse import json_events
from agentlab.tools import Registry
from agentlab.watchdog import LoopBudget

DATA = Path(__file__).parent.parent / "data" / "streams"
HELLO = [user("Hello")]


def recorded(name: str) -> bytes:
    """The bytes of a recorded stream; frames are put around bare payloads."""
    raw = (DATA / name).read_bytes()
    return raw if name.endswith(".sse") else frames(json.loads(line) for line in raw.splitlines())


def frames(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events
    )


def assembled(raw: bytes, cut: int = 0) -> Assembler:
    """What comes of the bytes in cuts of this size. Without HTTP, so that every size can be tried."""
    cut = cut or len(raw)
    stream, assembler = AnthropicStream(), Assembler()
    for event in json_events(raw[at : at + cut] for at in range(0, len(raw), cut)):
        for chunk in stream.feed(event):
            if RESTART in chunk:
                assembler = Assembler()
            else:
                assembler.feed(chunk)
        if stream.done:
            assembler.done()
    return assembler


def client(answer: bytes | tuple[int, Any], *, kind: str = "text/event-stream", requests: Any = None) -> ChatClient:
    def handle(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(request)
        if isinstance(answer, bytes):
            return httpx.Response(200, headers={"content-type": kind}, content=answer)
        return httpx.Response(answer[0], json=answer[1])

    made = {"base_url": "http://host", "model": "claude", "api_key": "sk-ant-0123456789", "dialect": "anthropic"}
    return ChatClient(**made, transport=httpx.MockTransport(handle))


def refused(answer: Any) -> Any:
    with pytest.raises(Exception) as caught:
        run(client(answer).complete(HELLO))
    return caught.value


# ---------------------------------------------------------------- recorded streams

USAGE = {
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "service_tier": "standard",
}
SERVER = {"inference_geo": "global", "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0}}


def a_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


EXPECTED: dict[str, tuple[Message, dict[str, Any], str]] = {
    "anthropic_tool_use.sse": (
        assistant(
            "Let me search for a tool that can provide current exchange rate information."
            "I found the right tool! Let me fetch the current USD to EUR exchange rate for you.",
            a_call(
                "toolu_01EFn5wTNBYA8Reni8rbmnHT",
                "get_exchange_rate",
                '{"from_currency": "USD", "to_currency": "EUR"}',
            ),
        ),
        {**USAGE, **SERVER, "input_tokens": 1591, "output_tokens": 175},
        "tool_calls",
    ),
    "anthropic_tool_no_args.chunks.jsonl": (
        assistant(
            "I'll update the issue list for you.", a_call("toolu_01QE1WLsSVp5hy5Q3GmGTmjP", "updateIssueList", "{}")
        ),
        {**USAGE, "input_tokens": 565, "output_tokens": 48},
        "tool_calls",
    ),
    "anthropic_spliced_message_start.chunks.jsonl": (  # the first attempt counts for nothing
        {
            **assistant("", a_call("toolu_second", "test-tool", '{"value":"Sparkle Day"}')),
            "reasoning_content": "Let me call the tool.",
            "thinking_blocks": [{"type": "thinking", "thinking": "Let me call the tool.", "signature": "sig-second"}],
        },
        {"input_tokens": 17, "output_tokens": 65},
        "tool_calls",
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_streams_at_every_cut(name: str) -> None:
    raw = recorded(name)
    for cut in [*range(1, 60), 100, 1000, 0]:
        result = assembled(raw, cut)
        assert (result.message(), result.usage, result.finish_reason) == EXPECTED[name]
        assert result.complete


def test_redacted_thinking_is_kept_as_it_came() -> None:
    raw = recorded("anthropic_redacted_thinking.sse")
    data = re.findall(rb'"redacted_thinking","data":"([^"]+)"', raw)
    for cut in (1, 7, 64, 0):
        result = assembled(raw, cut)
        message = result.message()
        assert message["thinking_blocks"] == [{"type": "redacted_thinking", "data": d.decode()} for d in data]
        assert len(data) == 2
        assert message["content"].startswith("I notice that you've sent what appears to be some kind of test string")
        assert message["content"].endswith("How can I assist you today with a legitimate task or question?")
        assert "reasoning_content" not in message
        assert "tool_calls" not in message
        assert (result.finish_reason, result.usage) == ("stop", {**USAGE, "input_tokens": 92, "output_tokens": 189})


def test_thinking_is_signed_and_the_servers_own_tools_are_left_out() -> None:
    raw = recorded("anthropic_thinking_server_tool.sse")
    for cut in (1, 7, 64, 0):
        result = assembled(raw, cut)
        message = result.message()
        (block,) = message["thinking_blocks"]
        assert block["thinking"] == message["reasoning_content"] == "Let me calculate this mathematical expression."
        assert block["signature"].startswith("EusBClsIDRgCKkBpzetW9oKOZtFP6IeFJJr3gnQBXqdZrYcRnwTL")
        assert "tool_calls" not in message
        assert message["content"].startswith("I'll calculate that expression for you right away!Following the standard")
        assert "| 1️⃣ | `6544 × 65464` |" in message["content"]
        assert "65465-6544" not in message["content"]  # the server's own command
        assert result.usage == {**USAGE, **SERVER, "input_tokens": 4714, "output_tokens": 304}
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("anthropic_*")))
def test_the_client_reads_the_same(name: str) -> None:
    async def main() -> None:
        reply = client(recorded(name)).stream(HELLO)
        texts = [text async for text in reply]
        expected = assembled(recorded(name))
        assert (reply.message(), reply.usage) == (expected.message(), expected.usage)
        assert (reply.finish_reason, reply.complete) == (expected.finish_reason, True)
        assert "".join(texts) == reply.message()["content"]

    run(main())


def test_every_beginning_of_a_stream_is_an_incomplete_reply() -> None:
    raw = recorded("anthropic_tool_use.sse")
    whole = assembled(raw).message()["content"]
    end = raw.index(b"event: message_delta")
    for at in range(0, end, 97):
        result = assembled(raw[:at].rpartition(b"\n\n")[0] + b"\n\n")
        assert not result.complete
        assert whole.startswith(result.message()["content"])


# ---------------------------------------------------------------- the vendor's own client as a second opinion


def seen_by_sdk(raw: bytes) -> Any:
    """The final message as anthropic's client puts it together."""

    def answer(request: Any) -> Any:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        anthropic.Anthropic(api_key="x", max_retries=0, http_client=http) as sdk,
        sdk.messages.stream(model="claude", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream,
    ):
        return stream.get_final_message()


def check_against_sdk(raw: bytes) -> None:
    theirs, ours = seen_by_sdk(raw), assembled(raw)
    message = ours.message()
    blocks = [block.to_dict() for block in theirs.content]
    assert message["content"] == "".join(b["text"] for b in blocks if b["type"] == "text")
    assert message.get("thinking_blocks", []) == [b for b in blocks if b["type"] in ("thinking", "redacted_thinking")]
    assert [
        (c["id"], c["function"]["name"], jsonio.loads(c["function"]["arguments"]))
        for c in message.get("tool_calls", [])
    ] == [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    assert ours.usage is not None
    assert ours.usage["input_tokens"] == theirs.usage.input_tokens
    assert ours.usage["output_tokens"] == theirs.usage.output_tokens
    reasons = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
    assert ours.finish_reason == reasons[theirs.stop_reason]


WELL_FORMED = [
    *("anthropic_tool_use.sse", "anthropic_thinking_server_tool.sse"),
    *("anthropic_redacted_thinking.sse", "anthropic_tool_no_args.chunks.jsonl"),
]


@pytest.mark.parametrize("name", WELL_FORMED)
def test_recorded_streams_agree_with_the_vendors_client(name: str) -> None:
    check_against_sdk(recorded(name))


def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Well-formed events: blocks of each kind, with their text in any pieces, and pings anywhere."""
    words = st.text('ab é😀\n"\\{}', max_size=12)
    usage = {"input_tokens": draw(st.integers(0, 99)), "output_tokens": 1}
    start = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "stop_sequence": None, "usage": usage}}
    ]
    kinds = draw(
        st.lists(st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use"]), min_size=1, max_size=5)
    )
    for index, kind in enumerate(kinds):
        text = draw(words)
        opening: dict[str, Any] = {"type": kind}
        deltas: list[dict[str, Any]] = []
        if kind == "text":
            opening["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces_of(draw, text)]
        elif kind == "thinking":
            opening |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces_of(draw, text)]
            deltas.append({"type": "signature_delta", "signature": f"sig{index}"})
        elif kind == "redacted_thinking":
            opening["data"] = "opaque" + text
        else:
            opening |= {"id": f"toolu_{index}", "name": "look", "input": {}}
            body = json.dumps(draw(st.dictionaries(words, words, max_size=2)))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces_of(draw, body)]]
        events.append({"type": "content_block_start", "index": index, "content_block": opening})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    reason = draw(st.sampled_from(["end_turn", "tool_use", "max_tokens"]))
    usage = {"output_tokens": draw(st.integers(0, 99))}
    events.append({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
    events.append({"type": "message_stop"})
    for at in draw(st.lists(st.integers(1, len(events)), max_size=3)):
        events.insert(at, {"type": "ping"})
    return events


@given(streams(), st.integers(1, 200))
def test_any_well_formed_stream_agrees_with_the_vendors_client(events: list[dict[str, Any]], cut: int) -> None:
    raw = frames(events)
    check_against_sdk(raw)
    assert assembled(raw, cut).message() == assembled(raw).message()


# ---------------------------------------------------------------- streams that are not well-formed


def opening(arguments: str, *, end: list[dict[str, Any]]) -> bytes:
    """A stream with one call whose arguments stop there."""
    start = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
    block = {"type": "tool_use", "id": "toolu_1", "name": "write_file", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": arguments}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return frames(
        [
            {"type": "message_start", "message": {**start, "stop_sequence": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            *end,
        ]
    )


def ending(reason: str) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]


def execute(raw: bytes) -> tuple[Any, list[Any], BaseException | None]:
    """Run one step of a turn on this stream: the turn, what ran, and what was raised."""
    ran: list[Any] = []
    registry = Registry()

    @registry.tool
    def write_file(path: str = "", text: str = "") -> str:
        ran.append((path, text))
        return "written"

    async def main() -> tuple[Any, list[Any], BaseException | None]:
        turn = run_turn(HELLO, client(raw), registry, policy=Policy(default="allow"), budget=LoopBudget(1))
        try:
            await turn.run()
        except StreamError as error:
            return turn, ran, error
        return turn, ran, None

    return run(main())


def test_the_vendors_client_takes_arguments_cut_short_for_none() -> None:
    """What we must not do. When this fails, their client has changed, and the remark about it can go."""
    theirs = seen_by_sdk(opening('{"path": "a', end=ending("max_tokens")))
    assert (theirs.content[0].input, theirs.stop_reason) == ({}, "max_tokens")


@pytest.mark.parametrize("arguments", ['{"path": "a', '{"path": "a", "text": "half', "{"])
@pytest.mark.parametrize("reason", ["max_tokens", "tool_use", "refusal", "model_context_window_exceeded"])
def test_arguments_cut_short_stay_raw_and_are_never_run(arguments: str, reason: str) -> None:
    raw = opening(arguments, end=ending(reason))
    result = assembled(raw)
    assert result.message()["tool_calls"][0]["function"]["arguments"] == arguments
    turn, ran, error = execute(raw)
    assert (ran, error) == ([], None)
    assert [m["role"] for m in turn.history] == ["user", "assistant", "tool"]
    assert turn.history[1]["tool_calls"][0]["function"]["arguments"] == "{}"  # what a provider takes


@pytest.mark.parametrize("arguments", ["", "{}", '{"path": "a"}'])
def test_a_call_at_the_length_limit_is_not_run_even_if_it_looks_whole(arguments: str) -> None:
    _, ran, _ = execute(opening(arguments, end=ending("max_tokens")))
    assert ran == []
    _, ran, _ = execute(opening(arguments, end=ending("tool_use")))
    assert ran == [("a" if "a" in arguments else "", "")]


@pytest.mark.parametrize("arguments", ["", "{}", '{"path": "a'])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_stream_that_just_ends_is_an_error_and_runs_nothing(arguments: str, kept: int) -> None:
    turn, ran, error = execute(opening(arguments, end=ending("tool_use")[:kept]))
    assert ran == []
    assert isinstance(error, StreamError)
    assert error.partial is not None
    assert error.partial["tool_calls"][0]["id"] == "toolu_1"
    assert turn.reason == "error"


def test_an_error_event_keeps_what_had_arrived() -> None:
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "So far."}}
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    caught = refused(frames([text, error]))
    assert type(caught) is StreamError
    assert "Overloaded" in str(caught)
    assert caught.partial == assistant("So far.")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_start", "index": 0, "content_block": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}},
        {"type": "content_block_start", "index": [], "content_block": {"type": "text"}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "message_delta"},
        {"type": "message_delta", "delta": {"stop_reason": {}}},
        {"type": "message_start", "message": 7},
    ],
)
def test_an_event_of_another_shape_is_an_error_that_keeps_the_text(event: dict[str, Any]) -> None:
    text = {"type": "content_block_start", "index": 9, "content_block": {"type": "text", "text": "So far."}}
    caught = refused(frames([text, event]))
    assert type(caught) is StreamError
    assert caught.partial == assistant("So far.")


def test_events_and_deltas_that_are_new_to_us_are_passed_over() -> None:
    raw = opening(
        "{}",
        end=[
            {"type": "news"},
            {"type": "content_block_start", "index": 5, "content_block": {"type": "hologram", "x": 1}},
            {"type": "content_block_delta", "index": 5, "delta": {"type": "hologram_delta", "x": 1}},
            {"type": "content_block_delta", "index": 6, "delta": {"type": "input_json_delta", "partial_json": "{"}},
            {"type": "content_block_stop", "index": 5},
            *ending("tool_use"),
        ],
    )
    assert assembled(raw).message() == assistant("", a_call("toolu_1", "write_file", "{}"))


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("something_new", "something_new"),
    ],
)
def test_reasons_to_end(reason: str, finish: str) -> None:
    assert assembled(opening("{}", end=ending(reason))).finish_reason == finish


def test_null_in_a_later_usage_erases_nothing() -> None:
    end = ending("tool_use")
    end[1]["usage"] = {"input_tokens": None, "output_tokens": 5, "cache_read_input_tokens": 3}
    assert assembled(opening("{}", end=end)).usage == {
        "input_tokens": 1,
        "output_tokens": 5,
        "cache_read_input_tokens": 3,
    }


def test_an_input_that_stands_in_the_opening_of_its_block_is_taken_once() -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"path": "a"}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    assert assembled(frames([start, *ending("tool_use")])).message() == assistant("", call("toolu_1", "look", path="a"))
    delta = {"type": "input_json_delta", "partial_json": '{"path":  "a"}'}
    events = [start, {"type": "content_block_delta", "index": 0, "delta": delta}, *ending("tool_use")]
    assert assembled(frames(events)).message() == assistant("", a_call("toolu_1", "look", '{"path":  "a"}'))


def test_a_new_start_forgets_blocks_that_were_still_open() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}
    opened = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}

    def thinks(words: str) -> dict[str, Any]:
        delta = {"type": "thinking_delta", "thinking": words}
        return {"type": "content_block_delta", "index": 0, "delta": delta}

    closed = {"type": "content_block_stop", "index": 0}
    events = [start, opened, thinks("first "), start, opened, thinks("second"), closed]
    assert assembled(frames(events)).message() == {
        **assistant(""),
        "reasoning_content": "second",
        "thinking_blocks": [{"type": "thinking", "thinking": "second"}],
    }
    late = [start, opened, thinks("first "), start, thinks("of no block"), closed]
    assert "thinking_blocks" not in assembled(frames(late)).message()


# ---------------------------------------------------------------- answers that are no stream


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, "prompt is too long: 213462 tokens > 200000 maximum", ContextOverflow),
        (
            400,
            "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease one",
            ContextOverflow,
        ),
        (400, "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens", ProviderRefused),
        (400, "messages.0.content.1: unexpected `tool_use_id` found in `tool_result` blocks: T1.", ProviderRefused),
        (413, "Request exceeds the maximum size", ProviderRefused),
        (429, "This request would exceed your rate limit: prompt is too long", RateLimited),
        (500, "Internal server error", ProviderUnavailable),
        (529, "Overloaded", ProviderUnavailable),
    ],
)
def test_refusals(status: int, error: str, kind: type) -> None:
    caught = refused((status, {"type": "error", "error": {"type": "t", "message": error}, "request_id": "req_1"}))
    assert type(caught) is kind
    assert caught.status == status
    assert error in str(caught)


def test_an_answer_that_is_not_streamed() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "One. "},
        {"type": "server_tool_use", "id": "srv", "name": "web", "input": {}},
        {"type": "text", "text": "Two."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"path": "a"}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    ]
    body = {"type": "message", "content": blocks, "stop_reason": "tool_use", "usage": {"input_tokens": 4}}

    async def main() -> None:
        reply = client(json.dumps(body).encode(), kind="application/json").stream(HELLO)
        assert [text async for text in reply] == ["One. Two."]
        assert reply.message() == {
            **assistant("One. Two.", call("toolu_1", "look", path="a"), call("toolu_2", "now")),
            "reasoning_content": "hm",
            "thinking_blocks": blocks[:1],
        }
        assert (reply.finish_reason, reply.usage, reply.complete) == ("tool_calls", {"input_tokens": 4}, True)

    run(main())


# ---------------------------------------------------------------- what is sent


@pytest.mark.parametrize("base", ["http://host", "http://host/v1", "http://host/v1/"])
def test_the_request(base: str) -> None:
    requests: list[httpx.Request] = []
    made = client(recorded("anthropic_tool_no_args.chunks.jsonl"), requests=requests)
    made.base_url = base.rstrip("/")
    registry = Registry()

    @registry.tool
    def look(path: str) -> str:
        """Look at it."""
        return ""

    run(made.complete([{"role": "system", "content": "Be short."}, *HELLO], registry.specs()))
    (request,) = requests
    assert str(request.url) == "http://host/v1/messages"
    assert request.headers["x-api-key"] == "sk-ant-0123456789"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers
    mark = {"cache_control": {"type": "ephemeral"}}
    assert json.loads(request.content) == {
        "model": "claude",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": "Be short.", **mark}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **mark}]}],
        "tools": [
            {
                "name": "look",
                "description": "Look at it.",
                "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
                **mark,
            }
        ],
        "stream": True,
    }


def test_what_is_not_there_is_left_out() -> None:
    body = Anthropic().body("m", HELLO, [])
    assert set(body) == {"model", "max_tokens", "messages", "stream"}
    bare = Anthropic(None).body("m", HELLO, [{"type": "function", "function": {"name": "now"}}])
    assert bare["tools"] == [{"name": "now", "description": "", "input_schema": {"type": "object", "properties": {}}}]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_history_becomes_blocks() -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    history = [
        {"role": "system", "content": "Be short."},
        {"role": "developer", "content": [text("Be "), text("kind.")]},
        {**user("Look."), "origin": "compaction"},
        {**assistant("I look.", call("a", "look", path="x"), call("b", "look")), "thinking_blocks": [block]},
        tool("a", "seen x"),
        {"role": "tool", "tool_call_id": "b", "content": [text("seen "), text("b")]},
        user("And now?"),
        user("Quick!"),
        {**assistant("Now."), "reasoning_content": "hm"},
        {"role": "system", "content": "A late note."},
    ]
    before = canonical_json(history)
    system, messages = convert(history)
    assert system == "Be short.\n\nBe kind."
    assert messages == [
        {"role": "user", "content": [text("Look.")]},
        {
            "role": "assistant",
            "content": [
                block,
                text("I look."),
                {"type": "tool_use", "id": "a", "name": "look", "input": {"path": "x"}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "seen x"},
                {"type": "tool_result", "tool_use_id": "b", "content": "seen b"},
                text("And now?"),
                text("Quick!"),
            ],
        },
        {"role": "assistant", "content": [text("Now.")]},
        {"role": "user", "content": [text("A late note.")]},
    ]
    assert canonical_json(history) == before


def test_blank_text_is_left_out_everywhere() -> None:
    history = [
        {"role": "system", "content": ""},
        user("  \n"),
        user("Go."),
        assistant(""),
        assistant(" ", call("a", "look")),
        tool("a", ""),
        {"role": "user", "content": [text(""), text("So?"), {"type": "text", "text": None}]},
        {"role": "user", "content": None},
    ]
    system, messages = convert(history)
    assert system == ""
    assert messages == [
        {"role": "user", "content": [text("Go.")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": ""}, text("So?")]},
    ]


def ids(history: list[Message]) -> list[tuple[str, str]]:
    """(kind, id) of every call and result as it is sent."""
    return [
        (block["type"], block.get("id") or block["tool_use_id"])
        for message in convert(history)[1]
        for block in message["content"]
        if block["type"] in ("tool_use", "tool_result")
    ]


def test_ids_that_recur_get_one_of_their_own() -> None:
    turn = [user("Go."), assistant("", call("call_0", "look")), tool("call_0", "x"), assistant("Done.")]
    assert ids(turn * 3) == [
        *[("tool_use", "call_0"), ("tool_result", "call_0")],
        *[("tool_use", "call_0_2"), ("tool_result", "call_0_2")],
        *[("tool_use", "call_0_3"), ("tool_result", "call_0_3")],
    ]


def test_an_id_that_looks_like_ours_is_no_trap() -> None:
    def turn(*names: str) -> list[Message]:
        return [user("Go."), assistant("", *(call(n, "look") for n in names)), *(tool(n, n) for n in names)]

    sent = ids([*turn("a"), *turn("a_2"), *turn("a"), *turn("a_2", "a")])
    uses = [id for kind, id in sent if kind == "tool_use"]
    assert len(set(uses)) == len(uses)
    assert [id for kind, id in sent if kind == "tool_result"] == uses
    assert uses[:2] == ["a", "a_2"]


def test_ids_that_the_api_refuses_are_cleaned_and_stay_apart() -> None:
    names = ["fc:1", "fc.1", "", "é", "\ud800", "functions.look:0", "fine-1"]
    history = [user("Go."), assistant("", *(call(n, "look") for n in names)), *(tool(n, n) for n in names)]
    sent = ids(history)
    uses = [id for kind, id in sent if kind == "tool_use"]
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", id) for id in uses)
    assert len(set(uses)) == len(names)
    assert uses[-1] == "fine-1"
    assert [id for kind, id in sent if kind == "tool_result"] == uses
    assert ids(history) == sent  # the same every time


def test_one_id_for_ever_takes_linear_time() -> None:
    history = [
        message for _ in range(20_000) for message in (assistant("", call("call_0", "look")), tool("call_0", "x"))
    ]
    assert len({id for _, id in ids(history)}) == 20_000  # a hang guard: comparing each with each takes minutes


def test_one_id_twice_in_one_message_is_two_calls_with_a_result_each() -> None:
    history = [
        user("Go."),
        assistant("", call("a", "look"), call("a", "look")),
        tool("a", "first"),
        tool("a", "second"),
    ]
    assert ids(history) == [("tool_use", "a"), ("tool_use", "a_2"), ("tool_result", "a"), ("tool_result", "a_2")]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "null", "7", None, 7, ["x"]])
def test_arguments_that_are_no_object_become_an_empty_one(arguments: Any) -> None:
    made = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    assert convert([user("Go."), assistant("", made)])[1][1]["content"][0]["input"] == {}


def blocks(history: list[Message]) -> list[str]:
    system, messages = convert(history)
    return [system, *(canonical_json([m["role"], block]) for m in messages for block in m["content"])]


def accepted(history: list[Message]) -> bool:
    """Whether Anthropic takes this history."""
    look = [{"type": "function", "function": {"name": "run"}}]
    body = Anthropic().body("m", [*history, user("Go on.")], look)
    return Simulator(lambda _: "Fine.", dialect="anthropic").respond({**body, "stream": False}).status == 200


@given(whole_histories(max_turns=4))
def test_a_growing_history_keeps_its_beginning(history: list[Message]) -> None:
    """Whatever is appended: what was sent before is sent again, block for block, and the prompt cache holds."""
    whole = blocks(history)
    for cut in range(len(history) + 1):
        part = blocks(history[:cut])
        if len(part) > 1:
            assert part == whole[: len(part)]


@given(whole_histories(max_turns=4) | torn_histories())
def test_the_api_takes_every_repaired_history(history: list[Message]) -> None:
    mended = repair(history).history
    sent = [id for kind, id in ids(mended) if kind == "tool_use"]
    assert len(set(sent)) == len(sent)
    assert accepted(mended)


def test_thinking_goes_back_as_it_came() -> None:
    message = assembled(recorded("anthropic_thinking_server_tool.sse")).message()
    sent = convert([user("Go."), message])[1][1]["content"]
    assert sent[0] == message["thinking_blocks"][0]
    assert sent[1] == text(message["content"])
    redacted = assembled(recorded("anthropic_redacted_thinking.sse")).message()
    sent = convert([user("Go."), redacted])[1][1]["content"]
    assert [block["type"] for block in sent] == ["redacted_thinking", "redacted_thinking", "text"]


# ---------------------------------------------------------------- marks for the prompt cache

LOOK = [{"type": "function", "function": {"name": "run"}}]
SYSTEM = {"role": "system", "content": "Be short."}


def unmarked(value: Any) -> Any:
    """The value without any mark."""
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


def marks(body: dict[str, Any]) -> list[str]:
    """What is marked, in the order of the prompt: a tool's name, or a block's text or id."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    system = body["system"] if isinstance(body.get("system"), list) else []
    return [
        str(block.get("name") or block.get("text") or block.get("tool_use_id"))
        for block in [*body.get("tools", []), *system, *blocks]
        if "cache_control" in block
    ]


def asked(history: list[Message]) -> list[list[Message]]:
    """The history as it was sent for each answer in it, and once more at its end."""
    cuts = [index for index, message in enumerate(history) if message["role"] == "assistant"]
    ends = [cut for cut in [*cuts, len(history)] if cut and history[cut - 1]["role"] in ("user", "tool")]
    return [history[:end] for end in ends]


def test_the_last_tool_the_system_prompt_and_two_ends_are_marked() -> None:
    batch = [assistant("", call("a", "run"), call("b", "run")), tool("a", "A"), tool("b", "B")]
    history = [SYSTEM, user("One"), *batch, assistant("Two"), user("Three"), user("Four")]
    tools = [{"type": "function", "function": {"name": name}} for name in ("read", "run")]
    sent = [marks(Anthropic().body("m", part, tools)) for part in asked(history)]
    assert sent == [
        ["run", "Be short.", "One"],
        ["run", "Be short.", "One", "b"],
        ["run", "Be short.", "b", "Four"],
    ]


@pytest.mark.parametrize(
    ("ttl", "mark"), [("5m", {"type": "ephemeral"}), ("1h", {"type": "ephemeral", "ttl": "1h"}), (None, None)]
)
def test_the_lifetime_is_a_choice_and_off_is_one(ttl: Any, mark: Any) -> None:
    simulator = Simulator(["Hi."], dialect="anthropic")
    made = {"base_url": "http://s/v1", "api_key": "k", "model": "m", "dialect": "anthropic"}
    run(ChatClient(**made, transport=simulator.transport(), cache_ttl=ttl).complete([SYSTEM, *HELLO], LOOK))
    (body,) = simulator.requests
    blocks = [body["tools"][0], body["messages"][0]["content"][0], *([body["system"][0]] if mark else [])]
    assert [block.get("cache_control") for block in blocks] == [mark] * len(blocks)
    if ttl is None:
        assert body["system"] == "Be short."
        assert breakpoints(body) == 0


def test_another_lifetime_is_refused_at_once() -> None:
    bad: Any = "2h"
    with pytest.raises(AgentLabError, match="'5m' or '1h', not '2h'"):
        ChatClient(base_url="http://s", model="m", dialect="anthropic", cache_ttl=bad)


def test_marks_of_ones_own_stay_and_are_the_only_ones() -> None:
    own = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    words = {"role": "user", "content": [{**text("A long book."), **own}, text("Sum it up.")]}
    assert marks(Anthropic().body("m", [SYSTEM, words], LOOK)) == ["A long book."]
    for options in (own, {"system": [{**text("Be kind."), **own}]}, {"tools": [{"name": "x", **own}]}):
        requests: list[httpx.Request] = []
        made = client(recorded("anthropic_tool_no_args.chunks.jsonl"), requests=requests)
        made = ChatClient(
            base_url="http://h", model="m", dialect="anthropic", options=options, transport=made._transport
        )
        run(made.complete([SYSTEM, *HELLO], LOOK))
        assert breakpoints(json.loads(requests[0].content)) == 1


def test_what_the_api_wants_no_mark_on_gets_none() -> None:
    history = [user("Go."), assistant("", call("a", "run"), call("b", "run")), tool("a", "seen"), tool("b", "")]
    assert marks(Anthropic().body("m", history, [])) == ["Go.", "a"]
    assert marks(Anthropic().body("m", [user("Go."), assistant("", call("a", "run")), tool("a", "")], [])) == ["Go."]
    thought = {**assistant(""), "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    assert marks(Anthropic().body("m", [user("Go."), thought], [])) == ["Go."]
    assert marks(Anthropic().body("m", [{**SYSTEM, "content": " \n"}, user("Go.")], [])) == ["Go."]
    assert marks(Anthropic().body("m", [], [])) == []


@given(
    whole_histories(max_turns=4) | torn_histories().map(lambda torn: repair(torn).history), st.sampled_from([[], LOOK])
)
def test_marks_are_at_most_four_and_change_no_content(history: list[Message], tools: list[dict[str, Any]]) -> None:
    before = canonical_json(history)
    body, plain = (Anthropic(ttl).body("m", history, tools) for ttl in ("5m", None))
    assert breakpoints(body) <= 4
    if system := plain.get("system"):
        plain["system"] = [text(system)]
    assert unmarked(body) == plain
    assert canonical_json(history) == before


@given(whole_histories(max_turns=4))
def test_each_request_reads_all_that_the_one_before_had_marked(history: list[Message]) -> None:
    simulator = Simulator(lambda _: "Fine.", dialect="anthropic", cache=BreakpointCache(minimum=1))
    kept = 0
    for part in asked(history):
        run(simulator.client().complete(part, LOOK))
        usage = read_usage(simulator.usages[-1])
        assert usage.hit == kept
        assert usage.prompt - usage.hit - usage.written == 1, "only the mark that opens the reply"
        kept = usage.hit + usage.written
    assert_append_only(simulator.requests)


def long_session(*widths: int) -> tuple[Simulator, Any]:
    """One turn on the simulator: a step for each width, with so many calls at once, and the last words."""
    steps: list[Any] = [
        assistant(f"Step {n}.", *(call(f"c{n}_{i}", "read", path=f"{n}/{i}.txt") for i in range(width)))
        for n, width in enumerate(widths)
    ]
    simulator = Simulator([*steps, "All read."], dialect="anthropic", cache=BreakpointCache())
    registry = Registry()

    @registry.tool(read_only=True)
    def read(path: str) -> str:
        """Read a file."""
        return f"{path}: " + "a line of it. " * 20

    system = {"role": "system", "content": "You read files and say what is in them. " * 200}
    budget = LoopBudget(base_steps=len(widths) + 2)
    turn = run_turn([system, user("Read it all.")], simulator.client(), registry, budget=budget)
    return simulator, run(turn.run())


def test_a_long_session_is_read_from_the_cache() -> None:
    simulator, turn = long_session(*[1, 3, 2] * 10, 45, 2, 21, 1)
    assert turn.reason == "done"
    assert len(simulator.requests) == 35
    usages = [read_usage(usage) for usage in turn.usages]
    for before, now in pairwise(usages):
        assert now.hit == before.prompt - 1, "all of the request before but the mark that opens the reply"
    later = usages[1:]
    assert sum(usage.hit for usage in later) / sum(usage.prompt for usage in later) > 0.9, "the rest is new"
    assert all(breakpoints(body) == 4 for body in simulator.requests[1:])
    assert_append_only(simulator.requests)


def test_a_step_of_many_results_loses_nothing() -> None:
    """More new blocks than a mark looks back over: with the newest end alone only the system prompt would be found."""
    simulator, turn = long_session(2, 40, 2)
    before, now = (read_usage(turn.usages[at]) for at in (1, 2))
    assert now.hit == before.prompt - 1
    alone = Simulator(lambda _: "Fine.", dialect="anthropic", cache=BreakpointCache())
    for body in simulator.requests[1:3]:
        last = json.loads(json.dumps(body))
        end = last["messages"].pop()
        last["messages"] = [*unmarked(last["messages"]), end]
        assert alone.respond({**last, "stream": False}).status == 200
    found = read_usage(alone.usages[1])
    assert 0 < found.hit < before.prompt - 1


def seen_by_simulator_from_sdk(body: dict[str, Any]) -> tuple[Any, Any]:
    """The body as anthropic's own client sends it, and the message that it makes of the simulator's answer."""
    simulator = Simulator(lambda _: "Fine.", dialect="anthropic", cache=BreakpointCache(minimum=1))

    def answer(request: httpx2.Request) -> httpx2.Response:
        status, headers, chunks = simulator.handle("POST", request.url.path, request.read(), dict(request.headers))
        return httpx2.Response(status, headers=headers, content=b"".join(chunks))

    arguments = {key: value for key, value in body.items() if key != "stream"}
    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        anthropic.Anthropic(api_key="x", max_retries=0, http_client=http) as sdk,
        sdk.messages.stream(**arguments) as stream,
    ):
        message = stream.get_final_message()
    return simulator.requests[0], message


@pytest.mark.parametrize("ttl", ["5m", "1h", None])
def test_the_vendors_client_sends_the_same_request(ttl: Any) -> None:
    history = [SYSTEM, user("Go."), assistant("I look.", call("a", "run", path="é")), tool("a", "seen"), user("And?")]
    body = Anthropic(ttl).body("claude", history, LOOK)
    theirs, message = seen_by_simulator_from_sdk(body)
    assert canonical_json(theirs) == canonical_json(body)
    assert message.content[0].text == "Fine."
    written = message.usage.cache_creation
    size = {"5m": (written.ephemeral_5m_input_tokens, 0), "1h": (0, written.ephemeral_1h_input_tokens), None: (0, 0)}
    assert (written.ephemeral_5m_input_tokens, written.ephemeral_1h_input_tokens) == size[ttl]
    assert message.usage.cache_creation_input_tokens == sum(size[ttl])
    assert bool(ttl) == (sum(size[ttl]) > 0)


def as_lists(value: Any) -> Any:
    """Plain data again: pydantic reads an iterable lazily."""
    if isinstance(value, dict):
        return {key: as_lists(inner) for key, inner in value.items()}
    return value if isinstance(value, str | int | float | None) else [as_lists(inner) for inner in value]


PARAMS = pydantic.TypeAdapter(MessageCreateParamsStreaming)


@given(whole_histories(max_turns=3), st.sampled_from(["5m", "1h", None]))
def test_the_vendors_types_know_every_field_that_is_sent(history: list[Message], ttl: Any) -> None:
    """Reading with their types drops what they do not know, so nothing may be missing afterwards."""
    body = Anthropic(ttl).body("claude", history, LOOK)
    assert as_lists(PARAMS.validate_python(body)) == body
