from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest
from cases import case
from hypothesis import example, given
from hypothesis import strategies as st

from agentlab.errors import StreamError
from agentlab.sse import JSONDecoder, LineSplitter, ServerSentEvent, SSEDecoder, ajson_events, json_events

DATA = Path(__file__).parents[1] / "data"
STREAMS = sorted([*DATA.glob("captures/*.sse"), *DATA.glob("streams/*.sse")])
HANG_S = 30


def reference(stream: bytes) -> list[ServerSentEvent]:
    """The standard's words, one by one, on the whole stream; only an event without a blank line is kept at the end."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    events = []
    data, kind, last_id, retry = "", "", "", None
    for line in [*re.split("\r\n|\n|\r", text), ""]:
        if line == "":
            if data != "":
                events.append(ServerSentEvent(data.removesuffix("\n"), kind or "message", last_id, retry))
                retry = None
            data, kind = "", ""
        elif line.startswith(":"):
            pass
        else:
            field, value = line.split(":", 1) if ":" in line else (line, "")
            value = value[1:] if value.startswith(" ") else value
            if field == "event":
                kind = value
            elif field == "data":
                data += value + "\n"
            elif field == "id" and "\0" not in value:
                last_id = value
            elif field == "retry" and re.fullmatch("[0-9]{1,18}", value):
                retry = int(value)
    return events


def cut(stream: bytes, sizes: Iterable[int]) -> list[bytes]:
    """The stream in pieces of these sizes; the last piece takes the rest."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(stream[at : at + size])
        at += size
    return [*pieces, stream[at:]]


