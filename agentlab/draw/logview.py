"""A log and its view side by side: every event a row, every replacement an arrow.

    events -> rows, oldest first; a lane from what was replaced down to the event that stands for it now
    nodes  -> the rows of the view, in position order, under the numbers that the log knows them by

Only replacements that hold have a lane: what a rewind withdrew is struck out, and what it stood for is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentlab.draw.base import FAINT, FATES, MONO, SMALL, Html, chip, element, ink, legend, visible
from agentlab.draw.contextstrip import kind_of, size_of
from agentlab.draw.pieces import columns
from agentlab.draw.words import count, number, shown
from agentlab.language import say

EVENTS = 60
EXCERPT = 46
LANES = 8
_ROW = "display:flex;height:19px;line-height:19px;white-space:nowrap;overflow:hidden"
_GONE = f";{FAINT};text-decoration:line-through"
_NUMBER = f"flex:0 0 34px;text-align:right;padding-right:6px;{MONO}"


def log_and_view(
    events: Sequence[Mapping[str, Any]],
    nodes: Sequence[tuple[int, Mapping[str, Any]]],
    source: Callable[[int], Sequence[int]],
) -> Html:
    """The events of a surface at the left, its view at the right.

    `nodes` are (number, message) in position order, `source(number)` what a node replaced (`Surface.source`). Sizes are
    bytes of JSON. Of more than 60 events the newest are shown, and at most 8 lanes.
    """
    holds = _replacements([seq for seq, _ in nodes], source)
    live = dict(nodes)
    taken = {old: new for new, olds in holds.items() for old in olds}
    listed = list(events)[-EVENTS:]
    lanes = _lanes(holds)
    looks = {new: _fate(_node(event)) for event in events if (new := event.get("seq", 0)) in holds}
    rows = [
        _run(run, lanes, holds) if len(run) > 1 else _event(run[0], live, taken, lanes, holds, looks)
        for run in _runs(listed)
    ]
    left_out = len(events) - len(listed)
    note = element("div", say("… {n} older events", n=number(left_out)), style=SMALL) if left_out > 0 else None
    log = element("div", note, *rows, style=SMALL)
    view = element("div", *(_viewed(seq, message, bool(source(seq))) for seq, message in nodes), style=SMALL)
    total = sum(size_of(message) for _, message in nodes)
    heads = (
        say("the log: {events}", events=count(len(events), "event")),
        say("the view: {nodes}, {n} bytes", nodes=count(len(nodes), "node"), n=number(total)),
    )
    fates = {looks[new] for new in holds if new in looks}
    keys = [
        (ink(name), say("{fate}: the lane leads to what stands for it", fate=shown(name)))
        for name in FATES
        if name in fates
    ]
    amounts = (count(len(events), "event"), count(len(nodes), "node"), count(len(holds), "replacement"))
    said = say("log and view: {what}", what=", ".join(amounts))
    parts = (columns(log, view, heads=heads), legend(keys) if keys else None)
    return element("div", *parts, role="group", aria_label=said, label=said)


def _replacements(view: Sequence[int], source: Callable[[int], Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Each replacement that holds, and what it replaced: those in the view, and those within them."""
    found: dict[int, tuple[int, ...]] = {}
    left = list(view)
    while left:
        seq = left.pop()
        if seq not in found and (olds := tuple(source(seq))):
            found[seq] = olds
            left += olds
    return dict(sorted(found.items()))


