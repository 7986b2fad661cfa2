"""When compacting pays: the simulated bill, the break-even point, and what became of the rules of thumb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.prices import PriceList, Prices, bill
from agentlab.ttl import FORCED, THRESHOLDS, WHEN, When, Work, best_threshold, break_even, grid, pauses, simulate

LIST = PriceList.read(Path(__file__).resolve().parent.parent / "data" / "prices.json")
SONNET = LIST.find("claude-sonnet-4-6")
DEEPSEEK = LIST.find("deepseek-v4-pro", tier="peak")
SHORT_S, HOURS_S = 300.0, 4 * 3600.0
SMALL = Work(turns=12, steps=4)

works = st.builds(
    Work,
    kept=st.integers(0, 40_000),
    growth=st.integers(0, 8_000),
    summarizes=st.booleans(),
    rework=st.integers(0, 3),
    steps=st.integers(1, 5),
    turns=st.integers(1, 8),
)
waits = st.lists(st.sampled_from([0.0, 60.0, 300.0, 301.0, 9e9]), min_size=1, max_size=10)


@given(works, waits, st.floats(0.05, 1.0), st.sampled_from(WHEN))
def test_every_simulated_request_fits_and_the_cost_is_its_bill(
    work: Work, turns: list[float], threshold: float, when: When
) -> None:
    run = simulate(threshold, turns, ttl_s=SHORT_S, prices=SONNET, work=work, when=when)
    assert run.cost == bill(run.usages, SONNET).actual
    assert max(usage.prompt for usage in run.usages) <= FORCED * work.window + work.growth
    summaries = run.compactions * work.summarizes
    assert len(run.usages) == len(turns) * work.steps + run.compactions * work.rework + summaries
    again = simulate(threshold, turns, ttl_s=SHORT_S, prices=SONNET, work=work, when=when)
    assert again == run


@given(waits)
def test_a_cache_that_lives_longer_never_costs_more(turns: list[float]) -> None:
    runs = [simulate(0.7, turns, ttl_s=ttl, prices=SONNET, work=SMALL) for ttl in (60.0, 300.0, 1e12)]
    assert runs[0].cost >= runs[1].cost >= runs[2].cost
    assert runs[0].compactions == runs[2].compactions
    assert runs[2].expiries == 0


def test_a_pause_beyond_the_ttl_empties_the_cache_once() -> None:
    run = simulate(1.0, [0.0, 9_000.0], ttl_s=SHORT_S, prices=SONNET, work=Work(steps=2, turns=2))
    assert [usage.hit > 0 for usage in run.usages] == [False, True, False, True]
    assert (run.expiries, run.compactions) == (1, 0)
    assert simulate(1.0, [0.0, SHORT_S], ttl_s=SHORT_S, prices=SONNET, work=SMALL).expiries == 0


def test_a_compaction_reads_the_whole_prompt_and_keeps_the_fixed_front() -> None:
    work = Work(window=50_000, fixed=4_000, kept=6_000, growth=10_000, steps=8)
    run = simulate(0.5, [0.0], ttl_s=SHORT_S, prices=SONNET, work=work)
    prompts = [(usage.prompt, usage.hit) for usage in run.usages[:5]]
    assert prompts == [(10_000, 0), (20_000, 10_000), (30_000, 20_000), (10_000, 4_000), (20_000, 10_000)]
    assert run.usages[2].output == work.summary


def test_each_policy_compacts_where_it_says() -> None:
    turns = [0.0, 0.0, 9_000.0, 0.0]
    work = Work(window=100_000, growth=5_000, steps=3)

    def shrinks(when: When) -> list[int]:
        own = Work(**{**vars(work), "summarizes": False})
        sizes = [u.prompt for u in simulate(0.3, turns, ttl_s=SHORT_S, prices=SONNET, work=own, when=when).usages]
        return [i for i in range(1, len(sizes)) if sizes[i] < sizes[i - 1]]

    assert shrinks("after_expiry") == [6]  # the first request of the turn behind the pause
    assert shrinks("before_pause") == [3, 6, 9]  # turns have three requests
    assert shrinks("any") == [2, 4, 6, 8, 10]


def test_pauses_are_reproducible_and_keep_their_mean() -> None:
    assert pauses(60.0, 3) == [60.0, 60.0, 60.0]
    assert pauses(60.0, 50, seed=1) == pauses(60.0, 50, seed=1) != pauses(60.0, 50, seed=2)
    drawn = pauses(60.0, 20_000, seed=3)
    assert sum(drawn) / len(drawn) == pytest.approx(60.0, rel=0.05)


def test_the_grid_and_the_best_threshold_agree() -> None:
    found = grid(SONNET, ttl_s=SHORT_S, pauses_s=(30.0, 3600.0), work=SMALL)
    assert (len(found.costs), len(found.costs[0])) == (len(THRESHOLDS), 2)
    for column, pause in enumerate(found.pauses_s):
        best = best_threshold(SONNET, ttl_s=SHORT_S, idle_s=pause, work=SMALL)
        assert found.best(column) == best
        assert found.relative()[found.thresholds.index(best)][column] == 1.0
        assert min(row[column] for row in found.relative()) == 1.0
    assert "threshold" in found._repr_html_() and "pause 3600 s" in found._repr_html_()


def test_of_equal_costs_the_highest_threshold_wins() -> None:
    free = Prices(0.0)
    assert best_threshold(free, ttl_s=SHORT_S, idle_s=60.0, work=SMALL) == max(THRESHOLDS)


# What came of the seed's rules of thumb: 80 to 85 % for a short TTL, 60 to 70 % for a long one, after an expiry.


@pytest.mark.parametrize("rework", [0, 8, 16])
@pytest.mark.parametrize(("name", "prices"), [("sonnet", SONNET), ("deepseek", DEEPSEEK)])
def test_the_shorter_the_ttl_the_lower_the_cheapest_threshold_not_the_higher(
    name: str, prices: Prices, rework: int
) -> None:
    work = Work(rework=rework, turns=40)
    short, long = (best_threshold(prices, ttl_s=ttl, idle_s=1800.0, work=work) for ttl in (SHORT_S, HOURS_S))
    assert short < long


def test_with_cheap_compactions_both_rules_are_far_too_late() -> None:
    for prices, ttl in ((SONNET, SHORT_S), (DEEPSEEK, HOURS_S)):
        assert best_threshold(prices, ttl_s=ttl, idle_s=900.0) <= 0.4


def test_work_done_again_after_a_compaction_brings_the_rules_levels_back() -> None:
    assert best_threshold(SONNET, ttl_s=SHORT_S, idle_s=60.0, work=Work(rework=24)) >= 0.8
    assert 0.6 <= best_threshold(SONNET, ttl_s=HOURS_S, idle_s=60.0, work=Work(rework=16)) <= 0.75


def test_right_after_an_expiry_a_model_that_summarises_gains_nothing_and_before_a_pause_it_pays_at_once() -> None:
    def requests(idle_s: float, pause_s: float, **work: Any) -> int | None:
        made = break_even(130_000, idle_s=idle_s, pause_s=pause_s, ttl_s=SHORT_S, prices=SONNET, work=Work(**work))
        return made.requests

    assert requests(5, 0) == requests(3600, 0) == 4
    assert requests(0, 3600) == 1
    assert requests(3600, 0, summarizes=False) == 1 < (requests(5, 0, summarizes=False) or 0)


def test_waiting_for_an_expiry_costs_more_than_compacting_before_the_pause() -> None:
    waits = pauses(1800.0, 80, seed=1)
    costs = {w: min(simulate(t, waits, ttl_s=SHORT_S, prices=SONNET, when=w).cost for t in THRESHOLDS) for w in WHEN}
    assert costs["before_pause"] < costs["any"] < costs["after_expiry"]


@given(st.integers(22_000, 190_000), st.sampled_from([0.0, 3600.0]), st.sampled_from([0.0, 3600.0]))
def test_the_break_even_point_is_the_first_at_which_the_sums_cross(prompt: int, idle_s: float, pause_s: float) -> None:
    made = break_even(prompt, idle_s=idle_s, pause_s=pause_s, ttl_s=SHORT_S, prices=SONNET)
    if made.requests is None:
        assert made.per_request <= 0 and made.compact > made.keep
        return
    ahead = [made.compact - made.keep - n * made.per_request for n in (made.requests - 2, made.requests - 1)]
    assert ahead[1] <= 1e-12
    assert made.requests == 1 or ahead[0] > -1e-12


def test_nothing_is_gained_when_there_is_nothing_to_cut() -> None:
    assert break_even(20_000, idle_s=0, ttl_s=SHORT_S, prices=SONNET).requests is None


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.01, float("nan")])
def test_a_threshold_is_a_share_of_the_window(threshold: float) -> None:
    with pytest.raises(AgentLabError, match="share of the window"):
        simulate(threshold, [0.0], ttl_s=SHORT_S, prices=SONNET)


@pytest.mark.parametrize(
    "fields", [{"growth": -1}, {"steps": 0}, {"window": 0}, {"window": 20_000}, {"step_s": float("nan")}]
)
def test_work_must_be_possible(fields: dict[str, Any]) -> None:
    with pytest.raises(AgentLabError, match=r"counts|fit"):
        Work(**fields)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(AgentLabError, match="at least one"):
        best_threshold(Prices(1), ttl_s=300, idle_s=1, thresholds=[])
    with pytest.raises(AgentLabError, match="share of the window"):
        simulate("a", [1], ttl_s=300, prices=Prices(1))  # type: ignore[arg-type]
    with pytest.raises(AgentLabError, match="0 tokens or more"):
        break_even(-5, idle_s=0, ttl_s=300, prices=Prices(1))
