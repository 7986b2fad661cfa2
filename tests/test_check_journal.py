"""The checkers of chapter 08: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import pytest

from agentlab import check, pairing, replay
from agentlab.check.journal_chain import SESSION
from agentlab.errors import AgentLabError


def failed(report):
    """The cases that failed. There is at least one, and the live loop has noticed, or need not."""
    found = [f for f in report.findings if not f.passed]
    assert found, "every case passed"
    return found


def check_wrong(exercise, answer, says):
    found = failed(exercise(answer))
    assert any(says in f.why for f in found), [f.why for f in found]
    assert all(f.fed and f.expected for f in found)


# --- the event --------------------------------------------------------------------------------------------------------

Right = check.compacted_event.solution


class Logs(Right):
    """The rule, by way of the module's own replay on hand-made events."""

    def apply(self, view, event):
        numbers = {number for number, _ in view}
        if not {event["start"], event["end"]} <= numbers:
            return view
        at = {number: place for place, (number, _) in enumerate(view, 1)}
        events = [{"seq": place, "type": "message", "message": message} for place, (_, message) in enumerate(view, 1)]
        events.append({**event, "seq": len(view) + 1, "start": at[event["start"]], "end": at[event["end"]]})
        back = {place: number for number, place in at.items()} | {len(view) + 1: event["seq"]}
        return [(back[place], message) for place, message in replay.replay(events).nodes]


@pytest.mark.parametrize("answer", [Right, Logs])
def test_a_right_event_and_rule_pass(answer):
    report = check.compacted_event(answer)
    assert report.passed, report
    assert report.live.said == "Door 7 has the code 4711, door 9 the code 2290."


class Positions(Right):
    """The seed's: list positions."""

    def event(self, view, keep, summary):
        node = {"role": "user", "content": summary}
        return {"type": "replace", "start": 0, "end": len(view) - keep - 1, "node": node}

    def apply(self, view, event):
        return [*view[: event["start"]], (event["seq"], event["node"]), *view[event["end"] + 1 :]]


class BySize(Right):
    def apply(self, view, event):
        front = [node for node in view if node[0] < event["start"]]
        behind = [node for node in view if node[0] > event["end"]]
        return [*front, (event["seq"], event["node"]), *behind]


class KeepsNoneWrong(Right):
    def event(self, view, keep, summary):
        gone = view[:-keep]
        node = {"role": "user", "content": summary}
        return {"type": "replace", "start": gone[0][0], "end": gone[-1][0], "node": node} if gone else None


class NeverNone(Right):
    def event(self, view, keep, summary):
        node = {"role": "user", "content": summary}
        return {"type": "replace", "start": view[0][0], "end": view[len(view) - keep - 1][0], "node": node}


class EndNotIncluded(Right):
    def apply(self, view, event):
        numbers = [number for number, _ in view]
        if event["start"] not in numbers or event["end"] not in numbers:
            return view
        first, last = numbers.index(event["start"]), numbers.index(event["end"])
        return [*view[:first], (event["seq"], event["node"]), *view[last:]]


class AtTheEnd(Right):
    def apply(self, view, event):
        whole = super().apply(view, event)
        return [node for node in whole if node[0] != event["seq"]] + [n for n in whole if n[0] == event["seq"]]


class KeepsTheNumber(Right):
    def apply(self, view, event):
        return [(event["start"] if n == event["seq"] else n, message) for n, message in super().apply(view, event)]


class ChangesTheView(Right):
    def apply(self, view, event):
        view[:] = super().apply(view, event)
        return view


class AnotherType(Right):
    def event(self, view, keep, summary):
        return {"type": "compacted", "record": {"fromIndex": 0, "toIndex": len(view) - keep - 1, "summary": summary}}


class NoSummary(Right):
    def event(self, view, keep, summary):
        event = super().event(view, keep, summary)
        return event and {**event, "node": {"role": "system", "content": summary}}


class Raises(Right):
    def apply(self, view, event):
        first = next(at for at, (number, _) in enumerate(view) if number == event["start"])
        last = next(at for at, (number, _) in enumerate(view) if number == event["end"])
        return [*view[:first], (event["seq"], event["node"]), *view[last + 1 :]]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Positions, "The log knows its messages by number"),
        (BySize, "A summary has the number of its event"),
        (KeepsNoneWrong, "view[:-0] is empty"),
        (NeverNone, "nothing is to be logged: None"),
        (EndNotIncluded, "Both ends belong to the range"),
        (AtTheEnd, "takes the place of the first one"),
        (KeepsTheNumber, "The new node has a number, too"),
        (ChangesTheView, "the old one is still in use"),
        (AnotherType, "The log takes {'type': 'replace'"),
        (NoSummary, "a message that a provider takes"),
        (Raises, "the view stays as it is"),
    ],
)
def test_a_wrong_event_or_rule_fails_and_is_told_why(answer, says):
    check_wrong(check.compacted_event, answer, says)


