"""Log folding: what stays is the log's own lines in order, no anchor is lost, and the markers' counts are exact."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.logfold import Folded, fold

DATA = Path(__file__).resolve().parent.parent / "data"
LOGS = sorted((DATA / "logs").glob("*.log"))
MARKER = re.compile(r"… \[(\d+) (?:similar )?lines omitted\]")
WORDS = ["error", "exception", "failed", "failure", "fatal", "panic", "timeout", "warn", "deprecated"]
NOISE = [f"step {n}" for n in range(50)]

plain_lines = st.sampled_from(
    [
        "",
        "\r",
        " ✓ case 1 (2ms)",
        " ✓ case 2 (3ms)",
        "downloading 0x1f",
        "\x0b\x0c\x85\u2028 no line ends here",
        "    value = 3",
        "  12 | let x = 3;",
        "     at run (a.js:1:2)",
        '  File "a.py", line 3, in f',
        "Traceback (most recent call last):",
        "  ^^^^",
    ]
)
anchors = st.sampled_from(
    ["ERROR: no such file", "warning: unused", "Tests: 3 passed", "FAIL a.test.ts", "thread panicked\r", "not ok 3 - a"]
)
lines_of_logs = st.lists(
    st.one_of(
        plain_lines.map(lambda line: [line]),
        st.tuples(plain_lines, st.integers(3, 12)).map(lambda run: [run[0]] * run[1]),
        st.integers(3, 12).map(lambda size: [f"compiling part {n}" for n in range(size)]),
        anchors.map(lambda line: [line]),
        st.integers(1, 6).map(lambda size: [f"warning: line {n} is long" for n in range(size)]),
    ),
    max_size=14,
).map(lambda parts: [line for part in parts for line in part])
options = st.fixed_dictionaries(
    {
        "min_lines": st.sampled_from([0, 1, 20]),
        "context": st.integers(0, 3),
        "min_savings": st.sampled_from([0.0, 0.15, 0.5]),
    }
)


def demo_log() -> str:
    """The 394 lines of the seed's demonstration."""
    demo = json.loads((DATA / "seed_demos.json").read_bytes())["log_394_lines"]
    lines = []
    for part in demo["parts"]:
        lines += part.get("lines", [])
        if "cases" in part:
            first, last = part["files"]
            lines += [
                part["cases"].format(file=file, case=case, ms=case + 1)
                for file in range(first, last + 1)
                for case in range(1, demo["cases_a_file"] + 1)
            ]
    return "\n".join(lines)


def expanded(folded: Folded, original: list[str]) -> list[str]:
    """The original again: kept lines from the result, omitted ones from the original, as many as the markers say."""
    lines: list[str] = []
    for line in folded.content.split("\n"):
        marker = MARKER.fullmatch(line)
        lines += original[len(lines) : len(lines) + int(marker[1])] if marker else [line]
    return lines


def surrounded(*lines: str) -> str:
    return "\n".join([*NOISE, *lines, *NOISE])


def kept(*lines: str) -> list[str]:
    """What stays of these lines, each a noise run's length away from all other anchors."""
    return [line for line in fold(surrounded(*lines), context=0).content.split("\n") if not MARKER.fullmatch(line)]


def test_the_demonstration_folds_394_lines_to_13() -> None:
    folded = fold(demo_log())
    assert (folded.folded, folded.lines_in, folded.lines_out) == (True, 394, 13)
    assert f"{folded.savings:.0%}" == "97%"
    assert folded.content.split("\n") == [
        "… [192 lines omitted]",
        " ✓ src/mod24.test.ts > case 7 (8ms)",
        " ✓ src/mod24.test.ts > case 8 (9ms)",
        " FAIL  src/billing.test.ts > charges the right amount",
        " AssertionError: expected 1099 to be 999",
        "     at src/billing.test.ts:42:15",
        "     at processTicksAndRejections (node:internal/process/task_queues:95:5)",
        "… [191 lines omitted]",
        " ✓ src/mod48.test.ts > case 8 (9ms)",
        "",
        " Test Files  1 failed | 48 passed",
        " Tests  1 failed | 384 passed",
        " Duration  4.21s",
    ]


