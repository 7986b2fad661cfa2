"""The checkers of chapter 04: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import copy
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import check, pairing
from agentlab.check.interrupt_cases import CASES
from agentlab.check.interrupt_steering import CASES as STEERING_CASES
from agentlab.check.interrupt_steering import ONLY_PEARS, RIGHT
from agentlab.check.stream import TOTAL
from agentlab.errors import AgentLabError
from agentlab.messages import tool, user

EXERCISES = [check.repair, check.wording, check.steering]
right = check.repair.solution


def failed(report, name):
    """The finding of the case whose name begins like this, which must have failed."""
    found = next(f for f in report.findings if f.name.startswith(name))
    assert not found.passed, f"{name!r} passed"
    return found


def needed(report, *, passed):
    return [f.name for f in report.findings if f.passed is passed and not f.bonus]


# --- repair: right answers --------------------------------------------------------------------------------------------


def test_the_solution_passes_and_runs_the_agent():
    report = check.repair(right)
    assert report.passed and needed(report, passed=False) == []
    assert report.live.passed and report.live.said == TOTAL
    roles = [m["role"] for m in report.live.history]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "user", "assistant", "tool", "assistant"]


def test_the_solution_leaves_some_of_the_bonus_open():
    assert {f.passed for f in check.repair(right).findings if f.bonus} == {True, False}


@pytest.mark.parametrize("orphans", ["text", "drop"])
def test_agentlabs_own_repair_passes(orphans):
    report = check.repair(lambda history: pairing.repair(history, orphans=orphans).history)
    lost = [f.name for f in report.findings if not f.passed]
    assert (lost == []) is (orphans == "text")
    if lost:
        assert failed(report, "a result without").where == "what a tool found out"


# --- repair: the likely wrong ones ------------------------------------------------------------------------------------


def set_of_ids(history):
    has_result = {m["tool_call_id"] for m in history if m["role"] == "tool"}
    repaired = []
    for message in history:
        repaired.append(message)
        for each in message.get("tool_calls", []):
            if each["id"] not in has_result:
                repaired.append(tool(each["id"], "interrupted"))
    return repaired


def in_place(history):
    history[:] = right(history)
    return history


def mends_in_place(history):
    for message in history:
        for each in message.get("tool_calls", []):
            try:
                json.loads(each["function"]["arguments"])
            except ValueError:
                each["function"]["arguments"] = "{}"
    return right(history)


def mended(history):
    history = copy.deepcopy(history)
    mends_in_place(history)
    return history


def forgets_arguments(history):
    repaired = copy.deepcopy(right(history))
    for message in repaired:
        for each in message.get("tool_calls", []):
            each["function"]["arguments"] = "{}"
    return repaired


def deletes_calls(history):
    answered = {m["tool_call_id"] for m in right(history) if m["role"] == "tool" and m in history}
    kept = []
    for message in history:
        if calls := [each for each in message.get("tool_calls", []) if each["id"] in answered]:
            message = {**message, "tool_calls": calls}
        elif "tool_calls" in message:
            message = {"role": "assistant", "content": message["content"] or "I stopped."}
        kept.append(message)
    return right(kept)


def drops_words(history):
    return [m for m in right(history) if m["role"] != "user" or m["content"] != "Be quick."]


def swaps_words(history):
    words = [m for m in history if m["role"] == "user"]
    return words[::-1] + [m for m in right(history) if m["role"] != "user"]


def forgets_the_reply(history):
    return [{**m, "content": ""} if m["role"] == "assistant" and "tool_calls" in m else m for m in right(history)]


def throws_away(history):
    return [m for m in history if m["role"] == "user"]


def borrows_a_result(history):
    last = {}
    repaired = []
    for message in right(history):
        if message["role"] == "tool":
            content = last.get(message["tool_call_id"], message["content"]) if message not in history else None
            message = {**message, "content": content or message["content"]}
            last[message["tool_call_id"]] = message["content"]
        repaired.append(message)
    return repaired


def empty_notes(history):
    return [m if m in history or m["role"] != "tool" else {**m, "content": ""} for m in right(history)]


def random_notes(history):
    return [
        m if m in history or m["role"] != "tool" else {**m, "content": f"interrupted {uuid.uuid4()}"}
        for m in right(history)
    ]


def grows(history):
    return [*right(history), user("[repaired]")] if right(history) != list(history) else [*history, user("again")]


def adds_on_every_run(history):
    repaired = right(history)
    return repaired if repaired == list(CASES[0].history) else [*repaired, user("[repaired]")]


def always_new(history):
    return [{**m, "content": m["content"] + " "} if m["role"] == "assistant" else m for m in right(history)]


def overwrites_results(history):
    return [{**m, "content": "interrupted"} if m["role"] == "tool" else m for m in right(history)]


def crashes(history):
    return [m["nothing"] for m in history]


WRONG = [
    (set_of_ids, "the same id", "pairing.problems", "call 'A' has no result", "up to the next assistant message"),
    (set_of_ids, "the second of two", "pairing.problems", "not in call order", "order of the calls"),
    (set_of_ids, "words between", "pairing.problems", "stands between", "move behind the last"),
    (set_of_ids, "arguments cut", "pairing.problems", "not a JSON object", "guess nothing"),
    (set_of_ids, "a result without", "pairing.problems", "belongs to no call", "keep it as text"),
    (in_place, "a call has no", "the input", "changed", "Build a new list"),
    (mends_in_place, "arguments cut", "the input", "changed", "new dicts"),
    (forgets_arguments, "a call has no", "the arguments of a call", "{}", "do not parse"),
    (forgets_arguments, "nothing is wrong", "what it returns", "A({})", "exactly as it is"),
    (deletes_calls, "the second of two", "the calls", "A", "Every call needs a result"),
    (drops_words, "words between", "the user's words", "gone", "move behind"),
    (swaps_words, "a call has no", "the user's words", "another order", "straight behind"),
    (forgets_the_reply, "a call has no", "the assistant's words", "gone", "straight behind"),
    (throws_away, "nothing is wrong", "what it returns", "user: Go on.", "exactly as it is"),
    (throws_away, "a call has no", "the assistant's words", "gone", "straight behind"),
    (borrows_a_result, "the same id", "the result of A", "1 failed", "belongs to the call"),
    (empty_notes, "a call has no", "the result of A", "", "straight behind"),
    (random_notes, "a call has no", "repair of the same history again", "something else", "prompt cache"),
    (grows, "nothing is wrong", "what it returns", "again", "exactly as it is"),
    (adds_on_every_run, "a call has no", "repair of what it returned", "[repaired]", "nothing left to do"),
    (always_new, "nothing is wrong", "what it returns", "One test fails. ", "exactly as it is"),
    (overwrites_results, "the second of two", "the result of A", "interrupted", "Every call needs a result"),
    (crashes, "a call has no", "", "KeyError: 'nothing', in your line: return [m[", "straight behind"),
    (lambda history: None, "nothing is wrong", "what it returns", "None", "Return the new history"),
    (lambda history: [1], "nothing is wrong", "what it returns", "[1]", "a list of messages"),
]


@pytest.mark.parametrize(("answer", "case", "where", "got", "why"), WRONG)
def test_a_wrong_repair_fails_and_is_told_why(answer, case, where, got, why):
    report = check.repair(answer)
    found = failed(report, case)
    assert not report.passed
    assert found.where == where and got in found.got and why in found.why
    assert found.fed.startswith("user: Look into it.")


def test_only_what_is_wrong_fails():
    assert needed(check.repair(set_of_ids), passed=True) == [
        "nothing is wrong",
        "a call has no result",
        "the first of two calls has none",
    ]
    assert needed(check.repair(drops_words), passed=False) == ["words between call and result"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (set_of_ids, "400: Invalid 'messages[3].tool_calls[0].function.arguments'"),
        (lambda history: set_of_ids(mended(history)), "400: An assistant message with 'tool_calls' must"),
        (lambda history: None, "The provider answered 400"),
        (overwrites_results, "cannot see that result any more"),
        (throws_away, "cannot see that result any more"),
        (crashes, "The loop broke: KeyError: 'nothing', in your line"),
        (lambda history: "text", "The loop broke"),
    ],
)
def test_in_the_loop_a_wrong_repair_meets_the_provider(answer, said):
    live = check.repair(answer).live
    assert not live.passed and said in live.said


def test_cases_are_not_shared_between_answers():
    before = copy.deepcopy([list(case.history) for case in CASES])
    check.repair(in_place)
    check.repair(mends_in_place)
    assert [list(case.history) for case in CASES] == before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_but_the_whole_one_has_a_problem(case):
    assert bool(pairing.problems(case.history)) is not case.whole


# --- wording ----------------------------------------------------------------------------------------------------------

SAYS = ["interrupted", "did not run", "no failure", "again"]
GOOD = [
    pairing.INTERRUPT_NOTE,
    check.wording.solution,
    "Interrupted by the user before execution; not an error. Feel free to retry.",
    "The user pressed Stop. This call was never executed. Nothing is broken, you can call the tool again.",
    "User cancelled the turn. The tool has not been started. It isn't a failure: re-run it if you still need it.",
    "The call was aborted and did not start. Don't treat this as a tool error. You may repeat it.",
    "The turn was stopped, so nothing was executed. That does not mean that the tool failed; call it once more.",
    "The session was halted; no part of it ran. This was not the tool's fault, and you could issue the call again.",
    "用户中断了本轮，该工具没有运行。这不是失败，需要时可以再次调用。",
    "（用户打断了执行，工具尚未开始。并非工具出错，可以重试。）",
    "已取消：调用开始前被用户中止，未执行。不代表工具有问题，如有需要可重新调用。",
    "用户按了停止，此调用从未执行，不算错误，之后可以再试。",
]
BAD = [
    ("", SAYS),
    ("aborted", SAYS[1:]),
    ("The tool failed: aborted by the user.", SAYS[1:]),
    ("用户中断了执行，工具执行失败。", SAYS[1:]),
    ("Interrupted. It did not run to completion. This is no error; you may call it again.", SAYS[1:2]),
    ("Interrupted. It did not run because of an error. You may call it again.", SAYS[2:3]),
    ("Interrupted before it started. This is no failure. Do not call it again.", SAYS[3:]),
    ("Interrupted; it never ran. No failure. It must not be repeated.", SAYS[3:]),
    ("用户中断，没有运行。这不是错误，请不要重试。", SAYS[3:]),
    ("用户中断，没有运行，可以再次调用。", SAYS[2:3]),
    ("It did not run. This is no failure. You may retry.", SAYS[:1]),
    ("这个工具没有运行，这不是错误，可以重试。", SAYS[:1]),
    ("Interrupted while running. This is no failure and it may be called again.", SAYS[1:2]),
    ("The call was interrupted. It did not run. The tool is broken. Try it again.", SAYS[2:3]),
    ("The call was interrupted. It did not run. That is no failure.", SAYS[3:]),
]


@pytest.mark.parametrize("text", GOOD)
def test_a_note_that_says_all_four_passes(text):
    report = check.wording(text)
    assert [f.name for f in report.findings if not f.passed] == []
    assert report.passed and text in report.live.said


@pytest.mark.parametrize(("text", "missing"), BAD)
def test_a_note_is_told_what_is_missing(text, missing):
    report = check.wording(text)
    assert len(report.findings) == len(SAYS) and not report.passed
    for says, found in zip(SAYS, report.findings, strict=True):
        assert says in found.name
        assert found.passed is (says not in missing), found.name
        assert bool(found.why) is (says in missing)


def test_the_note_for_a_call_that_had_started_does_not_pass():
    assert not check.wording(pairing.UNKNOWN_NOTE).passed


def test_the_provider_takes_any_note():
    live = check.wording("The mail was sent.").live
    assert live.passed and "I read: The mail was sent.\n" in live.said and "takes any words" in live.said
    assert [m["role"] for m in live.history] == ["user", "assistant", "tool", "user", "assistant"]


@given(st.text(max_size=300))
def test_any_text_is_judged_quickly_and_drawn(text):
    assert len(check.wording._judge(text)) == len(SAYS)


def test_long_texts_do_not_take_long():
    for text in ("not " * 5_000, "not a " * 3_000, "没有" * 5_000, "call the " * 3_000, "before " * 3_000):
        assert len(check.wording._judge(text)) == 4


# --- steering ---------------------------------------------------------------------------------------------------------


def test_the_steering_solution_passes_and_the_words_are_heeded():
    report = check.steering(check.steering.solution)
    assert report.passed and needed(report, passed=False) == []
    assert report.live.said == RIGHT
    assert [m["role"] for m in report.live.history] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert report.live.history[-2] == user(ONLY_PEARS)


def test_all_words_in_one_message_are_right_too():
    def joined(history, results, words):
        return [*history, *results, *([user("\n".join(words))] if words else [])]

    assert check.steering(joined).passed


def between(history, results, words):
    return [*history, *map(user, words), *results]


def after_the_first(history, results, words):
    return [*history, *results[:1], *map(user, words), *results[1:]]


def before_the_call(history, results, words):
    return [*history[:-1], *map(user, words), history[-1], *results]


def into_the_result(history, results, words):
    if not results or not words:
        return [*history, *results, *map(user, words)]
    return [*history, *results[:-1], {**results[-1], "content": f"{results[-1]['content']}\n{' '.join(words)}"}]


def as_the_model(history, results, words):
    return [*history, *results, *({"role": "assistant", "content": word} for word in words)]


def as_the_system(history, results, words):
    return [*history, *results, *({"role": "system", "content": word} for word in words)]


def backwards(history, results, words):
    return [*history, *results, *map(user, reversed(words))]


def only_the_last(history, results, words):
    return [*history, *results, *map(user, words[-1:])]


def loses_words(history, results, words):
    return [*history, *results]


def loses_results(history, results, words):
    return [*history, *map(user, words)]


def always_a_message(history, results, words):
    return [*history, *results, user(" ".join(words) or "Go on.")]


def extends(history, results, words):
    history += [*results, *map(user, words)]
    return history


WRONG_STEERING = [
    (between, "one call", "pairing.problems", "stands between", "400: An assistant message with 'tool_calls' must"),
    (after_the_first, "two calls", "pairing.problems", "stands between", "400"),
    (before_the_call, "one call", "the first messages", "changed", "as if I had ignored them"),
    (into_the_result, "one call", "behind the history", "Be quick.", "Did a person say them?"),
    (as_the_model, "one call", "behind the results", "assistant: Be quick.", ""),
    (as_the_system, "one call", "behind the results", "system: Be quick.", "Did a person say them?"),
    (backwards, "words said in two", "behind the results", "user: And be kind. | user: Be quick.", None),
    (only_the_last, "words said in two", "behind the results", "user: And be kind.", None),
    (loses_words, "a reply without", "behind the results", "no message", "have not reached me"),
    (loses_results, "one call", "pairing.problems", "has no result", "400"),
    (always_a_message, "no words", "behind the results", "user: Go on.", None),
    (extends, "one call", "the input", "changed", None),
    (lambda history, results, words: None, "one call", "what it returns", "None", None),
    (lambda history: history, "one call", "", "TypeError", "The loop broke: TypeError"),
]


@pytest.mark.parametrize(("answer", "case", "where", "got", "said"), WRONG_STEERING)
def test_a_wrong_steering_fails_and_is_told_why(answer, case, where, got, said):
    report = check.steering(answer)
    found = failed(report, case)
    assert not report.passed and found.fed
    assert found.where == where and got in found.got
    if said is not None:
        assert not report.live.passed and said in report.live.said


def test_steering_cases_are_not_shared_between_answers():
    before = copy.deepcopy(STEERING_CASES)
    check.steering(extends)
    assert before == STEERING_CASES


# --- all three --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_an_exercise_has_three_hints_a_turn_to_watch_and_refuses_what_is_no_answer(exercise):
    assert [repr(exercise.hint(n)).split(":")[0] for n in (1, 2, 3)] == [f"Hint {n} of 3" for n in (1, 2, 3)]
    with pytest.raises(AgentLabError, match=f"check.{exercise.name}"):
        exercise(3)
    assert exercise.turn(exercise.solution).reason is None
    assert exercise(exercise.solution)._repr_html_().count("<div") > 3


@pytest.mark.parametrize("exercise", [check.repair, check.steering], ids=lambda exercise: exercise.name)
def test_a_stop_of_the_person_is_not_taken_for_a_wrong_answer(exercise):
    def answer(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise(answer)
