"""What every picture is made of: escaping, one builder of elements, and the palette.

1. Only `element` makes markup, and it escapes every text and attribute: nothing that a model or a tool said can become
   a tag. What a reader could not see (control characters, bidi overrides, lone surrogates, tag characters) is made
   visible.
2. Everything is bounded. What is left out is counted and said.
3. All colours stand here, and a colour that means something never means anything else. They come in pairs of
   background and text, so they read on a light page, on a dark one and on paper; a letter or a sign always says the
   same thing. Text outside of a box has the page's own colour.
4. Every picture says in words what it shows (`spoken`). One of boxes and signs is an image for a reader's ears; one
   that holds text is a group whose text can be read. JupyterLab takes the words away in a notebook that is not
   trusted yet; what is left to read then are the head, the signs and the legend.
5. No script, no style sheet, no id, no network; only tags and CSS that JupyterLab keeps in a notebook that is not
   trusted yet. It removes `<svg>` there, so pictures are built from boxes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentlab.draw.words import count as count
from agentlab.draw.words import number as number
from agentlab.draw.words import shown
from agentlab.language import say

TEXT_LIMIT = 20_000
HOVER_LIMIT = 160
SPOKEN_LIMIT = 2_000

SMALL = "font-size:12px;line-height:1.5"
MONO = "font-family:monospace"

TEXT = "#1b1b1b"
"""The colour of text on the background of a box."""

EDGE = "#4d4d4d"
"""The border of a box, against its background."""

LINE = "#808080"
"""Lines that stand on the page itself: seen on white and on black."""

FRAME = f"border:1px solid {LINE}"
RULE = "1px solid rgba(128,128,128,0.45)"
FAINT = "opacity:0.75"
"""Text that matters less, in the page's colour."""

GAP = "rgba(255,255,255,0.5)"
ALERT = "#d04437"
"""The line of a limit."""

TINTS = ("rgba(128,128,128,0.10)", "rgba(128,128,128,0.28)")
"""Backgrounds for text in the page's colour."""

SHADES = ("#c9d6e2", "#9fb4c7", "#e0d8c8", "#bfb39b", "#d5e0d5", "#a9bfae", "#e0d0da", "#bda6b5")
"""Muted backgrounds of things without a role or fate: a number or a name says which they are."""

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_TAG = re.compile("[a-z][a-z0-9]*")
_ATTRIBUTE = re.compile("(?!on)[a-z][a-z-]*")


