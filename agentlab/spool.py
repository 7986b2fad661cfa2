"""A command's output on its way: in memory while it is small, in a file as soon as it is not.

    bytes -> Cleaner -> text in memory -- above `limit` --> the whole text in a file, both ends in memory -> excerpt

So an output of any size is kept whole in bounded memory. What the file holds is the text without colour codes and
redraws, as it would have come back if it were small. (Seed 003, lossless spill; `tempfile.SpooledTemporaryFile` works
the same way.)
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from agentlab.spill import Mode, OutputBudget, Sink, SpillError, SpillStore, not_saved, pointer, shortened
from agentlab.terminal import Cleaner

MEMORY_CHARS = 4_000_000


@dataclass(frozen=True)
class Spooled:
    """What became of an output: the text for the model, and where the whole of it is, if that is a file."""

    text: str
    path: str | None = None


class Spool:
    """Takes bytes as they come (`process.Receiver`). Leaving its `with` block without `close` drops the file."""

    def __init__(self, store: SpillStore, budget: OutputBudget, *, limit: int = MEMORY_CHARS) -> None:
        self._store, self._budget, self._limit = store, budget, limit
        self._cleaner = Cleaner()
        self._memory = io.StringIO(newline="\n")
        self._sink: Sink | None = None

    def add(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        self._put(self._cleaner.feed(data))

    def close(self, mode: Mode = "head", *, ending: str = "", blank: str = "") -> Spooled:
        """End the output, `blank` where there was none, and put `ending` behind it, on lines of its own.

        `mode` is the end that an excerpt favours. A disk that failed is told in the note.
        """
        self._put(self._cleaner.close())
        if self._sink is None:
            return Spooled("\n".join(filter(None, [self._memory.getvalue().rstrip("\n") or blank, ending])))
        if ending:
            self._put(ending if self._sink.ends().tail.endswith("\n") else f"\n{ending}")
        try:
            saved = self._sink.close()
            note, path = pointer(saved), saved.path
        except SpillError as error:
            note, path = not_saved(self._sink.ends().chars, error.reason), None
        return Spooled(shortened(self._sink.ends(), note, self._budget, mode), path)

    def _put(self, text: str) -> None:
        if self._sink is None:
            self._memory.write(text)
            if self._memory.tell() <= self._limit:
                return
            text, self._memory = self._memory.getvalue(), io.StringIO()
            self._sink = self._store.open()
        self._sink.write_text(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sink:
            self._sink.__exit__(kind, error, trace)
