"""The third exercise of chapter 07: which results of a batch go to files?

The answer is a function of the outputs of one batch and of the limits, all in bytes of UTF-8. It returns the positions
of those that are to be saved. Too few, and the batch does not fit; too many, and the model has to read them back.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from agentlab.check.compare import Difference, finding
from agentlab.check.interrupt import run_live
from agentlab.check.report import Exercise, Finding, Live
from agentlab.errors import AgentLabError, ToolError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.simulator import Simulator
from agentlab.summary import text_of
from agentlab.tools import Registry, ToolResult

HINTS = (
    say(
        "Bytes, not characters: `len(text.encode())`. And both limits are allowed: only what is above one of them goes."
    ),
    say(
        "Sort the positions by size, the largest first: `sorted(range(len(sizes)), key=lambda at: "
        "-sizes[at])` leaves ties in call order. Take one after the other, and stop as soon as both limits "
        "hold."
    ),
    say(
        "What is saved is not gone: `left` bytes of it stay. So replace its size by `left` before you add up again, and"
        " pass over what is no larger than `left`."
    ),
)

LIMITS = {"per_result": 30_000, "per_batch": 200_000, "left": 4_300}


@dataclass(frozen=True)
class Case:
    """The outputs of a batch, as (letter, how many), and the positions that have to go."""

    name: str
    outputs: tuple[tuple[str, int], ...]
    right: tuple[int, ...]
    why: str

    @property
    def texts(self) -> list[str]:
        return [letter * count for letter, count in self.outputs]


def _case(name: str, sizes: Sequence[int], right: Sequence[int], why: str) -> Case:
    return Case(name, tuple(("x", size) for size in sizes), tuple(right), why)


_EXACT = say("A limit is what is still allowed: spill above it, not at it.")
_FIRST = say("The largest first, and stop as soon as it fits: a small one frees little, and costs a read all the same.")

CASES = (
    _case(say("an empty batch"), [], [], say("There is nothing to save.")),
    _case(say("30,000 bytes"), [30_000, 12], [], _EXACT),
    _case(say("30,001 bytes"), [12, 30_001], [1], _EXACT),
    Case(
        say("10,001 characters of three bytes"),
        (("東", 10_001), ("x", 30_000)),
        (0,),
        say("The limit counts bytes of UTF-8."),
    ),
    _case(say("200,000 bytes together"), [29_000] * 6 + [26_000], [], _EXACT),
    _case(say("200,001 bytes together"), [25_000] * 4 + [29_000, 24_000, 24_001, 23_000], [4], _FIRST),
    _case(
        say("ties"),
        [26_000] * 8,
        [0],
        say("The first in call order, so that the same batch always gives the same bytes."),
    ),
    _case(
        say("a large one makes room"),
        [29_000] * 6 + [60_000],
        [6],
        say("60,000 are saved, 4,300 of them stay, and the rest fits: count again after each."),
    ),
    _case(
        say("what stays counts, too"),
        [31_000] * 3 + [29_900] * 6 + [7_701],
        [0, 1, 2, 3],
        say("Without what stays of the saved ones it would fit. It does stay."),
    ),
    _case(
        say("many small ones"),
        [4_200] * 50,
        [],
        say("4,300 bytes would take the place of 4,200: a result is never replaced by a longer one."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.when_to_spill a plain function, without brackets: check.when_to_spill(my_choice).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    runs = [(size, len(list(run))) for size, run in groupby(len(text.encode()) for text in case.texts)]
    told = ", ".join(f"{count} x {size:,}" if count > 1 else f"{size:,}" for size, count in runs)
    fed = say("outputs of {sizes} bytes", sizes=told) if told else say("no outputs")
    return finding(
        case, answer, lambda: _wrong(case, answer), fed=fed, instead=say("a list of positions"), why=case.why
    )


def _wrong(case: Case, answer: Any) -> Difference | None:
    given = case.texts
    found = _positions(answer(given, **LIMITS), len(given))
    if given != case.texts:
        return Difference(
            say("the outputs"),
            say("as they were"),
            say("changed"),
            say("Only look: what is saved is made from this list."),
        )
    if found is None:
        why = say("Positions start at 0.")
        return Difference(say("what it returns"), say("a list or a set of positions"), say("something else"), why)
    if found == set(case.right):
        return None
    return Difference(say("what is saved"), _told(case.right), _told(found))


def _positions(value: Any, count: int) -> set[int] | None:
    """What came back as a set of positions; None when it is anything else."""
    if not isinstance(value, list | tuple | set | frozenset):
        return None
    return set(value) if all(type(at) is int and 0 <= at < count for at in value) else None


def _told(positions: Any) -> str:
    return ", ".join(map(str, sorted(positions))) or say("none")


SIZES = (900, 2_000, 1_600, 3_100, 2_400, 1_200, 2_800)
SMALL = {"per_result": 3_000, "per_batch": 11_000, "left": 300}
WINDOW = 3_200
READS = 2
BROKEN = 4
RIGHT = f"Part {BROKEN} is broken, all others are fine. I read {READS} files back."


def _output(part: int) -> str:
    """What the build of a part prints; what matters stands in the middle."""
    verdict = f"verdict {part}: {'BROKEN' if part == BROKEN else 'fine'}\n"
    line = f"part {part} step nothing\n"
    half = line * ((SIZES[part] - len(verdict)) // (2 * len(line)))
    text = half + verdict + half
    return text + "." * (SIZES[part] - len(text))


def _story(request: dict[str, Any]) -> Message | str:
    """Build all parts in one batch, read back what is not there to be seen, and say which part is broken."""
    messages = request["messages"]
    results = [text_of(message.get("content")) for message in messages if message["role"] == "tool"]
    if not results:
        return assistant("", *[call(f"call_{part}", "build", part=part) for part in range(len(SIZES))])
    seen = re.findall(r"verdict (\d): (\w+)", "\n".join(results))
    missing = sorted(set(range(len(SIZES))) - {int(part) for part, _ in seen})
    reads = len(results) - len(SIZES)
    if missing and reads < len(SIZES):
        return assistant("", call(f"read_{missing[0]}", "read_file", path=f"part-{missing[0]}.txt"))
    broken = [part for part, verdict in seen if verdict == "BROKEN"]
    return f"Part {', '.join(broken)} is broken, all others are fine. I read {reads} files back."


def turn(answer: Any) -> Turn:
    """A batch of seven results in a small window. The answer says which are saved; what is needed is read back."""
    return _start(answer, [])


def _start(answer: Any, sent: list[list[Message]]) -> Turn:
    registry, files = Registry(), dict[str, str]()

    @registry.tool(read_only=True)
    def build(part: int) -> str:
        """Build one part."""
        return _output(part)

    @registry.tool(read_only=True, spillable=False)
    def read_file(path: str) -> str:
        """Find the verdict in a saved output."""
        if path not in files:
            raise ToolError(f"There is no {path}.")
        return next(line for line in files[path].splitlines() if line.startswith("verdict"))

    def save(results: list[ToolResult]) -> list[ToolResult]:
        if any(result.name != "build" for result in results):
            return results
        chosen = _positions(answer([result.output for result in results], **SMALL), len(results)) or set()
        return [_saved(result, at, files) if at in chosen else result for at, result in enumerate(results)]

    client = Simulator(_story, context_window=WINDOW).client()
    hooks = Hooks(after_results=save, before_request=lambda history: sent.append(list(history)))
    return run_turn([user("Build all parts. Which one is broken?")], client, registry, hooks=hooks)


def _saved(result: ToolResult, at: int, files: dict[str, str]) -> ToolResult:
    path = f"part-{at}.txt"
    files[path] = result.output
    short_text = f'{result.output[:110]}\n[...]\n{result.output[-110:]}\n[All of it: read_file("{path}").]'
    return replace(result, output=short_text, output_path=path)


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    sent: list[list[Message]] = []
    ended = run_live(_start(answer, sent), sent, answer, right=RIGHT)
    if not ended.passed and "all others are fine" in ended.said:
        said = say("{said} Of these reads, {reads} would have been enough.", said=ended.said, reads=READS)
        return replace(ended, said=said)
    return ended


def solution(outputs: list[str], per_result: int, per_batch: int, left: int) -> list[int]:
    sizes = [len(text.encode()) for text in outputs]
    chosen = []
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        if sizes[at] <= per_result and sum(sizes) <= per_batch:
            break
        if sizes[at] > left:
            chosen.append(at)
            sizes[at] = left
    return chosen


when_to_spill = Exercise("when_to_spill", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
