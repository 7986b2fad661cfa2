"""How pictures look, measured: contrast on light pages, dark pages and paper, signs beside colours, words for ears."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from agentlab import draw
from agentlab.draw import CUTS, FATES, ROLES, Html, Ink, base
from agentlab.draw.base import ANSWERS, MIXED, OTHER, SHADES, TEXT, TINTS, warmth
from agentlab.draw.logview import log_and_view
from agentlab.messages import assistant, call, tool, user

PACKAGE = Path(draw.__file__).parents[1]
PALETTE = Path(base.__file__)
COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgb|hsl)a?\([^)]*\)")

# The page and its text in JupyterLab's light and dark themes, and on their panels.
PAGES = {
    "light": ("#ffffff", "rgba(0,0,0,0.87)"),
    "light panel": ("#f5f5f5", "rgba(0,0,0,0.87)"),
    "dark": ("#111111", "rgba(255,255,255,0.87)"),
    "dark panel": ("#212121", "rgba(255,255,255,0.87)"),
}
TEXT_RATIO = 4.5  # WCAG 2.2, 1.4.3
LINE_RATIO = 3.0  # WCAG 2.2, 1.4.11

Colour = tuple[float, float, float]


def rgba(text: str) -> tuple[Colour, float]:
    if text.startswith("#"):
        red, green, blue = (int(text[at : at + 2], 16) for at in (1, 3, 5))
        return (red, green, blue), 1.0
    red, green, blue, *alpha = (float(part) for part in re.findall(r"[\d.]+", text))
    return (red, green, blue), alpha[0] if alpha else 1.0


def over(top: str | Colour, under: Colour, opacity: float = 1.0) -> Colour:
    """What is seen of a colour upon another one."""
    colour, alpha = rgba(top) if isinstance(top, str) else (top, 1.0)
    alpha *= opacity
    red, green, blue = (alpha * a + (1 - alpha) * b for a, b in zip(colour, under, strict=True))
    return red, green, blue


def linear(colour: Colour) -> Colour:
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)
    )
    return red, green, blue


def luminance(colour: Colour) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one) + 0.05, luminance(other) + 0.05))
    return light / dark


def difference(one: str, other: str) -> float:
    """How different two colours look: CIE 1976."""

    def lab(text: str) -> Colour:
        red, green, blue = linear(rgba(text)[0])
        x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
        y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.0890
        fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
        return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)

    return float(sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5)


INKS: list[Ink] = [*ROLES.values(), *FATES.values(), *CUTS.values(), *ANSWERS.values(), OTHER, MIXED]
BACKGROUNDS = {ink.name: ink.background for ink in INKS}
BACKGROUNDS |= {f"shade {at}": shade for at, shade in enumerate(SHADES)}
BACKGROUNDS |= {f"warmth {share}": warmth(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
ON_THE_PAGE = (base.LINE, base.ALERT)


def test_the_yardstick_is_right() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast(rgba("#767676")[0], (255, 255, 255)) == pytest.approx(4.54, abs=0.01)
    assert over("rgba(0,0,0,0.5)", (255, 255, 255)) == (127.5, 127.5, 127.5)


# ── one palette ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_colours_and_opacities_stand_in_the_palette_only(path: Path) -> None:
    code = path.read_text(encoding="utf-8")
    if path == PALETTE:
        measured = {*BACKGROUNDS.values(), *ON_THE_PAGE, *TINTS, TEXT, base.EDGE, base.GAP}
        measured |= set(COLOUR.findall(base.RULE))
        assert set(COLOUR.findall(code)) - measured == set(), "a colour that no test here measures"
    else:
        assert COLOUR.findall(code) == []
        assert "opacity:" not in code


def test_a_colour_that_means_something_never_means_anything_else() -> None:
    groups = [ROLES | FATES, CUTS, {str(at): Ink("", "", shade) for at, shade in enumerate(SHADES)}]
    for one, other in combinations(groups, 2):
        assert not {look.background for look in one.values()} & {look.background for look in other.values()}
    for one, other in combinations([*ROLES.values(), *FATES.values()], 2):
        assert difference(one.background, other.background) > 9, (one.name, other.name)


@pytest.mark.parametrize("looks", [ROLES | FATES, CUTS, ANSWERS], ids=["roles and fates", "cuts", "answers"])
def test_without_colour_the_sign_says_the_same(looks: dict[str, Ink]) -> None:
    assert len({look.sign for look in looks.values()}) == len(looks)
    assert all(look.sign.strip() for look in looks.values())


# ── contrast ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_text_in_a_box_can_be_read(name: str) -> None:
    assert contrast(rgba(TEXT)[0], rgba(BACKGROUNDS[name])[0]) >= TEXT_RATIO


@pytest.mark.parametrize("name", [ink.name for ink in INKS])
@pytest.mark.parametrize("page", PAGES)
def test_a_box_stands_out_from_the_page_and_from_its_neighbour(name: str, page: str) -> None:
    under = rgba(PAGES[page][0])[0]
    fill, edge = rgba(BACKGROUNDS[name])[0], rgba(base.EDGE)[0]
    assert max(contrast(fill, under), contrast(edge, under)) >= LINE_RATIO
    assert contrast(edge, fill) >= LINE_RATIO


@pytest.mark.parametrize("page", PAGES)
def test_lines_on_the_page_are_seen(page: str) -> None:
    under = rgba(PAGES[page][0])[0]
    for line in ON_THE_PAGE:
        assert contrast(rgba(line)[0], under) >= LINE_RATIO
    rule = COLOUR.findall(base.RULE)[0]
    assert contrast(over(rule, under), under) >= 1.5  # between the rows of a table, where no meaning hangs on it


@pytest.mark.parametrize("page", PAGES)
def test_faint_text_and_text_on_a_tint_can_be_read(page: str) -> None:
    under, text = rgba(PAGES[page][0])[0], PAGES[page][1]
    faint = float(base.FAINT.removeprefix("opacity:"))
    for ground in (under, *(over(tint, under) for tint in TINTS)):
        for opacity in (1.0, faint):
            assert contrast(over(text, ground, opacity), ground) >= TEXT_RATIO


# ── words for ears ──────────────────────────────────────────────────────────

STORY = [user("go"), assistant("", call("a", "ls")), tool("a", "x"), tool("b", "late")]
EVENTS = [{"seq": 1, "type": "message", "message": user("go")}]

# Each picture, its role for a screen reader, and words that its description must hold.
PICTURES: dict[str, tuple[Callable[[], Html], str | None, str]] = {
    "strip": (
        lambda: draw.strip(STORY, fates=["kept", "dropped", "dropped", "kept"], caption="before"),
        "img",
        "before. Context strip. 4 messages, .*user 1, tool call 1, tool result 2; kept 2, dropped 2. "
        "In order: user kept, tool call dropped, tool result dropped, tool result kept",
    ),
    "bar": (lambda: draw.bar([("a", 1), ("b", 2)], unit="tokens", marks=[(2, "limit")]), "img", "b 2 tokens; limit at"),
    "chart": (lambda: draw.chart({"a": [1, 3, 2]}, limit=(2, "window")), "img", "a: 3 values, at most 3.*window: 2"),
    "table": (lambda: draw.table([[1], [2]], caption="sizes"), None, "sizes. table: 2 rows"),
    "heat": (lambda: draw.heat([[1, 2]], rows=["r"], columns=["x", "y"], caption="cost"), None, "cost. table: 1 row"),
    "columns": (lambda: draw.columns(draw.bar([("a", 1)]), draw.bar([("b", 2)])), "group", r"bar: a 1 \| bar: b 2"),
    "bytes": (lambda: draw.bytes_view(b"ab\nc", cuts=[1]), "group", "bytes: 4 bytes, 1 cut, inside a line 1"),
    "sequence": (lambda: draw.sequence([("->", "hi")]), "group", "sequence: 1 message between agent and server"),
    "log": (lambda: log_and_view(EVENTS, [(1, user("go"))], lambda _: ()), "group", "log and view: 1 event, 1 node"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_says_as_a_whole_what_it_shows(name: str) -> None:
    make, role, words = PICTURES[name]
    root = ET.fromstring(make().markup)
    assert root.get("role") == role
    assert re.search(words, root.get("aria-label") or "")


def test_every_public_picture_is_among_them() -> None:
    makers = {"bar", "bytes_view", "chart", "columns", "heat", "sequence", "strip", "table"}
    others = {"cut_kind", "element", "escape", "html", "number", "shown"}
    assert {name for name in draw.__all__ if name.islower()} == makers | others
    assert {name.removesuffix("_view") for name in makers} | {"log"} == set(PICTURES)


def test_a_row_of_a_sequence_says_who_speaks_and_what_never_arrives() -> None:
    picture = draw.sequence(
        [("->", "ask"), ("<-", "answer"), ("x>", "gone"), ("", "a note")], left="agent", right="model"
    )
    rows = [each.get("aria-label") for each in ET.fromstring(picture.markup).findall(".//*[@role='img']")]
    assert rows == ["agent to model: ask", "model to agent: answer", "agent to model, never arrived: gone"]
    assert "a note" in "".join(ET.fromstring(picture.markup).itertext())


def test_the_order_in_words_is_bounded_and_counts_what_looks_alike() -> None:
    many = draw.strip([user("a")] * 500, fates=["dropped"] * 300 + ["kept"] * 200)
    assert "In order: 300 × user dropped, 200 × user kept" in many.markup
    alternating = draw.strip([user("a"), {"role": "x" * 500, "content": ""}] * 500)
    assert len(ET.fromstring(alternating.markup).get("aria-label") or "") < 3_000
    assert (ET.fromstring(alternating.markup).get("aria-label") or "").endswith("…")


def test_the_smallest_number_of_a_column_is_named_and_framed() -> None:
    picture = ET.fromstring(draw.heat([[1, 9], [2, 3]], rows=["a", "b"], columns=["x", "y"]).markup)
    least = [each.text for each in picture.iter() if each.get("title") == "the smallest of its column"]
    assert least == ["1", "3"]


# ── another language ────────────────────────────────────────────────────────

IN_CHINESE = """
from agentlab import draw
from agentlab.messages import user, assistant, call, tool
from agentlab.widgets.streamed import stop_button

