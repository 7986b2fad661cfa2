"""JSON-RPC without input or output: every conversation whole, byte by byte, and with garbage behind it."""

from __future__ import annotations

import itertools
import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.jsonrpc import Answer, Event, Failure, Noise, Notice, Peer, Request, encode
from tests.cases import case
from tests.strategies import json_values


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def coded(id: int, code: Any) -> bytes:
    return line(id=id, error={"code": code, "message": "no"})


def waiting(requests: int = 4, **options: Any) -> Peer:
    """A peer that waits for the answers to requests 0, 1, 2, ..."""
    peer = Peer(**options)
    for _ in range(requests):
        peer.ask("tools/call")
    return peer


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


CONVERSATIONS: dict[str, tuple[bytes, list[Event]]] = {
    "answer": (line(id=0, result={"ok": True}), [Answer(0, {"ok": True})]),
    "null is a result": (line(id=0, result=None), [Answer(0, None)]),
    "out of order": (line(id=2, result=2) + line(id=1, result=1), [Answer(2, 2), Answer(1, 1)]),
    "error": (line(id=1, error={"code": -32602, "message": "no"}), [Failure(1, -32602, "no")]),
    "error null": (line(id=1, result=5, error=None), [Answer(1, 5)]),
    "codes of other types": (
        b"".join(
            line(id=id, error={"code": code, "message": "no"}) for id, code in enumerate([-32601.0, "-32601", 1.5])
        ),
        [Failure(0, -32601, "no"), Failure(1, -32601, "no"), Failure(2, None, "no")],
    ),
    "no code": (
        b"".join(coded(id, code) for id, code in enumerate([True, "x", [1], None])),
        [Failure(id, None, "no") for id in range(4)],
    ),
    "error text": (line(id=1, error="bad"), [Failure(1, None, '"bad"')]),
    "neither": (line(id=1), [Failure(1, None, "neither a result nor an error")]),
    "text for a number": (line(id="3", result=1), [Answer(3, 1)]),
    "a whole float": (line(id=3.0, result=1), [Answer(3, 1)]),
    "their request 0": (line(id=0, method="ping"), [Request(0, "ping", {})]),
    "their request, text": (line(id="a", method="m", params={"x": 1}), [Request("a", "m", {"x": 1})]),
    "their request, a number": (line(id=1.5, method="m"), [Request(1.5, "m")]),
    "their requests without a usable id": (
        b"".join(line(id=id, method="m") for id in (None, True, [1], {}, inf)),
        [Request(None, "m")] * 5,
    ),
    "params of another shape": (line(id=1, method="m", params=[1]), [Request(1, "m", {})]),
    "notice": (line(method="n", params={"x": 1}), [Notice("n", {"x": 1})]),
    "CRLF": (b'{"jsonrpc":"2.0","id":0,"result":1}\r\n', [Answer(0, 1)]),
    "BOM": (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":0,"result":1}\n', [Answer(0, 1)]),
    "line separators inside": (line(id=0, result="a\u2028b\u0085c"), [Answer(0, "a\u2028b\u0085c")]),
    "batch": (b'[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","method":"n"}]\n', [Answer(1, 1), Notice("n")]),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":0,"result":"\xff"}\n', [Answer(0, "\ufffd")]),
    "blank lines": (b"\n \n\r\n", []),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_whole_byte_by_byte_and_with_garbage(name: str) -> None:
    data, expected = CONVERSATIONS[name]
    assert waiting().feed(data) == expected
    peer = waiting()
    assert [event for byte in data for event in peer.feed(bytes([byte]))] == expected
    found = waiting().feed(data + b"\xff{garbage\n")
    assert found[:-1] == expected
    assert isinstance(found[-1], Noise)


@pytest.mark.parametrize(
    "data",
    [
        b"Server v1\n", b"42\n", b"[1,2]\n", b"null\n", b"{}\n", b'"x"\n', b"[" * 100_000 + b"\n",
        b'{"jsonrpc":"1.0","id":0,"result":1}\n', b'{"id":0,"result":1}\n',
        line(id=True, result=1), line(id=None, error={"code": -32700, "message": "?"}), line(id=9, result=1),
        line(id=[0], result=1), line(id={}, result=1), line(id="x", result=1), line(id="\u0663", result=1),
        line(id=1.5, result=1), line(id=10**400, result=1), line(method=5),
        b'log: {"jsonrpc":"2.0","id":0,"result":1}\n',
        b'50%\r{"jsonrpc":"2.0","id":0,"result":1}\n',
    ],
    ids=lambda data: data[:40].decode("utf-8", "replace").strip(),
)  # fmt: skip
def test_noise_disturbs_nothing(data: bytes) -> None:
    peer = waiting()
    assert kinds(peer.feed(data)) == [Noise]
    assert len(peer.pending) == 4
    assert peer.feed(line(id=0, result=1)) == [Answer(0, 1)]


def test_lines_that_are_no_messages() -> None:
    """Case M01."""
    found = case("M01")
    peer = waiting(2)
    events = [event for text in found["input"]["stdout_lines"] for event in peer.feed(text.encode() + b"\n")]
    assert sum(isinstance(event, Noise) for event in events) == found["expected"]["ignored_lines"]
    assert events[-1] == Answer(1, found["expected"]["result_for_1"])


def test_an_id_as_text() -> None:
    """Case M08."""
    found = case("M08")
    peer = waiting(found["input"]["sent_id"] + 1)
    events = [
        event for message in found["input"]["incoming"] for event in peer.feed(json.dumps(message).encode() + b"\n")
    ]
    assert events == [Notice("notifications/message"), Answer(3, found["expected"]["resolved_with"])]


def test_an_answer_counts_once_and_not_after_it_was_given_up() -> None:
    peer = waiting()
    assert kinds(peer.feed(line(id=0, result=1) * 2)) == [Answer, Noise]
    peer.forget(1)
    assert kinds(peer.feed(line(id=1, result=1))) == [Noise]


def test_ids_count_from_0_and_are_not_the_other_sides() -> None:
    peer = Peer()
    assert [peer.ask("a").id, peer.ask("b").id] == [0, 1]
    assert peer.feed(line(id=0, method="ping")) == [Request(0, "ping")]
    assert peer.pending == {0: "a", 1: "b"}


def test_the_last_line_needs_no_end() -> None:
    peer = waiting()
    assert peer.feed(line(id=0, result=1)[:-1]) == []
    assert peer.close() == [Answer(0, 1)]
    assert peer.close() == []


LONG = '"' + "x" * 30_000 + '"'


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (f'{{"jsonrpc":"2.0","id":1,"result":{LONG}}}', 1),
        (f'{{"id":1,"jsonrpc":"2.0","result":{LONG}}}', 1),
        (f'{{"jsonrpc":"2.0","id":"1","error":{{"code":1,"message":{LONG}}}}}', 1),
        (f'{{"result":{LONG},"jsonrpc":"2.0","id":1}}', 1),
        (f'{{ "result" : {LONG} , "id" : 2 }} ', 2),
        (f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"x":{LONG}}}}}', None),
        (f'{{"method":"m","params":{{"x":{LONG}}},"jsonrpc":"2.0","id":1}}', None),
        (f'{{"id":1,"jsonrpc":"2.0","method":"m","params":{LONG}}}', None),
        (f'{{"result":"{"x" * 30_000}\\"id\\":1}}', None),
        (LONG, None),
        (f'{{"jsonrpc":"2.0","id":77,"result":{LONG}}}', None),
    ],
    ids=range(11),
)
@pytest.mark.parametrize("step", [1, 1000, 10**6])
def test_a_line_that_is_too_long_fails_only_its_own_call(text: str, failed: int | None, step: int) -> None:
    peer = waiting(max_line_bytes=20_000)
    data = text.encode() + b"\n" + line(id=0, result="small")
    events = [event for at in range(0, len(data), step) for event in peer.feed(data[at : at + step])]
    assert events[1:] == [Answer(0, "small")]
    assert kinds(events[:1]) == ([Noise] if failed is None else [Failure])
    assert set(peer.pending) == {1, 2, 3} - {failed}
    assert len(text) > 20_000


