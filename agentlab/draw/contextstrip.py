"""The context strip: one bar for one request, one box per message, and what becomes of each.

How wide is a box? Every box gets the same small floor, so that a short message stays visible beside a huge tool
result; the rest of the width goes by size. Messages that are too small to draw alone are merged with their neighbours
of the same fate, so a border between two fates stands at the exact message until there are more borders than room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from typing import Any

from agentlab.draw.base import (
    FATES,
    FRAME,
    GAP,
    HOVER_LIMIT,
    LINE,
    MIXED,
    ROLES,
    SMALL,
    Html,
    Ink,
    element,
    frame,
    ink,
    legend,
    visible,
)
from agentlab.draw.pieces import WIDTH, percent
from agentlab.draw.words import count, measure, number, shown
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.messages import Message, calls_of, canonical_json, groups

FLOOR = 18
"""Pixels that a box needs to show its letter."""

EXCERPT = 90
OTHERS = 6
RUNS = 24
TIE = f"2px solid {LINE}"
STRIPES = (
    ";text-decoration:line-through;background-size:7px"
    f";background-image:linear-gradient(to right, {GAP} 50%, transparent 50%)"
)
LOST = "font-weight:bold;line-height:15px;white-space:nowrap"


@dataclass(frozen=True)
class Box:
    """`history[start:end]` drawn as one box: where it begins and how wide it is, in percent of the bar."""

    start: int
    end: int
    size: int
    kind: str
    fate: str | None
    left: float = 0.0
    width: float = 0.0

    @property
    def centre(self) -> float:
        return self.left + self.width / 2


def kind_of(message: Any) -> str:
    """What a message is in the picture: its role, but `tool call` when it calls tools, and `tool result`."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if role == "assistant":
        return "tool call" if calls_of(dict(message)) else "assistant"
    return "tool result" if role == "tool" else str(role or "no role")


def size_of(message: Any) -> int:
    """The UTF-8 size of one message as a line of JSON, in bytes. What is no JSON counts as the text that it prints."""
    try:
        return len(canonical_json(message).encode()) + 1
    except (TypeError, ValueError):
        return len(str(message).encode("utf-8", "replace")) + 1


