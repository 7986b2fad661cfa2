"""The checkers of chapter 02: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentlab import check, spill
from agentlab.errors import AgentLabError
from agentlab.spill import SpillStore


def failed(report):
    """The first case that failed."""
    found = next((f for f in report.findings if not f.passed), None)
    assert found is not None, "every case passed"
    return found


# --- the excerpt ------------------------------------------------------------------------------------------------------


def cut(text, front, back, left_out=None):
    number = len(text) - front - back if left_out is None else left_out
    return f"{text[:front]}\n[{number} left out]\n{text[len(text) - back :]}"


def test_the_solution_and_the_modules_own_pass():
    for answer in check.tail_excerpt.solution, spill.excerpt, lambda *a: check.tail_excerpt.solution(*a):
        report = check.tail_excerpt(answer)
        assert report.passed, report
        assert report.live.said == "No: test_leap_year fails, it has 366 for 365."


def head_only(text, cap, mode):
    return text if len(text) <= cap else check.tail_excerpt.solution(text, cap, "head")


def forgets_its_own_line(text, cap, mode):
    small = min(200, cap // 4)
    front, back = (small, cap - small) if mode == "tail" else (cap - small, small)
    return text if len(text) <= cap else cut(text, front, back)


def counts_the_cap(text, cap, mode):
    """The number that stands in the seed: what the text has more than the cap."""
    room = cap - 40
    if len(text) <= cap or room < 10:
        return text[:cap]
    front, back = (room // 4, room - room // 4) if mode == "tail" else (room - room // 4, room // 4)
    return cut(text, front, back, len(text) - cap)


def no_number(text, cap, mode):
    return text if len(text) <= cap else (text[: cap // 4] + "..." + text[len(text) - cap // 2 :])[:cap]


def swapped(text, cap, mode):
    return check.tail_excerpt.solution(text, cap, "head" if mode == "tail" else "tail")


def one_end(text, cap, mode):
    return text[:cap] if mode == "head" else text[max(0, len(text) - cap) :]


def minus_zero(text, cap, mode):
    return text[:cap] if mode == "head" else text[-cap:]


def always_cuts(text, cap, mode):
    return cut(text, 5, 5)[:cap]


def thinks_in_bytes(text, cap, mode):
    return check.tail_excerpt.solution(text, cap, mode).encode()


def off_by_one(text, cap, mode):
    return text if len(text) < cap else check.tail_excerpt.solution(text + " ", cap, mode)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (head_only, "mode names the end that matters"),
        (forgets_its_own_line, "Your own line counts"),
        (counts_the_cap, "A wrong one misleads it"),
        (no_number, "mode names the end|this number"),
        (swapped, "mode names the end that matters"),
        (one_end, "show some of both"),
        (minus_zero, "show some of both"),
        (always_cuts, "What fits needs no cutting"),
        (thinks_in_bytes, "The model reads text"),
        (off_by_one, "What fits needs no cutting"),
        (lambda text, cap, mode: None, "The model reads text"),
        (lambda text, cap, mode: 1 // 0, ""),
    ],
)
def test_a_wrong_excerpt_fails_and_is_told_why(answer, says):
    found = failed(check.tail_excerpt(answer))
    assert any(part in found.why for part in says.split("|"))
    assert "letters, cap=" in found.fed


def test_an_excerpt_without_the_tail_leaves_the_model_in_the_dark():
    live = check.tail_excerpt(head_only).live
    assert not live.passed
    assert "I ran the tests 3 times and never saw what failed" in live.said
    broken = check.tail_excerpt(lambda text, cap, mode: 1 // 0).live
    assert not broken.passed and "ZeroDivisionError" in broken.said


@pytest.mark.parametrize("exercise", [check.tail_excerpt, check.collector])
def test_only_a_function_is_an_answer(exercise):
    for answer in (None, "text", exercise.solution("x", 5) if exercise is check.tail_excerpt else 3):
        with pytest.raises(AgentLabError, match="without brackets"):
            exercise(answer)


# --- the collector ----------------------------------------------------------------------------------------------------


def the_modules_own(files, alive):
    """`spill.collect` on real files of these names."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = SpillStore(folder)
        for name in files:
            (Path(folder) / name).write_text("x")
        return spill.collect(store, alive).removed


def test_the_right_collectors_pass():
    report = check.collector(check.collector.solution)
    assert report.passed, report
    assert report.live.said == "Row 1234 has the price 638. 1 of 3 files were deleted."
    assert check.collector(the_modules_own).passed


def pointers(alive):
    """The names in tool messages of plain histories."""
    return {
        str(message.get("output_path")).rsplit("/", 1)[-1]
        for history in alive
        for message in history
        if message.get("output_path")
    }


def searches_text(files, alive):
    return [name for name in files if name not in json.dumps(alive)]


def first_history_only(files, alive):
    return [name for name in files if name not in pointers(alive[:1])]


def top_level_only(files, alive):
    return [name for name in files if name not in pointers(alive)]


def tool_messages_only(files, alive):
    kept = pointers([[m for m in history if m.get("role") == "tool"] for history in alive])
    return [name for name in files if name not in kept]


def whole_paths(files, alive):
    kept = {message.get("output_path") for history in alive for message in history}
    return [name for name in files if name not in kept]


def keeps_all(files, alive):
    return []


def deletes_all(files, alive):
    return files


def says_what_stays(files, alive):
    gone = check.collector.solution(files, alive)
    return [name for name in files if name not in gone]


def a_count(files, alive):
    return len(check.collector.solution(files, alive))


def changes_the_list(files, alive):
    gone = check.collector.solution(files, alive)
    for name in gone:
        files.remove(name)
    return gone


def more_than_files(files, alive):
    return [*check.collector.solution(files, alive), "0009-0000000000.txt"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (searches_text, "A summary may mention anything"),
        (first_history_only, "Somebody may go on in the other branch"),
        (top_level_only, "look inside the events"),
        (tool_messages_only, "look inside the events"),
        (whole_paths, "without it, read_file fails"),
        (keeps_all, "Nobody will ever ask for these"),
        (deletes_all, "without it, read_file fails"),
        (says_what_stays, "Nobody will ever ask for these"),
        (a_count, "Return names"),
        (changes_the_list, "Others still use these lists"),
        (more_than_files, "must stay"),
        (lambda files, alive: 1 // 0, ""),
    ],
)
def test_a_wrong_collector_fails_and_is_told_why(answer, says):
    found = failed(check.collector(answer))
    assert says in found.why
    assert found.fed.startswith("files=[")


def test_a_collector_that_takes_too_much_breaks_the_running_agent():
    live = check.collector(deletes_all).live
    assert not live.passed
    assert "I was sent to a file, and this is what I got: There is no file spill/" in live.said
    kept = check.collector(keeps_all).live
    assert not kept.passed and "a file that nobody needs is still there" in kept.said
    broken = check.collector(lambda files, alive: 1 // 0).live
    assert not broken.passed and "ZeroDivisionError" in broken.said


@pytest.mark.parametrize("exercise", [check.tail_excerpt, check.collector])
def test_there_are_three_hints(exercise):
    for number in 1, 2, 3:
        assert repr(exercise.hint(number)).startswith(f"Hint {number} of 3: ")
