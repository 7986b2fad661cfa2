"""Prices, the price list, and the bill with and without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.usage import TENTH, CacheUsage, PriceList, Prices, UnknownPrice, bill, saved_share

DATA = Path(__file__).resolve().parent.parent / "data"
DEMOS = json.loads((DATA / "seed_demos_usage.json").read_bytes())
LIST = PriceList.read(DATA / "prices.json")

counts = st.integers(0, 10**6)


@st.composite
def cache_usages(draw: st.DrawFn) -> CacheUsage:
    hit, fresh, short, long = (draw(counts) for _ in range(4))
    miss = fresh + short + long
    return CacheUsage(hit + miss, hit, miss, short + long, draw(counts), written_1h=long)


rates = st.floats(0, 100)
all_prices = st.builds(
    Prices, rates, rates, read=st.none() | rates, write=st.none() | rates, write_1h=st.none() | rates
)


def openai(prompt: int, hit: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": hit}}


def test_thirty_turns_with_95_percent_hits_cost_0_145_of_the_full_price() -> None:
    demo = DEMOS["thirty_turns"]
    disciplined = bill([openai(demo["prompt"], demo["hit"])] * demo["requests"], TENTH)
    careless = bill([openai(demo["prompt"], 0)] * demo["requests"], TENTH)
    assert disciplined.total.prompt == 1_800_000
    assert disciplined.actual / disciplined.without_cache == pytest.approx(0.145)
    assert careless.actual == disciplined.without_cache
    assert careless.actual / disciplined.actual == pytest.approx(6.897, abs=0.001)  # "almost 7 times"
    assert f"{saved_share(disciplined.total):.1%}" == "85.5%"


def test_a_growing_session_costs_six_to_seven_times_as_much_without_hits() -> None:
    demo = DEMOS["growing"]
    n, first, last = demo["requests"], demo["first"], demo["last"]
    sizes = [first + round((last - first) * i / (n - 1)) for i in range(n)]
    careful = [
        CacheUsage(now, before, now - before, now - before) for before, now in zip([0, *sizes], sizes, strict=False)
    ]
    careless = [CacheUsage(now, 0, now, now) for now in sizes]
    free, premium = Prices(1.0, read=0.1), Prices(1.0, read=0.1, write=1.25)
    ratio = [bill(careless, p).actual / bill(careful, p).actual for p in (free, premium)]
    assert ratio == [pytest.approx(6.30, abs=0.01), pytest.approx(7.14, abs=0.01)]


def test_a_cache_that_is_only_written_to_is_a_loss() -> None:
    made = bill([CacheUsage(1_000_000, 0, 1_000_000, 1_000_000)], Prices(3.0, read=0.3, write=3.75))
    assert (made.actual, made.without_cache, made.saved) == (3.75, 3.0, -0.75)
    assert "cost more than it saved" in made.notes[0]
    assert "cost more than it saved" in made._repr_html_()


def test_an_hour_costs_its_own_price() -> None:
    usage = CacheUsage(1_000_000, 0, 1_000_000, 900_000, written_1h=400_000)
    prices = Prices(3.0, read=0.3, write=3.75, write_1h=6.0)
    assert prices.cost(usage) == pytest.approx(0.1 * 3 + 0.5 * 3.75 + 0.4 * 6)
    assert Prices(3.0, read=0.3, write=3.75).cost(usage) == pytest.approx(0.1 * 3 + 0.9 * 3.75)
    assert Prices(3.0).cost(usage) == pytest.approx(3.0)


def test_output_is_paid_with_and_without_a_cache() -> None:
    made = bill([CacheUsage(0, 0, 0, output=1_000_000)], Prices(1.0, 8.0))
    assert (made.actual, made.without_cache, made.saved) == (8.0, 8.0, 0.0)
    assert bill([], TENTH).actual == 0.0


@given(st.lists(cache_usages(), max_size=6), all_prices)
def test_a_bill_is_the_sum_of_its_rows_and_never_negative(usages: list[CacheUsage], prices: Prices) -> None:
    made = bill(usages, prices)
    assert made.actual >= 0 and made.without_cache >= 0
    assert made.saved == made.without_cache - made.actual
    assert made.actual == pytest.approx(sum(row.actual for row in made.rows))
    assert made.actual == pytest.approx(prices.cost(made.total))
    assert made.without_cache == pytest.approx(prices.without_cache(made.total))


@given(cache_usages(), rates)
def test_without_any_price_for_the_cache_it_saves_nothing(usage: CacheUsage, rate: float) -> None:
    assert bill([usage], Prices(rate, rate)).saved == pytest.approx(0, abs=1e-6)


@given(cache_usages(), st.integers(1, 1_000))
def test_more_hits_never_cost_more(usage: CacheUsage, more: int) -> None:
    longer = CacheUsage(
        usage.prompt + more, usage.hit + more, usage.miss, usage.written, usage.output, written_1h=usage.written_1h
    )
    other = CacheUsage(
        usage.prompt + more, usage.hit, usage.miss + more, usage.written, usage.output, written_1h=usage.written_1h
    )
    assert TENTH.cost(longer) <= TENTH.cost(other)


def test_the_notes_name_the_requests() -> None:
    usages = [openai(10, 0), openai(10, 90), openai(300_000, 0)]
    notes = bill(usages, Prices(1.0, max_prompt=272_000)).notes
    assert notes == (
        "Usage that does not add up in request 2: the amounts are estimates.",
        "Above 272,000 prompt tokens another tier applies: request 3.",
    )


@pytest.mark.parametrize(
    "fields",
    [{"input": -1}, {"input": float("nan")}, {"input": True}, {"input": None}, {"input": 1, "read": "0.1"}, {}],
)
def test_prices_are_numbers_of_zero_or_more(fields: dict[str, Any]) -> None:
    with pytest.raises(AgentLabError, match=r"input|read"):
        Prices.of(fields)


def test_a_field_that_prices_do_not_have_is_named() -> None:
    with pytest.raises(AgentLabError, match="outptu"):
        Prices.of({"input": 1.0, "outptu": 2.0})


def test_every_price_in_the_list_has_a_source_a_date_and_sane_proportions() -> None:
    assert len(LIST.prices) >= 5
    for price in LIST.prices:
        assert price.source.startswith("https://") and len(price.date) == 10
        assert price.read is not None and 0 < price.read < price.input < price.output
        assert price.write is None or price.input < price.write <= (price.write_1h or price.write)


def test_anthropics_premiums_are_those_of_its_documents() -> None:
    for price in LIST.prices:
        if price.model.startswith("claude"):
            assert price.write == pytest.approx(1.25 * price.input)
            assert price.write_1h == pytest.approx(2 * price.input)


def test_a_dated_name_is_the_same_model_and_an_unknown_one_has_no_price() -> None:
    assert LIST.find("claude-haiku-4-5-20251001") == LIST.find("claude-haiku-4-5")
    for name in ("claude-haiku-4", "claude-haiku-4-5-2x", "", "x" * 5_000):
        with pytest.raises(UnknownPrice, match=r"No price is known.*claude-haiku-4-5") as error:
            LIST.find(name)
        assert len(str(error.value)) < 500
    with pytest.raises(UnknownPrice, match="Known: none"):
        PriceList(()).find("m")


def test_tiers_are_found_by_name() -> None:
    assert LIST.find("deepseek-flash", tier="peak").input == 2 * LIST.find("deepseek-flash", tier="off-peak").input
    with pytest.raises(UnknownPrice, match="off-peak, peak"):
        LIST.find("deepseek-flash")
    assert LIST.find("gpt-6.2-sol").tier == "standard"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"models": 3}', '{"models": {"m": 3}}', '{"models": {"m": {"source": "s", "date": "d"}}}'],
)
def test_a_broken_price_list_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(AgentLabError, match="no price list"):
        PriceList.read(tmp_path / "prices.json")
    with pytest.raises(AgentLabError, match="FileNotFoundError"):
        PriceList.read(tmp_path / "none.json")


def test_a_price_without_a_source_is_refused() -> None:
    with pytest.raises(AgentLabError, match="no source or no date"):
        PriceList.of({"m": {"date": "2026-01-01", "tiers": {"standard": {"input": 1}}}})


def test_a_usage_that_never_came_is_named() -> None:
    made = bill([None, {"prompt_tokens": 9}, {}, {"total_tokens": 5}, CacheUsage(0, 0, 0)], TENTH)
    assert any("No usage came for request 1, 3:" in note for note in made.notes)
    assert bill([{"prompt_tokens": 9}], TENTH).notes == ()
    [note] = bill(None, TENTH).notes  # type: ignore[arg-type]
    assert "request 1" in note


def test_one_usage_is_one_request_and_no_prices_are_no_prices() -> None:
    one = {"prompt_tokens": 1_000_000}
    assert bill(one, TENTH).actual == bill([one], TENTH).actual == 1.0
    for odd in (None, 3, "gpt", [("input", 1)]):
        with pytest.raises(AgentLabError, match="Prices"):
            bill([one], odd)  # type: ignore[arg-type]
    for model in (None, 5, ["gpt"]):
        with pytest.raises(UnknownPrice, match="No price"):
            PriceList(()).find(model)  # type: ignore[arg-type]
