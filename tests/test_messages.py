from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import malformed_histories, torn_histories, whole_histories

from agentlab.messages import (
    Message,
    assistant,
    call,
    calls_of,
    canonical_json,
    groups,
    jsonl,
    size_bytes,
    tool,
    user,
    wire,
)

histories = whole_histories() | torn_histories()
texts = st.text('ab é日😀\u2028\n"\\\x00\ud83d', max_size=6)  # a lone surrogate too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def shuffled(value: Any, rnd: Any) -> Any:
    """The same value with the keys of every dict in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(inner, rnd)) for key, inner in value.items()]
        rnd.shuffle(items)
        return dict(items)
    return [shuffled(inner, rnd) for inner in value] if isinstance(value, list) else value


def results_of_calls(history: list[Message]) -> list[tuple[int, int]]:
    """(index of the call's message, index of a result of it), found by looking back from every result."""
    found = []
    for here, message in enumerate(history):
        if message.get("role") == "tool":
            back = next((i for i in range(here - 1, -1, -1) if history[i].get("role") == "assistant"), None)
            if back is not None and message.get("tool_call_id") in [c.get("id") for c in calls_of(history[back])]:
                found.append((back, here))
    return found


def test_builders_by_value() -> None:
    asked = call("c1", "read", path="a.txt", id="x", name="y", flag=True)
    assert user("hi") == {"role": "user", "content": "hi"}
    assert assistant("ok") == {"role": "assistant", "content": "ok"}
    assert asked == {
        "id": "c1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path":"a.txt","id":"x","name":"y","flag":true}'},
    }
    assert assistant("", asked) == {"role": "assistant", "content": "", "tool_calls": [asked]}
    assert call("c", "f")["function"]["arguments"] == "{}"
    assert tool("c1", "text") == {"role": "tool", "tool_call_id": "c1", "content": "text"}


@pytest.mark.parametrize(
    "message",
    [
        user("x"),
        assistant("x"),
        {"role": "assistant", "tool_calls": None},
        {"role": "user", "tool_calls": [call("a", "f")]},
    ],
)
def test_no_calls(message: Message) -> None:
    assert calls_of(message) == []


def test_calls_of_skips_what_is_no_call() -> None:
    asked = call("a", "f")
    assert calls_of({"role": "assistant", "tool_calls": [None, asked, "b"]}) == [asked]


def spans(history: list[Message]) -> list[tuple[int, int]]:
    return [(group.start, group.end) for group in groups(history)]


def test_a_call_and_all_its_results_are_one_group() -> None:
    history = [
        user("q"),
        assistant("", call("a", "f"), call("b", "g")),
        tool("b", "2"),
        tool("a", "1"),
        assistant("done"),
    ]
    assert spans(history) == [(0, 1), (1, 4), (4, 5)]


def test_what_stands_between_a_call_and_its_result_belongs_to_the_group() -> None:
    history = [assistant("", call("a", "f"), call("b", "g")), tool("a", "1"), user("wait"), tool("b", "2"), user("now")]
    assert spans(history) == [(0, 4), (4, 5)]


def test_the_same_id_may_come_back_in_a_later_turn() -> None:
    turn = [user("q"), assistant("", call("0", "f")), tool("0", "r"), assistant("a")]
    assert spans(turn + turn) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 7), (7, 8)]


def test_a_result_without_its_call_stands_alone() -> None:
    history = [tool("a", "early"), assistant("", call("a", "f")), assistant("said"), tool("a", "late"), tool("z", "?")]
    assert spans(history) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_unanswered_and_empty() -> None:
    assert spans([assistant("", call("a", "f")), user("hello?")]) == [(0, 1), (1, 2)]
    assert groups([]) == []