def every(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def decoded(pieces: Iterable[bytes]) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


def objects(pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    return list(json_events(pieces))


def outcome(events: Callable[[], Iterator[dict[str, Any]]]) -> tuple[list[dict[str, Any]], str]:
    """The objects that were delivered, and the error that ended them ("" for none)."""
    seen: list[dict[str, Any]] = []
    try:
        for event in events():
            seen.append(event)
    except StreamError as error:
        return seen, str(error)
    return seen, ""


line_ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
inner = st.text("ab :\u2028\u2029\u0085\x0b\x0c\x1c\x00\ufeff\té日😀", max_size=5).map(str.encode)
values = inner | st.sampled_from([b"", b" ", b"  two", b"{}", b"7", b"12345678901234567890", b"\xff\xfe", b"\xe6\x97"])
names = st.sampled_from(
    [b"data", b"data", b"data", b"event", b"id", b"retry", b"", b"Data", b" data", b"datas", b"\xef\xbb\xbfdata"]
)
field_lines = st.builds(lambda name, sep, value: name + sep + value, names, st.sampled_from([b":", b": ", b""]), values)
lines = st.one_of(field_lines, field_lines, field_lines, st.just(b""), st.just(b""), inner)
raw_streams = st.builds(
    lambda bom, parts, tail: bom + b"".join(line + end for line, end in parts) + tail,
    st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf" * 2, b"\xef\xbb"]),
    st.lists(st.tuples(lines, line_ends), max_size=14),
    lines,
)
cuts = st.lists(st.integers(0, 9), max_size=40)


# Events


@given(raw_streams, cuts)
@example(b"data: a\r\ndata: b\r\n\r\n", [8])  # between CR and LF
@example(b"data: a\r\r\ndata: b\r\n", [8, 1])
def test_any_stream_cut_anywhere_gives_what_the_standard_says(stream: bytes, sizes: list[int]) -> None:
    expected = reference(stream)
    assert decoded([stream]) == expected
    assert decoded(every(stream, 1)) == expected
    assert decoded(cut(stream, sizes)) == expected


@given(raw_streams, cuts)
def test_lines_end_with_lf_cr_or_crlf_only(stream: bytes, sizes: list[int]) -> None:
    splitter = LineSplitter()
    found = [line for piece in cut(stream, sizes) for line in splitter.feed(piece)]
    expected = re.split(b"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    assert splitter.held == len(expected[-1]) or b"\xef\xbb\xbf" in stream
    assert found + splitter.close() == (expected if expected[-1] else expected[:-1])


@given(st.lists(st.tuples(st.lists(field_lines, max_size=4), line_ends), max_size=8))
def test_httpx_sse_sees_the_same_events(blocks: list[tuple[list[bytes], bytes]]) -> None:
    # Where httpx-sse is right: no byte order mark; it also gives events without data, which the standard drops.
    stream = b"".join(b"".join(line + end for line in block) + end for block, end in blocks)
    if stream.startswith(b"\xef\xbb\xbf"):
        stream = b"\n" + stream
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    theirs = [(e.event, e.data, e.id) for e in httpx_sse.EventSource(response).iter_sse() if e.data]
    assert [(e.event, e.data, e.id) for e in decoded([stream]) if e.data] == theirs


@pytest.mark.parametrize("size", [1, 2, 3, 7, 31, 4096])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams(path: Path, size: int) -> None:
    stream = path.read_bytes()
    events = reference(stream)
    assert events
    assert decoded(every(stream, size)) == events
    payloads = [event.data for event in events if event.data != "[DONE]"]
    assert objects(every(stream, size)) == [json.loads(payload) for payload in payloads]


def test_fields_by_value() -> None:
    stream = (
        b": comment\nid: 7\nevent: ping\nretry: 2500\ndata: one\ndata:two\ndata\ndata:  three\nother: x\n\n"
        b"data: next\nretry: 12s\n\n"
        b"id\nevent:\ndata\n\n"
    )
    assert decoded([stream]) == [
        ServerSentEvent("one\ntwo\n\n three", "ping", "7", 2500),
        ServerSentEvent("next", "message", "7", None),
        ServerSentEvent("", "message", "", None),
    ]


def test_a_block_without_data_is_no_event_but_keeps_id_and_retry() -> None:
    stream = b"event: lost\nid: 5\nretry: 10\n\n: ping\n\n\n\ndata: x\n\ndata: y\n\n"
    assert decoded([stream]) == [ServerSentEvent("x", "message", "5", 10), ServerSentEvent("y", "message", "5", None)]


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r", b"\r\n", b"\n\n", b"\n: bye", b"\nevent: x"])
def test_the_last_event_needs_no_blank_line(tail: bytes) -> None:
    for size in (1, 5, 100):
        assert [event.data for event in decoded(every(b"data: a\n\ndata: b" + tail, size))] == ["a", "b"]
        assert objects(every(b'data: {"n":1}\n\ndata: {"n":2}' + tail, size)) == [{"n": 1}, {"n": 2}]


def test_only_one_byte_order_mark_and_only_at_the_start() -> None:
    for bom, expected in ((b"\xef\xbb\xbf", ["a", "b"]), (b"\xef\xbb\xbf" * 2, ["b"]), (b"\n\xef\xbb\xbf", ["b"])):
        stream = bom + b"data: a\n\ndata: b\n\n"
        for size in (1, 2, 3, 4, 100):
            assert [event.data for event in decoded([b"", *every(stream, size)])] == expected
    assert decoded([b"\xef\xbb\xbf"]) == []


def test_empty_pieces_change_nothing() -> None:
    stream = b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\r\n\r\n"
    assert decoded([b"", *(part for byte in every(stream, 1) for part in (byte, b""))]) == reference(stream)


def test_a_closed_decoder_has_nothing_left() -> None:
    decoder = SSEDecoder()
    decoder.feed(b"data: x")
    assert len(decoder.close()) == 1
    assert decoder.close() == []


# JSON


json_objects = st.dictionaries(
    st.text("ab\u2028é", max_size=2),
    st.recursive(
        st.none() | st.integers() | st.text('ab\u2028\u2029\u0085\r\n"\\é日😀', max_size=6),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
    max_size=3,
)


@st.composite
def json_streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], bytes]:
    """JSON objects, and a stream of them with all that may stand between and around them."""
    sent = draw(st.lists(json_objects, max_size=6))
    noise = st.sampled_from([b"", b"", b": ping", b"event: message", b"id: 1", b"retry: 5", b"x: y"])
    stream = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    for value in sent:
        end = draw(line_ends)
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1])))
        colon = draw(st.sampled_from([b"data: ", b"data:", b"data:  "]))
        keep_alive = draw(st.sampled_from([b"", b"data:" + end + end, b": OPENROUTER PROCESSING" + end + end]))
        block = [draw(noise), *(colon + line.encode() for line in text.split("\n")), draw(noise)]
        stream += keep_alive + end.join(line for line in block if line) + end + end
    return sent, stream


