"""Reading the usage of every dialect: real ones, contradictory ones, and rubbish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.cacheusage import CacheUsage, read_usage, total
from agentlab.errors import AgentLabError
from agentlab.prices import Prices, bill
from agentlab.simulator.core import DIALECTS
from agentlab.simulator.dialect import Count
from tests.cases import case

DATA = Path(__file__).resolve().parent.parent / "data"

counts = st.integers(0, 200_000)
junk = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10), st.integers(), st.floats(), st.text(max_size=8),
    st.just("9" * 5000), st.just([1]), st.just({}), st.text("0123456789", min_size=1, max_size=6),
)  # fmt: skip
FLAT = [
    "prompt_tokens", "completion_tokens", "total_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens",
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cached_tokens",
]  # fmt: skip
NESTED = {
    "prompt_tokens_details": ["cached_tokens", "cache_write_tokens", "cache_creation_input_tokens"],
    "input_tokens_details": ["cached_tokens", "cache_write_tokens"],
    "completion_tokens_details": ["reasoning_tokens"],
    "cache_creation": ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"],
}


@st.composite
def wild_usages(draw: st.DrawFn) -> dict[str, Any]:
    """Any mixture of all dialects' fields with any values."""
    value = junk | counts
    usage: dict[str, Any] = {name: draw(value) for name in draw(st.sets(st.sampled_from(FLAT)))}
    for name in draw(st.sets(st.sampled_from(sorted(NESTED)))):
        inner = st.dictionaries(st.sampled_from(NESTED[name]), value, max_size=3)
        usage[name] = draw(inner | junk)
    return usage


def recorded(name: str) -> dict[str, Any]:
    """The last usage in a recorded stream; Anthropic's end only updates what its start said."""
    usage: dict[str, Any] = {}
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("data: ").strip()
        if not text.startswith("{"):
            continue
        event = json.loads(text)
        for holder in (event, event.get("message"), event.get("response")):
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                anthropic = "input_tokens" in usage and event.get("type") == "message_delta"
                usage = {**usage, **holder["usage"]} if anthropic else holder["usage"]
    return usage


RECORDED = {
    "streams/openai_text_usage.sse": (14, 0, 8, True),
    "streams/openai_responses_tool_call.sse": (58, 0, 23, True),
    "streams/openrouter_tools_variant_a.sse": (57, 0, 17, True),
    "streams/openrouter_error_in_chunk.sse": (43, 0, 10, True),
    "streams/azure_prompt_filter_first.chunks.jsonl": (15, 0, 78, True),
    "streams/qwen_tool_call_empty_ids.chunks.jsonl": (295, 0, 22, True),
    "streams/deepseek_reasoning_tool_cache.chunks.jsonl": (339, 320, 83, True),
    "streams/xai_reasoning_tool.chunks.jsonl": (291, 290, 222, True),  # 26 + 196 of reasoning
    "streams/groq_tool_call_x_groq.chunks.jsonl": (210, 0, 15, False),
    "streams/perplexity_usage_every_chunk.chunks.jsonl": (11, 0, 434, False),
    "streams/anthropic_redacted_thinking.sse": (92, 0, 189, True),
    "streams/anthropic_thinking_server_tool.sse": (4714, 0, 304, True),
    "streams/anthropic_spliced_message_start.chunks.jsonl": (17, 0, 65, False),
    "captures/text_emoji.sse": (25, 9, 20, True),
    "captures/tool_call.sse": (657, 90, 120, True),
    "captures/tool_call_parallel.sse": (882, 193, 120, True),
}


@pytest.mark.parametrize("name", RECORDED)
def test_real_usage_reads_without_an_anomaly(name: str) -> None:
    usage = read_usage(recorded(name))
    assert (usage.prompt, usage.hit, usage.output, usage.reported) == RECORDED[name]
    assert usage.miss == usage.prompt - usage.hit
    assert usage.anomaly is None


@given(wild_usages())
def test_no_usage_makes_a_negative_token_or_an_error(raw: dict[str, Any]) -> None:
    usage = read_usage(raw)
    assert min(usage.prompt, usage.hit, usage.miss, usage.written, usage.written_1h, usage.output) >= 0
    assert usage.hit + usage.miss == usage.prompt
    assert usage.written_1h <= usage.written <= usage.miss
    assert 0.0 <= usage.hit_ratio <= 1.0
    assert usage.reported or not usage.hit + usage.written
    assert bill([raw], Prices(1.0, 2.0, read=0.1, write=1.25)).actual >= 0


@given(wild_usages())
def test_reading_does_not_change_the_usage(raw: dict[str, Any]) -> None:
    before = repr(raw)
    assert read_usage(raw) == read_usage(raw)
    assert repr(raw) == before


