"""The first exercise of chapter 09: prune one message of the view.

The answer is a function of a message, a threshold, and the sizes of head and tail, all in characters. It returns the
message as the model shall see it: a tool result above the threshold as head, marker, tail; all else as it is.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agentlab.check.compare import Difference, difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.report import Exercise, Finding, Live, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.simulator import Simulator
from agentlab.surface import MARKER
from agentlab.tools import Registry

HINTS = (
    say(
        "Only messages with the role tool are cut, and only when their text has more than `threshold` "
        "characters. Return all others as they are. A new dict is {**message, 'content': ...}: every other "
        "key comes along."
    ),
    say(
        "text[-tail:] is the whole text for a tail of 0. Write text[len(text) - tail :]. And a head, a "
        "marker and a tail that come to more than the threshold would be cut again, or grow: raise "
        "ValueError for such sizes."
    ),
    say(
        "The content may be a list of parts. Count the texts of {'type': 'text', 'text': ...} together, at "
        "places 0 to total. Of each text keep what lies before `head` or from `total - tail` on, and put "
        "the marker once, where the head ends. Parts that are no text stay where they are."
    ),
)

THRESHOLD, HEAD, TAIL = 100, 30, 20
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def _text(length: int) -> str:
    """Letters in an order that does not repeat soon, so that every cut shows where it was made."""
    return "".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[(n * n // 7 + n) % 26] for n in range(length))


def _cut(text: str, head: int, tail: int) -> str:
    return text[:head] + MARKER + text[len(text) - tail :]


@dataclass(frozen=True)
class Case:
    """A message, sizes, and what is wrong with what the answer makes of it."""

    name: str
    message: Message
    wrong: Callable[[Message, Message], Difference | None]
    why: str
    sizes: tuple[int, int, int] = (THRESHOLD, HEAD, TAIL)


def _result(text: Any, **more: Any) -> Message:
    return {**tool("call_1", ""), "content": text, **more}


def _same(message: Message, out: Message) -> Difference | None:
    return _differs(message, out)


def _differs(expected: Message, out: Message) -> Difference | None:
    """The first difference; of a long text only its length and both ends, since the middle says nothing."""
    found = difference(expected, out, say("the message"))
    one, other = expected["content"], out.get("content")
    if found and found.where.endswith(".content") and isinstance(one, str) and isinstance(other, str):
        return Difference(found.where, _ends(one), _ends(other))
    return found


def _ends(text: str) -> str:
    marked = say(", with the marker") if MARKER in text else ""
    return say(
        "{size:,} characters: {start} … {end}{marked}",
        size=len(text),
        start=text[:8],
        end=text.rstrip()[-8:],
        marked=marked,
    )


def _pruned(head: int = HEAD, tail: int = TAIL) -> Callable[[Message, Message], Difference | None]:
    def wrong(message: Message, out: Message) -> Difference | None:
        return _differs({**message, "content": _cut(message["content"], head, tail)}, out)

    return wrong


def _parts(message: Message, out: Message) -> Difference | None:
    parts = out.get("content")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return Difference("content", say("a list of parts"), short(parts))
    if [part for part in parts if part.get("type") != "text"] != [IMAGE]:
        return Difference(say("the image"), say("in its place"), short(parts))
    whole, left = (_joined(content) for content in (message["content"], parts))
    if left != _cut(whole, HEAD, TAIL):
        return Difference(say("the texts, joined"), _ends(_cut(whole, HEAD, TAIL)), _ends(left))
    before = _joined(parts[: parts.index(IMAGE)])
    return None if before.startswith(whole[:HEAD]) else Difference(say("before the image"), whole[:HEAD], before)


def _joined(parts: list[Message]) -> str:
    return "".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")


CASES = (
    Case(say("a result that fits exactly"), _result(_text(THRESHOLD)), _same, say("Above the threshold, not at it.")),
    Case(
        say("one character too many"),
        _result(_text(THRESHOLD + 1)),
        _pruned(),
        say("Head, marker, tail: nothing else."),
    ),
    Case(
        say("a very long one"),
        _result(_text(50_000)),
        _pruned(),
        say("However long it was, what is left has head + marker + tail characters."),
    ),
    Case(
        say("characters, not bytes"),
        _result("日志" * 50),
        _same,
        say("These are 100 characters, and 300 bytes: a threshold in bytes would cut three times as early."),
    ),
    Case(
        say("no tail"), _result(_text(500)), _pruned(tail=0), say("text[-0:] is the whole text."), (THRESHOLD, HEAD, 0)
    ),
    Case(
        say("no head"), _result(_text(500)), _pruned(head=0), say("The marker comes first then."), (THRESHOLD, 0, TAIL)
    ),
    Case(
        say("the other keys"),
        _result(_text(500), output_path="spill/1.txt", is_error=True),
        _pruned(),
        say("The id pairs it with its call, and the error is as true as before: carry over every key."),
    ),
    Case(
        say("a long word of the person"),
        user(_text(500)),
        _same,
        say("Only tool results: what a person said is not cut."),
    ),
    Case(
        say("a reply with a call"),
        {**assistant("", call("call_1", "make")), "content": None},
        _same,
        say("A message may have no text at all."),
    ),
    Case(
        say("parts, one of them an image"),
        _result([{"type": "text", "text": _text(90)}, IMAGE, {"type": "text", "text": _text(80)[::-1]}]),
        _parts,
        say("The texts count together, the image is no text and stays where it is."),
    ),
)
IMPOSSIBLE = (THRESHOLD, 50, 20)


def judge(answer: Any) -> list[Finding]:
    """One finding per case, for looking twice, and for impossible sizes. Raises AgentLabError for no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer) or inspect.isclass(answer):
        raise AgentLabError(say("Give check.prune a plain function, without brackets: check.prune(my_prune)."))
    return [*(_judge(case, answer) for case in CASES), _twice(answer), _impossible(answer)]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        given = copy.deepcopy(case.message)
        out = answer(given, *case.sizes)
        if given != case.message:
            return Difference(
                say("what it was given"),
                say("unchanged"),
                say("changed"),
                say("The log holds this very dict: build a new one."),
            )
        if not isinstance(out, dict):
            return Difference(say("what it returns"), say("a message"), short(out))
        return case.wrong(case.message, out)

    found = finding(case, answer, run, fed="", instead=say("a message"), why=case.why)
    return found if found.passed else replace(found, fed=_fed(case.message, case.sizes))


