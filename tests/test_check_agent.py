"""The checker of chapter 12: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentlab.check.agent_wiring import RIGHT, wiring
from agentlab.errors import AgentLabError
from agentlab.loop import Hooks


def with_results(recorder, after_results):
    return replace(recorder.hooks, after_results=after_results)


def of_the_recorders_hooks(shorten, recorder):
    def both(results):
        recorder.after_results(kept := shorten(results))
        return kept

    return with_results(recorder, both)


def with_an_async_hook(shorten, recorder):
    async def both(results):
        recorder.after_results(kept := shorten(results))
        return kept

    return with_results(recorder, both)


@pytest.mark.parametrize("answer", [wiring.solution, of_the_recorders_hooks, with_an_async_hook])
def test_right_answers_pass(answer):
    report = wiring(answer)
    assert report.passed, report
    assert report.live.said == RIGHT


def only_shortens(shorten, recorder):
    return with_results(recorder, shorten)


def only_records(shorten, recorder):
    return recorder.hooks


def records_the_long_text(shorten, recorder):
    def both(results):
        recorder.after_results(results)
        return shorten(results)

    return with_results(recorder, both)


def forgets_to_return(shorten, recorder):
    def both(results):
        recorder.after_results(shorten(results))

    return with_results(recorder, both)


def shortens_twice(shorten, recorder):
    def both(results):
        recorder.after_results(shorten(results))
        return shorten(results)

    return with_results(recorder, both)


def only_one_hook(shorten, recorder):
    return Hooks(after_results=of_the_recorders_hooks(shorten, recorder).after_results)


def no_usage(shorten, recorder):
    return replace(of_the_recorders_hooks(shorten, recorder), on_usage=None)


def no_words(shorten, recorder):
    return replace(of_the_recorders_hooks(shorten, recorder), before_request=None)


def no_reply(shorten, recorder):
    return replace(of_the_recorders_hooks(shorten, recorder), after_message=None)


def drops_the_hooks(shorten, recorder):
    of_the_recorders_hooks(shorten, recorder)


def raises(shorten, recorder):
    return with_results(recorder, lambda results: recorder.after_result(shorten(results)))


WRONG = {
    only_shortens: ("the log gets them too", "the log is the conversation"),
    only_records: ("the model gets the short results", "only looked"),
    records_the_long_text: ("the log gets them too", "may not fit"),
    forgets_to_return: ("the model gets the short results", "only looked"),
    shortens_twice: ("each result is saved once", "once a batch"),
    only_one_hook: ("the person's words", "before_request"),
    no_usage: ("the usage", "on_usage"),
    no_words: ("the person's words", "before_request"),
    no_reply: ("the reply, before its calls run", "after_message"),
    drops_the_hooks: ("the model gets the short results", "return Hooks"),
    raises: ("the model gets the short results", "in your line: return with_results"),
}


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: answer.__name__)
def test_wrong_answers_fail_with_a_line_that_helps(answer):
    report = wiring(answer)
    case, words = WRONG[answer]
    found = next(finding for finding in report.findings if not finding.passed)
    assert found.name == case
    assert words in str(found.lines())


@pytest.mark.parametrize("answer", [only_shortens, only_records, records_the_long_text, forgets_to_return, no_reply])
def test_the_live_loop_shows_what_it_costs(answer):
    live = wiring(answer).live
    assert not live.passed
    assert live.said.startswith(("Before the restart", "After the restart", "I look for the log"))


def test_the_two_refusals_are_the_providers_own():
    assert "maximum context length" in wiring(only_records).live.said
    assert wiring(records_the_long_text).live.said.startswith("After the restart: The provider answered 400")


def test_what_is_no_function_is_told_so():
    for answer in None, Hooks(), "x":
        with pytest.raises(AgentLabError, match="plain function"):
            wiring(answer)


def test_there_are_three_hints():
    assert [wiring.hint(n).text[:11] for n in (1, 2, 3)] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3"]