@given(lines_of_logs, options)
def test_kept_lines_are_the_logs_own_in_order_and_the_counts_are_exact(lines: list[str], how: dict[str, float]) -> None:
    text = "\n".join(lines)
    folded = fold(text, **how)
    assert expanded(folded, text.split("\n")) == text.split("\n")
    assert folded.lines_in == text.count("\n") + 1
    assert folded.lines_out == folded.content.count("\n") + 1
    assert folded.content.endswith("\n") == text.endswith("\n") or not text.strip("\n")


@given(lines_of_logs, options, st.booleans())
def test_no_anchor_is_lost(lines: list[str], how: dict[str, float], merge: bool) -> None:
    def anchored(text: str) -> list[str]:
        found = [line for line in text.split("\n") if re.search("error|warn|Tests:|FAIL|panic|not ok", line, re.I)]
        return sorted({re.sub(r"\d+", "#", line) for line in found}) if merge else found

    assert anchored(fold("\n".join(lines), merge_similar=merge, **how).content) == anchored("\n".join(lines))


@given(lines_of_logs, options, st.booleans())
def test_folding_the_result_again_changes_nothing(lines: list[str], how: dict[str, float], merge: bool) -> None:
    once = fold("\n".join(lines), merge_similar=merge, **how)
    again = fold(once.content, merge_similar=merge, **how)
    assert (again.content, again.folded) == (once.content, False)


@given(lines_of_logs, options, st.booleans())
def test_either_unchanged_or_worth_it(lines: list[str], how: dict[str, float], merge: bool) -> None:
    text = "\n".join(lines)
    folded = fold(text, merge_similar=merge, **how)
    if not folded.folded:
        assert folded == Folded(text, False, folded.lines_in, folded.lines_in, 0.0)
    else:
        assert folded.lines_in >= how["min_lines"]
        assert folded.lines_out < folded.lines_in
        assert folded.savings == 1 - len(folded.content) / len(text) >= how["min_savings"]


@given(lines_of_logs, options)
def test_merged_counts_add_up_too(lines: list[str], how: dict[str, float]) -> None:
    folded = fold("\n".join(lines), merge_similar=True, **how)
    out = folded.content.split("\n")
    markers = [int(found[1]) for found in map(MARKER.fullmatch, out) if found]
    assert len(out) - len(markers) + sum(markers) == folded.lines_in
    assert min(markers, default=3) >= 3


def test_a_short_text_is_left_alone() -> None:
    lines = ["error", *NOISE[:39]]
    assert fold("\n".join(lines)).folded
    assert not fold("\n".join(lines[:39])).folded
    assert fold("\n".join(lines[:39]), min_lines=39).folded


def test_a_text_with_little_to_gain_is_left_alone() -> None:
    lines = ["error " + "x" * 100] * 40 + NOISE
    assert not fold("\n".join(lines)).folded
    assert fold("\n".join(lines), min_savings=0.05).folded


def test_a_text_without_an_anchor_is_left_alone() -> None:
    text = "\n".join(NOISE * 4)
    assert fold(text) == Folded(text, False, 200, 200, 0.0)


@pytest.mark.parametrize("context", [0, 1, 2, 5])
def test_context_stands_on_both_sides(context: int) -> None:
    out = fold("\n".join([*NOISE, "error", *NOISE]), context=context).content.split("\n")
    left = 50 - context
    around = [*NOISE[left:], "error", *NOISE[:context]]
    assert out == [f"… [{left} lines omitted]", *around, f"… [{left} lines omitted]"]


def test_a_negative_context_is_refused() -> None:
    with pytest.raises(AgentLabError, match="0 or more"):
        fold("a", context=-1)


@pytest.mark.parametrize(("gap", "stays"), [(1, True), (2, True), (3, False)])
def test_a_gap_of_one_or_two_lines_stays(gap: int, stays: bool) -> None:
    between = [f"step {n}" for n in range(gap)]
    assert (kept("error 1", *between, "error 2") == ["error 1", *between, "error 2"]) is stays


@pytest.mark.parametrize("word", WORDS)
def test_anchor_words_in_any_case_and_place(word: str) -> None:
    lines = [f"a {word} b", word.upper(), f"my{word.title()}s"]
    assert kept(*lines) == lines


