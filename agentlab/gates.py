"""What the four layers are set by, and what they report: thresholds, and the bytes that went in and out of each.

view -> layer -> shorter view        Gate: messages and bytes before and after
history -> all layers -> Layered     the view, a sentence on why, and its gates
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentlab.context import Prepared
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.layersummary import is_summary
from agentlab.messages import Message, size_bytes
from agentlab.snip import snipped
from agentlab.spill import OutputBudget

SPILL = OutputBudget(30_000, 200_000, preview=4_100, tail=2_000, unit="bytes", mode="both")
"""Limits in bytes of UTF-8; of a spilled result up to 2,000 bytes of each end stay, and a line between them."""


@dataclass(frozen=True)
class Thresholds:
    """From where on each layer acts: always above its number, never at it.

    `spill` is the budget of one batch of results. `max_groups`, `head` and `tail` are those of `snip`, in groups;
    `keep` is the one of `micro`, in exchanges. A view of more than `max_bytes` of canonical JSON Lines is summarised.
    After a refusal the last `keep_groups` groups stay beside the summary. (Seed 001 has these figures.)
    """

    spill: OutputBudget = SPILL
    max_groups: int = 50
    head: int = 3
    tail: int = 46
    keep: int = 3
    max_bytes: int = 50_000
    keep_groups: int = 5

    def __post_init__(self) -> None:
        if min(self.max_groups, self.head, self.tail, self.keep, self.max_bytes, self.keep_groups) < 0:
            raise AgentLabError("A threshold cannot be negative. Use 0 or more for each of its numbers.")

    def for_window(self, tokens: int, *, per_token: int = 3) -> Thresholds:
        """These thresholds for a small context window: a view of 60 % of it, results as in `OutputBudget.for_window`.

        `per_token` is how many bytes a token stands for.
        """
        room = max(0, tokens) * per_token * 60 // 100
        spill = self.spill.for_window(tokens, per_token=per_token)
        return replace(self, spill=spill, max_bytes=min(self.max_bytes, room))


@dataclass(frozen=True)
class Gate:
    """What one layer did to the view: messages and bytes of canonical JSON Lines that went in, and that came out."""

    name: str
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    acted: bool


@dataclass(frozen=True)
class Layered(Prepared):
    """A view, and what each layer did to it: no gates when the view was there already.

    `transcript` is the path of the file with the whole history, when one was written.
    """

    gates: tuple[Gate, ...] = ()
    transcript: str | None = None

    def _repr_html_(self) -> str:
        from agentlab import draw

        looks = ["summarised" if is_summary(m) else "dropped" if snipped(m) else "kept" for m in self.history]
        rows = [(g.name, g.messages_in, g.messages_out, g.bytes_in, g.bytes_out) for g in self.gates]
        head = (say("layer"), say("messages in"), say("messages out"), say("bytes in"), say("bytes out"))
        picture = draw.strip(self.history, fates=looks, caption=self.why)
        return draw.html(picture, draw.table(rows, head=head) if rows else "")._repr_html_()


def gate(name: str, before: list[Message], after: list[Message], *, bytes_in: int | None = None) -> Gate:
    """What a layer did; `bytes_in` where it is known. Raises AgentLabError for a message that JSON cannot hold."""
    acted = before != after
    try:
        bytes_in = size_bytes(before) if bytes_in is None else bytes_in
        bytes_out = size_bytes(after) if acted else bytes_in
    except (TypeError, ValueError) as error:
        said = f"A message of this history cannot be written as JSON ({error}). Nothing was done."
        raise AgentLabError(said) from None
    return Gate(name, len(before), len(after), bytes_in, bytes_out, acted)
