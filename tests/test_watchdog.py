"""The loop budget: it grows with progress, sees a turn that goes in circles, and ends every turn."""

from __future__ import annotations

import copy
import itertools
from typing import Any, get_args

import pytest
from clean_run import run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.loop import Done, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.pairing import problems
from agentlab.simulator import Simulator
from agentlab.tools import Registry, Status, ToolResult
from agentlab.watchdog import LoopBudget, StopReason, nudge

_ids = itertools.count()


def result(name: str = "read", status: Status = "completed", output: str = "", **input: Any) -> ToolResult:
    return ToolResult(f"c{next(_ids)}", name, input, status, output)


def new() -> ToolResult:
    """A call that was not made before."""
    return result(number=next(_ids))


def kinds(budget: LoopBudget, *steps: list[ToolResult]) -> list[str | None]:
    """What `record` says to each step: a reason's kind, or None."""
    reasons = [budget.record(step) for step in steps]
    return [reason and reason.kind for reason in reasons]


def steps_of(budget: LoopBudget, step: Any) -> int:
    """How many steps fit when each gives these results."""
    while budget.can_continue():
        budget.record(step())
        assert budget.steps <= 1000, "it never ends"
    return budget.steps


# ---------------------------------------------------------------- the budget


@settings(max_examples=30)
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
    budget = LoopBudget()
    limits = [budget.limit for _ in range(5) if budget.record([new()]) is None]
    assert limits == [12, 12, 12, 16, 16]


def test_the_reason_names_the_budget_and_what_to_do() -> None:
    reason = LoopBudget(3).exhausted()
    assert reason.kind == "budget"
    assert not reason.recoverable
    assert "3 steps" in reason.message
    assert "continue" in reason.message


def test_the_budget_grows_with_progress_and_only_then() -> None:
    budget = LoopBudget(10, growth=3)
    limits = []
    for step in ([new()], [new()], [result()], [result()], [new(), new()], [new()], [result(status="failed", a=1)]):
        budget.record(step)
        limits.append(budget.limit)
    #         new new  read  again both new failed
    assert limits == [10, 10, 13, 13, 13, 13, 13]
    budget.record([new()])
    assert budget.limit == 16


def test_growth_has_a_maximum() -> None:
    for base, factor in ((12, 4), (5, 2), (3, 1), (0, 4)):
        budget = LoopBudget(base, growth=1, max_factor=factor)
        assert steps_of(budget, lambda: [new()]) == base * factor
        assert budget.limit == base * factor
        assert f"{base * factor} steps" in budget.exhausted().message
    assert steps_of(LoopBudget(), lambda: [new()]) == 48
    assert steps_of(LoopBudget(5, growth=0), lambda: [new()]) == 5


def test_a_turn_without_progress_does_not_grow() -> None:
    assert steps_of(LoopBudget(12), lambda: [result(status="failed")]) == 12


# ---------------------------------------------------------------- progress


def test_progress_is_a_completed_call_with_an_input_that_is_new() -> None:
    for again in (
        [result(path="a")],
        [result(path="a"), result(path="a")],
        [result(path="b", status="failed")],
        [result(path="b", status="rejected")],
        [result(path="b", status="interrupted")],
    ):
        budget = LoopBudget(idle_steps=1, repeated_calls=99, repeated_failures=99)
        assert kinds(budget, [result(path="a")], again) == [None, "no_progress"], again
    for fresh in (
        [result(path="b")],
        [result("write", path="a")],
        [result(path="a", line=1)],
        [result(path="a"), result(path="b")],
        [result(path="c", status="failed"), result(path="b")],
        [result(path=["a"])],
        [result()],
    ):
        budget = LoopBudget(idle_steps=1, repeated_calls=99, repeated_failures=99)
        assert kinds(budget, [result(path="a")], fresh) == [None, None], fresh


