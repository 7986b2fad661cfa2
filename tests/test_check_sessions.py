"""The checker of chapter 13: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentlab import check, transcripts
from agentlab.check import sessions
from agentlab.errors import AgentLabError

SAMPLE = Path(__file__).parent.parent / "data/sessions/claude_code_2.1.4_interrupted_tool_use.jsonl"


def failed(report):
    """The first case that failed, a bonus case or not."""
    found = next((f for f in report.findings if not f.passed), None)
    assert found is not None, "every case passed"
    return found


def parts(records):
    """(position, message) of every record that holds one."""
    for at, record in enumerate(records):
        message = record.get("message") if isinstance(record, dict) else None
        if isinstance(message, dict) and message.get("model"):
            yield at, message


def backwards(records):
    """Another right way: from the end, the first usage of every id."""
    seen, found = set(), []
    for at, message in reversed(list(parts(records))):
        key = message.get("id", at)
        if message["model"] != "<synthetic>" and message["usage"] and key not in seen:
            seen.add(key)
            found.append(message["usage"])
    return tuple(found)


def the_modules_own(records, folder):
    """What `transcripts` counts: (prompt, output) of every request, for the records of one file."""
    file = folder / "session.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [(used.usage.prompt, used.usage.output) for used in transcripts.read(file).usages]


def test_right_answers_pass():
    for answer in check.usage_once.solution, backwards:
        report = check.usage_once(answer)
        assert report.passed and all(f.passed for f in report.findings), report
        assert "2 requests, 296 tokens in and 53 out. So says the provider's bill." in report.live.said


def test_the_sample_of_the_checker_is_the_real_file():
    records = [json.loads(line) for line in SAMPLE.read_bytes().split(b"\n") if line]
    keys = "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"
    rows = [(m["id"][-2:], *(m["usage"][key] for key in keys)) for _, m in parts(records)]
    assert tuple(rows) == sessions.SAMPLE


@pytest.mark.parametrize("case", sessions.CASES, ids=lambda case: case.name)
def test_the_cases_agree_with_the_reader_of_the_package(case, tmp_path):
    filler = [{"type": "user", "message": {"role": "user", "content": "Hello."}}]
    records = json.loads(json.dumps([*filler, *case.records]))
    for _, message in parts(records):
        message["content"] = [{"type": "text", "text": "x"}]
    expected = [sessions.read_usage(case.records[at]["message"]["usage"]) for at in case.right]
    assert the_modules_own(records, tmp_path) == [(usage.prompt, usage.output) for usage in expected]


def every_record(records):
    return [message["usage"] for _, message in parts(records) if message["usage"]]


def first_part(records):
    found = {}
    for at, message in parts(records):
        found.setdefault(message.get("id", at), message["usage"])
    return list(found.values())


def neighbours_only(records):
    """Parts are taken together where no other line stands between them."""
    found, before, line = [], None, -2
    for at, message in parts(records):
        key = message.get("id", at)
        if message["usage"]:
            found[len(found) - (key == before and at == line + 1) :] = [message["usage"]]
        before, line = key, at
    return found


def last_reply_only(records):
    """Parts of a reply are taken for neighbours among the replies."""
    found, before = [], None
    for at, message in parts(records):
        key = message.get("id", at)
        found[-1:] = [message["usage"]] if key == before else [*found[-1:], message["usage"]]
        before = key
    return found


def equal_numbers(records):
    return [dict(pair) for pair in {tuple(sorted(usage.items())) for usage in every_record(records)}]


def takes_back(records):
    found = {message.get("id", at): message["usage"] for at, message in parts(records)}
    return [usage or {} for usage in found.values()]


def anything_called_usage(records):
    found = {}
    for at, record in enumerate(records):
        if isinstance(record, dict):
            holders = [record.get("message"), record.get("toolUseResult")]
            for holder in holders:
                if isinstance(holder, dict) and holder.get("usage"):
                    found[holder.get("id", at)] = holder["usage"]
    return list(found.values())


def trusts_every_line(records):
    found = {}
    for at, record in enumerate(records):
        message = record.get("message", {})
        if message.get("usage"):
            found[message.get("id", at)] = message["usage"]
    return list(found.values())


def one_key_for_none(records):
    return list({m.get("id"): m["usage"] for _, m in parts(records) if m["usage"]}.values())


def counts_the_synthetic(records):
    return list({m.get("id", at): m["usage"] for at, m in parts(records) if m["usage"]}.values())


def sums_it_up(records):
    return sum(usage["output_tokens"] for usage in check.usage_once.solution(records))


def adds_the_parts(records):
    found = {}
    for at, message in parts(records):
        if message["usage"]:
            old = found.get(message.get("id", at), {})
            found[message.get("id", at)] = {key: old.get(key, 0) + n for key, n in message["usage"].items()}
    return list(found.values())


def empties_the_list(records):
    found = check.usage_once.solution(records)
    records.clear()
    return found


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (every_record, "only the last one knows"),
        (first_part, "only the last one knows"),
        (neighbours_only, "Neighbours they need not be"),
        (last_reply_only, "not the order of the lines"),
        (equal_numbers, "only the last one knows"),
        (takes_back, "takes nothing back"),
        (anything_called_usage, "the product's note on a tool"),
        (trusts_every_line, "must not cost the whole session"),
        (one_key_for_none, "so each counts"),
        (counts_the_synthetic, "no request was made"),
        (sums_it_up, "Return a list of usages"),
        (adds_the_parts, "only the last one knows"),
        (empties_the_list, "Others still read this list"),
        (lambda records: None, "Return a list of usages"),
        (lambda records: 1 // 0, "One request was made"),
    ],
)
def test_a_wrong_answer_fails_and_is_told_why(answer, says):
    found = failed(check.usage_once(answer))
    assert says in found.why
    assert found.fed and (found.expected or found.got)


def test_a_wrong_count_does_not_agree_with_the_bill():
    live = check.usage_once(every_record).live
    assert not live.passed
    assert "5 requests" in live.said and "The provider's bill says: 2 requests, 296 tokens in and 53 out." in live.said
    early = check.usage_once(first_part).live
    assert not early.passed and "2 requests, 296 tokens in and 2 out" in early.said
    broken = check.usage_once(lambda records: 1 // 0).live
    assert not broken.passed and "ZeroDivisionError" in broken.said


def test_the_bonus_is_not_needed():
    assert check.usage_once(counts_the_synthetic).passed


def test_only_a_function_is_an_answer():
    for answer in (None, [], check.usage_once.solution([])):
        with pytest.raises(AgentLabError, match="without brackets"):
            check.usage_once(answer)


def test_there_are_three_hints():
    for number in 1, 2, 3:
        assert repr(check.usage_once.hint(number)).startswith(f"Hint {number} of 3: ")