def pack(kinds: Sequence[str], fates: Sequence[str | None], sizes: Sequence[int], width: int) -> list[Box]:
    """Merge what is too small to draw alone, then give every box its place. `width` is in pixels."""
    room = max(width // FLOOR, 1)
    if not any(sizes):
        return pack(kinds, fates, [1] * len(kinds), width) if kinds else []
    boxes = [Box(i, i + 1, sizes[i], kinds[i], fates[i]) for i in range(len(kinds))]
    if len(boxes) > room:
        small = sum(sizes) / room
        boxes = list(_merge(boxes, small, across_fates=False))
        if len(boxes) > 4 * room:
            boxes = list(_merge(boxes, small, across_fates=True))
    total = sum(sizes)
    floor = min(100 * FLOOR / width, 50 / len(boxes))
    placed: list[Box] = []
    left = 0.0
    for box in boxes:
        share = floor + (100 - floor * len(boxes)) * box.size / total
        placed.append(Box(box.start, box.end, box.size, box.kind, box.fate, left, share))
        left += share
    return placed


def _merge(boxes: Sequence[Box], small: float, *, across_fates: bool) -> Iterator[Box]:
    """Join neighbours that are smaller than `small`, until the joined box is not."""
    run: list[Box] = []

    def joined() -> Iterator[Box]:
        if run:
            kinds, fates = {b.kind for b in run}, {b.fate for b in run}
            kind = run[0].kind if len(kinds) == 1 else "mixed"
            fate = run[0].fate if len(fates) == 1 else "mixed"
            yield Box(run[0].start, run[-1].end, sum(b.size for b in run), kind, fate)
            run.clear()

    for box in boxes:
        if box.size >= small or (run and not across_fates and run[-1].fate != box.fate):
            yield from joined()
        run.append(box)
        if sum(b.size for b in run) >= small:
            yield from joined()
    yield from joined()


def strip(
    history: Sequence[Any],
    *,
    fates: Sequence[str | None] | None = None,
    sizes: Sequence[int] | None = None,
    unit: str = "bytes",
    scale: int | None = None,
    caption: str | None = None,
    width: int = WIDTH,
) -> Html:
    """The messages of one request as a bar: role by colour and letter, size by width, fate as a band below.

    `fates` names what becomes of each message (a key of `FATES`, or None). `sizes` are in `unit`; without them each
    message counts the bytes of its JSON line. `scale` is the size that the full width stands for, so that two strips
    can be compared. A bracket under the bar ties a tool call to its results; `?` stands under a call without a
    result, and under a result without a call. Raises AgentLabError when the three lists differ in length.
    """
    given_sizes = [max(int(s), 0) for s in sizes] if sizes is not None else [size_of(m) for m in history]
    given_fates = list(fates) if fates is not None else [None] * len(history)
    if not len(history) == len(given_sizes) == len(given_fates):
        raise AgentLabError(
            say(
                "A strip needs one size and one fate per message: {messages} messages, {sizes} sizes, {fates} fates.",
                messages=len(history),
                sizes=len(given_sizes),
                fates=len(given_fates),
            )
        )
    kinds = [kind_of(message) for message in history]
    total = sum(given_sizes)
    share = min(total / scale, 1.0) if scale else 1.0
    boxes = pack(kinds, given_fates, given_sizes, max(int(width * share), FLOOR))

    roles, becomes = Counter(kinds), Counter(fate for fate in given_fates if fate)
    words = f"{count(len(kinds), 'message')}, {measure(total, unit)}"
    spoken = f"{words}: {_tally(roles)}{f'; {_tally(becomes)}' if becomes else ''}"
    merged = sum(box.end - box.start > 1 for box in boxes)
    head = element("b", visible(caption, limit=HOVER_LIMIT), " · ") if caption else None
    note = None
    if merged:
        note = say(" · a number in a box counts small messages drawn together ({n} boxes)", n=number(merged))
    order = _in_order(kinds, given_fates)
    bar = element(
        "div",
        *(_draw(box, history, kinds, given_sizes, unit=unit, fated=fates is not None) for box in boxes),
        style=f"display:flex;height:{'44' if fates is not None else '28'}px;{FRAME};border-radius:3px;overflow:hidden",
    )
    return frame(
        element("div", head, words, note, style=f"{SMALL};margin-bottom:2px"),
        element("div", bar, _brackets(boxes, history), style=f"width:{percent(100 * share)};min-width:{FLOOR}px"),
        legend(_entries(roles, ROLES)),
        legend(_entries(becomes, FATES)) if becomes else None,
        width=width,
        label=say("strip: {what}", what=spoken),
        spoken=". ".join(filter(None, [caption, say("Context strip. {what}", what=spoken), order])),
    )


def _ranked(tally: Counter[str], order: Mapping[str, Ink]) -> list[tuple[str, int]]:
    """Known names in the palette's order, then the others by how often they occur; the rare ones in one entry."""
    names = [name for name in order if name in tally]
    others = sorted((name for name in tally if name not in order), key=lambda name: (-tally[name], name))
    ranked = [(name, tally[name]) for name in names + others[:OTHERS]]
    rest = sum(tally[name] for name in others[OTHERS:])
    return [*ranked, ("other", rest)] if rest else ranked


def _tally(tally: Counter[str]) -> str:
    ranked = _ranked(tally, {**ROLES, **FATES})
    return ", ".join(f"{visible(shown(name), limit=40)} {number(n)}" for name, n in ranked)


def _in_order(kinds: Sequence[str], fates: Sequence[str | None]) -> str:
    """The boxes from left to right, in words; neighbours that look alike together."""
    runs = [(key, len(list(run))) for key, run in groupby(zip(kinds, fates, strict=True))]
    said = []
    for (kind, fate), n in islice(runs, RUNS):
        words = f"{shown(kind)} {shown(fate)}" if fate else shown(kind)
        said.append(f"{number(n)} × {visible(words, limit=60)}" if n > 1 else visible(words, limit=60))
    return say("In order: {boxes}", boxes=", ".join([*said, *["…"] * (len(runs) > RUNS)])) if runs else ""


def _entries(tally: Counter[str], order: Mapping[str, Ink]) -> list[tuple[Ink, str]]:
    return [(ink(name), f"{visible(shown(name), limit=40)} {number(n)}") for name, n in _ranked(tally, order)]


def _layers(box: Box, kinds: Sequence[str], sizes: Sequence[int]) -> str:
    """The colours of a merged box: one layer per role, as high as its share of the size."""
    share: Counter[str] = Counter()
    for i in range(box.start, box.end):
        share[kinds[i]] += max(sizes[i], 1)
    stops: list[str] = []
    top = 0.0
    for name, _ in _ranked(share, ROLES):
        bottom = top + 100 * share[name] / share.total() if name in share else 100.0
        stops.append(f"{ink(name).background} {percent(top)} {percent(bottom)}")
        top = bottom
    return f";background-image:linear-gradient(to bottom, {', '.join(stops)})"


def _draw(
    box: Box, history: Sequence[Any], kinds: Sequence[str], sizes: Sequence[int], *, unit: str, fated: bool
) -> Html:
    look, amount = ink(box.kind), box.end - box.start
    where = f"#{box.start}"
    if amount > 1:
        where = say("#{first} to #{last}, {n} messages", first=box.start, last=box.end - 1, n=number(amount))
    hover = f"{where} · {visible(shown(box.kind), limit=40)} · {measure(box.size, unit)}"
    if box.fate:
        hover += f" · {visible(shown(box.fate), limit=40)}"
    if amount == 1 and (text := _excerpt(history[box.start])):
        hover += f"\n{text}"
    gone = STRIPES if box.fate == "dropped" else ""
    middle = "overflow:hidden;text-align:center;white-space:nowrap;box-sizing:border-box"
    sign = look.sign if amount == 1 else str(amount)
    layers = _layers(box, kinds, sizes) if look == MIXED else ""
    parts = [
        element("div", sign, style=f"{look.css}{layers};{middle};flex:1 1 0;line-height:24px;font-weight:bold{gone}")
    ]
    if fated:
        fate = ink(box.fate or "kept")
        parts.append(
            element("div", fate.sign, style=f"{fate.css};{middle};height:17px;line-height:14px;font-weight:bold")
        )
    style = f"width:{percent(box.width)};min-width:0;display:flex;flex-direction:column"
    return element("div", *parts, title=hover, style=style)


def _excerpt(message: Any) -> str:
    """The first characters of a message: its text, or else the names of the tools that it calls."""
    if not isinstance(message, Mapping):
        return visible(message, limit=EXCERPT)
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content[:20] if isinstance(part, Mapping))
    functions = [c.get("function") for c in calls_of(dict(message))[:5]]
    names = [str(it.get("name") if isinstance(it, Mapping) else it) for it in functions]
    text = " ".join(
        filter(None, [str(content or "")[: 2 * EXCERPT], say("calls {names}", names=", ".join(names)) if names else ""])
    )
    return visible(" ".join(text.split()), limit=EXCERPT)


