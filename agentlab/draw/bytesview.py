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
from agentlab.draw.base import CUTS, FAINT, FRAME, HOVER_LIMIT, MONO, TINTS, Html, chip, element, frame, legend, visible
from agentlab.draw.pieces import WIDTH
from agentlab.draw.words import count, number, shown
from agentlab.language import say

LIMIT = 2_000

_PAYLOAD = re.compile(rb"(?:data:)? *(?!\[DONE\])([{\[])")
_SPECIAL = re.compile("([\udc80-\udcff]+|\r\n|\r|\n)")


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
    room = min(len(data), limit)
    edges = sorted({0, room, *(c for c in places if c < room), *(e for r in ranges for e in r[:2] if 0 < e < room)})
    body: list[Html] = []
    for start, end in pairwise(edges):
        chunk = bisect_right(places, start)
        if chunk and places[chunk - 1] == start:
            kind = shown(kinds[chunk - 1])
            hover = say("cut {n}, before byte {at}: {kind}", n=number(chunk), at=number(start), kind=kind)
            body.append(chip(CUTS[kinds[chunk - 1]], hover=hover))
        label = next((text for left, right, text in ranges if left <= start < right), None)
        line = ";text-decoration:underline" if label is not None else ""
        first, last = number(start), number(end - 1)
        hover = say("bytes {first} to {last}, chunk {n}", first=first, last=last, n=number(chunk + 1))
        hover += f" · {visible(label, limit=HOVER_LIMIT)}" if label is not None else ""
        style = f"background-color:{TINTS[chunk % 2]}{line}"
        body.append(element("span", *_characters(data[start:end]), title=hover, style=style))
    tally = Counter(kinds)
    words = f"{count(len(data), 'byte')}, {count(len(places), 'cut')}"
    left_out = ""
    if room < len(data):
        left_out = say(" · the first {n} bytes, {more} more", n=number(room), more=number(len(data) - room))
    box = f"{FRAME};border-radius:3px;padding:4px 6px;{MONO};white-space:pre-wrap;word-break:break-all;line-height:1.7"
    said = say("bytes: {what}", what=words + "".join(f", {shown(name)} {tally[name]}" for name in CUTS if tally[name]))
    keys = ((look, say("cut {where} {n}", where=shown(name), n=number(tally[name]))) for name, look in CUTS.items())
    return frame(
        element("div", words + left_out, style="margin-bottom:2px"),
        element("div", *body, style=box),
        legend(key for key in keys if tally[key[0].name]),
        width=width,
        label=said,
        role="group",
    )


def _characters(data: bytes) -> Iterator[Html | str]:
    """Runs of readable text; line endings and bytes that make no character, each in a box of its own kind."""
    for part in _SPECIAL.split(data.decode("utf-8", "surrogateescape")):
        if part and part[0] in "\r\n":
            yield element("span", part.replace("\r", "\\r").replace("\n", "\\n"), style=f"{FAINT};font-style:italic")
            yield "\n"
        elif part and "\udc80" <= part[0] <= "\udcff":
            digits = " ".join(f"{ord(c) - 0xDC00:02x}" for c in part)
            yield element("span", digits, style="border:1px dotted;border-radius:3px;padding:0 2px")
        elif part:
            yield part
