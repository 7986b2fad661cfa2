"""Events to a session: replacements that nest, rewinds, tool calls, config, usage, and holes in the log."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.assemble import Assembler
from agentlab.journal import Event, Journal, Session, replay
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE, problems
from tests.cases import case
from tests.strategies import torn_histories


def numbered(events: list[Event]) -> list[Event]:
    return [{"seq": seq, "ts": 0.0} | event for seq, event in enumerate(events, 1)]


def said(text: str) -> Event:
    return {"type": "message", "message": user(text)}


def node(text: str) -> Message:
    return user(text) | {"origin": "compaction"}


def replace(start: int, end: int, text: str) -> Event:
    return {"type": "replace", "start": start, "end": end, "node": node(text), "reason": "compaction"}


def texts(session: Session) -> list[Any]:
    return [message["content"] for message in session.history]


def play(*events: Event) -> list[Any]:
    return texts(replay(numbered([{"type": "session_meta", "meta": {}}, *events])))


LETTERS = [said(letter) for letter in "abcdef"]  # numbers 2 to 7


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ([], "a b c d e f"),
        ([replace(2, 2, "A")], "A b c d e f"),
        ([replace(3, 5, "S")], "a S e f"),
        ([replace(2, 7, "S")], "S"),
        ([replace(3, 4, "S"), replace(8, 8, "T")], "a T d e f"),  # by the replacement's own number
        ([replace(3, 4, "S"), replace(2, 8, "T")], "T d e f"),
        ([replace(3, 4, "S"), replace(8, 5, "T")], "a T e f"),
        ([replace(3, 4, "S"), replace(2, 5, "T")], "T e f"),  # by a range that takes it in
        ([replace(3, 5, "S"), replace(5, 6, "T")], "a T f"),  # a range that only touches it
        ([replace(2, 3, "S"), said("g"), replace(8, 4, "T"), replace(10, 9, "U")], "U"),
        ([replace(2, 3, "S"), replace(2, 3, "T"), replace(8, 8, "U")], "U c d e f"),  # 8 was itself replaced: its part
        ([replace(90, 99, "S")], "a b c d e f"),
        ([replace(5, 3, "S")], "a b c d e f"),
        ([replace(1, 99, "S")], "S"),
        ([{"type": "rewind", "to": 4}], "a b c"),
        ([{"type": "rewind", "to": 0}], ""),
        ([{"type": "rewind", "to": 99}], "a b c d e f"),
        ([replace(2, 4, "S"), {"type": "rewind", "to": 7}], "a b c d e f"),  # the replacement is withdrawn
        ([replace(2, 4, "S"), {"type": "rewind", "to": 8}], "S d e f"),
        ([replace(2, 4, "S"), {"type": "rewind", "to": 5}, said("g")], "a b c d g"),
        ([{"type": "rewind", "to": 3}, said("g"), {"type": "rewind", "to": 6}], "a b"),  # nothing withdrawn comes back
        ([{"type": "rewind", "to": 3}, said("g"), {"type": "rewind", "to": 8}], "a b"),
        ([{"type": "rewind", "to": 3}, said("g"), replace(3, 9, "S")], "a S"),
        ([{"type": "rewind", "to": 3}, replace(4, 7, "S")], "a b"),  # what is gone cannot be replaced
    ],
    ids=lambda it: it.replace(" ", "") or "nothing" if isinstance(it, str) else str(len(it)),
)
def test_replace_and_rewind(more: list[Event], left: str) -> None:
    assert play(*LETTERS, *more) == left.split()


def test_a_broken_line_tears_no_more_than_itself() -> None:
    events = numbered([{"type": "session_meta", "meta": {}}, *LETTERS, replace(3, 5, "S"), replace(8, 6, "T")])
    for lost, left in [(2, "a T f"), (4, "a T f"), (7, "a b c T f"), (8, "a S e f")]:
        torn = [*events[:lost], {"type": "broken", "line": lost + 1}, *events[lost + 1 :]]
        found = replay(torn)
        assert found.skipped == 1
        if lost == 7:  # the inner replacement is lost: the outer one still ends where it did
            assert texts(found) == ["a", "b", "c", "d", "e", "f"]
        else:
            assert texts(found) == left.split()


def test_numbers_that_go_back_cost_nothing() -> None:
    events = numbered(LETTERS)
    for event, seq in zip(events, [2, 3, 999, 4, 4, 5], strict=True):
        event["seq"] = seq
    assert texts(replay(events)) == list("abcdef")
    assert texts(replay([*events, {"seq": 6} | replace(2, 4, "S")])) == ["S", "c", "f"]
    assert texts(replay([*events, {"seq": 6} | replace(4, 5, "S"), {"seq": 7} | replace(6, 6, "T")])) == list("abcT")
    assert texts(replay([*events, {"seq": 6, "type": "rewind", "to": 3}])) == ["a", "b"]


def looked_at(events: list[Event]) -> int:
    """How many lines of our replay run for these events: a count that knows no clock."""
    lines = 0

    def trace(frame: Any, kind: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != replay.__code__.co_filename:
            return None
        lines += kind in ("line", "opcode")
        frame.f_trace_opcodes = True  # a comprehension is one line, however long it runs
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        replay(events)
    finally:
        sys.settrace(before)
    return lines


def rewinding(turns: int) -> list[Event]:
    return numbered([it for n in range(turns) for it in (said("x"), {"type": "rewind", "to": 2 * n + 1})])


def doubled(turns: int) -> list[Event]:
    """One number twice, then replacements."""
    events = numbered([it for n in range(turns) for it in (said("x"), replace(2 * n + 2, 2 * n + 2, "S"))])
    for event in events:
        event["seq"] += 1
    return [said("first") | {"seq": 1}, said("again") | {"seq": 1}, *events]


@pytest.mark.parametrize("log", [rewinding, doubled], ids=lambda log: log.__name__)
def test_rewinds_and_odd_numbers_cost_linear_time(log: Any) -> None:
    short, long = looked_at(log(50)), looked_at(log(400))
    assert long < 11 * short
    assert len(replay(log(50)).history) == len(model(log(50)))


@pytest.mark.parametrize("seq", [None, 0, -1, True, 1.0, "2", 2**60], ids=str)
def test_an_odd_number_counts_on(seq: Any) -> None:
    events = [{"seq": 1} | said("a"), {"seq": seq} | said("b"), {"seq": 3} | said("c")]
    assert texts(replay([*events, {"seq": 4} | replace(2, 2, "S")])) == ["a", "S", "c"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message"},
        {"type": "message", "message": 42},
        {"type": "tool_call", "record": {}},
        {"type": "tool_call", "record": {"id": 7}},
        {"type": "tool_call"},
        {"type": "replace", "start": 1, "end": 2},
        {"type": "replace", "start": "1", "end": 2, "node": {}},
        {"type": "rewind", "to": None},
        {"type": "rewind", "to": True},
        {"type": "usage", "usage": [1]},
        {"type": "config", "config": 3},
        {"type": "session_meta", "meta": None},
    ],
    ids=json.dumps,
)
def test_a_record_that_lacks_what_it_needs_is_skipped(event: Event) -> None:
    found = replay(numbered([*LETTERS, event, said("g")]))
    assert (texts(found), found.skipped) == (list("abcdefg"), 1)


@pytest.mark.parametrize("kind", ["todos", "", None, 7, ["message"], {"a": 1}, "Message"], ids=str)
def test_unknown_types_are_ignored(kind: Any) -> None:
    found = replay(numbered([*LETTERS, {"type": kind, "message": user("x")}]))
    assert (texts(found), found.skipped) == (list("abcdef"), 0)


def calling(*ids: str) -> Event:
    return {"type": "message", "message": assistant("", *(call(id, "run") for id in ids))}


def state(id: str, status: str, **more: Any) -> Event:
    return {"type": "tool_call", "record": {"id": id, "name": "run", "status": status} | more}


def test_tool_calls_are_keyed_by_message_and_id() -> None:
    events = numbered(
        [
            said("go"),
            calling("a", "b"),  # 2
            state("a", "running"),
            state("a", "completed", output_path="x.txt"),
            {"type": "message", "message": tool("a", "1")},
            state("b", "rejected"),
            {"type": "message", "message": tool("b", "2")},
            calling("a"),  # 8
            state("a", "pending_approval"),
            state("a", "failed", message=2),
        ]
    )
    found = replay(events)
    assert {key: record["status"] for key, record in found.tool_calls.items()} == {
        (2, "a"): "failed",
        (2, "b"): "rejected",
        (8, "a"): "pending_approval",
    }
    assert found.tool_calls[2, "a"]["output_path"] == "x.txt"
    assert texts(found)[-1] == INTERRUPT_NOTE  # it never started


def test_a_call_that_was_running_has_crashed() -> None:
    events = numbered([said("go"), calling("a", "b"), state("a", "running"), said("and then?"), calling("a")])
    found = replay(events)
    assert found.tool_calls == {(2, "a"): {"id": "a", "name": "run", "status": "failed", "crashed": True}}
    assert [m["content"] for m in found.history if m["role"] == "tool"] == [
        UNKNOWN_NOTE,
        INTERRUPT_NOTE,
        INTERRUPT_NOTE,
    ]
    assert events[2]["record"]["status"] == "running"
    withdrawn = replay([*events, {"seq": 9, "type": "rewind", "to": 1}])
    assert (withdrawn.tool_calls, texts(withdrawn)) == ({}, ["go"])


def test_config_replaces_a_models_settings_whole() -> None:
    meta = {"model": "kimi", "base_url": "https://kimi", "temperature": 0.2, "title": "t", "system": "s"}
    start = {"type": "session_meta", "meta": meta}
    odd = {"presence_penalty": 1.5, "settings": {"x": 1}, "thinking_budget": 9, "some_vendors_switch": True}
    start["meta"] = meta | odd
    for change in ({"config": {"model": "codex"}}, {"model": "codex"}):
        found = replay(numbered([start, {"type": "config"} | change]))
        assert found.meta == {"model": "codex", "title": "t", "system": "s"}
    nested = {"type": "session_meta", "meta": {"model": {"name": "kimi", "base_url": "https://kimi"}}}
    change = {"type": "config", "config": {"model": {"name": "codex"}}}
    assert replay(numbered([nested, change])).meta == {"model": {"name": "codex"}}
    start["meta"] = meta
    assert replay(numbered([start, {"type": "config", "title": "new"}])).meta == meta | {"title": "new"}
    assert replay(numbered([start, {"type": "config", "model": "x"}, {"type": "rewind", "to": 1}])).meta == meta
    whole = {"model": "x", "service_tier": "flex"}
    for first in ({}, whole, {"temperature": 1}):
        twice = [start, {"type": "config", "config": first}, {"type": "config", "config": {"temperature": 0.5}}]
        assert replay(numbered(twice)).meta == {"title": "t", "system": "s", "temperature": 0.5}
    assert replay(numbered([start, {"type": "config", "config": {}}])).meta == meta
    own = {"id": "i", "parent": {"id": "p", "seq": 3}, "title": "t", "cwd": "/w"}
    kept = [{"type": "session_meta", "meta": own | {"model": "m"}}, {"type": "config", "config": whole}]
    assert replay(numbered(kept)).meta == own | whole
    assert meta["base_url"] == "https://kimi"


def test_usage_adds_up_and_stays_paid() -> None:
    openai = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
    anthropic = {
        "input_tokens": 10,
        "cache_read_input_tokens": 50,
        "cache_creation_input_tokens": 5,
        "output_tokens": 3,
    }
    events = [said("a"), {"type": "usage", "usage": openai}, said("b"), {"type": "usage", "usage": anthropic}]
    for more in ([], [{"type": "rewind", "to": 1}]):
        used = replay(numbered([*events, *more])).usage
        assert (used.prompt, used.hit, used.written, used.output) == (165, 114, 5, 10)


def test_reasoning_survives_save_and_resume(tmp_path: Any) -> None:
    found = case("T07")
    assembler = Assembler()
    for delta in found["input"]["deltas"]:
        assembler.feed({"choices": [{"delta": delta}]})
    message = assembler.message()
    result = tool("r", "text") | {"output_path": ".agent-spill/0001-0123456789.txt"}
    with Journal.create(tmp_path, {}) as journal:
        journal.append_all({"type": "message", "message": it} for it in (user("go"), message, result))
    resumed = replay(Journal.open(tmp_path, journal.id).events()).history
    assert resumed == [user("go"), message, result]
    assert resumed[1]["reasoning_content"] == found["expected"]["assistant_message_has"]["reasoning_content"]
    assert not resumed[1]["content"]


@given(torn_histories(), st.data())
def test_every_history_is_sendable_whatever_line_is_lost(history: list[Message], data: st.DataObject) -> None:
    events = numbered([{"type": "message", "message": message} for message in history])
    before = copy.deepcopy(events)
    if events:
        at = data.draw(st.integers(0, len(events) - 1))
        events[at] = {"type": "broken", "line": at + 1}
    assert problems(replay(events).history) == []
    assert replay(before).nodes == list(enumerate(history, 1))


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Words, replacements and rewinds with numbers that mostly mean something."""
    events: list[Event] = []
    for seq in range(1, draw(st.integers(1, 25)) + 1):
        kind = draw(st.sampled_from(["said", "said", "said", "replace", "rewind"]))
        low, high = sorted(draw(st.tuples(st.integers(0, seq), st.integers(0, seq))))
        if kind == "said" or seq == 1:
            events.append(said(f"#{seq}"))
        elif kind == "replace":
            events.append(replace(low, high, f"S{seq}"))
        else:
            events.append({"type": "rewind", "to": high})
    return numbered(events)


