"""The checkers of chapter 06: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from agentlab.check.cache import Solution, ledger
from agentlab.check.cache_culprit import culprit
from agentlab.check.cache_threshold import CASES, PAGES, WINDOW, WORK, _Stage, judge, threshold
from agentlab.errors import AgentLabError
from agentlab.prefix import diff
from agentlab.ttl import best_threshold
from agentlab.usage import Ledger
from agentlab.widgets.sync import run_sync


def failed(report):
    """The first case that failed."""
    found = next((f for f in report.findings if not f.passed and not f.bonus), None)
    assert found is not None, "every case passed"
    return found


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_the_solution_and_the_modules_own_ledger_pass():
    for answer in ledger.solution, Ledger:
        report = ledger(answer)
        assert report.passed and all(f.passed for f in report.findings), report
        assert "1,926 expired, 3,487 rewritten" in report.live.said


class NoNoise(Solution):
    def __init__(self, ttl_s=300, noise=1024):
        super().__init__(ttl_s, 0)


class NoiseTaken(Solution):
    """Only what lies above the noise counts."""

    def record(self, usage, at):
        missed, verdict = super().record(usage, at)
        return (missed - self.noise if missed else 0), verdict


class NoiseInclusive(Solution):
    def __init__(self, ttl_s=300, noise=1024):
        super().__init__(ttl_s, noise - 1)


class TtlInclusive(Solution):
    def record(self, usage, at):
        self.ttl_s -= 0.001
        return super().record(usage, at)


class FixedTtl(Solution):
    def __init__(self, ttl_s=300, noise=1024):
        super().__init__(300, noise)


class NoMinimum(Solution):
    def record(self, usage, at):
        before = self.before
        missed, verdict = super().record(usage, at)
        return (
            (before - usage.hit, "rewritten")
            if verdict == "ok" and before - usage.hit > self.noise
            else (
                missed,
                verdict,
            )
        )


class Gullible(Solution):
    """Takes silence for a miss."""

    def __init__(self, ttl_s=300, noise=1024):
        super().__init__(ttl_s, noise)
        self.reports = True


class Forgetful(Solution):
    """Looks at this row only to learn whether the provider reports."""

    def record(self, usage, at):
        self.reports = False
        return super().record(usage, at)


class HitsOnly(Solution):
    """A write is no report."""

    def __init__(self, ttl_s=300, noise=1024):
        super().__init__(ttl_s, noise)
        self.hits = False

    def record(self, usage, at):
        self.reports = self.hits = self.hits or usage.hit > 0
        before, self.at = self.before, at if self.at is None else self.at
        if not self.hits:
            self.before, self.at = usage.prompt, at
            return 0, "unknown"
        self.before = before
        return super().record(usage, at)


class NeverResets(Solution):
    def reset(self):
        pass


class StartsAnew(Solution):
    """`reset` forgets that the provider reports, too."""

    def reset(self):
        self.__init__(self.ttl_s, self.noise)


class NeverExpires(Solution):
    def record(self, usage, at):
        missed, verdict = super().record(usage, at)
        return missed, "rewritten" if verdict == "expired" else verdict


class OnlyANumber(Solution):
    def record(self, usage, at):
        return super().record(usage, at)[0]


class Raises(Solution):
    def record(self, usage, at):
        return 1 / 0


class FirstIsOk(Solution):
    def record(self, usage, at):
        missed, verdict = super().record(usage, at)
        return missed, "ok" if verdict == "unknown" else verdict


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (NoNoise, "nothing is wrong"),
        (NoiseTaken, "not only what lies above"),
        (NoiseInclusive, "still noise"),
        (TtlInclusive, "still there"),
        (FixedTtl, "for an hour"),
        (NoMinimum, "smaller of the two"),
        (Gullible, "proves nothing"),
        (Forgetful, "It can report|nobody's fault|still warm"),
        (HitsOnly, "Who writes to a cache has one"),
        (NeverResets, "on purpose"),
        (StartsAnew, "not that this provider reports"),
        (NeverExpires, "nobody's fault"),
        (OnlyANumber, ""),
        (Raises, ""),
        (FirstIsOk, "All of the last prompt|`unknown`"),
    ],
)
def test_a_wrong_ledger_fails_and_is_told_why(answer, says):
    report = ledger(answer)
    found = failed(report)
    assert any(part in found.why for part in says.split("|")), found
    assert found.fed.startswith("ttl_s=") and "prompt" in found.fed and found.got


def test_a_wrong_ledger_misleads_the_running_agent():
    live = ledger(NeverExpires).live
    assert not live.passed and "1,926 rewritten" in live.said and "The bill says: " in live.said
    assert not ledger(OnlyANumber).live.passed
    broken = ledger(Raises).live
    assert not broken.passed and "ZeroDivisionError" in broken.said


# --- the culprit ------------------------------------------------------------------------------------------------------


def test_the_right_culprit_finders_pass():
    for answer in culprit.solution, lambda previous, current: diff(previous, current).culprit:
        report = culprit(answer)
        assert report.passed, report
        assert "Named: system, tools, messages[3]." in report.live.said


def plain_equality(previous, current):
    if previous.get("tools") != current.get("tools"):
        return "tools"
    for i, (one, other) in enumerate(zip(previous["messages"], current["messages"], strict=False)):
        if one != other:
            return "system" if one["role"] == "system" else f"messages[{i}]"
    return None


def without_the_system_message(previous, current):
    found = culprit.solution(previous, current)
    number = re.search(r"\d+", found or "")
    return f"messages[{int(number[0]) - 1}]" if number else found


def system_first(previous, current):
    rest = culprit.solution({**previous, "tools": []}, {**current, "tools": []})
    return rest or culprit.solution(previous, current)


def looks_for_times(previous, current):
    for i, message in enumerate(current["messages"]):
        if re.search(r"\d\d:\d\d", str(message["content"])):
            return "system" if i == 0 else f"messages[{i}]"
    return None


def sorts_keys(previous, current):
    return culprit.solution(*(json.loads(json.dumps(each, sort_keys=True)) for each in (previous, current)))


def sorts_tools(previous, current):
    def settled(request):
        return {**request, "tools": sorted(request.get("tools", []), key=json.dumps)}

    return culprit.solution(settled(previous), settled(current))


def needs_tools(previous, current):
    return "tools" if previous["tools"] != current["tools"] else culprit.solution(previous, current)


def contents_only(previous, current):
    def bare(request):
        messages = [{"role": m["role"], "content": m["content"]} for m in request["messages"]]
        return {**request, "messages": messages}

    return culprit.solution(bare(previous), bare(current))


def all_settings(previous, current):
    settings = [{k: v for k, v in each.items() if k != "messages"} for each in (previous, current)]
    return "tools" if settings[0] != settings[1] else culprit.solution(previous, current)


def every_new_message(previous, current):
    found = culprit.solution(previous, current)
    return found or (f"messages[{len(previous['messages'])}]" if len(current["messages"]) > 6 else None)


def last_break(previous, current):
    for i in reversed(range(min(len(previous["messages"]), len(current["messages"])))):
        if previous["messages"][i] != current["messages"][i]:
            return "system" if i == 0 else f"messages[{i}]"
    return culprit.solution(previous, current)


def only_shared(previous, current):
    shared = min(len(previous["messages"]), len(current["messages"]))
    return culprit.solution({**previous, "messages": previous["messages"][:shared]}, current)


def takes_apart(previous, current):
    found = culprit.solution(previous, current)
    current["messages"].pop()
    return found


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (plain_equality, "is not the beginning|different texts"),
        (without_the_system_message, "the system message included"),
        (system_first, "Only the first break matters"),
        (looks_for_times, "All of the previous request|do not search for dates"),
        (sorts_keys, "different texts"),
        (sorts_tools, "Their order is part of the text"),
        (needs_tools, "The key may be missing"),
        (contents_only, "its bytes change"),
        (all_settings, "Settings are no part"),
        (every_new_message, "still there"),
        (last_break, "prefix ends|first break matters"),
        (only_shared, "not the beginning of this one"),
        (takes_apart, "still needed"),
        (lambda previous, current: None, "in front of every message"),
        (lambda previous, current: 1 // 0, ""),
    ],
)
def test_a_wrong_culprit_finder_fails_and_is_told_why(answer, says):
    found = failed(culprit(answer))
    assert any(part in found.why for part in says.split("|")), found
    assert found.fed.startswith("previous: tools")


def test_a_wrong_name_goes_on_costing():
    live = culprit(lambda previous, current: None).live
    assert not live.passed and "8 misses" in live.said
    broken = culprit(lambda previous, current: 1 // 0).live
    assert not broken.passed and "ZeroDivisionError" in broken.said


# --- the threshold ----------------------------------------------------------------------------------------------------


def by_the_module(prices, ttl_s, pause_s, work):
    return best_threshold(prices, ttl_s=ttl_s, idle_s=pause_s, work=work)


def the_seeds_rule(prices, ttl_s, pause_s, work):
    return 0.82 if ttl_s < 600 else 0.65


def test_thresholds_that_were_simulated_pass():
    for answer in threshold.solution, by_the_module:
        report = threshold(answer)
        assert report.passed, report
        assert "The bill is USD" in report.live.said


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (the_seeds_rule, "keep it short"),
        (lambda prices, ttl_s, pause_s, work: 0.75, "keep it short"),
        (lambda prices, ttl_s, pause_s, work: 0.2, "costs something|the longer a prompt may stay long"),
        (lambda prices, ttl_s, pause_s, work: 0.3, "every token is paid for in full"),
        (lambda prices, ttl_s, pause_s, work: 0.95, "keep it short"),
        (lambda prices, ttl_s, pause_s, work: 75, "a share of the window"),
        (lambda prices, ttl_s, pause_s, work: 0, "a share of the window"),
        (lambda prices, ttl_s, pause_s, work: True, "a share of the window"),
        (lambda prices, ttl_s, pause_s, work: "0.5", "a share of the window"),
        (lambda prices, ttl_s, pause_s, work: float("nan"), "a share of the window"),
        (lambda prices, ttl_s, pause_s, work: None, "a share of the window"),
        (lambda prices, ttl_s, pause_s, work: work.compacted / work.window, "keep it short|for a long time|next to"),
        (lambda prices, ttl_s, pause_s, work: 1 // 0, ""),
    ],
)
def test_a_wrong_threshold_fails_and_is_told_why(answer, says):
    found = failed(threshold(answer))
    assert any(part in found.why for part in says.split("|")), found
    assert "ttl_s=" in found.fed and "rework" in found.fed


def test_the_bill_of_the_live_loop_tells_a_late_threshold_from_a_good_one():
    late = threshold(the_seeds_rule).live
    assert not late.passed and "compactions: 1" in late.said and "would do" in late.said
    broken = threshold(lambda prices, ttl_s, pause_s, work: 1 // 0).live
    assert not broken.passed and "ZeroDivisionError" in broken.said
    assert not threshold(lambda prices, ttl_s, pause_s, work: 75).live.passed


def test_the_live_loops_work_is_described_as_it_is():
    stage = _Stage(0.4)
    run_sync(stage.turn.run())
    prompts = [usage["prompt_tokens"] for usage in stage.simulator.usages]
    growth = [later - earlier for earlier, later in pairwise(prompts) if later > earlier]
    assert sorted(growth)[len(growth) // 2] == WORK.growth
    after = min(later for earlier, later in pairwise(prompts) if later < earlier)
    assert after == WORK.compacted
    assert stage.turn.reason == "done" and max(prompts) < WINDOW
    assert sum(message["role"] == "tool" for message in stage.turn.history) == PAGES


def test_no_single_threshold_is_good_for_all_cases():
    for share in range(10, 96, 5):
        findings = judge(lambda prices, ttl_s, pause_s, work, share=share: share / 100)
        assert sum(found.passed for found in findings) < len(CASES)


# --- all three --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", [ledger, culprit, threshold])
def test_only_what_can_be_called_is_an_answer_and_there_are_three_hints(exercise):
    for answer in (None, "text", 3):
        with pytest.raises(AgentLabError, match="without brackets"):
            exercise(answer)
    for number in 1, 2, 3:
        assert repr(exercise.hint(number)).startswith(f"Hint {number} of 3: ")
