"""Pictures: whatever goes in, only our own tags come out, in bounded size, the same on every run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentlab import draw
from agentlab.draw import Html
from agentlab.draw.base import visible
from agentlab.draw.contextstrip import FLOOR, kind_of, pack, size_of
from agentlab.errors import AgentLabError
from agentlab.messages import assistant, call, size_bytes, tool, user

TAGS = {"b", "caption", "div", "span", "table", "tbody", "td", "th", "thead", "tr"}
ATTRIBUTES = {"aria-label", "colspan", "role", "style", "title"}
# What JupyterLab 4.6 keeps of a style in a notebook that is not trusted; and one for print, which may go.
PROPERTIES = re.compile(
    "align-items|background-(color|image|size)|border(-(bottom|left|right|top|collapse|radius|bottom-(left|right)-radius))?"
    "|box-sizing|caption-side|color|display|flex(-direction|-wrap)?|font-(family|size|style|weight)|gap|height"
    "|justify-content|line-height|margin(-bottom|-right|-top)?|(max|min)-width|opacity|overflow(-wrap|-x)?"
    "|padding(-right)?|table-layout|text-(align|decoration)|vertical-align|white-space|width|word-break"
    "|print-color-adjust"
)

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title></textarea></style><iframe>",
    "]]><!--",
    "a\x00b\x1b[31m\x85\x7f",
    "\ud83d half a smile \udc00",
    "\u202eevil\u2066\u200b\ufeff\U000e0041\uffff",
    "&lt;script&gt; &#x3c;",
    "red;background:url(https://example.com/x)",
    "\r\n\t ",
    "",
]

texts = st.text(max_size=60) | st.sampled_from(HOSTILE)


def views(text: str) -> dict[str, Html]:
    """Every piece, with the text at every place that takes one."""
    history = [
        {"role": "system", "content": text},
        {"role": text, "content": text, "tool_calls": text, "origin": text},
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [{"id": text, "function": {"name": text, "arguments": text}}],
        },
        {"role": "tool", "tool_call_id": text, "content": text},
        {"role": "tool", "tool_call_id": [text], "content": [{"type": "text", "text": text}]},
        {"role": "user", "content": {text: text}},
        {text: text},
        text,
    ]
    data = text.encode("utf-8", "surrogatepass")
    return {
        "html": draw.html(text, draw.element("b", text)),
        "element": draw.element("div", text, title=text, aria_label=text),
        "bar": draw.bar([(text, 3), (text, 2.5, text)], unit=text, marks=[(1, text), (4, text)]),
        "strip": draw.strip(history, fates=[text] * 8, caption=text, unit=text),
        "merged strip": draw.strip(history * 40, fates=[text, "kept"] * 160, caption=text, unit=text),
        "table": draw.table([[text, 1], [None, text]], head=[text, text], caption=text),
        "bytes": draw.bytes_view(data, cuts=range(1, len(data)), marks=[(0, 4, text)]),
        "columns": draw.columns(text, draw.element("b", text), heads=[text]),
        "sequence": draw.sequence([("->", text, text), ("<-", text), (text, text)], left=text, right=text),
    }


class Reader(HTMLParser):
    """What a browser would see of the markup."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.other: list[str] = []
        self.depth = 0
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_comment(self, data: str) -> None:
        self.other.append(data)

    def handle_decl(self, decl: str) -> None:
        self.other.append(decl)

    unknown_decl = handle_pi = handle_decl


def words(picture: Html) -> str:
    return "".join(ET.fromstring(picture.markup).itertext())


def styles(picture: Html) -> list[dict[str, str]]:
    found = [e.get("style", "") for e in ET.fromstring(picture.markup).iter()]
    return [dict(rule.split(":", 1) for rule in style.split(";")) for style in found if style]


def only_our_own(markup: str) -> None:
    reader = Reader(markup)
    assert reader.depth == 0
    assert reader.other == []
    for tag, attributes in reader.tags:
        assert tag in TAGS
        assert set(attributes) <= ATTRIBUTES
        assert "url(" not in (attributes.get("style") or "")
    ET.fromstring(markup)
    markup.encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_no_markup_in_any_view(text: str) -> None:
    for picture in views(text).values():
        only_our_own(picture.markup)
        assert "\n" not in repr(picture)
        repr(picture).encode()


