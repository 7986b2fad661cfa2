"""A chat in a terminal: prompt_toolkit reads, rich colours.

    finished lines                      above, where they scroll away
    the reply's line that still grows   | drawn anew with every piece
    what runs, what is queued           |
    > the person types here             | at any time; Enter sends, queues, or answers a question

Lines go out between two drawings of the lower part, on the one thread that there is, so they never mix with what is
being typed. A question wants Enter: what was half typed when it came is put aside, and never counts as its answer.
"""

from __future__ import annotations

import asyncio
import io
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentlab.chat.opening import Opener
from agentlab.chat.session import Answer, Chat, Kind
from agentlab.errors import AgentLabError

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyPressEvent

try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output
    from prompt_toolkit.output.vt100 import Vt100_Output
    from prompt_toolkit.utils import get_cwidth
    from rich.console import Console
    from rich.text import Text
except ImportError:
    raise AgentLabError(
        "The chat in a terminal needs two more packages: pip install agentlab-kernel[chat]. "
        "Without them it works through a pipe: echo 'say hi' | agentlab chat"
    ) from None

ANSWERS: dict[str, Answer] = {
    "y": "yes", "yes": "yes", "n": "no", "no": "no", "a": "always", "always": "always",
}  # fmt: skip
STYLES: dict[Kind, str] = {"note": "dim", "tool": "cyan", "status": "dim italic", "person": "green", "error": "red"}


class Terminal:
    """The screen. `chat` is set before the prompt runs."""

    chat: Chat

    def __init__(self) -> None:
        self._output = create_output()
        if isinstance(self._output, Vt100_Output):
            self._output.enable_cpr = False  # its answers would arrive among the keys
        self._tail = ""  # of the reply: the line that still grows
        self._lock = asyncio.Lock()
        self._question = ""
        self._answer: asyncio.Future[Answer] | None = None
        self.session: PromptSession[str] = PromptSession(
            self._message, output=self._output, key_bindings=self._keys(), erase_when_done=True
        )

    async def run(self) -> None:
        """Let the person type until they leave."""
        with suppress(EOFError, KeyboardInterrupt):
            await self.session.prompt_async(set_exception_handler=False)

    # --- what is shown

    def text(self, piece: str) -> None:
        *whole, self._tail = (self._tail + piece.replace("\t", "    ")).split("\n")
        while get_cwidth(self._tail) >= self._columns:
            head, self._tail = _cut(self._tail, self._columns - 1)
            whole.append(head)
        if piece == "\n" and whole == [""]:  # the end of a reply whose line had ended already
            return
        self._above(whole, "")

    def line(self, text: str, kind: Kind = "note") -> None:
        if self._tail and kind != "person":  # what is typed meanwhile does not cut the reply's line in two
            self.text("\n")
        self._above(text.split("\n"), STYLES[kind])

    def _above(self, lines: list[str], style: str) -> None:
        """Finished lines over the lower part, which is drawn anew below them."""
        app = self.session.app
        if lines:
            drawn = "".join(self._coloured(line, style) for line in lines)
            if app.is_running:
                app.renderer.erase()
            self._output.write_raw(drawn)
            self._output.flush()
        app.invalidate()

    def _coloured(self, line: str, style: str) -> str:
        """A line with its colour; a terminal wraps a long one itself, so that it is copied as one."""
        buffer = io.StringIO()
        console = Console(file=buffer, force_terminal=True, width=self._columns, highlight=False)
        console.print(Text(line, style=style), soft_wrap=True)
        return buffer.getvalue()

    @property
    def _columns(self) -> int:
        return max(20, self._output.get_size().columns)

    def _message(self) -> StyleAndTextTuples:
        lines: StyleAndTextTuples = [("", f"{self._tail}\n")] if self._tail else []
        if self._question:
            return [*lines, ("bold", f"{self._question} [y]es, [n]o, [a]lways in this session: ")]
        if self.chat.busy:
            queued = f" · {self.chat.queued} queued" if self.chat.queued else ""
            lines.append(("fg:ansibrightblack", f"working · Ctrl+C stops, Enter queues{queued}\n"))
        return [*lines, ("bold", "> ")]

    def changed(self) -> None:
        self.session.app.invalidate()

    # --- what is typed

    async def ask(self, question: str) -> Answer:
        async with self._lock:
            buffer = self.session.default_buffer
            draft = buffer.text
            buffer.reset()
            self._question, self._answer = question, asyncio.get_running_loop().create_future()
            self.changed()
            try:
                answer = await self._answer
            finally:
                self._question, self._answer = "", None
                self.draft(draft)
            self.line(f"{question} {answer}", "person")
            return answer

    def draft(self, text: str) -> None:
        self.session.default_buffer.text = text
        self.session.default_buffer.cursor_position = len(text)

    def leave(self) -> None:
        if self.session.app.is_running:
            self.session.app.exit(result="")

    def _entered(self, text: str) -> None:
        if self._answer and not self._answer.done():
            answer = ANSWERS.get(text.strip().lower())
            if answer:
                self._answer.set_result(answer)
                return
            if not text.strip():
                return
            self.line("The question is open: answer y, n or a.")
        elif text.strip() and not self.chat.busy and not text.startswith("/"):
            self.line(f"> {self.chat.show.text(text, limit=5_000)}", "person")
        self.chat.submit(text)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter", filter=~is_searching)
        def enter(event: KeyPressEvent) -> None:
            text = event.current_buffer.text
            event.current_buffer.reset(append_to_history=not self._question)
            self._entered(text)

        def pressed(event: Any) -> None:
            if self.chat.interrupt():
                self.leave()
            elif not self.chat.busy:
                event.app.current_buffer.reset()
                self.line("Ctrl+C again leaves, and so does Ctrl+D.")

        keys.add("c-c")(pressed)
        keys.add("<sigint>")(pressed)
        return keys


def _cut(text: str, width: int) -> tuple[str, str]:
    """The text up to a space where there is one, at most so many columns of it, and the rest."""
    size = used = 0
    for char in text:
        used += get_cwidth(char)
        if used > width:
            break
        size += 1
    space = text.rfind(" ", 1, size + 1)
    at = space if space > 0 else max(1, size)
    return text[:at], text[at:].removeprefix(" ")


async def run(opener: Opener, *, resume: str | None = None) -> int:
    """Chat in this terminal until the person leaves. Returns the exit status, 0."""
    screen = Terminal()
    screen.chat = Chat(opener, screen, resume=resume)
    screen.chat.start()
    with suppress(NotImplementedError):  # not on this system
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, screen.leave)
    try:
        await screen.run()
    finally:
        await screen.chat.leave()
    return 0
