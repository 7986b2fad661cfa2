"""Compaction on a surface: a range of nodes becomes one checkpoint, when it must, or when somebody asks for it.

    pressure   measure -> prune -> measure -> checkpoint -> measure -> pick again, keep less -> measure -> an error
    overflow   prune -> checkpoint -> the request goes out again, as long as the view changed; so often and no oftener
    by hand    checkpoint, at once: nothing is pruned

    nodes      system | the range             | the tail: the retention budget, counted from the end, one node at least
    view       system | [checkpoint: summary] | the same

The cut between range and tail moves left until it parts no call from its result. Here a summary that fails leaves all
as it was: there is no outline in its place, since the log has everything and the error says why. (Seed 002.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentlab.compaction import CompactionError, Limits, last_words, read_summary, summary_message
from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.language import say
from agentlab.messages import Message, groups
from agentlab.pruner import Pruned, Pruner, prune_filling, tokens_of
from agentlab.summary import TIMEOUT_S, Breaker, Summarize, ask, last_by_person, summary_source, text_size
from agentlab.surfaceview import Node, Surface, SurfaceError

Trigger = Literal["pressure", "overflow", "context-overflow"]
Cause = Literal["busy", "summary", "changed", "write"]

_OPEN, _CLOSE = "<compacted-summary>", "</compacted-summary>"
_SYSTEM = ("system", "developer")


class CheckpointError(CompactionError):
    """No checkpoint was made, and the view stays as it was.

    `cause` is `busy` (another compaction is running), `summary` (it failed, was empty, or is no shorter than what it
    replaces), `changed` (the view did meanwhile, other than by growing) or `write` (the log could not be written).
    """

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Checkpoint:
    """A range of nodes, from number `start` to `end`, that one node now stands for: number `seq`. Sizes in tokens."""

    seq: int
    start: int
    end: int
    source: tuple[int, ...]
    summary: str
    before: int
    after: int

    def _repr_html_(self) -> str:
        from agentlab import draw

        gained = max(0, self.before - self.after)
        parts = [(say("checkpoint"), self.after, "summarised"), (say("gained"), gained, "dropped")]
        said = say("{n} nodes became node {number}", n=len(self.source), number=self.seq)
        return draw.html(draw.bar(parts, unit="tokens"), said)._repr_html_()


@dataclass(frozen=True)
class Relief:
    """What `compact_if_needed` did. `before` and `after` are the whole request in tokens, as measured."""

    pruned: tuple[int, ...]
    checkpoints: tuple[Checkpoint, ...]
    before: int
    after: int
    why: str

    @property
    def changed(self) -> bool:
        """Whether the view is another one now."""
        return bool(self.pruned or self.checkpoints)

    def _repr_html_(self) -> str:
        from agentlab import draw

        parts = [(say("left"), self.after, "kept"), (say("gained"), max(0, self.before - self.after), "dropped")]
        return draw.html(draw.bar(parts, unit="tokens"), self.why)._repr_html_()


class Compactor:
    """Keeps the view of one surface within `limits`. One compaction at a time.

    `retain_tokens` is the retention budget: a quarter of the window by default. `retries` are the further rounds under
    pressure; each keeps less, the last one as little as it can. `max_overflow_retries` bounds the refusals in a row
    that are answered with a shorter view, until `reset`. `tokens` estimates one message, and `overhead` is what the
    provider counted beyond these estimates, as `calibrate` found.
    """

    def __init__(
        self,
        surface: Surface,
        summarize: Summarize,
        *,
        limits: Limits | None = None,
        retain_tokens: int | None = None,
        pruner: Pruner | None = None,
        tokens: Callable[[Message], int] = tokens_of,
        retries: int = 1,
        max_overflow_retries: int = 3,
        goal: str | None = None,
        timeout_s: float | None = TIMEOUT_S,
        breaker: Breaker | None = None,
    ) -> None:
        self.surface, self.limits = surface, limits or Limits()
        self.retain_tokens = self.limits.context_window // 4 if retain_tokens is None else retain_tokens
        if min(self.retain_tokens, retries, max_overflow_retries) < 0:
            raise AgentLabError("retain_tokens, retries and max_overflow_retries cannot be negative: use 0 or more.")
        self.pruner = pruner or Pruner.for_window(self.limits.context_window)
        self.overhead = 0
        self._tokens, self._summarize, self._goal, self._timeout_s = tokens, summarize, goal, timeout_s
        self._retries, self._max_refusals = retries, max_overflow_retries
        self._breaker = breaker or Breaker()
        self._refusals = 0
        self._lock = asyncio.Lock()

    def estimate(self, history: Sequence[Message]) -> int:
        """What a history costs in tokens, message by message, without the overhead."""
        return sum(map(self._tokens, history))

    def measure(self) -> int:
        """What the next request will cost in tokens: the estimate of the view, and the overhead."""
        return max(0, self.estimate(self.surface.session.history) + self.overhead)

    def calibrate(self, counted: int, estimated: int) -> None:
        """Tell what the provider counted for a request, and what `estimate` said of it. Tools are part of that."""
        self.overhead = counted - estimated

    def reset(self) -> None:
        """The model has replied, or the session is idle: refusals are counted from 0 again."""
        self._refusals = 0

    async def compact_if_needed(self, trigger: Trigger, *, stop: Stop | None = None) -> Relief:
        """Make room by itself: before a step (`"pressure"`), or after the provider refused (`"overflow"`).

        Waits for a compaction that is running. Under pressure nothing happens below the threshold, except that a single
        result which fills the window is cut. Raises CompactionError when the view is still above the threshold after
        all rounds; when an overflow leaves nothing to gain, or has come too often. What was gained before stays.
        Raises StopRequested when Stop is pressed meanwhile.
        """
        if trigger not in ("pressure", "overflow", "context-overflow"):
            raise AgentLabError(f'{str(trigger)[:40]!r} is no trigger: use "pressure" or "overflow".')
        async with self._lock:
            return await (self._press(stop) if trigger == "pressure" else self._overflow(stop))

    async def _press(self, stop: Stop | None) -> Relief:
        before, limit = self.measure(), self.limits.threshold
        pruned = self._prune(all_long=False)
        after = self.measure() if pruned else before
        if after >= limit:
            pruned += self._prune()
            after = self.measure()
        made: list[Checkpoint] = []
        reason = "There is nothing left to replace before what must stay."
        for budget in self._budgets(self._retries):
            if after < limit:
                break
            try:
                made += await self._checkpoint(self._pick(budget), stop)
            except CheckpointError as error:
                reason = str(error)
                break
            after = self.measure()
        if after >= limit:
            raise CompactionError(
                f"The view has about {after:,} tokens after {len(pruned)} prunings and {len(made)} checkpoints; the "
                f"threshold is {limit:,}. {reason} Limit what tools may return, shorten the system prompt, or use a "
                "model with a larger window."
            )
        return Relief(pruned, tuple(made), before, after, _why(before, after, f"the threshold is {limit:,}"))

    async def _overflow(self, stop: Stop | None) -> Relief:
        before = self.measure()
        if self._refusals >= self._max_refusals:
            raise CompactionError(
                f"The provider refused {self._refusals + 1} requests in a row as too long, so no further one is tried. "
                "Limit what tools may return, or use a model with a larger window."
            )
        budget = self._budgets(self._max_refusals - 1)[self._refusals]
        self._refusals += 1
        pruned = self._prune()
        made: tuple[Checkpoint, ...] = ()
        reason = "There is nothing to replace before what must stay."
        try:
            made = tuple(await self._checkpoint(self._pick(budget) or self._pick(0), stop))
        except CheckpointError as error:
            reason = str(error)
        if not pruned and not made:
            sizes = map(text_size, self.surface.session.history)
            raise CompactionError(
                f"The request does not fit the context window, and nothing more can be left out. {reason} The largest "
                f"message has {max(sizes, default=0):,} characters: limit what tools may return, or use a model with "
                "a larger window."
            )
        after = self.measure()
        return Relief(pruned, made, before, after, _why(before, after, "the provider refused the request"))

    async def compact_now(self, *, retain_tokens: int = 0, stop: Stop | None = None) -> Checkpoint | None:
        """Make a checkpoint of all but the last `retain_tokens` at once, while the session is idle; prunes nothing.

        None when there is nothing to do. A summariser that rests after failures is asked too. Raises CheckpointError
        with its `cause` when it cannot be done; all is as it was then. Raises StopRequested when Stop is pressed
        meanwhile.
        """
        return await self._by_hand(lambda: self._pick(retain_tokens), stop)

    async def compact_region(self, start: int, end: int, *, stop: Stop | None = None) -> Checkpoint | None:
        """Make a checkpoint of the nodes from number `start` to `end`, inclusive; prunes nothing.

        A call and its results that the range has only in part stay out of it, and so do system messages at the start.
        None when nothing is left then. Raises SurfaceError for numbers that are not in the view, else as `compact_now`.
        """

        def pick() -> list[Node]:
            nodes = self.surface.nodes
            at = {seq: position for position, (seq, _) in enumerate(nodes)}
            if start not in at or end not in at or at[start] > at[end]:
                raise SurfaceError(f"There is no range from {start} to {end} in the view: look at surface.nodes.")
            low = max(at[start], _first(nodes))
            low = min((edge for edge in _edges(nodes) if edge >= low), default=len(nodes))
            return _range(nodes, low, at[end] + 1)

        return await self._by_hand(pick, stop)

    async def _by_hand(self, pick: Callable[[], list[Node]], stop: Stop | None) -> Checkpoint | None:
        if self._lock.locked():
            raise CheckpointError("A compaction is running already: wait for its end.", "busy")
        async with self._lock:
            return next(iter(await self._checkpoint(pick(), stop, asked=True)), None)

    def _budgets(self, retries: int) -> list[int]:
        """The retention budget of each round: the whole of it first, then less, and nothing in the last."""
        return [self.retain_tokens] + [self.retain_tokens * left // retries for left in reversed(range(retries))]

    def _prune(self, *, all_long: bool = True) -> tuple[int, ...]:
        """Prune a result that fills the window, and with `all_long` all that the pruner finds too long."""
        done: list[Pruned] = []
        try:
            done.append(prune_filling(self.surface, self.limits.context_window, tokens=self._tokens))
            if all_long:
                done.append(self.pruner.prune(self.surface, tokens=self._tokens))
        except (AgentLabError, OSError) as error:
            raise CheckpointError(f"The pruning could not be written down: {error}", "write") from error
        return tuple(seq for pruned in done for seq in pruned.replacements)

    def _pick(self, budget: int) -> list[Node]:
        """The nodes before the cut; none when it is not worth it: only checkpoints, or one node."""
        nodes = self.surface.nodes
        cut = len(nodes)
        while cut > 0:
            cut, budget = cut - 1, budget - self._tokens(nodes[cut - 1][1])
            if budget <= 0:
                break
        picked = _range(nodes, _first(nodes), cut)
        return picked if len(picked) > 1 else []

    async def _checkpoint(self, picked: list[Node], stop: Stop | None, *, asked: bool = False) -> list[Checkpoint]:
        """Replace these nodes by one; nothing for none, or when they hold nothing but checkpoints.

        `asked`: a person wants it, so a summariser that rests after failures is asked all the same.
        """
        old = [message for _, message in picked]
        fresh = [message for message in old if message.get("origin") != "compaction"]
        if not fresh:
            return []
        source, view = [seq for seq, _ in picked], [seq for seq, _ in self.surface.nodes]
        words = None if self._speaks_behind(source[-1]) else last_words(old)
        previous = "\n\n".join(filter(None, map(_summary_in, old))) or None
        text = summary_source(
            fresh,
            previous=previous,
            goal=self._goal,
            max_chars=min(200_000, self.limits.context_window // 2),
        )
        size, quoted = text_size(old), len(words[0]) if words else 0
        if quoted >= size:
            raise CheckpointError(
                f"A person's last words stay word for word, and these {size} characters are nothing else: there is "
                "nothing to summarise. The view stays as it was.",
                "summary",
            )
        breaker = None if asked else self._breaker
        room = size - quoted
        verdict = await ask(self._summarize, text, room, timeout_s=self._timeout_s, stop=stop, breaker=breaker)
        if asked:
            self._breaker.record(ok=verdict.ok)
        if not verdict:
            beside = f" Beside it {quoted} characters, a person's last words, would have stayed." if quoted else ""
            raise CheckpointError(f"{verdict.reason}{beside} The view stays as it was.", "summary")
        node = checkpoint_node(verdict.text, dropped=len(old), words=words)
        seq = self._replace(source, node, view)
        before = self.estimate(old)
        return [Checkpoint(seq, source[0], source[-1], tuple(source), verdict.text, before, self._tokens(node))]

    def _replace(self, source: list[int], node: Message, view: list[int]) -> int:
        """Write the checkpoint down, if the view has only grown at its end since it was `view`."""
        if [seq for seq, _ in self.surface.nodes[: len(view)]] != view:
            raise CheckpointError("The history changed while its summary was being written: compact again.", "changed")
        try:
            return self.surface.replace(source[0], source[-1], node, reason="compaction")
        except (AgentLabError, OSError) as error:
            raise CheckpointError(f"The checkpoint could not be written down: {error}", "write") from error

    def _speaks_behind(self, seq: int) -> bool:
        """Whether a person speaks behind this node."""
        nodes = self.surface.nodes
        behind = next(at for at, node in enumerate(nodes) if node[0] == seq) + 1
        return last_by_person([message for _, message in nodes[behind:]]) >= 0


def _why(before: int, after: int, what: str) -> str:
    return f"About {before:,} tokens, now {after:,}; {what}."


def checkpoint_node(summary: str, *, dropped: int, words: tuple[str, int] | None = None) -> Message:
    """The node that stands for `dropped` others: a fixed frame, the person's last words, the summary in its tags.

    A model wrote the summary, so a tag of ours in it gets a backslash. The same input gives the same bytes.
    """
    for tag in (_OPEN, _CLOSE):
        summary = summary.replace(tag, f"<\\{tag[1:]}")
    return summary_message(f"{_OPEN}\n{summary}\n{_CLOSE}", dropped=dropped, words=words)


def _summary_in(message: Message) -> str:
    """The summary of an earlier checkpoint; "" for any other message."""
    return read_summary(message)[1].removeprefix(_OPEN).removesuffix(_CLOSE).strip()


def _first(nodes: Sequence[Node]) -> int:
    """Where the nodes begin that may be replaced: behind the system messages at the start."""
    return next((at for at, (_, message) in enumerate(nodes) if message.get("role") not in _SYSTEM), len(nodes))


def _edges(nodes: Sequence[Node]) -> list[int]:
    """The positions where a cut parts no call from its result."""
    return [*(group.start for group in groups([message for _, message in nodes])), len(nodes)]


def _range(nodes: Sequence[Node], low: int, high: int) -> list[Node]:
    """The nodes from `low` to before `high`, which moves left to an edge.

    Results behind it that belong to no call in the view go with the range: their call was summarised, and alone they
    would be orphans. The last node always stays.
    """
    high = max((edge for edge in _edges(nodes) if edge <= high), default=0)
    orphans = high if high > low else len(nodes)
    while orphans < len(nodes) - 1 and nodes[orphans][1].get("role") == "tool":
        orphans += 1
        high = orphans
    return list(nodes[low:high]) if high > low else []