def model(events: list[Event]) -> list[str]:
    """The same rules, written down the slow way: a rewind starts again, a node lists the numbers that it stands for."""
    live: list[Event] = []
    for event in events:
        live = [it for it in live if it["seq"] <= event["to"]] if event["type"] == "rewind" else [*live, event]
    view: list[tuple[set[int], str]] = []
    spans: dict[int, set[int]] = {}
    for event in live:
        if event["type"] == "message":
            view.append(({event["seq"]}, event["message"]["content"]))
            continue
        low = min(spans.get(event["start"], {event["start"]}))
        high = max(spans.get(event["end"], {event["end"]}))
        hit = [at for at, (held, _) in enumerate(view) if min(held) <= high and max(held) >= low]
        if hit:
            spans[event["seq"]] = set().union(*(view[at][0] for at in hit))
            view[hit[0] : hit[-1] + 1] = [(spans[event["seq"]], event["node"]["content"])]
    return [text for _, text in view]


@given(st.data())
def test_odd_numbers_follow_the_rules_too(data: st.DataObject) -> None:
    events = data.draw(streams())
    for event in events:
        if event["type"] == "message" and data.draw(st.integers(0, 3)) == 0:
            event["seq"] = data.draw(st.integers(1, len(events)))
    assert texts(replay(events)) == scattered(events)


