"""The first exercise of chapter 08: the event that says "these messages are a summary now", and its rule on replay.

The answer is a class. `event(view, keep, summary)` makes the event, and `apply(view, event)` is the rule. A view is a
list of `(number, message)` in the order in which the model sees them; the numbers are the log's. The event is judged by
what `agentlab.replay` makes of it, the rule by the view that it gives.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError, ProviderError
from agentlab.journal import Event, Journal
from agentlab.language import say
from agentlab.loop import Turn, run_turn
from agentlab.messages import Message, assistant, user
from agentlab.replay import fault, replay
from agentlab.simulator import Simulator
from agentlab.tools import Registry

HINTS = (
    say(
        "A list position means something else as soon as a line is lost, or a summary stands in the list. "
        "The number of a message never does: name the first and the last one by their numbers, view[0][0] "
        "and so on."
    ),
    say(
        "Look for the places of the two numbers first: numbers = [number for number, _ in view], then"
        " numbers.index(event['start']). Do not compare numbers by size: a summary has a high one and stands in front."
    ),
    say(
        "event: when len(view) <= keep there is nothing to do, so return None; else the last one is "
        "view[len(view) - keep - 1] (beware of view[:-0]). apply: what stands before, then (event['seq'], "
        "event['node']), then what stands behind; when a number is not there, return the view as it is."
    ),
)

View = list[tuple[int, Message]]


@dataclass(frozen=True)
class Case:
    """A log, and either how many messages of its view to keep or the event to apply."""

    name: str
    events: Sequence[Event]
    why: str
    keep: int | None = None
    apply: tuple[int, int] = (0, 0)


def said(seq: int, text: str = "") -> Event:
    """A message of the log: even numbers are the person's."""
    text = text or f"line {seq}"
    return {"seq": seq, "type": "message", "message": assistant(text) if seq % 2 else user(text)}


def summed(seq: int, start: int, end: int) -> Event:
    """A replacement of the log."""
    node = {**user(f"summary {seq}"), "origin": "compaction"}
    return {"seq": seq, "type": "replace", "start": start, "end": end, "node": node}


def _log(*numbers: int) -> list[Event]:
    return [said(number) for number in numbers]


PLAIN = _log(2, 3, 4, 5, 6, 7)
NUMBERS = say(
    "The log knows its messages by number. Positions count other things: what was replaced, and what is lost."
)
HOLE = say("Line 4 is broken, so that the numbers have a hole, and the positions behind it are one too small.")
ORDER = say("A summary has the number of its event, and stands where the replaced messages stood: 8, 6, 7 is in order.")

