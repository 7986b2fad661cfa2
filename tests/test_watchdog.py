"""The loop budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.watchdog import LoopBudget, StopReason, nudge


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 20))
def test_a_budget_of_n_allows_n_steps(allowed: int) -> None:
    budget = LoopBudget(allowed)
    steps = 0
    while budget.can_continue():
        assert budget.record([]) is None
        steps += 1
    assert steps == allowed
    assert not budget.can_continue()


def test_twelve_steps_unless_told_otherwise() -> None:
    assert LoopBudget().base_steps == 12


def test_the_reason_names_the_budget_and_what_to_do() -> None:
    reason = LoopBudget(3).exhausted()
    assert reason.kind == "budget"
    assert "3 steps" in reason.message
    assert "continue" in reason.message


def test_no_person_wrote_the_nudge() -> None:
    message = nudge(StopReason("stuck", "The same call failed three times.", recoverable=True))
    assert message["role"] == "user"
    assert message["origin"] == "watchdog"
    assert message["content"].startswith("The same call failed three times.")
