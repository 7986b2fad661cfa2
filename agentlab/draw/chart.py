"""Numbers over time, and numbers over two settings: `chart` and `heat`.

Built from boxes like every picture here (see `base`). All rows of a chart share one scale: they can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.draw.base import FRAME, HOVER_LIMIT, Html, element, frame, ink, number, visible
from agentlab.draw.pieces import percent, table

WIDTH = 640
COLUMNS = 400
CELLS = 40
_SHADES = ("#9ec5e8", "#f3c35b", "#8fd19a", "#d9a5e3", "#ee8f86")


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
    line = _line(100 * limit[0] / top) if limit else ""
    parts: list[Html] = []
    for at, (name, values) in enumerate(rows.items()):
        colour = ink((looks or {})[name]).background if name in (looks or {}) else _SHADES[at % len(_SHADES)]
        columns = [_column(n, value, top, colour, unit) for n, value in _thinned(values, longest)]
        columns += [element("div", style="flex:1 1 0;min-width:0")] * (
            len(_thinned([0.0] * longest, longest)) - len(columns)
        )
        style = f"display:flex;align-items:flex-end;height:{height}px;{FRAME};border-width:0 0 1px 1px{line}"
        words = f"{name}: {_words(values, unit)}"
        parts.append(element("div", words, style="margin-top:6px"))
        parts.append(element("div", *columns, role="img", aria_label=words, style=style))
    if limit:
        parts.append(
            element("div", f"┄ {visible(limit[1], limit=60)}: {_measure(limit[0], unit)}", style="opacity:0.8")
        )
    said = "; ".join(f"{name}: {_words(values, unit)}" for name, values in rows.items())
    return frame(*parts, width=width, label=f"chart: {said}")


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
        share = (value - low) / span
        colour = f"rgb({round(232 - 5 * share)},{round(240 - 110 * share)},{round(238 - 150 * share)})"
        edge = "2px solid #1b1b1b" if value == best[at] else "2px solid transparent"
        style = f"background-color:{colour};color:#1b1b1b;border:{edge};padding:1px 6px;text-align:right"
        return element("div", number(value, digits=digits), style=style)

    body = [
        (heading, *(cell(value, at) for at, value in enumerate(line)))
        for heading, line in zip(rows, shown, strict=False)
    ]
    return table(body, head=(corner, *columns[:CELLS]), caption=caption, limit=CELLS)


def _thinned(values: Sequence[float], longest: int) -> list[tuple[int, float]]:
    """Number and value of the columns: each stands for the same number of values in every row."""
    step = max(1, -(-longest // COLUMNS))
    return [(at, max(values[at : at + step])) for at in range(0, len(values), step)]


def _column(at: int, value: float, top: float, colour: str, unit: str) -> Html:
    style = f"flex:1 1 0;min-width:0;height:{percent(100 * value / top)};background-color:{colour}"
    edge = ";border-right:1px solid rgba(255,255,255,0.5);box-sizing:border-box"
    return element("div", title=visible(f"#{at}: {_measure(value, unit)}", limit=HOVER_LIMIT), style=style + edge)


def _line(at: float) -> str:
    """A dashed look is not to be had from a gradient: a thin line is."""
    below, above = percent(at - 0.8), percent(at + 0.8)
    stops = f"transparent {below}, #d04437 {below}, #d04437 {above}, transparent {above}"
    return f";background-image:linear-gradient(to top, {stops});background-repeat:no-repeat"


def _measure(value: float, unit: str) -> str:
    return f"{number(int(value) if value == int(value) else value)}{f' {unit}' if unit else ''}"


def _words(values: Sequence[float], unit: str) -> str:
    if not values:
        return "nothing"
    return f"{len(values)} values, at most {_measure(max(values), unit)}, {_measure(values[-1], unit)} at the end"
