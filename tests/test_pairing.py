"""pairing: every rule of the module's own text, the field's cases, and what must hold for any history at all."""

from __future__ import annotations

import copy
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers.base import TokenizerVersion
from strategies import malformed_histories, tool_call, torn_histories, whole_histories

from agentlab import jsonio, pairing
from agentlab.errors import AgentLabError, PairingError
from agentlab.messages import Message, assistant, call, jsonl, tool, user, wire
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE, problems, repair, require
from agentlab.simulator import Simulator

any_history = torn_histories() | malformed_histories()


def placeholder(id: str, note: str = INTERRUPT_NOTE) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": note, "origin": "repair"}


def kinds(history: list[Any]) -> list[tuple[int, str]]:
    return [(problem.index, problem.kind) for problem in problems(history)]


A, B = call("A", "run", command="make"), call("B", "read", path="a.txt")


# The field's cases


def test_i01_a_batch_that_was_interrupted() -> None:
    torn = [user("go"), assistant("", A, B), tool("A", "ok"), user("continue")]
    assert kinds(torn) == [(1, "unanswered")]
    fixed = repair(torn)
    assert fixed.history == [*torn[:3], placeholder("B"), torn[3]]
    assert (fixed.filled, fixed.mended, fixed.orphans, fixed.duplicates) == (1, 0, 0, 0)
    assert repair(torn, started=["B"]).history[3] == placeholder("B", UNKNOWN_NOTE)


def test_i01_the_two_notes_say_two_true_things() -> None:
    assert "did not run" in INTERRUPT_NOTE and "no failure" in INTERRUPT_NOTE and "called again" in INTERRUPT_NOTE
    assert "effects are unknown" in UNKNOWN_NOTE and "before repeating" in UNKNOWN_NOTE
    assert "did not run" not in UNKNOWN_NOTE


def test_i02_words_between_the_results_move_behind_them() -> None:
    torn = [assistant("", A, B), tool("A", "1"), user("also fix docs"), tool("B", "2")]
    assert kinds(torn) == [(2, "between")]
    assert repair(torn).history == [torn[0], torn[1], torn[3], torn[2]]


@pytest.mark.parametrize("real_first", [False, True])
def test_i03_a_real_result_beats_a_placeholder(real_first: bool) -> None:
    results = [placeholder("A"), tool("A", "done")]
    torn = [assistant("", A), *(reversed(results) if real_first else results), user("go on")]
    fixed = repair(torn)
    assert fixed.history == [torn[0], tool("A", "done"), user("go on")]
    assert (fixed.filled, fixed.orphans, fixed.duplicates) == (0, 0, 1)


def test_i03_a_placeholder_is_known_by_its_origin_and_not_by_its_wording() -> None:
    torn = [assistant("", A), tool("A", INTERRUPT_NOTE), tool("A", "done")]
    assert [m["content"] for m in repair(torn).history if m["role"] == "tool"] == [INTERRUPT_NOTE]


def test_i05_arguments_cut_short() -> None:
    torn = [user("go"), assistant("", tool_call("w", '{"path":"a","text":"hel', name="write"))]
    fixed = repair(torn)
    assert fixed.history == [user("go"), assistant("", tool_call("w", "{}", name="write")), placeholder("w")]
    assert (fixed.filled, fixed.mended) == (1, 1)
    assert kinds(torn) == [(1, "arguments"), (1, "unanswered")]


def test_the_seeds_scene_keeps_the_results_in_call_order() -> None:
    torn = [
        user("Run the tests and look at the README."),
        assistant(
            "Tests first.", tool_call("call_test", '{"command":"npm test"}'), tool_call("call_read", '{"path":"READ')
        ),
        tool("call_test", "exit 1"),
    ]
    fixed = repair(torn)
    assert [m.get("tool_call_id") for m in fixed.history[2:]] == ["call_test", "call_read"]
    assert (fixed.filled, fixed.mended) == (1, 1)
    assert fixed.history[1]["tool_calls"][0] == torn[1]["tool_calls"][0]
    again = repair(fixed.history)
    assert (again.history, again.filled, again.mended) == (fixed.history, 0, 0)