print(draw.strip([user("go"), assistant("", call("a", "ls")), tool("a", "x")], fates=["kept", "dropped", None]).markup)
print(draw.bar([("cached", 2, "cached")], unit="tokens").markup)
print(draw.bytes_view(b"abc", cuts=[1]).markup)
print(draw.sequence([("->", "x")]).markup)
print(draw.table([[1], [2]]).markup)
print(stop_button(print).tooltip, draw.FATES["kept"].name)
"""


def test_what_is_seen_and_heard_is_in_the_readers_language_and_keys_stay_english() -> None:
    environ = {**os.environ, "AGENTLAB_LANGUAGE": "zh", "PYTHONPATH": str(PACKAGE.parent), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", IN_CHINESE], env=environ, capture_output=True, check=True)
    *pictures, last = done.stdout.decode().splitlines()
    heard = [ET.fromstring(markup).get("aria-label") or "" for markup in pictures]
    seen = ["".join(ET.fromstring(markup).itertext()) for markup in pictures]
    for text, markup in zip(heard + seen, pictures * 2, strict=True):
        assert not re.search(
            r"\b(kept|dropped|cached|user|tool|message|row|byte|cut|agent|strip|order|to)s?\b", text
        ), markup
    assert "保留" in heard[0] and "丢弃" in seen[0]
    assert last.endswith(" kept") and "End this turn" not in last
