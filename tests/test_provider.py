"""The client against the outside world: one request out, and one clear error for everything that can go wrong."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from clean_run import run
from hypothesis import example, given
from hypothesis import strategies as st

from agentlab.errors import (
    AgentLabError,
    ContextOverflow,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    RateLimited,
    StopRequested,
    StreamError,
)
from agentlab.interrupt import Stop
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.provider import ChatClient
from agentlab.provider.dialect import error_of
from agentlab.simulator import Fault, Simulator
from agentlab.tools import Registry

DATA = Path(__file__).parent.parent / "data" / "streams"
HELLO = [user("Hello")]
KEY = "sk-test/Zz0123456789+abc"


class Stream(httpx.AsyncByteStream):
    """A body in chunks that ends, breaks or hangs, and knows whether it was closed."""

    def __init__(self, *chunks: bytes, end: Exception | str = "") -> None:
        self.chunks, self.end, self.closed, self.given = chunks, end, False, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            await asyncio.sleep(0)
            if self.closed:
                return
            self.given += 1
            yield chunk
        if isinstance(self.end, Exception):
            raise self.end
        if self.end == "hang":
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


class Server(httpx.AsyncBaseTransport):
    """Answers every request alike, and keeps the requests."""

    def __init__(self, answer: Any, **headers: str) -> None:
        self.answer, self.headers = answer, {name.replace("_", "-"): value for name, value in headers.items()}
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answer
        if answer == "hang":
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.AsyncByteStream):
            return httpx.Response(200, headers={"content-type": "text/event-stream", **self.headers}, stream=answer)
        status, body = answer
        if isinstance(body, bytes | str):
            return httpx.Response(status, headers=self.headers, content=body)
        return httpx.Response(status, headers=self.headers, json=body)

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)


def client(answer: Any, headers: dict[str, str] | None = None, **options: Any) -> ChatClient:
    transport = answer if isinstance(answer, Server) else Server(answer, **(headers or {}))
    return ChatClient(**{"base_url": "http://host/v1", "model": "m", "transport": transport, **options})


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}).encode() + b"\n\n"
    )


FINE = (delta(content="Fi"), delta(content="ne."), delta("stop"), b"data: [DONE]\n\n")


def ask(answer: Any, headers: dict[str, str] | None = None, /, *, history: Any = HELLO, **options: Any) -> Message:
    return run(client(answer, headers, **options).complete(history))


def refused(answer: Any, headers: dict[str, str] | None = None, /, **options: Any) -> Any:
    """The error that comes of it."""
    with pytest.raises(AgentLabError) as caught:
        ask(answer, headers, **options)
    return caught.value


# ---------------------------------------------------------------- from the environment

ENV = {"AGENT_BASE_URL": "https://api.example.org/v1", "AGENT_MODEL": "m-1", "AGENT_API_KEY": KEY}


def test_the_environment_describes_a_client() -> None:
    made = ChatClient.from_env(ENV)
    assert (made.base_url, made.model, made.dialect) == ("https://api.example.org/v1", "m-1", "openai")
    assert KEY not in repr(made)
    assert "m-1" in repr(made)


@pytest.mark.parametrize("missing", [["AGENT_BASE_URL"], ["AGENT_MODEL"], ["AGENT_BASE_URL", "AGENT_MODEL"]])
@pytest.mark.parametrize("empty", [True, False])
def test_missing_variables_are_named(missing: list[str], empty: bool) -> None:
    env = {name: value for name, value in ENV.items() if name not in missing}
    if empty:
        env |= dict.fromkeys(missing, "")
    with pytest.raises(AgentLabError) as caught:
        ChatClient.from_env(env)
    for name in ("AGENT_BASE_URL", "AGENT_MODEL"):
        assert (name in str(caught.value)) is (name in missing)
    assert KEY not in str(caught.value)


def test_no_key_is_needed() -> None:
    made = ChatClient.from_env({name: ENV[name] for name in ("AGENT_BASE_URL", "AGENT_MODEL")})
    assert made.model == "m-1"


@pytest.mark.parametrize(
    ("url", "dialect", "expected"),
    [
        ("https://api.openai.com/v1", "", "openai"),
        ("https://api.anthropic.com", "", "anthropic"),
        ("https://API.DeepSeek.com", "", "deepseek"),
        ("http://127.0.0.1:8080/v1", "", "openai"),
        ("http://localhost:8080/anthropic/v1", "", "openai"),
        ("http://localhost:8080", "anthropic", "anthropic"),
    ],
)
def test_the_dialect_is_told_or_guessed_from_the_host(url: str, dialect: str, expected: str) -> None:
    assert ChatClient.from_env({**ENV, "AGENT_BASE_URL": url, "AGENT_DIALECT": dialect}).dialect == expected


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AgentLabError, match="openai, deepseek, anthropic"):
        ChatClient.from_env({**ENV, "AGENT_DIALECT": "klingon"})


@pytest.mark.parametrize(
    "url", ["api.openai.com/v1", "ftp://host/v1", "http://", "http://[::1", "http://h:99999/v1", "/v1", " "]
)
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(AgentLabError, match="AGENT_BASE_URL"):
        ChatClient.from_env({**ENV, "AGENT_BASE_URL": url})


@pytest.mark.parametrize("url", [f"https://me:{KEY}@host/v1", f"https://host/v1?key={KEY}", f"https://host/v1#{KEY}"])
def test_a_key_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(AgentLabError, match="AGENT_") as caught:
        ChatClient.from_env({**ENV, "AGENT_BASE_URL": url})
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", ["sk-ümlaut-0123456789", "sk-0123\n456789", "sk-0123\x00456789"])
def test_a_key_that_fits_no_header_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(AgentLabError, match="AGENT_API_KEY") as caught:
        ChatClient.from_env({**ENV, "AGENT_API_KEY": key})
    assert key[:5] not in str(caught.value)


# ---------------------------------------------------------------- what is sent


def test_a_request_has_everything_and_nothing_else() -> None:
    registry = Registry()

    @registry.tool
    def look(path: str) -> str:
        """Look."""
        return ""

    history = [
        {"role": "system", "content": "Be short."},
        {**user("Hello"), "origin": "compaction"},
        {**assistant("", call("c1", "look", path="a")), "reasoning_content": "hm", "thinking_blocks": [{}]},
        {"role": "tool", "tool_call_id": "c1", "content": "b", "origin": "repair"},
    ]
    before = json.dumps(history)
    server = Server(Stream(*FINE))
    run(client(server, base_url="http://host/v1/", api_key=f" {KEY}\r\n").complete(history, registry.specs()))
    (request,) = server.requests
    assert (request.method, str(request.url)) == ("POST", "http://host/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert server.body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be short."},
            user("Hello"),
            assistant("", call("c1", "look", path="a")),
            {"role": "tool", "tool_call_id": "c1", "content": "b"},
        ],
        "tools": registry.specs(),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert json.dumps(history) == before


def test_what_is_not_there_is_left_out() -> None:
    server = Server(Stream(*FINE))
    run(client(server).complete(HELLO))
    assert "tools" not in server.body
    assert "authorization" not in server.requests[0].headers


def test_options_are_added_to_every_body() -> None:
    server = Server(Stream(*FINE))
    options = {"temperature": 0, "model": "other", "stream_options": {"include_usage": False}}
    made = client(server, options=options)
    options["temperature"] = 1  # too late
    run(made.complete(HELLO))
    assert (server.body["temperature"], server.body["model"]) == (0, "other")
    assert server.body["stream_options"] == {"include_usage": False}
    assert server.body["messages"] == HELLO


@given(st.text(st.characters(codec=None), max_size=20) | st.sampled_from(["\ud800", "😀\udfff", "\x00", "\u2028"]))
def test_any_text_can_be_sent(text: str) -> None:
    server = Server(Stream(*FINE))
    run(client(server).complete([user(text)]))
    server.requests[0].content.decode()  # UTF-8, strictly
    assert server.body["messages"][0]["content"] == re.sub("[\ud800-\udfff]", "\ufffd", text)  # vendors refuse halves


@pytest.mark.parametrize(("given_s", "connect"), [(None, 15), (0.5, 0.5), (300, 15)])
def test_the_time_limits(given_s: float | None, connect: float) -> None:
    server = Server(Stream(*FINE))
    run(client(server, **({"timeout": given_s} if given_s else {})).complete(HELLO))
    silence = given_s or 120
    limits = {"connect": connect, "read": silence, "write": silence, "pool": silence}
    assert server.requests[0].extensions["timeout"] == limits


def test_nothing_is_sent_before_the_reply_is_read() -> None:
    async def main() -> None:
        server = Server(Stream(*FINE))
        reply = client(server).stream(HELLO)
        await asyncio.sleep(0)
        assert server.requests == []
        assert (reply.message(), reply.usage, reply.finish_reason, reply.complete) == (assistant(""), None, None, False)
        await reply.aclose()
        assert server.requests == []

    run(main())


def test_a_client_may_be_used_on_another_loop() -> None:
    made = client(Server((200, json.loads(json.dumps({"choices": [{"message": assistant("Fine.")}]})))))
    assert [run(made.complete(HELLO))["content"] for _ in range(2)] == ["Fine.", "Fine."]


# ---------------------------------------------------------------- what comes back


def test_a_stream_is_read_piece_by_piece() -> None:
    async def main() -> None:
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        stream = Stream(*FINE[:-1], last, FINE[-1])
        reply = client(stream).stream(HELLO)
        texts = []
        async for text in reply:
            texts.append(text)
            assert reply.message() == assistant("".join(texts))
        assert texts == ["Fi", "ne."]
        assert (reply.finish_reason, reply.usage, reply.complete) == ("stop", usage, True)
        assert stream.closed

    run(main())


@pytest.mark.parametrize(
    "kind", ["text/event-stream; charset=utf-8", "TEXT/EVENT-STREAM", "", "application/octet-stream"]
)
def test_an_event_stream_is_read_whatever_it_calls_itself(kind: str) -> None:
    assert ask(Stream(*FINE), {"content_type": kind}) == assistant("Fine.")


@pytest.mark.parametrize("cut", [1, 2, 7, 64])
def test_where_the_network_cuts_does_not_matter(cut: int) -> None:
    raw = (DATA / "openai_parallel_tools.sse").read_bytes()
    chunks = [raw[at : at + cut] for at in range(0, len(raw), cut)]
    assert ask(Stream(*chunks)) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": c["id"], "type": "function", "function": c["function"]}
            for c in [
                {"id": "call_3rqTYrA6H21AYUaRGP4F66oq", "function": {"name": "get_country", "arguments": "{}"}},
                {"id": "call_Xw9XMKBJU48kAAd78WgIswDx", "function": {"name": "get_product_name", "arguments": "{}"}},
            ]
        ],
    }


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_a_server_that_does_not_stream_is_understood(kind: str) -> None:
    async def main() -> None:
        usage = {"prompt_tokens": 3}
        message = assistant("Let me look.", call("c1", "look", path="a"))
        body = {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        }
        reply = client((200, {**body, "usage": usage}), {"content_type": kind}).stream(HELLO)
        assert [text async for text in reply] == ["Let me look."]
        assert (reply.message(), reply.usage, reply.finish_reason) == (message, usage, "tool_calls")
        assert reply.complete

    run(main())


@pytest.mark.parametrize("dialect", ["openai", "deepseek", "anthropic"])
@pytest.mark.parametrize(
    "body",
    [
        {"status": "ok"},
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": "none"},
        {"choices": [{"text": "an old completion"}]},
        {"content": None},
        {"content": "text"},
        {"content": [{"type": "text"}]},
        {"error": {"message": "overloaded"}},
        {"type": "error", "error": "overloaded"},
        b"",
        b"[]",
        b"null",
        b"not JSON",
        b"\xff\xfe",
    ],
)
def test_json_that_is_no_reply_is_an_error_and_never_an_empty_answer(body: Any, dialect: str) -> None:
    error = refused((200, body), {"content_type": "application/json"}, dialect=dialect)
    assert type(error) is StreamError
    assert error.partial is None
    if isinstance(body, dict) and "error" in body:
        assert "reported an error" in str(error)
        assert "overloaded" in str(error)


@pytest.mark.parametrize("kind", ["text/html", "Text/HTML; charset=utf-8"])
def test_a_web_page_means_a_wrong_url(kind: str) -> None:
    error = refused((200, "<html>Welcome</html>"), {"content_type": kind})
    assert type(error) is ProviderRefused
    assert "AGENT_BASE_URL" in str(error)
    assert "Welcome" not in str(error)


@pytest.mark.parametrize("name", ["openrouter_error_in_chunk.sse", "groq_error_event.sse"])
def test_recorded_errors_inside_a_stream_are_raised(name: str) -> None:
    error = refused(Stream((DATA / name).read_bytes()))
    assert type(error) is StreamError
    assert "reported an error inside the stream: " in str(error)
    assert error.partial is not None
    assert error.partial.get("reasoning_content")


@pytest.mark.parametrize(
    "end",
    [b"", b"data: {broken\n\n", b"data: <html>\n\n", b": only a comment\n\n", b'data: {"choices":[{"delta":7}]}\n\n'],
)
def test_a_stream_that_does_not_end_as_it_should_is_an_error_that_keeps_the_text(end: bytes) -> None:
    error = refused(Stream(*FINE[:2], end))
    assert type(error) is StreamError
    assert error.partial == assistant("Fine.")
    assert refused(Stream(end)).partial is None


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "kind", "hint"),
    [
        (400, ProviderRefused, "change it first"),
        (401, ProviderRefused, "AGENT_API_KEY"),
        (403, ProviderRefused, "may use this model"),
        (404, ProviderRefused, "AGENT_MODEL"),
        (405, ProviderRefused, "change it first"),
        (422, ProviderRefused, "change it first"),
        (204, ProviderRefused, "change it first"),
        (408, ProviderUnavailable, "try again"),
        (409, ProviderUnavailable, "try again"),
        (429, RateLimited, "Wait a little"),
        (500, ProviderUnavailable, "try again"),
        (502, ProviderUnavailable, "try again"),
        (503, ProviderUnavailable, "try again"),
        (529, ProviderUnavailable, "try again"),
    ],
)
def test_each_status_has_its_error_and_its_next_step(status: int, kind: type, hint: str) -> None:
    error = refused((status, {"error": {"message": "Said the server.", "type": "t"}}))
    assert type(error) is kind
    assert error.status == status
    assert error.body == {"error": {"message": "Said the server.", "type": "t"}}
    assert error.partial is None
    assert str(error).startswith(f"The provider answered {status}: Said the server.")
    assert hint in str(error)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_names_the_place(status: int) -> None:
    server = Server((status, ""), location="https://other.example/v1/chat/completions")
    error = refused(server, api_key=KEY)
    assert type(error) is ProviderRefused
    assert "https://other.example/v1" in str(error)
    assert "AGENT_BASE_URL" in str(error)
    assert len(server.requests) == 1  # the key went to nobody else


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "in a message"}}, "in a message"),
        ({"error": "as a text"}, "as a text"),
        ({"object": "error", "message": "bare", "code": 400}, "bare"),
        ([{"error": {"message": "in a list"}}], "in a list"),
        ({"detail": "of FastAPI"}, "of FastAPI"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"error": {"type": "only_a_type"}}, "only_a_type"),
        ("Bad gateway", "Bad gateway"),
        ("<html>nginx</html>", "<html>nginx</html>"),
        ("", "no reason given"),
        ({"error": None}, "no reason given"),
        ({}, "no reason given"),
        (b"\xff\xfe\x00", "\ufffd"),
    ],
)
def test_the_words_of_the_server_are_found(body: Any, said: str) -> None:
    told, _, _ = str(refused((400, body))).partition("\n")
    assert told.startswith("The provider answered 400: ")
    if isinstance(body, bytes) or "detail" in body:
        assert said in told
    else:
        assert told.endswith(f": {said}")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after": "0"}, 0),
        ({"retry_after_ms": "250"}, 0.25),
        ({"retry_after_ms": "250", "retry_after": "9"}, 0.25),
        ({"retry_after_ms": "soon", "retry_after": "9"}, 9),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "1e9"}, None),
        ({"retry_after": ""}, None),
        ({}, None),
    ],
)
def test_the_wait_that_is_asked_for(headers: dict[str, str], wait: float | None) -> None:
    error = refused((429, {"error": {"message": "slow down"}}), headers)
    assert type(error) is RateLimited
    assert error.retry_after == wait
    assert ("Wait a little" if wait is None else f"Wait {wait:g} seconds") in str(error)


OVERFLOWS = {
    "OpenAI": {
        "error": {
            "message": "Your input exceeds the window.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
    "DeepSeek": {
        "error": {
            "message": "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens"
            " (122942 in the messages, 8192 in the completion). Please reduce the length.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_request_error",
        }
    },
    "vLLM": {
        "object": "error",
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "xAI": {
        "code": "Client specified an invalid argument",
        "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    },
    "Gemini": [
        {
            "error": {
                "code": 400,
                "message": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
                "status": "INVALID_ARGUMENT",
            }
        }
    ],
    "llama.cpp, in other words": {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}},
    "llama.cpp": {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5000,
            "n_ctx": 4096,
        }
    },
}


@pytest.mark.parametrize("dialect", ["openai", "deepseek"])
@pytest.mark.parametrize("vendor", OVERFLOWS)
def test_an_overflow_is_known_by_each_vendors_words(vendor: str, dialect: str) -> None:
    error = refused((400, OVERFLOWS[vendor]), dialect=dialect, api_key="x")  # a short key is part of many words
    assert type(error) is ContextOverflow
    assert (error.status, error.body) == (400, OVERFLOWS[vendor])
    assert "compact" in str(error)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Invalid value for 'max_tokens': this model supports at most 16384 completion tokens."),
        (400, "Invalid 'messages[2].content': string too long. Expected a string with maximum length 1048576."),
        (400, "Invalid 'tools': array too long. Expected an array with maximum length 128."),
        (400, "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."),
        (400, "Missing required parameter: 'messages'."),
        (400, "'temperature' must not exceed 2. The context window of this model is 128000."),
        (401, "This model's maximum context length is 4096 tokens."),
        (429, "Rate limit reached on tokens per min (TPM): Limit 30000, Requested 50000."),
        (500, "the request exceeds the available context size"),
    ],
)
def test_what_only_looks_like_an_overflow_is_none(status: int, message: str) -> None:
    error = refused((status, {"error": {"message": message, "type": "invalid_request_error", "code": None}}))
    assert not isinstance(error, ContextOverflow)


things = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "agentlab", "missing", "detail"]), inner)
    ),
    max_leaves=8,
)


@example({"agentlab": "x"}, 400, "openai")
@example({"agentlab": {"missing": [1]}}, 400, "openai")
@example({"error": {"code": [], "type": {}, "message": {}}}, 400, "openai")
@example({"error": []}, 429, "anthropic")
@given(things, st.sampled_from([400, 404, 413, 429, 500]), st.sampled_from(["openai", "deepseek", "anthropic"]))
def test_an_error_body_may_hold_anything(body: Any, status: int, dialect: str) -> None:
    error = refused((status, body), dialect=dialect, api_key=KEY)
    assert isinstance(error, ProviderError)
    assert error.status == status
    assert isinstance(error_of(body), dict)


def test_a_deep_error_body_is_an_error_like_any_other() -> None:
    for depth in (500, 900, 1100, 100_000):
        for body in ("[" * depth + "]" * depth, '{"error":' * depth + "1" + "}" * depth):
            assert refused((400, body), api_key=KEY).status == 400


def test_a_huge_error_body_is_read_to_a_limit() -> None:
    stream = Stream(*[b"x" * 65_536] * 1000)

    class Endless(Server):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(500, stream=stream)

    error = refused(Endless(None))
    assert type(error) is ProviderUnavailable
    assert stream.given <= 6
    assert stream.closed
    assert len(str(error)) < 3000
    assert len(error.body) <= 256 * 1024


# ---------------------------------------------------------------- the key reaches nobody

ECHOES = {
    "JSON": (401, json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}."}})),
    "JSON with escapes": (
        401,
        '{"error":{"message":"bad key ' + KEY.replace("/", "\\/").replace("+", "\\u002b") + '"}}',
    ),
    "a key of the object": (401, json.dumps({KEY: [KEY, {"deep": KEY}]})),
    "text": (403, f"no access with Bearer {KEY}"),
    "page": (500, f"<html>{KEY}</html>"),
    "JSON and 200": (200, json.dumps({"error": {"message": f"bad key {KEY}"}})),
    "no reply": (200, json.dumps({"your": KEY})),
    "error in the stream": Stream(*FINE[:1], b'data: {"error":{"message":"bad key ' + KEY.encode() + b'"}}\n\n'),
    "error event": Stream(b"event: error\ndata: bad key " + KEY.encode() + b"\n\n"),
    "nonsense in the stream": Stream(b"data: bad key " + KEY.encode() + b"\n\n"),
    "transport": httpx.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'"),
}


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("echo", ECHOES)
def test_a_server_that_repeats_the_key_cannot_make_us_show_it(echo: str, dialect: str) -> None:
    headers = {"content_type": "application/json"} if echo in ("JSON and 200", "no reply") else {}
    answer = ECHOES[echo]
    if isinstance(answer, Stream):
        answer = Stream(*answer.chunks)
    error = refused(answer, headers, api_key=KEY, dialect=dialect)
    shown = [*traceback.format_exception(error), repr(error), repr(error.__dict__)]
    assert not any(KEY in text for text in shown)


def test_a_short_key_is_no_secret_and_garbles_nothing() -> None:
    for key in ("x", "none", "EMPTY", "offline"):
        error = refused((400, {"error": {"message": "maximum none EMPTY offline x"}}), api_key=key)
        assert "maximum none EMPTY offline x" in str(error)


# ---------------------------------------------------------------- the network


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (httpx.ConnectError("refused"), "No connection to http://host/v1"),
        (httpx.ConnectTimeout(""), "Could not connect within the time limit (15 s"),
        (httpx.ReadTimeout(""), "(120 s of silence)"),
        (httpx.WriteTimeout(""), "(120 s of silence)"),
        (httpx.PoolTimeout(""), "(120 s of silence)"),
        (httpx.ReadError(""), "broke off (ReadError)"),
        (httpx.WriteError(""), "broke off (WriteError)"),
        (httpx.RemoteProtocolError("peer closed connection"), "broke off (RemoteProtocolError)"),
        (httpx.ProxyError("502"), "broke off (ProxyError)"),
        (httpx.DecodingError("gzip"), "broke off (DecodingError)"),
    ],
)
def test_each_failure_of_the_network_is_one_error(failure: Exception, said: str) -> None:
    error = refused(failure)
    assert type(error) is ProviderUnavailable
    assert said in str(error)
    assert (error.status, error.partial) == (None, None)
    stream = Stream(*FINE[:2], end=failure)
    error = refused(stream)
    assert type(error) is ProviderUnavailable
    assert error.partial == assistant("Fine.")
    assert stream.closed


def test_bytes_that_cannot_be_unpacked_are_an_error_of_the_connection() -> None:
    error = refused(Stream(b"no gzip at all"), {"content_encoding": "gzip"})
    assert type(error) is ProviderUnavailable


def test_nobody_listens() -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        error = refused(None, base_url=url, transport=None)
    assert type(error) is ProviderUnavailable
    assert url in str(error)


async def _with_socket(behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any], patience: float) -> Any:
    """The error of a real client against a real socket."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"}]")
            await behave(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            await client(None, base_url=url, transport=None, timeout=patience).complete(HELLO)
        except AgentLabError as error:
            return error
        finally:
            for _ in range(10):
                await asyncio.sleep(0.001)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunked(*blocks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(block), block) for block in blocks)