# Windows: what counts as an answer


def test_an_id_that_comes_back_in_a_later_turn_is_answered_there_only() -> None:
    torn = [assistant("", A), tool("A", "first"), assistant("", A), user("go on")]
    assert kinds(torn) == [(2, "unanswered")]
    assert repair(torn).history == [*torn[:3], placeholder("A"), torn[3]]


@pytest.mark.parametrize(
    ("torn", "kind", "orphan_at"),
    [
        ([tool("A", "out"), assistant("", A), user("x")], "misplaced", 0),
        ([assistant("", A), assistant("next"), tool("A", "out"), user("x")], "misplaced", 3),
        ([user("x"), assistant("next"), tool("Z", "out")], "orphan", 2),
    ],
)
def test_a_result_outside_its_window_is_an_orphan(torn: list[Message], kind: str, orphan_at: int) -> None:
    assert kind in [k for _, k in kinds(torn)]
    kept, dropped = repair(torn), repair(torn, orphans="drop")
    assert kept.orphans == dropped.orphans == 1
    text = kept.history[orphan_at]
    assert (text["role"], text["origin"]) == ("user", "repair")
    assert text["content"].endswith("\nout") and repr(torn[kinds_at(torn, kind)]["tool_call_id"]) in text["content"]
    assert dropped.history == [m for m in kept.history if m is not text]


def kinds_at(history: list[Message], kind: str) -> int:
    return next(problem.index for problem in problems(history) if problem.kind == kind)


def test_a_placeholder_without_its_call_goes_without_a_trace() -> None:
    fixed = repair([user("x"), placeholder("A")])
    assert (fixed.history, fixed.orphans) == ([user("x")], 1)


def test_parts_of_an_orphan_stay_parts() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    text = repair([tool("A", "") | {"content": [picture]}]).history[0]
    assert text["content"][0]["type"] == "text" and text["content"][1:] == [picture]


def test_duplicates_keep_what_is_new_and_say_nothing_twice() -> None:
    torn = [assistant("", A), tool("A", "one"), tool("A", "one"), tool("A", "two"), user("x")]
    assert kinds(torn) == [(2, "duplicate"), (3, "duplicate")]
    fixed = repair(torn)
    assert fixed.history[:2] == torn[:2] and fixed.history[3:] == [user("x")]
    assert fixed.history[2]["origin"] == "repair" and fixed.history[2]["content"].endswith("\ntwo")
    assert fixed.duplicates == 2
    assert repair(torn, orphans="drop").history == [torn[0], torn[1], torn[4]]


def test_results_stand_in_call_order() -> None:
    torn = [assistant("", A, B), tool("B", "2"), tool("A", "1")]
    assert kinds(torn) == [(1, "order")]
    assert repair(torn).history == [torn[0], torn[2], torn[1]]
    mixed = [assistant("", A, B, call("C", "f")), tool("C", "3"), tool("A", "1"), user("x"), tool("B", "2")]
    assert kinds(mixed) == [(1, "order"), (3, "between")]
    fixed = repair(mixed).history
    assert fixed == [mixed[index] for index in (0, 2, 4, 1, 3)]
    assert all(any(sent is message for message in mixed) for sent in fixed)


def test_only_a_tool_message_is_a_result() -> None:
    torn = [assistant("", A), user("words") | {"tool_call_id": "A"}]
    assert repair(torn).history == [torn[0], placeholder("A"), torn[1]]


def test_a_system_message_between_call_and_result_is_kept() -> None:
    late = {"role": "system", "content": "rule"}
    torn = [assistant("", A), late, tool("A", "1")]
    assert repair(torn).history == [torn[0], torn[2], late]


