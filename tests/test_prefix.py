"""Common prefixes, whole requests compared, the culprit, and the guard for other people's test suites."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.messages import Message, assistant, call, tool, user, wire
from agentlab.prefix import AROUND, BLOCK, AppendOnlyError, as_text, assert_append_only, common_prefix, diff
from tests.cases import case
from tests.strategies import json_values, texts, whole_histories

DATA = Path(__file__).parent.parent / "data"
READ = {"type": "function", "function": {"name": "read_file", "description": "Read a file.", "parameters": {}}}
GREP = {"type": "function", "function": {"name": "grep", "description": "Search.", "parameters": {}}}
HISTORY = [
    user("Which scripts are there?"),
    assistant("", call("c1", "read_file", path="package.json")),
    tool("c1", "build, test, lint"),
    assistant("Three."),
]


def openai(*messages: Message, system: str = "Be kind.", tools: Any = (READ, GREP)) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": system}, *copy.deepcopy(messages)],
        "tools": [*tools],
    }


def anthropic(*messages: Message, system: Any = "Be kind.", tools: Any = (READ, GREP)) -> dict[str, Any]:
    return {"model": "m", "system": system, "messages": copy.deepcopy([*messages]), "tools": [*tools]}


requests = st.builds(
    lambda history, tools, system: {"tools": tools, "messages": history, **({"system": system} if system else {})},
    whole_histories(),
    st.lists(st.sampled_from([READ, GREP]), max_size=2),
    texts,
)


# Two texts


def naive(a: str | bytes, b: str | bytes) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@given(st.text("aé😀\ud800", max_size=9), st.text("aé😀\ud800", max_size=5), st.text("aé😀\ud800", max_size=5))
def test_the_common_prefix_is_what_a_loop_finds(shared: str, a: str, b: str) -> None:
    one, other = shared + a, shared + b
    assert common_prefix(one, other) == common_prefix(other, one) == naive(one, other)
    raw, other_raw = one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass")
    assert common_prefix(raw, other_raw) == naive(raw, other_raw)


@pytest.mark.parametrize("at", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 9, 3 * BLOCK - 1])
def test_a_break_is_found_wherever_it_lies_in_a_block(at: int) -> None:
    text = "x" * (3 * BLOCK)
    for other in (text[:at] + "y" + text[at + 1 :], text[:at] + "😀" + text[at + 1 :], text[:at]):
        assert common_prefix(text, other) == common_prefix(other, text) == at
    assert common_prefix(text.encode(), text[:at].encode() + b"y") == at
    assert common_prefix(text, "x" + text) == 3 * BLOCK


def test_characters_are_counted_in_str_and_bytes_in_bytes() -> None:
    assert common_prefix("é😀a", "é😀b") == 2
    assert common_prefix("é😀a".encode(), "é😀b".encode()) == 6
    assert common_prefix("", "a") == common_prefix(b"", b"") == 0


@pytest.mark.parametrize("pair", [("a", b"a"), (b"a", "a"), (["a"], ["a"]), (None, "a"), (b"a", bytearray(b"a"))])
def test_only_two_texts_of_one_kind_can_be_compared(pair: tuple[Any, Any]) -> None:
    with pytest.raises(AgentLabError, match="two str or two bytes"):
        common_prefix(*pair)


# The seed's three experiments


def seed_requests(*, in_system: bool, trimmed: bool = False) -> list[str]:
    demo = json.loads((DATA / "seed_demos_prefix.json").read_bytes())["three_requests"]
    outputs = [result["head"] + result["then"] * result["times"] for result in demo["results"]]
    written = []
    for number, time in enumerate(demo["clock"]):
        system, words = demo["system"], demo["user"]
        if in_system:
            system = demo["clock_in_system"].format(clock=time) + system
        else:
            words += demo["clock_in_user"].format(clock=demo["clock"][-1][:-1] + "4")
        parts = [("system", system), ("tools", demo["tools"]), ("user", words)]
        for said, output in list(zip(demo["calls"], outputs, strict=True))[:number]:
            cut = output[: demo["trimmed"]["keep"]] + demo["trimmed"]["note"]
            early = said == demo["calls"][0]
            parts += [("assistant", said), ("tool", cut if trimmed and number == 2 and early else output)]
        written.append("\n\n".join(f"[{label}]\n{text}" for label, text in parts))
    return written


def reusable(previous: str, current: str) -> tuple[int, int, str]:
    shared = common_prefix(previous, current)
    return shared, len(previous), f"{shared / len(previous):.1%}"


def test_a_clock_in_the_system_prompt_leaves_almost_nothing() -> None:
    first, second, third = seed_requests(in_system=True)
    assert reusable(first, second) == (21, 209, "10.0%")
    assert reusable(second, third) == (21, 594, "3.5%")


def test_a_clock_in_the_newest_message_costs_nothing() -> None:
    first, second, third = seed_requests(in_system=False)
    assert reusable(first, second) == (212, 212, "100.0%")
    assert reusable(second, third) == (597, 597, "100.0%")


def test_trimming_an_old_result_costs_all_that_follows_it() -> None:
    _, second, _ = seed_requests(in_system=False)
    trimmed = seed_requests(in_system=False, trimmed=True)[2]
    assert reusable(second, trimmed) == (353, 597, "59.1%")
    assert len(trimmed) - 353 == 131


# Whole requests


@given(requests, whole_histories(max_turns=1))
def test_what_only_adds_is_reused_whole(request: dict[str, Any], more: list[Message]) -> None:
    longer = {**request, "messages": [*request["messages"], *(m for m in more if m["role"] != "system")]}
    found = diff(request, longer)
    assert (found.culprit, found.ratio, found.where, found.context) == (None, 1.0, None, "")
    assert found.reused == found.previous_size == len(as_text(request))
    assert as_text(longer).startswith(as_text(request))
    assert_append_only([request, longer, longer])


@given(requests, requests)
def test_a_diff_finds_what_the_texts_have_in_common(previous: dict[str, Any], current: dict[str, Any]) -> None:
    before = jsonio.dumps([previous, current])
    found = diff(previous, current)
    old, new = as_text(previous), as_text(current)
    assert found.previous_size == len(old)
    assert found.reused <= common_prefix(old, new)
    if '"' not in "".join(m["content"] for m in [*previous["messages"], *current["messages"]]):
        assert found.reused == common_prefix(old, new)
        assert (found.culprit is None) == new.startswith(old)
    assert found.ratio == (found.reused / found.previous_size if old else 1.0)
    assert (found.ratio < 1.0) == (found.culprit is not None) == bool(found.where) == bool(found.context)
    assert jsonio.dumps([previous, current]) == before


@given(whole_histories(), st.data())
def test_a_changed_message_is_the_culprit(history: list[Message], data: st.DataObject) -> None:
    assume(history)
    changed = copy.deepcopy(history)
    at = data.draw(st.integers(0, len(history) - 1))
    changed[at]["content"] += "!"
    found = diff(history, changed)
    assert found.culprit == ("system" if changed[at]["role"] == "system" else f"messages[{at}]")
    assert found.where == f"messages[{at}].content"
    assert found.reused == common_prefix(as_text(history), as_text(changed)) > len(as_text(history[:at]))


CULPRITS = [
    (openai(*HISTORY), openai(*HISTORY, system="It is 10:02. Be kind."), "system", "messages[0].content"),
    (anthropic(*HISTORY), anthropic(*HISTORY, system="Be kinder."), "system", "system"),
    (
        anthropic(system=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        anthropic(system=[{"type": "text", "text": "a"}, {"type": "text", "text": "c"}]),
        "system",
        "system[1].text",
    ),
    (anthropic(*HISTORY), anthropic(*HISTORY, system=None), "system", "system"),
    (openai(*HISTORY), openai(*HISTORY, tools=[GREP, READ]), "tools", "tools[0].function.name"),
    (openai(*HISTORY), openai(*HISTORY, tools=[READ]), "tools", "tools[1]"),
    (openai(*HISTORY), openai(*HISTORY, tools=[READ, GREP, READ]), "tools", "tools[2]"),
    (openai(*HISTORY), openai(*HISTORY, tools=[], system="Be kinder."), "tools", "tools[0]"),
    (openai(*HISTORY), openai(*HISTORY[:2]), "messages[3]", "messages[3]"),
    (openai(*HISTORY), openai(*HISTORY[:2], tool("c1", "build"), HISTORY[3]), "messages[3]", "messages[3].content"),
    (
        HISTORY,
        [HISTORY[0], assistant("", call("c1", "read_file", path="a.json")), *HISTORY[2:]],
        "messages[1]",
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        [{"role": "developer", "content": "a"}, user("Go")],
        [{"role": "developer", "content": "b"}, user("Go")],
        "system",
        "messages[0].content",
    ),
    (
        [user("Go"), {"role": "system", "content": "a"}],
        [user("Go"), {"role": "system", "content": "b"}],
        "messages[1]",
        "messages[1].content",
    ),
    (HISTORY, HISTORY[1:], "messages[0]", "messages[0].role"),
    (HISTORY, [], "messages[0]", "messages[0]"),
    ([user("a")], [{"role": "system", "content": "a"}, user("a")], "system", "messages[0].role"),
    ([user("a")], [{"content": "a", "role": "user"}], "messages[0]", "messages[0]"),
    ([{"n": 1}], [{"n": True}], "messages[0]", "messages[0].n"),
    ([{"n": 1}], [{"n": 1.0}], "messages[0]", "messages[0].n"),
    ([{"n": None}], [{"n": "null"}], "messages[0]", "messages[0].n"),
    ([{"n": []}], [{"n": {}}], "messages[0]", "messages[0].n"),
    (["S", "U1"], ["S", "U2"], "messages[1]", "messages[1]"),
    ([{"odd key\x1b": 1}], [{"odd key\x1b": 2}], "messages[0]", r"messages[0]['odd key\x1b']"),
]


@pytest.mark.parametrize(("previous", "current", "culprit", "where"), CULPRITS, ids=range(len(CULPRITS)))
def test_the_culprit_and_its_field_are_named(previous: Any, current: Any, culprit: str, where: str) -> None:
    found = diff(previous, current)
    assert (found.culprit, found.where) == (culprit, where)
    assert found.ratio < 1.0
    assert found.where in found.sentence and f"{found.ratio:.1%}" in found.sentence


def test_the_first_of_several_changes_in_the_order_of_the_layout_counts() -> None:
    changed = openai(*HISTORY[:-1], assistant("Four."), system="It is 10:02.", tools=[GREP])
    assert diff(openai(*HISTORY), changed).culprit == "tools"
    assert diff(openai(*HISTORY), changed, order=("system", "tools", "messages")).culprit == "system"
    assert as_text(changed, order=("system", "messages", "tools")).endswith(as_text({"messages": [], "tools": [GREP]}))


def test_a_tool_whose_keys_come_in_another_order_is_another_text() -> None:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
    turned = {**parameters, "properties": dict(reversed(parameters["properties"].items()))}
    assert turned == parameters
    one, other = ([{"function": {"name": "read", "parameters": schema}}] for schema in (parameters, turned))
    found = diff(openai(tools=one), openai(tools=other))
    assert (found.culprit, found.where) == ("tools", "tools[0].function.parameters.properties")


def test_what_never_becomes_part_of_a_prompt_is_not_compared() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    used = {"type": "tool_use", "id": "t", "name": "run", "input": {"content": [], "cache_control": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}]}
    first = anthropic(
        {"role": "user", "content": [{"type": "text", "text": "Go", **mark}]},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [{**result, "content": [{"type": "text", "text": "ok", **mark}]}]},
        tools=[{**READ, **mark}],
        system=[{"type": "text", "text": "Be kind.", **mark}],
    )
    second = anthropic(
        {"role": "user", "content": "Go", "origin": "watchdog"},
        {"role": "assistant", "content": [{**used, **mark}]},
        {"role": "user", "content": [{**result, **mark}]},
        tools=[READ],
    )
    assert diff(first, {**second, "model": "another", "temperature": 1}).culprit is None
    assert diff(second, first).ratio == 1.0
    other = copy.deepcopy(second)
    other["messages"][1]["content"][0]["input"]["cache_control"] = 2
    assert diff(second, other).where == "messages[1].content[0].input.cache_control"
    history = [{**message, "origin": "x"} for message in HISTORY]
    assert diff(history, wire(history)).culprit is None


def test_the_words_around_the_break_are_shown_and_bounded() -> None:
    long = "a" * 500
    found = diff([user(f"{long} at 10:01 \x1b[31m{long}")], [user(f"{long} at 10:02 \x1b[31m{long}")])
    assert "at 10:01" in found.context and "at 10:02" in found.context
    assert "\x1b" not in found.context + found.sentence
    assert found.context.count("a") < 5 * AROUND
    huge = {"key" * 1000: {"key" * 1000: "a"}}
    assert len(diff([huge], [{"key" * 1000: {"key" * 1000: "b"}}]).sentence) < 1000
    assert "became nothing" in diff([user("a"), user("b")], [user("a")]).context


def test_the_first_request_of_all_has_nothing_to_lose() -> None:
    found = diff([], HISTORY)
    assert (found.reused, found.previous_size, found.ratio, found.culprit) == (0, 0, 1.0, None)


@pytest.mark.parametrize(
    "request_",
    [
        "text",
        b"bytes",
        None,
        7,
        {},
        {"messages": None},
        {"messages": "text"},
        {"messages": {"role": "user"}},
        {"messages": [], "tools": "read"},
        [{"content": object()}],
        [{1: "a"}],
        [{"content": {"set"}}],
    ],
    ids=range(12),
)
def test_what_is_no_request_is_refused_with_the_way_out(request_: Any) -> None:
    for pair in ((request_, HISTORY), (HISTORY, request_)):
        with pytest.raises(AgentLabError, match=r"pass a list of messages|build it from dicts"):
            diff(*pair)
    with pytest.raises(AgentLabError, match=r"pass a list of messages|build it from dicts"):
        as_text(request_)


def test_nesting_without_end_is_refused_too() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(AgentLabError, match="no JSON"):
        diff([deep], [deep])
    with pytest.raises(AgentLabError, match="orders of tools, system, messages"):
        diff(HISTORY, HISTORY, order=("tools", "messages"))


@given(st.lists(json_values, max_size=4), st.lists(json_values, max_size=4))
def test_entries_that_are_no_messages_are_compared_all_the_same(a: list[Any], b: list[Any]) -> None:
    assert diff(a, b).previous_size == len(as_text(a))
    assert (diff(a, b).culprit is None) == (jsonio.dumps(a) == jsonio.dumps(b[: len(a)]))


# The guard


def test_an_append_only_session_passes_whatever_it_says() -> None:
    sent = [openai(*HISTORY[:n]) for n in range(1, 5)]
    assert_append_only(sent)
    assert_append_only(iter(sent))
    assert_append_only([])
    assert_append_only(sent[:1])


def test_the_guard_names_the_request_and_the_culprit() -> None:
    trimmed = [HISTORY[0], HISTORY[1], tool("c1", "build, [cut]"), HISTORY[3], user("And?")]
    sent = [openai(*HISTORY[:2]), openai(*HISTORY), openai(*trimmed), openai(*HISTORY)]
    with pytest.raises(AssertionError, match=r"requests\[2\].*messages\[3\] is the culprit.*test, lint") as caught:
        assert_append_only(sent)
    assert isinstance(caught.value, AgentLabError) and isinstance(caught.value, AppendOnlyError)
    assert (caught.value.number, caught.value.diff.culprit) == (2, "messages[3]")


# Cases


def test_case_p01_a_clock_in_front_of_everything() -> None:
    given_ = case("P01")
    first, second = (anthropic(user("Go"), system=f"It is {time}. Be kind.") for time in given_["input"]["build_at"])
    assert diff(first, second).culprit == "system"
    late = [anthropic(user("Go"), user(f"It is {time}.")) for time in given_["input"]["build_at"]]
    assert given_["expected"]["first_difference"].startswith("only in the newest user message")
    assert diff(*late).culprit == "messages[1]"


def test_case_p02_a_time_in_an_old_result_breaks_nothing() -> None:
    given_ = case("P02")
    sent = [given_["input"][f"request_{n}"] for n in (1, 2, 3)]
    for previous, current in ((sent[0], sent[1]), (sent[1], sent[2])):
        assert bool(diff(previous, current).culprit) is given_["expected"]["prefix_broken"]
    assert diff(sent[1], sent[2]).reused == len(as_text(sent[1]))
    assert_append_only(sent)


def test_case_p03_tools_in_another_order_and_a_rewritten_message() -> None:
    given_ = case("P03")["input"]
    tools = [[{"name": name} for name in given_[f"turn_{n}_tools"]] for n in (1, 2)]
    assert diff(openai(tools=tools[0]), openai(tools=tools[1])).culprit == "tools"
    history = [user("a"), assistant("b"), user("c"), assistant("thinking, then d"), user("e")]
    changed = [*history[: given_["rewritten_message_index"]], assistant("d"), *history[4:]]
    found = diff(history, changed)
    assert found.culprit == "messages[3]"
    assert len(as_text(history[:3])) <= found.reused < len(as_text(history[:4]))


# The picture


def test_the_picture_shows_what_is_paid_again_and_nothing_can_act_in_it() -> None:
    evil = "<script>alert(1)</script>"
    trimmed = [HISTORY[0], HISTORY[1], tool("c1", evil), HISTORY[3], user("And?")]
    markup = diff(openai(*HISTORY), openai(*trimmed))._repr_html_()
    for words in ("cached 5", "culprit 1", "paid again 1", "new 1", "messages[3].content"):
        assert words in markup
    assert evil not in markup and "&lt;script&gt;" in markup


@given(requests, requests)
def test_every_diff_can_be_drawn(previous: dict[str, Any], current: dict[str, Any]) -> None:
    markup = diff(previous, current)._repr_html_()
    assert f"{len(current['messages']) + len(current['tools']) + ('system' in current):,} message" in markup


def test_the_picture_of_a_huge_request_stays_small() -> None:
    history = [user(f"{n} " * 500) for n in range(5000)]
    assert len(diff(history, [*history[:-1], user("b")])._repr_html_()) < 100_000


@pytest.mark.parametrize("odd", [[1, None, "x", ["y"]], [{"role": "tool"}, {"content": [{"text": "a"}, 4]}]])
def test_odd_entries_can_be_drawn(odd: list[Any]) -> None:
    assert "culprit" not in diff([], odd)._repr_html_()
    assert "messages[0]" in diff(odd, [])._repr_html_()


def test_no_key_of_our_own_breaks_a_prefix() -> None:
    marked = tool("a", "x") | {"output_path": "art/1.txt", "origin": "repair"}
    listed = marked | {"content": [{"type": "text", "text": "x"}]}
    for message in (marked, listed):
        assert diff([message], wire([message])).culprit is None and diff(wire([message]), [message]).culprit is None
    assert as_text([marked]) == as_text(wire([marked]))
    assert_append_only([[tool("a", "x")], [marked, user("b")]])
