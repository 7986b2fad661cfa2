"""What a model reads is all there, in order and bounded; what it edits is literal, and touches nothing else."""

from __future__ import annotations

import io
import re
import tracemalloc
from typing import Any

import pytest
from cases import case
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentlab.errors import ToolError
from agentlab.textfile import LINE_CHARS, PAGE_CHARS, Edit, apply_edit, is_text, numbered, read_edit

LINE = re.compile(r" {0,5}(\d+)\t(.*)", re.S)
GOES_ON = re.compile(r" \[line goes on: offset=(\d+), limit=1, column=(\d+)\]$")
NEXT_PAGE = re.compile(r"; go on with offset=(\d+)[;\]]")


def read(data: bytes, *, offset: int = 1, limit: int = 800, column: int = 1) -> str:
    return numbered("a.txt", io.BytesIO(data), offset=offset, limit=limit, column=column)


def body(page: str) -> list[str]:
    """The numbered lines of a page, without its last line."""
    return page.split("\n")[:-1]


def note(page: str) -> str:
    return page.split("\n")[-1]


def follow(data: bytes, limit: int = 800) -> list[str]:
    """The file's lines, read the way a model would: from page to page, each long line to its end first."""
    lines: list[str] = []
    offset = 1
    while True:
        page = read(data, offset=offset, limit=limit)
        assert len(page) <= PAGE_CHARS + LINE_CHARS + 300
        for shown in body(page):
            number, text = (LINE.fullmatch(shown) or pytest.fail(shown)).groups()
            assert int(number) == len(lines) + 1, "a line was shown twice, or left out"
            while more := GOES_ON.search(text):
                assert int(more[1]) == int(number)
                (rest,) = body(read(data, offset=int(more[1]), limit=1, column=int(more[2])))
                text = text[: more.start()] + (LINE.fullmatch(rest) or pytest.fail(rest))[2]
            lines.append(text)
        if not (found := NEXT_PAGE.search(note(page))):
            return lines
        assert int(found[1]) == len(lines) + 1
        offset = int(found[1])


