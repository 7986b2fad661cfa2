"""The first exercise of chapter 02: an excerpt that keeps the end that matters.

The answer is a function of a text, a cap in characters and a mode, `"head"` or `"tail"`. It is judged by what stands at
both ends and by the number between them, not by the wording.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError, ToolError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.prefix import common_prefix
from agentlab.simulator import Simulator
from agentlab.tools import Registry, ToolResult

HINTS = (
    say(
        "Print `len(my_excerpt(text, cap, mode))` for caps of 100, 50 and 10. The line that says how much "
        "is left out takes room, too: take its length off before you share out the rest."
    ),
    say(
        "The two modes are one: `small = min(200, room // 4)` characters for the end that matters less, "
        "the rest for the other. Only which of them stands in front changes."
    ),
    say(
        "How many digits the number has depends on the number. Make the line for `len(text)` first: it is "
        "never shorter than the right one. When the room is negative, there is only `text[:cap]`, or the "
        "last `cap` characters. Beware of `text[-0:]`, which is the whole text."
    ),
)

_NUMBER = re.compile(r"\d[\d,_]*")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # no text of a case holds a digit, a blank or a line feed


def _text(length: int) -> str:
    """Letters in an order that does not repeat soon, so that every cut shows where it was made."""
    return "".join(LETTERS[(n * n // 7 + n) % 26] for n in range(length))


@dataclass(frozen=True)
class Case:
    """A text of so many letters, a cap, a mode, and what has to be true of the excerpt."""

    name: str
    length: int
    caps: tuple[int, ...]
    mode: str
    wrong: Callable[[str, int, str, str], Difference | None]


def _whole(text: str, cap: int, mode: str, out: str) -> Difference | None:
    if out == text:
        return None
    return Difference(
        say("the excerpt"), say("the text itself"), out, say("What fits needs no cutting, and no line about it.")
    )


def _fits(text: str, cap: int, mode: str, out: str) -> Difference | None:
    if len(out) <= cap:
        return None
    why = say(
        "A cap that is only nearly kept is none: ten of these together overflow the window. Your own line counts."
    )
    return Difference(
        say("its length"), say("at most {cap} characters", cap=cap), say("{size} characters", size=len(out)), why
    )


def _ends(text: str, cap: int, mode: str, out: str) -> Difference | None:
    front, back = _shown(text, out)
    if not front or not back:
        missing, where = (
            (say("the start of the text"), text[:12]) if not front else (say("the end of the text"), text[-12:])
        )
        why = say("The start says what this is, the end how it came out. Of a long text, show some of both.")
        return Difference(missing, say("{where} in its place", where=where), out, why)
    large, small = (back, front) if mode == "tail" else (front, back)
    if large <= small:
        wanted = say("more of the end") if mode == "tail" else say("more of the start")
        why = say("mode names the end that matters: the other one gets a small part.")
        return Difference(
            say("how much of each end"),
            wanted,
            say("{front} characters in front, {back} at the end", front=front, back=back),
            why,
        )
    return None


def _counted(text: str, cap: int, mode: str, out: str) -> Difference | None:
    front, back = _shown(text, out)
    left_out = len(text) - front - back
    numbers = [int(re.sub("[,_]", "", found)) for found in _NUMBER.findall(out)]
    if left_out in numbers:
        return None
    why = say("The model decides by this number whether the rest is worth reading, and where. A wrong one misleads it.")
    got = say("{numbers} in {out}", numbers=", ".join(map(str, numbers)) or say("no number"), out=short(out))
    return Difference(say("the number that is left out"), str(left_out), got, why)


def _shown(text: str, out: str) -> tuple[int, int]:
    """How many characters of the text stand in front of the excerpt, and how many at its end."""
    front, back = common_prefix(text, out), common_prefix(text[::-1], out[::-1])
    return front, min(back, len(out) - front, len(text) - front)


def _all(*checks: Callable[[str, int, str, str], Difference | None]) -> Callable[..., Difference | None]:
    def wrong(text: str, cap: int, mode: str, out: str) -> Difference | None:
        return next((found for check in checks if (found := check(text, cap, mode, out))), None)

    return wrong


CASES = (
    Case(say("a text that fits"), 100, (101, 100), "head", _whole),
    Case(say("a text that fits, with the tail in front"), 100, (101, 100), "tail", _whole),
    Case(say("one character too many"), 401, (400,), "tail", _all(_fits, _ends)),
    Case(say("the head matters"), 5_000, (2_000, 400), "head", _all(_fits, _ends)),
    Case(say("the tail matters"), 5_000, (2_000, 400), "tail", _all(_fits, _ends)),
    Case(say("the number left out, head"), 5_000, (2_000, 1_999, 400), "head", _counted),
    Case(say("the number left out, tail"), 99_999, (2_000, 1_999, 400), "tail", _counted),
    Case(say("every cap from 0 to 300, head"), 1_000, tuple(range(301)), "head", _fits),
    Case(say("every cap from 0 to 300, tail"), 1_000, tuple(range(301)), "tail", _fits),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.tail_excerpt a plain function, without brackets: check.tail_excerpt(my_excerpt).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    text = _text(case.length)
    cap = case.caps[0]

    def run() -> Difference | None:
        nonlocal cap
        for cap in case.caps:
            out = answer(text, cap, case.mode)
            if not isinstance(out, str):
                return Difference(say("what it returns"), say("one text"), short(out), say("The model reads text."))
            if found := case.wrong(text, cap, case.mode, out):
                return found
        return None

    found = finding(case, answer, run, fed="", instead=say("a text"))
    return (
        found
        if found.passed
        else replace(
            found, fed=say("{size:,} letters, cap={cap}, mode={mode!r}", size=case.length, cap=cap, mode=case.mode)
        )
    )


SHOWN_CHARS = 400
RUNS = 3
PASSED = "\n".join(f"test_{n:03} ... ok" for n in range(120))
SLOWEST = "\n".join(f"{9 - n}.0{n} s  test_{n:03}" for n in range(6))
FAILED = f"{PASSED}\ntest_leap_year: 366 != 365\n\nslowest:\n{SLOWEST}\n1 failed, 120 passed\n[exit code 1]"
RIGHT = "No: test_leap_year fails, it has 366 for 365."


def _story(request: dict[str, Any]) -> Message | str:
    """Run the tests, and answer from what can be seen of their output; run them again where that is not the end."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    if results and "test_leap_year" in results[-1]:
        return RIGHT
    if len(results) < RUNS:
        words = "Let me run them." if not results else "I do not see how it ended. I run them again."
        return assistant(words, call(f"call_{len(results) + 1}", "run_tests"))
    return f"I ran the tests {RUNS} times and never saw what failed. The last lines: {short(results[-1][-50:])}"


