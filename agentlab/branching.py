"""Go back to an earlier point of a compacted conversation: keep the summary, or rebuild from the transcript?

    transcript   0 1 2 3 4 5 6 7 8 9        all that was said, never shortened
    view              [summary] 6 7 8 9     what the model sees
    cut at 8          [summary] 6 7         reused: the summary covers only what comes before the cut
    cut at 3     0 1 2                      rebuilt: it also tells what was just taken back

Dropping the summary every time costs a new one at once, and the new one remembers other details. Keeping it when the
cut lies inside what it covers leaks the future into the branch. (Seed 000, compaction: branch decision.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.messages import Message, groups


@dataclass(frozen=True)
class Branch:
    """The history that a branch starts with, whether the compacted view was `reused` or `rebuilt`, and why."""

    history: list[Message]
    which: Literal["reused", "rebuilt"]
    why: str

    @property
    def reused(self) -> bool:
        return self.which == "reused"

    def _repr_html_(self) -> str:
        from agentlab import draw

        fates = ["summarised" if message.get("origin") == "compaction" else "kept" for message in self.history]
        which = say("reused") if self.reused else say("rebuilt")
        return draw.strip(self.history, fates=fates, caption=f"{which}: {self.why}")._repr_html_()


def branch(transcript: Sequence[Message], view: Sequence[Message], cut: int | Message) -> Branch:
    """The history up to the cut, without the message at the cut itself.

    `cut` is a position in `transcript`, or the message that stands there (the last one that is equal). The end of
    `view` must be the end of `transcript`: both got every new message. A cut between a call and its results moves in
    front of the call. Nothing is changed. Raises AgentLabError for a cut that is not in the transcript.
    """
    at = _position(transcript, cut)
    starts = [group.start for group in groups(transcript)]
    if at < len(transcript):
        at = starts[bisect_right(starts, at) - 1]
    shared = _shared_end(transcript, view)
    if at >= len(transcript) - shared:
        kept = list(view[: len(view) - (len(transcript) - at)])
        return Branch(kept, "reused", "The cut is in the view, so the summary covers only what comes before it.")
    why = "The cut is not in the view: its summary also tells what comes after the cut, so the original stands again."
    return Branch(list(transcript[:at]), "rebuilt", why)


def _position(transcript: Sequence[Message], cut: int | Message) -> int:
    if isinstance(cut, int):
        if 0 <= cut <= len(transcript):
            return cut
        raise AgentLabError(f"The cut {cut} is outside of the transcript: give a position from 0 to {len(transcript)}.")
    same = [at for at, message in enumerate(transcript) if message is cut]
    same = same or [at for at, message in enumerate(transcript) if message == cut]
    if not same:
        raise AgentLabError("The message to cut at is not in the transcript: take it from there, or give its position.")
    return same[-1]


def _shared_end(transcript: Sequence[Message], view: Sequence[Message]) -> int:
    """How many messages at the end of both are the same."""
    length = min(len(transcript), len(view))
    pairs = ((transcript[-at], view[-at]) for at in range(1, length + 1))
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), length)
