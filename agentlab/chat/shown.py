"""What a model, a tool or a file says, as text that may reach a terminal: no control codes, bounded, without keys.

    text -> codes out, the rest of the invisible made visible -> keys masked -> at most so many lines and characters

A terminal obeys what it is sent: a title, a colour, a faked question. So nothing but printable characters, line feeds
and tabs gets through. A key in the environment is masked wherever it turns up, in a stream of small pieces too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlab import jsonio
from agentlab.draw.base import visible
from agentlab.redact import Secrets
from agentlab.terminal import clean

LINE_CHARS = 500
OUTPUT_LINES = 8
OUTPUT_CHARS = 1_000
ARGUMENTS = 12
VALUE_LINES = 20
VALUE_CHARS = 2_000
NAME_CHARS = 80


class Shown:
    """Makes text fit to be shown. `environ` holds the keys that are masked."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._secrets = Secrets.of(environ)
        self._keys = [
            value.strip() for name, value in environ.items() if Secrets.of({name: value}).mask(value) != value
        ]
        self._held = ""

    def piece(self, text: str) -> str:
        """A piece of a stream. What may be the start of a key is held back until it is known whether it is one."""
        text = str(self._secrets.mask(self._held + text))
        held = max((_overlap(text, key) for key in self._keys), default=0)
        self._held = text[len(text) - held :]
        return visible(text[: len(text) - held], limit=None)

    def rest(self) -> str:
        """The end of a stream: what was held back."""
        text, self._held = self._held, ""
        return visible(text, limit=None)

    def text(self, text: object, *, limit: int = LINE_CHARS) -> str:
        """A whole text with its line feeds, at most `limit` characters of it, and a note of what is left out."""
        return visible(self._secrets.mask(clean(str(text))), limit=limit)

    def line(self, text: object, *, limit: int = LINE_CHARS) -> str:
        """A text in one line."""
        return " ".join(self.text(text, limit=limit).split())

    def output(self, text: str) -> list[str]:
        """The first lines of a tool's output."""
        return self._lines(text, OUTPUT_LINES, OUTPUT_CHARS)

    def call(self, name: str, arguments: Any) -> str:
        """A call in one line. `arguments` as the model wrote them."""
        said = arguments if isinstance(arguments, str) else jsonio.dumps(arguments)
        return f"{self.line(name, limit=NAME_CHARS)} {self.line(said, limit=200)}"

    def arguments(self, input: Mapping[str, Any]) -> list[str]:
        """What a tool would be given, argument by argument; further lines of a value stand behind a bar."""
        lines = []
        for name, value in list(input.items())[:ARGUMENTS]:
            text = value if isinstance(value, str) else jsonio.dumps(value)
            first, *more = self._lines(text, VALUE_LINES, VALUE_CHARS) or [""]
            lines += [f"  {self.line(name, limit=NAME_CHARS)}: {first}", *(f"  | {line}" for line in more)]
        if len(input) > ARGUMENTS:
            lines.append(f"  … and {len(input) - ARGUMENTS} more arguments")
        return lines

    def _lines(self, text: str, most: int, limit: int) -> list[str]:
        lines = self.text(text, limit=limit).rstrip("\n").split("\n")
        if len(lines) > most:
            lines = [*lines[:most], f"… {len(lines) - most} more lines"]
        return [line for line in lines if line] if len(lines) == 1 else lines


def _overlap(text: str, key: str) -> int:
    """How many characters at the end of the text may be the start of the key."""
    longest = min(len(key) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(key[:size])), 0)
