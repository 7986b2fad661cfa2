"""What a running turn looks like on the screen: its events as lines, drawn at most twenty times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from agentlab.draw import ROLES, Html, Ink, element
from agentlab.draw.base import MONO, SMALL, chip, count, html, ink, number, visible
from agentlab.language import say
from agentlab.loop import Called, Compacted, Done, Event, Finished, Steered, Stopped, Text, UsageSeen
from agentlab.messages import Message, calls_of

UPDATES_PER_S = 20
LINES = 60
TEXT_LIMIT = 12_000
LINE_LIMIT = 200


class Throttle:
    """Calls `show` at most `UPDATES_PER_S` times a second, never more than one interval late, and once more at the end.

    `clock` gives seconds. Use it from one running loop only.
    """

    def __init__(self, show: Callable[[], None], *, clock: Callable[[], float]) -> None:
        self._show = show
        self._clock = clock
        self._last: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def soon(self) -> None:
        """Something changed."""
        if self._closed or self._timer is not None:
            return
        wait = 0.0 if self._last is None else self._last + 1 / UPDATES_PER_S - self._clock()
        if wait <= 0:
            self._draw()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait, self._draw)

    def close(self) -> None:
        """Show the last state. Nothing is shown later."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._draw()

    def _draw(self) -> None:
        self._timer = None
        self._last = self._clock()
        self._show()


STATUSES = {
    "completed": say("completed"),
    "failed": say("failed"),
    "rejected": say("rejected"),
    "interrupted": say("interrupted"),
}


class Live:
    """The events of one turn as escaped, bounded lines.

    `texts` and `calls` count what has been seen; `why` is what the loop said about the end, if anything.
    """

    def __init__(self) -> None:
        self.texts = 0
        self.calls = 0
        self.why = ""
        self._lines: list[Html] = []
        self._dropped = 0
        self._open: list[str] = []

    def feed(self, event: Event) -> None:
        """Take in one event of the loop."""
        match event:
            case Text(text):
                self.texts += 1
                self._open.append(text)
            case Called(call):
                self.calls += 1
                self.add(call_line(call))
            case Finished(result):
                output = " ".join(result.output[: 2 * LINE_LIMIT].split())  # its whole length stands before it
                shown = output if len(output) <= LINE_LIMIT else f"{output[:LINE_LIMIT]}…"
                status = STATUSES.get(result.status, result.status)
                head = f"{status}, {count(len(result.output), 'character')}: "
                self.add(line(ROLES["tool result"], head + shown, mono=True, limit=None))
            case Steered(messages):
                for message in messages:
                    self.add(line(ROLES["user"], message.get("content")))
            case Compacted(before, after):
                self.add(
                    line(
                        ink("summarised"),
                        say("compacted: {before} messages became {after}", before=before, after=after),
                    )
                )
            case Done(_, why):
                self.why = why
            case UsageSeen() | Stopped():
                pass

    def add(self, finished: Html) -> None:
        """Add a line below everything so far."""
        self._close_text()
        self._lines.append(finished)
        if len(self._lines) > LINES:
            self._dropped += 1
            del self._lines[0]

    def _close_text(self) -> None:
        if self._open:
            text, self._open = text_block("".join(self._open)), []
            self.add(text)

    def html(self) -> Html:
        """All that is shown now."""
        lines = [*self._lines, *([text_block("".join(self._open))] if self._open else [])]
        if self._dropped:
            lines.insert(0, line(None, f"… {count(self._dropped, 'earlier line')}"))
        return html(*lines)


def scrolled(picture: Html) -> Html:
    """The picture in a box of bounded height that stays at its lower end, where the newest line is."""
    style = "max-height:480px;overflow-y:auto;display:flex;flex-direction:column-reverse"
    return element("div", picture, style=style)


def text_block(text: str) -> Html:
    """Text of the model: its last characters, since the newest are the ones that people read."""
    left_out = len(text) - TEXT_LIMIT
    note = f"{say('[{n} earlier characters]', n=number(left_out))} … " if left_out > 0 else ""
    style = "white-space:pre-wrap;overflow-wrap:break-word;line-height:1.5;padding:3px 0"
    return element("div", note + visible(text[-TEXT_LIMIT:]), style=style)


def line(look: Ink | None, text: object, *, mono: bool = False, limit: int | None = LINE_LIMIT) -> Html:
    """One line with the box of its role or fate before it, at most `limit` characters long."""
    style = f"{SMALL};padding:2px 0;overflow-wrap:break-word{f';{MONO}' if mono else ''}"
    body = visible(text, limit=limit)
    return element("div", chip(look) if look else None, " " if look else None, body, style=style)


def call_line(call: dict[str, Any]) -> Html:
    """A tool call as `name(arguments)`."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return line(ROLES["tool call"], f"{function.get('name')}({function.get('arguments')})", mono=True)


def transcript(history: Iterable[Message], *, last: int = LINES) -> Html:
    """The messages of a history as lines, the last ones, bounded. What nobody wrote carries its origin."""
    every = list(history)
    lines = [line(None, f"… {count(len(every) - last, 'earlier message')}")] if len(every) > last else []
    for message in every[-last:]:
        role, content, origin = message.get("role"), message.get("content"), message.get("origin")
        if origin:
            lines.append(line(ink("repaired"), f"{origin}: {content}"))
        elif role == "assistant":
            lines += [text_block(str(content))] if content else []
            lines += map(call_line, calls_of(message))
        else:
            look = {"tool": ROLES["tool result"]}.get(str(role)) or ink(str(role))
            lines.append(line(look, content, mono=role == "tool"))
    return html(*lines)