@given(histories)
def test_groups_cover_the_history_and_part_no_call_from_its_result(history: list[Message]) -> None:
    found = groups(history)
    pairs = results_of_calls(history)
    assert [message for group in found for message in group.messages] == history
    assert [group.start for group in found] == [0, *(group.end for group in found)][: len(found)]
    for group in found:
        assert group.start < group.end and len(group.messages) == group.end - group.start
        assert not [pair for pair in pairs if pair[0] < group.start <= pair[1]], "a pair was parted"
        for cut in range(group.start + 1, group.end):
            assert any(asked < cut <= answered for asked, answered in pairs), "larger than it need be"


@given(malformed_histories())
def test_groups_of_hardly_a_history_cover_it_too(history: list[Any]) -> None:
    entries = [entry for entry in history if isinstance(entry, dict)]
    assert [message for group in groups(entries) for message in group.messages] == entries


def test_many_results_are_linear() -> None:
    count = 20_000
    ids = [str(n) for n in range(count)]
    history = [assistant("", *(call(id, "f") for id in ids)), *(tool(id, "r") for id in ids)]
    assert spans(history) == [(0, count + 1)]


@given(histories, st.data())
def test_wire_takes_off_our_own_keys_and_nothing_else(history: list[Message], draws: st.DataObject) -> None:
    history = [message | draws.draw(st.sampled_from([{}, {"name": "n"}, {"origins": 1}])) for message in history]
    marked = copy.deepcopy(history)
    for message in marked:
        if draws.draw(st.booleans()):
            message["origin"] = "compaction"
        if draws.draw(st.booleans()):
            message["output_path"] = "spill/0001-9f2c41d07a.txt"
    before = copy.deepcopy(marked)
    bare = [
        {key: value for key, value in message.items() if key not in ("origin", "output_path")} for message in history
    ]
    assert wire(marked) == bare
    assert marked == before
    for sent in wire(marked):
        sent["content"] = "changed"
    assert marked == before


def test_wire_leaves_origin_inside_a_message_alone() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x", "origin": "kept"}], "origin": "repair"}
    assert wire([message]) == [{"role": "user", "content": [{"type": "text", "text": "x", "origin": "kept"}]}]


@given(json_values, st.randoms(use_true_random=False))
def test_canonical_json_does_not_depend_on_key_order(value: Any, rnd: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(shuffled(value, rnd)) == text
    assert canonical_json(json.loads(text)) == text
    text.encode()


def test_canonical_json_by_value() -> None:
    assert canonical_json({"b": [1.0, {"d": None, "c": "é\u2028😀"}], "a": "\n"}) == (
        '{"a":"\\n","b":[1.0,{"c":"é\u2028😀","d":null}]}'
    )
    assert canonical_json("\ud83d") == '"\\ud83d"'
    with pytest.raises(TypeError):
        canonical_json({1, 2})


@given(st.lists(st.dictionaries(texts, json_values, max_size=4), max_size=4))
def test_jsonl_is_one_line_per_message_and_size_its_bytes(history: list[Message]) -> None:
    data = jsonl(history)
    lines = data.split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line) for line in lines] == [json.loads(json.dumps(message)) for message in history]
    assert [line.decode() for line in lines] == [canonical_json(message) for message in history]
    assert size_bytes(history) == len(data)
    assert b"\r" not in data


def test_size_is_in_utf8_bytes() -> None:
    assert size_bytes([]) == 0
    assert size_bytes([user("")]) == len('{"content":"","role":"user"}\n')
    empty = size_bytes([user("")])
    sizes = {"a": 1, "é": 2, "日": 3, "😀": 4, "\u2028": 3, "\n": 2, "\x00": 6, "\ud800": 6}
    for text, size in sizes.items():
        assert size_bytes([user(text)]) - empty == size, repr(text)
    assert size_bytes([user("x")] * 3) == 3 * (empty + 1)


def test_a_line_separator_inside_text_cuts_no_line() -> None:
    history = [user("a\u2028b\u2029c\u0085d"), user("e\r\nf")]
    assert len(jsonl(history).split(b"\n")) == 3
    assert [json.loads(line) for line in jsonl(history).split(b"\n")[:-1]] == history
