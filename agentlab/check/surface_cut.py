"""The second exercise of chapter 09: where to cut, so that a checkpoint can stand for all that is older.

The answer is a function of a view, a retention budget in tokens, and a function that counts the tokens of one message.
It returns a position: the messages before it become one checkpoint, those from it on stay.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, groups, tool, user
from agentlab.simulator import Simulator
from agentlab.surface import checkpoint_node, tokens_of
from agentlab.tools import Registry

HINTS = (
    say(
        "Start with cut = len(view). Go one to the left, add tokens(view[cut]), and stop as soon as the "
        "sum has reached the budget. The first step is taken in any case: one message always stays."
    ),
    say(
        "Where does the cut stand then? If view[cut] is a tool result, its call stands to the left of the "
        "cut. Go on to the left while this is so."
    ),
    say(
        "while 0 < cut < len(view) and view[cut]['role'] == 'tool': cut -= 1 - a call may have several "
        "results, and they all stand behind it. So the way ends at the call."
    ),
)

Sized = tuple[Message, int]


def _view(*nodes: Sized) -> tuple[Message, ...]:
    """Messages of a given size in tokens: the number stands in them, and `_tokens` reads it."""
    return tuple({**message, "tokens": size} for message, size in nodes)


def _tokens(message: Message) -> int:
    return int(message["tokens"])


ASK: Sized = (user("Why does the build fail?"), 10)
TWO: Sized = (assistant("I look.", call("A", "read_file", path="a"), call("B", "read_file", path="b")), 20)
FIRST: Sized = (tool("A", "..."), 300)
SECOND: Sized = (tool("B", "..."), 400)
FOUND: Sized = (assistant("Found it."), 10)
FIX: Sized = (user("Then fix it."), 10)
EDIT: Sized = (assistant("", call("A", "edit_file", path="a")), 20)
EDITED: Sized = (tool("A", "1 place was changed"), 30)
DONE: Sized = (assistant("It is fixed."), 10)
SESSION = _view(ASK, TWO, FIRST, SECOND, FOUND, FIX, EDIT, EDITED, DONE)


@dataclass(frozen=True)
class Case:
    """A view, and budgets; each is tried."""

    name: str
    view: tuple[Message, ...]
    budgets: Sequence[int]
    why: str


CASES = (
    Case(
        say("nothing is retained"),
        SESSION,
        [0],
        say("One message always stays, however small the budget is: the last one."),
    ),
    Case(say("some of it"), SESSION, [70, 75], say("Add up from the end, and stop when the budget is reached.")),
    Case(
        say("the budget is reached exactly"),
        _view(ASK, FOUND, FIX, DONE),
        [10, 20, 30],
        say("Stop when the sum has reached the budget: a message more is a message too many."),
    ),
    Case(
        say("the budget is larger than the view"),
        SESSION,
        [811, 10_000],
        say("Then all of it stays, and the cut is at 0."),
    ),
    Case(
        say("between a call and its result"),
        SESSION,
        [11, 40],
        say("A provider refuses a result without its call. Move the cut left, to the call."),
    ),
    Case(
        say("between two results of one reply"),
        SESSION,
        [100, 490],
        say("Both results stay with the reply that asked for them."),
    ),
    Case(
        say("the view ends with results"),
        SESSION[:4],
        [0],
        say("The last message is a result, so its call and the other result stay with it."),
    ),
    Case(say("a view of one message"), SESSION[:1], [0, 50], say("It is the last one: it stays.")),
    Case(say("an empty view"), (), [0, 50], say("There is nothing to cut: 0.")),
    Case(say("every budget from 0 to 830"), SESSION, range(831), say("The rule holds for every budget.")),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer) or inspect.isclass(answer):
        raise AgentLabError(say("Give check.cut a plain function, without brackets: check.cut(my_cut)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    budget = case.budgets[0]

    def run() -> Difference | None:
        nonlocal budget
        for budget in case.budgets:
            given = copy.deepcopy(list(case.view))
            got, expected = answer(given, budget, _tokens), _right(case.view, budget)
            if given != list(case.view):
                return Difference(
                    say("the view"), say("unchanged"), say("changed"), say("You only look: cutting comes later.")
                )
            if type(got) is not int:
                return Difference(
                    say("what it returns"), say("a position"), short(got), say("Return one whole number.")
                )
            if got != expected:
                return Difference(
                    say("the cut"), f"{expected}: {_stays(case.view, expected)}", f"{got}: {_stays(case.view, got)}"
                )
        return None

    found = finding(case, answer, run, fed="", instead=say("a position"), why=case.why)
    if found.passed:
        return found
    sizes = ", ".join(f"{_kind(message)} {_tokens(message)}" for message in case.view)
    return replace(found, fed=say("budget {budget}, view: {sizes}", budget=budget, sizes=sizes or say("empty")))


def _kind(message: Message) -> str:
    if message["role"] == "tool":
        return say("result {id}", id=message["tool_call_id"])
    calls = " ".join(each["id"] for each in message.get("tool_calls", []))
    return say("calls {names}", names=calls) if calls else str(message["role"])


def _stays(view: Sequence[Message], cut: int) -> str:
    return say("{kept} stays", kept=", ".join(_kind(message) for message in view[max(0, cut) :]) or say("nothing"))


def _right(view: Sequence[Message], budget: int) -> int:
    """The rule once more, by way of the groups of a history."""
    cut, kept = len(view), 0
    while cut and (cut == len(view) or kept < budget):
        cut -= 1
        kept += _tokens(view[cut])
    return max((group.start for group in groups(list(view)) if group.start <= cut), default=0)


WINDOW, PRESSURE, RETAIN = 1_400, 800, 300
MODULES = 9
TASK = f"Port the modules 1 to {MODULES}, and check each."
RIGHT = f"All {MODULES} modules are ported."


def _story(request: dict[str, Any]) -> Message | str:
    """Go on behind the last module that can be seen; the task has to be seen, too."""
    shown = "\n".join(str(message.get("content")) for message in request["messages"])
    if TASK not in shown:
        return "I do not know what I was asked to do."
    last = max(map(int, re.findall(r"module (\d+) is", shown)), default=0)
    if last >= MODULES:
        return RIGHT
    number = str(last + 1)
    return assistant("", call(f"port_{number}", "port", module=number), call(f"test_{number}", "test", module=number))


def _checkpoint(gone: Sequence[Message]) -> Message:
    done = re.findall(r"module \d+ is", "\n".join(str(message.get("content")) for message in gone))
    state = f"{done[-1]} done, as is all before it." if done else "Nothing is done yet."
    return checkpoint_node(state, dropped=len(gone), words=(TASK, len(TASK)))


def _turn(answer: Any, sent: list[list[Message]]) -> Turn:
    registry = Registry()

    @registry.tool(read_only=True)
    def port(module: str) -> str:
        """Port a module."""
        return f"module {module} is ported.\n" + f"{module}: a line was changed\n" * 8

    @registry.tool(read_only=True)
    def test(module: str) -> str:
        """Test a module."""
        return f"module {module} is right.\n" + f"{module}: a test has passed\n" * 12

    def before_request(history: list[Message]) -> list[Message]:
        view = history
        if sum(map(tokens_of, history)) > PRESSURE and (cut := answer(list(history), RETAIN, tokens_of)):
            view = [_checkpoint(history[:cut]), *history[cut:]]
        sent.append(view)
        return view

    client = Simulator(_story, context_window=WINDOW).client()
    return run_turn([user(TASK)], client, registry, hooks=Hooks(before_request=before_request))


def turn(answer: Any) -> Turn:
    """A turn of nine steps in a small window; from some size on, a checkpoint stands for what lies before the cut."""
    return _turn(answer, [])


def live(answer: Any) -> Live:
    """Run the turn and say how it ended: the right answer, or the provider's refusal."""
    sent: list[list[Message]] = []
    return run_live(_turn(answer, sent), sent, answer, right=RIGHT)


def solution(view: list[Message], retain: int, tokens: Any) -> int:
    cut, kept = len(view), 0
    while cut > 0 and (cut == len(view) or kept < retain):
        cut -= 1
        kept += tokens(view[cut])
    while cut > 0 and view[cut]["role"] == "tool":
        cut -= 1
    return cut


cut = Exercise("cut", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