def test_a_call_that_failed_first_makes_progress_when_it_completes() -> None:
    budget = LoopBudget(idle_steps=2)
    assert kinds(budget, [result(status="failed")], [result()], [result(status="failed")]) == [None, None, None]


def test_the_order_of_an_inputs_keys_makes_no_new_call_but_a_type_does() -> None:
    budget = LoopBudget(idle_steps=1, repeated_calls=99)
    steps = [[result(a=1, b={"x": 1, "y": 2})], [result(b={"y": 2, "x": 1}, a=1)], [result(a="1", b={"x": 1, "y": 2})]]
    assert kinds(budget, *steps) == [None, "no_progress", None]


@pytest.mark.parametrize("idle", [1, 2, 6])
def test_steps_without_progress(idle: int) -> None:
    budget = LoopBudget(idle_steps=idle, repeated_calls=99, repeated_failures=99)
    failed = [[result(status="failed", n=n)] for n in range(idle)]
    assert kinds(budget, *failed) == [None] * (idle - 1) + ["no_progress"]
    budget = LoopBudget(idle_steps=idle, repeated_calls=99, repeated_failures=99)
    assert kinds(budget, *failed[1:], [new()], *failed[1:]) == [None] * (2 * idle - 1)


# ---------------------------------------------------------------- repeats


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_the_same_call_in_a_row(times: int, status: Status) -> None:
    budget = LoopBudget(repeated_calls=times, idle_steps=99)
    same = [result(status=status, path="a")]
    assert kinds(budget, *[same] * times) == [None] * (times - 1) + ["repeated_call"]


def test_a_row_is_broken_by_a_step_without_the_call_and_not_by_others_beside_it() -> None:
    budget = LoopBudget(repeated_calls=3, idle_steps=99)
    a, b = result(path="a"), result(path="b")
    assert kinds(budget, [a], [a], [b], [a], [a]) == [None] * 5
    budget = LoopBudget(repeated_calls=3, idle_steps=99)
    assert kinds(budget, [a, new()], [new(), a], [a, b]) == [None, None, "repeated_call"]


def test_the_same_call_twice_in_one_step_is_one() -> None:
    budget = LoopBudget(repeated_calls=2, repeated_failures=2, idle_steps=99)
    assert kinds(budget, [result(), result()]) == [None]
    assert kinds(budget, [result(status="failed", a=1)] * 2) == [None]


