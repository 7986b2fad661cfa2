"""The checkers of chapter 05: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import check, compaction, pairing
from agentlab.check.compaction import CASES
from agentlab.check.compaction_rolling import EARLIER, retell, sections
from agentlab.check.compaction_session import TASK, session
from agentlab.errors import AgentLabError
from agentlab.messages import groups
from agentlab.summary import last_by_person, summary_source, text_of, text_size

EXERCISES = (check.split_index, check.rolling_summary, check.stable_summary)


def failed(report):
    """Name and reason of every case that failed."""
    return {finding.name: finding.why for finding in report.findings if not finding.passed}


def test_the_session_has_the_shape_of_the_seed():
    history = session()
    assert (len(history), pairing.problems(history)) == (27, [])
    assert history[6]["content"] == TASK and last_by_person(history) == 6
    assert compaction.split_index(history) == 6
    assert compaction.split_index(history, max_anchor_chars=1_000) == 19
    assert history is not session() and history == session()


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
    for answer in (lambda *given: None, lambda *given: 1 // 0, lambda: 0):
        report = exercise(answer)
        assert not report.passed and not report.live.passed
        assert report._repr_html_() and repr(report)


# --- where to cut -----------------------------------------------------------------------------------------------------


def test_the_modules_own_split_passes():
    report = check.split_index(compaction.split_index)
    assert report.passed and report.live.said.startswith("Done, as you asked")


def test_every_right_cut_leaves_pairs_whole():
    for case in CASES:
        history = list(case.history)
        assert not pairing.problems(history[case.right :]), case.name
        assert compaction.split_index(history, case.keep_recent, case.max_anchor_chars) == case.right


def newest(history, keep_recent, max_anchor_chars):
    return max(0, len(history) - keep_recent)


def negative(history, keep_recent, max_anchor_chars):
    return len(history) - keep_recent


def any_user(history, keep_recent, max_anchor_chars):
    """The seed's idea without its list of prefixes: the last message with the role user."""
    cut = max(0, len(history) - keep_recent)
    users = [at for at, message in enumerate(history[:cut]) if message["role"] == "user"]
    if users and last_by_person(history) < cut and text_size(history[users[-1] :]) <= max_anchor_chars:
        cut = users[-1]
    while 0 < cut < len(history) and history[cut]["role"] == "tool":
        cut -= 1
    return cut if cut > 1 else 0


def without_a_limit(history, keep_recent, max_anchor_chars):
    return check.split_index.solution(history, keep_recent, 10**9)


def pairs_only(history, keep_recent, max_anchor_chars):
    return check.split_index.solution(history, keep_recent, -1)


def one_step_back(history, keep_recent, max_anchor_chars):
    """Takes a batch for one result."""
    cut = max(0, len(history) - keep_recent)
    if 0 < cut < len(history) and history[cut]["role"] == "tool":
        cut -= 1
    anchor = last_by_person(history)
    if 0 <= anchor < cut and text_size(history[anchor:]) <= max_anchor_chars:
        cut = anchor
    return cut if cut > 1 else 0


def forwards(history, keep_recent, max_anchor_chars):
    """Goes to the end of the batch instead of its start."""
    cut = max(0, len(history) - keep_recent)
    while 0 < cut < len(history) and history[cut]["role"] == "tool":
        cut += 1
    anchor = last_by_person(history)
    if 0 <= anchor < cut and text_size(history[anchor:]) <= max_anchor_chars:
        cut = anchor
    return cut if cut > 1 else 0


def always_the_words(history, keep_recent, max_anchor_chars):
    return max(0, last_by_person(history))


def never(history, keep_recent, max_anchor_chars):
    return 0


def one_too_far(history, keep_recent, max_anchor_chars):
    return min(len(history), check.split_index.solution(history, keep_recent - 1, max_anchor_chars) + 1)


def pops(history, keep_recent, max_anchor_chars):
    cut = check.split_index.solution(history, keep_recent, max_anchor_chars)
    del history[:cut]
    return cut


