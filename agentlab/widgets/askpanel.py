"""`AskPanel`: Allow and Deny buttons for the questions of a policy, `Policy(ask=AskPanel())`.

    tool, input -> a row: what shall run, with which arguments, Allow, Deny -> a click -> True or False
                                                   Stop, an error, nobody there -> the call does not run

Every question has buttons of its own and keeps its place when it is answered: a click that comes too late, or twice,
never answers another question. The arguments come from a model: escaped, bounded, each on lines of its own, so that a
long one cannot push the next out of sight; what is left out is counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from agentlab import jsonio
from agentlab.draw import element, html, shown
from agentlab.draw.base import ANSWERS, MONO, SMALL, Html, count, visible
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.permissions import Subject
from agentlab.widgets.streamed import awake

ROWS = 20
ARGUMENTS = 12
NAME_CHARS = 60
VALUE_CHARS = 400
OPEN, ALLOWED, DENIED, GONE = "waits for an answer", "allowed", "denied", "not answered"  # keys of ANSWERS


class Question(widgets.VBox):  # type: ignore[misc]
    """One question with its two buttons. Made inside the loop that waits for the answer; clicks may come from any
    thread."""

    def __init__(self, tool: Subject, input: dict[str, Any]) -> None:
        self.state = OPEN
        self.pressed = False
        self._what = described(tool.name, input)
        self._answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._text = widgets.HTML()
        self.allow = self._button(say("Allow"), "check", "agentlab-allow", True)
        self.deny = self._button(say("Deny"), "times", "agentlab-deny", False)
        super().__init__([self._text, widgets.HBox([self.allow, self.deny])])
        self._draw()

    def _button(self, name: str, icon: str, css_class: str, answer: bool) -> widgets.Button:
        button = widgets.Button(description=name, icon=icon, layout={"width": "90px"})
        button.add_class(css_class)
        button.on_click(lambda _: self._clicked(answer))
        return button

    def _clicked(self, answer: bool) -> None:
        self.pressed = True
        with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            self._answer.get_loop().call_soon_threadsafe(self._settle, answer)

    def _settle(self, answer: bool) -> None:
        if not self._answer.done():  # the first click counts
            self._answer.set_result(answer)

    async def answered(self, wait_s: float | None) -> bool:
        """The answer. However the waiting ends, the buttons are dead after it."""
        try:
            with awake():
                answer = await asyncio.wait_for(self._answer, wait_s)
            self.state = ALLOWED if answer else DENIED
        except TimeoutError:
            return False
        finally:
            if self.state == OPEN:
                self.state = GONE
            self.allow.disabled = self.deny.disabled = True
            self._draw()
        return answer

    def throw_away(self) -> None:
        """Take it and all its parts out of the kernel and the page."""
        for widget in (self, *self.children, self.allow, self.deny):
            widget.layout.close()
            widget.close()

    def picture(self) -> Html:
        """The question without its buttons."""
        look = ANSWERS[self.state]
        style = f"{look.css};padding:1px 6px;border-radius:3px"
        said = element("span", f"{look.sign} {shown(self.state)}", style=style)
        return html(element("div", said, style=SMALL), self._what)

    def _draw(self) -> None:
        self._text.value = self.picture().markup


class AskPanel(widgets.VBox):  # type: ignore[misc]
    """Puts a policy's questions to the person in front of the notebook: `Policy(ask=AskPanel())`.

    It appears in the cell that is running when a question comes. `wait_s` is how long it waits for a click, in seconds,
    None for as long as it takes. Without a notebook, and when the time is up, the answer is no.

    `script` clicks in a run without a person: its answers are taken in turn, and when it is used up the answer is no.
    `answer_next` answers one question. Raises AgentLabError for an answer that is not True or False.
    """

    def __init__(self, *, script: Iterable[bool] | None = None, wait_s: float | None = None) -> None:
        self._alone = script is not None
        self._answers: deque[bool] = deque(_yes_or_no(answer) for answer in script or ())
        self._wait_s = wait_s
        self._shown_in: object = None  # the number of the cell
        self.questions: list[Question] = []
        """The newest questions, at most 20 and all that are open, oldest first."""

        super().__init__()
        self.add_class("agentlab-ask")

    async def __call__(self, tool: Subject, input: dict[str, Any]) -> bool:
        """Put the question, and wait for the click."""
        question = Question(tool, input)
        self._add(question)
        if self._answers:
            (question.allow if self._answers.popleft() else question.deny).click()
        elif self._alone or not self._show():
            question.deny.click()
        return await question.answered(self._wait_s)

    def answer_next(self, answer: bool) -> None:
        """Click for a person: the oldest question that is open, or else the next one that comes."""
        answer = _yes_or_no(answer)
        for question in self.questions:
            if question.state == OPEN and not question.pressed:
                (question.allow if answer else question.deny).click()
                return
        self._answers.append(answer)

    def _add(self, question: Question) -> None:
        old = [each for each in self.questions if each.state != OPEN]
        gone = old[: max(0, len(self.questions) + 1 - ROWS)]
        self.questions = [each for each in self.questions if each not in gone] + [question]
        self.children = self.questions
        for each in gone:
            each.throw_away()

    def _show(self) -> bool:
        """Show the panel in the cell that runs, once. Whether anybody can see it."""
        shell = get_ipython()
        if getattr(shell, "kernel", None) is not None and self._shown_in != _cell():
            display(self)  # type: ignore[no-untyped-call]
        return self._shown_in is not None

    def picture(self) -> Html:
        """All questions and what became of them."""
        return html(*(question.picture() for question in self.questions))

    def __repr__(self) -> str:
        states = [shown(question.state) for question in self.questions]
        said = ": ".join(filter(None, [count(len(states), "question"), ", ".join(states)]))
        return say("ask: {what}", what=said)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any] | None:
        """The live widget, and for readers without a kernel the questions as they stand."""
        self._shown_in = _cell()
        bundle: dict[str, Any] | None = super()._repr_mimebundle_(**kwargs)
        return bundle if bundle is None else bundle | {"text/plain": repr(self), "text/html": self.picture().markup}


def described(name: str, input: dict[str, Any]) -> Html:
    """A call as a person has to see it before they allow it: every argument on lines of its own."""
    rows = []
    for key, value in list(input.items())[:ARGUMENTS]:
        text = f"{visible(key, limit=NAME_CHARS)}: {visible(_text(value), limit=VALUE_CHARS)}"
        rows.append(element("div", text, style="white-space:pre-wrap;overflow-wrap:anywhere;padding-left:16px"))
    if more := len(input) - ARGUMENTS:
        rows += [element("div", say("… and {what}", what=count(more, "more argument")))] if more > 0 else []
    title = element("div", visible(name, limit=NAME_CHARS), style="font-weight:bold")
    return element("div", title, *rows, style=f"{MONO};line-height:1.5")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return jsonio.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return say("<a value of type {kind} that is no JSON>", kind=type(value).__name__)


def _yes_or_no(answer: bool) -> bool:
    if not isinstance(answer, bool):
        given = visible(repr(answer), limit=40)
        raise AgentLabError(say("{given} is no answer to Allow or Deny. Give True or False.", given=given))
    return answer


def _cell() -> object:
    """What tells one run of a cell from another; never None."""
    return getattr(get_ipython(), "execution_count", "no notebook")
