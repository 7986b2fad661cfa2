"""A stream's bytes as they arrived: characters on wrapped lines, with a mark at every place where a chunk was cut.

Where does a cut fall? Four classes, from harmless to nasty; the first that holds from the bottom up is the answer:

1. `between lines`: the bytes before it end with a line ending.
2. `inside a line`: a line buffer must wait for the rest.
3. `inside JSON`: the line, or what stands behind its `data:`, has begun a JSON object or array and does not parse yet.
4. `inside a character`: within the UTF-8 bytes of one character, which must be decoded incrementally.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from agentlab import jsonio
from agentlab.draw.base import FRAME, HOVER_LIMIT, MONO, Html, Ink, chip, count, element, frame, legend, number, visible
from agentlab.draw.pieces import WIDTH

LIMIT = 2_000

CUTS = {
    look.name: look
    for look in (
        Ink("between lines", "L", "#8fd19a"),
        Ink("inside a line", "M", "#80b9ea", "dashed"),
        Ink("inside JSON", "J", "#f3c35b", "dotted"),
        Ink("inside a character", "C", "#ee8f86", "double"),
    )
}
_PAYLOAD = re.compile(rb"(?:data:)? *(?!\[DONE\])([{\[])")
_SPECIAL = re.compile("([\udc80-\udcff]+|\r\n|\r|\n)")
_SHADES = ("rgba(128,128,128,0.10)", "rgba(128,128,128,0.28)")


def cut_kind(data: bytes, cut: int) -> str:
    """Which of the four classes (a key of `CUTS`) a cut before byte `cut` belongs to."""
    before, after = data[max(cut - 4, 0) : cut], data[cut : cut + 1]
    if after and after[0] & 0xC0 == 0x80 and _unfinished(before):
        return "inside a character"
    if cut <= 0 or cut >= len(data) or before.endswith(b"\n") or (before.endswith(b"\r") and after != b"\n"):
        return "between lines"
    line = max(data.rfind(b"\n", 0, cut), data.rfind(b"\r", 0, cut - 1)) + 1
    payload = _PAYLOAD.match(data, line)
    return (
        "inside JSON"
        if payload and payload.start(1) < cut and _unparsed(data[payload.start(1) : cut])
        else "inside a line"
    )


def _unparsed(payload: bytes) -> bool:
    try:
        jsonio.loads(payload)
    except ValueError:
        return True
    return False


def _unfinished(before: bytes) -> bool:
    """Do these bytes end with the beginning of a UTF-8 character that wants more bytes?"""
    for back in range(1, min(len(before), 3) + 1):
        byte = before[-back]
        if byte & 0xC0 != 0x80:
            return back < (4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1)
    return False


def bytes_view(
    data: bytes,
    *,
    cuts: Iterable[int] = (),
    marks: Iterable[tuple[int, int, str]] = (),
    limit: int = LIMIT,
    width: int = WIDTH,
) -> Html:
    """The first `limit` bytes as text: neighbouring chunks in two shades, and a lettered mark at every cut.

    `cuts` are positions in bytes; `marks`, `(start, end, label)`, underline a range. Line endings are shown. Bytes of a
    character that a cut parts, and bytes that are no UTF-8, are shown as two hexadecimal digits each.
    """
    places = sorted({cut for cut in cuts if 0 < cut < len(data)})
    kinds = [cut_kind(data, cut) for cut in places]
    ranges = sorted((max(start, 0), end, str(label)) for start, end, label in marks)[:LIMIT]
    shown = min(len(data), limit)
    edges = sorted({0, shown, *(c for c in places if c < shown), *(e for r in ranges for e in r[:2] if 0 < e < shown)})
    body: list[Html] = []
    for start, end in pairwise(edges):
        chunk = bisect_right(places, start)
        if chunk and places[chunk - 1] == start:
            hover = f"cut {number(chunk)}, before byte {number(start)}: {kinds[chunk - 1]}"
            body.append(chip(CUTS[kinds[chunk - 1]], hover=hover))
        label = next((text for left, right, text in ranges if left <= start < right), None)
        line = ";text-decoration:underline" if label is not None else ""
        hover = f"bytes {number(start)} to {number(end - 1)}, chunk {number(chunk + 1)}"
        hover += f" · {visible(label, limit=HOVER_LIMIT)}" if label is not None else ""
        style = f"background-color:{_SHADES[chunk % 2]}{line}"
        body.append(element("span", *_characters(data[start:end]), title=hover, style=style))
    tally = Counter(kinds)
    words = f"{count(len(data), 'byte')}, {count(len(places), 'cut')}"
    left_out = f" · the first {number(shown)} bytes, {number(len(data) - shown)} more" if shown < len(data) else ""
    box = f"{FRAME};border-radius:3px;padding:4px 6px;{MONO};white-space:pre-wrap;word-break:break-all;line-height:1.7"
    return frame(
        element("div", words + left_out, style="margin-bottom:2px"),
        element("div", *body, style=box),
        legend((look, f"cut {name} {number(tally[name])}") for name, look in CUTS.items() if tally[name]),
        width=width,
        label=f"bytes: {words}" + "".join(f", {name} {tally[name]}" for name in CUTS if tally[name]),
    )


def _characters(data: bytes) -> Iterator[Html | str]:
    """Runs of readable text; line endings and bytes that make no character, each in a box of its own kind."""
    for part in _SPECIAL.split(data.decode("utf-8", "surrogateescape")):
        if part and part[0] in "\r\n":
            yield element("span", part.replace("\r", "\\r").replace("\n", "\\n"), style="opacity:0.6;font-style:italic")
            yield "\n"
        elif part and "\udc80" <= part[0] <= "\udcff":
            digits = " ".join(f"{ord(c) - 0xDC00:02x}" for c in part)
            yield element("span", digits, style="border:1px dotted;border-radius:3px;padding:0 2px")
        elif part:
            yield part
