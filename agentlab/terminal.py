"""Bytes of a command as the text that a terminal would show in the end.

Colour codes and moves of the cursor go; of a line that is redrawn with carriage returns, such as a progress bar, the
last state stays. `clean` does it for a whole text, `Cleaner` for one that arrives in pieces, in bounded memory. An
output is cleaned before it is counted: what nobody sees must not cost anything. (ECMA-48, for the codes.)
"""

from __future__ import annotations

import codecs
import re

LINE_CHARS = 64 * 1024
_CODE_CHARS = 4 * 1024

_ANSI = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # strings: window titles, links
    r"|[ -/]*[0-~]"  # character sets, and whatever was cut short
    r"|)"
)  # after this no ESC is left; no code goes on in the next line


def decode(data: bytes) -> str:
    """Bytes as text: a byte that is no UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def without_codes(text: str) -> str:
    """The text without colours and moves of the cursor; its lines stay as many as they are."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def clean(text: str) -> str:
    """The text without codes, and with the last state of redrawn lines. CRLF becomes LF."""
    text = without_codes(text)
    if "\r" not in text:
        return text
    lines = (line.rstrip("\r") for line in text.split("\n"))  # of CRLF, and of a redraw that nothing followed
    return "\n".join(line.rsplit("\r", 1)[-1] for line in lines)


class Cleaner:
    """`clean` for bytes that arrive in pieces, cut anywhere. One line is held back, of about `line_chars` characters.

    The pieces together are the same text as `clean` gives for the whole, as long as no line is longer than that. Of a
    longer one, what has been given out already cannot be redrawn any more.
    """

    def __init__(self, line_chars: int = LINE_CHARS) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""
        self._line_chars = line_chars

    def feed(self, data: bytes) -> str:
        """Take the next bytes; returns the text that is certain by now."""
        text = self._held + self._decode(data)
        end = text.rfind("\n") + 1
        self._held = text[end:]
        return clean(text[:end]) + (self._overlong() if len(self._held) > self._line_chars else "")

    def close(self) -> str:
        """The rest, once all bytes have come."""
        text, self._held = self._held + self._decode(b"", True), ""
        return clean(text)

    def _overlong(self) -> str:
        """Make the line that is held back shorter: by what was redrawn, or else by giving out its start."""
        code = self._held.rfind("\x1b", max(0, len(self._held) - _CODE_CHARS))  # it may not have ended yet
        line, rest = (self._held, "") if code < 0 else (self._held[:code], self._held[code:])
        line = _ANSI.sub("", line)
        drawn = line.rstrip("\r")
        last = drawn[drawn.rfind("\r") + 1 :]
        rest = ("\r" if len(drawn) < len(line) else "") + rest
        if len(last) <= self._line_chars // 2:
            self._held = last + rest
            return ""
        self._held = rest
        return last
