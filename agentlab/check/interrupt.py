"""The first exercise of chapter 04: repair a torn history. The answer is a function, history in and history out.

It is judged by what must hold of any repair, not by one right output: see `_wrong`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from agentlab import pairing
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt_cases import CASES, Case, fed, told
from agentlab.check.interrupt_solution import repair as solution
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.check.stream import FILES, TOTAL
from agentlab.errors import AgentLabError, ProviderError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, calls_of, tool, user
from agentlab.simulator import Simulator
from agentlab.tools import Registry

HINTS = (
    say("Print pairing.problems(history) for the input that fails, and again for what you return."),
    say(
        "Go from one assistant message to the next. All that stands between two of them is one window: its "
        "results (by id, for the calls of this message only) and everything else."
    ),
    say(
        "For each window append: the assistant message, one result or note per call in the order of the calls, then"
        " everything else. Build new dicts where you change something, and never write into what was passed in."
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer):
        raise AgentLabError(say("Give check.repair the function itself, without brackets: check.repair(my_repair)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    given = fed(case.history)
    return finding(
        case, answer, lambda: _wrong(case, answer), fed=given, instead=say("a history"), bonus=case.bonus, why=case.why
    )


def _wrong(case: Case, answer: Callable[[list[Message]], Any]) -> Difference | None:
    """The first property that does not hold: a history, input untouched, paired, nothing lost, twice is once."""
    before = list(case.history)
    given = copy.deepcopy(before)
    after = answer(given)
    if not isinstance(after, list) or not all(isinstance(message, dict) for message in after):
        why = say("Return the new history: a list of messages.")
        return Difference(say("what it returns"), say("a list of messages"), short(after), why)
    if given != before:
        why = say("Change nothing that was passed in: the log stays as it was. Build a new list, and new dicts.")
        return Difference(say("the input"), say("as it was"), say("changed"), why)
    if found := pairing.problems(after):
        return Difference("pairing.problems", "[]", found[0].sentence)
    if case.whole and after != before:
        return Difference(say("what it returns"), say("the same messages"), " | ".join(map(told, after)))
    if found_lost := _lost(before, after):
        return found_lost
    if answer(copy.deepcopy(before)) != after:
        why = say("Put no clock and no random id into it: other bytes at each request make the prompt cache useless.")
        return Difference(say("repair of the same history again"), say("the same"), say("something else"), why)
    if (again := answer(copy.deepcopy(after))) != after:
        why = say("It runs before every request, also on what it has repaired: then there is nothing left to do.")
        return Difference(say("repair of what it returned"), say("no change"), _first_change(after, again), why)
    return None


def _first_change(one: list[Message], other: Any) -> str:
    if not isinstance(other, list):
        return short(other)
    pairs = enumerate(zip_longest(one, other))
    return next(f"messages[{index}]: {short(new or say('gone'))}" for index, (old, new) in pairs if old != new)


def _lost(before: Sequence[Message], after: Sequence[Message]) -> Difference | None:
    """What was said or found out, and is gone or in the wrong place."""
    for role in "user", "assistant":
        said = iter([message["content"] for message in after if message["role"] == role])
        for text in [message["content"] for message in before if message["role"] == role and message["content"]]:
            if text not in said:  # goes on where the last one was found, so the order counts
                return Difference(say("the {role}'s words", role=role), text, say("gone, or in another order"))
    asked = [each for message in before for each in calls_of(message)]
    kept = [each for message in after for each in calls_of(message)]
    if [each["id"] for each in asked] != [each["id"] for each in kept]:
        ids = ", ".join(str(each["id"]) for each in kept) or say("none")
        return Difference(say("the calls"), ", ".join(each["id"] for each in asked), ids)
    right = pairing.repair(before).history
    wanted = [each["function"]["arguments"] for message in right for each in calls_of(message)]
    for expected, each in zip(wanted, kept, strict=True):
        if each["function"]["arguments"] != expected:
            why = say("Only arguments that do not parse become {}, and nothing is guessed.")
            return Difference(say("the arguments of a call"), expected, short(each["function"]["arguments"]), why)
    real = {message["content"] for message in before if message["role"] == "tool"}
    for expected, got in zip(_results(right), _results(after), strict=True):
        where = say("the result of {tool_call_id}", tool_call_id=expected["tool_call_id"])
        if expected.get("origin") != "repair" and got["content"] != expected["content"]:
            return Difference(where, expected["content"], short(got["content"]))
        if expected.get("origin") == "repair" and (got["content"] in real or not str(got["content"]).strip()):
            return Difference(where, say("a note that it did not run"), short(got["content"]))
    for text in sorted(real):
        if not any(text in str(message.get("content")) for message in after):
            return Difference(say("what a tool found out"), text, say("gone"))
    return None


def _results(history: Sequence[Message]) -> list[Message]:
    return [message for message in history if message["role"] == "tool"]


def _torn() -> list[Message]:
    """Two files were to be counted, and Stop fell into the arguments of the second call. The server reuses its id."""
    pears = call("call_0", "read_file", path="pears.txt")
    pears["function"]["arguments"] = pears["function"]["arguments"][:12]
    return [
        user("How much fruit is there?"),
        assistant("First the apples.", call("call_0", "read_file", path="apples.txt")),
        tool("call_0", FILES["apples.txt"]),
        assistant("Now the pears.", pears),
        user("I pressed Stop by mistake. Go on."),
    ]


def _story(request: dict[str, Any]) -> Message | str:
    """Read the pears (again), then add up what the request shows."""
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if FILES["apples.txt"] not in results:
        return "I counted the apples before you pressed Stop, and cannot see that result any more."
    if FILES["pears.txt"] not in results:
        return assistant("Once more, the pears.", call("call_0", "read_file", path="pears.txt"))
    return TOTAL


def files() -> Registry:
    """The one tool of these agents."""
    registry = Registry()

    @registry.tool(read_only=True)
    async def read_file(path: str) -> str:
        """Read one text file."""
        return FILES[path]

    return registry


def _turn(answer: Any, sent: list[list[Message]]) -> Turn:
    hooks = Hooks(repair=answer, before_request=sent.append)
    return run_turn(_torn(), Simulator(_story).client(), files(), hooks=hooks)


def turn(answer: Any) -> Turn:
    """A turn on a torn history, in a loop that repairs with the reader's function."""
    return _turn(answer, [])


def live(answer: Any) -> Live:
    """Run the turn and say how it ended: the right answer, the provider's refusal, or an error."""
    sent: list[list[Message]] = []
    return run_live(_turn(answer, sent), sent, answer, right=TOTAL)


def run_live(running: Turn, sent: list[list[Message]], answer: Any, *, right: str) -> Live:
    """Run a turn to its end. It passed when its last word is `right`. `sent` holds what every request showed."""
    from agentlab.widgets.sync import run_sync

    try:
        run_sync(running.run())
        last = running.history[-1]
    except ProviderError as error:
        return Live(False, str(error), tuple(sent[-1]) if sent else ())
    except Exception as error:
        return Live(False, say("The loop broke: {error}", error=blame(error, answer)))
    said = str(last.get("content") or "")
    history = (*sent[-1], last)
    if running.reason == "done" and said == right:
        return Live(True, said, history)
    return Live(
        False,
        say("The turn ended ({reason}) with: {said}", reason=running.reason, said=said or say("no text")),
        history,
    )


repair = Exercise("repair", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
