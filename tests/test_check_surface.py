"""The checkers of chapter 09: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import pytest

from agentlab import check
from agentlab.compactor import _edges, _range
from agentlab.errors import AgentLabError
from agentlab.surface import MARKER, Pruner


def check_wrong(exercise, answer, says):
    found = [f for f in exercise(answer).findings if not f.passed]
    assert found, "every case passed"
    assert any(says in f.why for f in found), [f.why for f in found]
    assert all(f.fed and f.expected for f in found)


# --- prune ------------------------------------------------------------------------------------------------------------

right_prune = check.prune.solution


def by_module(message, threshold, head, tail):
    return Pruner(threshold, head, tail).message(message)


@pytest.mark.parametrize("answer", [right_prune, by_module])
def test_a_right_pruner_passes(answer):
    report = check.prune(answer)
    assert report.passed, report
    assert report.live.said == "test_leap fails, on machine ci-7."


def plain(message, threshold, head, tail, *, keep=None, size=len, limit=lambda threshold: threshold):
    """The solution for plain text, with one thing that may be wrong."""
    text = message["content"]
    if head + len(MARKER) + tail > threshold:
        raise ValueError
    if not isinstance(text, str) or message["role"] != "tool" or size(text) <= limit(threshold):
        return right_prune(message, threshold, head, tail)
    return (keep or message) | {"content": text[:head] + MARKER + text[len(text) - tail :]}


def no_zero(message, threshold, head, tail):
    text = message["content"]
    if message["role"] != "tool" or not isinstance(text, str) or len(text) <= threshold:
        return right_prune(message, threshold, head, tail)
    return message | {"content": text[:head] + MARKER + text[-tail:]}


def at_the_threshold(*args):
    return plain(*args, limit=lambda threshold: threshold - 1)


def in_bytes(*args):
    return plain(*args, size=lambda text: len(text.encode()))


def loses_keys(message, *sizes):
    return plain(message, *sizes, keep={"role": "tool", "tool_call_id": message.get("tool_call_id")})


def everybody(message, threshold, head, tail):
    text = message["content"]
    if isinstance(text, str) and len(text) > threshold:
        return message | {"content": text[:head] + MARKER + text[len(text) - tail :]}
    return right_prune(message, threshold, head, tail)


def needs_text(message, threshold, head, tail):
    return message if len(message["content"]) <= threshold else right_prune(message, threshold, head, tail)


def joins_parts(message, threshold, head, tail):
    content = message["content"]
    if isinstance(content, list):
        message = message | {"content": "".join(part.get("text", "") for part in content)}
    return right_prune(message, threshold, head, tail)


def each_part(message, threshold, head, tail):
    content = message["content"]
    if not isinstance(content, list):
        return right_prune(message, threshold, head, tail)
    cut = [right_prune({"role": "tool", "content": p.get("text")}, threshold, head, tail)["content"] for p in content]
    return message | {"content": [p | {"text": t} if "text" in p else p for p, t in zip(content, cut, strict=True)]}


def takes_any_size(message, threshold, head, tail):
    big = max(threshold, head + len(MARKER) + tail)
    return right_prune(message, big, head, tail) if big == threshold else _longer(message, threshold, head, tail)


def _longer(message, threshold, head, tail):
    text = message["content"]
    return message | {"content": text[:head] + MARKER + text[-tail:]} if len(text) > threshold else message


def in_place(message, *sizes):
    message.update(right_prune(message, *sizes))
    return message


def marks_again(message, threshold, head, tail):
    """Counts the text without the marker, so that what was pruned is looked at once more."""
    out = right_prune(message, threshold, head, tail)
    return out | {"content": out["content"] + "."} if MARKER in str(out["content"]) else out


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (no_zero, "text[-0:] is the whole text"),
        (at_the_threshold, "Above the threshold, not at it"),
        (in_bytes, "a threshold in bytes would cut three times as early"),
        (loses_keys, "carry over every key"),
        (everybody, "what a person said is not cut"),
        (needs_text, "may have no text at all"),
        (joins_parts, "the image is no text"),
        (each_part, "The texts count together"),
        (takes_any_size, "Say so at once"),
        (in_place, "build a new one"),
        (marks_again, "A second look must find nothing to do"),
        (lambda message, *sizes: message, "Head, marker, tail"),
        (lambda message, *sizes: None, "Above the threshold"),
    ],
)
def test_a_wrong_pruner_fails_and_is_told_why(answer, says):
    check_wrong(check.prune, answer, says)


def test_the_loop_notices_too():
    live = check.prune(lambda message, *sizes: message).live
    assert not live.passed and "maximum context length" in live.said
    live = check.prune(everybody).live
    assert not live.passed and "cut what the person said" in live.said
    tail_only = check.prune(lambda m, *s: m | {"content": m["content"][-900:]} if m["role"] == "tool" else m).live
    assert not tail_only.passed and "which machine" in tail_only.said


# --- the cut ----------------------------------------------------------------------------------------------------------

right_cut = check.cut.solution


def by_compactor(view, retain, tokens):
    """The rule of the module, on hand-made nodes."""
    nodes, at, left = list(enumerate(view)), len(view), retain
    while at > 0:
        at, left = at - 1, left - tokens(view[at - 1])
        if left <= 0:
            break
    assert set(_edges(nodes)) >= {0, len(nodes)}
    return len(_range(nodes, 0, at))


@pytest.mark.parametrize("answer", [right_cut, by_compactor])
def test_a_right_cut_passes(answer):
    report = check.cut(answer)
    assert report.passed, report
    assert report.live.said == "All 9 modules are ported."


def raw(view, retain, tokens):
    cut, kept = len(view), 0
    while cut and (cut == len(view) or kept < retain):
        cut -= 1
        kept += tokens(view[cut])
    return cut


def moves_right(view, retain, tokens):
    cut = raw(view, retain, tokens)
    while cut < len(view) and view[cut]["role"] == "tool":
        cut += 1
    return cut


def one_step(view, retain, tokens):
    cut = raw(view, retain, tokens)
    return cut - 1 if 0 < cut < len(view) and view[cut]["role"] == "tool" else cut


def keeps_none(view, retain, tokens):
    return len(view) if retain == 0 else right_cut(view, retain, tokens)


def one_too_many(view, retain, tokens):
    return right_cut(view, retain + 1, tokens)


def within_the_budget(view, retain, tokens):
    cut, kept = len(view), 0
    while cut and (cut == len(view) or kept + tokens(view[cut - 1]) <= retain):
        cut -= 1
        kept += tokens(view[cut])
    while 0 < cut < len(view) and view[cut]["role"] == "tool":
        cut -= 1
    return cut


def from_the_front(view, retain, tokens):
    gone = 0
    for at, message in enumerate(view):
        if gone >= retain:
            return min(at, len(view) - 1)
        gone += tokens(message)
    return max(0, len(view) - 1)


def by_count(view, retain, tokens):
    return max(0, len(view) - 1 - retain // 100)


def removes(view, retain, tokens):
    view.reverse()
    return 0


def no_guard(view, retain, tokens):
    cut, kept = len(view) - 1, tokens(view[-1])
    while cut > 0 and kept < retain:
        cut -= 1
        kept += tokens(view[cut])
    while cut > 0 and view[cut]["role"] == "tool":
        cut -= 1
    return cut


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (raw, "Move the cut left, to the call"),
        (moves_right, "its call and the other result stay with it"),
        (one_step, "Both results stay with the reply"),
        (keeps_none, "One message always stays"),
        (one_too_many, "a message more is a message too many"),
        (within_the_budget, "Add up from the end"),
        (from_the_front, "Add up from the end"),
        (by_count, "Add up from the end"),
        (removes, "cutting comes later"),
        (no_guard, "There is nothing to cut: 0"),
        (lambda view, retain, tokens: view, "Return one whole number"),
        (lambda view, retain, tokens: 1 // 0, "There is nothing to cut"),
    ],
)
def test_a_wrong_cut_fails_and_is_told_why(answer, says):
    check_wrong(check.cut, answer, says)


def test_a_torn_pair_and_a_cut_that_keeps_everything_are_the_providers_own_words():
    live = check.cut(raw).live
    assert not live.passed and "must be a response to a preceeding message" in live.said
    live = check.cut(lambda view, retain, tokens: 0).live
    assert not live.passed and "maximum context length" in live.said
    live = check.cut(lambda view, retain, tokens: 1 // 0).live
    assert not live.passed and "ZeroDivisionError" in live.said


@pytest.mark.parametrize("exercise", [check.prune, check.cut])
def test_what_is_no_plain_function_is_refused(exercise):
    async def later(*args):
        return args

    for answer in ("text", later, dict):
        with pytest.raises(AgentLabError, match="plain function"):
            exercise(answer)
    assert [exercise.hint(n).text for n in (1, 2, 3)]