def scattered(events: list[Event]) -> list[str]:
    """The rules for numbers that may go back: whatever overlaps goes, and the node stands where the first stood."""
    live: list[Event] = []
    for event in events:
        live = [it for it in live if it["seq"] <= event["to"]] if event["type"] == "rewind" else [*live, event]
    view: list[tuple[int, int, str]] = []
    spans: dict[int, tuple[int, int]] = {}
    for event in live:
        if event["type"] == "message":
            view.append((event["seq"], event["seq"], event["message"]["content"]))
            continue
        low, high = spans.get(event["start"], (event["start"], 0))[0], spans.get(event["end"], (0, event["end"]))[1]
        hit = [at for at, (first, last, _) in enumerate(view) if first <= high and last >= low]
        if hit:
            first, last = min(view[at][0] for at in hit), max(view[at][1] for at in hit)
            spans[event["seq"]] = (first, last)
            view[hit[0]] = (first, last, event["node"]["content"])
            view = [node for at, node in enumerate(view) if at not in hit[1:]]
    return [text for _, _, text in view]


@given(streams())
def test_replay_follows_the_rules(events: list[Event]) -> None:
    assert texts(replay(events)) == model(events)


def test_a_session_draws_itself() -> None:
    events = [said("<script>"), said("b"), replace(2, 2, "S"), {"type": "broken", "line": 4}]
    picture = replay(numbered(events))._repr_html_()
    assert "2 messages, 0 tool calls, 1 lines skipped" in picture and "<script>" not in picture
