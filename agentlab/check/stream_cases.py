"""What the assembler of chapter 03 is tried on. Each case says what to look at when it fails.

The `bonus` cases were seen on real servers (data/streams; public reports on vLLM, Ollama and gateways).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentlab.check.compare import Difference, difference
from agentlab.check.report import short
from agentlab.language import say
from agentlab.messages import Message, assistant, call

Event = dict[str, Any]


def _event(finish: str | None = None, /, **delta: Any) -> Event:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _piece(index: int | None = None, arguments: Any = ..., *, id: str | None = None, name: str | None = None) -> Event:
    """An event with a piece of one call. What is not given is not in it."""
    function = {"name": name} if name is not None else {}
    function |= {"arguments": arguments} if arguments is not ... else {}
    piece: dict[str, Any] = {"index": index} if index is not None else {}
    piece |= {"id": id, "type": "function"} if id is not None else {}
    return _event(tool_calls=[piece | {"function": function}])


ROLE = _event(role="assistant", content=None)
CALLED = _event("tool_calls")
USAGE: Event = {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}
MIXED = (
    ROLE,
    _event(content="Let me "),
    _event(content="look."),
    _piece(0, "", id="call_ls", name="run_shell"),
    _piece(0, '{"comm'),
    _piece(1, '{"path":', id="call_read", name="read_file"),
    _piece(0, 'and":"ls'),
    _piece(1, '"a.txt"}'),
    _piece(0, ' -la"}'),
    CALLED,
)
LS = call("call_ls", "run_shell", command="ls -la")
READ = call("call_read", "read_file", path="a.txt")
NOW = call("call_now", "now")


def fed(case: Case, answer: Any) -> tuple[Any, list[Any]]:
    """A fresh assembler that was fed all events, and what it returned."""
    assembler = answer()
    return assembler, [assembler.feed(event) for event in copy.deepcopy(list(case.events))]


def whole(case: Case, answer: Any) -> Difference | None:
    """The message at the end."""
    assembler, _ = fed(case, answer)
    return difference(case.message, assembler.message())


def returned(case: Case, answer: Any) -> Difference | None:
    """What `feed` returns."""
    _, texts = fed(case, answer)
    wanted = [choice["delta"].get("content") or "" for event in case.events for choice in event["choices"]]
    return None if texts == wanted else Difference("feed()", short(wanted), short(texts))


def second(case: Case, answer: Any) -> Difference | None:
    """The message of another assembler, which was fed nothing. What the first one raises is for other cases."""
    with suppress(Exception):
        fed(case, answer)
    found = difference(case.message, answer().message(), say("the second one's message()"))
    return found and found._replace(why=case.why)


def halfway(case: Case, answer: Any) -> Difference | None:
    """The message after six of the events of `MIXED`, and at the end."""
    assembler = answer()
    for event in copy.deepcopy(list(case.events[:6])):
        assembler.feed(event)
    half = assistant(case.message["content"], *copy.deepcopy([LS, READ]))
    for call_so_far, arguments in zip(half["tool_calls"], ('{"comm', '{"path":'), strict=True):
        call_so_far["function"]["arguments"] = arguments
    if found := difference(half, assembler.message(), say("after 6 events, message()")):
        return found
    for event in copy.deepcopy(list(case.events[6:])):
        assembler.feed(event)
    return difference(case.message, assembler.message())


@dataclass(frozen=True)
class Case:
    """Events and the message that they make. `run` is how an assembler is tried on them."""

    name: str
    events: Sequence[Event]
    message: Message
    why: str
    bonus: bool = False
    run: Callable[[Case, Any], Difference | None] = whole


CASES = (
    Case(
        say("a second assembler starts empty"),
        MIXED,
        assistant(""),
        say(
            "Make the text and the calls in __init__, as attributes of self: a list or dict in the class "
            "body is shared."
        ),
        run=second,
    ),
    Case(
        say("text in three pieces"),
        (ROLE, _event(content="It is "), _event(content="sunny"), _event(content="."), _event("stop")),
        assistant("It is sunny."),
        say("Add every content to the text. In the first chunk it is null, in the last one it is missing."),
    ),
    Case(
        say("feed returns the new text"),
        (ROLE, _event(content="It is "), _event(content="sunny."), _event("stop")),
        assistant("It is sunny."),
        say("The caller prints what feed returns: only the text of this event, and '' when there is none."),
        run=returned,
    ),
    Case(
        say("usage on a chunk without choices"),
        (ROLE, _event(content="Hi"), _event("stop"), USAGE),
        assistant("Hi"),
        say("The last chunk has `choices: []`. Loop over the choices, do not take the first."),
    ),
    Case(
        say("one call in pieces"),
        (ROLE, *MIXED[3:5], MIXED[6], MIXED[8], CALLED),
        assistant("", LS),
        say("Id and name come once. The arguments come in pieces of text: add them up, and parse none of them."),
    ),
    Case(
        say("two calls, their pieces mixed"),
        MIXED,
        assistant("Let me look.", LS, READ),
        say("A piece belongs to the call of its `index`, whichever call came last."),
    ),
    Case(
        say("asked in the middle of a call"),
        MIXED,
        assistant("Let me look.", LS, READ),
        say(
            "After a Stop, half a message is all there is; message() may be asked at any time, and must change nothing."
        ),
        run=halfway,
    ),
    Case(
        say("arguments null at first (vLLM)"),
        (_piece(0, None, id="call_read", name="read_file"), _piece(0, '{"path":"a.txt"}'), CALLED),
        assistant("", READ),
        say("Null is no text: start empty, and add only text."),
        bonus=True,
    ),
    Case(
        say("a call without arguments (OpenRouter)"),
        (_piece(0, id="call_now", name="now"), CALLED),
        assistant("", NOW),
        say("An empty total means {}: providers want a JSON object."),
        bonus=True,
    ),
    Case(
        say("the only call has index 1 (gateways to Anthropic)"),
        (_piece(1, '{"path":"a.txt"}', id="call_read", name="read_file"), CALLED),
        assistant("", READ),
        say("The index is a key, not a position in a list: it may start anywhere and skip numbers."),
        bonus=True,
    ),
    Case(
        say("id and name repeated in every piece (OpenRouter)"),
        (
            _piece(0, "", id="call_read", name="read_file"),
            _piece(0, '{"path":', id="call_read", name="read_file"),
            _piece(0, '"a.txt"}', id="call_read", name="read_file"),
            CALLED,
        ),
        assistant("", READ),
        say("What is known already adds nothing."),
        bonus=True,
    ),
    Case(
        say('later pieces have id "" (Qwen)'),
        (_piece(0, '{"path":', id="call_read", name="read_file"), _piece(0, '"a.txt"}', id=""), CALLED),
        assistant("", READ),
        say("An empty id is no id: keep the one that you have."),
        bonus=True,
    ),
    Case(
        say("the name in two pieces"),
        (_piece(0, id="call_read", name="read_"), _piece(0, '{"path":"a.txt"}', name="file"), CALLED),
        assistant("", READ),
        say("A name that differs from the one so far is its next piece."),
        bonus=True,
    ),
    Case(
        say("no index at all (some gateways)"),
        (
            _piece(None, '{"command":', id="call_ls", name="run_shell"),
            _piece(None, '"ls -la"}'),
            _piece(None, '{"path":"a.txt"}', id="call_read", name="read_file"),
            CALLED,
        ),
        assistant("", LS, READ),
        say("Without an index the id decides: a new one opens a call, a piece without one goes on with the last call."),
        bonus=True,
    ),
    Case(
        say("index 0 for every call (Ollama behind a proxy)"),
        (
            _piece(0, '{"command":"ls -la"}', id="call_ls", name="run_shell"),
            _piece(0, '{"path":"a.txt"}', id="call_read", name="read_file"),
            CALLED,
        ),
        assistant("", LS, READ),
        say("Another id, and the call at this index has whole arguments: that is a new call."),
        bonus=True,
    ),
    Case(
        say("arguments as an object"),
        (_piece(0, {"path": "a.txt"}, id="call_read", name="read_file"), CALLED),
        assistant("", READ),
        say("An object is whole already: turn it into JSON text, once."),
        bonus=True,
    ),
)


def told(event: Event) -> str:
    """One event in a few words."""
    if not event["choices"]:
        return "choices: []"
    choice = event["choices"][0]
    words = ["finish"] if choice["finish_reason"] else []
    for key, value in choice["delta"].items():
        if key == "content":
            words.append(f"content {value!r}")
        for piece in value if key == "tool_calls" else ():
            function = piece["function"]
            words.append(f"#{piece['index']}" if "index" in piece else say("no index"))
            words += [repr(piece["id"])] if "id" in piece else []
            words += [repr(function[key]) for key in ("name", "arguments") if key in function]
    return " ".join(words)
