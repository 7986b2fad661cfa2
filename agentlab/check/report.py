"""What every exercise shares: run the reader's code on cases, then in a live loop, and say what came of it.

A failed case is never just "wrong": it names the input, what was expected, what came out, and what to look at. Errors
of the reader's code are shown with the line that raised them. Everything that came out of it is escaped and bounded.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import draw
from agentlab.check.progress import note
from agentlab.draw.base import FAINT, MONO, SMALL, count, visible
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Turn
from agentlab.messages import Message

LIMIT = 240
OPEN = 2
"""Failed cases that are shown whole; the others open with a click."""

WIDTH = 860
WHOLE, FOLDED = ("div", "div", "6px"), ("details", "summary", "2px")
"""How a case is shown: its box, its head, the space around it."""
SAID_LIMIT = 2_000


def short(value: object) -> str:
    """Anything as one line of at most `LIMIT` characters. Text stays as it is, all else becomes its `repr`."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:
        text = say("<{kind}, whose repr raises {error}>", kind=type(value).__name__, error=type(error).__name__)
    return visible(text, limit=LIMIT)


@dataclass(frozen=True)
class Finding:
    """What came of one case. `fed` is the input in short; `where` is the part of the answer that is compared.

    `bonus` cases are not needed to pass.
    """

    name: str
    passed: bool
    bonus: bool = False
    fed: str = ""
    where: str = ""
    expected: str = ""
    got: str = ""
    why: str = ""

    def lines(self) -> list[tuple[str, str]]:
        """The details of a failed case: (label, text)."""
        parts = [(say("fed"), self.fed), (say("where"), self.where), (say("expected"), self.expected)]
        parts += [(say("got"), self.got), (say("why"), self.why)]
        return [(label, short(text)) for label, text in parts if text]


