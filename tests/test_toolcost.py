"""The break-even of `auto`, by hand and by its laws."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.prices import Prices
from agentlab.toolcost import break_even, schema_tokens
from agentlab.tools import Tool

DOLLAR = Prices(10.0, 50.0, read=1.0, write=12.5)
PLAIN: dict[str, Any] = {"result_tokens": 0, "call_tokens": 0, "entry_tokens": 0}
amounts = st.floats(0, 1e6)


def test_by_hand() -> None:
    known = break_even(
        DOLLAR,
        schema_tokens=100,
        requests=11,
        searches=2,
        search_seconds=2,
        second_costs=0.01,
        prefix_tokens=20_000,
        result_tokens=400,
        call_tokens=40,
        entry_tokens=200,
    )
    assert known.per_tool == pytest.approx(100 * (12.5 + 10 * 1) / 1e6)  # $0.00225
    assert known.entry == pytest.approx(200 * 22.5 / 1e6)  # $0.0045
    assert known.waiting == pytest.approx(0.02)
    tokens = (20_000 * 1 + 400 * (12.5 + 5.5) + 40 * 50) / 1e6  # $0.0292
    assert known.per_search == pytest.approx(tokens + 0.02)
    assert known.deferred == pytest.approx(0.0045 + 2 * 0.0492)  # $0.1029
    assert known.tools == 45  # 45.73 of them
    assert known.direct(45) <= known.deferred < known.direct(46)


def test_a_wait_that_is_worth_as_much_as_ten_schemas_allows_ten() -> None:
    known = break_even(Prices(10.0), schema_tokens=100, requests=1, search_seconds=1, second_costs=0.01, **PLAIN)
    assert known.tools == 10


def test_a_break_writes_the_prefix_again() -> None:
    calm, broken = (
        break_even(DOLLAR, schema_tokens=100, requests=5, prefix_tokens=10_000, breaks=share, **PLAIN)
        for share in (0, 1)
    )
    assert calm.per_search == pytest.approx(0.01) and broken.per_search == pytest.approx(0.125)


def test_where_tokens_are_free_every_tool_may_be_shown() -> None:
    assert break_even(Prices(0.0), schema_tokens=100, requests=9, search_seconds=3, second_costs=1).tools is None
    assert break_even(DOLLAR, schema_tokens=100, requests=9, searches=0, entry_tokens=0).tools == 0


@given(
    amounts.filter(lambda n: n > 1), st.integers(1, 500), st.floats(0, 50), st.floats(0, 60), st.floats(0, 1), amounts
)
def test_up_to_n_showing_all_costs_no_more_and_above_it_does(
    size: float, requests: int, searches: float, seconds: float, worth: float, prefix: float
) -> None:
    options: dict[str, Any] = {"requests": requests, "searches": searches, "prefix_tokens": prefix}
    known = break_even(DOLLAR, schema_tokens=size, search_seconds=seconds, second_costs=worth, **options)
    assert known.tools is not None and known.tools >= 0
    assert known.direct(known.tools) <= known.deferred * (1 + 1e-9)
    assert known.direct(known.tools + 1) > known.deferred * (1 - 1e-9)
    slower = break_even(DOLLAR, schema_tokens=size, search_seconds=seconds + 1, second_costs=worth, **options)
    larger = break_even(DOLLAR, schema_tokens=size * 2, search_seconds=seconds, second_costs=worth, **options)
    assert slower.tools is not None and larger.tools is not None
    assert larger.tools <= known.tools <= slower.tools


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema_tokens": -1},
        {"search_seconds": float("nan")},
        {"second_costs": float("inf")},
        {"requests": 0},
        {"breaks": 2},
    ],
    ids=str,
)
def test_amounts_that_cannot_be_counted_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentLabError, match=next(iter(wrong))):
        break_even(DOLLAR, **{"schema_tokens": 1, "requests": 1, **wrong})


def test_the_size_of_schemas() -> None:
    async def handler() -> str:
        return ""

    one = Tool("one", "x" * 400, {"type": "object", "properties": {}}, handler)
    text = (
        '{"type":"function","function":{"name":"one","description":"","parameters":{"type":"object","properties":{}}}}'
    )
    assert schema_tokens([one, one], per_token=1) == len(text) + 400
    assert schema_tokens([one]) == (len(text) + 400) / 4
    assert schema_tokens([]) == 0


def test_it_draws_itself() -> None:
    assert "it costs no more" in break_even(DOLLAR, schema_tokens=100, requests=5)._repr_html_()
    assert "show all" in break_even(Prices(0.0), schema_tokens=100, requests=5)._repr_html_()