def test_positions_lose_what_was_to_be_kept_and_an_overflow_is_the_providers_own_word():
    live = check.compacted_event(Positions).live
    assert not live.passed and "the code of door 9, is gone" in live.said

    class Nothing(Right):
        def apply(self, view, event):
            return view

    live = check.compacted_event(Nothing).live
    assert not live.passed and "maximum context length" in live.said
    live = check.compacted_event(type("Broken", (Right,), {"apply": lambda self, view, event: 1 // 0})).live
    assert not live.passed and "ZeroDivisionError" in live.said


# --- the broken chain -------------------------------------------------------------------------------------------------


def drops_orphans(messages):
    return pairing.repair(messages, orphans="drop").history


@pytest.mark.parametrize(
    "answer", [check.broken_chain.solution, lambda messages: pairing.repair(messages).history, drops_orphans]
)
def test_a_right_chain_passes(answer):
    report = check.broken_chain(answer)
    assert report.passed, report
    assert report.live.said == "Invoice 17 has been paid once."


def trims_by_id(messages):
    calls = {each["id"] for message in messages for each in message.get("tool_calls", [])}
    return [message for message in messages if message["role"] != "tool" or message["tool_call_id"] in calls]


def trims_both(messages):
    """Calls without a result go, too."""
    answered = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    whole = []
    for message in trims_by_id(messages):
        if "tool_calls" in message:
            left = [each for each in message["tool_calls"] if each["id"] in answered]
            message = {key: value for key, value in message.items() if key != "tool_calls"}
            if left:
                message["tool_calls"] = left
            elif not message["content"]:
                continue
        whole.append(message)
    return whole


def cuts_everything_behind(messages):
    problems = pairing.problems(messages)
    return messages[: problems[0].index] if problems else messages


def drops_calls(messages):
    """Pairs that are torn go whole."""
    history = pairing.repair(messages).history
    notes = {m["tool_call_id"] for m in history if m["role"] == "tool" and m.get("origin") == "repair"}
    left = [m for m in history if not (m["role"] == "tool" and m.get("origin") == "repair")]
    return [m for m in left if not any(each["id"] in notes for each in m.get("tool_calls", []))]


def note_at_the_end(messages):
    history = pairing.repair(messages).history
    notes = [m for m in history if m["role"] == "tool" and m.get("origin") == "repair"]
    return [m for m in history if m not in notes] + notes


def borrows(messages):
    """A lost result is taken from another call."""
    real = [m["content"] for m in messages if m["role"] == "tool"]
    return [
        {**m, "content": real[-1]} if m["role"] == "tool" and m.get("origin") == "repair" and real else m
        for m in pairing.repair(messages).history
    ]


def empty_note(messages):
    history = pairing.repair(messages).history
    return [{**m, "content": ""} if m["role"] == "tool" and m.get("origin") == "repair" else m for m in history]


def forgets_people(messages):
    return [m for m in pairing.repair(messages).history if m["role"] != "user"]


def in_place(messages):
    messages[:] = pairing.repair(messages).history
    return messages


def always_new(messages):
    return [{**message, "content": message["content"].strip() + " "} for message in messages]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (trims_by_id, "The call may have run"),
        (trims_by_id, "A provider refuses a result without a call"),
        (trims_both, "A model that does not see it would do it again"),
        (cuts_everything_behind, "its line can be read: keep it"),
        (drops_calls, "This call may have run|its line can be read"),
        (note_at_the_end, "The call may have run"),
        (borrows, "borrow no other call's result"),
        (empty_note, "say that"),
        (forgets_people, "A sound history stays exactly as it is"),
        (in_place, "the log stays"),
        (always_new, "A sound history stays exactly as it is"),
        (lambda messages: None, "Return the messages to send"),
        (lambda messages: 1 // 0, ""),
    ],
)
def test_a_wrong_chain_fails_and_is_told_why(answer, says):
    assert any(part in f.why for part in says.split("|") for f in failed(check.broken_chain(answer)))


def test_a_torn_chain_is_refused_and_a_trimmed_call_pays_twice():
    live = check.broken_chain(lambda messages: messages).live
    assert not live.passed and "The provider answered 400" in live.said
    assert "Invoice 17 has been paid 2 times" in check.broken_chain(trims_both).live.said
    assert "ZeroDivisionError" in check.broken_chain(lambda messages: 1 // 0).live.said


def test_the_session_of_the_chain_is_sound():
    assert not pairing.problems(list(SESSION))


# --- replay -----------------------------------------------------------------------------------------------------------


def the_modules_own(events):
    session = replay.replay(events)
    return session.meta, [message for _, message in session.nodes]


@pytest.mark.parametrize("answer", [check.replay.solution, the_modules_own])
def test_a_right_replay_passes(answer):
    report = check.replay(answer)
    assert report.passed, report
    assert report.live.said == "This is large. Door 7 has the code 4711; I look at the door again."


def without(*types):
    """The right replay of a log without these events."""
    return lambda events: check.replay.solution([event for event in events if event["type"] not in types])


def refuses_unknown(events):
    known = ("session_meta", "message", "replace", "rewind", "config", "broken", "usage", "tool_call")
    if any(event["type"] not in known for event in events):
        raise ValueError("unknown")
    return check.replay.solution(events)


def ends_at_a_broken_line(events):
    at = next((at for at, event in enumerate(events) if event["type"] == "broken"), len(events))
    return check.replay.solution(events[:at])


def merges_config(events):
    meta, messages = check.replay.solution(events)
    return {**events[0]["meta"], **meta}, messages


def keeps_a_list_of_settings(events):
    """Takes out what it knows by name, and only when another model comes."""
    meta, messages = check.replay.solution(events)
    missing = {name: value for name, value in events[0]["meta"].items() if name not in meta}
    return ({**missing, **meta} if meta.get("model") != "large" else meta), messages


def drops_the_title(events):
    meta, messages = check.replay.solution(events)
    return ({"model": "large"} if meta.get("model") == "large" else meta), messages


def rewinds_messages_only(events):
    """A rewind leaves replacements and config."""
    to = [event["to"] for event in events if event["type"] == "rewind"]
    last = next((at for at, event in enumerate(events) if event["type"] == "rewind"), len(events))
    kept = [
        event
        for at, event in enumerate(events)
        if event["type"] != "message" or not to or at > last or event["seq"] <= to[0]
    ]
    meta, view = {}, []
    for event in kept:
        if event["type"] == "session_meta":
            meta = dict(event["meta"])
        elif event["type"] == "message":
            view.append((event["seq"], event["message"]))
        elif event["type"] == "config":
            meta = {"title": meta["title"], **event["config"]}
        elif event["type"] == "replace":
            inside = [at for at, (number, _) in enumerate(view) if number in (event["start"], event["end"])]
            if inside:
                view[inside[0] : inside[-1] + 1] = [(event["seq"], event["node"])]
    return meta, [message for _, message in view]


def rewinds_by_position(events):
    meta, messages = check.replay.solution([event for event in events if event["type"] != "rewind"])
    to = [event["to"] for event in events if event["type"] == "rewind"]
    return meta, messages[: to[-1]] if to else messages


def rewinds_by_position_of_one(events):
    """As if `to` counted from the end."""
    meta, messages = check.replay.solution(events)
    return meta, messages[1:] if any(event["type"] == "rewind" for event in events) else messages


def counts_usage(events):
    meta, messages = check.replay.solution(events)
    return meta, messages + [{"role": "user", "content": "9"} for event in events if event["type"] == "usage"]


def writes_into_the_meta(events):
    meta, messages = check.replay.solution(events)
    events[0]["meta"].update(meta)
    return meta, messages


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (without("replace"), "at the place of the first of its range, and is known"),
        (without("rewind"), "gone for good"),
        (without("config"), "A model's settings are replaced whole"),
        (refuses_unknown, "A newer program wrote this"),
        (ends_at_a_broken_line, "A broken line costs itself"),
        (merges_config, "would send the requests to the old model's host"),
        (drops_the_title, "A model's settings are replaced whole"),
        (keeps_a_list_of_settings, "Whole is whole"),
        (rewinds_messages_only, "gone for good"),
        (rewinds_by_position, "gone for good"),
        (counts_usage, "the model does not see them"),
        (writes_into_the_meta, "Change no event"),
        (lambda events: check.replay.solution(events)[1], "Return both"),
        (lambda events: 1 // 0, ""),
    ],
)
def test_a_wrong_replay_fails_and_is_told_why(answer, says):
    check_wrong(check.replay, answer, says)


def test_a_wrong_replay_resumes_another_session():
    assert "This is small. The session was handed over" in check.replay(without("config")).live.said
    assert "I see a code that was withdrawn" in check.replay(without("rewind")).live.said
    assert "This is small" in check.replay(ends_at_a_broken_line).live.said
    assert "I see no code" in check.replay(rewinds_by_position_of_one).live.said
    assert "ZeroDivisionError" in check.replay(lambda events: 1 // 0).live.said


# --- all three --------------------------------------------------------------------------------------------------------

ALL = [check.compacted_event, check.broken_chain, check.replay]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_three_hints_and_only_the_right_kind_of_answer(exercise):
    for number in 1, 2, 3:
        assert repr(exercise.hint(number)).startswith(f"Hint {number} of 3: ")
    for answer in (None, "text", Right()):
        with pytest.raises(AgentLabError, match="without brackets"):
            exercise(answer)