@given(texts)
def test_any_text_leaves_every_view_well_formed(text: str) -> None:
    for picture in views(text).values():
        only_our_own(picture.markup)


def test_styles_hold_only_what_an_untrusted_notebook_keeps() -> None:
    for picture in views("plain").values():
        for style in styles(picture):
            assert all(map(PROPERTIES.fullmatch, style))
            assert not any("var(" in value or "url(" in value for value in style.values())


def test_the_same_input_gives_the_same_picture() -> None:
    for text in HOSTILE:
        first, again = views(text), views(text)
        assert first == again


@given(texts)
def test_escape_loses_nothing_but_shows_what_is_invisible(text: str) -> None:
    escaped = draw.escape(text)
    assert not set("<>\"'") & set(escaped)
    assert unescape(escaped) == visible(text)
    seen = re.sub(r"\[U\+([0-9A-F]{4,6})\]", lambda found: chr(int(found[1], 16)), visible(text))
    assert seen == re.sub(r"\[U\+([0-9A-F]{4,6})\]", lambda found: chr(int(found[1], 16)), text)


def test_bidi_overrides_controls_and_lone_surrogates_are_made_visible() -> None:
    assert draw.escape("a\u202eb\x00\ud800\u200b") == "a[U+202E]b[U+0000][U+D800][U+200B]"
    assert draw.escape("tab\tand\nline, 中文, é, 👩‍💻") == "tab\tand\nline, 中文, é, 👩‍💻"


ENORMOUS: dict[str, Callable[[str], Html]] = {
    "html": draw.html,
    "table cell": lambda text: draw.table([[text]]),
    "strip": lambda text: draw.strip([user(text)], caption=text),
    "bar label": lambda text: draw.bar([(text, 1)]),
    "bytes": lambda text: draw.bytes_view(text.encode()),
    "sequence": lambda text: draw.sequence([("->", text)], left=text),
}


@pytest.mark.parametrize("name", ENORMOUS)
def test_an_enormous_text_gives_a_bounded_picture_that_says_what_was_left_out(name: str) -> None:
    picture = ENORMOUS[name]("<" * 3_000_000)
    assert len(picture.markup) < 150_000
    assert re.search(r"[\d,]+ more", words(picture) + picture.markup)
    assert len(repr(picture)) < 1_000


def test_many_rows_parts_and_messages_are_bounded_and_counted() -> None:
    assert "9,800 more rows" in words(draw.table([[i] for i in range(10_000)]))
    assert "9,800 more rows" in words(draw.sequence([("->", "x")] * 10_000))
    assert "9,940 more parts" in words(draw.bar([("x", 1)] * 10_000))
    history = [{"role": f"role {i}", "content": "x"} for i in range(3_000)]
    strip = draw.strip(history, fates=[f"fate {i}" for i in range(3_000)])
    assert len(strip.markup) < 120_000
    assert "3,000 messages" in words(strip)


def test_element_refuses_handlers_links_and_scripts() -> None:
    for bad in ({"onclick": "x"}, {"href": "x"}, {"src": "x"}, {"x y": "1"}, {"a>": "1"}):
        with pytest.raises(ValueError, match="attribute"):
            draw.element("div", **bad)
    for tag in ("script", "style", "svg onload=x", "DIV", ""):
        with pytest.raises(ValueError, match="element"):
            draw.element(tag)


def test_html_takes_pictures_results_that_draw_themselves_and_plain_text() -> None:
    class Result:
        def _repr_html_(self) -> str:
            return "<b>drawn</b>"

    joined = draw.html(Result(), "<i>", draw.element("span", "&"))
    assert "<b>drawn</b>" in joined.markup
    assert "&lt;i&gt;" in joined.markup
    assert "<span>&amp;</span>" in joined.markup
    assert joined._repr_html_() == str(joined) == joined.markup
    assert "&lt;class" in draw.html(Result).markup  # a class is no result