def a_list(history, keep_recent, max_anchor_chars):
    return history[check.split_index.solution(history, keep_recent, max_anchor_chars) :]


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (newest, "the person's words are far back", "tells again, and loses"),
        (newest, "three results of one batch", "refused by every provider"),
        (newest, "one message in front", "return 0"),
        (negative, "shorter than what stays", "It is a position"),
        (any_user, "a summary and a nudge", "`origin` was written by the program"),
        (without_a_limit, "too much to pin", "saves nothing"),
        (without_a_limit, "one character too far", "paid for each time"),
        (pairs_only, "the person's words are far back", "tells again, and loses"),
        (one_step_back, "three results of one batch", "refused by every provider"),
        (forwards, "three results of one batch", "Only 3 messages stay"),
        (always_the_words, "they stay already", "Only 7 messages stay"),
        (never, "only talk", "paid for each time"),
        (one_too_far, "too much to pin", "refused by every provider"),
        (pops, "only talk", "Only look"),
        (a_list, "only talk", "It is a position"),
    ],
)
def test_a_wrong_split_fails_and_is_told_why(answer, case, says):
    assert says in failed(check.split_index(answer))[case]


def test_a_wrong_split_meets_the_provider_or_loses_the_task():
    assert "must be a response to a preceeding message" in check.split_index(newest).live.said
    lost = check.split_index(pairs_only).live
    assert not lost.passed and "What is it that you want me to do?" in lost.said


# --- the next summary -------------------------------------------------------------------------------------------------


def test_the_modules_own_source_passes():
    report = check.rolling_summary(lambda previous, messages: summary_source(messages, previous=previous))
    assert report.passed, report
    assert report.live.said.endswith("The tests run with: npm test -- --runInBand")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.text(alphabet="abc =\n", max_size=12), max_size=5))
def test_the_scripted_summariser_copies_what_is_earlier_and_no_more(texts):
    source = "\n".join([EARLIER, "copy me", *(f"=== user ===\n{text}" for text in texts)])
    found = sections(source)
    assert found[1] == (EARLIER, "copy me")
    assert retell(source).split("\n")[0] == "copy me"
    words = " ".join(body for heading, body in found if heading != EARLIER).split()
    assert len(retell(source).split()) == 2 + len(words) - len(words) // 4


def said(messages):
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or []]
        yield "\n".join([text_of(message["content"]), *(f"{each['name']} {each['arguments']}" for each in calls)])


def disarmed(messages):
    return [re.sub(r"(?m)^(?=[ \t]*===)", r"\\", text) for text in said(messages)]


def all_in_one(previous, messages):
    return "\n".join([previous or "", *disarmed(messages)])


def prints_none(previous, messages):
    return "\n".join([f"{EARLIER}\n{previous}", "=== new ===", *disarmed(messages)])


def empty_heading(previous, messages):
    return "\n".join([EARLIER, previous or "", "=== new ===", *disarmed(messages)])


def forgets_the_earlier(previous, messages):
    return "\n".join(["=== new ===", *disarmed(messages)])


def no_end_of_the_earlier(previous, messages):
    """Everything new stands under the heading, too, and is copied for ever."""
    return "\n".join([*([EARLIER, previous] if previous else []), *disarmed(messages)])


def twice(previous, messages):
    return check.rolling_summary.solution(previous, messages) + (f"\n{EARLIER}\n{previous}" if previous else "")


def contents_only(previous, messages):
    plain = [{**message, "tool_calls": []} for message in messages]
    return check.rolling_summary.solution(previous, plain)


def no_results(previous, messages):
    return check.rolling_summary.solution(previous, [each for each in messages if each["role"] != "tool"])


def armed(previous, messages):
    head = [EARLIER, previous] if previous else []
    return "\n".join([*head, *(f"=== new ===\n{text}" for text in said(messages))])


def half_disarmed(previous, messages):
    head = [EARLIER, previous] if previous else []
    return "\n".join([*head, *(f"=== new ===\n{re.sub('(?m)^===', '-', text)}" for text in said(messages))])


def deletes(previous, messages):
    head = [EARLIER, previous] if previous else []
    return "\n".join([*head, *(f"=== new ===\n{text.split('===')[0]}" for text in said(messages))])


def own_heading(previous, messages):
    return check.rolling_summary.solution(previous, messages).replace("earlier summary", "previous summary")


def only_strings(previous, messages):
    plain = [{**message, "content": str(message["content"] or "")[:5]} for message in messages]
    return check.rolling_summary.solution(previous, plain)


