"""DeepSeek: reasoning is kept apart, goes back where it must, and the prompt cache stays warm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from strategies import whole_histories

from agentlab.loop import run_turn
from agentlab.messages import Message, assistant, call, calls_of, canonical_json, tool, user
from agentlab.provider import ChatClient
from agentlab.provider.deepseek import DeepSeek
from agentlab.provider.openai import OpenAI
from agentlab.simulator import Simulator
from agentlab.tools import Registry

DATA = Path(__file__).parent.parent / "data" / "streams"
RECORDED = DATA / "deepseek_reasoning_tool_cache.chunks.jsonl"


def sent(history: list[Message]) -> list[Message]:
    return DeepSeek().body("m", history, [])["messages"]


def accepted(messages: list[Message]) -> bool:
    """Whether DeepSeek takes these messages in thinking mode."""
    request = {"model": "m", "messages": messages, "thinking": {"type": "enabled"}}
    return Simulator(lambda _: "Fine.", dialect="deepseek").respond(request).status == 200


def thinking(message: Message, text: str) -> Message:
    return {**message, "reasoning_content": text}


def frames(payloads: list[bytes]) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads) + b"data: [DONE]\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}).encode()


def client(*bodies: bytes, requests: list[Any] | None = None, cut: int = 0) -> ChatClient:
    """Answers with one body after the other."""
    waiting = list(bodies)

    class Chunks(httpx.AsyncByteStream):
        def __init__(self, body: bytes) -> None:
            size = cut or len(body)
            self.chunks = [body[at : at + size] for at in range(0, len(body), size)]

        async def __aiter__(self) -> Any:
            for chunk in self.chunks:
                yield chunk

    def answer(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(json.loads(request.content))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks(waiting.pop(0)))

    return ChatClient(base_url="http://h", model="m", dialect="deepseek", transport=httpx.MockTransport(answer))


def test_reasoning_beside_a_call_is_kept_apart_and_goes_back() -> None:
    """Case T07: without its reasoning the next request of the same tool loop would be refused."""
    requests: list[Any] = []
    piece = {"index": 0, "id": "r", "function": {"name": "read", "arguments": "{}"}}
    first = frames(
        [
            delta(reasoning_content="need "),
            delta(reasoning_content="file"),
            delta(tool_calls=[piece]),
            delta("tool_calls"),
        ]
    )
    second = frames([delta(reasoning_content="easy"), delta(content="It is empty."), delta("stop")])
    third = frames([delta(content="Bye."), delta("stop")])
    registry = Registry()

    @registry.tool(read_only=True)
    def read() -> str:
        return "(empty)"

    async def main() -> None:
        made = client(first, second, third, requests=requests)
        turn = await run_turn([user("What is in it?")], made, registry).run()
        called = thinking(assistant("", call("r", "read")), "need file")
        assert turn.history[1] == called
        assert "need" not in turn.history[1]["content"]
        assert requests[1]["messages"] == [user("What is in it?"), called, tool("r", "(empty)")]
        following = await run_turn([*turn.history, user("Thanks.")], made, registry).run()
        assert requests[2]["messages"][:3] == requests[1]["messages"]
        assert requests[2]["messages"][3] == thinking(assistant("It is empty."), "easy")  # of a turn with a call
        assert following.history[-1] == assistant("Bye.")

    run(main())


@pytest.mark.parametrize("cut", [0, 1, 3, 50])
def test_the_recorded_stream_is_put_together(cut: int) -> None:
    payloads = RECORDED.read_bytes().splitlines()

    async def main() -> None:
        reply = client(frames(payloads), cut=cut).stream([user("Weather?")])
        assert [text async for text in reply] == []
        assert reply.message() == {
            "role": "assistant",
            "content": "",
            "reasoning_content": "The user is asking for the weather in San Francisco. I need to use the weather"
            " tool to get this information. Let me invoke the weather tool with the location parameter set to"
            ' "San Francisco".',
            "tool_calls": [
                {
                    "id": "call_00_ioIn7yN9p1ZOMNpDLwd4MgAF",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"location": "San Francisco"}'},
                }
            ],
        }
        assert reply.finish_reason == "tool_calls"
        assert reply.usage == {
            "prompt_tokens": 339,
            "completion_tokens": 83,
            "total_tokens": 422,
            "prompt_tokens_details": {"cached_tokens": 320},
            "completion_tokens_details": {"reasoning_tokens": 39},
            "prompt_cache_hit_tokens": 320,
            "prompt_cache_miss_tokens": 19,
        }

    run(main())


def test_the_recorded_reasoning_goes_back_as_it_came_and_survives_being_saved() -> None:
    """In two loops of one turn, and read again from JSON; OpenAI's own client reads the same reasoning."""
    payloads = RECORDED.read_bytes().splitlines()
    requests: list[Any] = []
    registry = Registry()

    @registry.tool(read_only=True)
    def weather(location: str) -> str:
        return f"Sunny in {location}."

    made = client(
        frames(payloads), frames(payloads), frames([delta(content="Sunny."), delta("stop")]), requests=requests
    )
    turn = run(run_turn([user("Weather?")], made, registry).run())
    chunks = [ChatCompletionChunk.model_validate_json(payload) for payload in payloads]
    pieces = [getattr(choice.delta, "reasoning_content", None) for chunk in chunks for choice in chunk.choices]
    reasoning = "".join(piece or "" for piece in pieces)
    assert reasoning.startswith("The user is asking for the weather in San Francisco.")
    for request, times in zip(requests, (0, 1, 2), strict=True):
        replayed = [message["reasoning_content"] for message in request["messages"] if calls_of(message)]
        assert replayed == [reasoning] * times
        assert accepted(request["messages"])
    saved = json.loads(json.dumps(turn.history))
    assert canonical_json(sent(saved)[:5]) == canonical_json(requests[2]["messages"])