@given(st.integers(0, 99_999), st.integers(0, 99_999), st.integers(0, 99_999), st.integers(0, 5_000))
def test_all_dialects_of_the_same_count_read_alike(hit: int, fresh: int, written: int, output: int) -> None:
    count = Count(prompt=hit + fresh + written, hit=hit, written=written, output=output)
    expected = (count.prompt, hit, fresh + written, output)
    for dialect in DIALECTS.values():
        usage = read_usage(dialect.usage(count))
        assert (usage.prompt, usage.hit, usage.miss, usage.output) == expected
        assert usage.anomaly is None and usage.reported
    assert read_usage(DIALECTS["anthropic"].usage(count)).written == written


def test_cached_tokens_of_openai_are_part_of_the_prompt() -> None:
    P04 = case("P04")
    usage = read_usage(P04["input"]["usage"])
    made = bill([P04["input"]["usage"]], P04["input"]["usd_per_million"])
    assert made.actual == pytest.approx(P04["expected"]["cost_usd"], abs=1e-12)
    assert (usage.miss, usage.hit_ratio) == (P04["expected"]["uncached"], P04["expected"]["hit_ratio"])


def test_anthropics_cached_tokens_come_on_top() -> None:
    P05 = case("P05")
    usage = read_usage(P05["input"]["usage"])
    made = bill([P05["input"]["usage"]], P05["input"]["usd_per_million"])
    assert usage.prompt == P05["expected"]["prompt_total"]
    assert made.actual == pytest.approx(P05["expected"]["cost_usd"], abs=1e-12)
    assert round(usage.hit_ratio, 4) == P05["expected"]["hit_ratio"]
    assert (usage.miss, usage.written) == (2040, 2000)


def test_more_cached_than_prompt_means_the_prompt_came_without_them() -> None:
    P06 = case("P06")
    usage = read_usage(P06["input"]["usage"])
    assert (usage.miss, usage.prompt) == (P06["expected"]["preferred"]["uncached"], 9012)
    assert usage.anomaly == "more cached tokens than prompt tokens"


def test_usage_adds_up_over_requests_only() -> None:
    P08 = case("P08")
    last = [usages[-1] for usages in (P08["input"]["one_request_usages"], P08["input"]["second_request_usage"])]
    summed = total(last)
    assert {"prompt": summed.prompt, "completion": summed.output} == P08["expected"]["session_total"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"prompt_tokens": 100, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}, (100, 60, None)),
        ({"prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}, (100, 60, None)),
        ({"prompt_tokens": 100, "prompt_cache_miss_tokens": 40}, (100, 60, None)),
        ({"prompt_tokens": 100, "cached_tokens": 64}, (100, 64, None)),
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}}, (100, 64, None)),
        ({"prompt_tokens": 100.0, "prompt_tokens_details": {"cached_tokens": None}}, (100, 0, None)),
        ({"prompt_tokens": 100, "prompt_tokens_details": None}, (100, 0, None)),
        ({"input_tokens": 0, "cache_read_input_tokens": 500}, (500, 500, None)),
        (None, (0, 0, None)),
        ({}, (0, 0, None)),
        (
            {"prompt_tokens": 100, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 50},
            (100, 60, "hit and miss do not add up to the prompt"),
        ),
        (
            {"prompt_tokens": 100, "prompt_cache_hit_tokens": 60, "prompt_tokens_details": {"cached_tokens": 50}},
            (100, 60, "two fields disagree on the cached tokens"),
        ),
        ({"prompt_tokens": "100", "cached_tokens": 10}, (100, 10, "prompt_tokens is text")),
        ({"prompt_tokens": 100, "cached_tokens": -10}, (100, 0, "cached_tokens is negative")),
        ({"prompt_tokens": 100, "cached_tokens": True}, (100, 0, "cached_tokens is no number")),
        ({"prompt_tokens": 100, "cached_tokens": "many"}, (100, 0, "cached_tokens is no number")),
        ({"prompt_tokens": 100, "cached_tokens": float("nan")}, (100, 0, "cached_tokens is no possible count")),
        ({"prompt_tokens": 100, "cached_tokens": 10**30}, (100, 0, "cached_tokens is no possible count")),
        ({"prompt_tokens": 100.5}, (100, 0, "prompt_tokens is no whole number")),
        ({"prompt_tokens": 100, "prompt_tokens_details": 7}, (100, 0, "prompt_tokens_details is no object")),
        ({"prompt_tokens_details": {"cached_tokens": 70}}, (70, 70, "cached tokens without prompt tokens")),
        ({"tokens": 12}, (0, 0, "no known token count")),
        ([1, 2], (0, 0, "the usage is no object")),
        ("12", (0, 0, "the usage is no object")),
    ],
)
def test_shapes_that_occur_and_shapes_that_should_not(raw: Any, expected: tuple[int, int, str | None]) -> None:
    usage = read_usage(raw)
    assert (usage.prompt, usage.hit, usage.anomaly) == expected


