"""What a terminal shows in the end: codes gone, redrawn lines in their last state, whole or in pieces."""

from __future__ import annotations

import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st

from agentlab.terminal import Cleaner, clean, decode

pieces = st.sampled_from(
    [
        "a",
        "é",
        "日",
        "\n",
        "\r",
        "\r\n",
        " ",
        "\x1b",
        "\x1b[",
        "\x1b[1;31m",
        "\x1b]0;t\x07",
        "\x1b]8;;u\x1b\\",
        "m",
        "[",
        "\x07",
    ]
)
outputs = st.lists(pieces, max_size=30).map("".join)


def test_redrawn_lines_and_colours_of_a_real_case() -> None:
    """Case O05."""
    found = case("O05")
    assert clean(found["input"]["output"]) == found["expected"]["text"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mtrue colour\x1b[m", "true colour"),
        ("\x1b[38:5:1mcolons\x1b[m", "colons"),
        ("\x1b(B\x1b[mreset as tput does", "reset as tput does"),
        ("\x1b7saved\x1b8", "saved"),
        ("\x1b=keypad\x1b>", "keypad"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("\x1b[2Kline\x1b[1A", "line"),
        ("\x1b]0;a title\x07shell", "shell"),
        ("\x1b]8;;http://a/\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1bPdevice\x1b\\control", "control"),
        ("cut short\x1b[3", "cut short3"),
        ("cut short\x1b[", "cut short"),
        ("cut short\x1b", "cut short"),
        ("\x1b\nnext", "\nnext"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\r\r\nb", "a\nb"),
        ("1%\r2%\r", "2%"),
        ("1%\r2%\r\x1b[0m\n", "2%\n"),
        ("\r", ""),
        ("[0m stays", "[0m stays"),
        ("a\u2028b\x0bc\x85d", "a\u2028b\x0bc\x85d"),
    ],
)
def test_what_a_terminal_shows(raw: str, text: str) -> None:
    assert clean(raw) == text


@given(outputs | st.text())
def test_no_code_and_no_redraw_is_left_and_once_is_enough(text: str) -> None:
    cleaned = clean(text)
    assert "\x1b" not in cleaned
    assert "\r" not in cleaned
    assert clean(cleaned) == cleaned
    assert cleaned.count("\n") <= text.count("\n")


@given(st.text().filter(lambda text: not set(text) & {"\x1b", "\r"}))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("part", ["\x1b[", "\x1b]", "\x1b]8;;", "\x1b[1", "\x1b", "\r", "\x1bP", "\x1b[;", "\x1b  "])
def test_cleaning_takes_time_in_proportion(part: str) -> None:
    """With a regular expression that went back, half a million characters would take hours."""
    assert len(clean(part * (500_000 // len(part)))) <= 500_000


# ---------------------------------------------------------------- in pieces


def in_pieces(data: bytes, size: int, line_chars: int = 64 * 1024) -> str:
    cleaner = Cleaner(line_chars)
    return "".join([cleaner.feed(data[at : at + size]) for at in range(0, len(data), size)]) + cleaner.close()


@given(outputs | st.text() | st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_pieces_give_the_text_of_the_whole(text: str) -> None:
    data = text.encode("utf-8", "surrogateescape" if any("\udc80" <= c <= "\udcff" for c in text) else "replace")
    for size in (1, 2, 3, 7, 1000):
        assert in_pieces(data, size) == clean(decode(data))


def test_a_progress_bar_is_held_in_its_last_state_only() -> None:
    """Ten megabytes on one line: the pieces are the whole, and what is held back stays small."""
    data = b"".join(b"\r\x1b[32m%9d of 500000\x1b[0m" % n for n in range(400_000)) + b"\r\nok\n"
    cleaner, out, held = Cleaner(), [], 0
    for at in range(0, len(data), 10_000):
        out.append(cleaner.feed(data[at : at + 10_000]))
        held = max(held, len(cleaner._held))
    assert "".join(out) + cleaner.close() == clean(decode(data)) == "   399999 of 500000\nok\n"
    assert held < 80_000


@pytest.mark.parametrize("part", [b"\r", b"x", b"\x1b", b"\x1b]", b"\r\x1b[0m", "日".encode(), b"ab\r", b"\xff"])
def test_one_endless_line_is_not_held_back_for_ever(part: bytes) -> None:
    cleaner, data = Cleaner(1_000), part * 3_000
    out = []
    for at in range(0, len(data), 100):
        out.append(cleaner.feed(data[at : at + 100]))
        assert len(cleaner._held) < 6_000
    text = "".join(out) + cleaner.close()
    if b"\x1b" not in part and b"\r" not in part:
        assert text == decode(data)


@given(outputs, st.integers(1, 9))
def test_of_a_line_that_is_too_long_no_text_is_lost_but_redrawn(text: str, size: int) -> None:
    plain = text.replace("\r", "").replace("\x1b", "")
    assert in_pieces(plain.encode(), size, 2) == plain
    given_out = in_pieces(text.encode(), size, 2)
    assert not {"\x1b", "\r"} & set(given_out)