def test_a_connection_that_breaks_in_the_middle_keeps_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    async def behave(reader: Any, writer: Any) -> None:
        writer.write(HEAD + _chunked(*FINE[:2]))
        await writer.drain()

    error = run(_with_socket(behave, 20))
    assert type(error) is ProviderUnavailable
    assert error.partial == assistant("Fine.")


def test_silence_in_the_middle_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    async def behave(reader: Any, writer: Any) -> None:
        writer.write(HEAD + _chunked(*FINE[:1]))
        await reader.read()  # until the client hangs up

    error = run(_with_socket(behave, 0.1))
    assert type(error) is ProviderUnavailable
    assert "(0.1 s of silence)" in str(error)
    assert error.partial == assistant("Fi")


# ---------------------------------------------------------------- Stop


def test_complete_gives_the_whole_message_or_says_that_it_was_stopped() -> None:
    async def main() -> None:
        stop = Stop()
        assert await client(Stream(*FINE)).complete(HELLO, stop=stop) == assistant("Fine.")
        asyncio.get_running_loop().call_later(0.01, stop.request)
        stream = Stream(*FINE[:2], end="hang")
        with pytest.raises(StopRequested):
            await client(stream).complete(HELLO, stop=stop)
        assert stream.closed
        server = Server(Stream(*FINE))
        with pytest.raises(StopRequested):
            await client(server).complete(HELLO, stop=stop)
        assert server.requests == []

    run(main())


