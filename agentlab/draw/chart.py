"""Numbers over time, and numbers over two settings: `chart` and `heat`.

Built from boxes like every picture here (see `base`). All rows of a chart share one scale: they can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.draw.base import (
    ALERT,
    EDGE,
    FAINT,
    FRAME,
    GAP,
    HOVER_LIMIT,
    LINE,
    SHADES,
    TEXT,
    Html,
    chip,
    element,
    frame,
    ink,
    visible,
    warmth,
)
from agentlab.draw.pieces import percent, table
from agentlab.draw.words import measure, number
from agentlab.language import say

WIDTH = 640
COLUMNS = 400
CELLS = 40


def chart(
    series: Mapping[str, Sequence[float]],
    *,
    unit: str = "",
    limit: tuple[float, str] | None = None,
    looks: Mapping[str, str] | None = None,
    height: int = 70,
    width: int = WIDTH,
) -> Html:
    """One row of columns per series, all on one scale, from 0. `limit`, `(value, label)`, is a line across each row.

    `looks` gives a series the colour of a role or fate. Of more than 400 values every k-th is shown, the largest of
    its k; negative ones count as 0.
    """
    rows = {visible(name, limit=60): [max(float(v), 0.0) for v in values] for name, values in series.items()}
    top = max([v for values in rows.values() for v in values] + [limit[0] if limit else 0.0]) or 1.0
    longest = max(map(len, rows.values()), default=0)
    line = _line(100 * limit[0] / top, ALERT) if limit else ""
    parts: list[Html] = []
    for at, (name, values) in enumerate(rows.items()):
        look = ink(looks[name]) if looks and name in looks else None
        colour = look.background if look else SHADES[at % len(SHADES)]
        columns = [
            _column(n, value, top, colour, unit, limit[0] if limit else None) for n, value in _thinned(values, longest)
        ]
        columns += [element("div", style="flex:1 1 0;min-width:0")] * (
            len(_thinned([0.0] * longest, longest)) - len(columns)
        )
        style = f"display:flex;align-items:flex-end;height:{height}px;{FRAME};border-width:0 0 1px 1px{line}"
        words = f"{name}: {_words(values, unit)}"
        key = (chip(look), " ") if look else ()
        parts.append(element("div", *key, words, style="margin-top:6px"))
        parts.append(element("div", *columns, style=style))
    said = say("chart: {what}", what="; ".join(f"{name}: {_words(values, unit)}" for name, values in rows.items()))
    spoken = said
    if limit:
        words = f"{visible(limit[1], limit=60)}: {measure(limit[0], unit)}"
        ruler = f"display:inline-block;width:16px;height:3px;background-color:{ALERT};print-color-adjust:exact"
        mark = element("span", style=ruler)
        parts.append(element("div", mark, f" {words}", style=f"{FAINT};display:flex;align-items:center;column-gap:6px"))
        spoken += f"; {words}"
    return frame(*parts, width=width, label=said, spoken=spoken)


def heat(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[Any],
    columns: Sequence[Any],
    corner: str = "",
    caption: str | None = None,
    digits: int = 2,
) -> Html:
    """A table of numbers whose cells are the darker the larger they are; the smallest of each column is framed.

    `rows` and `columns` are the headings. At most 40 of each are shown.
    """
    shown = [[float(value) for value in line[:CELLS]] for line in values[:CELLS]]
    every = [value for line in shown for value in line] or [0.0]
    low, span = min(every), (max(every) - min(every)) or 1.0
    best = [min(column) for column in zip(*shown, strict=True)]

    def cell(value: float, at: int) -> Html:
        least = value == best[at]
        edge = f"3px {f'double {TEXT}' if least else 'solid transparent'}"  # double: its inner line is seen on black
        style = f"background-color:{warmth((value - low) / span)};color:{TEXT};border:{edge}"
        style += ";padding:1px 6px;text-align:right;print-color-adjust:exact"
        hover = say("the smallest of its column") if least else None
        return element("div", number(value, digits=digits), title=hover, style=style)

    body = [
        (heading, *(cell(value, at) for at, value in enumerate(line)))
        for heading, line in zip(rows, shown, strict=False)
    ]
    return table(body, head=(corner, *columns[:CELLS]), caption=caption, limit=CELLS)


def _thinned(values: Sequence[float], longest: int) -> list[tuple[int, float]]:
    """Number and value of the columns: each stands for the same number of values in every row."""
    step = max(1, -(-longest // COLUMNS))
    return [(at, max(values[at : at + step])) for at in range(0, len(values), step)]


def _column(at: int, value: float, top: float, colour: str, unit: str, limit: float | None) -> Html:
    style = f"flex:1 1 0;min-width:0;height:{percent(100 * value / top)};background-color:{colour}"
    edge = f";border-right:1px solid {GAP};border-top:1px solid {LINE};box-sizing:border-box"
    if limit and value > limit:  # the line goes on through what is higher
        edge += _line(100 * limit / value, EDGE, thick=top / value)
    return element("div", title=visible(f"#{at}: {measure(value, unit)}", limit=HOVER_LIMIT), style=style + edge)


def _line(at: float, colour: str, *, thick: float = 1.0) -> str:
    """A dashed look is not to be had from a gradient: a thin line is."""
    below, above = percent(at - 0.8 * thick), percent(at + 0.8 * thick)
    stops = f"transparent {below},{colour} {below},{colour} {above},transparent {above}"
    return f";background-image:linear-gradient(to top,{stops})"


def _words(values: Sequence[float], unit: str) -> str:
    if not values:
        return say("nothing")
    most, last = measure(max(values), unit), measure(values[-1], unit)
    return say("{n} values, at most {most}, {last} at the end", n=len(values), most=most, last=last)
