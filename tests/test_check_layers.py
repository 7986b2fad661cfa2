"""check.layers: right answers pass, likely wrong ones fail with a line that helps, and each meets the live loop."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import check, layers, pairing
from agentlab.check import layers_spill
from agentlab.check.layers import CASES
from agentlab.check.layers_task import JOB, STEPS, entered, scribe, work, worker
from agentlab.errors import AgentLabError
from agentlab.layersummary import read_fields
from agentlab.messages import groups, user
from agentlab.spill import OutputBudget, SpillStore, apply_budget
from agentlab.summary import last_by_person
from agentlab.tools import ToolResult
from agentlab.widgets import run_sync

EXERCISES = (check.snip, check.micro, check.when_to_spill)


def failed(report):
    """Name and reason of every case that failed."""
    return {finding.name: finding.why for finding in report.findings if not finding.passed}


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_only_a_function_is_an_answer(exercise):
    async def late(*given):
        return given

    for answer in (None, "text", 3, late):
        with pytest.raises(AgentLabError, match="without brackets"):
            exercise(answer)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_three_hints_a_solution_and_nothing_that_breaks_the_check(exercise):
    assert exercise(exercise.solution).passed
    assert all(exercise.hint(number).text for number in (1, 2, 3))
    with pytest.raises(AgentLabError):
        exercise.hint(4)
    for answer in (lambda *given, **limits: None, lambda *given, **limits: 1 // 0, lambda: 0):
        report = exercise(answer)
        assert not report.passed and not report.live.passed
        assert report._repr_html_() and repr(report)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_the_turn_of_a_right_answer_ends_well(exercise):
    turn = run_sync(exercise.turn(exercise.solution).run())
    assert turn.reason == "done" and turn.history[-1]["content"] == exercise(exercise.solution).live.said


def test_the_modules_own_layers_pass():
    assert check.snip(layers.snip).passed and check.micro(layers.micro).passed


# --- snip -------------------------------------------------------------------------------------------------------------


def solved(history, max_groups, head, tail):
    return check.snip.solution(history, max_groups, head, tail)


def by_messages(history, max_groups, head, tail):
    if len(history) <= max_groups:
        return history
    gone = len(history) - head - tail
    return [*history[:head], {"role": "user", "content": f"[{gone}]", "origin": "compaction"}, *history[-tail:]]


def at_the_limit(history, max_groups, head, tail):
    return solved(history, max_groups - 1, head, tail)


def never(history, max_groups, head, tail):
    return history


def in_place(history, max_groups, head, tail):
    history[:] = solved(history, max_groups, head, tail)
    return history


def marker_changed(**changes):
    def answer(history, max_groups, head, tail):
        out = solved(history, max_groups, head, tail)
        return [{**m, **changes} if m.get("origin") == "compaction" else m for m in out]

    return answer


def without_origin(history, max_groups, head, tail):
    out = solved(history, max_groups, head, tail)
    return [{"role": m["role"], "content": m["content"]} if m.get("origin") == "compaction" else m for m in out]


def without_marker(history, max_groups, head, tail):
    return [m for m in solved(history, max_groups, head, tail) if m.get("origin") != "compaction"]


def any_user(history, max_groups, head, tail):
    """Takes a nudge for the person."""
    bare = [{key: value for key, value in m.items() if key != "origin"} for m in history]
    out = solved(bare, max_groups, head, tail)
    return history if len(out) == len(history) else out[: len(out)]


def one_too_many(history, max_groups, head, tail):
    return solved(history, max_groups, head, tail + 1)


def a_text(history, max_groups, head, tail):
    return str(history)


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (by_messages, "51 groups", "refuses a result without its call"),
        (by_messages, "many messages, few groups", ""),
        (at_the_limit, "50 groups", "Only more than"),
        (never, "51 groups", "Only more than"),
        (in_place, "51 groups", "build a new list"),
        (marker_changed(role="system"), "51 groups", "A system message stands only first"),
        (without_origin, "51 groups", "takes it for the person's words"),
        (marker_changed(content="[some groups left out]"), "51 groups", "how much is missing"),
        (marker_changed(content="[10 groups left out]"), "the person speaks in the middle", "what the person"),
        (without_marker, "51 groups", ""),
        (any_user, "a nudge behind the person", "what the person wants"),
        (one_too_many, "a batch of three is one group", "Count groups, not messages"),
        (a_text, "50 groups", "next request's history"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or None,
)  # fmt: skip
def test_a_wrong_snip_fails_and_is_told_why(answer, case, says):
    reasons = failed(check.snip(answer))
    assert case in reasons and says in reasons[case]


def test_a_wrong_snip_meets_the_provider_or_loses_the_task():
    assert "must be a response to a preceeding message" in check.snip(by_messages).live.said
    lost = check.snip(marker_changed(content="[15 message groups left out here]")).live
    assert not lost.passed and "What is it that you want me to do?" in lost.said
    assert "maximum context length" in check.snip(never).live.said


def test_every_case_can_be_solved_by_groups():
    for case in CASES:
        out = check.snip.solution(list(case.history), *case.limits)
        assert not pairing.problems(out) and len(groups(out)) <= case.limits[0], case.name
        assert last_by_person(case.history) >= 0, case.name


# --- micro ------------------------------------------------------------------------------------------------------------


def noting(history, keep, note=lambda message, age: "[old]", spared=lambda message: False):
    """The solution, with another note."""
    out = list(history)
    exchanges = [group for group in groups(history) if group.messages[0].get("tool_calls")]
    for age, group in enumerate(reversed(exchanges)):
        for at in range(group.start + 1, group.end):
            if age >= keep and not spared(history[at]):
                out[at] = {**history[at], "content": note(history[at], age)}
    return out


def repaired(message):
    return message.get("origin") == "repair"


def pointed(message, age):
    return "[old]" + ("\n" + message["content"].splitlines()[-1] if message.get("output_path") else "")


def forgets_the_pointer(history, keep):
    return noting(history, keep, spared=repaired)


def claims_that_it_ran(history, keep):
    return noting(history, keep, pointed)


def tells_the_age(history, keep):
    return noting(history, keep, lambda m, age: f"{age} steps ago: {pointed(m, age)}", repaired)


def empties(history, keep):
    return noting(history, keep, lambda m, age: pointed(m, age).replace("[old]", ""), repaired)


def keeps_the_head(history, keep):
    return noting(history, keep, lambda m, age: m["content"][:300], repaired)


def one_more(history, keep):
    return noting(history, keep + 1, pointed, repaired)


def one_less(history, keep):
    return noting(history, keep - 1, pointed, repaired)


def by_results(history, keep):
    at = [at for at, message in enumerate(history) if message["role"] == "tool"]
    old = set(at[: max(0, len(at) - keep)])
    return [{**m, "content": pointed(m, 0)} if n in old and not repaired(m) else m for n, m in enumerate(history)]


def minus_keep(history, keep):
    """`exchanges[:-keep]`, which is nothing for 0."""
    return check.micro.solution(history, keep) if keep else history


def drops(history, keep):
    return [m for m, after in zip(history, check.micro.solution(history, keep), strict=True) if m == after]


def new_messages(history, keep):
    out = check.micro.solution(history, keep)
    return [a if a == b else {"role": "tool", "tool_call_id": a["tool_call_id"], "content": b["content"]}
            for a, b in zip(history, out, strict=True)]  # fmt: skip


def changes(history, keep):
    for message, after in zip(history, check.micro.solution(history, keep), strict=True):
        message["content"] = after["content"]
    return history


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (forgets_the_pointer, "a saved result", "must run the command again"),
        (claims_that_it_ran, "a call that never ran", "claim that it ran"),
        (tells_the_age, "four exchanges", "the cache is lost"),
        (empties, "four exchanges", "found nothing"),
        (keeps_the_head, "four exchanges", "working with"),
        (one_more, "four exchanges", "working with"),
        (one_less, "three exchanges", "working with"),
        (by_results, "a batch is one exchange", "a batch is one"),
        (minus_keep, "keep none", "every result becomes a note"),
        (drops, "four exchanges", "leave the message"),
        (new_messages, "a saved result", "Replace the content only"),
        (changes, "four exchanges", "build new messages"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or None,
)
def test_a_wrong_micro_fails_and_is_told_why(answer, case, says):
    assert says in failed(check.micro(answer))[case]


def test_a_wrong_micro_overflows_or_cannot_answer():
    assert "maximum context length" in check.micro(lambda history, keep: history).live.said
    lost = check.micro(forgets_the_pointer).live
    assert not lost.passed and "cannot see any more what failed" in lost.said


# --- when to spill ----------------------------------------------------------------------------------------------------


def choosing(size=lambda text: len(text.encode()), *, over=lambda a, b: a > b, first=True, left=None, longer=False):
    """The solution, with one idea changed."""

    def answer(outputs, per_result, per_batch, left_bytes):
        sizes, chosen = [size(text) for text in outputs], []
        for at in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at if first else -at)):
            if not (over(sizes[at], per_result) or over(sum(sizes), per_batch)):
                break
            if longer or sizes[at] > left_bytes:
                chosen.append(at)
                sizes[at] = left_bytes if left is None else left
        return chosen

    return lambda outputs, per_result, per_batch, left: answer(outputs, per_result, per_batch, left)


def each_alone(outputs, per_result, per_batch, left):
    return [at for at, text in enumerate(outputs) if len(text.encode()) > per_result]


def in_call_order(outputs, per_result, per_batch, left):
    chosen, sizes = each_alone(outputs, per_result, per_batch, left), [len(text.encode()) for text in outputs]
    for at in range(len(sizes)):
        if sum(left if n in chosen else size for n, size in enumerate(sizes)) > per_batch and sizes[at] > left:
            chosen.append(at)
    return set(chosen)


def all_or_none(outputs, per_result, per_batch, left):
    return list(range(len(outputs))) if sum(len(text.encode()) for text in outputs) > per_batch else []


def names(outputs, per_result, per_batch, left):
    return [outputs[at] for at in check.when_to_spill.solution(outputs, per_result, per_batch, left)]


def clears(outputs, per_result, per_batch, left):
    found = check.when_to_spill.solution(outputs, per_result, per_batch, left)
    outputs.clear()
    return found


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (choosing(len), "10,001 characters of three bytes", "bytes of UTF-8"),
        (choosing(over=lambda a, b: a >= b), "30,000 bytes", "not at it"),
        (choosing(over=lambda a, b: a >= b), "200,000 bytes together", "not at it"),
        (choosing(first=False), "ties", "first in call order"),
        (choosing(left=0), "what stays counts, too", "It does stay"),
        (choosing(longer=True), "many small ones", "never replaced by a longer one"),
        (each_alone, "200,001 bytes together", "The largest first"),
        (in_call_order, "200,001 bytes together", "The largest first"),
        (all_or_none, "30,001 bytes", "not at it"),
        (all_or_none, "a large one makes room", "count again"),
        (names, "30,001 bytes", "start at 0"),
        (clears, "30,000 bytes", "Only look"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or None,
)
def test_a_wrong_choice_fails_and_is_told_why(answer, case, says):
    assert says in failed(check.when_to_spill(answer))[case]


def test_too_few_meet_the_provider_and_too_many_are_read_back():
    assert "maximum context length" in check.when_to_spill(each_alone).live.said
    more = check.when_to_spill(all_or_none).live
    assert not more.passed and "I read 7 files back. Of these reads, 2 would have been enough" in more.said


def test_the_outputs_of_the_story_have_the_sizes_that_it_needs():
    outputs = [layers_spill._output(part) for part in range(len(layers_spill.SIZES))]
    assert [len(output) for output in outputs] == list(layers_spill.SIZES)
    assert check.when_to_spill.solution(outputs, **layers_spill.SMALL) == [3, 6]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 60_000), max_size=12))
def test_the_solution_agrees_with_the_module_where_what_stays_is_the_same(tmp_path_factory, sizes):
    """The module's excerpt has nearly a fixed length; take it for `left`, and both choose alike."""
    store = SpillStore(tmp_path_factory.mktemp("spill"))
    budget = OutputBudget(30_000, 200_000, preview=4_100, tail=2_000, unit="bytes", mode="both")
    results = [ToolResult(str(at), "run", {}, "completed", "x" * size) for at, size in enumerate(sizes)]
    after = apply_budget(results, budget, store).results
    lengths = [len(result.output) for result in after if result.output_path]
    chosen = check.when_to_spill.solution([r.output for r in results], 30_000, 200_000, max(lengths, default=4_300))
    spilled = [at for at, result in enumerate(after) if result.output_path]
    assert sorted(chosen) == spilled or (lengths and max(lengths) - min(lengths) > 0)


# --- the chapter's long task ------------------------------------------------------------------------------------------


def test_the_task_ends_in_a_large_window_and_is_refused_in_a_small_one():
    batches = []
    provider, turn, ending = run_sync(work(10**6, after_results=batches.append))
    assert ending == "All are ported." and len(provider.requests) == STEPS + 1
    assert entered(turn.history, [batch for batch in batches if batch], lambda results: results) == turn.history
    provider, _, ending = run_sync(work(2_000))
    assert "maximum context length" in ending and len(provider.usages) < STEPS


def test_the_scripts_know_only_what_they_are_shown():
    assert worker({"messages": [user("module_7 is done")]}) == "I do not know what I was asked to do."
    again = worker({"messages": [user(JOB), user("module_7 is done")]})
    assert again["tool_calls"][0]["function"]["arguments"] == '{"path":"module_8"}'
    assert worker({"messages": [user(JOB), user(f"module_{STEPS}")]}) == "All are ported."
    assert "up to module_7" in str(read_fields(scribe("module_3, then module_7")))