def test_numbers_are_written_the_same_everywhere() -> None:
    assert [draw.number(n) for n in (0, 1234567, -5, 0.5, 12.0, 100.0, 1234.567, True)] == [
        "0", "1,234,567", "-5", "0.5", "12", "100", "1,234.57", "1",
    ]  # fmt: skip


# ── the context strip ───────────────────────────────────────────────────────

STORY = [
    {"role": "system", "content": "You are a coding agent."},
    user("run the tests, then read the README"),
    assistant("First the tests.", call("a", "run_shell", command="pytest"), call("b", "read_file", path="README.md")),
    tool("a", "1 failed"),
    tool("b", "# Title"),
    assistant("One test fails."),
]


def signs(picture: Html) -> list[str]:
    """The signs in the boxes of a strip or bar, from left to right."""
    bar = next(e for e in ET.fromstring(picture.markup).iter("div") if e.get("style", "").startswith("display:flex"))
    return ["".join(box.itertext()) for box in bar]


def brackets(picture: Html) -> int:
    return sum("border-bottom-right-radius" in style for style in styles(picture))


def test_a_strip_shows_each_role_and_ties_a_call_to_its_results() -> None:
    picture = draw.strip(STORY)
    assert signs(picture) == ["S", "U", "C", "R", "R", "A"]
    assert brackets(picture) == 2
    assert "?" not in words(picture)
    assert f"6 messages, {size_bytes(STORY)} bytes" in words(picture)
    root = ET.fromstring(picture.markup)
    assert "tool result 2" in (root.get("aria-label") or "")
    titles = [title for e in root.iter() if (title := e.get("title") or "").startswith("#")]
    assert titles[2] == f"#2 · tool call · {size_of(STORY[2])} bytes\nFirst the tests. calls run_shell, read_file"
    assert (
        repr(picture)
        == f"<strip: 6 messages, {size_bytes(STORY)} bytes: system 1, user 1, assistant 1, tool call 1, tool result 2>"
    )


def test_a_call_without_result_and_a_result_without_call_are_marked() -> None:
    assert words(draw.strip(STORY[:4])).count("?") == 1
    assert brackets(draw.strip(STORY[:4])) == 1
    assert words(draw.strip(STORY[:3])).count("?") == 1
    assert words(draw.strip([*STORY, tool("zz", "late")])).count("?") == 1
    assert words(draw.strip([STORY[1], tool("a", "orphan")])).count("?") == 1
    assert words(draw.strip([*STORY[:3], user("wait"), *STORY[3:]])).count("?") == 0
    for odd in ({"function": "f"}, {"function": ["f"]}, {"function": 7, "id": {}}, {"function": {"name": {}}}, {}, "f"):
        draw.strip([{"role": "assistant", "content": [None, {"text": 5}], "tool_calls": [odd]}], width=300)
    odd = {"role": "assistant", "content": "", "tool_calls": [{"id": ["a"]}]}  # an id that cannot be hashed
    assert words(draw.strip([odd])).count("?") == 1
    assert words(draw.strip([odd, {"role": "tool", "tool_call_id": ["a"], "content": "x"}])).count("?") == 0


def test_fates_are_bands_with_their_own_signs() -> None:
    fates = ["cached", "dropped", "dropped", "dropped", "dropped", None]
    picture = draw.strip(STORY, fates=fates)
    assert signs(picture) == ["S=", "U×", "C×", "R×", "R×", "A·"]
    assert "dropped 4" in words(picture)
    assert "cached 1" in picture.label
    assert sum("line-through" in style.get("text-decoration", "") for style in styles(picture)) == 4