def test_stop_reaches_a_connection_that_is_being_made() -> None:
    async def main() -> None:
        stop = Stop()
        reply = client("hang").stream(HELLO, stop=stop)
        asyncio.get_running_loop().call_later(0.01, stop.request)
        assert [text async for text in reply] == []
        assert not reply.complete

    run(main())


@pytest.mark.parametrize("way", ["stop", "leave"])
@pytest.mark.parametrize("end", ["", "hang"])
def test_stop_between_two_pieces_closes_the_http_stream(end: str, way: str) -> None:
    async def main() -> None:
        stop, stream = Stop(), Stream(*[delta(content="x")] * 50, end=end)
        reply = client(stream).stream(HELLO, stop=stop)
        seen = 0
        async for _ in reply:
            seen += 1
            if seen == 3:
                if way == "leave":
                    break
                stop.request()
        await reply.aclose()
        assert (seen, stream.closed) == (3, True)
        assert reply.message() == assistant("xxx")
        assert stream.given == 3

    run(main())


def test_what_had_already_arrived_is_not_read_to_its_end_after_stop() -> None:
    class Burst(Stream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while not self.closed and self.given < 1000:  # without a pause
                self.given += 1
                yield delta(content="x")

    async def main() -> None:
        stop, stream = Stop(), Burst()
        async for _ in client(stream).stream(HELLO, stop=stop):
            stop.request()
        assert stream.given == 1

    run(main())


@pytest.mark.parametrize("way", ["stop", "leave"])
def test_a_body_that_stalls_later_does_not_hold_up_its_closing(way: str) -> None:
    """The simulator's stalled body goes on stalling for whoever still reads it."""

    async def main() -> None:
        simulator = Simulator([Fault(stall_at=1500, step="one two three four five six seven eight nine ten")])
        stop = Stop()
        reply = simulator.client().stream(HELLO, stop=stop)
        async for _ in reply:
            if way == "leave":
                break
            stop.request()
        await reply.aclose()
        assert reply.message()["content"] == "one"
        assert len(simulator.hangups) == 1

    run(main(), hang_guard_s=5)


@pytest.mark.parametrize("way", ["stop", "interrupt"])
def test_whenever_it_is_ended_nothing_is_left_open(way: str) -> None:
    """At every moment of a request, the closing of its stream included."""

    class SlowToClose(Stream):
        async def aclose(self) -> None:
            self.closed = True
            for _ in range(4):
                await asyncio.sleep(0)

    async def end_after(rounds: int) -> bool:
        stream, stop = SlowToClose(*FINE), Stop()
        task = asyncio.create_task(client(stream).complete(HELLO, stop=stop))
        for _ in range(rounds):
            await asyncio.sleep(0)
        was_running = not task.done()
        stop.request() if way == "stop" else task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert result == assistant("Fine.") or isinstance(result, StopRequested | asyncio.CancelledError)
        assert stream.closed or not stream.given
        return was_running

    async def main() -> None:
        running = [await end_after(rounds) for rounds in range(40)]
        assert running.count(True) > 5
        assert running.count(False) > 0

    run(main())


def test_after_stop_a_failure_of_the_stream_interests_nobody() -> None:
    async def main() -> None:
        stop = Stop()

        class Breaks(Stream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield FINE[0]
                stop.request()
                raise httpx.ReadError("")

        reply = client(Breaks()).stream(HELLO, stop=stop)
        assert [text async for text in reply] == ["Fi"]
        assert reply.message() == assistant("Fi")
        assert not reply.complete

    run(main())


# ---------------------------------------------------------------- what builders met


def test_a_reply_that_is_whole_survives_the_loss_of_its_last_bytes() -> None:
    whole = Stream(delta(content="Fine."), delta("stop"), end=httpx.ReadError("reset"))
    assert ask(whole)["content"] == "Fine."


@pytest.mark.parametrize("body", [b"upstream connect error", b'{"error": {"message": "no such model"}}', b'{"a": 1}\n'])
def test_an_answer_that_is_no_stream_is_quoted(body: bytes) -> None:
    error = refused(Stream(body), {"content_type": "text/plain"})
    assert body.decode().strip()[:20] in str(error)
    assert "AGENT_BASE_URL" in str(error)
    assert error.partial is None


def test_an_error_says_that_something_was_kept_only_where_it_was() -> None:
    reset = httpx.ReadError("reset")
    assert "What had arrived was kept" in str(refused(Stream(delta(content="Hal"), end=reset)))
    assert "Nothing had arrived" in str(refused(Stream(b": ping\n\n", end=reset)))
    assert "Nothing had arrived" in str(refused(Stream(b": ping\n\n")))


def test_long_ids_and_names_of_other_vendors_fit_openai() -> None:
    long = call("chatcmpl-tool-" + "a" * 40, "read_file")
    other = call("chatcmpl-tool-" + "a" * 39 + "b", "f" * 70)
    history = [user("go"), assistant("", long, other), tool(long["id"], "one"), tool(other["id"], "two"), user("on")]
    server = Server(Stream(*FINE))
    run(client(server).complete(history))
    _, said, first, second, _ = server.body["messages"]
    ids = [each["id"] for each in said["tool_calls"]]
    assert [first["tool_call_id"], second["tool_call_id"]] == ids
    assert len(set(ids)) == 2
    assert max(map(len, ids)) <= 40
    assert len(said["tool_calls"][1]["function"]["name"]) == 64
    assert history[1]["tool_calls"][0]["id"] == long["id"], "the history keeps its own"


@pytest.mark.parametrize("history", ["hi", b"hi", {"role": "user", "content": "hi"}])
def test_what_is_no_history_is_refused_at_once(history: Any) -> None:
    with pytest.raises(AgentLabError, match="list of messages"):
        client(Stream(*FINE)).stream(history)


def test_no_key_and_no_time_limit_can_be_none() -> None:
    assert ask(Stream(*FINE), api_key=None, timeout=None)["content"] == "Fine."
