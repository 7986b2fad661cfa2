"""Log folding: the lines that matter stay, runs of noise become one line that counts them.

1. An **anchor** (an error, a warning, a summary) stays, with `context` lines on both sides.
2. A **trace** (stack frames, quoted source) stays whole where it touches a line that stays.
3. A **stamp**, the line in which `run_shell` says how the command ended, stays, but does not make a log worth folding.
4. Everything else is **noise**: a run of three lines or more becomes `… [N lines omitted]`.

Two safeguards: a short text is left alone, and so is one where folding gains too little. Call `fold` for tools that
declare `log` only, and keep the text that it was given: nothing else brings the omitted lines back.

Source: seed 003, compressLog. Beyond it, more words make an anchor, and a text without any is left alone; frames of
Python and Rust and source that a compiler quotes are traces; cargo's `test … ok` is noise; neighbours that differ in
numbers only can be merged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.terminal import without_codes

MIN_RUN = 3

# No pattern here can backtrack over the same characters twice: `*+`, `++` and `(?>…)` never give back what they took.
_ANCHOR = re.compile(  # of a line in lower case
    "error|exception|failed|failure|fatal|panic|timeout|warn|deprecated"
    "|timed out|cannot|could not|unable to|not found|no such file|denied|refused|undefined reference|out of memory"
    "|killed|aborted|core dumped|segmentation fault|unhandled|critical|conflict |unsuccessful|assertion "
    "|exit (?:status|code):? [1-9]|[✗✖✘]"
)
_SUMMARY = re.compile(
    r"""\s*+(?:
        (?:---\ )?FAIL\b | PASS\b            # jest, vitest, go: the verdict on a file or a test
      | (?i:Tests:?\s) | Test\ (?:Files|Suites)\b  # jest, vitest: totals
      | not\ ok\b | [#ℹ]\ (?:pass|fail)\ \d  # TAP, node
      | \d+\ passed\b | E\ {3}               # pytest: the short total, the lines that explain a failure
      | npm\ (?:ERR|WARN)! | make(?:\[\d+\])?:\ \*\*\*)
    | (?>.*?===).*\bpassed\b                 # pytest: the banner
    """,
    re.VERBOSE,
)
_FRAME = re.compile(r'Traceback \(most recent call last\)|\s*+File ".*", line \d')
_TRACE = re.compile(
    r"""\s++(?:at\s | \d++:\s)               # JavaScript, Java, Rust
      | \s*+(?:-->\s | \^ | =\ (?:note|help):)  # rustc
      | \s*+\d*+\s*+\|                       # rustc, gcc: quoted source
    """,
    re.VERBOSE,
)
_STAMP = re.compile(r"\[(?:exit code \d|ended by signal \d|killed at the time limit|something that the command )")
_NUMBER = re.compile(r"\b(?:0x[0-9a-f]++|(?=[a-f]*+\d)[0-9a-f]++)\b|\d++", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Folded:
    """A text after folding: `content` is the very text that came in unless `folded`.

    Lines are what stands between line feeds, so a text that ends with one has an empty last line; `lines_out` counts
    the markers too. `savings` is the share of the characters that is gone, 0.0 to 1.0.
    """

    content: str
    folded: bool
    lines_in: int
    lines_out: int
    savings: float

    def _repr_html_(self) -> str:
        from agentlab import draw

        parts = [
            (say("shown"), self.lines_out, "kept"),
            (say("folded away"), self.lines_in - self.lines_out, "dropped"),
        ]
        style = "white-space:pre-wrap;overflow-wrap:break-word;font-family:monospace;font-size:12px;line-height:1.35"
        text = draw.element("div", self.content, style=f"{style};max-height:360px;overflow:auto")
        return draw.html(draw.bar(parts, unit="lines"), text)._repr_html_()

    def __repr__(self) -> str:
        return f"Folded({self.lines_in} lines -> {self.lines_out}, {self.savings:.1%} of the characters gone)"


def fold(
    text: str,
    *,
    min_lines: int = 40,
    context: int = 2,
    min_savings: float = 0.15,
    merge_similar: bool = False,
    tail_lines: int = 0,
) -> Folded:
    """Fold the noise in a log.

    Fewer than `min_lines` lines, or less than `min_savings` of the characters to gain: the text comes back as it is.
    The last `tail_lines` lines stay in any case: of a command that failed, they say why. `merge_similar` first reduces
    neighbours that are equal but for their numbers (decimal or hexadecimal), errors too, to the first one and
    `… [N similar lines omitted]`. Lines that stay are unchanged and in order, the markers' counts add up to the lines
    that are missing, and folding the result again with the same options changes nothing.

    Raises AgentLabError for a negative `context`.
    """
    if context < 0:
        raise AgentLabError(f"context is {context}: give the number of lines to keep around an anchor, 0 or more")
    lines = text.split("\n")
    unchanged = Folded(text, False, len(lines), len(lines), 0.0)
    if len(lines) < min_lines:
        return unchanged
    rows = _merged(lines) if merge_similar else [(line, 1) for line in lines]
    out: list[str] = []
    start = 0
    for stays, group in groupby(_kept([line for line, _ in rows], context, tail_lines)):
        end = start + sum(1 for _ in group)
        size = sum(count for _, count in rows[start:end])
        if stays or size < MIN_RUN:
            out.extend(line for line, _ in rows[start:end])
        else:
            out.append(f"… [{size} lines omitted]")
        start = end
    content = "\n".join(out)
    savings = 1 - len(content) / len(text) if text else 0.0
    if len(out) == len(lines) or savings < min_savings or savings <= 0:
        return unchanged
    return Folded(content, True, len(lines), len(out), savings)


def _merged(lines: list[str]) -> list[tuple[str, int]]:
    """Rows of (line, how many lines of the log it stands for): a marker stands for those that it replaces."""
    rows: list[tuple[str, int]] = []
    for _, group in groupby(lines, key=lambda line: _NUMBER.sub("#", line)):
        first, *others = group
        rows.append((first, 1))
        if len(others) < MIN_RUN:
            rows.extend((line, 1) for line in others)
        else:
            rows.append((f"… [{len(others)} similar lines omitted]", len(others)))
    return rows


def _kinds(lines: list[str]) -> list[str]:
    kinds = []
    frame = False
    for line in without_codes("\n".join(lines)).split("\n"):  # a colour code must not hide what a line begins with
        # The source that Python quotes under a frame is indented by four blanks or more.
        frame = bool(_FRAME.match(line)) or (frame and line.startswith("    "))
        anchor = _ANCHOR.search(line.lower()) or _SUMMARY.match(line)
        if _STAMP.match(line):
            kinds.append("stamp")
        else:
            kinds.append("anchor" if anchor else "trace" if frame or _TRACE.match(line) else "noise")
    return kinds


def _kept(lines: list[str], context: int, tail_lines: int) -> list[bool]:
    """For every line, whether it stays. Without an anchor, all do."""
    kinds = _kinds(lines)
    if "anchor" not in kinds:
        return [True] * len(lines)
    last = len(lines) - tail_lines - (lines[-1] == "")
    kept = [kind == "stamp" or at >= last for at, kind in enumerate(kinds)]
    done = 0
    for i, kind in enumerate(kinds):
        if kind == "anchor":
            for j in range(max(done, i - context), min(len(lines), i + context + 1)):
                kept[j] = True
            done = i + context + 1
    start = 0
    for kind, group in groupby(kinds):
        end = start + sum(1 for _ in group)
        if kind == "trace" and any(kept[max(0, start - 1) : end + 1]):
            kept[start:end] = [True] * (end - start)
        start = end
    kept[-1] |= lines[-1] == ""
    return kept
