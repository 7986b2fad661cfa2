"""Keep tool outputs from filling the context, and lose none: the whole text goes to a file, an excerpt stays.

    results of one batch -> apply_budget -> the same results; the largest ones are now an excerpt and a pointer

Cutting loses, spilling does not: the pointer says where the text is, how large it is and how to read on, so every
detail is one `read_file` away. There are two limits, since ten results that each fit may together not. Results of tools
that read files are never copied: their file is there already.

`collect` deletes files that nothing points to any more. It looks at the field `output_path`, never at wording: a model
may write any path into its text. (Seed 003, output budget and spill; its exercises on the tail and on who deletes.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.spillstore import Ends, Saved, Sink, SpillError, SpillStore, encodable, name_of
from agentlab.textfile import LINE_CHARS
from agentlab.tools import ToolResult

__all__ = [
    "BatchBudget", "Collected", "Ends", "OutputBudget", "Saved", "Sink", "SpillError", "SpillStore",
    "apply_budget", "collect", "excerpt", "name_of", "not_saved", "pointer", "shortened", "size",
]  # fmt: skip

Mode = Literal["head", "tail", "both"]
Unit = Literal["chars", "bytes"]

DAY_S = 86_400.0


@dataclass(frozen=True)
class OutputBudget:
    """How much of a batch's output may stand in the context, in characters or in bytes of UTF-8.

    `per_result` and `per_batch` are the two limits. A result that is spilled leaves an excerpt of `preview`, up to
    `tail` of it from the other end, and a pointer. `mode` is that of `excerpt`; None shows most of the head, or of the
    end of a result that did not complete. Raises AgentLabError for a negative number.
    """

    per_result: int = 50_000
    per_batch: int = 100_000
    preview: int = 2_000
    tail: int = 200
    unit: Unit = "chars"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if min(self.per_result, self.per_batch, self.preview, self.tail) < 0:
            raise AgentLabError("An output budget cannot be negative. Use 0 or more for each of its numbers.")
        if self.unit not in ("chars", "bytes"):
            raise AgentLabError(f"{self.unit!r} is no unit of an output budget. Use 'chars' or 'bytes'.")

    def for_window(self, tokens: int, *, per_token: int = 4) -> OutputBudget:
        """This budget for a context window of so many tokens: 15 % of it a result, 30 % a batch, never more than now.

        `per_token` is how many characters or bytes a token stands for. (Seed 003: 15 % and 30 % for small windows.)
        """
        room = int(max(0, tokens) * per_token)
        return replace(
            self, per_result=min(self.per_result, room * 15 // 100), per_batch=min(self.per_batch, room * 30 // 100)
        )


@dataclass(frozen=True)
class BatchBudget:
    """The results in call order, their size before and after (in the budget's unit), and the files written for it."""

    results: list[ToolResult]
    before: int
    after: int
    spilled: list[str]

    def __repr__(self) -> str:
        return f"BatchBudget({len(self.results)} results, {self.before} -> {self.after}, spilled={self.spilled})"

    def _repr_html_(self) -> str:
        from agentlab import draw

        looks = ["pointer" if result.output_path else "kept" for result in self.results]
        parts = [(result.name, len(result.output), look) for result, look in zip(self.results, looks, strict=True)]
        said = say(
            "{before} before, {after} after, {n} spilled",
            before=draw.number(self.before),
            after=draw.number(self.after),
            n=len(self.spilled),
        )
        return draw.html(draw.bar(parts, unit="characters"), said)._repr_html_()


@dataclass(frozen=True)
class Collected:
    """What `collect` deleted, or would delete in a dry run. `failed` are files that the system did not let go."""

    removed: list[str]
    kept: list[str]
    freed_bytes: int
    dry_run: bool
    failed: list[str]


def size(text: str, unit: Unit = "chars") -> int:
    """The size of a text in characters, or in bytes of UTF-8 (three for a lone surrogate, as for its stand-in)."""
    return len(text) if unit == "chars" or text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def excerpt(text: str | Ends, cap: int, mode: Mode = "head", *, tail: int = 200, unit: Unit = "chars") -> str:
    """At most `cap` characters (or bytes) of a text: both its ends, and between them a line with the number left out.

    `mode` names the end that gets the most; the other gets `tail`, a quarter at most. With "both" each end gets `tail`,
    half at most. The line counts within `cap`; when there is no room for it, only the favoured end (the head, for
    "both") is left. Characters stay whole, lone surrogates become U+FFFD.
    `Ends` stands for a text that is too large to hold: its excerpt is no longer than what was kept.
    """
    head_source, tail_source, total = text, text, 0
    if isinstance(text, Ends):
        head_source, tail_source, total = text.head, text.tail, text.chars if unit == "chars" else text.bytes
        cap = cap if len(text.head) == text.chars else min(cap, len(text.head))
    else:
        total = size(text, unit)
    assert isinstance(head_source, str) and isinstance(tail_source, str)
    if total <= cap:
        return encodable(head_source)
    room = cap - size(_marker(total, unit), unit)
    if room < 0:
        return _last(tail_source, cap, unit) if mode == "tail" else _first(head_source, cap, unit)
    other = min(max(0, tail), room // (2 if mode == "both" else 4))
    most = other if mode == "both" else room - other
    front, back = (other, most) if mode == "tail" else (most, other)
    start, end = _first(head_source, front, unit), _last(tail_source, back, unit)
    return start + _marker(total - size(start, unit) - size(end, unit), unit) + end


def _marker(omitted: int, unit: Unit) -> str:
    return f"\n… [{omitted} {'characters' if unit == 'chars' else 'bytes'} omitted] …\n"


def _first(text: str, cap: int, unit: Unit) -> str:
    text = encodable(text[: max(0, cap)])
    return text if unit == "chars" or text.isascii() else text.encode()[:cap].decode("utf-8", "ignore")


def _last(text: str, cap: int, unit: Unit) -> str:
    text = encodable(text[max(0, len(text) - max(0, cap)) :])
    if unit == "chars" or text.isascii():
        return text
    data = text.encode()
    return data[max(0, len(data) - cap) :].decode("utf-8", "ignore")


def pointer(saved: Saved) -> str:
    """The line that sends the model to a saved output: where, how large, how to read on, and what not to do."""
    how = "offset, limit, column" if saved.chars > LINE_CHARS * saved.lines else "offset, limit"
    lines = f"{saved.lines} line{'s' * (saved.lines != 1)}"
    return (
        f"[All {saved.chars} characters, {lines}, are saved. "
        f'Read on with read_file("{saved.path}", {how}); do not run the command again.]'
    )


def not_saved(chars: int, reason: str) -> str:
    """The line that stands instead of a pointer when there is no file to point to."""
    return f"[{chars} characters in all; the full output could not be saved ({reason}). Ask for less if you need more.]"


def shortened(output: str | Ends, note: str, budget: OutputBudget, mode: Mode = "head") -> str:
    """An excerpt and a note below it, together within `per_result` as far as the note's own length allows."""
    cap = min(budget.preview, budget.per_result - size(note, budget.unit) - 1)
    short = excerpt(output, cap, mode, tail=budget.tail, unit=budget.unit)
    return f"{short}\n{note}" if short else note


def apply_budget(
    results: Sequence[ToolResult],
    budget: OutputBudget,
    store: SpillStore,
    *,
    on_failure: Literal["shorten", "raise"] = "shorten",
) -> BatchBudget:
    """Spill the largest results of a batch, ties in call order, and stop as soon as both limits hold.

    The others stay as they are. A result that did not complete shows its end, where the reason stands. One that has an
    `output_path` in this store already (a folded log, an output that was streamed) keeps that file, and its excerpt is
    made of what stands in there. When a file cannot be written the result is shortened all the same, and says so
    instead of pointing anywhere. None is replaced by a longer one; so a limit may stay exceeded by many small results,
    or by those that are not `spillable`.

    With `on_failure="raise"` it is all or nothing: the first file that cannot be written raises SpillError, and the
    files that were written for this batch are gone again.
    """
    after = list(results)
    sizes = [size(result.output, budget.unit) for result in after]
    before = sum(sizes)
    spilled: list[str] = []
    try:
        for at in sorted(range(len(after)), key=lambda at: -sizes[at]):
            if sizes[at] <= budget.per_result and sum(sizes) <= budget.per_batch:
                break
            if not after[at].spillable:
                continue
            shorter, written = _spill(after[at], budget, store, on_failure)
            if (length := size(shorter.output, budget.unit)) < sizes[at]:
                after[at], sizes[at] = shorter, length
                spilled += [written.path] if written else []
            elif written:
                store.remove(name_of(written.path))
    except BaseException:
        for path in spilled:
            store.remove(name_of(path))
        raise
    return BatchBudget(after, before, sum(sizes), spilled)


def _spill(
    result: ToolResult, budget: OutputBudget, store: SpillStore, on_failure: Literal["shorten", "raise"]
) -> tuple[ToolResult, Saved | None]:
    """The result with an excerpt for output, and the file that was written for it, if any."""
    mode: Mode = budget.mode or ("head" if result.status == "completed" else "tail")
    output = result.output
    if result.output_path and (found := store.read_ends(result.output_path)):
        there, ends = found
        return replace(result, output=shortened(ends, pointer(there), budget, mode)), None
    try:
        saved = store.save(output)
    except SpillError as error:
        if on_failure == "raise":
            raise
        short = shortened(output, not_saved(len(output), error.reason), budget, mode)
        return replace(result, output=short, output_path=None), None
    return replace(result, output=shortened(output, pointer(saved), budget, mode), output_path=saved.path), saved


def collect(
    store: SpillStore,
    histories: Iterable[Any],
    *,
    dry_run: bool = True,
    min_age_s: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Collected:
    """Delete the files of the store that nothing in `histories` points to; only list them in a dry run.

    `histories` is everything that is still alive: histories, summaries, branches, journal events, tool results and
    records. A pointer is the field `output_path` of a dict or dataclass, at any depth; text never counts. Compared are
    file names, which are unique in a store, so a folder may have moved. Files younger than `min_age_s` seconds stay,
    and so do half-written ones for a day. Good moments: after a compaction, when a session is resumed, at its end, and
    now and then with a `min_age_s`. Another's files in the folder are never touched.

    Raises AgentLabError, before anything is deleted, for something that it cannot look into, and SpillError for a
    folder that it cannot read.
    """
    found = store.entries()  # first: what is spilled from now on is no candidate
    live = _pointers(histories)
    now = clock()
    removed, kept, failed, freed = [], [], [], 0
    for entry in found:
        wait_s = max(min_age_s, DAY_S if entry.part else 0.0)
        if entry.name in live or (wait_s and now - entry.modified < wait_s):
            kept.append(entry.name)
        elif dry_run or store.remove(entry.name):
            removed.append(entry.name)
            freed += entry.bytes
        else:
            failed.append(entry.name)
    return Collected(removed, kept, freed, dry_run, failed)


def _pointers(histories: Iterable[Any]) -> set[str]:
    """The file names in all fields `output_path`."""
    names: set[str] = set()
    seen: dict[int, Any] = {}  # the objects themselves, so that no id is used again
    left: list[tuple[Any, bool]] = [(histories, False)]
    while left:
        item, inside = left.pop()
        if isinstance(item, Iterator):
            item = list(item)
        elif isinstance(item, Iterable) and not isinstance(item, str | bytes):
            if id(item) in seen:
                continue
            seen[id(item)] = item
        if hasattr(item, "_asdict"):
            item = item._asdict()
        if is_dataclass(item) and not isinstance(item, type):
            item = {field.name: getattr(item, field.name) for field in fields(item)}
        if isinstance(item, Mapping):
            path = item.get("output_path")
            if isinstance(path, str | PurePath):
                names.add(name_of(str(path).rstrip("/")))
            elif path is not None:
                raise _unreadable(path, "output_path: ")
            left += ((value, True) for value in item.values())
        elif isinstance(getattr(item, "output_path", None), str | PurePath):
            names.add(name_of(str(item.output_path)))
        elif isinstance(item, Iterable) and not isinstance(item, str | bytes):
            left += ((value, inside) for value in item)
        elif item is not None and not (inside and isinstance(item, str | bytes | int | float | PurePath)):
            raise _unreadable(item)
    return names


def _unreadable(item: Any, where: str = "") -> AgentLabError:
    """For what would otherwise be passed over, and cost the files that it points to."""
    return AgentLabError(
        f"collect cannot look for pointers in {where}{type(item).__name__}: nothing was deleted. "
        "Give it lists of messages, events or records (dicts), or ToolResults."
    )
