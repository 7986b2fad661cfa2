"""Faults on demand: what a network and a provider do to an answer.

A fault is a step of a script. It says what breaks, and `step` says what the model would have answered:

    Simulator([Fault(status=429, retry_after=2), Fault(cut_at=300, step="Hello, world"), "Hello again"])

An answer that arrived broken is not one that later requests must show: a client may keep it, mend it or drop it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

from agentlab.errors import AgentLabError


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One broken answer. Set one or more; raises AgentLabError when nothing is set or a number makes no sense.

    `status`: answer with this HTTP status (401, 429, 500, ...) and the vendor's error body instead of `step`;
    `retry_after` (seconds) becomes its `retry-after` header. `refuse`: no answer at all, the connection is refused.
    `cut_at`: the connection breaks after so many bytes of the body. `stall_at`: nothing more comes after so many bytes,
    and the connection stays open. `error_after`: after so many events the stream carries an error object and ends.
    `no_done` and `no_finish` leave out the end mark (`[DONE]`) and the finish reason.
    """

    step: str | dict[str, Any] = ""
    status: int | None = None
    retry_after: float | None = None
    refuse: bool = False
    cut_at: int | None = None
    stall_at: int | None = None
    error_after: int | None = None
    no_done: bool = False
    no_finish: bool = False

    def __post_init__(self) -> None:
        numbers = (self.cut_at, self.stall_at, self.error_after)
        if not any((self.status, self.refuse, self.no_done, self.no_finish)) and numbers == (None, None, None):
            raise AgentLabError("This Fault breaks nothing: set status=, cut_at=, stall_at=, error_after=, ...")
        if self.status is not None and not 400 <= self.status <= 599:
            raise AgentLabError(f"Fault(status={self.status}) is no error: use a status from 400 to 599.")
        if any(number is not None and number < 0 for number in numbers):
            raise AgentLabError("A Fault counts bytes and events from 0: use no negative number.")


def rechunk(blocks: Iterable[bytes], sizes: int | Sequence[int] | None) -> Iterator[bytes]:
    """The same bytes in other cuts: blocks of so many bytes, the sizes of a list in turn, or None for no change.

    Cuts fall anywhere, inside a character too. It reads no further ahead than the block that it is about to give.
    """
    if sizes is None:
        yield from blocks
        return
    wanted = cycle([sizes] if isinstance(sizes, int) else sizes)
    held, size = bytearray(), next(wanted)
    for block in blocks:
        held += block
        start = 0
        while len(held) - start >= size:
            yield bytes(held[start : start + size])
            start += size
            size = next(wanted)
        del held[:start]
    if held:
        yield bytes(held)


def check_chunk(sizes: int | Sequence[int] | None) -> None:
    """Raise AgentLabError unless these sizes can be used by `rechunk`."""
    listed = [] if sizes is None else [sizes] if isinstance(sizes, int) else list(sizes)
    if sizes is not None and (not listed or min(listed) < 1):
        raise AgentLabError("chunk= takes a number of bytes, 1 or more, a list of such numbers, or None.")


def cut(blocks: Iterable[bytes], at: int) -> Iterator[bytes]:
    """The first `at` bytes of the blocks. Nothing behind them is read."""
    if at == 0:
        return
    for block in chain(blocks):
        yield block[:at]
        at -= len(block)
        if at <= 0:
            return