@given(json_streams(), cuts, st.booleans())
def test_json_events_are_the_objects_that_were_sent(
    sent: tuple[list[dict[str, Any]], bytes], sizes: list[int], done: bool
) -> None:
    expected, stream = sent
    if done:
        stream += b"data: [DONE]\n\ndata: {broken\n\ndata: {}\n\n\xff"
    assert objects([stream]) == expected
    assert objects(every(stream, 1)) == expected
    assert objects(cut(stream, sizes)) == expected


@given(raw_streams, cuts)
def test_json_events_read_the_data_of_the_events(stream: bytes, sizes: list[int]) -> None:
    expected: list[dict[str, Any]] = []
    fails = False
    for event in reference(stream):
        data = event.data.encode().decode("utf-8", "replace")
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if isinstance(value, dict):
            expected.append(value)
        elif event.event == "error":
            expected.append({"error": value or data.strip() or "no reason given"})
        elif data.strip():
            fails = True
            break
    for pieces in ([stream], every(stream, 1), cut(stream, sizes)):
        seen, error = outcome(lambda pieces=pieces: json_events(pieces))
        assert (seen, bool(error)) == (expected, fails)


@pytest.mark.parametrize("id", ["S01", "S08"])
def test_case_in_bytes(id: str) -> None:
    pieces = [bytes.fromhex(piece) for piece in case(id)["input"]["chunks_hex"]]
    expected = case(id)["expected"]
    for cuts in (pieces, every(b"".join(pieces), 1), [b"".join(pieces)]):
        if id == "S01":
            events = decoded(cuts)
            assert len(events) == expected["events"] and events[-1].data == "[DONE]"
            text = "".join(o["choices"][0]["delta"]["content"] for o in objects(cuts))
            assert text == expected["text"] == "日🐙" and "\ufffd" not in text
        else:
            assert objects(cuts) == expected["events"] == [{"n": 1}, {"n": "\ufeff2"}]


def test_case_s02_line_separators_inside_json() -> None:
    stream = case("S02")["input"]["text"].encode()
    assert len(stream.decode().splitlines()) > 2, "the case must hold what splitlines cuts at"
    for size in (1, 3, len(stream)):
        (only,) = objects(every(stream, size))
        assert only["choices"][0]["delta"]["content"] == case("S02")["expected"]["content"]


def test_seed_demonstration_in_pieces_of_31_bytes() -> None:
    demo = json.loads((DATA / "seed_demos.json").read_bytes())["stream_31_bytes"]
    lines = [json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in demo["events"]] + ["[DONE]"]
    pieces = every("".join(f"data: {line}\n\n" for line in lines).encode(), demo["piece_bytes"])
    ends: list[str] = []
    assert len(pieces) == 30 and len(demo["events"]) == 10
    assert list(json_events(pieces, on_done=lambda: ends.append("[DONE]"))) == demo["events"]
    assert ends == ["[DONE]"]


@pytest.mark.parametrize(
    "end",
    [
        b"data: [DONE]\n\n",
        b"data:[DONE]\r\n\r\n",
        b"data: [DONE] \n\n",
        b"data: [DONE]\n",
        b"data: [DONE]",
        b"event: end\ndata: [DONE]\n\n",
    ],
)
def test_done_ends_the_stream(end: bytes) -> None:
    for size in (1, 4, 100):
        calls: list[int] = []
        pieces = every(b'data: {"n":1}\n\n' + end, size)
        assert list(json_events(pieces, on_done=lambda calls=calls: calls.append(1))) == [{"n": 1}]
        assert calls == [1]


