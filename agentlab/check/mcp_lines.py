"""The second exercise of chapter 11: bytes in, messages out.

The answer is a class with `feed(chunk: bytes) -> list[dict]`: the messages that this chunk completes. The cut between
two chunks may fall anywhere, and not every line is a message.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentlab.check import mcp_live
from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Turn

HINTS = (
    say(
        "Feed one message in two halves and print what comes out. What has not ended yet must be kept, as bytes, in the"
        " object, until the rest has come."
    ),
    say(
        'Split the bytes at b"\\n" and at nothing else: `*ended, self.rest = (self.rest + chunk).split(b"\\n")`.'
        " `splitlines` knows many more line ends, and some of them may stand inside a message. Decode whole lines only."
    ),
    say(
        "Each line that has ended goes through `json.loads` in a `try`: it raises ValueError for what is "
        'no JSON, and for what is no UTF-8. Keep what is a dict with `"jsonrpc"` of "2.0"; all else is '
        "noise."
    ),
)

PIECE = 64 * 1024


def _line(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _answer(id: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}


@dataclass(frozen=True)
class Case:
    """Ways to cut the same bytes, each a list of chunks, and the messages that come out of each."""

    name: str
    ways: tuple[tuple[bytes, ...], ...]
    messages: tuple[Any, ...]
    why: str


def _whole(data: bytes) -> tuple[tuple[bytes, ...], ...]:
    return ((data,),)


def _everywhere(data: bytes) -> tuple[tuple[bytes, ...], ...]:
    """Cut once, at every place, and then into single bytes."""
    return (
        *((data[:at], data[at:]) for at in range(1, len(data))),
        tuple(data[at : at + 1] for at in range(len(data))),
    )


def _pieces(data: bytes) -> tuple[tuple[bytes, ...], ...]:
    return (tuple(data[at : at + PIECE] for at in range(0, len(data), PIECE)),)


ONE, TWO = _answer(0, "09:00"), _answer(1, "10:30")
NOTICE = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
WIDE = _answer(2, "zwölf Uhr 🕛")
ENDS = _answer(3, "09:00\u2028on\u2029Monday\x85.")
LARGE = _answer(4, "tick " * 26_400)
PRINTED = b'Clock v1.0 is starting\n-----\n42\n[1, 2]\n"text"\nnull\n\n{"level": "info", "id": 0, "msg": "hi"}\n{}\n'

CASES = (
    Case(say("one message"), _whole(_line(ONE)), (ONE,), say("A line that has ended is a message.")),
    Case(
        say("three messages in one chunk"),
        _whole(_line(ONE) + _line(NOTICE) + _line(TWO)),
        (ONE, NOTICE, TWO),
        say("A chunk is what happened to arrive together. It may hold many lines."),
    ),
    Case(
        say("a line that has not ended"),
        (((_line(ONE) + _line(TWO))[:-1],),),
        (ONE,),
        say("Its end may still come: a number may get another digit. Only a line feed says that it is whole."),
    ),
    Case(
        say("two messages, cut at every place"),
        _everywhere(_line(ONE) + _line(TWO)),
        (ONE, TWO),
        say("The cut falls where the pipe was full, not where a message ends. Keep what is left over."),
    ),
    Case(
        say("characters of several bytes, cut at every place"),
        _everywhere(_line(WIDE)),
        (WIDE,),
        say("A cut may fall inside a character. Keep bytes, and decode a line when it is whole."),
    ),
    Case(
        say("noise between messages"),
        _whole(_line(ONE) + PRINTED + _line(TWO)),
        (ONE, TWO),
        say('Only an object with jsonrpc "2.0" is a message. Servers print other things too, and go on all the same.'),
    ),
    Case(
        say("noise that is no UTF-8"),
        _whole(b"\xff\xfe d\xe9marrage\n" + _line(ONE)),
        (ONE,),
        say("One bad line may not cost the connection."),
    ),
    Case(
        say("CRLF at the end of lines"),
        _whole((_line(ONE) + _line(TWO)).replace(b"\n", b"\r\n")),
        (ONE, TWO),
        say("The carriage return is white space for JSON: nothing needs to be done about it."),
    ),
    Case(
        say("line ends inside a text that are none"),
        _everywhere(_line(ENDS)),
        (ENDS,),
        say("U+2028, U+2029 and U+0085 may stand raw in JSON. A line ends with a line feed and nothing else."),
    ),
    Case(
        say("132,000 bytes on one line"),
        _pieces(_line(LARGE) + _line(TWO)),
        (LARGE, TWO),
        say("A result can be as large as it likes. The next message must still be read."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case, and one for two objects at a time. Raises AgentLabError when the answer is no class."""
    if not callable(answer) or not (inspect.isclass(answer) or callable(getattr(_made(answer), "feed", None))):
        raise AgentLabError(say("Give check.read_lines the class itself, without brackets: check.read_lines(MyLines)."))
    return [_judge_two(answer), *(_judge(case, answer) for case in CASES)]


def _made(answer: Any) -> Any:
    try:
        return answer()
    except Exception:
        return None


def _judge(case: Case, answer: Any) -> Finding:
    fed = ""

    def run() -> Difference | None:
        nonlocal fed
        for chunks in case.ways:
            lines, got = answer(), list[Any]()
            fed = _told(chunks)
            for chunk in chunks:
                found = lines.feed(chunk)
                if not isinstance(found, list):
                    return Difference(
                        say("what feed returns"), say("a list"), short(found), say("No message: an empty list.")
                    )
                got += found
            if wrong := _different(case, got):
                return wrong
        return None

    found = finding(case, answer, run, fed="", instead=_told_messages(case.messages), why=case.why)
    if found.passed:
        return found
    return Finding(case.name, False, False, fed, found.where, found.expected, found.got, found.why)


def _different(case: Case, got: list[Any]) -> Difference | None:
    if got == list(case.messages):
        return None
    return Difference(say("all that came out"), _told_messages(case.messages), _told_messages(got), case.why)


def _judge_two(answer: Any) -> Finding:
    """Half a line in one object, while another one reads."""
    why = say("What is left over belongs to one connection: keep it in self, from __init__ on, not in the class.")
    case = Case(say("two connections at a time"), ((b"half a line in the first", _line(ONE)),), (ONE,), why)

    def run() -> Difference | None:
        first, second = answer(), answer()
        with suppress(Exception):  # a case of its own
            first.feed(_line(TWO)[:20])
        return _different(case, list(second.feed(_line(ONE))))

    return finding(
        case, answer, run, fed=say("half a line to one object, a whole line to another"), instead="", why=why
    )


def _told(chunks: Iterable[bytes]) -> str:
    return " + ".join(short(chunk)[:100] for chunk in chunks)


def _told_messages(messages: Iterable[Any]) -> str:
    return ", ".join(short(message)[:110] for message in messages) or say("nothing")


def turn(answer: Any) -> Turn:
    """A turn of an agent whose MCP client reads with the reader's class. The server prints noise, and a U+2028."""
    from agentlab.check.mcp import solution

    return mcp_live.turn(answer, solution)


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    return mcp_live.live(turn(answer))


class Solution:
    def __init__(self) -> None:
        self.rest = b""

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        *ended, self.rest = (self.rest + chunk).split(b"\n")
        messages = []
        for line in ended:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and message.get("jsonrpc") == "2.0":
                messages.append(message)
        return messages


read_lines = Exercise("read_lines", judge=judge, turn=turn, live=live, hints=HINTS, solution=Solution)