def _lanes(holds: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Replacements side by side where their rows overlap, below each other where they do not."""
    lanes: list[list[int]] = []
    for new in sorted(holds, key=lambda seq: (min(holds[seq]), seq)):
        free = next((lane for lane in lanes if lane[-1] < min(holds[new])), None)
        if free is not None:
            free.append(new)
        elif len(lanes) < LANES:
            lanes.append([new])
    return lanes


def _runs(events: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Each event alone; but events of one type that only the log has, and that follow each other, together."""
    runs: list[list[Mapping[str, Any]]] = []
    for event in events:
        alone = isinstance(_node(event), Mapping) or event.get("type") == "rewind"
        if runs and not alone and runs[-1][0].get("type") == event.get("type"):
            runs[-1].append(event)
        else:
            runs.append([event])
    return runs


def _run(run: Sequence[Mapping[str, Any]], lanes: Sequence[Sequence[int]], holds: Mapping[int, Sequence[int]]) -> Html:
    """Some events that only the log has, as one row."""
    seq = run[-1].get("seq", 0)
    tracks = element("div", *(_track(seq, lane, holds, {}) for lane in lanes), style="flex:none;display:flex")
    kind = run[0].get("type")
    words = visible(say("… {n} events for the log only: {kind}", n=len(run), kind=kind), limit=EXCERPT)
    body = element("div", words, style="padding-left:62px;font-style:italic")
    return element("div", element("div", number(seq), style=_NUMBER), tracks, body, style=_ROW)


def _node(event: Mapping[str, Any]) -> Any:
    return event.get("node") if event.get("type") == "replace" else event.get("message")


def _fate(message: Any) -> str:
    checkpoint = isinstance(message, Mapping) and message.get("origin") == "compaction"
    return "summarised" if checkpoint else "pruned"


def _event(
    event: Mapping[str, Any],
    live: Mapping[int, Any],
    taken: Mapping[int, int],
    lanes: Sequence[Sequence[int]],
    holds: Mapping[int, Sequence[int]],
    looks: Mapping[int, str],
) -> Html:
    seq, message = event.get("seq", 0), _node(event)
    tracks = [_track(seq, lane, holds, looks) for lane in lanes]
    marks = element("div", *tracks, style="flex:none;display:flex")
    sign = element("div", f"→ {taken[seq]}" if seq in taken else "", style=f"flex:0 0 40px;padding-left:4px;{MONO}")
    if isinstance(message, Mapping):
        words = _said(message)
        gone = seq not in live and seq not in taken
        look = chip(ink(kind_of(message)))
    else:
        words, gone, look = _other(event), False, element("span", " ", style="display:inline-block;min-width:16px")
    style = f"min-width:0;overflow:hidden;text-overflow:ellipsis;padding-left:6px{_GONE if gone else ''}"
    if seq in taken:
        style += f";{FAINT}"
    body = element("div", words, style=style if isinstance(message, Mapping) else f"{style};font-style:italic")
    return element("div", element("div", number(seq), style=_NUMBER), marks, sign, look, body, style=_ROW)


def _track(seq: int, lane: Sequence[int], holds: Mapping[int, Sequence[int]], looks: Mapping[int, str]) -> Html:
    """What one lane shows beside one row: a bar beside what is replaced, a line on its way, the head of the arrow."""
    style = "flex:0 0 16px;box-sizing:border-box;text-align:center;font-weight:bold"
    for new in lane:
        if seq in holds[new] or seq == new:
            look = ink(looks.get(new))
            text = "▼" if seq == new else ""
            return element(
                "div", text, style=f"{style};{look.css};border-width:0 1px", title=say("became {number}", number=new)
            )
        if min(holds[new]) < seq < new:
            return element("div", "│", style=f"{style};{FAINT}")
    return element("div", style=style)


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content[:20] if isinstance(part, Mapping))
    calls = message.get("tool_calls")
    names = [str((c.get("function") or {}).get("name")) for c in calls[:5]] if isinstance(calls, list) else []
    text = " ".join([str(content or "")[: 2 * EXCERPT], *(say("calls {names}", names=name) for name in names)])
    return visible(" ".join(text.split())[:EXCERPT])


def _other(event: Mapping[str, Any]) -> str:
    """An event that only the log has: its type, and its plain numbers."""
    numbers = [f"{name} {number(it)}" for name, it in event.items() if type(it) is int and name not in ("seq", "ts")]
    return visible(f"{event.get('type')} {', '.join(numbers[:4])}", limit=EXCERPT)


def _viewed(seq: int, message: Mapping[str, Any], replaced: bool) -> Html:
    fate = chip(ink(_fate(message) if replaced else "kept"))
    size = element("div", number(size_of(message)), style=f"flex:0 0 60px;text-align:right;{MONO}")
    style = "min-width:0;flex:1 1 0;overflow:hidden;text-overflow:ellipsis;padding-left:6px"
    parts = [element("div", number(seq), style=_NUMBER), chip(ink(kind_of(message))), fate]
    return element("div", *parts, element("div", _said(message), style=style), size, style=_ROW)