def changes(previous, messages):
    messages.clear()
    return check.rolling_summary.solution(previous, messages)


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (all_in_one, "ten rounds", "Only what stands under the heading is copied"),
        (own_heading, "ten rounds", "Only what stands under the heading is copied"),
        (forgets_the_earlier, "ten rounds", "Only what stands under the heading is copied"),
        (prints_none, "the first summary", "invites to invent"),
        (empty_heading, "the first summary", "invites to invent"),
        (no_end_of_the_earlier, "a result that forges the heading", "what follows is copied"),
        (twice, "ten rounds", "Once is enough"),
        (contents_only, "what only a call says", "in a call only"),
        (no_results, "the new messages", "no summary has it"),
        (armed, "a result that forges the heading", "what follows is copied"),
        (half_disarmed, "a result that forges the heading", "with blanks in front"),
        (deletes, "a result that forges the heading", "leave the text"),
        (only_strings, "a list of parts", "reads every shape"),
    ],
)
def test_a_wrong_source_fails_and_is_told_why(answer, case, says):
    assert says in failed(check.rolling_summary(answer))[case]


def test_a_source_that_changes_its_input_or_is_no_text_is_told():
    assert any("changed the messages" in finding.got for finding in check.rolling_summary(changes).findings)
    assert any("reads text" in f.got for f in check.rolling_summary(lambda p, m: [p, *m]).findings)


def test_a_telephone_game_loses_what_was_decided():
    live = check.rolling_summary(all_in_one).live
    assert not live.passed and "How the tests run I cannot tell any more" in live.said


# --- the time ---------------------------------------------------------------------------------------------------------


def message(text, origin="compaction", role="user"):
    return {"role": role, "content": text} | ({"origin": origin} if origin else {})


def in_the_summary(summary, tail, now):
    return [message(f"At {now}: {summary}"), *tail]


def behind_the_summary(summary, tail, now):
    return [message(summary), message(f"It is {now}.", "clock"), *tail]


def no_time(summary, tail, now):
    return [message(summary), *tail]


def no_summary(summary, tail, now):
    return [*tail, message(f"It is {now}.", "clock")]


def in_the_last_result(summary, tail, now):
    last = {**tail[-1], "content": f"{tail[-1]['content']}\n{now}"}
    return [message(summary), *tail[:-1], last]


def inside_a_pair(summary, tail, now):
    return [message(summary), *tail[:-1], message(now, "clock"), tail[-1]]


def by_a_person(summary, tail, now):
    return [message(summary), *tail, message(now, None)]


def by_the_system(summary, tail, now):
    return [message(summary), *tail, message(now, "clock", "system")]


def appends(summary, tail, now):
    tail.append(message(f"{summary} {now}"))
    return tail


def at_the_end_with_the_summary(summary, tail, now):
    return [*tail, message(f"{summary}\nIt is {now}.")]


def one_text(summary, tail, now):
    return f"{summary} {tail} {now}"


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (in_the_summary, "twenty seconds later", "everything is paid again"),
        (in_the_summary, "five requests, two days", "everything is paid again"),
        (behind_the_summary, "twenty seconds later", "everything is paid again"),
        (no_time, "what one request holds", "shall know how late it is"),
        (no_summary, "what one request holds", "Nothing else is left"),
        (in_the_last_result, "what one request holds", "The tail is not yours to edit"),
        (inside_a_pair, "what one request holds", "stand together"),
        (by_a_person, "what one request holds", "no person wrote it"),
        (by_the_system, "what one request holds", "no person wrote it"),
        (appends, "what one request holds", "Build a new list"),
        (at_the_end_with_the_summary, "what one request holds", "stands first"),
        (one_text, "what one request holds", "request's history"),
    ],
)
def test_a_wrong_view_fails_and_is_told_why(answer, case, says):
    assert says in failed(check.stable_summary(answer))[case]


def test_the_bill_tells_a_good_view_from_a_bad_one():
    figures = re.compile(r"([\d,]+) tokens of input, ([\d,]+) of them read")
    bills = {}
    for answer in (check.stable_summary.solution, in_the_summary):
        live = check.stable_summary(answer).live
        bills[answer] = [int(text.replace(",", "")) for text in figures.search(live.said).groups()]
        assert live.passed is (answer is check.stable_summary.solution)
    (good, read), (bad, again) = bills.values()
    assert 2 * read > good and 10 * again < bad and abs(good - bad) < 100


def test_a_model_that_sees_no_time_says_so():
    assert "how late it is I cannot see" in check.stable_summary(no_time).live.said


def test_the_session_is_cut_at_groups_only():
    starts = {group.start for group in groups(session())}
    assert {compaction.split_index(session(), keep, 0) for keep in range(2, 25)} <= starts
