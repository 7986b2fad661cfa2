"""What the repair of chapter 04 is tried on: one torn history per case, and what to look at when it fails.

The `bonus` cases were seen in the field (data in public reports).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        "nothing is wrong",
        (GO, assistant("", A, B), FAILED, READ, assistant("One test fails."), ON),
        "Leave a sound history exactly as it is: what changes in it must be paid for again.",
        whole=True,
    ),
    Case(
        "a call has no result",
        (GO, assistant("First the tests.", A), ON),
        "Put a tool message with the call's id straight behind the assistant message, before the person's next words.",
    ),
    Case(
        "the second of two calls has none",
        (GO, assistant("", A, B), FAILED, ON),
        "Every call needs a result, and results stand in the order of the calls: the note comes behind what is there.",
    ),
    Case(
        "the first of two calls has none",
        (GO, assistant("", A, B), READ, ON),
        "Every call needs a result, and results stand in the order of the calls: here the note comes first.",
    ),
    Case(
        "the same id in a later turn",
        (GO, assistant("", A), FAILED, assistant("I mend it."), ON, assistant("Once more.", A), user("Stop!")),
        "Ids come back. A result belongs to the call that stands before it, up to the next assistant message.",
    ),
    Case(
        "words between call and result",
        (GO, assistant("", A, B), FAILED, user("Be quick."), READ),
        "No other role may stand between a call and its results: the person's words move behind the last of them.",
    ),
    Case(
        "results in another order than the calls",
        (GO, assistant("", A, B), READ, FAILED, ON),
        "Bring the results into the order of the calls: one order for ever is one prefix in the prompt cache.",
    ),
    Case(
        "arguments cut in the middle",
        (GO, assistant("", A, _cut(B)), FAILED, ON),
        "Arguments must be the text of a JSON object. Half of one becomes '{}': guess nothing.",
    ),
    Case(
        "a result without a call",
        (GO, tool("Z", "42 tests"), assistant("There are 42."), ON),
        "No call, no tool message. But what it says is real: keep it as text, in a user message.",
    ),
    Case(
        "two results for one call",
        (GO, assistant("", A), FAILED, tool("A", "2 failed"), assistant("Hm."), ON),
        "The first result wins. A provider refuses the second one.",
        bonus=True,
    ),
    Case(
        "a result that comes a turn too late",
        (GO, assistant("", A), ON, assistant("I wait."), FAILED),
        "Behind another assistant message it is no result any more. The call gets a note, the late words stay as text.",
        bonus=True,
    ),
    Case(
        "an empty shell",
        (GO, assistant(""), ON, assistant("", A), FAILED),
        "Stop fell before the first token. An assistant message with neither text nor a call says nothing: drop it.",
        bonus=True,
    ),
)


def told(message: Message) -> str:
    """One message in a few words."""
    if message["role"] == "tool":
        return f"result {message['tool_call_id']}: {message['content']}"
    calls = [f"{each['id']}({each['function']['arguments']})" for each in calls_of(message)]
    return " ".join(filter(None, [f"{message['role']}:", message["content"], *calls]))