@pytest.mark.parametrize(
    "tail", [b"", b": bye\n\n", b"data:\n\n", b'data: {"x":"[DONE]"}\n\n', b"event: [DONE]\n\n", b": data: [DONE]\n\n"]
)
def test_on_done_waits_for_done(tail: bytes) -> None:
    calls: list[int] = []
    list(json_events([b"data: {}\n\n" + tail], on_done=lambda: calls.append(1)))
    assert calls == []


def test_on_done_is_not_called_after_an_error() -> None:
    calls: list[int] = []
    with pytest.raises(StreamError):
        list(json_events([b"data: oops\n\ndata: [DONE]\n\n"], on_done=lambda: calls.append(1)))
    assert calls == []


def test_on_done_comes_after_the_last_object_was_taken() -> None:
    log: list[Any] = []
    for event in json_events([b"data: {}\n\ndata: [DONE]\n\n"], on_done=lambda: log.append("done")):
        log.append(event)
    assert log == [{}, "done"]


def test_nothing_is_read_after_done() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"data: {}\n\ndata: [DO"
        yield b"NE]\n\ngarbage \xff\xfe\n\n"
        raise AssertionError("read on after [DONE]")

    assert objects(pieces()) == [{}]


def test_a_finished_decoder_ignores_what_follows() -> None:
    decoder = JSONDecoder()
    assert list(decoder.feed(b"data: [DONE]\n\ndata: {}\n\n")) == []
    assert decoder.done
    assert list(decoder.feed(b"data: {}\n\ndata: oops\n\n")) == [] and list(decoder.close()) == []


def test_objects_come_as_their_bytes_come() -> None:
    decoder = JSONDecoder()
    assert list(decoder.feed(b'data: {"n":1}\n\ndata: {"n"')) == [{"n": 1}]
    assert list(decoder.feed(b":2}\n")) == []
    assert list(decoder.feed(b"\ndata: {")) == [{"n": 2}]
    assert list(decoder.feed(b"}")) == []
    assert list(decoder.close()) == [{}]


@pytest.mark.parametrize(
    "data",
    [
        b"oops",
        b"[1]",
        b'"text"',
        b"5",
        b"null",
        b"{",
        b'{"a":1}{"b":2}',
        b"<html>",
        b"[DONE]x",
        b"\xff",
        b"[[[[" * 50_000,
    ],
)
def test_data_that_is_no_json_object_is_an_error_after_what_came_before_it(data: bytes) -> None:
    stream = b'data: {"n":1}\n\ndata: {"n":2}\n\ndata: ' + data + b'\n\ndata: {"n":3}\n\n'
    for pieces in ([stream], every(stream, 50)):
        seen, error = outcome(lambda pieces=pieces: json_events(pieces))
        assert seen == [{"n": 1}, {"n": 2}]
        assert "no JSON object" in error and len(error) < 300


def test_a_stream_cut_off_inside_json_is_an_error() -> None:
    seen, error = outcome(lambda: json_events([b'data: {"n":1}\n\ndata: {"n":']))
    assert seen == [{"n": 1}] and "cut off" in error


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b'event: error\ndata: {"error":{"message":"no"}}', {"error": {"message": "no"}}),
        (b'data: {"error":"late name"}\nevent: error', {"error": "late name"}),
        (b'event: error\ndata: {"message":"no","code":3}', {"error": {"message": "no", "code": 3}}),
        (b'event: error\ndata: {"error":null}', {"error": {"error": None}}),
        (b"event: error\ndata: upstream gone", {"error": "upstream gone"}),
        (b"event: error\ndata: two\ndata: lines", {"error": "two\nlines"}),
        (b"event:error\ndata:", {"error": "no reason given"}),
        (b'event: error\ndata: "text"', {"error": "text"}),
        (b"event: error\ndata: {}", {"error": "{}"}),
        (b"event: error\ndata: [1]", {"error": [1]}),
    ],
)
def test_an_error_event_is_an_object_with_an_error(block: bytes, expected: dict[str, Any]) -> None:
    stream = b"data: {}\n\n" + block + b'\n\ndata: {"n":1}\n\n'
    for size in (1, 1000):
        assert objects(every(stream, size)) == [{}, expected, {"n": 1}]