def test_reasoning_goes_back_only_in_turns_that_called_a_tool() -> None:
    plain = [user("Hi"), thinking(assistant("Hello."), "a greeting")]
    with_call = [
        user("Look."),
        thinking(assistant("", call("c", "look")), "must look"),
        tool("c", "seen"),
        thinking(assistant("Seen."), "done"),
    ]
    after = [user("Bye"), thinking(assistant("Bye."), "the end")]
    kept = [message.get("reasoning_content") for message in sent(plain + with_call + after)]
    assert kept == [None, None, None, "must look", None, "done", None, None]


def test_the_openai_dialect_sends_no_reasoning_at_all() -> None:
    history = [user("Look."), thinking(assistant("", call("c", "look")), "must look"), tool("c", "seen")]
    assert OpenAI().body("m", history, [])["messages"] == [
        user("Look."),
        assistant("", call("c", "look")),
        tool("c", "seen"),
    ]


def test_a_call_without_reasoning_gets_an_empty_one() -> None:
    """Of a model that did not think, or of another one: in thinking mode a missing one would be refused."""
    history = [
        *(user("Look."), thinking(assistant("", call("a", "look")), "must look"), tool("a", "seen")),
        *(assistant("", call("b", "look")), tool("b", "seen")),
    ]
    for cut in (len(history), 2):
        assert sent(history[-cut:])[-2]["reasoning_content"] == ""
    assert "reasoning_content" not in history[3]
    assert accepted(sent(history))


def test_blocks_of_another_vendor_and_marks_of_ours_stay_at_home() -> None:
    message = {**assistant("Hi"), "thinking_blocks": [{"type": "thinking"}], "origin": "repair"}
    assert sent([user("x"), message]) == [user("x"), assistant("Hi")]


@st.composite
def thoughtful_histories(draw: st.DrawFn) -> list[Message]:
    history = draw(whole_histories())
    notes = st.sampled_from([None, "", "hm", "long thought"])
    return [
        thinking(message, note) if message["role"] == "assistant" and (note := draw(notes)) is not None else message
        for message in history
    ]


@given(thoughtful_histories())
def test_what_was_sent_once_is_sent_again_the_same_way(history: list[Message]) -> None:
    """However the history grows, its beginning stays byte for byte the same, and so the prompt cache holds."""
    before = canonical_json(history)
    whole = [canonical_json(message) for message in sent(history)]
    for cut in range(len(history) + 1):
        assert [canonical_json(message) for message in sent(history[:cut])] == whole[:cut]
    assert canonical_json(history) == before


@given(thoughtful_histories())
def test_every_call_has_its_reasoning_and_all_else_is_untouched(history: list[Message]) -> None:
    out = sent(history)
    assert not out or accepted(out)
    for given_message, message in zip(history, out, strict=True):
        if calls_of(message):
            assert message.get("reasoning_content") == given_message.get("reasoning_content", "")
        assert {k: v for k, v in message.items() if k != "reasoning_content"} == {
            k: v for k, v in given_message.items() if k != "reasoning_content"
        }