def _fed(message: Message, sizes: tuple[int, int, int]) -> str:
    content = message["content"]
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    size = ", ".join(
        say("{size:,} characters", size=len(part["text"])) if "text" in part else say("an image") for part in parts
    )
    return say(
        "{role}, {size}; threshold {threshold}, head {head}, tail {tail}",
        role=message["role"],
        size=size,
        threshold=sizes[0],
        head=sizes[1],
        tail=sizes[2],
    )


def _twice(answer: Any) -> Finding:
    length = 0
    case = Case(say("every length, and a second look"), {}, _same, "")
    why = say(
        "The view is looked at before every request. A second look must find nothing to do, and a cut must save room."
    )

    def run() -> Difference | None:
        nonlocal length
        for length in range(THRESHOLD - 5, THRESHOLD + 60):
            message = _result(_text(length))
            once = answer(dict(message), THRESHOLD, HEAD, TAIL)
            if once != message and len(once["content"]) >= length:
                return Difference(
                    say("its length"), say("less than {length}", length=length), str(len(once["content"]))
                )
            if (twice := answer(dict(once), THRESHOLD, HEAD, TAIL)) != once:
                return Difference(say("the second look"), once["content"], short(twice["content"]))
        return None

    found = finding(case, answer, run, fed="", instead=say("a message"), why=why)
    return (
        found
        if found.passed
        else replace(found, fed=say("a result of {length} characters, and what came of it", length=length))
    )