def test_what_is_held_of_a_line_is_bounded() -> None:
    peer = waiting(max_line_bytes=20_000)
    for _ in range(100):
        peer.feed(b"x" * 50_000)
    assert len(peer._lines._line) < 60_000


def test_a_line_of_four_megabytes_is_whole() -> None:
    peer = waiting()
    text = "é\u2028" * 800_000
    data = line(id=0, result=text)
    events = [event for at in range(0, len(data), 65_536) for event in peer.feed(data[at : at + 65_536])]
    assert events == [Answer(0, text)]


def test_what_is_sent_is_one_line_for_every_reader_of_lines() -> None:
    data = encode(Request(0, "m", {"text": "a\nb\r\u2028c\u2029\x85\ud800 é"}))
    assert data.endswith(b"\n")
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == {
        "jsonrpc": "2.0", "id": 0, "method": "m", "params": {"text": "a\nb\r\u2028c\u2029\x85\ufffd é"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Request(0, "ping"), {"id": 0, "method": "ping"}),
        (Notice("n", {"a": 1}), {"method": "n", "params": {"a": 1}}),
        (Answer("x", {}), {"id": "x", "result": {}}),
        (Failure(0, -32601, "no"), {"id": 0, "error": {"code": -32601, "message": "no"}}),
        (Failure(None, -32600, "no"), {"id": None, "error": {"code": -32600, "message": "no"}}),
    ],
    ids=["request", "notice", "answer", "failure", "failure of no id"],
)
def test_the_wire_form(message: Any, body: dict[str, Any]) -> None:
    assert json.loads(encode(message)) == {"jsonrpc": "2.0", **body}


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(TypeError):
        encode(Request(0, "m", {"x": object()}))


ids = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["0", "1", "x", ""]) | json_values
messages = st.fixed_dictionaries(
    {"jsonrpc": st.sampled_from(["2.0", "1.0", 2])},
    optional={"id": ids, "method": json_values, "params": json_values, "result": json_values, "error": json_values},
)
hostile_lines = (
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b""))
    | (messages | st.lists(messages, max_size=3) | json_values).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
).map(lambda data: data + b"\n")


@given(lines=st.lists(hostile_lines, max_size=12), cuts=st.lists(st.integers(0, 500), max_size=6))
def test_whatever_comes_the_next_call_works(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(lines)
    whole = waiting(2).feed(data)
    peer = waiting(2)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    cut_up = [event for a, b in itertools.pairwise(places) for event in peer.feed(data[a:b])]
    assert repr(cut_up) == repr(whole)
    answered = [event.id for event in whole if isinstance(event, Answer | Failure)]
    assert len(answered) == len(set(answered))
    assert set(answered) <= {0, 1}
    request = peer.ask("tools/call")
    assert request.id == 2
    assert peer.feed(line(id=2, result="fine")) == [Answer(2, "fine")]
