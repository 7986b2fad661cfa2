"""layersummary: five fields and nothing else, or a reason; the person's words do not depend on the summariser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab.layersummary import (
    FIELDS,
    FIELDS_PROMPT,
    Condensed,
    condense,
    fields_summarizer,
    is_summary,
    last_words,
    read_fields,
    room,
    summary_message,
)
from agentlab.messages import Message, assistant, call, size_bytes, tool, user
from agentlab.simulator import Simulator
from agentlab.snip import snip
from tests.strategies import json_values

FIVE: dict[str, Any] = {
    "current_goal": "Port it — 全部.",
    "key_findings": ["The tests pass."],
    "files_read_or_changed": ["src/a.py"],
    "remaining_work": [],
    "user_constraints": "",
}
SYSTEM = {"role": "system", "content": "Rules."}
OLD = [SYSTEM, user("Port it."), assistant("", call("a", "read")), tool("a", "x" * 5_000), assistant("Read.")]


def without(name: str) -> dict[str, Any]:
    return {field: value for field, value in FIVE.items() if field != name}


def condensed(answer: Any, history: list[Message] | None = None, **options: Any) -> Condensed:
    summarize: Callable[[str], Any] = answer if callable(answer) else lambda source: answer
    history = OLD if history is None else history
    words = options.pop("words", last_words(history))
    return run(condense(history, summarize=summarize, transcript="art/t.jsonl", words=words, **options))


def test_the_five_fields_are_read() -> None:
    assert read_fields(json.dumps(FIVE)) == FIVE == read_fields(f" \n{json.dumps(FIVE, indent=2)}\n")
    assert list(FIVE) == list(FIELDS) and all(f'"{name}"' in FIELDS_PROMPT for name in FIELDS)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "no JSON"),
        ("Here it is: {}", "no JSON"),
        ("```json\n" + json.dumps(FIVE) + "\n```", "no JSON"),
        (json.dumps(FIVE) + json.dumps(FIVE), "no JSON"),
        (json.dumps(FIVE)[:-1], "no JSON"),
        ("[]", "list"),
        ("null", "NoneType"),
        ("{}", "current_goal, key_findings"),
        (json.dumps(FIVE | {"notes": "x"}), "must not have: notes"),
        (json.dumps(FIVE | {"key_findings": None}), "key_findings"),
        (json.dumps(FIVE | {"key_findings": 7}), "key_findings"),
        (json.dumps(FIVE | {"key_findings": {"a": "b"}}), "key_findings"),
        (json.dumps(FIVE | {"key_findings": ["a", 1]}), "key_findings"),
        (json.dumps(dict.fromkeys(FIELDS, " ")), "blank"),
        (json.dumps({name: [] for name in FIELDS}), "blank"),
        (json.dumps({name.title(): value for name, value in FIVE.items()}), "lacks"),
    ],
)
def test_anything_else_is_refused_with_a_reason(answer: str, said: str) -> None:
    reason = read_fields(answer)
    assert isinstance(reason, str) and said in reason and reason.endswith(".")


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_is_needed(name: str) -> None:
    assert read_fields(json.dumps(without(name))) == f"The summary lacks {name}."


@given(json_values | st.dictionaries(st.sampled_from([*FIELDS, "x"]), json_values))
def test_any_json_is_read_or_refused(value: Any) -> None:
    found = read_fields(json.dumps(value))
    assert found == value or isinstance(found, str)
    if isinstance(found, dict):
        assert set(found) == set(FIELDS)


def test_the_summary_then_the_persons_last_words() -> None:
    sources: list[str] = []

    def scribe(source: str) -> str:
        sources.append(source)
        return json.dumps(FIVE)

    found = condensed(scribe)
    [system, summary, words] = found.history
    assert (system, words, found.fields, found.reason) == (SYSTEM, OLD[1], FIVE, "")
    assert summary["role"] == "user" and summary["origin"] == "compaction" and is_summary(summary)
    assert 'read_file("art/t.jsonl")' in summary["content"] and summary["output_path"] == "art/t.jsonl"
    assert "全部" in summary["content"] and "4 earlier messages" in summary["content"]
    assert summary == summary_message(dict(reversed(FIVE.items())), dropped=4, transcript="art/t.jsonl")
    assert "Port it." in sources[0] and "Rules." not in sources[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "nothing"),
        (None, "NoneType"),
        ("A fine conversation.", "no JSON"),
        (json.dumps(FIVE | {"more": ""}), "must not have"),
        (json.dumps(without("current_goal")), "lacks current_goal"),
        (assistant(json.dumps(FIVE), call("x", "run")), "called a tool"),
        (json.dumps(FIVE | {"key_findings": "y" * 9_000}), "characters"),
    ],
    ids=["blank", "none", "prose", "extra", "missing", "call", "long"],
)
def test_what_the_summariser_does_wrong_leaves_all_as_it_was(answer: Any, said: str) -> None:
    found = condensed(answer)
    assert found.history == OLD and found.fields == {} and said in found.reason


def test_a_summariser_that_fails_leaves_all_as_it_was() -> None:
    def fail(source: str) -> str:
        raise TimeoutError("no model today")

    assert condensed(fail) == Condensed(OLD, {}, "The summariser failed: TimeoutError: no model today.")


def test_a_message_of_the_summariser_counts_as_well_as_a_text() -> None:
    assert condensed(assistant(json.dumps(FIVE))).fields == FIVE


def test_a_summary_that_gains_nothing_with_its_frame_is_refused() -> None:
    history = [user("x" * 150)]
    found = condensed(json.dumps(dict.fromkeys(FIELDS, "") | {"current_goal": "y"}), history, words=None)
    assert found.history == history and "no shorter" in found.reason


def test_an_earlier_summary_goes_on_as_such_and_a_marker_does_not() -> None:
    sources: list[str] = []
    earlier = summary_message(FIVE | {"current_goal": "z" * 3_000}, dropped=9, transcript="art/s.jsonl")
    history = snip([SYSTEM, earlier, user("On."), *[assistant("a" * 900) for _ in range(9)]], 5, 3, 1)
    condensed(lambda source: sources.append(source) or json.dumps(FIVE), history)
    assert "=== earlier summary ===\n" in sources[0] and "z" * 3_000 in sources[0]
    assert "8 message groups left out" in sources[0].split("=== person ===")[1]


@pytest.mark.parametrize(("length", "cut"), [(4_000, False), (4_001, True)])
def test_last_words_up_to_four_thousand_characters(length: int, cut: bool) -> None:
    message = user("é" * length)
    assert last_words([message, assistant("Yes.")]) == (
        user("é" * 4_000 + "… [1 characters omitted]") if cut else message
    )


def test_last_words_of_nobody_and_words_with_a_large_picture() -> None:
    assert last_words([SYSTEM, summary_message(FIVE, dropped=1, transcript="t")]) is None
    picture = {"role": "user", "content": [{"type": "text", "text": "See."}, {"type": "image_url", "url": "u"}]}
    assert last_words([picture]) is picture
    picture["content"][1]["url"] = "u" * 20_000  # type: ignore[index]
    assert last_words([picture]) == user("See.\n[image_url]")


def test_room_leaves_out_what_stays() -> None:
    assert room(OLD, OLD[1]) == room(OLD, None) - len("Port it.") and room([SYSTEM, OLD[1]], OLD[1]) == 0


def test_a_model_is_asked_without_tools() -> None:
    simulator = Simulator([json.dumps(FIVE)])
    found = condensed(fields_summarizer(simulator.client()))
    assert found.fields == FIVE and size_bytes(found.history) < size_bytes(OLD)
    [request] = simulator.requests
    assert "tools" not in request and "user_constraints" in request["messages"][0]["content"]


def test_a_field_that_comes_twice_is_refused() -> None:
    text = json.dumps(FIVE)
    assert read_fields(text[:-1] + ',"current_goal":"Another."}') == "The summary has a field twice."
    assert isinstance(read_fields("[" * 100_000), str)
