"""How fast bytes become a message, next to the SDKs and to the limits of the machine, all in one run.

    python tests/bench/bench_stream.py [megabytes]

The stream is made up, the same every time: 50 MB unless another size is given, about 217 bytes an event, four pieces
of text to one piece of a tool call, in chunks of 4 KB. Every row is the best of three. The rows of the SDK as used read
the first megabyte only, as they are slow.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anthropic._streaming
import httpx
import httpx2
import httpx_sse
import msgspec
import openai
import openai._streaming
import orjson
from openai.lib.streaming.chat import ChatCompletionStreamState

from agentlab.assemble import Assembler
from agentlab.sse import LineSplitter, SSEDecoder, json_events

CHUNK_BYTES = 4096
SLICE_BYTES = 1_000_000
ROUNDS = 3
WORDS = [" the", " capital", "\n\n", " of", " Ægir", " is", " 東京", " def run(self):", " a", " 🐙"]
HEADERS = {"content-type": "text/event-stream"}


@dataclass
class Row:
    name: str
    work: Callable[[], object]
    size: int
    events: int
    best: float = float("inf")


def payloads(size: int) -> list[bytes]:
    """JSON chunks of `size` bytes in all, framing included."""
    shell = {"id": "chatcmpl-C2P2HtMJhPkWjQ2ad", "object": "chat.completion.chunk", "created": 1754688929}
    total, made = 0, []
    for number, word in enumerate(cycle(WORDS)):
        delta: dict[str, Any] = {"content": word}
        if number % 5 == 4:
            function = {"arguments": f"{number:06d} "} if number > 4 else {"name": "write", "arguments": '{"text":"'}
            delta = {"tool_calls": [{"index": 0, **({} if number > 4 else {"id": "call_1"}), "function": function}]}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        event = {**shell, "model": "gpt-4o-2024", "choices": [choice]}
        made.append(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
        total += len(made[-1]) + 8
        if total >= size:
            return made
    raise AssertionError("cycle never ends")


def framed(payloads: Iterable[bytes]) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads) + b"data: [DONE]\n\n"


def pieces(stream: bytes) -> list[bytes]:
    return [stream[at : at + CHUNK_BYTES] for at in range(0, len(stream), CHUNK_BYTES)]


def to_message(chunks: list[bytes]) -> dict[str, Any]:
    assembler = Assembler()
    for event in json_events(chunks, on_done=assembler.done):
        assembler.feed(event)
    return assembler.message()


def exhaust(iterator: Iterable[object]) -> None:
    for _ in iterator:
        pass


def feed_all(decoder: Any, chunks: list[bytes]) -> None:
    for chunk in chunks:
        decoder.feed(chunk)


def sdk_chunks(chunks: list[bytes]) -> Iterator[Any]:
    """The openai SDK as used: a client, a streamed request, typed chunks."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=HEADERS, content=iter(chunks)))
    with httpx2.Client(transport=transport) as client:
        api = openai.OpenAI(api_key="none", base_url="http://bench/v1", max_retries=0, http_client=client)
        yield from api.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}], stream=True)


def sdk_message(chunks: list[bytes]) -> Any:
    state = ChatCompletionStreamState()
    for chunk in sdk_chunks(chunks):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot.choices[0].message


def sdk_decoder(decoder: Any, chunks: list[bytes]) -> None:
    for event in decoder.iter_bytes(iter(chunks)):
        if event.data != "[DONE]":
            json.loads(event.data)


def with_httpx_sse(chunks: list[bytes]) -> None:
    response = httpx.Response(200, headers=HEADERS, content=iter(chunks))
    for event in httpx_sse.EventSource(response).iter_sse():
        if event.data != "[DONE]":
            json.loads(event.data)


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Piece(msgspec.Struct):
    index: int
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[Piece] | None = None


class Choice(msgspec.Struct):
    delta: Delta
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice]


def rows(size: int) -> list[Row]:
    whole = payloads(size)
    part = list(islice(whole, max(1, len(whole) * SLICE_BYTES // max(size, SLICE_BYTES))))
    chunks, short = pieces(framed(whole)), pieces(framed(part))
    message, theirs = to_message(short), sdk_message(short)
    assert message["content"] == theirs.content
    assert message["tool_calls"][0]["function"]["arguments"] == theirs.tool_calls[0].function.arguments

    typed, untyped = msgspec.json.Decoder(Chunk), msgspec.json.Decoder()
    length, shorter = sum(map(len, chunks)), sum(map(len, short))

    def row(name: str, work: Callable[[], object]) -> Row:
        return Row(name, work, length, len(whole))

    def slow(name: str, work: Callable[[], object]) -> Row:
        return Row(name, work, shorter, len(part))

    def each(decode: Callable[[bytes], object]) -> Callable[[], None]:
        return lambda: exhaust(map(decode, whole))

    return [
        slow("openai SDK as used: create(stream=True)", lambda: exhaust(sdk_chunks(short))),
        slow("openai SDK, bytes to message", lambda: sdk_message(short)),
        row("openai decoder + json", lambda: sdk_decoder(openai._streaming.SSEDecoder(), chunks)),
        row("anthropic decoder + json", lambda: sdk_decoder(anthropic._streaming.SSEDecoder(), chunks)),
        row("httpx-sse + json", lambda: with_httpx_sse(chunks)),
        row("agentlab, bytes to message", lambda: to_message(chunks)),
        row("agentlab json_events", lambda: exhaust(json_events(chunks))),
        row("agentlab SSEDecoder", lambda: feed_all(SSEDecoder(), chunks)),
        row("agentlab LineSplitter", lambda: feed_all(LineSplitter(), chunks)),
        row("limit: msgspec typed, payloads ready", each(typed.decode)),
        row("limit: msgspec untyped, payloads ready", each(untyped.decode)),
        row("limit: orjson, payloads ready", each(orjson.loads)),
        row("limit: json, payloads ready", each(json.loads)),
    ]


def main() -> None:
    table = rows(int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 50_000_000)
    for _ in range(ROUNDS):
        for row in table:  # taking turns, so that a busy moment does not hit one row alone
            start = time.perf_counter()
            row.work()
            row.best = min(row.best, time.perf_counter() - start)
    base = table[0].size / table[0].best
    last = table[-1]
    print(f"{last.size / 1e6:.1f} MB, {last.events:,} events, chunks of {CHUNK_BYTES:,} bytes, best of {ROUNDS}\n")
    print(f"| {'':40} | {'MB/s':>7} | {'events/s':>10} | {'times the SDK':>13} |")
    print(f"|{'-' * 42}|{'-' * 8}:|{'-' * 11}:|{'-' * 14}:|")
    for row in table:
        rate = row.size / row.best
        print(f"| {row.name:40} | {rate / 1e6:7.1f} | {row.events / row.best:10,.0f} | {rate / base:13.1f} |")


if __name__ == "__main__":
    main()