def test_an_event_type_is_for_one_event_only() -> None:
    stream = b'event: error\n\ndata: {"n":1}\n\nevent: error\nevent: message\ndata: {"n":2}\n\n'
    stream += b'event: errors\ndata: {"n":3}\n\n'
    assert objects([stream]) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_keep_alives_are_not_seen() -> None:
    stream = b'data:\n\n: ping\n\ndata: \n\ndata\n\n:\n\ndata:\t\n\ndata: {"n":1}\n\n\n\ndata:\n\n'
    for size in (1, 1000):
        assert objects(every(stream, size)) == [{"n": 1}]


# Async


async def _astream(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


@given(st.one_of(raw_streams, json_streams().map(lambda pair: pair[1])), cuts, st.booleans())
@example(b'data: {"n":1}\n\ndata: {"n":2}', [9], False)
@example(b'data: {"n":1}\n\ndata: {"n":', [9], False)
def test_the_async_twin_gives_the_same(stream: bytes, sizes: list[int], done: bool) -> None:
    pieces = cut(stream + b"\n\ndata: [DONE]\n\ndata: oops\n\n" if done else stream, sizes)
    sync_done: list[int] = []
    async_done: list[int] = []

    async def collect() -> tuple[list[dict[str, Any]], str]:
        seen: list[dict[str, Any]] = []
        try:
            async for event in ajson_events(_astream(pieces), on_done=lambda: async_done.append(1)):
                seen.append(event)
        except StreamError as error:
            return seen, str(error)
        return seen, ""

    assert asyncio.run(collect()) == outcome(lambda: json_events(pieces, on_done=lambda: sync_done.append(1)))
    assert async_done == sync_done


# Bounds


@pytest.mark.parametrize("stream", [b"x" * 101, b"data: " + b"x" * 95, b"data: 12345678\n" * 12, b"data:\n" * 102])
def test_an_event_without_an_end_is_refused(stream: bytes) -> None:
    for size in (1, 10, 1000):
        with pytest.raises(StreamError, match="100 bytes"):
            [SSE.feed(piece) for SSE in [SSEDecoder(max_bytes=100)] for piece in every(stream, size)]
        with pytest.raises(StreamError, match="100 bytes"):
            [list(decoder.feed(piece)) for decoder in [JSONDecoder(max_bytes=100)] for piece in every(stream, size)]


def test_the_limit_is_per_event() -> None:
    stream = b"data: 1234567890\n\n" * 50 + b": comment\n" * 50
    for size in (1, 10, 1000):
        decoder = SSEDecoder(max_bytes=100)
        assert sum(len(decoder.feed(piece)) for piece in every(stream, size)) == 50
    objects_in = b'data: {"n":1}\n\n' * 50
    for size in (1, 10, 1000):
        json_decoder = JSONDecoder(max_bytes=20)
        assert sum(len(list(json_decoder.feed(piece))) for piece in every(objects_in, size)) == 50


def test_objects_before_the_endless_event_are_delivered() -> None:
    decoder = JSONDecoder(max_bytes=100)
    seen, error = outcome(lambda: decoder.feed(b'data: {"n":1}\n\n' + b"x" * 200))
    assert seen == [{"n": 1}] and "100 bytes" in error


@pytest.mark.parametrize("make", [SSEDecoder, JSONDecoder])
@pytest.mark.parametrize("shape", ["one long line", "many lines", "many lines in one piece"])
def test_a_huge_event_in_tiny_pieces_takes_linear_time(make: Any, shape: str) -> None:
    text = ""
    if shape == "one long line":
        text = "x" * 2_000_000
        pieces = every(b'data: {"t":"' + text.encode() + b'"}\n\n', 8)
    else:
        stream = b'data: {"t":\n' + (b"data:" + b" " * 42 + b"\n") * 80_000 + b'data: ""}\n\n'
        pieces = every(stream, 48) if shape == "many lines" else [stream]
    decoder, found = make(), []
    deadline = time.monotonic() + HANG_S
    for piece in pieces:
        found += list(decoder.feed(piece))
        assert time.monotonic() < deadline, "quadratic"
    (event,) = found
    assert (json.loads(event.data) if make is SSEDecoder else event) == {"t": text}