def lines_of(data: bytes) -> list[str]:
    """What a person would call the lines of these bytes."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    parts = text.split("\n")
    parts = [part.removesuffix("\r") for part in parts[:-1]] + parts[-1:]
    return [re.sub("[\0\ud800-\udfff]", "\ufffd", part) for part in (parts if parts[-1] else parts[:-1])]


# ---------------------------------------------------------------- reading


def test_lines_come_with_their_numbers() -> None:
    assert read(b"one\ntwo\n") == "     1\tone\n     2\ttwo\n[2 lines, all shown]"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"no end", ["no end"]),
        (b"\n", [""]),
        (b"\n\nx", ["", "", "x"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\nc\r", ["a", "b", "c\r"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\r\n", ["a\r"]),
        (b"\xef\xbb\xbfmarked\n", ["marked"]),
        (b"one\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        ("a\u2028b\x85c\x0bd\x0ce\n".encode(), ["a\u2028b\x85c\x0bd\x0ce"]),
        (b"caf\xe9\n", ["caf\ufffd"]),
        ("ab\ufffd\n".encode(), ["ab\ufffd"]),
        ("日本語\n🐙\n".encode(), ["日本語", "🐙"]),
    ],
)
def test_lines_end_where_they_should(data: bytes, lines: list[str]) -> None:
    assert body(read(data)) == [f"{n:>6}\t{line}" for n, line in enumerate(lines, 1)]
    assert follow(data) == lines == lines_of(data)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_told_as_such(data: bytes) -> None:
    assert read(data) == "a.txt is empty."
    assert read(data, offset=5) == "a.txt is empty."


def test_bytes_that_are_no_utf_8_are_told_and_real_replacement_characters_are_not() -> None:
    assert "no UTF-8 text are shown as" in note(read(b"ok\ncaf\xe9\n"))
    assert "no UTF-8" not in note(read("caf\ufffd\n".encode()))
    assert "no UTF-8" not in note(read(b"ok\ncaf\xe9\n", limit=1))  # it is not on this page


@pytest.mark.parametrize("column", range(1, 14))
def test_a_character_across_the_edge_of_what_is_shown_is_no_foreign_byte(column: int) -> None:
    page = read(("日" * 10_000).encode(), column=column)
    assert "no UTF-8" not in page
    assert body(page)[0].count("日") == LINE_CHARS


@pytest.mark.parametrize("data", [b"a\0b", "text\n".encode("utf-16"), b"\x7fELF" + b"\0" * 100, b"x" * 7999 + b"\0"])
def test_a_file_that_is_no_text_is_told_as_such(data: bytes) -> None:
    assert not is_text(data)
    with pytest.raises(ToolError, match=r"no UTF-8 text file\. Look at it with run_shell"):
        read(data)


def test_a_log_with_one_nul_far_down_can_be_read() -> None:
    data = b"line\n" * 2000 + b"torn\0\n"
    assert follow(data) == lines_of(data)
    assert follow(data)[-1] == "torn\ufffd"


def test_a_page_in_the_middle_and_the_last_one() -> None:
    data = b"".join(b"%d\n" % n for n in range(1, 11))
    assert read(data, offset=3, limit=2) == "     3\t3\n     4\t4\n[lines 3 to 4 of 10; go on with offset=5]"
    assert read(data, offset=9, limit=2) == "     9\t9\n    10\t10\n[lines 9 to 10 of 10]"
    assert read(data, offset=10, limit=10**12) == "    10\t10\n[lines 10 to 10 of 10]"


@pytest.mark.parametrize("offset", [3, 4, 10**18])
def test_an_offset_behind_the_end_is_told_with_the_number_of_lines(offset: int) -> None:
    for data in (b"one\ntwo\n", b"one\ntwo"):
        with pytest.raises(ToolError, match="has 2 lines: there is no line"):
            read(data, offset=offset)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\nnext", b"\r\nnext\r\n"])
@pytest.mark.parametrize("length", [1999, 2000, 2001, 2002, 3999, 4000, 4001, 4002, 65_534, 65_535, 65_536, 131_072])
def test_a_long_line_goes_on_exactly_when_there_is_more(length: int, end: bytes) -> None:
    data = bytes(97 + n % 26 for n in range(length)) + end
    page = read(data, limit=1)
    assert ("line goes on" in page) is (length > LINE_CHARS)
    assert follow(data) == lines_of(data)


def test_a_column_behind_the_end_of_a_line_says_so() -> None:
    assert body(read(b"abc\r\nabcdef\n", column=4)) == [
        "     1\t[this line ends before character 4]",
        "     2\tdef",
    ]
    assert body(read(b"\n", column=1)) == ["     1\t"]


def test_a_page_ends_at_its_size() -> None:
    data = (b"x" * 1500 + b"\n") * 100
    page = read(data)
    assert PAGE_CHARS - 1600 < len(page) <= PAGE_CHARS + 100
    assert note(page) == "[lines 1 to 33 of 100; go on with offset=34]"
    assert follow(data + b"short\n") == lines_of(data + b"short\n")
    data = (b"x" * 1500 + b"\n") * 32 + b"y" * 3000 + b"\nshort\n"  # what would fit must not come before what does not
    assert note(read(data)) == "[lines 1 to 32 of 34; go on with offset=33]"
    assert follow(data) == lines_of(data)


texts = st.text("ab \t\r\n\u2028é日🐙\x85\ufeff\ufffd", max_size=40)
long_ones = st.builds(lambda part, size: part * (size // len(part)), texts.filter(bool), st.integers(1900, 4500))
files = (
    st.binary(max_size=200)
    | st.lists(texts | long_ones, max_size=6).map(lambda parts: "\n".join(parts).encode())
    | st.lists(st.binary(max_size=8) | st.sampled_from([b"\n", b"\r\n", b"x" * 3000, b"\xe9" * 2500]), max_size=12).map(
        b"".join
    )
)


@given(files, st.integers(1, 9))
@example(b"\xef\xbb\xbf", 1)
@example(b"\xef\xbb\xbf\xef\xbb\xbf\n", 1)
@example(b"x" * 2000 + b"\r\n", 1)
@example(b"x" * 2000 + b"\r", 1)
@example(b"x" * 2001 + b"\r\r\n\r\n", 1)
@example(b"x" * 9000 + b"\0", 1)
@example("日".encode() * 2000 + b"\xe6", 1)
def test_who_follows_the_notes_reads_each_line_once_and_whole(data: bytes, limit: int) -> None:
    if not is_text(data):
        with pytest.raises(ToolError):
            read(data)
    elif lines_of(data):
        assert follow(data, limit) == lines_of(data)
    else:
        assert read(data) == "a.txt is empty."


@settings(max_examples=30)
@given(files, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7))
def test_a_page_is_bounded_whatever_is_asked_for(data: bytes, offset: int, limit: int, column: int) -> None:
    try:
        page = read(data, offset=offset, limit=limit, column=column)
    except ToolError as error:
        page = str(error)
    assert len(page) <= PAGE_CHARS + LINE_CHARS + 300
    page.encode()  # no lone surrogate goes out


class Endless(io.RawIOBase):
    """A file of `size` bytes that never stand in memory: one line, or lines of 80 characters."""

    def __init__(self, size: int, *, lines: bool) -> None:
        self.size, self.at = size, 0
        self.block = (b"x" * 79 + b"\n" if lines else b"x" * 80) * 800

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset
        return offset

    def readinto(self, target: Any) -> int:
        start = self.at % 80
        count = min(len(target), self.size - self.at, len(self.block) - start)
        target[:count] = self.block[start : start + count]
        self.at += count
        return count


@pytest.mark.parametrize(
    ("size", "lines", "options", "said"),
    [
        (50_000_000, False, {}, "column=2001]"),
        (50_000_000, False, {"column": 49_999_000}, "lines"),
        (5_000_000, False, {"column": 5_000_001}, "ends before character"),
        (5_000_000, True, {"offset": 62_500}, "lines 62500 to 62500 of 62500"),
        pytest.param(80_000_000, True, {"offset": 500_000}, "of 1000000; go on", marks=pytest.mark.soak),
        pytest.param(1_000_000_000, False, {"column": 999_999_000}, "lines", marks=pytest.mark.soak),
    ],
)
def test_memory_is_bounded(size: int, lines: bool, options: dict[str, int], said: str) -> None:
    with io.BufferedReader(Endless(size, lines=lines)) as file:
        tracemalloc.start()
        try:
            page = numbered("big", file, **{"offset": 1, "limit": 800, "column": 1, **options})  # type: ignore[arg-type]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert said in page
    assert len(page) <= PAGE_CHARS + 300
    assert peak < 1_000_000


def test_a_million_lines_can_be_read_to_the_end() -> None:
    with io.BufferedReader(Endless(80_000_000, lines=True)) as file:
        page = numbered("big", file, offset=999_999, limit=800, column=1)
    assert page.endswith("[lines 999999 to 1000000 of 1000000]")


# ---------------------------------------------------------------- editing


def edit(text: str, old: str, new: str, *, replace_all: bool = False) -> str:
    return apply_edit(text, Edit(old, new, replace_all), name="a.txt")[0]


@pytest.mark.parametrize("new", [r"\1", r"\g<0>", "$&", "$1 $$", r"\n", "%s", "{0}", "\\", "\\\\", "& | ; `x`"])
def test_the_replacement_is_no_template(new: str) -> None:
    assert edit("a = OLD\n", "OLD", new) == f"a = {new}\n"
    assert edit("a = OLD\n", "OLD", new, replace_all=True) == f"a = {new}\n"


@pytest.mark.parametrize("old", [".", "a.c", "[ab]", "(", "^", "$", "\\d", "*"])
def test_what_is_looked_for_is_no_pattern(old: str) -> None:
    assert edit(f"abc 1 {old} xyz", old, "found") == "abc 1 found xyz"
    with pytest.raises(ToolError, match="is not in"):
        edit("abc 1 xyz", old, "found")


characters = st.text("aab \\$1&\n\u2028é日\x85\t", max_size=12)


@settings(max_examples=300)
@given(characters, characters.filter(bool), characters, characters)
def test_an_edit_is_slicing(before: str, old: str, new: str, behind: str) -> None:
    text = before + old + behind
    found = [at for at in range(len(text)) if text.startswith(old, at)]
    if len(found) == 1:
        assert apply_edit(text, Edit(old, new), name="a.txt") == (before + new + behind, 1)
    else:
        with pytest.raises(ToolError, match=f"matches {len(found)} places"):
            edit(text, old, new)
    replaced, count = apply_edit(text, Edit(old, new, replace_all=True), name="a.txt")
    assert replaced == new.join(text.split(old))
    assert count == len(text.split(old)) - 1


def test_matches_that_overlap_are_two() -> None:
    with pytest.raises(ToolError, match=r"matches 2 places \(lines 1, 2\)"):
        edit("\n\n\n", "\n\n", "x")


def test_the_lines_of_all_matches_are_named_up_to_twenty() -> None:
    """Case E06, and many."""
    found = case("E06")
    with pytest.raises(ToolError) as caught:
        edit(found["input"]["file"], found["input"]["old_string"], found["input"]["new_string"])
    assert "matches 2 places (lines 1, 3)" in str(caught.value)
    assert all(part in str(caught.value) for part in found["expected"]["error_contains"])

    with pytest.raises(ToolError, match=r"matches 20 places \(lines 1, .*, 19, 20\)"):
        edit("x\n" * 20, "x", "y")
    with pytest.raises(ToolError, match=r"matches 21 places \(lines 1, .*, 19, 20, \.\.\.\)"):
        edit("x\n" * 21, "x", "y")
    with pytest.raises(ToolError, match=r"matches 100000 places"):
        edit("x\n" * 100_000, "x", "y")
    with pytest.raises(ToolError, match=r"matches 2 places \(lines 2, 4\)"):
        edit("a\nb\nc\nb\nc\n", "b\nc", "y")
    with pytest.raises(ToolError, match=r"^old_string matches 2 places \(lines 1\)"):
        edit("b b", "b", "y")


def test_the_lines_that_are_named_are_the_ones_that_reading_shows() -> None:
    text = "a\u2028b\x85\r\nneedle\x0b\nx\rneedle\n"
    numbers = [LINE.fullmatch(line) for line in body(read(text.encode())) if "needle" in line]
    lines = ", ".join(found[1] for found in numbers if found)
    with pytest.raises(ToolError, match=rf"\(lines {lines}\)"):
        edit(text, "needle", "y")


@pytest.mark.parametrize(
    ("text", "old", "new", "right"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n"),  # what the model saw, and means
        ("a\r\nb\r\n", "b", "b1\nb2", "a\r\nb1\r\nb2\r\n"),  # the file has no other line ends
        ("a\r\nb\r\n", "b", "b1\r\nb2", "a\r\nb1\r\nb2\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "x\ny", "x\ny\r\n"),  # it says exactly what it wants
        ("a\r\nb\r\nc", "\nb", "\n\nb", "a\r\n\r\nb\r\nc"),  # no half of a line end is left
        ("a\r\nb\r\n", "a\n", "", "b\r\n"),
        ("a\nb\n", "b", "b1\nb2", "a\nb1\nb2\n"),
        ("a\nb\n", "b", "b1\r\nb2", "a\nb1\r\nb2\n"),
        ("a\r\nb\nc\n", "b\nc", "x\ny", "a\r\nx\ny\n"),  # mixed: it matches as it is
        ("a\r\nb\nc\n", "a\nb", "x\ny", "x\r\ny\nc\n"),  # mixed: it matches with CRLF only
        ("a\r\nb\nc\n", "c", "c1\nc2", "a\r\nb\nc1\nc2\n"),
        ("a\rb\r", "b", "x\ny", "a\rx\ny\r"),  # CR alone ends no line
        ("a\r\r\nb\r\n", "b", "x", "a\r\r\nx\r\n"),
    ],
)
def test_line_ends_stay_what_they_are(text: str, old: str, new: str, right: str) -> None:
    assert edit(text, old, new) == right


def test_a_line_end_matches_both_kinds_and_takes_on_that_of_its_place() -> None:
    assert edit("a\r\nb\nc\n", "a\nb\nc", "x\ny") == "x\r\ny\n"
    assert edit("one\r\ntwo\r\nx\n", "two", "two\nnew") == "one\r\ntwo\r\nnew\r\nx\n"
    assert edit("one\r\ntwo\nx\n", "two", "two\nnew") == "one\r\ntwo\nnew\nx\n"
    assert edit("a\r\nlast", "last", "b\nc") == "a\r\nb\r\nc"
    assert edit("a\r\n\r\nb\n", "\n\nb", "!") == "a!\n"
    mixed = "a\nb\nx\r\na\r\nb\r\n"
    with pytest.raises(ToolError, match=r"matches 2 places \(lines 1, 4\)"):
        edit(mixed, "a\nb", "Z")
    assert apply_edit(mixed, Edit("a\nb", "y\nz", True), name="f") == ("y\nz\nx\r\ny\r\nz\r\n", 2)


def test_places_that_overlap_are_two_and_their_lines_are_named_once() -> None:
    with pytest.raises(ToolError, match=r"matches more than 20 places \(lines 1, \.\.\.\)"):
        edit("-" * 79, "-" * 40, "=")
    with pytest.raises(ToolError, match=r"matches 2 places \(lines 1\)"):
        edit("aaa", "aa", "b")
    with pytest.raises(ToolError, match=r"matches 2 places \(lines 1, 2\)"):
        edit("\r\n\r\n\r\n", "\n\n", "x")


@pytest.mark.parametrize(
    ("text", "old", "hint"),
    [
        ("a\nb", "b\n", "does not end with a line end"),
        ("caf\udce9", "caf\ufffd", "is no UTF-8 text: leave it out"),
        ("a\nb\n", "c\n", "is not in a.txt. Read the file again"),
    ],
)
def test_where_copying_exactly_cannot_help_the_error_says_why(text: str, old: str, hint: str) -> None:
    with pytest.raises(ToolError, match=hint):
        edit(text, old, "x")


@given(st.lists(st.text("ab日 ", max_size=4), min_size=1, max_size=6), st.data())
def test_a_file_of_crlf_lines_edits_like_one_of_lf_lines(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines) + "\n"
    start = data.draw(st.integers(0, len(text) - 1))
    old = text[start : data.draw(st.integers(start + 1, len(text)))]
    wanted = Edit(old, data.draw(st.text("xy\n", max_size=5)), data.draw(st.booleans()))
    try:
        right = apply_edit(text, wanted, name="f")[0].replace("\n", "\r\n")
    except ToolError as error:
        with pytest.raises(ToolError, match=re.escape(str(error))):
            apply_edit(text.replace("\n", "\r\n"), wanted, name="f")
    else:
        assert apply_edit(text.replace("\n", "\r\n"), wanted, name="f")[0] == right


@settings(max_examples=200)
@given(st.binary(max_size=60), st.binary(max_size=60), st.text("xyé日\\$&", max_size=6))
@example(b"\xef\xbb", b"\xbf", "")
@example(b"\xc3", b"\xa9\r\n\r\xff", "")
def test_bytes_outside_of_the_match_are_untouched(before: bytes, behind: bytes, new: str) -> None:
    """For any bytes, UTF-8 or not, decoded and encoded as edit_file does it."""
    text = (before + b"OLD" + behind).decode("utf-8", "surrogateescape")
    assert edit(text, "OLD", new).encode("utf-8", "surrogateescape") == before + new.encode() + behind


# ---------------------------------------------------------------- what a model sends as an edit


@pytest.mark.parametrize(
    ("sent", "right"),
    [
        ({"old_string": "a", "new_string": "b"}, Edit("a", "b")),
        ({"old": "a", "new": "b", "replace_all": True}, Edit("a", "b", True)),
        ({"old_string": "a", "new_string": ""}, Edit("a", "")),
        ({"old_string": "a", "new_string": "b", "replace_all": None}, Edit("a", "b")),
        ({"old_string": "a", "new_string": "\ud800b\udcff"}, Edit("a", "\ufffdb\ufffd")),
    ],
)
def test_edits_that_can_be_meant(sent: Any, right: Edit) -> None:
    assert read_edit(sent) == right


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"old_string": "", "new_string": "b"}, "old_string must not be empty"),
        ({"old_string": "a", "new_string": "a"}, "are the same"),
        ({"old_string": "a", "new_string": None}, "must be text"),
        ({"old_string": "a"}, "must be text"),  # forgotten: that must not delete anything
        ({"old_string": None, "new_string": "b"}, "must be text"),
        ({"old_string": 1, "new_string": "b"}, "must be text"),
        ({"new_string": "b"}, "must be text"),
        ({}, "must be text"),
        (None, "must be text"),
        ("old", "must be text"),
        (["a", "b"], "must be text"),
        ({"old_string": "a", "new_string": "b", "replace_all": "false"}, "replace_all must be true or false"),
        ({"old_string": "a", "new_string": "b", "replace_all": 1}, "replace_all must be true or false"),
    ],
)
def test_edits_that_cannot(sent: Any, said: str) -> None:
    with pytest.raises(ToolError) as caught:
        read_edit(sent, "edit 3: ")
    assert str(caught.value).startswith("edit 3: ")
    assert said in str(caught.value)
    assert "Nothing was changed." in str(caught.value)