def test_sizes_and_scale_set_the_widths() -> None:
    picture = draw.strip([user("a"), user("b")], sizes=[300, 100], unit="tokens", width=720)
    assert "400 tokens" in words(picture)
    widths = [float(s["width"][:-1]) for s in styles(picture) if "flex-direction" in s]
    assert widths == [73.75, 26.25]  # a floor of 18 px each, the rest by size
    half = draw.strip([user("a"), user("b")], sizes=[300, 100], scale=800)
    assert any(style.get("width") == "50%" for style in styles(half))


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(AgentLabError, match="6 messages, 6 sizes, 1 fates"):
        draw.strip(STORY, fates=["kept"])
    with pytest.raises(AgentLabError, match="2 sizes"):
        draw.strip(STORY, sizes=[1, 2])


def test_kinds_and_sizes_of_what_is_no_message() -> None:
    assert [kind_of(m) for m in ({}, None, "x", {"role": 7}, {"role": "assistant", "tool_calls": []})] == [
        "no role", "no role", "no role", "7", "assistant",
    ]  # fmt: skip
    assert size_of({"role": object}) > 0
    assert draw.strip([{"role": "user", "content": "a", "id": {1, 2}}]).markup
    assert draw.strip([]).label == "strip: 0 messages, 0 bytes: "


sizes_of_messages = st.lists(st.integers(0, 10**6) | st.just(1), min_size=1, max_size=300)


