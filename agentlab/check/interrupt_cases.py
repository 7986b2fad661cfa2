"""What the repair of chapter 04 is tried on: one torn history per case, and what to look at when it fails.

The `bonus` cases were seen in the field (data in public reports).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentlab.language import say
from agentlab.messages import Message, ToolCall, assistant, call, calls_of, tool, user


@dataclass(frozen=True)
class Case:
    """A history to be repaired. `whole`: nothing is wrong with it, so nothing may change."""

    name: str
    history: Sequence[Message]
    why: str
    bonus: bool = False
    whole: bool = False


A, B = call("A", "run_shell", command="make test"), call("B", "read_file", path="README.md")
GO, FAILED, READ = user("Look into it."), tool("A", "1 failed"), tool("B", "# Readme")
ON = user("Go on.")


def _cut(whole: ToolCall) -> ToolCall:
    """The same call, its arguments cut in the middle."""
    arguments = whole["function"]["arguments"]
    return {**whole, "function": {**whole["function"], "arguments": arguments[: len(arguments) // 2]}}


CASES = (
    Case(
        say("nothing is wrong"),
        (GO, assistant("", A, B), FAILED, READ, assistant("One test fails."), ON),
        say("Leave a sound history exactly as it is: what changes in it must be paid for again."),
        whole=True,
    ),
    Case(
        say("a call has no result"),
        (GO, assistant("First the tests.", A), ON),
        say(
            "Put a tool message with the call's id straight behind the assistant message, before the "
            "person's next words."
        ),
    ),
    Case(
        say("the second of two calls has none"),
        (GO, assistant("", A, B), FAILED, ON),
        say(
            "Every call needs a result, and results stand in the order of the calls: the note comes behind "
            "what is there."
        ),
    ),
    Case(
        say("the first of two calls has none"),
        (GO, assistant("", A, B), READ, ON),
        say("Every call needs a result, and results stand in the order of the calls: here the note comes first."),
    ),
    Case(
        say("the same id in a later turn"),
        (GO, assistant("", A), FAILED, assistant("I mend it."), ON, assistant("Once more.", A), user("Stop!")),
        say("Ids come back. A result belongs to the call that stands before it, up to the next assistant message."),
    ),
    Case(
        say("words between call and result"),
        (GO, assistant("", A, B), FAILED, user("Be quick."), READ),
        say("No other role may stand between a call and its results: the person's words move behind the last of them."),
    ),
    Case(
        say("results in another order than the calls"),
        (GO, assistant("", A, B), READ, FAILED, ON),
        say("Bring the results into the order of the calls: one order for ever is one prefix in the prompt cache."),
    ),
    Case(
        say("arguments cut in the middle"),
        (GO, assistant("", A, _cut(B)), FAILED, ON),
        say("Arguments must be the text of a JSON object. Half of one becomes '{}': guess nothing."),
    ),
    Case(
        say("a result without a call"),
        (GO, tool("Z", "42 tests"), assistant("There are 42."), ON),
        say("No call, no tool message. But what it says is real: keep it as text, in a user message."),
    ),
    Case(
        say("two results for one call"),
        (GO, assistant("", A), FAILED, tool("A", "2 failed"), assistant("Hm."), ON),
        say("The first result wins. A provider refuses the second one."),
        bonus=True,
    ),
    Case(
        say("a result that comes a turn too late"),
        (GO, assistant("", A), ON, assistant("I wait."), FAILED),
        say(
            "Behind another assistant message it is no result any more. The call gets a note, the late "
            "words stay as text."
        ),
        bonus=True,
    ),
    Case(
        say("an empty shell"),
        (GO, assistant(""), ON, assistant("", A), FAILED),
        say(
            "Stop fell before the first token. An assistant message with neither text nor a call says nothing: drop it."
        ),
        bonus=True,
    ),
)


def told(message: Message) -> str:
    """One message in a few words."""
    if message["role"] == "tool":
        return say("result {id}: {text}", id=message["tool_call_id"], text=message["content"])
    calls = [f"{each['id']}({each['function']['arguments']})" for each in calls_of(message)]
    return " ".join(filter(None, [f"{message['role']}:", message["content"], *calls]))


def fed(history: Sequence[Message]) -> str:
    """A history in a few words; of the arguments of its calls, only those that are cut short."""
    text = " | ".join(map(told, history))
    for whole in (A, B):
        text = text.replace(f"({whole['function']['arguments']})", "()")
    return text