@pytest.mark.parametrize(
    "line",
    [
        "PASS src/a.test.ts",
        " FAIL  src/a.test.ts",
        "--- FAIL: TestAdd (0.00s)",
        "Tests:       2 passed, 2 total",
        "      Tests  2 passed (2)",
        " Test Files  1 passed (1)",
        "Test Suites: 1 passed, 1 total",
        "======= 3 passed in 0.12s =======",
        "3 passed in 0.12s",
        "E       assert 1 == 2",
        "npm ERR! code E404",
        "npm WARN old",
        "not ok 3 - adds",
        "# fail 2",
        "ℹ pass 12",
        "make: *** No rule to make target 'a'.  Stop.",
        "make[2]: *** [Makefile:3: a.o] Killed",
        "test result: ok. 3 passed; 0 failed; 0 ignored",
        "src/a.ts(3,1): error TS2322: Type 'string' is not assignable",
    ],
)
def test_summary_lines(line: str) -> None:
    assert kept(line) == [line]


@pytest.mark.parametrize(
    "line", ["test tests::adds ... ok", "Compiling a v0.1.0", "passed", "PASSING", "testing", "ok 3 - adds", "== a =="]
)
def test_noise(line: str) -> None:
    assert kept("error", *NOISE, line) == ["error"]


TRACES = {
    "node": [
        "TypeError: x",
        "    at a (a.js:1:2)",
        "    at b (b.js:1:2)",
        "    at c (c.js:1:2)",
        "    at d (d.js:1:2)",
    ],
    "python": [
        "Traceback (most recent call last):",
        '  File "a.py", line 9, in <module>',
        "    main()",
        "    ~~~~^^",
        '  File "a.py", line 5, in main',
        "    return int('x')",
        "ValueError: invalid literal",
    ],
    "rustc": [
        "error[E0308]: mismatched types",
        "  --> src/main.rs:3:5",
        "   |",
        " 3 |     f(x)",
        "   |       ^ expected `u64`, found `u32`",
        "   |",
        "   = note: expected due to this",
    ],
    "rust": [
        "thread panicked",
        "   0: std::begin",
        "             at /a.rs:3:4",
        "   1: a::b",
        "             at /b.rs:3:4",
    ],
    "gcc": ["a.c:3:4: warning: unused", "    3 |   int x;", "      |       ^", "      |       y", "      |       z"],
}


@pytest.mark.parametrize("block", TRACES.values(), ids=TRACES)
def test_a_trace_that_touches_a_kept_line_stays_whole(block: list[str]) -> None:
    assert kept(*block) == block


@pytest.mark.parametrize("name", ["node", "rust"])
def test_a_trace_above_its_anchor_stays_and_one_on_its_own_goes(name: str) -> None:
    error, *trace = TRACES[name]
    assert kept(*trace, error) == [*trace, error]
    assert kept(*trace, "between", error) == [error]


def test_lines_end_at_line_feeds_only_and_keep_their_carriage_returns() -> None:
    text = "\r\n".join([*NOISE, "an error\x85\u2028\x0b\x0c\x1c\rafter", *NOISE]) + "\r\n"
    folded = fold(text, context=0)
    assert folded.lines_in == 102
    assert folded.content == "… [50 lines omitted]\nan error\x85\u2028\x0b\x0c\x1c\rafter\r\n… [50 lines omitted]\n"


def test_similar_neighbours_are_merged_on_request_only() -> None:
    warnings = [f"warning: 0xdeadbeef at {n}:{n:08x} took {n}.5 ms" for n in range(9, 60)]
    text = "\n".join([*warnings, "warning: other", "warning: other"])
    assert not fold(text).folded
    out = fold(text, merge_similar=True).content.split("\n")
    assert out == [warnings[0], "… [50 similar lines omitted]", "warning: other", "warning: other"]


def test_a_word_of_letters_is_no_number() -> None:
    text = "\n".join(f"error in {word}" for word in ["bed", "dad", "fed", "add"] * 10)
    assert fold(text, merge_similar=True).content == text


def test_what_differs_in_numbers_and_is_noise_counts_line_by_line() -> None:
    text = "\n".join(["start", *(f"got {n} %" for n in range(100)), "one", "two", "error"])
    out = fold(text, context=0, merge_similar=True).content.split("\n")
    assert out == ["… [103 lines omitted]", "error"]


def test_merging_needs_no_anchor() -> None:
    text = "\n".join(["start", *(f"got {n} %" for n in range(100)), "end"])
    assert fold(text, merge_similar=True).content == "start\ngot 0 %\n… [99 similar lines omitted]\nend"


