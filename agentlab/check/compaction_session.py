"""The session that chapter 05 and its exercises cut: 27 messages, written by us in the shape of a real one.

    0 to 5     an earlier task, done with: two calls, one answer
    6          the task that is under way, in the person's words
    7 to 26    ten calls with their results: read, edit, test, and again

(Seed 000, compaction: the session of its demonstration has this shape.)
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from agentlab.messages import Message, assistant, call, tool, user

TASK = (
    "Give formatDate in utils/date.js a time zone parameter tz, UTC by default. "
    "Then run npm test, and mend the cases that broke."
)
DATE, SPEC = "utils/date.js", "tests/date.test.js"
SIGNATURE = "export function formatDate(ts) {"
FORMAT = "new Intl.DateTimeFormat('en-CA', { timeZone: tz }).format(d)"

_ANSWER = "node --test runs everything in tests/: one file for each module, its fixtures as JSON beside it."
_EARLIER: list[tuple[str, str, dict[str, Any]]] = [
    ("run_shell", "date.test.js\nhttp.test.js\nutils.test.js" + "\nfixture.json" * 40, {"command": "ls tests"}),
    ("read_file", '{ "scripts": { "test": "node --test tests/" } }' + "\n  ..." * 50, {"path": "package.json"}),
]
_STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("run_shell", f"{DATE}:12: {SIGNATURE}\n{SPEC}:8: formatDate(0)", {"command": "rg -n formatDate"}),
    ("read_file", f"12 {SIGNATURE}\n13   return new Date(ts).toISOString()" + "\n  ..." * 60, {"path": DATE}),
    ("read_file", "8 assert.equal(formatDate(0), '1970-01-01');" + "\n  ..." * 40, {"path": SPEC}),
    ("edit_file", f"Edited {DATE}.", {"path": DATE, "old_string": "(ts) {", "new_string": "(ts, tz = 'UTC') {"}),
    ("run_shell", "FAIL: formats with a time zone (invalid tz)" + "\n    at ..." * 30, {"command": "npm test"}),
    ("read_file", "12 export function formatDate(ts, tz = 'UTC') {" + "\n  ..." * 60, {"path": DATE}),
    ("edit_file", f"Edited {DATE}.", {"path": DATE, "old_string": "toISOString()", "new_string": FORMAT}),
    ("run_shell", "FAIL: old format (a comma too many)" + "\n    at ..." * 30, {"command": "npm test"}),
    ("edit_file", f"Edited {SPEC}.", {"path": SPEC, "old_string": "(0)", "new_string": "(0, 'UTC')"}),
    ("run_shell", "PASS: 12 tests" + "\n  ok ..." * 12, {"command": "npm test"}),
]


def session() -> list[Message]:
    """The 27 messages, new ones each time."""
    rounds = [
        [assistant("", call(f"c{number}", name, **arguments)), tool(f"c{number}", output)]
        for number, (name, output, arguments) in enumerate([*_EARLIER, *_STEPS], 1)
    ]
    earlier, steps = rounds[: len(_EARLIER)], rounds[len(_EARLIER) :]
    return [
        user("How are the tests of this project organised? In a few words."),
        *chain(*earlier),
        assistant(_ANSWER),
        user(TASK),
        *chain(*steps),
    ]
