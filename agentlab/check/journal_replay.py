"""The third exercise of chapter 08: replay. The answer is a function of events that gives `(meta, messages)`.

`meta` is the first record's data, with what `config` changed; `messages` is what the model saw last. Torn pairs are not
this function's business: the loop mends them before it sends. It is judged on logs that hold one more kind of event
each, and then resumes a session that was killed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference, finding
from agentlab.check.journal import ended, read_back, said, summed
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.journal import Event
from agentlab.language import say
from agentlab.loop import Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.provider import ChatClient
from agentlab.replay import replay as reference
from agentlab.simulator import Simulator
from agentlab.tools import Registry

HINTS = (
    say(
        "Begin with a loop over the events and a branch for each type. A type that you do not know is skipped: a newer"
        " program may have written it."
    ),
    say(
        "A rewind withdraws everything that is numbered above `to`, whatever it is: messages, "
        "replacements, config. So collect the events first, and on a rewind keep those with event['seq'] "
        "<= event['to']. Work them out afterwards."
    ),
    say(
        "config: none of the model's old settings must be left, whatever they are called; start from "
        "{'title': ...} only. In these logs `title` is the one thing in meta that is not a model's "
        "setting. replace: find the places of start and end among the numbers of the view, as in the first "
        "exercise."
    ),
)

META: Event = {
    "seq": 1,
    "type": "session_meta",
    "meta": {"model": "small", "base_url": "http://small/v1", "temperature": 0, "title": "doors"},
}
LARGE = {"model": "large"}


@dataclass(frozen=True)
class Case:
    """Logs of one kind, each tried, and what to look at when the answer differs."""

    name: str
    logs: Sequence[Sequence[Event]]
    why: str


def _case(name: str, *logs: Sequence[Event], why: str) -> Case:
    return Case(name, [(META, *log) for log in logs], why)


def _config(seq: int, **settings: Any) -> Event:
    return {"seq": seq, "type": "config", "config": settings}


def _rewind(seq: int, to: int) -> Event:
    return {"seq": seq, "type": "rewind", "to": to}


TALK = [said(number) for number in range(2, 8)]
BACK = say("What a rewind withdraws is gone for good, whatever it is, and what comes later counts again.")
WHOLE = say("A model's settings are replaced whole: a merged base_url would send the requests to the old model's host.")

CASES = (
    _case(say("messages"), TALK, [], why=say("A message goes to the end. In a new session there is none.")),
    _case(
        say("a broken line"),
        [*TALK[:2], {"type": "broken", "line": 4}, *TALK[3:]],
        why=say("A broken line costs itself."),
    ),
    _case(
        say("an event of an unknown type"),
        [*TALK[:2], {"seq": 4, "type": "mood", "mood": "calm"}, *TALK[3:]],
        why=say("A newer program wrote this. Skip it, and go on."),
    ),
    _case(
        say("usage and states of calls"),
        [*TALK, {"seq": 8, "type": "usage", "usage": {"prompt_tokens": 9}}],
        [*TALK, {"seq": 8, "type": "tool_call", "record": {"id": "c", "status": "running"}}],
        why=say("These are for bills and for resuming; the model does not see them."),
    ),
    _case(
        say("a replacement"),
        [*TALK, summed(8, 3, 5), said(9)],
        [*TALK, summed(8, 2, 4), said(9), summed(10, 8, 5), said(11)],
        why=say("It stands at the place of the first of its range, and is known by the number of its event."),
    ),
    _case(say("a rewind"), [*TALK, _rewind(8, 4), said(9)], [*TALK, _rewind(8, 1)], why=BACK),
    _case(say("two rewinds"), [*TALK, _rewind(8, 5), said(9), said(10), _rewind(11, 9), said(12)], why=BACK),
    _case(
        say("a rewind and a replacement"),
        [*TALK, summed(8, 2, 5), said(9), _rewind(10, 6)],
        [*TALK, summed(8, 2, 5), said(9), _rewind(10, 8), said(11)],
        why=BACK,
    ),
    _case(say("another model"), [*TALK[:2], _config(4, **LARGE), *TALK[3:]], why=WHOLE),
    _case(
        say("the same model, another setting"),
        [*TALK, _config(8, model="small", temperature=1)],
        [*TALK, _config(8, temperature=1)],
        why=say("Whole is whole: what the event does not carry is gone, the title apart."),
    ),
    _case(say("another model, and back by a rewind"), [*TALK, _config(8, **LARGE), said(9), _rewind(10, 7)], why=BACK),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer) or inspect.isclass(answer):
        raise AgentLabError(say("Give check.replay a plain function, without brackets: check.replay(my_replay)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    log = case.logs[0]

    def run() -> Difference | None:
        nonlocal log
        for log in case.logs:
            if wrong := _wrong(log, answer):
                return wrong
        return None

    found = finding(case, answer, run, fed="", instead=say("meta and messages"), why=case.why)
    return found if found.passed else dataclasses.replace(found, fed=", ".join(map(_told, log)))


def _told(event: Event) -> str:
    """One event in a few words; a message by its number alone."""
    if event["type"] == "message":
        return str(event["seq"])
    rest = {name: value for name, value in event.items() if name not in ("seq", "type", "message", "meta", "node")}
    words = f"{event.get('seq', '')} {event['type']}".strip()
    return f"{words} {jsonio.dumps(rest)}" if rest else words


def _wrong(log: Sequence[Event], answer: Any) -> Difference | None:
    given = copy.deepcopy(list(log))
    got = answer(given)
    if given != list(log):
        return Difference(
            say("what it was given"), say("unchanged"), say("changed"), say("Change no event, and not the meta in it.")
        )
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Difference(say("what it returns"), "(meta, messages)", short(got), say("Return both, in this order."))
    meta, messages = got
    session = reference(log)
    wanted = [message for _, message in session.nodes]
    if messages != wanted:
        return Difference("messages", _texts(wanted), _texts(messages))
    return None if meta == session.meta else Difference("meta", short(session.meta), short(meta))


def _texts(messages: Any) -> str:
    """The texts of messages, or what stands in their place."""
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return ", ".join(str(message.get("content")) for message in messages) or say("none")
    return short(messages)


RIGHT = "This is large. Door 7 has the code 4711; I look at the door again."


def _story(request: dict[str, Any]) -> str:
    """Say who answers, and what of the session can be seen."""
    texts = [str(message["content"]) for message in request["messages"]]
    if request["model"] != "large":
        return f"This is {request['model']}. The session was handed over to large before it broke off."
    if any("4712" in text for text in texts):
        return "This is large. I see a code that was withdrawn, 4712, and do not know which one to take."
    if not any("4711" in text for text in texts):
        return "This is large. I see no code of a door."
    if not any("interrupted" in text for text in texts):
        return "This is large. Door 7 has the code 4711, and I see no call that broke off."
    return RIGHT


def _killed() -> list[Event]:
    """A session with a bad line, a rewind and another model, killed while a tool was running."""
    look = assistant("I try it.", call("call_1", "open_door", door=7))
    return read_back(
        [
            {"type": "message", "message": user("Door 6 has the code 17.")},
            {"type": "message", "message": user("Door 7 has the code 4711.")},
            {"type": "message", "message": user("No, it is 4712.")},
            {"type": "message", "message": assistant("Noted: 4712.")},
            {"type": "rewind", "to": 3},
            {"type": "config", "config": LARGE},
            {"type": "message", "message": user("Open door 7.")},
            {"type": "message", "message": look},
            {"type": "tool_call", "record": {"message": 9, "id": "call_1", "name": "open_door", "status": "running"}},
        ],
        broken=[2],
        model="small",
    )


def turn(answer: Any) -> Turn:
    """The session goes on: with the model that is recorded in it, and with what the answer makes of its events."""
    meta, messages = answer(_killed())
    client = ChatClient(
        base_url="http://simulator/v1", api_key="offline", model=meta["model"], transport=Simulator(_story).transport()
    )
    return run_turn([*messages, user("Where were we?")], client, Registry())


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    return ended(lambda: turn(answer), answer, right=RIGHT)


def solution(events: list[Event]) -> tuple[dict[str, Any], list[Message]]:
    kept: list[Event] = []
    for event in events:
        if event["type"] == "rewind":
            kept = [earlier for earlier in kept if earlier["seq"] <= event["to"]]
        elif event["type"] in ("session_meta", "message", "replace", "config"):
            kept.append(event)

    meta: dict[str, Any] = {}
    view: list[tuple[int, Message]] = []
    for event in kept:
        if event["type"] == "session_meta":
            meta = dict(event["meta"])
        elif event["type"] == "message":
            view.append((event["seq"], event["message"]))
        elif event["type"] == "config":
            meta = {name: value for name, value in meta.items() if name == "title"} | event["config"]
        else:
            numbers = [number for number, _ in view]
            first, last = numbers.index(event["start"]), numbers.index(event["end"])
            view[first : last + 1] = [(event["seq"], event["node"])]
    return meta, [message for _, message in view]


replay = Exercise("replay", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
