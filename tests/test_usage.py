"""The status line and the `/cost` view, and what can be imported from `agentlab.usage`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentlab import usage as module
from agentlab.usage import CacheUsage, Ledger, Prices, cost_view, saved_share, status_line
from tests.cases import case

DATA = Path(__file__).resolve().parent.parent / "data"
DEMOS = json.loads((DATA / "seed_demos_usage.json").read_bytes())


def test_every_name_can_be_imported_from_here() -> None:
    wanted = {"read_usage", "CacheUsage", "Ledger", "Entry", "diagnose", "Prices", "bill", "Bill"}
    assert wanted <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_a_contradiction_shows_in_the_status_line() -> None:
    line = status_line(case("P06")["input"]["usage"])
    assert line.endswith("does not add up: more cached tokens than prompt tokens") and "\n" not in line


def test_the_status_line_of_the_demonstration() -> None:
    usage = DEMOS["status_line"]["usage"]
    assert status_line(usage) == "prompt 48,213 | hit 47,616 (98.8%) | miss 597 | input saves about 89%"
    first = {"prompt_tokens": 4000, "prompt_tokens_details": {"cached_tokens": 0}}
    silent = {"prompt_tokens": 10**6}
    assert status_line(usage, session=[first, silent, usage]).endswith(" | session hits 91.2%")


def test_the_status_line_makes_up_no_zero_and_admits_a_loss() -> None:
    assert status_line({"prompt_tokens": 1200}) == "prompt 1,200 tokens (this provider reports no cache)"
    written = {"input_tokens": 0, "cache_creation_input_tokens": 1000, "cache_read_input_tokens": 0}
    line = status_line(written, prices=Prices(3.0, 15.0, read=0.3, write=3.75))
    assert line == "prompt 1,000 | hit 0 (0.0%) | miss 1,000 | input costs about 25% more"


def test_the_saved_share_is_of_the_input_alone() -> None:
    usage = CacheUsage(1000, 950, 50, output=10**6)
    assert saved_share(usage) == pytest.approx(0.855)
    assert saved_share(usage, Prices(1.0, 50.0, read=0.1)) == pytest.approx(0.855)
    assert saved_share(None) == 0.0
    assert saved_share(usage, Prices(0.0, 1.0)) == 0.0


def test_the_cost_view_is_complete_and_plain() -> None:
    prices = Prices(3.0, 15.0, read=0.3, write=3.75, model="m-1", source="a page", date="2026-01-02")
    ledger = Ledger()
    usages = [
        {"input_tokens": 0, "cache_creation_input_tokens": 10_000, "output_tokens": 100},
        {"input_tokens": 500, "cache_read_input_tokens": 9_500, "output_tokens": 100},
    ]
    for i, usage in enumerate(usages):
        ledger.record(usage, 10.0 * i)
    assert cost_view(usages, prices, ledger=ledger).split("\n") == [
        "model           m-1",
        "requests        2",
        "input tokens    20,000",
        "  from cache    9,500 (47.5%)",
        "  paid in full  10,500, 10,000 of it written",
        "output tokens   200",
        "cost            USD 0.044850",
        "without cache   USD 0.063000",
        "saved           USD 0.018150 (28.8%)",
        "cache waste     0 tokens in 0 misses",
        "Prices: a page, 2026-01-02.",
    ]


def test_the_cost_view_without_a_price_says_so() -> None:
    view = cost_view([{"prompt_tokens": 12}], None, model="new\n\x1b[31mmodel")
    assert "no price is known" in view and "  from cache    not reported" in view
    assert "USD" not in view and "\x1b" not in view


def test_the_cost_view_admits_a_loss() -> None:
    written = {"input_tokens": 0, "cache_creation_input_tokens": 1000}
    view = cost_view([written] * 3, Prices(3.0, 15.0, read=0.3, write=3.75))
    assert "(-25.0%)" in view and "cost more than it saved" in view


def test_one_usage_alone_is_a_session_of_one_request() -> None:
    one = {"prompt_tokens": 1_000, "prompt_tokens_details": {"cached_tokens": 500}}
    assert cost_view(one, None) == cost_view([one], None)  # type: ignore[arg-type]
    assert status_line(one, session=one) == status_line(one, session=[one])  # type: ignore[arg-type]
