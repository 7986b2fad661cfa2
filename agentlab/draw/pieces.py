"""Bar, table, columns and message sequence. Every option is a keyword, every text is escaped, every size bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from agentlab.draw.base import (
    FRAME,
    HOVER_LIMIT,
    LINE,
    MONO,
    OTHER,
    RULE,
    SHADES,
    SMALL,
    SPOKEN_LIMIT,
    Html,
    Ink,
    as_html,
    element,
    frame,
    ink,
    legend,
    visible,
)
from agentlab.draw.words import count, measure, number, shown
from agentlab.language import say

WIDTH = 720
ROWS = 200
CELL_LIMIT = 1_000
PARTS = 60


def percent(value: float) -> str:
    """A CSS width: at most four decimals, never negative."""
    return f"{number(max(value, 0.0), digits=4)}%"


def bar(
    parts: Iterable[tuple[str, float] | tuple[str, float, str]],
    *,
    total: float | None = None,
    marks: Iterable[tuple[float, str]] = (),
    unit: str = "",
    width: int = WIDTH,
) -> Html:
    """A proportional bar of `(label, size)` or `(label, size, look)` parts; a look is the name of a role or fate.

    `total` is what the full width stands for, by default the sum. A sum above it makes the bar longer than the scale,
    and `marks`, `(size, label)`, show a limit at its place. Sizes are counted in `unit`; negative ones count as 0.
    """
    every = [(shown(str(part[0])), max(float(part[1]), 0.0), ink(part[2]) if len(part) > 2 else None) for part in parts]
    drawn, rest = every[:PARTS], every[PARTS:]
    if rest:
        drawn.append((say("{n} more parts", n=number(len(rest))), sum(size for _, size, _ in rest), OTHER))
    looks = [look or Ink(label, str(i + 1), SHADES[i % len(SHADES)]) for i, (label, _, look) in enumerate(drawn)]
    used = sum(size for _, size, _ in drawn)
    limits = [(float(at), str(text)) for at, text in islice(marks, PARTS)]
    full = max([used, float(total or 0.0), *(at for at, _ in limits)]) or 1.0

    boxes = [
        element(
            "div",
            look.sign,
            title=visible(f"{label}: {measure(size, unit)}", limit=HOVER_LIMIT),
            style=f"{look.css};width:{percent(100 * size / full)};{_BOX};height:24px;line-height:22px",
        )
        for (label, size, _), look in zip(drawn, looks, strict=True)
        if size
    ]
    words = "; ".join(f"{label} {measure(size, unit)}" for label, size, _ in drawn)
    words += "".join(say("; {limit} at {size}", limit=text, size=measure(at, unit)) for at, text in limits)
    entries = [
        (look, f"{visible(label, limit=60)} {measure(size, unit)}")
        for (label, size, _), look in zip(drawn, looks, strict=True)
    ]
    return frame(
        element("div", *boxes, style=f"display:flex;{FRAME};border-radius:3px"),
        *(_mark(100 * at / full, f"{text} {measure(at, unit)}") for at, text in limits),
        legend(entries),
        width=width,
        label=say("bar: {what}", what=words),
    )


_BOX = "box-sizing:border-box;min-width:0;overflow:hidden;white-space:nowrap;text-align:center;font-weight:bold"


def _mark(at: float, text: str) -> Html:
    """A tick under the bar with its text on the side where there is room."""
    words = element("span", visible(text, limit=60), style="padding:0 5px")
    style = "white-space:nowrap;box-sizing:border-box;overflow:hidden"
    left, right = (words, None) if at > 50 else (None, words)
    return element(
        "div",
        element("div", left, style=f"width:{percent(at)};{style};text-align:right;border-right:2px solid"),
        element("div", right, style=f"{style};border-left:0"),
        style="display:flex;line-height:1.3",
    )


def table(
    rows: Iterable[Sequence[Any]],
    *,
    head: Sequence[Any] = (),
    caption: str | None = None,
    limit: int = ROWS,
) -> Html:
    """A table. Numbers stand right and get separators; a cell may be `Html`.

    At most `limit` rows are shown, the others are counted.
    """
    every = [list(row) for row in rows]
    listed = every[:limit]
    wide = max((len(row) for row in [*listed, list(head)]), default=0)
    line = f"border-bottom:1px solid {LINE}"
    body = [
        element(
            "tr", *(_cell(cell) for cell in row), *[_cell("")] * (wide - len(row)), style="background-color:transparent"
        )
        for row in listed
    ]
    if len(every) > limit:
        note = f"… {count(len(every) - limit, 'more row')}"
        body.append(
            element("tr", element("td", note, colspan=str(max(wide, 1)), style="padding:3px 9px;text-align:left"))
        )
    numeric_columns = [all(_is_number(row[i]) for row in listed if i < len(row)) and bool(listed) for i in range(wide)]
    said = say("table: {what}", what=count(len(every), "row"))
    heads = [
        element(
            "th", cell, style=f"padding:3px 9px;font-weight:bold;{line};text-align:{'right' if numeric else 'left'}"
        )
        for cell, numeric in zip(head, numeric_columns, strict=False)
    ]
    return element(
        "table",
        element("caption", caption, style="caption-side:top;text-align:left;padding:0 9px 3px 9px")
        if caption
        else None,
        element("thead", element("tr", *heads)) if heads else None,
        element("tbody", *body),
        aria_label=f"{visible(caption, limit=SPOKEN_LIMIT)}. {said}" if caption else said,
        style=f"border-collapse:collapse;margin:6px 0;{SMALL};table-layout:auto;width:auto;max-width:100%",
        label=said,
    )


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _cell(cell: Any) -> Html:
    text: object
    if _is_number(cell):
        text = number(cell)
    elif isinstance(cell, Html) or hasattr(cell, "_repr_html_"):
        text = as_html(cell)
    else:
        text = "" if cell is None else visible(cell, limit=CELL_LIMIT)
    side = "right" if _is_number(cell) else "left"
    style = f"padding:3px 9px;text-align:{side};vertical-align:top;border-bottom:{RULE}"
    return element("td", text, style=f"{style};white-space:pre-wrap;overflow-wrap:break-word;max-width:460px")


def columns(*parts: Any, heads: Sequence[str] = ()) -> Html:
    """Pictures side by side, each under its head if there are `heads`; below each other where the page is narrow."""
    drawn = [as_html(part) for part in parts]
    boxes = [
        element(
            "div",
            element("div", heads[i], style=f"{SMALL};font-weight:bold") if i < len(heads) else None,
            part,
            style="flex:1 1 260px;min-width:0;overflow-x:auto",
        )
        for i, part in enumerate(drawn)
    ]
    label = " | ".join(part.label for part in drawn)
    spoken = " | ".join(filter(None, [*heads, *(part.label for part in drawn if part.label != Html.label)]))
    style = "display:flex;flex-wrap:wrap;gap:8px 20px;align-items:flex-start"
    return element(
        "div", *boxes, role="group", aria_label=visible(spoken, limit=SPOKEN_LIMIT), style=style, label=label
    )


def sequence(
    rows: Iterable[tuple[str, str] | tuple[str, str, str]],
    *,
    left: str = "agent",
    right: str = "server",
    width: int = WIDTH,
    limit: int = ROWS,
) -> Html:
    """Who said what to whom, top to bottom, in two lanes.

    A row is `(direction, text)` or `(direction, text, look)`: `"->"` goes from left to right, `"<-"` back, `"x>"` and
    `"<x"` never arrive, anything else is a note between the lanes. A look is the name of a role or fate.
    """
    every = [tuple(row) for row in rows]
    ends = (visible(shown(left), limit=40), visible(shown(right), limit=40))
    drawn = [_message(row[0], row[1], ink(row[2]) if len(row) > 2 else None, ends) for row in every[:limit]]
    if len(every) > limit:
        drawn.append(_message("", f"… {count(len(every) - limit, 'more row')}", None, ends))
    lane = "border:1px solid;border-radius:3px;padding:1px 8px;font-weight:bold"
    heads = (element("span", name, style=lane) for name in ends)
    return frame(
        element("div", *heads, style="display:flex;justify-content:space-between"),
        element("div", *drawn, style="margin:0 24px;border-left:1px solid;border-right:1px solid;padding:4px 0"),
        width=width,
        label=say(
            "sequence: {what} between {left} and {right}",
            what=count(len(every), "message"),
            left=ends[0],
            right=ends[1],
        ),
        role="group",
    )


def _message(direction: str, text: str, look: Ink | None, ends: tuple[str, str]) -> Html:
    words = visible(text, limit=CELL_LIMIT)
    body = "white-space:pre-wrap;overflow-wrap:break-word;min-width:0;text-align:center;padding:0 8px"
    box = f"{look.css};border-radius:3px;{body}" if look else body
    if direction not in ("->", "<-", "x>", "<x"):
        return element("div", words, style=f"{box};font-style:italic;margin:2px 12px")
    lost, rightwards = "x" in direction, direction.endswith(">")
    shaft = element("div", style=f"flex:1 1 12px;min-width:12px;border-top:2px {'dashed' if lost else 'solid'}")
    tip = element("div", "✕" if lost else "▶" if rightwards else "◀", style="line-height:1")
    line: list[Html] = [shaft, element("div", words, style=f"{box};{MONO}"), shaft]
    line.insert(3 if rightwards else 0, tip)
    whence, to = ends if rightwards else reversed(ends)
    way = say("{one} to {other}", one=whence, other=to)
    if lost:
        way = say("{one} to {other}, never arrived", one=whence, other=to)
    style = "display:flex;align-items:center;margin:3px 0"
    return element("div", *line, title=way, role="img", aria_label=f"{way}: {words}", style=style)