CASES = (
    Case(say("event: all but the last two"), PLAIN, NUMBERS, keep=2),
    Case(say("event: keep none"), PLAIN, say("view[:-0] is empty, and not the whole."), keep=0),
    Case(
        say("event: nothing to replace"),
        PLAIN,
        say("Nothing is to be replaced, so nothing is to be logged: None."),
        keep=6,
    ),
    Case(say("event: the view begins with a summary"), [*PLAIN, summed(8, 2, 5), *_log(9, 10, 11)], ORDER, keep=2),
    Case(say("event: behind a broken line"), _log(2, 3, 5, 6, 7), HOLE, keep=2),
    Case(
        say("apply: a range in the middle"), PLAIN, say("The summary takes the place of the first one."), apply=(3, 5)
    ),
    Case(say("apply: one message"), PLAIN, say("Both ends belong to the range."), apply=(7, 7)),
    Case(say("apply: the whole view"), PLAIN, say("Then the summary is all there is."), apply=(2, 7)),
    Case(say("apply: behind a broken line"), _log(2, 3, 5, 6, 7), HOLE, apply=(3, 6)),
    Case(
        say("apply: behind a rewind"),
        [*PLAIN, {"seq": 8, "type": "rewind", "to": 4}, *_log(9, 10)],
        NUMBERS,
        apply=(4, 9),
    ),
    Case(say("apply: a summary and more become one"), [*PLAIN, summed(8, 2, 5), *_log(9)], ORDER, apply=(8, 6)),
    Case(say("apply: behind a summary"), [*PLAIN, summed(8, 2, 4), *_log(9)], ORDER, apply=(6, 9)),
    Case(
        say("apply: what was withdrawn"),
        PLAIN,
        say("Nothing of this range is left: the view stays as it is."),
        apply=(20, 23),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no class with the two methods."""
    if not inspect.isclass(answer) or not all(callable(getattr(answer, name, None)) for name in ("event", "apply")):
        raise AgentLabError(
            say(
                "Give check.compacted_event a class with the methods event and apply, without brackets: "
                "check.compacted_event(MyCompaction)."
            )
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    view = replay(case.events).nodes
    seq = case.events[-1]["seq"] + 1
    if case.keep is None:
        event = summed(seq, *case.apply)
        fed = say(
            "view={view}, event: seq={seq}, start={start}, end={end}",
            view=_told(view),
            seq=seq,
            start=event["start"],
            end=event["end"],
        )
        return finding(
            case, answer, lambda: _rule(case, answer, view, event), fed=fed, instead=say("a view"), why=case.why
        )
    fed = say("view={view}, keep={keep}", view=_told(view), keep=case.keep)
    instead = say("an event") if case.keep < len(view) else "None"
    return finding(case, answer, lambda: _event(case, answer, view, seq), fed=fed, instead=instead, why=case.why)


def _event(case: Case, answer: Any, view: View, seq: int) -> Difference | None:
    keep = case.keep or 0
    given = copy.deepcopy(view)
    event = answer().event(given, keep, "They met.")
    if given != view:
        return Difference(
            say("the view"),
            say("unchanged"),
            say("changed"),
            say("The event says what is to come. Change nothing yet."),
        )
    if keep >= len(view):
        return None if event is None else Difference(say("what event returns"), "None", short(event))
    if event is None:
        return Difference(
            say("what event returns"),
            say("an event: {spare} messages can go", spare=len(view) - keep),
            "None",
        )
    if wrong := _unfit(event):
        return wrong
    event = {**jsonio.loads(jsonio.dumps(event)), "seq": seq}
    node = event["node"]
    if "They met." not in str(node.get("content")) or node.get("role") not in ("user", "assistant"):
        why = say("The node is a message that a provider takes, with the summary as its text.")
        return Difference(say("the node"), say("a user message that holds 'They met.'"), short(node), why)
    wanted = [(seq, node), *view[len(view) - keep :]]
    got = replay([*case.events, event]).nodes
    if got == wanted:
        return None
    where = say("the view after start={start}, end={end}", start=event["start"], end=event["end"])
    return Difference(where, _told(wanted), _told(got))


def _unfit(event: Any) -> Difference | None:
    """Why the log would refuse this event."""
    why = say("The log takes {'type': 'replace', 'start': number, 'end': number, 'node': message}.")
    if not isinstance(event, dict) or event.get("type") != "replace":
        return Difference(say("what event returns"), say("a replace event"), short(event), why)
    if lacks := fault(event):
        return Difference(say("the event"), lacks, short(event), why)
    try:
        jsonio.dumps(event)
    except (TypeError, ValueError) as error:
        return Difference(
            say("the event"), say("plain data"), short(str(error)), say("A log holds JSON and nothing else.")
        )
    return None


def _rule(case: Case, answer: Any, view: View, event: Event) -> Difference | None:
    given, told = copy.deepcopy(view), copy.deepcopy(event)
    got = answer().apply(given, told)
    if (given, told) != (view, event):
        return Difference(
            say("what it was given"),
            say("unchanged"),
            say("changed"),
            say("Make a new list: the old one is still in use."),
        )
    pairs = isinstance(got, list) and all(isinstance(node, tuple) and len(node) == 2 for node in got)
    if not pairs:
        return Difference(
            say("what apply returns"), say("a list of (number, message)"), short(got), say("Return the new view.")
        )
    wanted = replay([*case.events, event]).nodes
    if got == wanted:
        return None
    if [message for _, message in got] == [message for _, message in wanted]:
        why = say("The new node has a number, too: that of its event. Later events will name it.")
        return Difference(say("the numbers"), _told(wanted), _told(got), why)
    return Difference(say("the new view"), _told(wanted), _told(got))


def _told(view: Iterable[Any]) -> str:
    """A view by its numbers."""
    return f"[{', '.join(short(str(node[0])) for node in view)}]"


def read_back(events: Iterable[Event], *, broken: Iterable[int], model: str = "offline") -> list[Event]:
    """Write events into a real log, spoil some of its lines as a bad sector would, and read it again."""
    with tempfile.TemporaryDirectory() as folder:
        with Journal.create(folder, {"model": model}, id="door", clock=lambda: 0.0, secrets=()) as journal:
            journal.append_all(events)
        lines = journal.path.read_bytes().split(b"\n")
        for number in broken:
            lines[number - 1] = b"#" * len(lines[number - 1])
        journal.path.write_bytes(b"\n".join(lines))
        return list(journal.events())


WINDOW = 200
CHATTER = " ".join(["and so on"] * 60)
RIGHT = "Door 7 has the code 4711, door 9 the code 2290."


def _story(request: dict[str, Any]) -> str:
    """Look for both codes: one is in the summary, the other in what was kept."""
    texts = [str(message["content"]) for message in request["messages"]]
    if not any("door 7: 4711" in text for text in texts):
        return "I see no summary that names the code of door 7."
    if not any("Door 9 has 2290" in text for text in texts):
        return "I know door 7. What I was told last, the code of door 9, is gone: it was not to be replaced."
    return RIGHT


def _session(answer: Any) -> list[Message]:
    """A session that is compacted twice, loses line 3 to the disk, and is resumed with the answer's rule."""
    made = answer()
    texts = [f"{text} {CHATTER}" for text in ("Door 7 has 4711.", "Noted.", "Who are you?", "An agent.", "Hm.")]
    log: list[Event] = [{"seq": seq, "type": "message", "message": user(text)} for seq, text in enumerate(texts, 2)]
    view: View = [(event["seq"], event["message"]) for event in log]

    def compact(summary: str) -> None:
        nonlocal view
        event = {**made.event(list(view), 2, summary), "seq": log[-1]["seq"] + 1}
        log.append(event)
        view = made.apply(list(view), event)

    compact("door 7: 4711")
    for text in (f"Door 8 is locked. {CHATTER}", f"Door 8 is open. {CHATTER}", "Door 9 has 2290.", "Noted."):
        message = assistant(text) if text == "Noted." else user(text)
        log.append({"seq": log[-1]["seq"] + 1, "type": "message", "message": message})
        view = [*view, (log[-1]["seq"], message)]
    compact("door 7: 4711; door 8: open")

    view = []
    for event in read_back(log, broken=[3]):
        if event["type"] == "message":
            view = [*view, (event["seq"], event["message"])]
        elif event["type"] == "replace":
            view = made.apply(view, event)
    return [message for _, message in view]


def turn(answer: Any) -> Turn:
    """A turn on the resumed session, with a model whose window holds the compacted history and no more."""
    history = [*_session(answer), user("Which codes do doors 7 and 9 have?")]
    return run_turn(history, Simulator(_story, context_window=WINDOW).client(), Registry())


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    return ended(lambda: turn(answer), answer, right=RIGHT)


def ended(start: Callable[[], Turn], answer: Any, *, right: str) -> Live:
    """Start a turn with the reader's code in it, and run it. It passed when its last word is `right`."""
    from agentlab.widgets.sync import run_sync

    running: Turn | None = None
    try:
        running = start()
        run_sync(running.run())
    except ProviderError as error:
        return Live(False, str(error), tuple(running.history) if running else ())
    except Exception as error:
        return Live(False, say("The session broke: {error}", error=blame(error, answer)))
    words = str(running.history[-1].get("content") or "")
    return Live(words == right, words or say("no text"), tuple(running.history))


class Solution:
    def event(self, view: View, keep: int, summary: str) -> Event | None:
        if len(view) <= keep:
            return None
        node = {"role": "user", "content": summary, "origin": "compaction"}
        return {"type": "replace", "start": view[0][0], "end": view[len(view) - keep - 1][0], "node": node}

    def apply(self, view: View, event: Event) -> View:
        numbers = [number for number, _ in view]
        if event["start"] not in numbers or event["end"] not in numbers:
            return view
        first, last = numbers.index(event["start"]), numbers.index(event["end"])
        return [*view[:first], (event["seq"], event["node"]), *view[last + 1 :]]


compacted_event = Exercise("compacted_event", judge=judge, turn=turn, live=live, hints=HINTS, solution=Solution)