def turn(answer: Any) -> Turn:
    """A turn of an agent whose results are cut by the answer: the head of those that completed, the tail of others."""
    registry = Registry()

    @registry.tool(read_only=True)
    def run_tests() -> str:
        """Run the tests."""
        raise ToolError(FAILED)

    def cut(results: list[ToolResult]) -> list[ToolResult]:
        modes = ["head" if result.status == "completed" else "tail" for result in results]
        return [
            replace(result, output=str(answer(result.output, SHOWN_CHARS, mode)))
            for result, mode in zip(results, modes, strict=True)
        ]

    hooks = Hooks(after_results=cut)
    return run_turn([user("Do the tests pass?")], Simulator(_story).client(), registry, hooks=hooks)


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    from agentlab.widgets.sync import run_sync

    running = turn(answer)
    try:
        run_sync(running.run())
    except Exception as error:
        return Live(
            False, say("Your function raised in the loop: {error}", error=blame(error, answer)), tuple(running.history)
        )
    said = str(running.history[-1].get("content") or "")
    return Live(said == RIGHT, said, tuple(running.history))


def solution(text: str, cap: int, mode: str = "head") -> str:
    if len(text) <= cap:
        return text
    line = "\n… [{} characters left out] …\n"
    room = cap - len(line.format(len(text)))
    if room < 0:
        return text[:cap] if mode == "head" else text[len(text) - cap :]
    small = min(200, room // 4)
    front, back = (small, room - small) if mode == "tail" else (room - small, small)
    return text[:front] + line.format(len(text) - front - back) + text[len(text) - back :]


tail_excerpt = Exercise("tail_excerpt", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