def _impossible(answer: Any) -> Finding:
    name = say(
        "head {head}, marker {marker}, tail {tail} for a threshold of {threshold}",
        head=IMPOSSIBLE[1],
        marker=len(MARKER),
        tail=IMPOSSIBLE[2],
        threshold=THRESHOLD,
    )
    try:
        out = answer(_result(_text(THRESHOLD + 1)), *IMPOSSIBLE)
    except Exception:
        return Finding(name, True)
    size = len(str(out.get("content"))) if isinstance(out, dict) else 0
    why = say(
        "What is left is longer than the threshold, and longer than it was. Say so at once, and not in a session."
    )
    return Finding(
        name,
        False,
        False,
        say("{threshold} characters", threshold=THRESHOLD + 1),
        say("the sizes"),
        "ValueError",
        say("{size} characters", size=size),
        why,
    )


WINDOW = 3_000
_KNOWN = "\n".join(f"test_{n:03} is old" for n in range(160))
QUESTION = f"Which test fails? I paste what I know of the tests:\n{_KNOWN}\nAnd which machine is it?"
RIGHT = "test_leap fails, on machine ci-7."
OUTPUTS = {
    "machine": "machine: ci-7\n" + "\n".join(f"package {n:03}: installed, version {n}.0" for n in range(900)),
    "tests": "\n".join(f"test_{n:03} ... ok" for n in range(900)) + "\n1 failed: test_leap",
}


def _story(request: dict[str, Any]) -> Message | str:
    """Ask for both outputs, one after the other, and answer from what can be seen of them."""
    messages = request["messages"]
    if [message["content"] for message in messages if message["role"] == "user"] != [QUESTION]:
        return "Somebody has cut what the person said."
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    if len(results) < len(OUTPUTS):
        return assistant("", call(f"call_{len(results) + 1}", list(OUTPUTS)[len(results)]))
    if "machine: ci-7" not in results[0]:
        return "I do not see any more which machine it was: that stood at the very beginning."
    return RIGHT if "failed: test_leap" in results[1] else "I do not see how the tests ended."


def _turn(answer: Any, sent: list[list[Message]]) -> Turn:
    registry = Registry()

    @registry.tool(read_only=True)
    def machine() -> str:
        """Describe this machine."""
        return OUTPUTS["machine"]

    @registry.tool(read_only=True)
    def tests() -> str:
        """Run the tests."""
        return OUTPUTS["tests"]

    def before_request(history: list[Message]) -> list[Message]:
        view = [answer(message, 2_000, 1_200, 300) for message in history]
        sent.append(view)
        return view

    client = Simulator(_story, context_window=WINDOW).client()
    return run_turn([user(QUESTION)], client, registry, hooks=Hooks(before_request=before_request))


def turn(answer: Any) -> Turn:
    """A turn whose two tool results are each larger than the window; every message passes through the answer."""
    return _turn(answer, [])


def live(answer: Any) -> Live:
    """Run the turn: the right answer, one that names what cannot be seen, or the provider's refusal."""
    sent: list[list[Message]] = []
    return run_live(_turn(answer, sent), sent, answer, right=RIGHT)


def solution(message: Message, threshold: int, head: int, tail: int) -> Message:
    if head + len(MARKER) + tail > threshold:
        raise ValueError("head, marker and tail are more than the threshold")
    content: Any = message.get("content")
    whole = isinstance(content, str)
    parts: list[Message] = [{"type": "text", "text": content}] if whole else content or []
    total = sum(len(part.get("text", "")) for part in parts)
    if message["role"] != "tool" or total <= threshold:
        return message
    kept, at, behind = [], 0, total - tail
    for part in parts:
        if "text" in part:
            text, end = part["text"], at + len(part["text"])
            marker = MARKER if at <= head < end else ""
            left = text[: max(0, head - at)] + marker + text[max(0, behind - at, head - at) :]
            part, at = {**part, "text": left}, end
        kept.append(part)
    return {**message, "content": kept[0]["text"] if whole else kept}


prune = Exercise("prune", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
