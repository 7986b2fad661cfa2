"""The second exercise of chapter 07: a note in the place of every old tool result.

The answer is a function of a history and of how many exchanges stay whole. It is judged by what the model can still do
with the result: every call has its answer, a saved output is still one `read_file` away, and what was replaced once is
the same bytes in every later request.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import pairing
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.layers import GO, MORE, step
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError, ToolError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, groups, tool, user
from agentlab.simulator import Simulator
from agentlab.summary import text_of
from agentlab.tools import Registry

HINTS = (
    say(
        "An exchange is a group whose first message has `tool_calls`. Find the exchanges with "
        "`messages.groups`, and leave the last `keep` of them out; `exchanges[:-keep]` is wrong for 0."
    ),
    say(
        "Build new messages: `{**message, 'content': note}`. So ids and all other keys stay, and the "
        "history is untouched."
    ),
    say(
        "A result with an `output_path` was saved. Its last line says how to read it: put that line below the note. And"
        " leave a result alone whose `origin` is `repair`: it says that the call never ran."
    ),
)

LONG = "\n".join(f"line {n}: nothing to see" for n in range(40))
PATH = "artifacts/tool-result-7.txt"
POINTER = f'[All 41000 characters, 900 lines, are saved. Read on with read_file("{PATH}", offset, limit).]'
SAVED = {**tool("s", f"{LONG}\n{POINTER}"), "output_path": PATH}
STOPPED = {**tool("x", "Stop was pressed before this call began. It did not run."), "origin": "repair"}


def old(*ids: str) -> list[Message]:
    """An exchange whose results are long."""
    return step(*ids, text=LONG)


def exchange(result: Message) -> list[Message]:
    return [assistant("", call(result["tool_call_id"], "run_tests")), result]


@dataclass(frozen=True)
class Case:
    """A history, how many exchanges stay, and the positions of the results that have to become notes."""

    name: str
    history: Sequence[Message]
    keep: int
    noted: tuple[int, ...]
    why: str


_PAIR = say("A call without its result is refused by every provider. Replace the text, and leave the message.")
_KEEP = say("The last `keep` exchanges are what the model is working with.")
_EXCHANGE = say("Count exchanges: a batch is one, and what people say is none.")
_POINTER = say("The output is in a file. Without the line that names it, the model must run the command again.")

CASES = (
    Case(say("three exchanges"), [GO, *old("a"), *old("b"), *old("c")], 3, (), _KEEP),
    Case(say("four exchanges"), [GO, *old("a"), *old("b"), *old("c"), *old("d")], 3, (2,), _KEEP),
    Case(say("a batch is one exchange"), [GO, *old("a", "b"), *old("c"), *old("d", "e")], 2, (2, 3), _EXCHANGE),
    Case(
        say("talk in between"),
        [*old("a"), assistant("Hm."), MORE, *old("b"), assistant("Done."), GO],
        1,
        (1,),
        _EXCHANGE,
    ),
    Case(say("a saved result"), [GO, *exchange(SAVED), *old("b"), *old("c")], 1, (2, 4), _POINTER),
    Case(
        say("a call that never ran"),
        [GO, *exchange(STOPPED), *old("b"), *old("c")],
        1,
        (4,),
        say("A note would claim that it ran. Its `origin` says that it did not."),
    ),
    Case(say("keep none"), [GO, *old("a"), *old("b")], 0, (2, 4), say("With keep=0 every result becomes a note.")),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(say("Give check.micro a plain function, without brackets: check.micro(my_micro)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    kinds = {"tool": say("result"), "user": say("person")}
    told = [say("call") if m.get("tool_calls") else kinds.get(m["role"], say("answer")) for m in case.history]
    fed = f"keep={case.keep}: {', '.join(told)}"
    return finding(case, answer, lambda: _wrong(case, answer), fed=fed, instead=say("a history"), why=case.why)


def _wrong(case: Case, answer: Any) -> Difference | None:
    history = list(case.history)
    given = copy.deepcopy(history)
    out = answer(given, case.keep)
    if given != history:
        return Difference(
            say("the history"), say("as it was"), say("changed"), say("The history is the record: build new messages.")
        )
    if not isinstance(out, list) or not all(isinstance(message, dict) for message in out):
        return Difference(
            say("what it returns"), say("a list of messages"), short(out), say("It is the next request's history.")
        )
    if len(out) != len(history) or pairing.problems(out):
        problems = len(pairing.problems(out))
        got = say("{count} messages, {problems} pairing problems", count=len(out), problems=problems)
        return Difference(say("the messages"), f"{len(history)}", got, _PAIR)
    for at, (message, after) in enumerate(zip(history, out, strict=True)):
        if at in case.noted:
            if found := _in_note(case, at, message, after):
                return found
        elif after != message:
            got = short(text_of(after.get("content")))
            return Difference(f"messages[{at}]", say("as it was"), got, case.why)
    again = answer([*copy.deepcopy(out), *old("z")], case.keep)
    for at in (at for at in case.noted if again[at] != out[at]):
        why = say(
            "What was sent once must be the same bytes in the next request: else the cache is lost from there on."
        )
        return Difference(say("messages[{at}], in the next request", at=at), short(out[at]), short(again[at]), why)
    return None


def _in_note(case: Case, at: int, message: Message, after: Message) -> Difference | None:
    text = text_of(after.get("content"))
    rest = {key: value for key, value in message.items() if key != "content"}
    if {key: value for key, value in after.items() if key != "content"} != rest:
        return Difference(
            f"messages[{at}]",
            say("the same keys: {keys}", keys=short(rest)),
            short(after),
            say("Replace the content only."),
        )
    if LONG in text or len(text) > 250:
        return Difference(f"messages[{at}]", say("a short note"), say("{count} characters", count=len(text)), case.why)
    if message.get("output_path") and POINTER not in text:
        return Difference(f"messages[{at}]", say("the line {pointer}", pointer=POINTER), short(text), _POINTER)
    if not text.strip():
        why = say("A model takes an empty result for a tool that found nothing. Say that something stood here.")
        return Difference(f"messages[{at}]", say("a note"), say("an empty text"), why)
    return None


KEEP, WINDOW = 2, 1_900
FAILED = "test_leap_year: 366 != 365"
QUESTION = "Which test failed when you ran them for the first time?"
RIGHT = f"In the first run it was {FAILED}."
LOST = "I ran the tests and cannot see any more what failed. Run again, they pass: it is mended."


def _story(request: dict[str, Any]) -> Message | str:
    """Read the file of the first run, if any message still names it, and answer from it."""
    seen = [text_of(message.get("content")) for message in request["messages"]]
    if any(FAILED in text for text in seen):
        return RIGHT
    asked = [text_of(m.get("content")) for m in request["messages"]].index(QUESTION)
    if asked < len(seen) - 1:
        return f"I was sent to a file, and this is what I got: {short(seen[-1])}"
    return assistant("", call("read", "read_file", path=PATH)) if any(PATH in text for text in seen) else LOST


def turn(answer: Any) -> Turn:
    """A question about the first result of a long task: it was saved, and the answer stands in its file."""
    return _start(answer, [])


def _start(answer: Any, sent: list[list[Message]]) -> Turn:
    registry = Registry()

    @registry.tool(read_only=True)
    def read_file(path: str) -> str:
        """Read one file."""
        if path != PATH:
            raise ToolError(f"There is no {path}.")
        return f"ran 120 tests\n{FAILED}\n1 failed, 119 passed"

    def shorten(history: list[Message]) -> list[Message]:
        out = answer(copy.deepcopy(history), KEEP)
        sent.append(out if isinstance(out, list) else history)
        return sent[-1]

    work = [message for number in range(7) for message in old(f"c{number}")]
    history = [user("Make the tests pass."), *exchange(SAVED), *work, assistant("They pass."), user(QUESTION)]
    client = Simulator(_story, context_window=WINDOW).client()
    return run_turn(history, client, registry, hooks=Hooks(before_request=shorten))


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    sent: list[list[Message]] = []
    return run_live(_start(answer, sent), sent, answer, right=RIGHT)


def solution(history: list[Message], keep: int = 3) -> list[Message]:
    out = list(history)
    exchanges = [group for group in groups(history) if group.messages[0].get("tool_calls")]
    for group in exchanges[: max(0, len(exchanges) - keep)]:
        for at in range(group.start + 1, group.end):
            message = history[at]
            if message.get("origin") == "repair":
                continue
            note = "[An older tool result stood here.]"
            if message.get("output_path"):
                note += "\n" + message["content"].splitlines()[-1]
            out[at] = {**message, "content": note}
    return out


micro = Exercise("micro", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