def _shape(message: Any) -> Message:
    """Only what pairs a call with its result, with ids that can be compared."""
    if not isinstance(message, Mapping):
        return {}
    calls = [{"id": str(c.get("id"))} for c in calls_of(dict(message))]
    return {"role": message.get("role"), "tool_calls": calls, "tool_call_id": str(message.get("tool_call_id"))}


def _brackets(boxes: Sequence[Box], history: Sequence[Any]) -> Html | None:
    """The row under the bar: from each call to its results, and a `?` where one of them is missing."""
    box_of = {i: box for box in boxes for i in range(box.start, box.end)}
    row: list[Html] = []
    end = 0.0

    def put(left: float, right: float, text: str, style: str) -> None:
        nonlocal end
        if right > max(left, end):
            row.append(element("div", style=f"width:{percent(max(left, end) - end)}"))
            row.append(
                element("div", text, style=f"width:{percent(right - max(left, end))};box-sizing:border-box;{style}")
            )
            end = right

    for group in groups([_shape(message) for message in history]):
        first, answers = box_of[group.start], group.messages[1:]
        calls = {c["id"] for c in calls_of(group.messages[0])}
        results = {group.start + 1 + i: m["tool_call_id"] for i, m in enumerate(answers) if m.get("role") == "tool"}
        stops = sorted({box_of[i].centre for i, id in results.items() if id in calls} - {first.centre})
        if calls - set(results.values()) or group.messages[0].get("role") == "tool":
            right = first.centre if stops else first.left + first.width
            put(first.left, right, "?", f"{LOST};text-align:{'right;padding-right:2px' if stops else 'center'}")
        for i, (left, right) in enumerate(pairwise([first.centre, *stops])):
            begins = f"border-left:{TIE};border-bottom-left-radius:7px" if i == 0 else "border-left:0"
            ends = "border-bottom-right-radius:7px" if i == len(stops) - 1 else "border-bottom-right-radius:0"
            put(left, right, "", f"{begins};{ends};border-bottom:{TIE};border-right:{TIE};height:9px")
    return element("div", *row, style="display:flex;height:15px;overflow:hidden") if row else None
