"""The exercise of chapter 01: write the handler of `list_dir`.

The answer is a function of the root, a `Path`, and of the path that the model gave, a text that counts from the root.
It returns the text for the model, or raises `ToolError`. It is judged by what the text says, not by how it looks.
"""

from __future__ import annotations

import inspect
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError, ToolError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, calls_of, user
from agentlab.simulator import Simulator
from agentlab.tools import Registry, ToolResult

HINTS = (
    say(
        "What does the model read when the folder is empty, or is not there? Print it. `raise ToolError(...)` gives a"
        " result the status failed, and its text is all that the model learns."
    ),
    say(
        "`entry.is_dir()` tells the type and `entry.stat().st_size` the bytes. `iterdir()` gives entries "
        "in any order, so sort them: the same folder must give the same text."
    ),
    say(
        "First the cases that cannot be listed, each with a ToolError that says what to do instead. Then a "
        "first line with the counts, then one line per entry: `name/` for a folder, `name  120 bytes` for "
        "a file."
    ),
)

PLACE = "(root)"
_FOLDER = re.compile(r"^/|folder|\bdir|directory|<d>|📁|目录|文件夹", re.I)
_NOTHING = re.compile(r"empty|nothing|\bno\b|\bnone\b|\b0\b|空", re.I)
_NUMBER = re.compile(r"\d[\d,_]*")

Tree = Mapping[str, int | None]  # path: size in bytes, or None for a folder


@dataclass(frozen=True)
class Case:
    """What the folder holds, the path that is asked for, and what has to be true of the answer."""

    name: str
    tree: Tree
    path: str
    wrong: Callable[[Case, str, bool], Difference | None]


def _make(root: Path, tree: Tree) -> None:
    for name, size in tree.items():
        target = root / name
        (target if size is None else target.parent).mkdir(parents=True, exist_ok=True)
        if size is not None:
            target.write_bytes(b"x" * size)


def _numbers(text: str) -> list[int]:
    return [int(re.sub("[,_]", "", number)) for number in _NUMBER.findall(text)]


def _listed(case: Case, text: str, failed: bool) -> Difference | None:
    """Every entry in a line of its own, with its type and its size, in order."""
    if failed:
        return Difference(say("the status"), "completed", f"failed: {text}", say("This folder is there: list it."))
    inside = _entries(case)
    lines = text.splitlines()
    places: dict[str, int] = {}
    for name, size in inside.items():
        place = next((at for at, line in enumerate(lines) if _has(line, name)), None)
        if place is None or place in places.values():
            return Difference(name, say("in a line of its own"), text, say("The model can only use what it can see."))
        places[name] = place
        rest = _without(lines[place], name)
        if (_FOLDER.search(rest) is None) is (size is None):
            why = say("A folder cannot be read, and a file cannot be listed. Mark folders, with a / or the word.")
            kind = say("folder") if size is None else say("file")
            return Difference(say("the type of {name}", name=name), kind, lines[place], why)
        if size is not None and size not in _numbers(rest):
            why = say(
                "With its size in bytes the model can tell a file that it may read whole from one that it may not."
            )
            return Difference(say("the size of {name}", name=name), say("{size} bytes", size=size), lines[place], why)
    for kind, names in _kinds(inside).items():
        found = sorted(names, key=places.__getitem__)
        if found not in (sorted(names), sorted(names, key=str.casefold)):
            why = say("iterdir() keeps no order. Sort: other bytes for the same folder make the prompt cache useless.")
            return Difference(
                say("the order of the {kind}", kind=kind), ", ".join(sorted(names)), ", ".join(found), why
            )
    return None


def _counted(case: Case, text: str, failed: bool) -> Difference | None:
    """Some line beside the entries says how many folders and files there are. None of a kind may go unsaid."""
    inside = _entries(case)
    other = "\n".join(line for line in text.splitlines() if not any(_has(line, name) for name in inside))
    for kind, names in _kinds(inside).items():
        if names and len(names) not in _numbers(other):
            why = say("A count shows the model, and you, that the list is whole.")
            return Difference(
                say("the counts"),
                say("{n} {kind}", n=len(names), kind=kind),
                other or say("no line beside the entries"),
                why,
            )
    return None


def _entries(case: Case) -> Tree:
    """What is in the folder that is asked for, by name."""
    prefix = "" if case.path == "." else f"{case.path}/"
    inside = {name.removeprefix(prefix): size for name, size in case.tree.items() if name.startswith(prefix)}
    return {name: size for name, size in inside.items() if "/" not in name}


