"""The first exercise of chapter 07: leave out the middle of a long conversation, in whole groups.

The answer is a function of a history and of three numbers of groups: from how many on it acts, and how many stay at the
start and at the end. It returns the shorter history. It is judged by what is sent then: pairs stay whole, one marker
counts what is gone, and the words that the person said last survive.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import pairing
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, groups, tool, user
from agentlab.simulator import Simulator
from agentlab.summary import last_by_person, text_of
from agentlab.tools import Registry

HINTS = (
    say(
        "`messages.groups(history)` gives the groups; each has a `start` and an `end`, positions in the "
        "history. Count and slice groups, then turn the two borders into positions."
    ),
    say(
        "The marker is a message that no person wrote: role user, and an `origin`, for example "
        "`compaction`. Its text says how many groups it stands for."
    ),
    say(
        "Where do the person's last words stand? `summary.last_by_person(messages)` gives the position, or "
        "-1. When there are none in the tail, copy those of the middle into the marker, word for word."
    ),
)


def step(*ids: str, text: str = "done") -> list[Message]:
    """One group: the calls, and a result for each."""
    return [assistant("", *[call(id, "read_file", path="a.py") for id in ids]), *[tool(id, text) for id in ids]]


def steps(count: int) -> list[Message]:
    """So many groups of one call."""
    return [message for number in range(count) for message in step(f"c{number}")]


GO, MORE = user("Port a.py to v2."), user("And leave the comments as they are, please.")
NUDGE = {**user("You have read this file often."), "origin": "watchdog"}
TALK = [user("What is this?"), assistant("A parser."), user("Thanks."), assistant("You are welcome.")]

_PAIR = say("A provider refuses a result without its call, and a call without its results.")
_GROUPS = say("Count groups, not messages: a call with all its results is one.")
_LIMIT = say("Only more than `max_groups` groups are too many.")


@dataclass(frozen=True)
class Case:
    """A history, the three numbers, how many groups have to go, and the words that must be in the marker."""

    name: str
    history: Sequence[Message]
    limits: tuple[int, int, int]
    gone: int
    why: str
    words: str = ""


CASES = (
    Case(say("50 groups"), [GO, *steps(49)], (50, 3, 46), 0, _LIMIT),
    Case(say("51 groups"), [*steps(20), GO, *steps(30)], (50, 3, 46), 2, _LIMIT),
    Case(say("a batch of three is one group"), [GO, *step("a", "b", "c") * 9], (6, 2, 3), 5, _GROUPS),
    Case(say("many messages, few groups"), [GO, *step("a", "b", "c", "d") * 5], (6, 2, 3), 0, _GROUPS),
    Case(say("the person speaks in the middle"), [*TALK, MORE, *steps(12)], (8, 2, 5), 10, "", str(MORE["content"])),
    Case(
        say("a nudge behind the person"),
        [GO, *steps(3), MORE, *steps(2), NUDGE, *steps(8)],
        (8, 1, 4),
        11,
        "",
        str(MORE["content"]),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(say("Give check.snip a plain function, without brackets: check.snip(my_snip)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    limit, head, tail = case.limits
    fed = f"{_count(case.history)}, max_groups={limit}, head={head}, tail={tail}"
    return finding(case, answer, lambda: _wrong(case, answer), fed=fed, instead=say("a history"), why=case.why)


def _wrong(case: Case, answer: Any) -> Difference | None:
    history = list(case.history)
    given = copy.deepcopy(history)
    out = answer(given, *case.limits)
    if given != history:
        return Difference(
            say("the history"), say("as it was"), say("changed"), say("The history is the record: build a new list.")
        )
    if not isinstance(out, list) or not all(isinstance(message, dict) for message in out):
        return Difference(
            say("what it returns"), say("a list of messages"), short(out), say("It is the next request's history.")
        )
    if problems := pairing.problems(out):
        return Difference(say("the messages"), say("every call with its results"), problems[0].sentence, _PAIR)
    if not case.gone:
        if out == history:
            return None
        return Difference(say("the messages"), say("all {count}", count=len(history)), _count(out), case.why)
    cut, (_, head, tail) = groups(history), case.limits
    front, back = history[: cut[head].start], history[cut[-tail].start :]
    if out[: len(front)] != front or out[len(out) - len(back) :] != back or len(out) <= len(front) + len(back):
        wanted = say("the first {head} groups, one marker, the last {tail} groups", head=head, tail=tail)
        return Difference(say("the messages"), wanted, _count(out), case.why or _GROUPS)
    return _in_marker(case, out[len(front) : len(out) - len(back)])


def _count(out: Sequence[Message]) -> str:
    return say("{groups} groups in {messages} messages", groups=len(groups(out)), messages=len(out))


def _in_marker(case: Case, between: Sequence[Message]) -> Difference | None:
    """What is wrong with what stands between the two ends."""
    marker = between[0]
    where = say("between the two ends")
    if len(between) != 1:
        why = say("One line stands for all that is left out. {why}", why=case.why or _GROUPS)
        return Difference(where, say("one message"), say("{count} messages", count=len(between)), why)
    if marker.get("role") != "user" or not marker.get("origin"):
        why = say(
            "A system message stands only first, and without an `origin` the program takes it for the person's words."
        )
        return Difference(where, say("role user, with an origin"), short(marker), why)
    text = text_of(marker.get("content"))
    if case.words and case.words not in text:
        why = say(
            "That is what the person wants, and it stands nowhere else. A message with an `origin` is no person's."
        )
        return Difference(say("the marker"), say("the words {words!r}", words=case.words), short(text), why)
    if str(case.gone) not in re.findall(r"\d+", text):
        why = say("So the model knows how much is missing. Count the groups that are left out.")
        return Difference(say("the marker"), say("the number {gone}", gone=case.gone), short(text), why)
    return None


LIMITS = (16, 3, 10)
WINDOW = 600
TASK = "Rename getUser to findUser in all modules, and keep the old name as an alias."
RIGHT = f"Done, as you asked: {TASK}"
LOST = "The modules look fine. What is it that you want me to do?"


def _story(request: dict[str, Any]) -> Message | str:
    """One last look, and a report on the task: in the words that can be seen, if there are any."""
    messages = request["messages"]
    if messages[-1].get("tool_call_id") != "look":
        return assistant("A last look.", call("look", "read_file", path="users.py"))
    said = " ".join(text_of(message.get("content")) for message in messages if message["role"] == "user")
    return RIGHT if TASK in said else LOST


def turn(answer: Any) -> Turn:
    """The end of a task of many steps, of which every request shows what the answer leaves."""
    return _start(answer, [])


def _start(answer: Any, sent: list[list[Message]]) -> Turn:
    registry = Registry()

    @registry.tool(read_only=True)
    def read_file(path: str) -> str:
        """Read one file."""
        return f"{path}: def findUser(id): ..."

    def shorten(history: list[Message]) -> list[Message]:
        out = answer(copy.deepcopy(history), *LIMITS)
        sent.append(out if isinstance(out, list) else history)
        return sent[-1]

    done = [message for number in range(9) for message in step(f"a{number}", f"b{number}", text="renamed")]
    history = [*TALK, user(TASK), *done, *done]
    client = Simulator(_story, context_window=WINDOW).client()
    return run_turn(history, client, registry, hooks=Hooks(before_request=shorten))


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    sent: list[list[Message]] = []
    return run_live(_start(answer, sent), sent, answer, right=RIGHT)


def solution(history: list[Message], max_groups: int = 50, head: int = 3, tail: int = 46) -> list[Message]:
    cut = groups(history)
    if len(cut) <= max_groups:
        return list(history)
    start, end = cut[head].start, cut[len(cut) - tail].start
    middle = history[start:end]
    text = f"[{len(cut) - head - tail} message groups left out here]"
    if last_by_person(history[end:]) < 0 and (at := last_by_person(middle)) >= 0:
        text += f"\nThe person's last words among them:\n{text_of(middle[at]['content'])}"
    marker = {"role": "user", "content": text, "origin": "compaction"}
    return [*history[:start], marker, *history[end:]]


snip = Exercise("snip", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