@dataclass(frozen=True)
class Live:
    """What came of the loop that ran with the reader's code. `said` is the last word: an answer, or an error."""

    passed: bool
    said: str
    history: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Hint:
    """One hint. It draws itself."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return draw.element("div", self.text, style="white-space:pre-wrap").markup


@dataclass(frozen=True)
class Report:
    """The result of a check. It draws itself; `passed` says whether all that is needed passes."""

    name: str
    findings: tuple[Finding, ...]
    live: Live | None = None

    @property
    def passed(self) -> bool:
        return all(f.passed for f in self.findings if not f.bonus) and (self.live is None or self.live.passed)

    def _score(self, *, bonus: bool) -> dict[str, int]:
        listed = [f for f in self.findings if f.bonus is bonus]
        return {"hits": sum(f.passed for f in listed), "all": len(listed)}

    def _head(self) -> str:
        return say("check.{name}: {hits} of {all} cases pass", name=self.name, **self._score(bonus=False))

    def __repr__(self) -> str:
        lines = [self._head()]
        for bonus in (False, True):
            if bonus and any(f.bonus for f in self.findings):
                lines.append(say("bonus, seen on real servers: {hits} of {all}", **self._score(bonus=True)))
            for finding in self.findings:
                if finding.bonus is bonus:
                    lines.append(f"{'✓' if finding.passed else '✗'} {finding.name}")
                    lines += [f"    {label:9} {text}" for label, text in finding.lines()]
        if self.live:
            lines += [
                say("in the live loop:"),
                f"{'✓' if self.live.passed else '✗'} {visible(self.live.said, limit=SAID_LIMIT)}",
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = draw.element("b", self._head())
        parts: list[Any] = [head, _table([f for f in self.findings if not f.bonus])]
        if bonus := [f for f in self.findings if f.bonus]:
            title = say("Bonus, seen on real servers: {hits} of {all}", **self._score(bonus=True))
            parts.append(draw.element("details", draw.element("summary", title), _table(bonus), style=SMALL))
        if self.live:
            said = draw.element("div", visible(self.live.said, limit=SAID_LIMIT), style=f"white-space:pre-wrap;{SMALL}")
            mark = draw.element("b", f"{say('In the live loop')} {'✓' if self.live.passed else '✗'}")
            parts += [draw.element("div", mark, said, style="margin-top:8px")]
            parts += [draw.strip(self.live.history, caption=say("its history"))] if self.live.history else []
        return draw.html(*parts).markup


def _table(findings: Sequence[Finding]) -> draw.Html:
    """What failed, the first cases open and the others folded up; and what passed, folded up together."""
    failed, passed = ([f for f in findings if f.passed is passed] for passed in (False, True))
    parts = [_case(finding, *(WHOLE if at < OPEN else FOLDED)) for at, finding in enumerate(failed)]
    if passed:
        names = draw.table([("✓", finding.name) for finding in passed])
        box, head, _ = FOLDED
        title = draw.element(head, f"{count(len(passed), 'case')} ✓")
        parts.append(draw.element(box, title, names, style=SMALL))
    return draw.html(*parts)


def _case(finding: Finding, box: str, head: str, space: str) -> draw.Html:
    name = draw.element(head, f"✗ {finding.name}", style="font-weight:bold")
    return draw.element(box, name, *_details(finding), style=f"{SMALL};margin:{space} 0;max-width:{WIDTH}px")


def _details(finding: Finding) -> list[draw.Html]:
    lines = []
    for label, text in finding.lines():
        left = draw.element("div", label, style=f"flex:0 0 66px;{FAINT}")
        style = "min-width:0;overflow-wrap:break-word" + ("" if label == say("why") else f";{MONO}")
        lines.append(draw.element("div", left, draw.element("div", text, style=style), style="display:flex"))
    return lines


class Exercise:
    """One exercise: call it with an answer to check it.

    `judge(answer)` gives the findings of the cases, `turn(answer)` an agent's turn that runs with the answer in it, and
    `live(answer)` what came of such a turn. `solution` is one right answer. `shown` are others that the chapter gives
    away: checking those is no progress.
    """

    def __init__(
        self,
        name: str,
        *,
        judge: Callable[[Any], Sequence[Finding]],
        turn: Callable[[Any], Turn],
        live: Callable[[Any], Live],
        hints: Sequence[str],
        solution: Any,
        shown: Sequence[Any] = (),
    ) -> None:
        self.name = name
        self.turn = turn
        self.solution = solution
        self._judge = judge
        self._live = live
        self._hints = tuple(hints)
        self._shown = (solution, *shown)

    def __call__(self, answer: Any) -> Report:
        """Check an answer: every case, then the live loop. An answer that is the reader's own is noted as progress."""
        report = Report(self.name, tuple(self._judge(answer)), self._live(answer))
        if not any(answer is each or (isinstance(answer, str) and answer == each) for each in self._shown):
            note(self.name, report.passed)
        return report

    def hint(self, number: int) -> Hint:
        """The hint of this number, from 1. Raises AgentLabError when there is none."""
        if not 1 <= number <= len(self._hints):
            known = len(self._hints)
            raise AgentLabError(say("There are {hints}: ask for 1 to {last}.", hints=count(known, "hint"), last=known))
        return Hint(say("Hint {n} of {all}: {hint}", n=number, all=len(self._hints), hint=self._hints[number - 1]))

    def __repr__(self) -> str:
        return say(
            "check.{name}(answer), with .hint(1) to .hint({n}) and .solution", name=self.name, n=len(self._hints)
        )


def blame(error: BaseException, answer: Any) -> str:
    """An error in one bounded line, with the last line of the reader's own code that it came through."""
    text = f"{type(error).__name__}: {short(str(error))}" if str(error) else type(error).__name__
    own = {code.co_filename for code in _codes(answer)}
    place, trace = "", error.__traceback__
    while trace is not None:
        if (file := trace.tb_frame.f_code.co_filename) in own:
            line = linecache.getline(file, trace.tb_lineno).strip()
            place = say(", in your line {n}", n=trace.tb_lineno)
            if line:
                place = say(", in your line: {line}", line=short(line))
        trace = trace.tb_next
    return text + place


def _codes(answer: Any) -> list[Any]:
    """The code objects of a function, or of the methods of a class or an object."""
    if inspect.isfunction(answer):
        return [answer.__code__]
    holder = answer if inspect.isclass(answer) else type(answer)
    members = [member for each in holder.__mro__ for member in vars(each).values()]
    return [member.__code__ for member in members if inspect.isfunction(member)]
