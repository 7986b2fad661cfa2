"""What reaches a terminal: nothing that it obeys, nothing without end, no key."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentlab.chat.shown import ARGUMENTS, OUTPUT_LINES, VALUE_CHARS, VALUE_LINES, Shown

KEY = "sk-live-0123456789abcdef"
SHOWN = Shown({"AGENT_API_KEY": KEY, "HOME": "/home/ada"})
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
anything = st.text(alphabet=st.characters(), max_size=300) | st.text(alphabet="a\x1b[31m\r\n\x07\x9b]0;", max_size=80)


@given(anything, st.dictionaries(anything, anything | st.integers() | st.lists(anything, max_size=3), max_size=20))
def test_no_control_code_gets_through(text, input):
    every = [SHOWN.text(text), SHOWN.line(text), SHOWN.call(text, text), *SHOWN.output(text), *SHOWN.arguments(input)]
    shown = Shown({})
    every += [shown.piece(text), shown.rest()]
    for one in every:
        assert not OBEYED.search(one)
        one.encode()
    assert "\n" not in SHOWN.line(text) + SHOWN.call(text, text) + "".join(SHOWN.output(text))


@given(st.lists(st.integers(1, 30)), st.text(max_size=20), st.text(max_size=20))
@example([7], "", "")
def test_a_key_is_masked_however_the_stream_is_cut(cuts, before, after):
    text, shown, out = f"{before}{KEY}{after}{KEY[:9]}", Shown({"AGENT_API_KEY": KEY}), ""
    for size in cuts:
        out += shown.piece(text[:size])
        text = text[size:]
    out += shown.piece(text) + shown.rest()
    assert KEY not in out
    assert "[redacted]" in out


@given(st.lists(st.text(alphabet=st.characters(categories=["L", "N"]), max_size=5)))
def test_a_stream_loses_nothing(pieces):
    shown = Shown({"AGENT_API_KEY": KEY})
    assert "".join(map(shown.piece, pieces)) + shown.rest() == "".join(pieces)


def test_only_what_may_be_a_key_waits():
    shown = Shown({"AGENT_API_KEY": KEY})
    assert shown.piece("你好 sk-l") == "你好 "
    assert shown.piece("ow") == "sk-low"


def test_outputs_and_inputs_are_bounded_and_say_what_is_left_out():
    lines = SHOWN.output("\n".join(map(str, range(100))))
    assert len(lines) == OUTPUT_LINES + 1
    assert lines[-1] == f"… {100 - OUTPUT_LINES} more lines"
    assert "more characters]" in SHOWN.output("x" * 100_000)[0]
    asked = SHOWN.arguments({"command": "true\nrm -r .", **{f"a{n}": n for n in range(ARGUMENTS)}})
    assert asked[:2] == ["  command: true", "  | rm -r ."]
    assert asked[-1] == "  … and 1 more arguments"
    assert len(SHOWN.arguments({"command": "\n" * 100_000 + "x"})) <= VALUE_LINES + 2
    assert sum(map(len, SHOWN.arguments({"command": "x" * 100_000}))) < VALUE_CHARS + 100


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\rb"], ids=["codes", "redraw"])
def test_codes_of_an_output_are_taken_out(text):
    assert SHOWN.output(text) in (["ab"], ["b"])