@pytest.mark.parametrize("status", ["failed", "rejected"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_same_failure(times: int, status: Status) -> None:
    budget = LoopBudget(repeated_failures=times, repeated_calls=99, idle_steps=99)
    same, other = [result(status=status, path="a")], [result(status=status, path="b")]
    assert kinds(budget, *[same] * times) == [None] * (times - 1) + ["repeated_failure"]
    budget = LoopBudget(repeated_failures=times, repeated_calls=99, idle_steps=99)
    if times > 1:  # other failures in between do not hide it
        assert kinds(budget, *[same, other] * (times - 1), same)[-2:] == [None, "repeated_failure"]


def test_a_failure_that_is_being_worked_on_is_none_that_repeats() -> None:
    """Edit, run the tests, edit, run the tests: the same command fails, and it is still no circle."""
    budget = LoopBudget(repeated_failures=2)
    tests = [result("run_shell", "failed", command="make test")]
    assert kinds(budget, *[step for _ in range(8) for step in ([new()], tests)]) == [None] * 16


def test_the_same_call_with_two_ends_in_one_step_counts_as_both() -> None:
    for both in itertools.permutations([result(status="failed", a=1), result(a=1), result(status="rejected", a=1)]):
        budget = LoopBudget(repeated_failures=2, repeated_calls=99, idle_steps=99)
        assert kinds(budget, list(both), list(both)) == [None, "repeated_failure"]
        budget = LoopBudget(growth=1)
        budget.record(list(both))
        assert budget.limit == 13


def test_outputs_and_ids_are_not_looked_at() -> None:
    budget = LoopBudget(repeated_failures=3)
    steps = [[result("edit", "failed", f"said in other words {n}", path="a")] for n in range(3)]
    assert kinds(budget, *steps) == [None, None, "repeated_failure"]
    budget = LoopBudget(idle_steps=1)
    assert kinds(budget, [result(output="failed")], [result(output="error", a=1)]) == [None, None]


def test_a_reason_starts_its_count_anew() -> None:
    for budget, same in [
        (LoopBudget(repeated_calls=2, idle_steps=99), result()),
        (LoopBudget(repeated_failures=2, repeated_calls=99, idle_steps=99), result(status="failed")),
        (LoopBudget(idle_steps=2, repeated_calls=99, repeated_failures=99), result(status="failed")),
    ]:
        found = kinds(budget, *[[same]] * 6)
        assert [kind is None for kind in found] == [True, False, True, False, True, False], found


def test_a_step_without_calls_forgets_what_was_repeated_before_it() -> None:
    """The model had answered, and words of the person followed."""
    for budget in (
        LoopBudget(repeated_calls=2, idle_steps=99),
        LoopBudget(repeated_failures=2, repeated_calls=99, idle_steps=99),
        LoopBudget(idle_steps=2, repeated_calls=99, repeated_failures=99),
    ):
        same = [result(status="failed")]
        assert kinds(budget, same, [], same, []) == [None] * 4
        assert budget.steps == 4


def test_what_a_reason_says() -> None:
    long = "n" * 10_000
    budgets = [
        LoopBudget(repeated_failures=1),
        LoopBudget(repeated_calls=1),
        LoopBudget(idle_steps=1),
    ]
    reasons = [budget.record([result(long, "failed", secret="input")]) for budget in budgets]
    assert [reason and reason.kind for reason in reasons] == ["repeated_failure", "repeated_call", "no_progress"]
    for reason in reasons:
        assert reason is not None
        assert reason.recoverable
        assert len(reason.message) < 200
        assert "secret" not in reason.message
        assert reason.message in nudge(reason)["content"]


def test_no_person_wrote_the_nudge() -> None:
    message = nudge(StopReason("stuck", "The same call failed three times.", recoverable=True))
    assert message["role"] == "user"
    assert message["origin"] == "watchdog"
    assert message["content"].startswith("The same call failed three times.")


# ---------------------------------------------------------------- it always ends

inputs = st.dictionaries(st.sampled_from("ab"), st.integers(0, 1) | st.sampled_from(["x", "\ud800", 1.5, None, []]))
some_results = st.builds(
    ToolResult, st.just("id"), st.sampled_from(["r", "w", ""]), inputs, st.sampled_from(get_args(Status)), st.text()
)


@settings(max_examples=80)
@given(
    st.lists(st.lists(some_results, max_size=3), min_size=1, max_size=60),
    st.integers(0, 15),
    st.integers(0, 5),
    st.integers(1, 5),
)
@example([[]], 12, 1, 4)
def test_every_turn_ends(steps: list[list[ToolResult]], base: int, growth: int, factor: int) -> None:
    budget = LoopBudget(base, growth=growth, max_factor=factor)
    before = copy.deepcopy(steps)
    for step in itertools.cycle(steps):
        if not budget.can_continue():
            break
        reason = budget.record(step)
        assert reason is None or reason.recoverable
        assert base <= budget.limit <= base * factor
        assert budget.steps <= base * factor
    assert steps == before
    assert budget.exhausted().kind == "budget"


@settings(max_examples=50)
@given(st.lists(st.lists(some_results, max_size=3), max_size=30))
def test_the_same_results_get_the_same_answers(steps: list[list[ToolResult]]) -> None:
    one, other = LoopBudget(), LoopBudget()
    assert [one.record(step) for step in steps] == [other.record(copy.deepcopy(step)) for step in steps]
    assert one == other


# ---------------------------------------------------------------- through the whole loop


def turn_of(say: Any, **options: Any) -> tuple[Turn, Simulator, list[Any]]:
    """A turn with one tool, whose even numbers complete and whose odd ones fail."""
    registry = Registry()

    @registry.tool(read_only=True)
    def half(n: int) -> float:
        """Halve an even number."""
        if n % 2:
            raise ValueError("that number is odd")
        return n / 2

    simulator = Simulator(say)

    async def main() -> tuple[Turn, list[Any]]:
        turn = run_turn([user("Halve them.")], simulator.client(), registry, **options)
        return turn, [event async for event in turn]

    turn, events = run(main())
    assert problems(turn.history) == []
    return turn, simulator, events


def nudges(turn: Turn) -> list[Message]:
    return [message for message in turn.history if message.get("origin") == "watchdog"]


@pytest.mark.parametrize(
    ("numbers", "kind", "first", "last"),
    [
        (lambda step: 4, "repeated_call", 4, 8),
        (lambda step: 3, "repeated_failure", 3, 6),
        (lambda step: 2 * step + 1, "no_progress", 6, 12),
    ],
)
def test_a_circle_gets_one_nudge_and_then_ends_the_turn(numbers: Any, kind: str, first: int, last: int) -> None:
    def say(request: Any) -> Message:
        step = len([m for m in request["messages"] if m["role"] == "assistant"])
        return assistant("", call(f"c{step}", "half", n=numbers(step)))

    turn, simulator, events = turn_of(say)
    assert turn.reason == kind
    assert events[-1] == Done(kind, events[-1].why)
    assert len(simulator.requests) == last
    assert len(nudges(turn)) == 1
    assert turn.history.index(nudges(turn)[0]) == 2 * first + 1  # behind the person's words, and `first` pairs
    assert simulator.requests[first]["messages"][-1]["content"] == nudges(turn)[0]["content"]
    assert turn.history[-1]["role"] == "tool"


def test_a_model_that_listens_to_the_nudge_finishes() -> None:
    def say(request: Any) -> Message:
        last = request["messages"][-1]
        step = len(request["messages"])
        if last["role"] == "user" and "same input" in last["content"]:
            return assistant("I change my approach.", call(f"c{step}", "half", n=8))
        if "4" in last["content"]:
            return assistant("Half of 8 is 4.")
        return assistant("", call(f"c{step}", "half", n=3))

    turn, _, _ = turn_of(say)
    assert (turn.reason, turn.history[-1]["content"], len(nudges(turn))) == ("done", "Half of 8 is 4.", 1)


def test_real_work_may_take_longer_than_the_base() -> None:
    story = [assistant("", call(f"c{n}", "half", n=2 * n)) for n in range(30)]
    turn, _, events = turn_of([*story, "All done."], budget=LoopBudget(12))
    assert (turn.reason, nudges(turn)) == ("done", [])
    turn, simulator, events = turn_of([*story, "All done."], budget=LoopBudget(12, max_factor=2))
    assert (turn.reason, len(simulator.requests)) == ("budget", 24)
    assert events[-1] == Done("budget", "The turn used up its 24 steps. Say 'continue' to go on.")


@pytest.mark.parametrize(
    "wrong", [{"base_steps": -1}, {"growth": -1}, {"max_factor": -1}, {"repeated_calls": -1}, {"idle_steps": -1}]
)
def test_thresholds_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(AgentLabError):
        LoopBudget(**wrong)


def test_an_input_that_json_has_no_form_for_counts_as_it_prints() -> None:
    budget = LoopBudget()
    odd = ToolResult("c", "f", {"x": {1}}, "failed", "")
    assert [budget.record([odd]) is not None for _ in range(3)] == [False, False, True]


def test_attempts_that_differ_are_not_the_same_failure() -> None:
    budget = LoopBudget()
    for input in ({"file": "a"}, {"name": "b"}, {"path": "c", "lines": 3}):
        assert budget.record([ToolResult("c", "read_file", input, "failed", "")]) is None
