"""The waste ledger: what counts, what does not, who is to blame, and the four symptoms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.usage import CacheUsage, Entry, Ledger, diagnose, read_usage

DATA = Path(__file__).resolve().parent.parent / "data"
SIX = json.loads((DATA / "seed_demos_usage.json").read_bytes())["six_turns"]["requests"]


def anthropic(prompt: int, read: int, written: int = 0) -> dict[str, Any]:
    fresh = prompt - read - written
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": 10,
    }


def openai(prompt: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": 10, **details}


def kept(*requests: tuple[Any, float], **options: Any) -> Ledger:
    ledger = Ledger(**options)
    for usage, at in requests:
        ledger.record(usage, at)
    return ledger


def six_turns() -> Ledger:
    ledger, now = Ledger(), 0.0
    for request in SIX:
        now += request["gap_s"]
        ledger.record(anthropic(request["prompt"], request["read"], request["written"]), now)
    return ledger


def test_the_six_turns_of_the_demonstration() -> None:
    ledger = six_turns()
    assert [(e.missed, e.verdict) for e in ledger.entries] == [
        (0, "unknown"),
        (0, "ok"),
        (0, "ok"),
        (14_100, "expired"),
        (0, "ok"),
        (12_500, "rewritten"),
    ]
    assert [ledger.entries[i].idle_s for i in (3, 5)] == [38 * 60, 12]
    assert (ledger.wasted, ledger.misses) == (26_600, 2)
    drawn = ledger._repr_html_()
    assert "26,600 tokens in 2 misses" in drawn and "14,100" in drawn


def test_the_noise_floor_and_the_ttl_are_inclusive() -> None:
    start = (openai(20_000, 19_000), 0.0)
    assert kept(start, (openai(20_000, 20_000 - 1024), 1.0)).entries[-1].verdict == "ok"
    assert kept(start, (openai(20_000, 20_000 - 1025), 1.0)).entries[-1] == Entry(
        1025, 1.0, "rewritten", read_usage(openai(20_000, 20_000 - 1025))
    )
    assert kept(start, (openai(20_000, 0), 300.0)).entries[-1].verdict == "rewritten"
    assert kept(start, (openai(20_000, 0), 300.5)).entries[-1].verdict == "expired"
    assert kept(start, (openai(20_000, 0), 300.5), ttl_s=3600).entries[-1].verdict == "rewritten"
    assert kept(start, (openai(20_000, 19_950), 1.0), noise=10).misses == 1


def test_what_was_shortened_is_compared_with_what_is_left() -> None:
    assert kept((openai(50_000, 40_000), 0.0), (openai(8_000, 6_000), 1.0)).wasted == 2_000


def test_a_silent_provider_proves_nothing_until_it_has_spoken() -> None:
    silent = kept(*((openai(20_000 + i), 10.0 * i) for i in range(5)))
    assert {(e.missed, e.verdict) for e in silent.entries} == {(0, "unknown")}
    zeros = kept(*((openai(20_000 + i, 0), 10.0 * i) for i in range(5)))
    assert {(e.missed, e.verdict) for e in zeros.entries} == {(0, "unknown")}
    spoken = kept((openai(20_000), 0.0), (openai(21_000, 20_000), 1.0), (openai(22_000), 2.0))
    assert [(e.missed, e.verdict) for e in spoken.entries] == [(0, "unknown"), (0, "ok"), (21_000, "rewritten")]


def test_a_write_is_a_report_too() -> None:
    assert kept((anthropic(9_000, 0, 9_000), 0.0), (anthropic(9_100, 0, 9_100), 5.0)).wasted == 9_000


def test_a_compaction_is_not_waste_and_the_provider_stays_known() -> None:
    ledger = kept((openai(90_000, 0), 0.0), (openai(92_000, 90_000), 5.0))
    ledger.reset()
    first = ledger.record(openai(12_000, 3_000), 10.0)
    assert (first.missed, first.verdict, first.start, first.idle_s) == (0, "unknown", "compaction", 5.0)
    assert ledger.record(openai(13_000), 15.0).missed == 12_000
    assert ledger.wasted == 12_000


def test_a_reset_before_the_first_request_is_none() -> None:
    ledger = Ledger()
    ledger.reset()
    assert ledger.record(openai(9_000, 0), 0.0).start == "session"


def test_a_clock_that_goes_back_is_no_pause() -> None:
    ledger = kept((openai(20_000, 10_000), 1_000.0), (openai(21_000, 0), 400.0), (openai(22_000, 21_000), 405.0))
    assert [e.idle_s for e in ledger.entries] == [0.0, 0.0, 5.0]
    assert ledger.entries[1].verdict == "rewritten"


def test_a_request_without_usage_is_passed_over() -> None:
    for nothing in (None, {}, [], {"prompt_tokens": "?"}):
        ledger = kept((openai(20_000, 10_000), 0.0), (nothing, 250.0), (openai(21_000, 0), 500.0))
        assert [(e.missed, e.verdict) for e in ledger.entries] == [
            (0, "unknown"),
            (0, "unknown"),
            (20_000, "rewritten"),
        ]


@pytest.mark.parametrize("at", [float("nan"), float("inf"), None, "12", 10**400])
def test_a_time_must_be_a_number(at: Any) -> None:
    with pytest.raises(AgentLabError, match="finite"):
        Ledger().record(openai(1), at)


@pytest.mark.parametrize("options", [{"ttl_s": -1}, {"noise": -1}, {"ttl_s": float("nan")}])
def test_options_must_make_sense(options: dict[str, Any]) -> None:
    with pytest.raises(AgentLabError, match="negative"):
        Ledger(**options)


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[CacheUsage, float]]:
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        prompt = draw(st.integers(0, 60_000))
        hit = draw(st.sampled_from([0, prompt // 2, prompt]))
        written = draw(st.sampled_from([0, prompt - hit]))
        usage = CacheUsage(prompt, hit, prompt - hit, written, reported=draw(st.booleans()))
        rows.append((usage, draw(st.floats(-1e6, 1e6))))
    return rows


@given(sessions(), st.floats(0, 1e5), st.integers(0, 5_000))
def test_the_sums_are_those_of_the_entries_and_the_verdicts_hold(
    session: list[tuple[CacheUsage, float]], ttl_s: float, noise: int
) -> None:
    ledger = kept(*session, ttl_s=ttl_s, noise=noise)
    assert ledger.wasted == sum(e.missed for e in ledger.entries)
    assert ledger.misses == sum(e.verdict in ("expired", "rewritten") for e in ledger.entries)
    for entry in ledger.entries:
        assert entry.missed == 0 or noise < entry.missed <= entry.usage.miss
        assert (entry.missed > 0) == (entry.verdict in ("expired", "rewritten"))
        assert entry.idle_s >= 0
        if entry.missed:
            assert (entry.verdict == "expired") == (entry.idle_s > ttl_s)
    assert len(diagnose(ledger.entries)) == 4


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=15))
def test_an_append_only_session_inside_the_ttl_wastes_nothing(growth: list[int]) -> None:
    ledger, prompt = Ledger(), 0
    for i, more in enumerate(growth):
        ledger.record(anthropic(prompt + more, prompt, more), 60.0 * i)
        prompt += more
    assert ledger.wasted == 0


def found(ledger: Ledger, **options: Any) -> list[tuple[int, ...]]:
    return [symptom.requests for symptom in diagnose(ledger.entries, **options)]


def test_the_diagnosis_of_the_six_turns_blames_the_last() -> None:
    assert found(six_turns()) == [(), (6,), (), ()]
    drawn = diagnose(six_turns().entries)._repr_html_()
    assert "Old messages were rewritten" in drawn and drawn.count("<tr") == 5


def test_a_clock_in_the_system_prompt_shows_as_no_hit_at_all() -> None:
    writes = kept(*((anthropic(9_000 + i, 0, 9_000 + i), 5.0 * i) for i in range(4)))
    assert found(writes) == [(2, 3, 4), (), (), ()]
    zeros = kept(*((openai(9_000 + i, 0), 5.0 * i) for i in range(4)))
    assert found(zeros) == [(2, 3, 4), (), (), ()]


def test_one_hit_or_short_prompts_or_pauses_are_no_such_symptom() -> None:
    once = kept(*((openai(9_000 + i, 8_000 * (i == 2)), 5.0 * i) for i in range(4)))
    assert found(once)[0] == ()
    short = kept(*((openai(900 + i, 0), 5.0 * i) for i in range(4)))
    assert found(short) == [(), (), (), ()]
    slow = kept(*((openai(9_000 + i, 0), 900.0 * i) for i in range(4)))
    assert found(slow)[0] == ()


def test_a_compaction_is_recognised() -> None:
    ledger = six_turns()
    ledger.reset()
    ledger.record(anthropic(9_000, 2_000, 7_000), 9e9)
    assert found(ledger)[2] == (7,)


def test_silence_anomalies_and_a_bill_that_does_not_fall() -> None:
    assert found(kept((openai(9_000), 0.0), (openai(9_500), 5.0)))[3] == (1, 2)
    assert found(kept((openai(9_000, 9_900), 0.0), (openai(9_500, 9_000), 5.0)))[3] == (1,)
    steady = kept((openai(9_000, 0), 0.0), (openai(9_500, 9_000), 5.0))
    assert found(steady)[3] == ()
    assert found(steady, saved=-0.1)[3] == (2,)
    assert found(steady, saved=0.1)[3] == ()


@pytest.mark.parametrize("limits", [{"ttl_s": None}, {"noise": None}, {"noise": "3"}, {"ttl_s": [5]}], ids=str)
def test_limits_that_are_no_numbers_are_refused(limits: Any) -> None:
    with pytest.raises(AgentLabError, match="numbers"):
        Ledger(**limits)
