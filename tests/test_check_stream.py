"""The checker of chapter 03: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import check
from agentlab.assemble import Assembler
from agentlab.check.compare import difference
from agentlab.check.report import LIMIT, Finding, Report, blame, short
from agentlab.check.stream import TOTAL, Adapter
from agentlab.check.stream_cases import CASES
from agentlab.errors import AgentLabError, ProviderRefused

Right = check.assembler.solution


def failed(report, name):
    """The finding of the case whose name begins like this, which must have failed."""
    found = next(f for f in report.findings if f.name.startswith(name))
    assert not found.passed, f"{name!r} passed"
    return found


def error_of(call):
    with pytest.raises(ValueError) as caught:
        call()
    return caught.value


def names(report, *, passed):
    return [f.name for f in report.findings if f.passed is passed and not f.bonus]


# --- right answers ----------------------------------------------------------------------------------------------------


def test_the_solution_passes_and_runs_the_agent():
    report = check.assembler(Right)
    assert report.passed and names(report, passed=False) == []
    assert report.live.passed and report.live.said == TOTAL
    assert [m["role"] for m in report.live.history] == ["user", "assistant", "tool", "tool", "assistant"]


def test_the_solution_leaves_some_of_the_bonus_open():
    bonus = [f for f in check.assembler(Right).findings if f.bonus]
    assert {f.passed for f in bonus} == {True, False}


def test_agentlabs_own_assembler_passes_everything():
    report = check.assembler(Assembler)
    assert report.passed and all(f.passed for f in report.findings)


def test_a_function_that_makes_an_assembler_is_an_answer_too():
    assert check.assembler(lambda: Right()).passed


def test_null_and_missing_content_beside_calls_are_both_right():
    class Null(Right):
        def message(self):
            message = super().message()
            return {**message, "content": message["content"] or None}

    class Missing(Right):
        def message(self):
            message = super().message()
            if not message["content"] and "tool_calls" in message:
                del message["content"]
            return message

    assert check.assembler(Null).passed
    assert check.assembler(Missing).passed


def test_keys_that_a_message_may_have_are_no_fault():
    class Refusal(Right):
        def message(self):
            return {**super().message(), "refusal": None}

    assert not any(f.where for f in check.assembler(Refusal).findings if not f.bonus)


# --- the likely wrong ones: which case fails, where, and what the reader is told --------------------------------------


class FirstChoice(Right):
    def feed(self, event):
        return super().feed({"choices": [event["choices"][0]]})


class AddsNull(Right):
    def feed(self, event):
        for choice in event["choices"]:
            self.text += choice["delta"]["content"]
        return ""


class ParsesPieces(Right):
    def feed(self, event):
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls", []):
                json.loads(piece["function"]["arguments"] or "{}")
        return super().feed(event)


class LastCallGetsAll:
    def __init__(self):
        self.text, self.calls = "", []

    def feed(self, event):
        new = ""
        for choice in event["choices"]:
            new += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls") or []:
                function = piece["function"]
                if piece.get("id"):
                    self.calls.append({"id": piece["id"], "type": "function", "function": dict(function)})
                else:
                    self.calls[-1]["function"]["arguments"] += function["arguments"]
        self.text += new
        return new

    def message(self):
        message = {"role": "assistant", "content": self.text}
        return {**message, "tool_calls": self.calls} if self.calls else message


class EveryPieceIsACall(Right):
    def feed(self, event):
        event = copy.deepcopy(event)
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or []:
                piece["index"] = len(self.calls)
        return super().feed(event)


class Overwrites(Right):
    def feed(self, event):
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or []:
                if piece["index"] in self.calls:
                    self.calls[piece["index"]]["arguments"] = ""
        return super().feed(event)


class KeepsThePiece(LastCallGetsAll):
    def message(self):
        message = super().message()
        for position, call in enumerate(message.get("tool_calls", [])):
            call["index"] = position
        return message


class LosesTheId(Right):
    def feed(self, event):
        text = super().feed(event)
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or []:
                self.calls[piece["index"]]["id"] = piece.get("id")
        return text


class ReturnsNothing(Right):
    def feed(self, event):
        super().feed(event)


class ReturnsAllSoFar(Right):
    def feed(self, event):
        super().feed(event)
        return self.text


class AlwaysAList(Right):
    def message(self):
        return {"tool_calls": [], **super().message()}


class ParsedArguments(Right):
    def message(self):
        message = super().message()
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return message


class Ghost(Right):
    def message(self):
        message = super().message()
        for calls in filter(None, [message.get("tool_calls")]):
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        return message


class NoType(Right):
    def message(self):
        message = super().message()
        for call in message.get("tool_calls", []):
            del call["type"]
        return message


class Shared(Right):
    calls_of_all = {}  # noqa: RUF012 (the mistake that is tested)

    def __init__(self):
        super().__init__()
        self.calls = self.calls_of_all


class UsedUp(Right):
    def message(self):
        message = super().message()
        self.calls = {}
        return message


class ForgetsTheText(Right):
    def message(self):
        return {**super().message(), "content": ""}


WRONG = [
    (FirstChoice, "usage on a chunk", "", "IndexError", "Loop over the choices"),
    (AddsNull, "text in three", "", "TypeError", "In the first chunk it is null"),
    (ParsesPieces, "one call", "", "JSONDecodeError", "parse none of them"),
    (LastCallGetsAll, "two calls", "message().tool_calls[0].function.arguments", '{"comm', "`index`"),
    (EveryPieceIsACall, "one call", "message().tool_calls[0].function.arguments", "{}", "add them up"),
    (Overwrites, "one call", "message().tool_calls[0].function.arguments", ' -la"}', "add them up"),
    (KeepsThePiece, "one call", "message().tool_calls[0].index", "0", "keys that it does not know"),
    (LosesTheId, "one call", "message().tool_calls[0].id", "None", "not NoneType"),
    (ReturnsNothing, "feed returns", "feed()", "None", "only the text of this event"),
    (ReturnsAllSoFar, "feed returns", "feed()", "It is sunny.", "only the text of this event"),
    (AlwaysAList, "text in three", "message().tool_calls", "[]", "leave the key out"),
    (ParsedArguments, "one call", "message().tool_calls[0].function.arguments", "'command'", "stay the text"),
    (Ghost, "one call", "message().tool_calls", "2: [", "add them up"),
    (NoType, "one call", "message().tool_calls[0].type", "missing", "Id and name"),
    (Shared, "a second assembler", "the second one's message().tool_calls", "call_ls", "__init__"),
    (UsedUp, "asked in the middle", "message().tool_calls[0].id", "''", "change nothing"),
    (ForgetsTheText, "text in three", "message().content", "''", "Add every content"),
]


@pytest.mark.parametrize(("answer", "case", "where", "got", "why"), WRONG, ids=lambda it: getattr(it, "__name__", None))
def test_a_wrong_answer_is_told_where_and_why(answer, case, where, got, why):
    Shared.calls_of_all.clear()
    report = check.assembler(answer)
    finding = failed(report, case)
    assert not report.passed
    assert finding.where.endswith(where) and got in finding.got and why in finding.why
    assert finding.fed and finding.expected
    for text in (repr(report), report._repr_html_()):
        assert finding.name in text


def test_each_wrong_answer_passes_something_so_the_cases_tell_them_apart():
    Shared.calls_of_all.clear()
    for answer, *_ in WRONG:
        assert names(check.assembler(answer), passed=True), answer.__name__


# --- the live loop ----------------------------------------------------------------------------------------------------


def test_an_unknown_key_gets_the_providers_own_refusal():
    live = check.assembler(KeepsThePiece).live
    assert not live.passed
    assert live.said.startswith("The provider answered 400: Unknown parameter: 'messages[1].tool_calls[0].index'.")
    assert [m["role"] for m in live.history] == ["user", "assistant", "tool", "tool"]


def test_a_missing_key_gets_the_providers_own_refusal():
    said = check.assembler(NoType).live.said
    assert "400: Missing required parameter: 'messages[1].tool_calls[0].type'." in said


def test_broken_arguments_end_in_an_answer_that_names_what_the_model_was_told():
    live = check.assembler(Overwrites).live
    assert not live.passed and "not valid JSON" in live.said and TOTAL not in live.said


def test_the_readers_error_in_the_loop_is_shown_with_their_line():
    live = check.assembler(FirstChoice).live
    assert live.said.startswith(
        "The loop broke: IndexError: list index out of range, in your line: return super().feed("
    )


def test_a_message_that_cannot_be_used_breaks_the_loop_and_not_the_check():
    class NoDict(Right):
        def message(self):
            return None

    class NoMessage:
        def feed(self, event):
            return ""

    for answer in (NoDict, NoMessage):
        report = check.assembler(answer)
        assert not report.passed and not report.live.passed
        assert "The loop broke" in report.live.said


def test_the_turn_is_a_real_turn_with_the_readers_class_in_it():
    made = []

    class Mine(Right):
        def __init__(self):
            super().__init__()
            made.append(self)

    turn = check.assembler.turn(Mine)
    asyncio.run(turn.run())
    assert turn.reason == "done" and turn.history[-1]["content"] == TOTAL
    assert [one.message() for one in made] == [m for m in turn.history if m["role"] == "assistant"]


def test_the_turn_raises_what_the_provider_refuses():
    with pytest.raises(ProviderRefused, match="Unknown parameter"):
        asyncio.run(check.assembler.turn(KeepsThePiece).run())


def test_the_adapter_reads_only_what_the_client_needs():
    adapter = Adapter(Right())
    assert (adapter.finish_reason, adapter.usage, adapter.complete) == (None, None, False)
    assert adapter.feed({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "length"}]}) == "Hi"
    assert adapter.feed({"choices": [], "usage": {"prompt_tokens": 1}}) == ""
    assert (adapter.finish_reason, adapter.usage, adapter.complete) == ("length", {"prompt_tokens": 1}, True)
    ended = Adapter(ReturnsNothing())
    assert ended.feed({"choices": []}) == ""
    ended.done()
    assert ended.complete


def test_the_check_works_inside_a_running_loop():
    async def cell():
        return check.assembler(Right)

    assert asyncio.run(cell()).passed


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_same_answer_gives_the_same_text():
    for answer in (Right, LastCallGetsAll, FirstChoice):
        first, again = check.assembler(answer), check.assembler(answer)
        assert repr(first) == repr(again) and first._repr_html_() == again._repr_html_()


def test_no_text_names_a_file_of_this_machine_or_an_address():
    text = repr(check.assembler(FirstChoice)) + check.assembler(FirstChoice)._repr_html_()
    assert __file__ not in text and "test_check_stream" not in text and " at 0x" not in text


def test_the_report_counts_needed_and_bonus_cases_apart():
    text = repr(check.assembler(Right))
    needed, bonus = sum(not case.bonus for case in CASES), sum(case.bonus for case in CASES)
    assert text.startswith(f"check.assembler: {needed} of {needed} cases pass\n")
    assert f"bonus, seen on real servers: 5 of {bonus}\n" in text
    assert text.endswith(f"in the live loop:\n✓ {TOTAL}")


def test_a_failed_bonus_or_no_live_run_does_not_fail_the_report():
    assert Report("x", (Finding("a", True), Finding("b", False, bonus=True))).passed
    assert not Report("x", (Finding("a", False),)).passed
    assert not Report("x", (Finding("a", True),), check.Live(False, "no")).passed


def test_what_the_readers_code_says_is_escaped_and_bounded():
    class Hostile(Right):
        def message(self):
            raise RuntimeError("<script>alert(1)</script>\x00" + "x" * 100_000)

    report = check.assembler(Hostile)
    assert "<script>" not in report._repr_html_() and len(report._repr_html_()) < 60_000
    assert "\x00" not in repr(report) and len(repr(report)) < 30_000

    class Huge(Right):
        def message(self):
            return {**super().message(), "content": "<b>" * 20_000}

    report = check.assembler(Huge)
    assert "<b><b>" not in report._repr_html_() and len(report._repr_html_()) < 60_000


def test_events_are_not_shared_between_answers():
    class Mutates(Right):
        def feed(self, event):
            text = super().feed(event)
            for choice in event["choices"]:
                choice["delta"].clear()
            return text

    assert check.assembler(Mutates).passed
    assert check.assembler(Right).passed


# --- the exercise -----------------------------------------------------------------------------------------------------


def test_three_hints_and_a_clear_word_for_a_fourth():
    hints = [check.assembler.hint(number) for number in (1, 2, 3)]
    assert [repr(hint).split(":")[0] for hint in hints] == [f"Hint {n} of 3" for n in (1, 2, 3)]
    assert "<div" in hints[0]._repr_html_()
    for number in (0, 4, -1):
        with pytest.raises(AgentLabError, match="1 to 3"):
            check.assembler.hint(number)


def test_an_object_instead_of_the_class_is_named():
    with pytest.raises(AgentLabError, match="without brackets"):
        check.assembler(Right())


def test_a_stop_of_the_person_is_not_taken_for_a_wrong_answer():
    class Interrupted(Right):
        def feed(self, event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check.assembler(Interrupted)


def test_blame_names_the_last_own_line_even_when_a_library_raised():
    class Mine:
        def feed(self, event):
            return json.loads("{")

    text = blame(error_of(lambda: Mine().feed({})), Mine)
    assert text.endswith('in your line: return json.loads("{")') and text.startswith("JSONDecodeError: ")

    class Child(Mine):
        pass

    assert blame(error_of(lambda: Child().feed({})), Child) == text
    assert blame(ValueError("never raised"), Mine) == "ValueError: never raised"
    assert blame(ValueError(), Mine) == "ValueError"


# --- invariants -------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
)
MESSAGES = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "id", "arguments", "zzz"]), VALUES, max_size=4
)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(MESSAGES)
def test_a_message_does_not_differ_from_itself(message):
    assert difference(message, copy.deepcopy(message)) is None


@settings(max_examples=50, derandomize=True, deadline=None)
@given(MESSAGES, MESSAGES)
def test_a_difference_is_found_unless_the_messages_mean_the_same(one, other):
    def plain(value):
        if isinstance(value, dict):
            return {k: "" if k == "content" and v is None else plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list) else value

    found = difference(one, other)
    if found is None and "content" in one and "content" not in other:  # allowed beside calls only
        assert "tool_calls" in one
    elif found is None:
        assert plain(one) == plain(other)
    else:
        assert found.where.startswith("message()") and one != other


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.text(max_size=2 * LIMIT))
def test_short_is_one_bounded_text_that_can_be_encoded(text):
    assert len(short(text)) < 12 * LIMIT
    short(text).encode()


def test_short_survives_an_object_that_cannot_be_shown():
    class Bad:
        def __repr__(self):
            raise ValueError

    assert short(Bad()) == "<Bad, whose repr raises ValueError>"
