"""The second exercise of chapter 08: what is left when lines in the middle of a log are lost.

The answer is a function of the messages that could be read. It returns messages that a provider takes. It is judged by
what must hold of any such answer, for every single line and for every two lines of a session.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from agentlab import pairing
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.interrupt_cases import told
from agentlab.check.journal import read_back
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, calls_of, tool, user
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.tools import Registry

HINTS = (
    say(
        "There are two kinds of torn pairs: a result whose call is lost, and a call whose result is lost. Print"
        " pairing.problems(what you return): it names those that are left."
    ),
    say(
        "The lost call: its results may go, or become the text of a user message. The lost result: the "
        "call stays, since it may have run, and gets a tool message that says that its result was lost."
    ),
    say(
        "Go through the messages with a list of the calls that still wait. An assistant message closes the "
        "list of the one before it (a note for each that waits) and opens its own; a tool message that "
        "answers none of them is an orphan. Whatever else comes between a call and its results is held "
        "back until they are complete."
    ),
)

SESSION = (
    user("Which tests fail?"),
    assistant("", call("A", "list_dir", path="."), call("B", "run_shell", command="make test")),
    tool("A", "12 files"),
    tool("B", "1 failed"),
    assistant("One fails. I look.", call("C", "read_file", path="leap.py")),
    tool("C", "year % 4"),
    assistant("It forgets the centuries."),
    user("Mend it."),
    assistant("", call("A", "edit_file", path="leap.py")),
    tool("A", "1 place was changed"),
    assistant("It is done."),
)
"""A session whose ids come back: A is the first call of two turns."""


@dataclass(frozen=True)
class Case:
    """Which lines are lost, counted from 1; each set is tried."""

    name: str
    lost: Sequence[tuple[int, ...]]
    why: str


EVERY = range(1, len(SESSION) + 1)

CASES = (
    Case(say("no line is lost"), [()], say("A sound history stays exactly as it is.")),
    Case(say("a call is lost"), [(5,), (2,)], say("A provider refuses a result without a call.")),
    Case(
        say("a result is lost"),
        [(6,), (3,), (4,)],
        say("The call may have run: it stays, with a result at its place that says what is not known."),
    ),
    Case(
        say("a result is lost, and its id comes back"),
        [(3, 4)],
        say("The later result answers the later call, not this one."),
    ),
    Case(
        say("a call is lost, and its id was there before"),
        [(9,)],
        say("The earlier call has its result. This is an orphan."),
    ),
    Case(say("the person's words are lost"), [(1,), (8,), (1, 8)], say("What was lost is lost; all the rest stays.")),
    Case(say("any one or two lines"), [*combinations(EVERY, 1), *combinations(EVERY, 2)], say("Any line may be hit.")),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer) or inspect.isclass(answer):
        raise AgentLabError(
            say("Give check.broken_chain a plain function, without brackets: check.broken_chain(my_chain).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    lost = case.lost[0]

    def run() -> Difference | None:
        nonlocal lost
        for lost in case.lost:
            if wrong := _wrong(_left(lost), answer):
                return wrong
        return None

    found = finding(case, answer, run, fed="", instead=say("messages"), why=case.why)
    if found.passed:
        return found
    which = say("without line {lost}: ", lost=", ".join(map(str, lost))) if lost else ""
    return replace(found, fed=which + ", ".join(map(_kind, _left(lost))))


def _left(lost: Iterable[int]) -> list[Message]:
    return [message for line, message in enumerate(SESSION, 1) if line not in lost]


def _kind(message: Message) -> str:
    """A message in two words: the session itself is always the same."""
    if message["role"] == "tool":
        return say("result {id}", id=message["tool_call_id"])
    calls = " ".join(each["id"] for each in calls_of(message))
    return say("calls {names}", names=calls) if calls else str(message["role"])


def _wrong(before: list[Message], answer: Any) -> Difference | None:
    """The first property that does not hold: messages, input untouched, paired, and what is whole stays."""
    given = copy.deepcopy(before)
    after = answer(given)
    if not isinstance(after, list) or not all(isinstance(message, dict) for message in after):
        return Difference(
            say("what it returns"), say("a list of messages"), short(after), say("Return the messages to send.")
        )
    if given != before:
        return Difference(
            say("what it was given"),
            say("unchanged"),
            say("changed"),
            say("Build a new list, and new dicts: the log stays."),
        )
    if found := pairing.problems(after):
        return Difference("pairing.problems", "[]", found[0].sentence)
    if not pairing.problems(before) and after != before:
        return Difference(say("what it returns"), say("the same messages"), short(" | ".join(map(told, after))))
    return _gone(before, after)


def _gone(before: list[Message], after: list[Message]) -> Difference | None:
    """What stood whole in the log, and is gone."""
    for role in "user", "assistant":
        left = iter([message.get("content") for message in after if message.get("role") == role])
        for message in before:
            if message["role"] == role and message["content"] and message["content"] not in left:
                why = say("Somebody said this, and its line can be read: keep it, at its place.")
                return Difference(
                    say("the {role}'s words", role=role), message["content"], say("gone, or in another order"), why
                )
    wanted, kept = _calls(before), _calls(after)
    if wanted != kept:
        why = say("This call may have run. A model that does not see it would do it again.")
        return Difference(say("the calls"), ", ".join(wanted) or say("none"), ", ".join(kept) or say("none"), why)
    real = [message for message in pairing.repair(before).history if message["role"] == "tool"]
    results = [message for message in after if message["role"] == "tool"]
    for one, other in zip(real, results, strict=True):
        where = say("the result of {tool_call_id}", tool_call_id=one["tool_call_id"])
        if one.get("origin") != "repair" and other["content"] != one["content"]:
            return Difference(where, one["content"], short(other["content"]), say("This result is there: it stays."))
        found_out = {message["content"] for message in SESSION if message["role"] == "tool"}
        if one.get("origin") == "repair" and (other["content"] in found_out or not str(other["content"]).strip()):
            why = say("Nobody knows what this call gave: say that, and borrow no other call's result.")
            return Difference(where, say("a note"), short(other["content"]), why)
    return None


def _calls(history: Iterable[Message]) -> list[str]:
    return [f"{each['id']} {each['function']['name']}" for message in history for each in calls_of(message)]


RIGHT = "Invoice 17 has been paid once."


def _story(request: dict[str, Any]) -> Message | str:
    """Pay what was not paid: look first where the history says that something is not known."""
    messages = request["messages"]
    names = {each["id"]: each["function"]["name"] for message in messages for each in message.get("tool_calls", [])}
    seen = {names.get(message["tool_call_id"]): message for message in messages if message["role"] == "tool"}
    if "pay" not in seen:
        return assistant("I see no payment yet.", call("call_3", "pay", invoice=17))
    if "payments" not in seen:
        return assistant("I look before I pay again.", call("call_4", "payments"))
    times = str(seen["payments"]["content"]).count("17")
    return RIGHT if times == 1 else f"Invoice 17 has been paid {times} times."


def _torn() -> list[Message]:
    """A session in which an invoice was paid; two of its lines could not be read any more."""
    log = [
        user("Pay invoice 17."),
        assistant("First the amount.", call("call_1", "invoice", number=17)),
        tool("call_1", "240 euros"),
        assistant("", call("call_2", "pay", invoice=17)),
        tool("call_2", "done"),
        user("Is it paid? If not, do it now."),
    ]
    events = read_back([{"type": "message", "message": message} for message in log], broken=[3, 6])
    return [event["message"] for event in events if event["type"] == "message"]


def _turn(answer: Any, sent: list[list[Message]]) -> Turn:
    paid, registry = [17], Registry()

    @registry.tool
    def pay(invoice: int) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        return "done"

    @registry.tool(read_only=True)
    def payments() -> str:
        """List what was paid."""
        return f"paid: {', '.join(map(str, paid))}"

    client, hooks = Simulator(_story).client(), Hooks(repair=answer, before_request=sent.append)
    return run_turn(_torn(), client, registry, policy=Policy(default="allow"), hooks=hooks)


def turn(answer: Any) -> Turn:
    """A turn on what is left of the session: the call of one pair is lost, and the result of another."""
    return _turn(answer, [])


def live(answer: Any) -> Live:
    """Run the turn and say how it ended: the right answer, a second payment, or the provider's refusal."""
    sent: list[list[Message]] = []
    return run_live(_turn(answer, sent), sent, answer, right=RIGHT)


def solution(messages: list[Message]) -> list[Message]:
    whole: list[Message] = []
    waiting: dict[str, Message | None] = {}  # the calls of the newest reply, and their results
    behind: list[Message] = []  # what comes after them

    def close() -> None:
        for id, result in waiting.items():
            whole.append(result or {"role": "tool", "tool_call_id": id, "content": "The result was lost: look first."})
        whole.extend(behind)
        waiting.clear()
        behind.clear()

    for message in messages:
        if message["role"] == "assistant":
            close()
            whole.append(message)
            waiting.update((each["id"], None) for each in message.get("tool_calls", []))
        elif message["role"] != "tool":
            behind.append(message)
        elif message["tool_call_id"] in waiting and waiting[message["tool_call_id"]] is None:
            waiting[message["tool_call_id"]] = message
        else:
            behind.append({"role": "user", "content": f"A tool said, and its call is lost: {message['content']}"})
    close()
    return whole


broken_chain = Exercise("broken_chain", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
