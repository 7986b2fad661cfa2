"""The first exercise of chapter 11: what a client says when the server asks.

The answer is a function of one incoming message, as it was read from JSON: it returns the reply, a dict, or None.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.check import mcp_live
from agentlab.check.compare import Difference, finding
from agentlab.check.mcp_lines import Solution as Lines
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Turn

HINTS = (
    say(
        "Three kinds of messages come in: a request has a method and an id, a notification a method and no "
        "id, an answer an id and no method. Only one of them wants a reply. And is it a message at all?"
    ),
    say(
        'Ask whether the keys are there, `"id" in message`, not whether they are true: the first id is 0. Give the id'
        ' back as it came, the number 0 as a number and the text "0" as a text.'
    ),
    say(
        'Four early ways out: no dict, no `jsonrpc` of "2.0", no `method` that is a text, no `id`: each '
        'gives None. What is left is a request. `ping` gets the result {}, `roots/list` gets {"roots": '
        '[]}, all else gets `"error": {"code": -32601, "message": ...}` in place of `result`.'
    ),
)

Wrong = Callable[[Any, Any], Difference | None]


@dataclass(frozen=True)
class Case:
    """Messages that come in one after the other, and what has to be true of the reply to each."""

    name: str
    messages: tuple[Any, ...]
    wrong: Wrong
    why: str = ""


def _reply(message: Any, reply: Any) -> Difference | None:
    """What every reply has: the version, the id as it came, and either a result or an error."""
    if not isinstance(reply, dict):
        why = say(
            "A request that gets no answer is one that somebody waits for: the server hangs, or takes you for dead."
        )
        return Difference(say("the reply"), say("a dict"), short(reply), why)
    if reply.get("jsonrpc") != "2.0":
        return Difference(
            "jsonrpc", '"2.0"', _told(reply), say("Without it this is no message, and the server skips it.")
        )
    if "id" not in reply or type(reply["id"]) is not type(message["id"]) or reply["id"] != message["id"]:
        why = say(
            "By its id the server knows which question this answers. Give it back as it came: same value, same type."
        )
        return Difference("id", jsonio.dumps(message["id"]), _told(reply), why)
    if "method" in reply:
        return Difference(
            say("the keys"), say("no method"), _told(reply), say("A message with a method is a question, no answer.")
        )
    if ("result" in reply) == ("error" in reply):
        return Difference(
            say("the keys"), say("either result or error"), _told(reply), say("One of the two, never both or none.")
        )
    return None


def _result(right: Callable[[Any], bool], expected: str, why: str) -> Wrong:
    def wrong(message: Any, reply: Any) -> Difference | None:
        if found := _reply(message, reply):
            return found
        return None if right(reply.get("result")) else Difference("result", expected, _told(reply), why)

    return wrong


def _refused(message: Any, reply: Any) -> Difference | None:
    if found := _reply(message, reply):
        return found
    error = reply.get("error")
    if not isinstance(error, dict) or error.get("code") != -32601:
        why = say("What you do not know you refuse, with the code for it. An empty result would be taken for a yes.")
        return Difference("error.code", "-32601", _told(reply), why)
    if not isinstance(error.get("message"), str):
        return Difference(
            "error.message", say("a text"), _told(reply), say("The standard asks for a message beside the code.")
        )
    return None


def _nothing(message: Any, reply: Any) -> Difference | None:
    return None if reply is None else Difference(say("the reply"), "None", _told(reply))


def _told(value: Any) -> str:
    try:
        return short(jsonio.dumps(value))
    except (TypeError, ValueError):
        return short(value)


def _message(**keys: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **keys}


PONG = _result(lambda result: result == {}, "{}", say("The answer to a ping is an empty result."))
ROOTS = _result(
    lambda result: isinstance(result, dict) and isinstance(result.get("roots"), list),
    '{"roots": []}',
    say("The server asks which folders it may work in, and waits for a list. An empty one is an answer."),
)
NOTIFIED = say("A notification has no id: there is nothing to answer, and nobody who waits.")
ANSWERED = say("This answers one of your own requests. A reply to it would be an answer to nothing.")
JUNK = say('Only an object with jsonrpc "2.0" is a message. Servers print other things, too.')

CASES = (
    Case(say("a ping"), (_message(id=7, method="ping"),), PONG),
    Case(say("the first ping: its id is 0"), (_message(id=0, method="ping"),), PONG),
    Case(
        say("ids that are texts"), (_message(id="0", method="ping"), _message(id="a-1", method="ping", params={})), PONG
    ),
    Case("roots/list", (_message(id=0, method="roots/list"), _message(id="r", method="roots/list")), ROOTS),
    Case(
        say("a request that you do not know"),
        (_message(id=2, method="sampling/createMessage", params={}), _message(id=0, method="tea/make")),
        _refused,
    ),
    Case(
        say("a notification"),
        (_message(method="notifications/tools/list_changed"), _message(method="ping")),
        _nothing,
        NOTIFIED,
    ),
    Case(
        say("an answer to your own request"),
        (_message(id=0, result={}), _message(id=1, error={"code": -32603, "message": "no"})),
        _nothing,
        ANSWERED,
    ),
    Case(say("a log line that looks like a request"), ({"level": "info", "method": "ping", "id": 5},), _nothing, JUNK),
    Case(
        say("JSON that is no message"), (42, [1, 2], "ping", None, True, {}, _message(), _message(id=3)), _nothing, JUNK
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer) or inspect.isclass(answer):
        raise AgentLabError(
            say("Give check.answer_ping a plain function, without brackets: check.answer_ping(my_answer).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    fed = ""

    def run() -> Difference | None:
        nonlocal fed
        for message in case.messages:
            fed = _told(message)
            if found := case.wrong(message, answer(copy.deepcopy(message))):
                return found
        return None

    found = finding(case, answer, run, fed="", instead=say("a reply, or None"), why=case.why)
    if found.passed:
        return found
    return Finding(case.name, False, False, fed, found.where, found.expected, found.got, found.why)


def turn(answer: Any) -> Turn:
    """A turn of an agent whose MCP client answers with the reader's function. The server leaves when it is ignored."""
    return mcp_live.turn(Lines, answer)


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    return mcp_live.live(turn(answer))


def solution(message: Any) -> dict[str, Any] | None:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return None
    if not isinstance(message.get("method"), str) or "id" not in message:
        return None
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**reply, "result": {}}
    if message["method"] == "roots/list":
        return {**reply, "result": {"roots": []}}
    return {**reply, "error": {"code": -32601, "message": f"Method not found: {message['method']}"}}


answer_ping = Exercise("answer_ping", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
