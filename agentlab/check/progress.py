"""What a reader has tried and solved, kept in one small file of their own.

    check.list_dir(answer) -> note("list_dir", solved) -> .agentlab/progress.json -> check.progress() -> a table

The file is the one that AGENTLAB_PROGRESS names; `make lab` sets it. Without it nothing is read or written, so
builds and tests always see a new reader. Keeping a note never breaks a check: what cannot be written is not kept.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentlab import draw, jsonio
from agentlab.draw.base import SMALL
from agentlab.language import say

State = Literal["not tried", "tried", "solved"]
Trouble = Literal["unreadable", "senseless"]

VARIABLE = "AGENTLAB_PROGRESS"
MAX_BYTES = 1_000_000
SIGNS: dict[State, str] = {"not tried": "·", "tried": "…", "solved": "✓"}
WORDS: dict[State, str] = {"not tried": say("not tried"), "tried": say("tried"), "solved": say("solved")}

EXERCISES: Mapping[str, str] = {
    "list_dir": "01_loop",
    "tail_excerpt": "02_spill",
    "collector": "02_spill",
    "assembler": "03_stream",
    "repair": "04_interrupt",
    "wording": "04_interrupt",
    "steering": "04_interrupt",
    "split_index": "05_compaction",
    "rolling_summary": "05_compaction",
    "stable_summary": "05_compaction",
    "ledger": "06_cache",
    "culprit": "06_cache",
    "threshold": "06_cache",
    "snip": "07_layers",
    "micro": "07_layers",
    "when_to_spill": "07_layers",
    "compacted_event": "08_journal",
    "broken_chain": "08_journal",
    "replay": "08_journal",
    "prune": "09_surface",
    "cut": "09_surface",
    "resolve_tools": "10_disclosure",
    "target_permission": "10_disclosure",
    "answer_ping": "11_mcp",
    "read_lines": "11_mcp",
    "wiring": "12_agent",
    "usage_once": "13_your_sessions",
}
"""Every exercise and its chapter, in the order of the book."""


@dataclass(frozen=True)
class Progress:
    """The state of every exercise, and in `kept` a sentence on where that is remembered. It draws itself."""

    states: Mapping[str, State]
    kept: str

    def by_chapter(self) -> dict[str, list[str]]:
        """The names of the exercises of each chapter."""
        chapters: dict[str, list[str]] = {}
        for name in self.states:
            chapters.setdefault(EXERCISES[name], []).append(name)
        return chapters

    def _summary(self, names: list[str]) -> str:
        states = [self.states[name] for name in names]
        if len(set(states)) == 1:
            return WORDS[states[0]]
        counts = [(states.count(state), WORDS[state]) for state in reversed(SIGNS)]
        return ", ".join(f"{number} {state}" for number, state in counts if number)

    def __repr__(self) -> str:
        lines = [
            f"{chapter:17} {'  '.join(f'{SIGNS[self.states[name]]} {name}' for name in names)}: {self._summary(names)}"
            for chapter, names in self.by_chapter().items()
        ]
        return "\n".join([*lines, self.kept])

    def _repr_html_(self) -> str:
        rows = [
            (chapter, "   ".join(f"{SIGNS[self.states[name]]}\xa0check.{name}" for name in names), self._summary(names))
            for chapter, names in self.by_chapter().items()
        ]
        solved = sum(state == "solved" for state in self.states.values())
        caption = say("{n} of {all} exercises solved", n=solved, all=len(self.states))
        table = draw.table(rows, head=(say("chapter"), say("exercises"), say("so far")), caption=caption)
        return draw.html(table, draw.element("div", self.kept, style=SMALL)).markup


def progress(path: str | Path | None = None) -> Progress:
    """What has been tried and solved so far. `path` is another file than AGENTLAB_PROGRESS names."""
    place = _place(path)
    if place is None:
        kept = say("Nothing is kept: {variable} names no file. `make lab` sets it.", variable=VARIABLE)
        return Progress(_states({}), kept)
    known, trouble = _read(place)
    return Progress(_states(known), _kept(f"{place.parent.name}/{place.name}", trouble))


def _kept(file: str, trouble: Trouble | None) -> str:
    if trouble == "unreadable":
        return say("{file} cannot be read.", file=file)
    if trouble == "senseless":
        return say("{file} holds no progress: the next check begins a new one.", file=file)
    return say("Kept in {file}.", file=file)


def note(name: str, passed: bool, *, path: str | Path | None = None) -> bool:
    """Keep that an exercise was tried, or solved. What is solved stays solved. Returns whether it is kept now.

    The file is replaced as a whole, never changed in place. One that makes no sense is put aside, as `….broken`. Of
    two kernels that write at the same moment the second one wins. Raises nothing.
    """
    place = _place(path)
    if place is None:
        return False
    try:
        known, trouble = _read(place)
        if known.get(name) == "solved" or (known.get(name) == "tried" and not passed):
            return True
        if trouble == "unreadable":
            return False
        if trouble:
            os.replace(place, place.with_name(f"{place.name}.broken"))
        place.parent.mkdir(parents=True, exist_ok=True)
        _replace(place, json.dumps({**known, name: "solved" if passed else "tried"}, indent=1) + "\n")
    except (OSError, ValueError):  # a full disk, no permission, a name that no system takes
        return False
    return True


def _place(path: str | Path | None) -> Path | None:
    named = os.environ.get(VARIABLE) if path is None else path
    return Path(named) if named else None


def _states(known: Mapping[str, object]) -> dict[str, State]:
    found: dict[str, State] = {}
    for name in EXERCISES:
        state = known.get(name)
        found[name] = "solved" if state == "solved" else "tried" if state == "tried" else "not tried"
    return found


def _read(place: Path) -> tuple[dict[str, object], Trouble | None]:
    """What the file holds, {} when there is none yet; and what is wrong with it."""
    try:
        with place.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        found = jsonio.loads(data) if len(data) <= MAX_BYTES else None
    except FileNotFoundError:
        return {}, None
    except OSError:
        return {}, "unreadable"
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {}, "senseless"
    return found, None


def _replace(place: Path, text: str) -> None:
    """Write the whole text under a hidden name, then take the file's place."""
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=place.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
