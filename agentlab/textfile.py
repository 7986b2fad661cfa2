"""Text files as a model reads and edits them: numbered lines out, literal replacements in. Pure functions.

(Seed 003: "read_file" and "edit_file".)
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from agentlab import jsonio
from agentlab.errors import ToolError

BOM = "\ufeff"
LINE_CHARS = 2_000
PAGE_CHARS = 50_000
_PLACES = 20
_SNIFF_BYTES = 8_000
_BLOCK_BYTES = 64 * 1024
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")


def is_text(start: bytes) -> bool:
    """Whether a file that starts like this is text: no NUL in its first 8,000 bytes (git's rule)."""
    return b"\0" not in start[:_SNIFF_BYTES]


def numbered(name: str, file: BinaryIO, *, offset: int, limit: int, column: int, page_chars: int = PAGE_CHARS) -> str:
    """`limit` lines from line `offset` on, each from character `column` on, with line numbers (all count from 1).

    A long line is cut at 2,000 characters and says how to go on; a page ends at `page_chars` characters. The last line
    tells how many lines there are, and where to go on. Memory stays bounded whatever the size of the file, which must
    be seekable. Raises ToolError for a file that is no text, and for an offset behind the end.
    """
    start = file.read(_SNIFF_BYTES)
    if not is_text(start):
        raise ToolError(f"{name} is no UTF-8 text file. Look at it with run_shell (file, xxd, iconv).")
    file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
    shown: list[str] = []
    size = total = 0
    full = False
    for total, text in enumerate(_lines(file, offset, offset + limit, column), 1):
        if text is None or full:
            continue
        line = _show(total, text, column)
        full = size + len(line) > page_chars and bool(shown)
        if not full:
            shown.append(line)
            size += len(line) + 1
    if total == 0:
        return f"{name} is empty."
    if not shown:
        raise ToolError(f"{name} has {total} lines: there is no line {offset}. Use a smaller offset.")
    last = offset + len(shown) - 1
    notes = [f"lines {offset} to {last} of {total}" if (offset, last) != (1, total) else f"{total} lines, all shown"]
    if last < total:
        notes.append(f"go on with offset={last + 1}")
    page, replaced = _UNSHOWABLE.subn("\ufffd", "\n".join(shown))
    if replaced:
        notes.append("bytes that are no UTF-8 text are shown as \ufffd")
    return f"{page}\n[{'; '.join(notes)}]"


def _lines(file: BinaryIO, start: int, stop: int, column: int) -> Iterator[str | None]:
    """Every line of the file: of those from `start` to before `stop` the part to show, None for the others."""
    window, number, ended = _Window(column), 0, True
    while block := file.readline(_BLOCK_BYTES):
        number += ended
        ended = block.endswith(b"\n")
        if not start <= number < stop:
            if ended:
                yield None
            continue
        window.add(block)
        if ended:
            yield window.text
            window = _Window(column)
    if not ended:
        window.add(b"", final=True)
        yield window.text if start <= number < stop else None


class _Window:
    """Of one line the characters from `column` on: as many as are shown, and two more, which hold its end."""

    def __init__(self, column: int) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._skip = column - 1
        self.text = ""

    def add(self, block: bytes, *, final: bool = False) -> None:
        text = self._decode(block, final)
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        self.text += text[skipped : skipped + LINE_CHARS + 2 - len(self.text)]


def _show(number: int, text: str, column: int) -> str:
    if text.endswith("\n"):
        text = text.removesuffix("\n").removesuffix("\r")
    if column > 1 and not text:
        return f"{number:>6}\t[this line ends before character {column}]"
    more = f" [line goes on: offset={number}, limit=1, column={column + LINE_CHARS}]" if len(text) > LINE_CHARS else ""
    return f"{number:>6}\t{text[:LINE_CHARS]}{more}"


@dataclass(frozen=True)
class Edit:
    """One literal replacement."""

    old: str
    new: str
    replace_all: bool = False


def read_edit(data: Any, where: str = "") -> Edit:
    """An edit as a model sends it. Raises ToolError, which starts with `where`, for one that cannot be meant."""
    data = data if isinstance(data, dict) else {}
    old, new = data.get("old_string", data.get("old")), data.get("new_string", data.get("new"))
    replace_all = data.get("replace_all") or False
    if not isinstance(old, str) or not isinstance(new, str):
        raise ToolError(f"{where}old_string and new_string must be text. Nothing was changed.")
    if not isinstance(replace_all, bool):
        raise ToolError(f"{where}replace_all must be true or false. Nothing was changed.")
    if not old:
        raise ToolError(f"{where}old_string must not be empty. To make a new file use write_file. Nothing was changed.")
    if old == new:
        raise ToolError(f"{where}old_string and new_string are the same. Nothing was changed.")
    # a lone surrogate cannot be written, and must not turn into a foreign byte
    return Edit(old, jsonio.sendable(new), replace_all)


def apply_edit(text: str, edit: Edit, *, name: str, where: str = "", earlier: int = 0) -> tuple[str, int]:
    """The text after the edit, and how many places were replaced. Raises ToolError that names the matching lines.

    `earlier` edits have changed the text already, so that its lines are not those of the file.

    A model sees and writes LF, so a line end in `old` matches LF and CRLF alike, and the replacement takes on the line
    ends of its place. Where `old` has a CR of its own, it is taken literally.
    """
    old, new = edit.old, edit.new
    literal = "\r" in old or "\r" not in text
    pattern = re.compile(re.escape(old) if literal else r"\r?\n".join(map(re.escape, old.split("\n"))))
    places = _places(text, pattern)
    if not places:
        raise ToolError(
            f"{where}old_string is not in {name}. {_hint(text, old)}Read the file again and copy the text exactly. "
            "Nothing was changed."
        )
    if len(places) > 1 and not edit.replace_all:
        shown = ", ".join(map(str, dict.fromkeys(places[:_PLACES]))) + (", ..." if len(places) > _PLACES else "")
        behind = ", counted in the text as the edits before it leave it" if earlier else ""
        apart = len(pattern.findall(text)) if len(places) > _PLACES else len(places)
        count = apart if apart >= len(places) else f"more than {_PLACES}"  # so many only because they overlap
        raise ToolError(
            f"{where or 'old_string '}matches {count} places (lines {shown}){behind}. Add text around it until it "
            "matches one, or set replace_all. Nothing was changed."
        )

    def replaced(match: re.Match[str]) -> str:
        return new if literal else new.replace("\r\n", "\n").replace("\n", _line_end(text, match))

    return pattern.subn(replaced, text)


def _line_end(text: str, match: re.Match[str]) -> str:
    """The line end inside of a match, or else the one behind it, or before it."""
    end = match[0].find("\n") + match.start() if "\n" in match[0] else text.find("\n", match.end())
    end = end if end >= 0 else text.rfind("\n", 0, match.start())
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _hint(text: str, old: str) -> str:
    """What copying exactly cannot help against."""
    if "\ufffd" in old:
        return "What is shown as \ufffd is no UTF-8 text: leave it out of old_string. "
    if old.endswith("\n") and text.endswith(old.rstrip("\r\n")):
        return "The file does not end with a line end: leave the last one out of old_string. "
    return ""


def _places(text: str, pattern: re.Pattern[str]) -> list[int]:
    """The lines of the first matches, overlapping ones too."""
    places: list[int] = []
    start, counted, line = 0, 0, 1
    while len(places) <= _PLACES and (found := pattern.search(text, start)):
        line += text.count("\n", counted, found.start())
        counted = found.start()
        places.append(line)
        start = found.start() + (2 if found[0].startswith("\r\n") else 1)  # a line end is one place
    return places