HOSTILE = [
    "=",
    " ",
    "a",
    "1",
    "1g",
    "=== passe",
    '  File "',
    " 1",
    "0x",
    "af ",
    " at",
    "\t",
    "-->",
    "E ",
    "fatapani",
    "☃",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_lines_of_a_megabyte_take_linear_time(piece: str) -> None:
    # A pattern that is quadratic would need hours here.
    line = piece * (1_000_000 // len(piece))
    assert "error" in fold("\n".join([line, "error", line + "!"]), min_lines=1, merge_similar=True).content


def test_a_million_lines_with_a_wide_context() -> None:
    text = "error\n" * 1_000_000
    assert fold(text, context=10**9).content == text


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_real_logs_fold_by_more_than_half_and_keep_every_error(path: Path) -> None:
    text = path.read_bytes().decode()
    folded = fold(text)
    assert folded.savings > 0.5
    assert expanded(folded, text.split("\n")) == text.split("\n")
    wanted = [line for line in text.split("\n") if re.search("error|warning|FAILED|^E   |not ok", line)]
    assert wanted and set(wanted) <= set(folded.content.split("\n"))


def test_the_real_logs_are_there_and_small() -> None:
    assert len(LOGS) == 5
    assert all(path.stat().st_size < 60_000 for path in LOGS)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("cargo_build.log", "error[E0308]: mismatched types\n  --> "),
        ("make_gcc.log", "src/mod52.c: In function ‘area’:\n"),
        ("npm_test.log", "not ok 57 - charges every piece\n  ---\n"),
        ("pytest.log", "    def test_rounding():\n"),
        ("cargo_test.log", "stack backtrace:\n"),
    ],
)
def test_the_failure_block_of_a_real_log_stays_whole(name: str, block: str) -> None:
    text = (DATA / "logs" / name).read_bytes().decode()
    lines = text[text.index(block) :].split("\n")[:6]
    assert "\n".join(lines) in fold(text).content


def test_options_go_by_name() -> None:
    defaults = {name: p.default for name, p in inspect.signature(fold).parameters.items() if name != "text"}
    assert defaults == {"min_lines": 40, "context": 2, "min_savings": 0.15, "merge_similar": False, "tail_lines": 0}


def test_it_draws_itself_escaped_and_bounded() -> None:
    folded = fold(surrounded("error <script>alert(1)</script>", "error " + "x" * 1_000_000), min_savings=0)
    markup = folded._repr_html_()
    assert "<script" not in markup and "&lt;script&gt;" in markup
    assert "… [48 lines omitted]" in markup
    assert len(markup) < 30_000


def test_the_empty_text() -> None:
    assert fold("", min_lines=0) == Folded("", False, 1, 1, 0.0)


@pytest.mark.parametrize(
    "line",
    [
        "cp: cannot stat 'dist/app.js': No such file or directory",
        "Killed",
        "Aborted (core dumped)",
        "Segmentation fault",
        "bash: foo: command not found",
        "open /etc/x: Permission denied",
        "connect: connection refused",
        "operation timed out after 30 s",
        "ld: undefined reference to `f'",
        "java: out of memory",
        "CONFLICT (content): Merge conflict in a.txt",
        "BUILD UNSUCCESSFUL",
        "Unhandled rejection",
        "process ended with exit status 1",
        "make: recipe ended, exit code: 2",
        "  ✗ charges the right amount",
        "\x1b[31m\x1b[1mFAIL\x1b[0m src/a.test.ts",
        "\x1b[1mE   \x1b[0massert 3 == 4",
    ],
)
def test_what_says_that_something_went_wrong_stays(line: str) -> None:
    noise = [f"step {n} done" for n in range(60)]
    log = "\n".join([*noise, "warning: an old flag", *noise, line, *noise])
    assert line in fold(log).content.split("\n")


def test_the_tail_can_be_kept() -> None:
    log = "\n".join(["error: first", *[f"step {n} done" for n in range(60)], "the reason, in nobody's words", ""])
    folded = fold(log, tail_lines=3)
    assert folded.content.endswith("\nstep 58 done\nstep 59 done\nthe reason, in nobody's words\n")
    assert fold(folded.content, tail_lines=3, min_lines=0) == fold(folded.content, tail_lines=3, min_lines=0)
    assert not fold(log, tail_lines=1_000).folded
    assert (
        not fold("a\n" * 50 + "error", min_savings=-1).folded or fold("a\n" * 50 + "error", min_savings=-1).savings > 0
    )