def _kinds(inside: Tree) -> dict[str, list[str]]:
    folders = [name for name, size in inside.items() if size is None]
    return {say("folders"): folders, say("files"): [name for name in inside if name not in folders]}


def _name(name: str) -> re.Pattern[str]:
    """This name, and no longer one that holds it."""
    return re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")


def _has(line: str, name: str) -> bool:
    return _name(name).search(line) is not None


def _without(line: str, name: str) -> str:
    """The line without the name, what stands behind the name first."""
    before, after = _name(name).split(line, maxsplit=1)
    return f"{after} {before}"


def _empty(case: Case, text: str, failed: bool) -> Difference | None:
    if not failed and _NOTHING.search(text):
        return None
    why = say(
        "An empty text looks like a broken tool, and an error like a wrong path: the model tries again and again."
    )
    got = f"failed: {text}" if failed else text or say("an empty text")
    return Difference(say("what it says"), say("that {path} is empty", path=case.path), got, why)


def _refused(*steps: str) -> Callable[[Case, str, bool], Difference | None]:
    """It must fail, name the path, and name one of `steps`: what the model can do instead."""

    def wrong(case: Case, text: str, failed: bool) -> Difference | None:
        if not failed:
            why = say(
                "Raise ToolError(text): then the status says that it failed, and nobody has to guess it from words."
            )
            return Difference(say("the status"), "failed", f"completed: {text}", why)
        if case.path not in text:
            return Difference(
                say("the text"), say("something about {path}", path=case.path), text, say("Name what was asked for.")
            )
        if not any(_has(text, step) for step in steps):
            why = say("A message without a next step makes the model try the same thing again.")
            return Difference(say("the next step"), say("a word about {steps}", steps=" / ".join(steps)), text, why)
        return None

    return wrong


def _inside(case: Case, text: str, failed: bool) -> Difference | None:
    if failed:
        return None
    why = say(
        "A model that has read a bad web page may ask for anything. Resolve the path, and see that root is above it."
    )
    return Difference(say("the status"), say("failed: it leads out of the root"), "completed", why)


HOUSE: Tree = {"notes": None, "notes/todo.txt": 120, "notes/done.txt": 17, "notes/old": None, "README.md": 2_048}
MIXED: Tree = {"b.txt": 3, "z": None, "a.txt": 0, "c.txt": 1_048_576, "dir.txt": 12, "a": None, "empty.log": 7}