@pytest.mark.parametrize(
    ("raw", "reported"),
    [
        ({"prompt_tokens": 9}, False),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"audio_tokens": 0}}, False),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, True),
        ({"input_tokens": 9}, False),
        ({"input_tokens": 9, "cache_creation_input_tokens": 0}, True),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": "none"}, False),
    ],
)
def test_a_zero_is_a_report_and_silence_is_none(raw: dict[str, Any], reported: bool) -> None:
    assert read_usage(raw).reported is reported


def test_writes_for_five_minutes_and_for_an_hour() -> None:
    split = {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 700}
    whole = {"input_tokens": 10, "cache_creation_input_tokens": 1000, "cache_creation": split}
    usage = read_usage(whole)
    assert (usage.prompt, usage.written, usage.written_1h, usage.anomaly) == (1010, 1000, 700, None)
    only = read_usage({"input_tokens": 10, "cache_creation": split})
    assert (only.written, only.written_1h) == (1000, 700)
    odd = read_usage({**whole, "cache_creation_input_tokens": 500})
    assert (odd.written, odd.written_1h) == (500, 500)
    assert odd.anomaly == "the tokens written for 5 minutes and for an hour do not add up"


def test_writes_inside_the_prompt_are_part_of_the_miss() -> None:
    usage = read_usage({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}})
    assert (usage.prompt, usage.miss, usage.written) == (100, 40, 30)
    beyond = read_usage({"prompt_tokens": 100, "cached_tokens": 60, "cache_creation_input_tokens": 50})
    assert (beyond.prompt, beyond.miss, beyond.written) == (100, 40, 40), "one of the tokens was counted twice"
    assert beyond.anomaly and "overlap" in beyond.anomaly


def test_reasoning_is_added_only_where_the_total_shows_it_beside_the_completion() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 30}}
    inside = {"prompt_tokens": 10, "completion_tokens": 40, "total_tokens": 50, **details}
    assert read_usage(inside).output == 40
    assert read_usage({**inside, "total_tokens": 80}).output == 70
    assert read_usage({**inside, "total_tokens": None}).output == 40


def test_a_usage_by_hand_must_add_up() -> None:
    for wrong in ((10, 5, 4, 0), (10, 11, -1, 0), (10, 5, 5, 6)):
        with pytest.raises(AgentLabError, match="read_usage"):
            CacheUsage(*wrong)
    with pytest.raises(AgentLabError, match="written_1h"):
        CacheUsage(10, 5, 5, 2, written_1h=3)
    usage = CacheUsage(10, 5, 5)
    assert read_usage(usage) is usage


def test_a_sum_keeps_every_anomaly_once() -> None:
    odd = {"prompt_tokens": 1, "cached_tokens": -1}
    assert total([odd, odd, {"tokens": 1}]).anomaly == "cached_tokens is negative; no known token count"
    assert total([]) == CacheUsage(0, 0, 0, reported=False)


def test_a_usage_draws_itself_escaped() -> None:
    drawn = read_usage({"prompt_tokens": 12, "cached_tokens": 9000})._repr_html_()
    assert "9,000" in drawn and "more cached tokens" in drawn


@pytest.mark.parametrize(
    ("prompt", "hit", "written", "whole", "kept", "odd"),
    [
        (100, 60, 40, 100, 40, False),
        (100, 60, 50, 100, 40, True),
        (100, 100, 100, 100, 0, True),
        (40, 900, 100, 1_040, 100, True),
        (40, 0, 2_000, 2_040, 2_000, True),
    ],
)
def test_tokens_that_were_counted_twice_double_no_prompt(
    prompt: int, hit: int, written: int, whole: int, kept: int, odd: bool
) -> None:
    details = {"cached_tokens": hit, "cache_write_tokens": written}
    usage = read_usage({"prompt_tokens": prompt, "prompt_tokens_details": details})
    assert (usage.prompt, usage.hit, usage.written, bool(usage.anomaly)) == (whole, hit, kept, odd)


def test_one_usage_in_the_place_of_a_list_is_one_request() -> None:
    raw = {"prompt_tokens": 100, "completion_tokens": 3}
    for one in (raw, read_usage(raw), None):
        assert total(one) == total([one])  # type: ignore[arg-type]
    for odd in (7, "text", b"x"):
        with pytest.raises(AgentLabError, match="list of usages"):
            total(odd)  # type: ignore[arg-type]