@dataclass(frozen=True)
class Html:
    """Finished markup. `label` says in words what it shows: for text-only readers, and for `repr`."""

    markup: str
    label: str = "picture"

    def _repr_html_(self) -> str:
        return self.markup

    def __str__(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return f"<{' '.join(visible(self.label, limit=HOVER_LIMIT).split())}>"


@dataclass(frozen=True)
class Ink:
    """How a role or a fate looks: the background of its box, and the letter or sign that says the same."""

    name: str
    sign: str
    background: str
    border: str = "solid"

    @property
    def css(self) -> str:
        return f"background-color:{self.background};color:{TEXT};border:1px {self.border} {EDGE}"


def _inks(*inks: Ink) -> dict[str, Ink]:
    return {ink.name: ink for ink in inks}


ROLES = _inks(
    Ink("system", "S", "#b3bfcc"),
    Ink("user", "U", "#80b9ea"),
    Ink("assistant", "A", "#8fd19a"),
    Ink("tool call", "C", "#f3c35b"),
    Ink("tool result", "R", "#d9a5e3"),
)
FATES = _inks(
    Ink("kept", "·", "#e3e6e8"),
    Ink("dropped", "×", "#ee8f86", "dashed"),
    Ink("summarised", "Σ", "#bda7f2", "double"),
    Ink("cached", "=", "#79cfc4"),
    Ink("paid again", "$", "#ffa66b", "dotted"),
    Ink("pointer", "→", "#a8c7fa", "dashed"),
    Ink("pinned", "!", "#f9c6d9", "solid"),
    Ink("pruned", "≈", "#e6d5b8", "dashed"),
    Ink("culprit", "⚡", "#ff7ab8", "solid"),
    Ink("new", "N", "#cfe8cf", "dotted"),
    Ink("repaired", "+", "#f4e36d", "dotted"),
)
OTHER = Ink("other", "?", "#cccccc", "dotted")
MIXED = Ink("mixed", "*", "#d0d0d0", "dotted")
CUTS = _inks(  # the darker the worse
    Ink("between lines", "L", "#eef3c4"),
    Ink("inside a line", "M", "#d6e08a", "dashed"),
    Ink("inside JSON", "J", "#bccb57", "dotted"),
    Ink("inside a character", "C", "#a3b13a", "double"),
)
ANSWERS = _inks(
    Ink("allowed", "✓", "#cfe3a8"),
    Ink("denied", "✗", "#e9b3a2", "double"),
    Ink("waits for an answer", "?", "#f6e3a1", "dashed"),
    Ink("not answered", "–", "#d0d0d0", "dotted"),
)


def warmth(share: float) -> str:
    """A background for a number: pale for a share of 0, strong for 1."""
    return "#" + "".join(f"{round(pale - share * by):02x}" for pale, by in ((232, 5), (240, 110), (238, 150)))


def ink(name: str | None) -> Ink:
    """The look of a role or fate. An unknown name gets a neutral box and its own first character."""
    known = ROLES.get(name or "") or FATES.get(name or "") or {"mixed": MIXED}.get(name or "")
    return known or Ink(name or OTHER.name, (name or OTHER.sign)[:1], OTHER.background, OTHER.border)


def visible(text: object, *, limit: int | None = TEXT_LIMIT) -> str:
    """The text with its invisible characters shown, at most `limit` characters of it, and a note of what is left out.

    Line feeds and tabs stay. The result holds no character that HTML, XML or UTF-8 refuses.
    """

    whole = text if isinstance(text, str) else str(text)
    if limit is None or len(whole) <= limit:
        return _INVISIBLE.sub(_named, whole)
    more = say("[{n} more characters]", n=number(len(whole) - limit))
    return f"{_INVISIBLE.sub(_named, whole[:limit])}… {more}"


def _named(found: re.Match[str]) -> str:
    return f"[U+{ord(found[0]):04X}]"


def escape(text: object, *, limit: int | None = TEXT_LIMIT) -> str:
    """`visible(text)`, safe as the text of an element and inside a quoted attribute."""
    return visible(text, limit=limit).translate(_ENTITIES)


def element(tag: str, /, *children: object, label: str = "picture", **attributes: str | None) -> Html:
    """One element. `Html` children go in as they are, all others as escaped text; None is skipped.

    Attributes are escaped; `aria_label` is written `aria-label`. Raises ValueError for an event handler (`on…`), a
    link, or a tag or attribute that is no plain name.
    """
    names = {name.replace("_", "-"): value for name, value in attributes.items() if value is not None}
    for name in names:
        if not _ATTRIBUTE.fullmatch(name) or name in ("href", "src", "srcdoc", "action"):
            raise ValueError(f"{name!r} is no attribute for a picture")
    if not _TAG.fullmatch(tag) or tag in ("script", "style"):
        raise ValueError(f"{tag!r} is no element for a picture")
    written = "".join(f' {name}="{escape(value)}"' for name, value in names.items()).replace("\n", "&#10;")
    inner = "".join(c.markup if isinstance(c, Html) else escape(c) for c in children if c is not None)
    return Html(f"<{tag}{written}>{inner}</{tag}>", label)


def as_html(part: Any) -> Html:
    """Anything as markup: `Html` as it is, an object by its own `_repr_html_`, all else as escaped text."""
    if isinstance(part, Html):
        return part
    draw_itself = getattr(part, "_repr_html_", None)
    markup = draw_itself() if callable(draw_itself) and not isinstance(part, type) else None
    if isinstance(markup, str):
        return Html(markup, type(part).__name__)
    text = str(part)
    return element("div", text, style="white-space:pre-wrap;overflow-wrap:break-word", label=f"{len(text)} characters")


def html(*parts: Any) -> Html:
    """The parts below each other: pictures, results that draw themselves, and text, which is escaped."""
    return element("div", *map(as_html, parts), label=" / ".join(as_html(part).label for part in parts))


def chip(look: Ink, *, sign: str | None = None, hover: str | None = None) -> Html:
    """A small box with the sign of a role or fate, and its name for whoever points at it."""
    style = f"{look.css};display:inline-block;min-width:16px;text-align:center;font-weight:bold;border-radius:3px"
    text = look.sign if sign is None else sign
    return element("span", text, title=shown(look.name) if hover is None else hover, style=style)


def legend(entries: Iterable[tuple[Ink, str]]) -> Html:
    """One line of boxes, each with what it stands for."""
    items = [
        element("span", chip(look), " ", text, style="margin-right:14px;white-space:nowrap") for look, text in entries
    ]
    return element("div", *items, style=f"{SMALL};margin-top:4px;display:flex;flex-wrap:wrap")


def frame(*parts: object, width: int, label: str, spoken: str | None = None, role: str = "img") -> Html:
    """The outer box of a picture: as wide as the page allows, at most `width` pixels.

    `spoken` says in words what it shows, by default the label. `role` is `"group"` for a picture of readable text.
    """
    style = f"max-width:{width}px;margin:8px 0;{SMALL};text-align:left;print-color-adjust:exact"
    words = visible(label if spoken is None else spoken, limit=SPOKEN_LIMIT)
    return element("div", *parts, role=role, aria_label=words, style=style, label=label)
