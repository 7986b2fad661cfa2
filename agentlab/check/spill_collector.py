"""The second exercise of chapter 02: say which spilled files may be deleted.

The answer is a function of the names of the files, and of a list with everything that is still alive: histories,
branches, events of a log. It returns the names that may go. A wrong one either deletes a file that a message sends the
model to, or keeps everything for ever.
"""

from __future__ import annotations

import copy
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Turn, run_turn
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget, SpillStore, apply_budget
from agentlab.tools import Registry, ToolResult
from agentlab.workspace import Workspace

HINTS = (
    say(
        "A pointer is the key `output_path` of a dict. Look at no text: a model may write any name into a "
        "sentence, and a summary that mentions a file does not send anybody there."
    ),
    say(
        "Events of a log hold messages inside of other dicts. Walk through dicts and lists at any depth, with a list of"
        " what is still to be looked at, or with a function that calls itself."
    ),
    say(
        "`output_path` is a path, `files` are names: compare `path.rsplit('/', 1)[-1]`. It may be None. "
        "Return the names in `files` that no pointer names, and nothing else."
    ),
)

A, B, C = "0001-9f2c41d07a.txt", "0002-51be0c77d3.txt", "0003-07a9e2c4f1.txt"


def _result(id: str, name: str | None, text: str = "both ends") -> Message:
    return {**tool(id, text), "output_path": f"spill/{name}" if name else None}


def _session(*results: Message) -> list[Message]:
    """A history whose one batch has these results."""
    calls = [call(result["tool_call_id"], "run_shell", command="make") for result in results]
    return [user("Build it."), assistant("", *calls), *results, assistant("Done.")]


@dataclass(frozen=True)
class Case:
    """Files in the folder, all that is alive, and the names that may go."""

    name: str
    files: tuple[str, ...]
    alive: tuple[Any, ...]
    may_go: frozenset[str]
    why: str


def _case(name: str, files: Iterable[str], alive: Iterable[Any], may_go: Iterable[str], why: str) -> Case:
    return Case(name, tuple(files), tuple(alive), frozenset(may_go), why)


SUMMARY = {"role": "user", "content": f"So far: the build failed, see spill/{A}.", "origin": "compaction"}
LOG = [
    {"seq": 1, "type": "message", "message": _result("c1", A)},
    {"seq": 2, "type": "replace", "start": 1, "end": 1, "node": {"role": "user", "content": "So far: built."}},
    {"seq": 3, "type": "tool_call", "record": {"id": "c2", "state": "completed", "output_path": f"spill/{B}"}},
]

