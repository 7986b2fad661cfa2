"""The third exercise of chapter 04: where do words go that a person typed while tools were running?

The answer is a function of the history, which ends with the assistant message, the results of its calls, and the words
(texts, in the order in which they were typed). It returns the history of the next request.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import pairing
from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import files, run_live
from agentlab.check.interrupt_cases import FAILED, GO, READ, A, B, fed, told
from agentlab.check.interrupt_solution import steering as solution
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.check.stream import FILES
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, calls_of, user
from agentlab.simulator import Simulator

HINTS = (
    say(
        "Three places are possible: before the call, between the call and its results, behind the results. "
        "Try all three."
    ),
    say(
        "The provider refuses one of them. Another one changes bytes that were sent before, and says that "
        "the words were there when the model decided."
    ),
    say("Return the history, then all results, then one user message for each of the words."),
)

WORDS = ("Be quick.",)


@dataclass(frozen=True)
class Case:
    """What `steering` is called with."""

    name: str
    history: Sequence[Message]
    results: Sequence[Message]
    words: Sequence[str]


CASES = (
    Case(say("one call"), (GO, assistant("", A)), (FAILED,), WORDS),
    Case(say("two calls, words while the first one ran"), (GO, assistant("", A, B)), (FAILED, READ), WORDS),
    Case(
        say("words said in two pieces keep their order"),
        (GO, assistant("", A)),
        (FAILED,),
        ("Be quick.", "And be kind."),
    ),
    Case(say("a reply without a call"), (GO, assistant("One test fails.")), (), WORDS),
    Case(say("no words"), (GO, assistant("", A, B)), (FAILED, READ), ()),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer):
        raise AgentLabError(
            say("Give check.steering the function itself, without brackets: check.steering(my_steering).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    words = say("words: {words}", words=", ".join(case.words) or say("none"))
    given = f"{fed([*case.history, *case.results])} | {words}"
    return finding(case, answer, lambda: _wrong(case, answer), fed=given, instead=say("a history"))


def _wrong(case: Case, answer: Any) -> Difference | None:
    history, results, words = inputs = list(case.history), list(case.results), list(case.words)
    given = copy.deepcopy(inputs)
    after = answer(*given)
    if not isinstance(after, list) or not all(isinstance(message, dict) for message in after):
        why = say("Return the next request's history: a list of messages.")
        return Difference(say("what it returns"), say("a list of messages"), short(after), why)
    if given != inputs:
        return Difference(
            say("the input"),
            say("as it was"),
            say("changed"),
            say("Build a new list, and change nothing that came in."),
        )
    if found := pairing.problems(after):
        why = say("Between a call and its results no other role may stand, and every call needs its result.")
        return Difference("pairing.problems", "[]", found[0].sentence, why)
    if after[: len(history)] != history:
        why = say(
            "The model has seen and answered these messages. Changed now, it looks as if it had ignored your words, "
            "and the prompt cache is lost."
        )
        return Difference(say("the first messages"), say("as they were sent"), say("changed"), why)
    behind = after[len(history) + len(results) :]
    if after[len(history) :][: len(results)] != results:
        why = say("Results stay as the tools gave them, in their order: a person's words are not a tool's output.")
        return Difference(
            say("behind the history"), say("the results"), " | ".join(map(told, after[len(history) :])), why
        )
    said = ["".join(str(message.get("content")).split()) for message in behind if message.get("role") == "user"]
    if len(said) < len(behind) or "".join(said) != "".join("".join(words).split()):
        why = say(
            "A person wrote these words: they go in as user messages, all of them, word for word and in their order."
        )
        return Difference(say("behind the results"), " | ".join(words) or say("no message"), _texts(behind), why)
    return None


def _texts(messages: Sequence[Message]) -> str:
    return " | ".join(f"{message.get('role')}: {message.get('content')}" for message in messages) or say("no message")


ONLY_PEARS = "Only the pears, please."
RIGHT = "Only the pears, then: 25 pears."


def _story(request: dict[str, Any]) -> Message | str:
    """Ask for both files; then do as the words say, if they came, and came last."""
    messages = request["messages"]
    if not any(message["role"] == "tool" for message in messages):
        calls = [call(f"call_{n}", "read_file", path=path) for n, path in enumerate(FILES, 1)]
        return assistant("Let me count.", *calls)
    heard = [place for place, message in enumerate(messages) if ONLY_PEARS in str(message.get("content"))]
    if not heard:
        return "17 apples and 25 pears. (Your words have not reached me.)"
    if messages[heard[-1]]["role"] != "user":
        return "17 apples and 25 pears. (One tool put out some words. Did a person say them?)"
    if heard[-1] != len(messages) - 1:
        return "17 apples and 25 pears. (Your words stand before my calls: it looks as if I had ignored them.)"
    return RIGHT


def _turn(answer: Any, sent: list[list[Message]]) -> Turn:
    def place(history: list[Message]) -> Any:
        """Stands where the loop repairs, so that words in a wrong place are not put right before they are sent."""
        last = max((place for place, message in enumerate(history) if calls_of(message)), default=None)
        if last is None:
            return history
        return answer(history[: last + 1], history[last + 1 :], [ONLY_PEARS])

    hooks = Hooks(repair=place, before_request=sent.append)
    return run_turn([user("How much fruit is there?")], Simulator(_story).client(), files(), hooks=hooks)


def turn(answer: Any) -> Turn:
    """A turn in which words are typed while two tools run; the reader's function says where they go."""
    return _turn(answer, [])


def live(answer: Any) -> Live:
    """Run the turn and say how it ended: the words were heeded, or not, or the provider refused."""
    sent: list[list[Message]] = []
    return run_live(_turn(answer, sent), sent, answer, right=RIGHT)


steering = Exercise("steering", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