CASES = (
    Case(say("a folder with files and a folder"), HOUSE, "notes", _listed),
    Case(say("the root itself"), HOUSE, ".", _listed),
    Case(say("names that sort, and names that mislead"), MIXED, ".", _listed),
    Case(say("only folders"), {"one": None, "two": None}, ".", _listed),
    Case(say("the counts"), MIXED, ".", _counted),
    Case(say("an empty folder"), HOUSE, "notes/old", _empty),
    Case(say("a folder that is not there"), HOUSE, "note", _refused("list_dir", "notes")),
    Case(say("a file"), HOUSE, "README.md", _refused("read_file")),
    Case(say("a path that leads out of the root"), HOUSE, "../..", _inside),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case, each in a new temporary folder. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(say("Give check.list_dir a plain function, without brackets: check.list_dir(my_list_dir)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "outside" / "root"
        root.mkdir(parents=True)
        _make(root, case.tree)
        found = _found(case, answer, root)
        if found is None:
            return Finding(case.name, True)
        where, expected, got, why = (_hidden(text, root) for text in found)
    fed = say("list_dir(root, {path!r}), where root holds {tree}", path=case.path, tree=_told(case.tree))
    return Finding(case.name, False, False, fed, where, expected, got, why)


def _found(case: Case, answer: Any, root: Path) -> Difference | None:
    try:
        text, failed = answer(root, case.path), False
    except ToolError as error:
        text, failed = str(error), True
    except Exception as error:
        why = say("Only ToolError carries words that were written for the model.")
        return Difference("", say("a text, or a ToolError"), _hidden(blame(error, answer), root), why)
    if not isinstance(text, str):
        return Difference(
            say("what it returns"), say("one text"), short(text), say("Join the lines: the model reads text.")
        )
    if str(root) in text:
        why = say("Name paths as the model gave them. It cannot use yours, and they are nobody's business.")
        return Difference(say("the text"), say("paths that count from {place}", place=PLACE), _hidden(text, root), why)
    return case.wrong(case, text, failed)


def _hidden(text: str, root: Path) -> str:
    """Text without the place of the temporary folder, which is another one each time."""
    return text.replace(str(root), PLACE)


def _told(tree: Tree) -> str:
    return ", ".join(
        f"{name}/" if size is None else say("{name} ({size:,} bytes)", name=name, size=size)
        for name, size in tree.items()
    )


FRUIT: Tree = {"fruit": None, "fruit/apples.txt": 170, "fruit/pears.txt": 2_500, "fruit/plums.txt": 42, "README.md": 9}
RIGHT = "The biggest one is pears.txt, with 2500 bytes."


def _story(request: dict[str, Any]) -> Message | str:
    """Ask for a folder by a wrong name, do what the tool's words say, and answer from what it lists."""
    messages = request["messages"]
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    asked = [jsonio.loads(each["function"]["arguments"])["path"] for message in messages for each in calls_of(message)]

    def look(path: str, words: str) -> Message:
        return assistant(words, call(f"call_{len(asked) + 1}", "list_dir", path=path))

    if not results:
        return look("fruits", "Let me look.")
    if sizes := _sizes(results[-1]):
        size, name = max(sizes)
        return f"The biggest one is {name}, with {size} bytes."
    if "fruit" not in asked and _has(results[-1], "fruit"):
        return look("fruit", "It is called fruit, then.")
    if "." not in asked and "list_dir" in re.sub("^list_dir failed", "", results[-1]):
        return look(".", "Then I look what there is.")
    said = f"I asked for {asked[-1]}, and this is what I was told: {short(results[-1]) or '(nothing)'}"
    return f"{said} I see no sizes in it, and no next step. I give up."


def _sizes(text: str) -> Sequence[tuple[int, str]]:
    """Size and name of every .txt file in a listing, whatever it looks like."""
    found = [(re.search(r"[\w-]+\.txt", line), line) for line in text.splitlines()]
    numbered = [(_numbers(_without(line, name[0])), name[0]) for name, line in found if name]
    return [(max(numbers), name) for numbers, name in numbered if numbers]


def turn(answer: Any) -> Turn:
    """A turn of an agent that has one tool, the reader's. Its folder lives as long as the turn."""
    root = Path(tempfile.mkdtemp()).resolve()
    _make(root, FRUIT)
    registry = Registry()

    @registry.tool(read_only=True)
    def list_dir(path: str) -> Any:
        """List a folder: the types and sizes of what is in it."""
        return answer(root, path)

    def hide(results: list[ToolResult]) -> list[ToolResult]:
        return [replace(result, output=_hidden(result.output, root)) for result in results]

    ask = [user("Which file in fruits is the biggest?")]
    running = run_turn(ask, Simulator(_story).client(), registry, hooks=Hooks(after_results=hide))
    weakref.finalize(running, shutil.rmtree, root, ignore_errors=True)
    return running


def live(answer: Any) -> Live:
    """Run the turn and say how it ended: the right answer, or what the model could not do with the tool's words."""
    from agentlab.widgets.sync import run_sync

    running = turn(answer)
    run_sync(running.run())
    history = tuple(running.history)
    said = str(history[-1].get("content") or "")
    if running.reason == "done" and said == RIGHT:
        return Live(True, said, history)
    return Live(
        False,
        say("The turn ended ({reason}) with: {said}", reason=running.reason, said=said or say("no text")),
        history,
    )


def solution(root: Path, path: str) -> str:
    folder = (root / path).resolve()
    if not folder.is_relative_to(root):
        raise ToolError(f"{path} leads out of the workspace. Use a path inside of it: list_dir('.') shows them.")
    if folder.is_file():
        raise ToolError(f"{path} is a file, not a folder. Read it with read_file.")
    if not folder.is_dir():
        raise ToolError(f"There is no folder {path}. Look with list_dir('.') what there is.")
    entries = sorted(folder.iterdir(), key=lambda entry: (not entry.is_dir(), entry.name))
    if not entries:
        return f"{path} is empty."
    folders = sum(entry.is_dir() for entry in entries)
    lines = [f"{path}: {folders} folders, {len(entries) - folders} files"]
    for entry in entries:
        lines.append(f"{entry.name}/" if entry.is_dir() else f"{entry.name}  {entry.stat().st_size} bytes")
    return "\n".join(lines)


list_dir = Exercise("list_dir", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