# Ids


def test_the_kth_result_of_an_id_goes_to_the_kth_call_with_it() -> None:
    torn = [assistant("", A, A, A), tool("A", "1"), placeholder("A"), tool("A", "3")]
    fixed = repair(torn)
    sent = [c["id"] for c in fixed.history[0]["tool_calls"]]
    assert sent[0] == "A" and len(set(sent)) == 3
    assert [m["tool_call_id"] for m in fixed.history[1:]] == sent
    assert [m["content"] for m in fixed.history[1:]] == ["1", placeholder("A")["content"], "3"]
    assert (fixed.mended, fixed.filled, fixed.duplicates) == (2, 0, 0)


def test_a_made_up_id_collides_with_no_other() -> None:
    torn = [assistant("", *(tool_call(id) for id in ["A", "A_2", "A", None, "call_0_3", "x" * 40, "x" * 40]))]
    sent = [c["id"] for c in repair(torn).history[0]["tool_calls"]]
    assert len(set(sent)) == 7 and max(map(len, sent)) <= 40


@pytest.mark.parametrize("missing", [None, ""])
def test_a_call_without_an_id_gets_one_and_takes_its_result_along(missing: Any) -> None:
    torn = [user("x"), assistant("", tool_call(missing)), {"role": "tool", "tool_call_id": missing, "content": "out"}]
    fixed = repair(torn)
    assert fixed.history == [user("x"), assistant("", tool_call("call_1_0")), tool("call_1_0", "out")]
    assert (fixed.mended, fixed.filled) == (1, 0)


def test_ids_that_are_no_text_become_text_and_are_not_confused() -> None:
    torn = [assistant("", tool_call(5), tool_call(6)), tool(6, "six"), tool(5, "five")]  # type: ignore[arg-type]
    assert repair(torn).history == [assistant("", tool_call("5"), tool_call("6")), tool("5", "five"), tool("6", "six")]
    half = [assistant("", tool_call("5")), tool(5, "five")]  # type: ignore[arg-type]
    assert kinds(half) == [(1, "id")] and repair(half).history == [half[0], tool("5", "five")]


# What had started


def test_a_bare_id_means_the_last_unanswered_call_with_it() -> None:
    torn = [assistant("", A), assistant("", A), assistant("", A), tool("A", "done")]
    assert [m["content"] for m in repair(torn, started=["A", "Z"]).history if m["role"] == "tool"] == [
        INTERRUPT_NOTE,
        UNKNOWN_NOTE,
        "done",
    ]


@pytest.mark.parametrize("pair", [(0, "A"), [0, "A"]])
def test_a_pair_means_one_message(pair: Any) -> None:
    torn = [assistant("", A), assistant("", A)]
    assert [m["content"] for m in repair(torn, started=[pair]).history[1::2]] == [UNKNOWN_NOTE, INTERRUPT_NOTE]


def test_one_id_as_a_string_is_one_id() -> None:
    torn = [assistant("", call("run", "f"), call("r", "f"))]
    assert [m["content"] for m in repair(torn, started="run").history[1:]] == [UNKNOWN_NOTE, INTERRUPT_NOTE]


# Form


@pytest.mark.parametrize("arguments", strategies.SOUND_ARGUMENTS)
def test_sound_arguments_stay_byte_for_byte(arguments: str) -> None:
    history = [assistant("", tool_call("a", arguments)), tool("a", "1")]
    assert repair(history).history == history and problems(history) == []