@given(sizes_of_messages, st.integers(18, 900), st.sampled_from([1, 2, 7, 50]))
@example([0] * 300, 720, 1)
@example([1] * 299 + [10**9], 720, 1)
def test_boxes_cover_the_history_in_order_and_fill_the_bar(sizes: list[int], width: int, run: int) -> None:
    fates = [f"fate {i // run}" for i in range(len(sizes))]
    boxes = pack(["user"] * len(sizes), fates, sizes, width)
    assert [b.start for b in boxes] == [0, *(b.end for b in boxes[:-1])]
    assert boxes[-1].end == len(sizes)
    assert len(boxes) <= max(4 * (width // FLOOR), 1)
    assert sum(b.width for b in boxes) == pytest.approx(100)
    assert all(b.width > 0 for b in boxes)
    assert all(b.left == pytest.approx(a.left + a.width) for a, b in pairwise(boxes))
    for a, b in pairwise(sorted(boxes, key=lambda box: box.size)):
        assert a.width <= b.width + 1e-9
    if len(sizes) <= width // FLOOR:
        assert len(boxes) == len(sizes)
    if len(boxes) <= width // FLOOR and run >= 50:
        assert all(box.fate != "mixed" for box in boxes)


@pytest.mark.parametrize("n", [1, 2, 39, 40, 41, 200, 1_000])
def test_a_border_between_fates_stays_at_its_message(n: int) -> None:
    for cut in {0, 1, n // 3, n}:
        fates = ["dropped"] * cut + ["kept"] * (n - cut)
        boxes = pack(["user"] * n, fates, [100] * n, 720)
        assert all(box.fate in ("dropped", "kept") for box in boxes)
        assert sum(b.end - b.start for b in boxes if b.fate == "dropped") == cut


def test_a_thousand_messages_are_drawn_in_merged_boxes_that_count_them() -> None:
    history = [
        m
        for i in range(250)
        for m in (user("q"), assistant("", call(f"{i}", "f")), tool(f"{i}", "x" * i), assistant("a"))
    ]
    picture = draw.strip(history, fates=["summarised"] * 700 + ["kept"] * 300)
    assert len(picture.markup) < 60_000
    numbers = [int(found[0]) if (found := re.match(r"\d+", sign)) else 1 for sign in signs(picture)]
    assert sum(numbers) == 1_000
    assert "drawn together" in words(picture)


# ── bytes ───────────────────────────────────────────────────────────────────

EVENT = 'data: {"t":"我"}\r\n\r\n: note\n'.encode()


def test_the_four_classes_of_cuts() -> None:
    def kind(before: bytes) -> str:
        return draw.cut_kind(EVENT, EVENT.index(before) + len(before))

    assert kind(b"da") == "inside a line"
    assert kind(b"data: ") == "inside a line"
    assert kind(b"data: {") == "inside JSON"
    assert kind(b'"t":"') == "inside JSON"
    assert kind("我".encode()[:1]) == "inside a character"
    assert kind("我".encode()[:2]) == "inside a character"
    assert kind("我".encode()) == "inside JSON"
    assert kind(b'"}') == "inside a line"  # the payload parses already, the line is not over
    assert kind(b"}\r") == "inside a line"  # CR and LF are one line ending
    assert kind(b"}\r\n") == "between lines"
    assert kind(b"}\r\n\r\n") == "between lines"
    assert kind(b": no") == "inside a line"
    assert draw.cut_kind(b"data: [DONE]\n", 9) == "inside a line"
    assert draw.cut_kind(b'{"jsonrpc":"2.0"}\n', 9) == "inside JSON"
    assert draw.cut_kind(b"a\rb", 2) == "between lines"
    assert draw.cut_kind(b"\x80\x80", 1) == "inside a line"  # no character begins here


@given(st.text(max_size=40, alphabet=st.characters(exclude_categories=["Cs"])), st.data())
def test_inside_a_character_is_what_a_strict_decoder_cannot_end_at(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    try:
        raw[:cut].decode()
        whole = True
    except UnicodeDecodeError:
        whole = False
    assert (draw.cut_kind(raw, cut) == "inside a character") == (not whole)


@given(
    st.binary(max_size=80) | st.text(max_size=40).map(lambda t: t.encode("utf-8", "replace")),
    st.sets(st.integers(-3, 90)),
)
@example(EVENT, set(range(len(EVENT))))
def test_a_view_marks_every_cut_and_loses_no_byte(data: bytes, cuts: set[int]) -> None:
    picture = draw.bytes_view(data, cuts=cuts)
    only_our_own(picture.markup)
    inside = [c for c in cuts if 0 < c < len(data)]
    titles = [e.get("title") or "" for e in ET.fromstring(picture.markup).iter()]
    marked = [t for t in titles if t.startswith("cut ")]
    assert [t.rsplit(": ", 1)[1] for t in marked] == [draw.cut_kind(data, c) for c in sorted(inside)]
    spans = [t for t in titles if t.startswith("bytes ")]
    covered = [tuple(int(n) for n in re.findall(r"\d+", t)[:2]) for t in spans]
    assert [i for first, last in covered for i in range(first, last + 1)] == list(range(len(data)))


def test_a_character_in_two_parts_is_shown_byte_by_byte_and_marks_are_underlined() -> None:
    at = EVENT.index("我".encode()) + 1
    picture = draw.bytes_view(EVENT, cuts=[at], marks=[(0, 4, "field")])
    assert "e6" in words(picture)
    assert "88 91" in words(picture)
    assert r"\r\n" in words(picture)
    assert "cut inside a character 1" in words(picture)
    assert sum(s.get("text-decoration") == "underline" for s in styles(picture)) == 1
    assert "· field" in picture.markup


def test_only_the_first_bytes_are_shown_and_the_others_counted() -> None:
    picture = draw.bytes_view(b"x" * 5_000, cuts=range(10, 5_000, 10), limit=100)
    assert "the first 100 bytes, 4,900 more" in words(picture)
    assert words(picture).count("x") == 100
    assert "499 cuts" in words(picture)


# ── bar, table, columns, sequence ───────────────────────────────────────────


def test_a_bar_is_proportional_to_its_total_and_shows_its_limit() -> None:
    picture = draw.bar(
        [("system", 10, "system"), ("history", 30), ("none", 0)], total=80, marks=[(60, "limit")], unit="tokens"
    )
    widths = [s["width"] for s in styles(picture) if s.get("height") == "24px"]
    assert widths == ["12.5%", "37.5%"]
    assert signs(picture) == ["S", "2"]
    assert any(s.get("width") == "75%" and "border-right" in s for s in styles(picture))
    assert "limit 60 tokens" in words(picture)
    assert repr(picture) == "<bar: system 10 tokens; history 30 tokens; none 0 tokens; limit at 60 tokens>"
    over = draw.bar([("history", 100)], total=80, marks=[(80, "window")])
    assert any(s.get("width") == "80%" and "border-right" in s for s in styles(over))
    assert draw.bar([]).markup
    assert draw.bar([("x", -5)]).markup


def test_a_table_aligns_numbers_and_keeps_pictures() -> None:
    picture = draw.table([["a", 1234, draw.element("b", "x")], ["b", 0.25]], head=["name", "bytes", "share"])
    cells = [
        (("".join(e.itertext())), e.get("style", ""))
        for e in ET.fromstring(picture.markup).iter()
        if e.tag in ("td", "th")
    ]
    aligned = {text: re.search("text-align:(left|right)", style)[1] for text, style in cells}  # type: ignore[index]
    assert aligned["1,234"] == aligned["0.25"] == aligned["bytes"] == "right"
    assert aligned["a"] == aligned["name"] == "left"
    assert "<b>x</b>" in picture.markup
    assert len(cells) == 9  # a short row is filled up
    assert repr(picture) == "<table: 2 rows>"


def test_columns_stand_side_by_side_under_their_heads() -> None:
    picture = draw.columns(draw.strip(STORY), "text", heads=["before"])
    assert [s["flex"] for s in styles(picture) if "260px" in s.get("flex", "")] == ["1 1 260px"] * 2
    assert words(picture).startswith("before")


def test_a_sequence_has_arrows_in_both_directions_and_lost_ones() -> None:
    rows = [("->", "ask", "tool call"), ("<-", "answer"), ("x>", "lost"), ("<x", "lost too"), ("", "a note")]
    picture = draw.sequence(rows, left="client", right="server")
    assert re.findall("[▶◀✕]", words(picture)) == ["▶", "◀", "✕", "✕"]
    text = words(picture)
    assert (
        text.index("ask")
        < text.index("▶")
        < text.index("◀")
        < text.index("answer")
        < text.index("lost")
        < text.index("✕")
    )
    assert text.rindex("✕") < text.index("lost too")
    assert text.startswith("clientserver")
    assert sum("dashed" in s.get("border-top", "") for s in styles(picture)) == 4
    assert repr(picture) == "<sequence: 5 messages between client and server>"


# ---------------------------------------------------------------- charts


def test_a_chart_has_one_column_per_value_and_one_scale():
    drawn = draw.chart({"without": [10, 20, 40], "with": [10, 20]}, unit="tokens", limit=(30, "the window"))
    markup = str(drawn)
    heights = re.findall(r"height:([\d.]+)%", markup)
    assert heights == ["25", "50", "100", "25", "50"]
    assert "without: 3 values, at most 40 tokens, 40 tokens at the end" in markup
    assert "the window: 30 tokens" in markup
    assert markup.count("linear-gradient") == 3  # across each row, and through the column of 40
    assert "transparent 74.2%,#4d4d4d 74.2%,#4d4d4d 75.8%" in markup


@given(
    st.dictionaries(st.text(max_size=5), st.lists(st.floats(-1e9, 1e9), max_size=1_000), max_size=4),
    st.none() | st.floats(0, 1e9),
)
def test_any_numbers_make_a_chart_of_bounded_size(series, limit):
    markup = str(draw.chart(series, limit=None if limit is None else (limit, "limit <b>")))
    assert len(markup) < 600_000
    assert "<b>" not in markup
    assert "nan" not in markup


def test_of_many_values_the_largest_are_seen():
    values = [1.0] * 1_000
    values[501] = 500.0
    assert "height:100%" in str(draw.chart({"a": values, "b": [1.0] * 10}))
    assert str(draw.chart({"a": values})).count("title=") == 334


def test_heat_frames_the_smallest_of_each_column():
    drawn = str(draw.heat([[1, 9], [2, 3]], rows=["a", "b"], columns=["x", "y"], corner="<c>"))
    cells = re.findall(r"border:3px (double|solid transparent)[^>]*>([\d.]+)<", drawn)
    assert cells == [("double", "1"), ("solid transparent", "9"), ("solid transparent", "2"), ("double", "3")]
    assert "&lt;c&gt;" in drawn
    assert draw.heat([], rows=[], columns=[])
