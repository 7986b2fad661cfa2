"""The model of the chapter on the whole agent: a script that works on `data/repo` and reads nothing but the request.

    the person's newest wish -> which job     the newest tool result -> its next step
    "The tests fail ..."     -> run the tests, read leap.py, edit it, run them again
    "Which years had failed" -> read the saved log page by page, and say for each page what failed
    "... note into X.md"     -> write down what it can see of the answer
    a request without tools  -> a summary in five sections

Two weaknesses are written into it: it copies line numbers into an edit, and it sends the same edit again until somebody
speaks. What it cannot see it does not know, so a part of the agent that is missing shows in what it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from agentlab.messages import Message, assistant, call
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE
from agentlab.surface import MARKER

OLD = "return year % 4 == 0"
RULE = "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"
TESTS = "python run_tests.py"
PAGE, SMALL_PAGE = 130, 50
"""Lines of a page; of one that comes after a page that was cut."""

_JOBS = {
    "mend": re.compile("tests fail"),
    "years": re.compile("Which years"),
    "note": re.compile(r"note into (\w+\.md)"),
}
_FAILED = re.compile(r"(\d{4}): FAILED")
_SAVED = re.compile(r"\.agentlab/spill/[\w.-]+")
_READING = re.compile(rf'"path":"({_SAVED.pattern})"')
_LINE = re.compile(r"^ *(\d+)\t", re.M)
_NOTE = re.compile(r"Lines (\d+) to (\d+): (none|\d{4}(?:, \d{4})*)\.")
_ANSWER = re.compile(r"\d+ years had failed: [\d, ]+\.")
_KEEP = (re.compile(r"all \d+ years agree"), _NOTE, _ANSWER)

Do = Callable[..., Message]


def coder() -> Callable[[dict[str, Any]], Message | str]:
    """A new one, for `Simulator(coder())`. Its calls are numbered, whatever happens to the conversation."""
    ids = (f"call_{number}" for number in count(1))

    def do(text: str, name: str, **arguments: Any) -> Message:
        return assistant(text, call(next(ids), name, **arguments))

    def model(request: dict[str, Any]) -> Message | str:
        messages = request["messages"]
        if not request.get("tools"):
            return summary(str(messages[-1]["content"]))
        at, job, name = _wish(messages)
        if job == "years":
            return years(do, messages, messages[at + 1 :])
        if job == "note":
            return note(do, name, messages, messages[at + 1 :])
        return mend(do, messages)

    return model


def _wish(messages: Sequence[Message]) -> tuple[int, str, str]:
    """Where the newest wish stands that it knows, which one, and the file that it names. A summary may hold it."""
    for at in reversed(range(len(messages))):
        if messages[at]["role"] == "user":
            found = [
                (hit.start(), job, hit) for job, wish in _JOBS.items() for hit in wish.finditer(_text(messages[at]))
            ]
            if found:
                _, job, hit = max(found, key=lambda one: one[0])
                return at, job, hit[1] if job == "note" else ""
    return -1, "mend", ""


def mend(do: Do, messages: Sequence[Message]) -> Message | str:
    """The next step on the way to tests that pass."""
    seen = _newest(messages)
    told = messages[-1]["role"] == "user"  # somebody has spoken since
    if seen == UNKNOWN_NOTE:
        return do("That edit may have been done, or not. I look before I repeat it.", "read_file", path="leap.py")
    if "years agree" in seen:
        return "Mended: a century is a leap year only every 400 years. All years agree now."
    if "years failed" in seen:
        failed = _FAILED.findall(seen)
        if not failed:
            return "Some years still fail, and I cannot see which: the middle of the log is gone."
        return do(f"{', '.join(failed)}: these years fail. I look at the rule.", "read_file", path="leap.py")
    if "def is_leap" in seen:
        return (
            _edit(do, messages, told)
            if f"{OLD} and" not in seen
            else do("The edit is there.", "run_shell", command=TESTS)
        )
    if seen.startswith("old_string"):
        return _edit(do, messages, told)
    if seen and not seen.startswith("Edited") and seen != INTERRUPT_NOTE:
        return f"I cannot go on: {seen.splitlines()[0]}"
    return do(
        "I run the tests." if seen else "I run the tests first, and see which ones fail.", "run_shell", command=TESTS
    )


def _edit(do: Do, messages: Sequence[Message], told: bool) -> Message:
    """The edit, with the line number that stood before the line, unless somebody has spoken."""
    if not told:
        return do("", "edit_file", path="leap.py", old_string=f"     6\t    {OLD}", new_string=f"    {RULE}")
    failed = {year for message in messages if message["role"] == "tool" for year in _FAILED.findall(_text(message))}
    new = RULE if len(failed) != 1 else f"{OLD} and year != {failed.pop()}"
    return do("Then without the number.", "edit_file", path="leap.py", old_string=OLD, new_string=new)


def years(do: Do, messages: Sequence[Message], since: Sequence[Message]) -> Message | str:
    """The next page of the first saved log, with what was seen on the last one."""
    saved = _log("\n".join(f"{_text(message)} {message.get('tool_calls', '')}" for message in messages))
    if not saved:
        return "I see no pointer to a log of that run, so I would have to guess."
    page, cut, _ = _newest(since).partition(MARKER)
    numbers = [int(number) for number in _LINE.findall(page)]
    seen = _notes(messages)
    said = ""
    if numbers:
        failed = _FAILED.findall(page)
        said = f"Lines {numbers[0]} to {numbers[-1]}: {', '.join(failed) or 'none'}."
        seen[numbers[0]] = numbers[-1], failed
        if "go on with" not in page and not cut:
            every = [year for _, (_, failed) in sorted(seen.items()) for year in failed]
            return f"{said} {len(every)} years had failed: {', '.join(every)}."
    offset = max((end for end, _ in seen.values()), default=0) + 1
    return do(said, "read_file", path=saved, offset=offset, limit=SMALL_PAGE if cut else PAGE)


def _notes(messages: Sequence[Message]) -> dict[int, tuple[int, list[str]]]:
    """What it has noted of pages, by their first lines: the last line, and the years that failed."""
    found = [hit for message in messages if message["role"] != "tool" for hit in _NOTE.finditer(_text(message))]
    return {int(hit[1]): (int(hit[2]), re.findall(r"\d{4}", hit[3])) for hit in found}


def note(do: Do, name: str, messages: Sequence[Message], since: Sequence[Message]) -> Message | str:
    """The answer of the job before, written into a file."""
    if done := _newest(since):
        return f"{done.splitlines()[0]} That is all."
    answers = [hit[0] for message in messages if message["role"] != "tool" for hit in _ANSWER.finditer(_text(message))]
    text = answers[-1] if answers else "Some years had failed."
    if name == "README.md":
        return do("", "edit_file", path=name, old_string="Check it with", new_string=f"{text}\n\nCheck it with")
    return do("", "write_file", path=name, content=f"{text}\n")


def summary(source: str) -> str:
    """What the agent must not forget of this record, each thing once."""
    lines = [line.removeprefix("1. Task: ") for line in source.splitlines()]
    wishes = [each for line in lines for each in line.split(" | ") if any(job.search(each) for job in _JOBS.values())]
    done = [hit[0] for line in source.splitlines() for form in _KEEP for hit in form.finditer(line)]
    saved = _log(source)
    parts = {
        "Task": [" | ".join(dict.fromkeys(wishes))],
        "Done": done or ["nothing yet"],
        "Open": ["the task, as far as it is not done"],
        "Files and commands": ["leap.py", TESTS, f"the log: {saved}" if saved else ""],
        "Decisions and dead ends": ["line numbers are no part of the file"],
    }
    sections = [(name, " ".join(dict.fromkeys(items))) for name, items in parts.items()]
    return "\n".join(f"{number}. {name}: {text}" for number, (name, text) in enumerate(sections, 1))


def _log(text: str) -> str:
    """The saved log that was read last, or else the first that is mentioned; "" for none."""
    read = _READING.findall(text)
    return read[-1] if read else next(iter(_SAVED.findall(text)), "")


def _newest(messages: Sequence[Message]) -> str:
    """The newest tool result; "" where there is none."""
    return next((_text(message) for message in reversed(messages) if message["role"] == "tool"), "")


def _text(message: Message) -> str:
    return str(message.get("content") or "")