@pytest.mark.parametrize("arguments", [None, 7, ["a"], *strategies.BROKEN_ARGUMENTS])
def test_what_is_no_object_becomes_an_empty_one(arguments: Any) -> None:
    fixed = repair([assistant("", tool_call("a", arguments)), tool("a", "1")])
    assert fixed.history[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert (fixed.mended, fixed.filled) == (1, 0)


def test_missing_arguments_and_a_dict() -> None:
    bare = {"id": "a", "type": "function", "function": {"name": "run"}}
    fixed = repair([assistant("", bare, tool_call("b", {"p": "é"}))])
    assert [c["function"]["arguments"] for c in fixed.history[0]["tool_calls"]] == ["{}", '{"p":"é"}']


def test_a_call_without_a_name_cannot_be_answered() -> None:
    fixed = repair([assistant("I look.", tool_call("a", name="")), tool("a", "out")])
    assert fixed.history[0] == assistant("I look.") and fixed.history[1]["content"].endswith("\nout")
    assert (fixed.mended, fixed.orphans) == (1, 1)


def test_a_name_that_apis_refuse() -> None:
    fixed = repair([assistant("", tool_call("a", name="fs.read/é")), tool("a", "no such tool")])
    assert fixed.history[0]["tool_calls"][0]["function"]["name"] == "fs_read__" and fixed.mended == 1


@pytest.mark.parametrize(
    "shell",
    [
        assistant(""),
        assistant(" \n\t"),
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": [{"type": "text", "text": " "}]},
        {"role": "assistant", "content": [], "reasoning_content": "hm"},
        assistant("", tool_call("a", name="")),
    ],
)
def test_an_empty_shell_is_dropped(shell: Message) -> None:
    assert "empty" in [kind for _, kind in kinds([user("x"), shell])]
    assert repair([user("x"), shell, user("y")]).history == [user("x"), user("y")]


@pytest.mark.parametrize(
    "half",
    [
        assistant("Half a sen"),
        {"role": "assistant", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
    ],
)
def test_what_the_person_saw_is_kept(half: Message) -> None:
    assert repair([user("x"), half]).history == [user("x"), half] and problems([half]) == []


@pytest.mark.parametrize("listed", [None, [], {}, "text", 0, [None, "x", {}, {"id": "a"}]])
def test_a_list_of_calls_that_is_none(listed: Any) -> None:
    said = assistant("text") | {"tool_calls": listed}
    fixed = repair([said, tool("a", "out")])
    assert fixed.history[0] == assistant("text") and fixed.mended >= 1
    assert fixed.orphans == 1 and fixed.history[1]["content"].endswith("\nout")


@pytest.mark.parametrize(
    "entry", [None, 42, "words", ["x"], {}, {"content": "words"}, {"role": None, "content": "words"}]
)
def test_an_entry_that_is_no_message_becomes_text(entry: Any) -> None:
    torn = [assistant("", A), entry, tool("A", "1")]
    fixed = repair(torn)
    assert fixed.history[:2] == [torn[0], torn[2]] and len(fixed.history) == 3
    assert fixed.history[2]["role"] == "user" and jsonio.dumps(entry) in fixed.history[2]["content"]
    assert repair(torn, orphans="drop").history == fixed.history


@pytest.mark.parametrize(
    ("content", "sent"),
    [(None, ""), (7, "7"), ({"ok": True}, '{"ok":true}'), ([], "[]"), (["a"], '["a"]'), ([{"n": 1}], '[{"n":1}]')],
)
def test_a_result_whose_content_is_no_text(content: Any, sent: str) -> None:
    fixed = repair([assistant("", A), tool("A", content)])
    assert (fixed.history[1], fixed.mended) == (tool("A", sent), 1)


def test_a_result_without_an_id_answers_no_call_that_has_one() -> None:
    fixed = repair([assistant("", A), {"role": "tool", "content": "out"}])
    assert fixed.history[1] == placeholder("A") and fixed.history[2]["content"].endswith("\nout")


# Strict mode, and what is told


def test_require_names_the_message_and_what_to_do() -> None:
    require([user("x"), assistant("", A), tool("A", "1")])
    with pytest.raises(PairingError, match=r"messages\[1\]: call 'A' has no result.*2 problem.*repair\(history\)"):
        require([user("x"), assistant("", A), assistant("")])


def test_every_kind_has_a_sentence_of_bounded_size() -> None:
    for kind in pairing.KINDS:
        problem = pairing.Problem(3, kind, "x" * 5000)
        assert problem.sentence.startswith("messages[3]: ") and len(problem.sentence) < 200


def test_another_value_of_orphans_is_refused() -> None:
    with pytest.raises(AgentLabError, match="drop"):
        repair([], orphans="keep")  # type: ignore[arg-type]


def test_a_repair_draws_itself_and_escapes() -> None:
    drawn = repair([user("<script>alert(1)</script>"), assistant("", A)])._repr_html_()
    assert "1 filled" in drawn and "<script" not in drawn


# What holds for any history


@given(whole_histories())
def test_a_whole_history_needs_nothing(history: list[Message]) -> None:
    fixed = repair(history)
    assert problems(history) == []
    assert fixed.history == history and all(a is b for a, b in zip(fixed.history, history, strict=True))
    assert (fixed.filled, fixed.mended, fixed.orphans, fixed.duplicates) == (0, 0, 0, 0)


@given(any_history, st.sampled_from(["text", "drop"]), st.sets(st.sampled_from(strategies.IDS)))
def test_repair_settles_everything_at_once(history: list[Any], orphans: Any, started: set[str]) -> None:
    before = copy.deepcopy(history)
    fixed = repair(history, orphans=orphans, started=started)
    assert history == before
    assert problems(fixed.history) == []
    again = repair(fixed.history, orphans=orphans, started=started)
    assert jsonl(again.history) == jsonl(fixed.history)
    assert (again.filled, again.mended, again.orphans, again.duplicates) == (0, 0, 0, 0)
    assert jsonl(repair(before, orphans=orphans, started=started).history) == jsonl(fixed.history)


@given(any_history)
def test_problems_are_named_if_and_only_if_repair_changes_something(history: list[Any]) -> None:
    found = problems(history)
    assert (found == []) == (repair(history).history == history)
    assert [problem.index for problem in found] == sorted(problem.index for problem in found)
    assert all(problem.kind in pairing.KINDS for problem in found)


@given(any_history)
def test_the_counts_are_the_counts_of_the_problems(history: list[Any]) -> None:
    found = [problem.kind for problem in problems(history)]
    fixed = repair(history)
    notes = sum(m.get("content") in (INTERRUPT_NOTE, UNKNOWN_NOTE) for m in fixed.history)
    assert fixed.filled == found.count("unanswered") == notes
    assert fixed.orphans == found.count("orphan") + found.count("misplaced")
    assert fixed.duplicates == found.count("duplicate")


@given(any_history)
def test_every_call_has_one_result_straight_behind_it(history: list[Any]) -> None:
    fixed = repair(history).history
    expected: list[str] = []
    for message in fixed:
        if expected:
            assert message["role"] == "tool"
        if message["role"] == "tool":
            assert message["tool_call_id"] == expected.pop(0)
        elif message["role"] == "assistant":
            expected = [c["id"] for c in message.get("tool_calls", [])]
            assert len(set(expected)) == len(expected)
            assert all(
                isinstance(jsonio.loads(c["function"]["arguments"]), dict) for c in message.get("tool_calls", [])
            )
    assert expected == []


@given(any_history)
def test_no_word_and_no_real_result_is_lost(history: list[Any]) -> None:
    sent = [m.get("content") for m in repair(history).history if m["role"] != "assistant"]
    said = [m.get("content") for m in repair(history).history if m["role"] == "assistant"]
    for entry in history:
        role = entry.get("role") if isinstance(entry, dict) else None
        if role in ("user", "system"):
            assert entry["content"] in sent
        elif role == "assistant":
            assert not (entry.get("content") or "").strip() or entry["content"] in said
        elif role == "tool" and entry.get("origin") != "repair":
            content = entry["content"]
            text = content if isinstance(content, str) else "" if content is None else jsonio.dumps(content)
            assert any(text in s for s in sent if isinstance(s, str))
        elif role is None:
            assert any(jsonio.dumps(entry) in s for s in sent if isinstance(s, str))


@given(any_history, any_history)
def test_what_was_repaired_stays_while_the_history_grows(history: list[Any], more: list[Any]) -> None:
    fixed = repair(history).history
    waiting = {m["tool_call_id"] for m in fixed if m["role"] == "tool" and m.get("origin") == "repair"}

    def may_come(entry: Any) -> bool:
        """Anything but a result that a placeholder waits for."""
        is_result = isinstance(entry, dict) and entry.get("role") == "tool"
        return not is_result or pairing._text(entry.get("tool_call_id")) not in waiting

    more = [entry for entry in more if may_come(entry)]
    grown = repair([*fixed, *more]).history
    assert jsonl(grown[: len(fixed)]) == jsonl(fixed)


@given(any_history, any_history)
def test_windows_do_not_depend_on_each_other(history: list[Any], more: list[Any]) -> None:
    grown = repair([*history, assistant("next"), *more]).history
    fixed = repair([*history, assistant("next")]).history
    assert jsonl(grown[: len(fixed)]) == jsonl(fixed)


@given(torn_histories())
def test_dropping_orphans_drops_nothing_else(history: list[Message]) -> None:
    kept, dropped = repair(history), repair(history, orphans="drop")
    texts = [m for m in kept.history if m["role"] == "user" and m.get("origin") == "repair"]
    assert dropped.history == [m for m in kept.history if m not in texts]
    assert len(texts) <= kept.orphans + kept.duplicates


@given(any_history)
def test_the_plain_case_at_a_glance_is_the_same_as_a_closer_look(history: list[Any]) -> None:
    class Closer(pairing._Reading):
        def is_sound(self, opener: int, end: int) -> bool:
            return False

    quick, close = pairing._Reading(history), Closer(history)
    assert (quick.sent, quick.faults, quick.gaps) == (close.sent, close.faults, close.gaps)


def naive(history: list[Message]) -> list[tuple[str, str, str]]:
    """The rules once more, with nothing but loops: role, call id, and the end of the content of all that is sent."""
    windows: list[list[Message]] = [[]]
    for message in history:
        if message["role"] == "assistant":
            windows.append([])
        windows[-1].append(message)
    sent: list[tuple[str, str, str]] = []
    for window in windows:
        opener = window[0] if window and window[0]["role"] == "assistant" else None
        calls = opener.get("tool_calls", []) if opener else []
        if opener and (calls or (opener["content"] or "").strip()):
            sent.append(("assistant", "", opener["content"] or ""))
        used: list[Message] = []
        for position, one in enumerate(calls):
            mine = [m for m in window if m["role"] == "tool" and m["tool_call_id"] == one["id"]]
            mine = [m for m in mine if not any(m is u for u in used)]
            real = [m for m in mine if m.get("origin") != "repair"]
            twin = any(other["id"] == one["id"] for other in calls[:position])
            id = f"{one['id']}_{position}" if twin else one["id"]
            if mine:
                used.append((real or mine)[0])
                sent.append(("tool", id, used[-1]["content"]))
            else:
                sent.append(("tool", id, INTERRUPT_NOTE))
        for message in window:
            if message is opener or any(message is u for u in used):
                continue
            if message["role"] != "tool":
                sent.append((message["role"], "", message["content"]))
            elif message.get("origin") != "repair":
                id, content = message["tool_call_id"], message["content"]
                if not any(u["tool_call_id"] == id and u["content"] == content for u in used):
                    sent.append(("user", repr(id), content))
    return sent


@given(torn_histories())
def test_the_rules_written_once_more_with_nothing_but_loops(history: list[Message]) -> None:
    fixed, expected = repair(history).history, naive(history)
    assert len(fixed) == len(expected)
    for message, (role, id, content) in zip(fixed, expected, strict=True):
        assert message["role"] == role
        assert (message["content"] or "").endswith(content)
        assert message.get("tool_call_id", "") == id or (role == "user" and id in message["content"])


# What providers say


VALIDATOR = get_validator(TokenizerVersion.v15, ValidationMode.serving)


def mistral_accepts(history: list[Message]) -> bool:
    """Mistral wants a user message first and last, and a system message never behind a reply."""
    messages = [user("hello"), *(m for m in wire(history) if m["role"] != "system"), user("go on")]
    try:
        VALIDATOR.validate_request(ChatCompletionRequest.from_openai(copy.deepcopy(messages), model="m"))  # type: ignore[arg-type]
    except Exception:
        return False
    return True


def openai_accepts(history: list[Message]) -> bool:
    simulator = Simulator(lambda request: "Fine.")
    status, _, chunks = simulator.respond({"model": "m", "messages": wire([user("hello"), *history])})
    list(chunks)
    return status == 200


@given(any_history)
def test_providers_accept_what_was_repaired(history: list[Any]) -> None:
    fixed = repair(history).history
    assert mistral_accepts(fixed)
    assert openai_accepts(fixed)


@pytest.mark.parametrize(
    "torn",
    [
        [assistant("", A)],
        [tool("A", "1")],
        [assistant("", A), tool("A", "1"), tool("A", "2")],
        [assistant("", A), user("x"), tool("A", "1")],
        [assistant("", A, A), tool("A", "1")],
    ],
)
def test_the_providers_refuse_what_was_not_repaired(torn: list[Message]) -> None:
    assert not openai_accepts(torn)
    assert not mistral_accepts(torn)


# Time


@contextmanager
def hang_guard(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def lines_run(history: list[Any]) -> int:
    """How many lines of pairing.py one repair and one search for problems execute."""
    lines = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename == pairing.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        repair(history)
        problems(history)
    finally:
        sys.settrace(before)
    return lines


LONG = {
    "sound": lambda n: [
        m for i in range(n) for m in (user("x"), assistant("", call(f"c{i}", "f")), tool(f"c{i}", "1"))
    ],
    "unanswered": lambda n: [assistant("", A) for _ in range(n)],
    "orphans": lambda n: [tool(f"c{i}", "1") for i in range(n)],
    "duplicates": lambda n: [assistant("", A), *(tool("A", str(i)) for i in range(n))],
    "placeholders": lambda n: [assistant("", A), *(placeholder("A") for i in range(n))],
    "words between": lambda n: [assistant("", A), *(user("x") for _ in range(n)), tool("A", "1")],
    "one id": lambda n: [assistant("", *[A] * n), *(tool("A", str(i)) for i in range(n))],
    "no id": lambda n: [assistant("", *[tool_call(None)] * n), *(tool("", str(i)) for i in range(n))],
    "reversed": lambda n: [
        assistant("", *(tool_call(f"c{i}") for i in range(n))),
        *(tool(f"c{i}", "1") for i in reversed(range(n))),
    ],
}


@pytest.mark.parametrize("shape", LONG)
def test_a_history_four_times_as_long_takes_four_times_the_work(shape: str) -> None:
    assert lines_run(LONG[shape](400)) < 4.5 * lines_run(LONG[shape](100))


@pytest.mark.parametrize("shape", LONG)
def test_many_messages(shape: str) -> None:
    with hang_guard(60):
        history = LONG[shape](15_000)
        fixed = repair(history)
        assert (problems(history) == []) == (shape == "sound")
        assert problems(fixed.history) == []


def test_the_file_of_an_orphan_is_still_pointed_to() -> None:
    orphan = {**tool("gone", "both ends"), "output_path": "spill/0001.txt"}
    sent = repair([user("x"), orphan]).history[-1]
    assert (sent["role"], sent["output_path"]) == ("user", "spill/0001.txt")
