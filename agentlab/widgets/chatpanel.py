"""`chat(agent)`: a chat in a cell's output. Words start a turn, or steer the one that runs; Stop ends it.

The cell returns at once. Each turn runs as a task on the kernel's loop, which the panel keeps until it has ended; an
error is shown in the panel and raised by `settled`. Callbacks may come from any thread (ipykernel 7.0 to 7.3), so each
is handed to the loop that was running when the panel was made.

Enter in a text field sends two messages: first `submit`, then the new value. So words go out when both are there, or
`GRACE_S` after the first when the value had arrived earlier. Leaving the field changes the value and sends nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import ipywidgets as widgets

from agentlab.draw import ROLES, html
from agentlab.draw.base import Html, count
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Steered, Turn
from agentlab.messages import Message
from agentlab.widgets.live import Live, Throttle, line, scrolled, transcript
from agentlab.widgets.streamed import (
    awake,
    error_text,
    how_it_ended,
    status_line,
    stop_button,
    take_back_cancellation,
)

GRACE_S = 0.15


class Steering(Protocol):
    """Where words wait that are said while a turn runs (`agentlab.steer.SteerQueue`)."""

    def put(self, text: str) -> None: ...
    def __len__(self) -> int: ...


class ChatAgent(Protocol):
    """What the panel needs of an agent (`agentlab.agent.Agent` is one)."""

    @property
    def history(self) -> list[Message]: ...
    @property
    def steer(self) -> Steering: ...
    def send(self, text: str, /) -> Turn: ...


class ChatPanel(widgets.VBox):  # type: ignore[misc]
    """Transcript, input, Send and Stop. `say`, `stop` and `await settled()` do from code what a person does."""

    def __init__(self, agent: ChatAgent, *, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise AgentLabError(
                say("chat() needs a running loop: call it in a notebook's cell, or inside a coroutine.")
            ) from None
        self._agent = agent
        self._clock = clock
        self._past = transcript(agent.history)
        self._live = Live()
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._errors: list[Exception] = []
        self._screen = widgets.HTML()
        self._status = widgets.HTML(status_line(say("ready")))
        self.input = widgets.Text(
            placeholder=say("Say something; while a turn runs it steers"),
            description=say("You"),
            style={"description_width": "initial"},
            continuous_update=False,
        )
        self.input.layout = {"width": "auto", "flex": "1 1 240px"}
        self.input.add_class("agentlab-chat-input")
        self.submit = widgets.Button(description=say("Send"), icon="paper-plane", layout={"width": "90px"})
        self.submit.add_class("agentlab-chat-send")
        self.button = stop_button(lambda: self._later(self._request_stop))
        self.button.disabled = True
        super().__init__([self._screen, widgets.HBox([self.input, self.submit, self.button]), self._status])
        self.add_class("agentlab-chat")
        self.submit.on_click(lambda _: self._later(self._submitted))
        self.input.on_msg(
            lambda _, content, __: self._later(self._submitted) if content.get("event") == "submit" else None
        )
        self.input.observe(lambda _: self._later(self._value_arrived), "value")
        self._draw()

    def say(self, text: str) -> None:
        """Type the words and send them."""
        self.submit.click()
        self.input.value = text

    def stop(self) -> None:
        """Click Stop."""
        self.button.click()

    async def settled(self) -> None:
        """Wait until nothing runs. Raises the first error of a turn since the last call.

        Interrupt stops the turn and goes on waiting for its end; a second Interrupt ends the waiting.
        """
        interrupted = False
        while True:
            await asyncio.sleep(0)  # the loop takes what has been clicked and typed
            if self._task is None and self._sending is None:
                break
            try:
                with awake():
                    await (asyncio.wait([self._task]) if self._task else asyncio.sleep(GRACE_S))
            except asyncio.CancelledError:
                if interrupted or self._turn is None:
                    raise
                interrupted = True
                self._request_stop()
                take_back_cancellation()
        if self._errors:
            errors, self._errors = self._errors, []
            raise errors[0]

    def _later(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _submitted(self) -> None:
        if self._sending is None:
            self._sending = self._loop.call_later(GRACE_S, self._take_words)

    def _value_arrived(self) -> None:
        if self._sending is not None:
            self._take_words()

    def _take_words(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        text, self.input.value = self.input.value, ""
        if not text.strip():
            return
        if self._turn is not None:
            self._agent.steer.put(text)
            self._show_running()
            return
        self._past = html(transcript(self._agent.history), line(ROLES["user"], text))
        self._live = Live()
        try:
            self._turn = self._agent.send(text)
        except Exception as error:
            self.input.value = text  # the words are not lost
            self._failed(error)
        else:
            self._task = self._loop.create_task(self._run(self._turn))
            self.button.disabled = False
            self._show_running()

    async def _run(self, turn: Turn) -> None:
        throttle = Throttle(self._draw, clock=self._clock)
        how = ""
        try:
            async for event in turn:
                self._live.feed(event)
                throttle.soon()
                if isinstance(event, Steered):
                    self._show_running()
            how = how_it_ended(turn, self._live)
        except asyncio.CancelledError:
            turn.stop.request()
            take_back_cancellation()
            how = say("interrupted")
        except Exception as error:
            self._errors.append(error)
            how = error_text(error)
        finally:
            await turn.aclose()
            self._turn = self._task = None
            self.button.disabled = True
            self._past, self._live = transcript(self._agent.history), Live()
            throttle.close()
            waiting = len(self._agent.steer)
            left = say("{messages} waiting for the next turn", messages=count(waiting, "message"))
            self._show(f"{how} · {left}" if waiting else how)

    def _failed(self, error: Exception) -> None:
        self._errors.append(error)
        self._show(error_text(error))
        self._draw()

    def _request_stop(self) -> None:
        if self._turn is not None:
            self._turn.stop.request()

    def _draw(self) -> None:
        self._screen.value = scrolled(self._picture()).markup

    def _picture(self) -> Html:
        return html(self._past, self._live.html())

    def _show_running(self) -> None:
        waiting = len(self._agent.steer)
        said = say("{messages} waiting to go in", messages=count(waiting, "message"))
        self._show(f"{say('running')} · {said}" if waiting else say("running"))

    def _show(self, status: str) -> None:
        self._status.value = status_line(status)

    def __repr__(self) -> str:
        return f"chat({count(len(self._agent.history), 'message')})"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any] | None:
        """The live widget, and for readers without a kernel the conversation as it stands."""
        bundle: dict[str, Any] | None = super()._repr_mimebundle_(**kwargs)
        return bundle if bundle is None else bundle | {"text/plain": repr(self), "text/html": self._picture().markup}


def chat(agent: ChatAgent, *, clock: Callable[[], float] = time.monotonic) -> ChatPanel:
    """A chat panel for a notebook. Words that are said while a turn runs steer it, else they start a turn.

    `agent` has `send(text) -> Turn`, `history` and `steer`. `clock`, in seconds, paces the updates. Raises
    AgentLabError where no loop is running.
    """
    return ChatPanel(agent, clock=clock)