CASES = (
    _case(say("nothing is alive"), [A, B], [], [A, B], say("Nobody will ever ask for these.")),
    _case(
        say("one pointer, one file too many"),
        [A, B],
        [_session(_result("c1", A))],
        [B],
        say("A message still sends the model to the first file: without it, read_file fails."),
    ),
    _case(
        say("results without a pointer"),
        [A],
        [_session(tool("c1", "ok"), _result("c2", None))],
        [A],
        say("Most results were never spilled: the key is missing or None."),
    ),
    _case(
        say("only a sentence names it"),
        [A],
        [[user("Build it."), SUMMARY]],
        [A],
        say("A summary may mention anything. It is no pointer, and what it was made from is gone."),
    ),
    _case(
        say("a name inside another name"),
        [A, f"1{A}"],
        [_session(_result("c1", f"1{A}"))],
        [A],
        say("Compare whole names: one may end with another."),
    ),
    _case(
        say("a branch"),
        [A, B, C],
        [_session(_result("c1", A)), _session(_result("c1", B))],
        [C],
        say("Somebody may go on in the other branch tomorrow."),
    ),
    _case(
        say("the log"),
        [A, B, C],
        [LOG],
        [C],
        say("A rewind brings back what the log holds, also what was replaced: look inside the events."),
    ),
    _case(
        say("a summary that carries a pointer"),
        [A, B],
        [[{**SUMMARY, "output_path": f"spill/{A}"}]],
        [B],
        say("Any message may have the key, whatever its role."),
    ),
    _case(
        say("a pointer to a file that is not there"),
        [A],
        [_session(_result("c1", B))],
        [A],
        say("Name only files that are in the list."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.collector a plain function, without brackets: check.collector(my_collector).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        files, alive = list(case.files), copy.deepcopy(list(case.alive))
        found = _names(answer(files, alive))
        if (files, alive) != (list(case.files), list(case.alive)):
            return Difference(
                say("what it was given"), say("unchanged"), say("changed"), say("Others still use these lists.")
            )
        if found is None:
            return Difference(
                say("what it returns"), say("a list or a set of names"), say("something else"), say("Return names.")
            )
        if lost := sorted(found - case.may_go):
            return Difference(
                say("what may go"),
                _told(case.may_go),
                _told(found),
                say("{lost} must stay. {why}", lost=lost[0], why=case.why),
            )
        if left := sorted(case.may_go - found):
            return Difference(
                say("what may go"),
                _told(case.may_go),
                _told(found),
                say("{left} can go. {why}", left=left[0], why=case.why),
            )
        return None

    fed = f"files={list(case.files)}, alive={jsonio.dumps(list(case.alive))}"
    return finding(case, answer, run, fed=fed, instead=say("a list of names"))


def _names(value: Any) -> set[str] | None:
    """What came back as a set of names; None when it is anything else."""
    if not isinstance(value, list | tuple | set | frozenset):
        return None
    return set(value) if all(isinstance(name, str) for name in value) else None


def _told(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or say("none")


ROWS = "\n".join(f"row {n}: price={n * 7 % 1_000}" for n in range(2_000))
ASKED, PRICE = 1_234, 1_234 * 7 % 1_000
RIGHT = f"Row {ASKED} has the price {PRICE}."


def _story(request: dict[str, Any]) -> Message | str:
    """Read the file that the pointer names, and answer from it."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    if len(results) == 1:
        path = results[0].rpartition('read_file("')[2].partition('"')[0]
        return assistant("I read on.", call("call_2", "read_file", path=path, offset=ASKED + 1, limit=1))
    if f"row {ASKED}: price={PRICE}" in results[-1]:
        return RIGHT
    return f"I was sent to a file, and this is what I got: {short(results[-1])}"


def _stage(root: Path) -> tuple[SpillStore, list[Message], list[Message], str]:
    """A store with three files; the history after a compaction, the branch from before it, and what is garbage."""
    store = SpillStore(root / "spill", base=root)
    outputs = [ROWS, ROWS[::-1]]
    results = [ToolResult(f"call_{n}", "run_shell", {}, "completed", text) for n, text in enumerate(outputs, 1)]
    first, second = apply_budget(results, OutputBudget(per_result=2_000), store).results
    branch = [user("List the prices."), assistant("", call("call_1", "run_shell", command="prices")), first.message()]
    kept = [user("Now backwards."), assistant("", call("call_2", "run_shell", command="tac")), second.message()]
    summary = {
        "role": "user",
        "content": f"So far: prices were listed, see {first.output_path}.",
        "origin": "compaction",
    }
    garbage = store.save("the output of a session that is long over")
    return store, [summary, *kept], branch, Path(garbage.path).name


def turn(answer: Any) -> Turn:
    """The answer collects; then a turn goes on in the branch, whose first result is an excerpt with a pointer."""
    root = Path(tempfile.mkdtemp()).resolve()
    store, history, branch, _ = _stage(root)
    files = [entry.name for entry in store.entries()]
    for name in _names(answer(list(files), [history, branch])) or set():
        if name in files:
            store.remove(name)
    ask = [*branch, assistant("There are 2,000."), user(f"What is the price in row {ASKED}?")]
    running = run_turn(ask, Simulator(_story).client(), Registry(Workspace(root).tools()))
    weakref.finalize(running, shutil.rmtree, root, ignore_errors=True)
    return running


def live(answer: Any) -> Live:
    """Run the turn, and look at what is left in the folder."""
    from agentlab.widgets.sync import run_sync

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        store, history, branch, garbage = _stage(root)
        files = [entry.name for entry in store.entries()]
        try:
            gone = _names(answer(list(files), [history, branch])) or set()
        except Exception as error:
            return Live(False, say("Your function raised: {error}", error=blame(error, answer)))
        running = turn(answer)
    run_sync(running.run())
    said = str(running.history[-1].get("content") or "")
    if said != RIGHT:
        return Live(False, said, tuple(running.history))
    if garbage not in gone:
        return Live(
            False,
            said + " " + say("But a file that nobody needs is still there: {garbage}", garbage=garbage),
            tuple(running.history),
        )
    return Live(
        True,
        said + " " + say("{gone} of {files} files were deleted.", gone=len(gone & set(files)), files=len(files)),
        tuple(running.history),
    )


def solution(files: list[str], alive: list[Any]) -> list[str]:
    pointed = set()
    left = list(alive)
    while left:
        item = left.pop()
        if isinstance(item, dict):
            if path := item.get("output_path"):
                pointed.add(path.rsplit("/", 1)[-1])
            left += item.values()
        elif isinstance(item, list):
            left += item
    return [name for name in files if name not in pointed]


collector = Exercise("collector", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
