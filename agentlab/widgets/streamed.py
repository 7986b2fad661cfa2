"""`await stream(turn)`: the turn on the screen while it runs, with a Stop button that works.

The cell says `await`, so clicks and Interrupt reach the kernel while the turn runs. Stop asks the turn to
end. Interrupt cancels this coroutine: here, at the very edge, that is taken as "end the turn, keep what came".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from agentlab.draw import element, html
from agentlab.draw.base import FAINT, SMALL, Html, count, visible
from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.language import say
from agentlab.loop import Event, Text, Turn
from agentlab.widgets.live import Live, Throttle, scrolled

STOP_CLASS = "agentlab-stop"
ERROR_LIMIT = 500
LOOK_S = 0.1
REASONS = {
    "done": say("done"),
    "stopped": say("stopped"),
    "interrupted": say("interrupted"),
    "error": say("error"),
}
"""The reasons of a turn that have a word in the reader's language."""


def stop_button(press: Callable[[], None]) -> widgets.Button:
    """A Stop button. `press` may be called from any thread: ipykernel 7.0 to 7.3 click in a subshell's."""
    button = widgets.Button(
        description=say("Stop"), icon="stop", tooltip=say("End this turn and keep what has arrived")
    )
    button.layout.width = "90px"
    button.add_class(STOP_CLASS)
    button.on_click(lambda _: press())
    return button


def status_line(text: str) -> str:
    """The markup of a status line."""
    return element("div", text, role="status", style=f"{SMALL};padding:4px 8px;{FAINT}").markup


def error_text(error: BaseException) -> str:
    """An error in one bounded line."""
    return say("error: {error}", error=f"{type(error).__name__}: {visible(error, limit=ERROR_LIMIT)}")


def how_it_ended(turn: Turn, live: Live) -> str:
    """The turn's reason, and what the loop said about it."""
    return ": ".join(filter(None, [REASONS.get(turn.reason or "", turn.reason) or say("ended"), live.why]))


class StreamPanel(widgets.VBox):  # type: ignore[misc]
    """Stop button, status line and the turn's events."""

    def __init__(self, stop: Stop, *, clock: Callable[[], float]) -> None:
        self.live = Live()
        self.button = stop_button(stop.request)
        self._status = widgets.HTML(status_line(say("running")))
        self._screen = widgets.HTML()
        self._ended: str | None = None
        self._throttle = Throttle(self._draw, clock=clock)
        super().__init__([widgets.HBox([self.button, self._status]), self._screen])
        self.add_class("agentlab-stream")

    def _draw(self) -> None:
        self._screen.value = scrolled(self.live.html()).markup

    def feed(self, event: Event) -> None:
        self.live.feed(event)
        self._throttle.soon()

    def end(self, how: str) -> None:
        """The turn is over: the last update, and no Stop any more."""
        self._ended = how
        self._throttle.close()
        self.button.disabled = True
        self._status.value = status_line(how)

    def snapshot(self) -> Html:
        """The panel as a picture without a kernel."""
        return html(Html(status_line(self._ended or say("running"))), self.live.html())

    def __repr__(self) -> str:
        if not self._ended:
            return say("<stream: a live panel with a Stop button>")
        done = f"{count(self.live.texts, 'piece')}, {count(self.live.calls, 'tool call')}"
        return say("<stream: {how}, {what}>", how=visible(self._ended, limit=ERROR_LIMIT), what=done)


async def stream(
    turn: Turn,
    *,
    click_after: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Turn:
    """Show a turn while it runs, and return it when it is over.

    Stop ends the turn; so does the kernel's Interrupt. Both keep what had arrived, in `turn.history` and on the screen,
    and the cell goes on. An error of the turn is shown and raised; the partial text stays. Every cancellation counts as
    Interrupt and is not passed on, so this belongs in a cell and not in a library.

    `click_after=n` clicks Stop right after the n-th piece of text, so a run without a person ends at the same place.
    `clock`, in seconds, paces the updates.
    """
    if click_after is not None and click_after < 1:
        raise AgentLabError(say("click_after counts pieces of text from 1."))
    panel = StreamPanel(turn.stop, clock=clock)
    display(panel)  # type: ignore[no-untyped-call]
    try:
        with awake():
            async for event in turn:
                panel.feed(event)
                if isinstance(event, Text) and panel.live.texts == click_after:
                    panel.button.click()
    except asyncio.CancelledError:
        turn.stop.request()
        take_back_cancellation()
        panel.end(say("interrupted"))
    except BaseException as error:
        panel.end(error_text(error))
        raise
    else:
        panel.end(how_it_ended(turn, panel.live))
    finally:
        await turn.aclose()
        show_snapshot(repr(panel), panel.snapshot())
    return turn


@contextmanager
def awake() -> Iterator[None]:
    """Let the loop look around `1 / LOOK_S` times a second.

    The kernel hands Interrupt to its loop without waking it (ipykernel 7.4, tornado 6.6), so it would be seen only at
    the next event; while a server is silent there is none.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(LOOK_S, look)

    look()
    try:
        yield
    finally:
        timer.cancel()


def take_back_cancellation() -> None:
    """Say that the current task has dealt with its cancellation, so that a time-out around it counts right."""
    if task := asyncio.current_task():
        task.uncancel()


def show_snapshot(text: str, picture: Html) -> None:
    """For readers without a kernel, what the live panel showed at the end. Where the panel lives, nothing appears.

    Of the forms of one output a live page takes the widget, which is hidden; a saved page shows the picture.
    """
    hidden = widgets.HTML(layout={"display": "none"})
    bundle: dict[str, Any] = hidden._repr_mimebundle_() | {"text/plain": text, "text/html": picture.markup}
    display(bundle, raw=True)  # type: ignore[no-untyped-call]
