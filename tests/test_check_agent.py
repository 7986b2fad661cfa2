"""The checker of chapter 12: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentlab.check.agent_day import PATIENCE, morning, whole_day
from agentlab.check.agent_wiring import RIGHT, wiring
from agentlab.compaction import Limits
from agentlab.errors import AgentLabError
from agentlab.loop import Hooks
from agentlab.permissions import Policy, Rule
from agentlab.project import open_agent
from agentlab.widgets import run_sync


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


# --- what the chapter tries out on the whole agent --------------------------------------------------------------------

WISHES = ["The tests fail. Find out why, and mend it.", "Which years had failed? Read the whole log of the first run."]
POLICY = Policy([Rule("allow", name) for name in ("edit_file", "write_file", "run_shell")])


def new_agent(folder, simulator, window, **options):
    return open_agent(folder, simulator.client(), limits=Limits(window), **{"policy": POLICY} | options)


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return shutil.copytree(Path(__file__).parent.parent / "data" / "repo", tmp_path / "repo")


def test_a_morning_without_the_spill_mends_one_year_of_four(repo):
    ending, rule, known = run_sync(morning(new_agent, repo, WISHES[:1], without=["spill"]))
    assert "the middle of the log is gone" in ending and rule.endswith("and year != 2100") and known == "1 of 1 wishes"


def test_a_morning_without_the_watchdog_goes_round_until_somebody_presses_stop(repo):
    ending, rule, _ = run_sync(morning(new_agent, repo, WISHES[:1], without=["watchdog"]))
    assert ending == f"stopped by hand: 1 x run_shell, 1 x read_file, {PATIENCE - 1} x edit_file"
    assert rule == "year % 4 == 0"


def test_a_whole_day_in_a_small_window_needs_summaries_and_is_right(repo):
    day = run_sync(whole_day(new_agent, repo, WISHES, 6_000))
    assert day.right and day.summaries and day.prunings and max(u["prompt_tokens"] for u in day.usages) <= 6_000
