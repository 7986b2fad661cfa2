"""The first exercise of chapter 05: where may a history be cut?

The answer is a function of a history, of how many of the newest messages stay, and of how many characters the pinned
part may have. It returns the index of the first message that stays. It is judged by what the cut does: pairs stay
whole, the person's last words stay, and no more is kept than that takes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import pairing
from agentlab.check.compaction_session import TASK, session
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.interrupt_cases import told
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, calls_of, tool, user
from agentlab.simulator import Simulator
from agentlab.summary import last_by_person, text_of, text_size
from agentlab.tools import Registry

HINTS = (
    say(
        "Three rules, one after the other, and each may only move the cut to the front: keep the newest "
        "messages; keep the person's last words, if that is affordable; keep pairs whole."
    ),
    say(
        "A person wrote a message whose role is user and which has no `origin`. A nudge of the watchdog "
        "and an earlier summary have one. What the pinned part costs is the text from there on: "
        "`summary.text_size(history[anchor:])`."
    ),
    say(
        "A batch may have several results: go to the front for as long as the message at the cut has the "
        "role tool. Do this last, and with `cut > 0`. A cut with only one message in front of it gains "
        "nothing: return 0."
    ),
)


def _step(*ids: str, text: str = "done") -> list[Message]:
    return [assistant("", *[call(id, "read_file", path="a.py") for id in ids]), *[tool(id, text) for id in ids]]


def _steps(count: int, first: int = 1) -> list[Message]:
    return [message for number in range(first, first + count) for message in _step(f"c{number}")]


GO, MORE = user("Port a.py to v2."), user("Leave the comments alone.")
NUDGE = {**user("You have read this file three times."), "origin": "watchdog"}
EARLIER = {**user("[Context compaction] So far: a.py was read."), "origin": "compaction"}
TALK = [user("What is this?"), assistant("A parser."), user("Thanks."), assistant("You are welcome.")]


@dataclass(frozen=True)
class Case:
    """A history, the two limits, and the first message that stays."""

    name: str
    history: Sequence[Message]
    keep_recent: int
    right: int
    why: str
    max_anchor_chars: int = 40_000


_PAIR = say("A result without its call is refused by every provider, and so is a call without its results.")
_WORDS = say("The person's last words went into the part that a summary replaces. A summary tells again, and loses.")
_ORIGIN = say("A message with an `origin` was written by the program. It stood last, and the person's words are lost.")
_LATE = say("All that has to stay would stay with a later cut, too. What is kept for nothing is paid for each time.")

CASES = (
    Case(say("only talk"), [*TALK, *TALK, *TALK], 4, 8, _LATE),
    Case(say("the person's words are far back"), [*TALK, GO, *_steps(6)], 4, 4, _WORDS, text_size([GO, *_steps(6)])),
    Case(say("they stay already"), [*TALK, *_steps(3), GO, *_steps(3)], 9, 8, _LATE),
    Case(say("three results of one batch"), [*TALK, *_step("c1", "c2", "c3"), MORE, *_steps(1)], 4, 4, _PAIR),
    Case(say("a summary and a nudge"), [EARLIER, *TALK, GO, *_steps(2), EARLIER, NUDGE, *_steps(3)], 4, 5, _ORIGIN),
    Case(
        say("too much to pin"), [GO, *_steps(9)], 4, 15, say("A pinned part that fills the window saves nothing."), 100
    ),
    Case(say("one character too far"), [*TALK, GO, *_steps(6)], 4, 13, _LATE, text_size([GO, *_steps(6)]) - 1),
    Case(say("shorter than what stays"), TALK, 8, 0, say("There is nothing to replace: return 0.")),
    Case(say("no message at all"), [], 8, 0, say("There is nothing to replace: return 0.")),
    Case(
        say("one message in front"),
        [GO, *_steps(4), MORE],
        9,
        0,
        say("A summary of one message gains nothing: return 0."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.split_index a plain function, without brackets: check.split_index(my_split).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    listed = " ".join(map(_kind, case.history)) or say("no message")
    fed = f"keep_recent={case.keep_recent}, max_anchor_chars={case.max_anchor_chars}: {listed}"
    return finding(case, answer, lambda: _wrong(case, answer), fed=fed, instead=say("a position"))


def _kind(message: Message) -> str:
    """Its letter, as in pictures, and the origin of what no person wrote."""
    letters = {"user": "U", "assistant": "C" if calls_of(message) else "A", "tool": "R"}
    return f"U({message['origin']})" if message.get("origin") else letters[message["role"]]


def _wrong(case: Case, answer: Any) -> Difference | None:
    given = copy.deepcopy(list(case.history))
    cut = answer(given, case.keep_recent, case.max_anchor_chars)
    if given != list(case.history):
        return Difference(
            say("the history"), say("as it was"), say("changed"), say("Only look: others still use this list.")
        )
    if type(cut) is not int or not 0 <= cut <= len(given):
        return Difference(
            say("what it returns"),
            say("a whole number from 0 to {last}", last=len(given)),
            short(cut),
            say("It is a position."),
        )
    if cut == case.right:
        return None
    expected, got = f"{case.right}: {_message(given, case.right)}", f"{cut}: {_message(given, cut)}"
    return Difference(say("the first message that stays"), expected, got, _reason(case, given, cut))


def _message(history: Sequence[Message], cut: int) -> str:
    return told(history[cut]) if cut < len(history) else say("behind the last message")


def _reason(case: Case, history: Sequence[Message], cut: int) -> str:
    """Why this cut is wrong: the first rule that it breaks."""
    if pairing.problems(history[cut:]):
        return _PAIR
    if len(history) - cut < min(case.keep_recent, len(history)):
        return say(
            "Only {kept} messages stay. The newest results are what the model is working with.",
            kept=len(history) - cut,
        )
    if case.right == 0:
        return case.why
    return _LATE if cut < case.right and case.why in (_WORDS, _ORIGIN) else case.why


KEEP = 7
SUMMARY = "[Context compaction] The user is working on date helpers. The tests were looked at, and files were edited."
RIGHT = f"Done, as you asked: {TASK} All 12 tests pass."
LOST = "The tests pass, and I see a summary about date helpers. What is it that you want me to do?"


def _story(request: dict[str, Any]) -> Message | str:
    """Look at the change once more, and report on the task: in the words that can be seen, if there are any."""
    messages = request["messages"]
    if messages[-1].get("tool_call_id") != "look":
        return assistant("A last look at the change.", call("look", "run_shell", command="git diff --stat"))
    said = [text_of(message.get("content")) for message in messages if message["role"] == "user"]
    return RIGHT if any(TASK in text for text in said) else LOST


def turn(answer: Any) -> Turn:
    """The session goes on, and before every request the answer says where to cut; the summary is a poor one."""
    return _start(answer, [])


def _start(answer: Any, sent: list[list[Message]]) -> Turn:
    registry = Registry()

    @registry.tool(read_only=True)
    def run_shell(command: str) -> str:
        """Run a command."""
        return "2 files changed, 3 insertions(+), 3 deletions(-)"

    def shorten(history: list[Message]) -> list[Message]:
        cut = int(answer(copy.deepcopy(history), KEEP, 40_000))
        sent.append([{**user(SUMMARY), "origin": "compaction"}, *history[cut:]] if cut else history)
        return sent[-1]

    return run_turn(session(), Simulator(_story).client(), registry, hooks=Hooks(before_request=shorten))


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    sent: list[list[Message]] = []
    return run_live(_start(answer, sent), sent, answer, right=RIGHT)


def solution(history: list[Message], keep_recent: int = 8, max_anchor_chars: int = 40_000) -> int:
    cut = max(0, len(history) - keep_recent)
    anchor = last_by_person(history)
    if 0 <= anchor < cut and text_size(history[anchor:]) <= max_anchor_chars:
        cut = anchor
    while 0 < cut < len(history) and history[cut]["role"] == "tool":
        cut -= 1
    return cut if cut > 1 else 0


split_index = Exercise("split_index", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
