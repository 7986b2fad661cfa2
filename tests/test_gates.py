"""gates: thresholds that make sense, and what a layer did in bytes."""

from __future__ import annotations

import pytest

from agentlab.errors import AgentLabError
from agentlab.gates import Gate, Layered, Thresholds, gate
from agentlab.layersummary import summary_message
from agentlab.messages import size_bytes, user
from agentlab.snip import snip


def test_the_figures_of_the_seed_are_the_defaults() -> None:
    found = Thresholds()
    assert (found.spill.per_result, found.spill.per_batch, found.spill.tail) == (30_000, 200_000, 2_000)
    assert (found.max_groups, found.head, found.tail, found.keep) == (50, 3, 46, 3)
    assert (found.max_bytes, found.keep_groups, found.spill.unit) == (50_000, 5, "bytes")


@pytest.mark.parametrize("name", ["max_groups", "head", "tail", "keep", "max_bytes", "keep_groups"])
def test_negative_numbers_are_refused(name: str) -> None:
    with pytest.raises(AgentLabError, match="negative"):
        Thresholds(**{name: -1})


def test_small_windows_get_small_thresholds_and_large_ones_none_larger() -> None:
    small = Thresholds(keep=1).for_window(2_000)
    assert (small.max_bytes, small.spill.per_result, small.spill.per_batch, small.keep) == (3_600, 900, 1_800, 1)
    assert Thresholds().for_window(1_000_000) == Thresholds()
    assert Thresholds().for_window(0).max_bytes == 0 and Thresholds().for_window(1_000, per_token=5).max_bytes == 3_000


def test_a_gate_counts_bytes_in_and_out() -> None:
    before, after = [user("é"), user("b")], [user("b")]
    assert gate("x", before, after) == Gate("x", 2, 1, size_bytes(before), size_bytes(after), True)
    assert gate("x", after, list(after), bytes_in=7) == Gate("x", 1, 1, 7, 7, False)
    with pytest.raises(AgentLabError, match="JSON"):
        gate("x", [user("a") | {"content": b""}], [])


def test_a_view_draws_itself_with_its_gates() -> None:
    summary = summary_message({"current_goal": "<q>"}, dropped=9, transcript="t")
    view = snip([summary, *[user(f"<dl>{n}") for n in range(60)]])
    drawn = Layered(view, True, "why <u>", (gate("snip", view, view[:3]),))._repr_html_()
    assert "summarised" in drawn and "dropped" in drawn and "bytes out" in drawn
    assert not any(tag in drawn for tag in ("<q>", "<dl>", "<u>"))
    assert "bytes out" not in Layered(view, False, "why")._repr_html_()
