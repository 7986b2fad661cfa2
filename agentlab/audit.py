"""What a recorded session would have gained from the mechanisms of this package: a report on one transcript.

    Transcript -> audit -> Report: pairing problems, tokens by role, savings, cache waste, repeated calls

The rules behind the figures:

1. Tokens are estimated: a quarter of the characters, rounded up for each message. The usages in the cache part are the
   provider's own counts.
2. An output is a tool's result, or an environment's answer in a trajectory without calls. Each saving is counted alone,
   on the outputs as recorded. Nothing is written: the spill store only counts.
3. Spill: `apply_budget` on the results of each reply; tools in `READERS` are not spilled. Fold: `logfold.fold` on the
   outputs of `SHELLS`. Prune: every output keeps its first 4,096 and last 1,024 characters.
4. Compaction: what is left since the last one; all before `split_index` becomes a summary of at most 2,000 tokens.
5. Cache: `Ledger` over the recorded usages, started again at a compaction. A request without a time counts as no pause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentlab import jsonio
from agentlab.compaction import split_index
from agentlab.language import say
from agentlab.logfold import fold
from agentlab.messages import Message, calls_of
from agentlab.pairing import problems, repair
from agentlab.simulator.tokens import text_of
from agentlab.spill import OutputBudget, Saved, SpillStore, apply_budget, pointer, size
from agentlab.tools import ToolResult
from agentlab.transcripts import Break, Dropped, Transcript, Used, visible
from agentlab.usage import Entry, Ledger, total

CHARS_PER_TOKEN = 4
PRUNE_HEAD, PRUNE_TAIL = 4096, 1024
SUMMARY_TOKENS = 2000
FOLD_CHARS = 1_000_000
TOLD = 10
MECHANISMS = ("spill", "fold", "prune", "compaction")
HOUR_S, FIVE_MINUTES_S = 3600.0, 300.0

SHELLS = frozenset({"bash", "bashoutput", "shell", "run_shell", "run_shell_command", "exec_command", "local_shell"})
"""Tools whose output is taken for a log, in lower case."""

READERS = frozenset({"read", "read_file", "view", "open", "open_file", "notebookread", "view_image"})
"""Tools that read files, in lower case: their outputs are never spilled, since the file is there already."""


@dataclass(frozen=True)
class Saving:
    """What one mechanism would save: characters before and after, and how many outputs (or messages) it changes."""

    before: int = 0
    after: int = 0
    changed: int = 0

    @property
    def saved(self) -> int:
        """Characters saved."""
        return self.before - self.after

    @property
    def tokens(self) -> int:
        """Tokens saved, by the same rule as everywhere here."""
        return self.saved // CHARS_PER_TOKEN


@dataclass(frozen=True)
class Miss:
    """A request that paid again for what was cached: its line, tokens, why the ledger thinks so, and the culprit."""

    line: int
    missed: int
    verdict: str
    idle_s: float
    culprit: str


@dataclass(frozen=True)
class Cache:
    """The recorded usages, in tokens. `worst` are the largest misses, `timed` whether the requests had times."""

    requests: int
    prompt: int
    hit: int
    output: int
    reported: bool
    wasted: int
    misses: int
    timed: bool
    worst: tuple[Miss, ...]


@dataclass(frozen=True)
class Repeat:
    """The same call with the same input, made `count` times; `input` is the start of its JSON."""

    name: str
    input: str
    count: int


@dataclass(frozen=True)
class Report:
    """The audit of one session. Texts in it are bounded and hold no control characters."""

    format: str
    messages: int
    meta: Mapping[str, Any]
    tokens: Mapping[str, int]
    problems: Mapping[str, int]
    examples: tuple[str, ...]
    spill: Saving
    fold: Saving
    prune: Saving
    compaction: Saving
    cache: Cache
    breaks: tuple[Break, ...]
    repeated: int
    repeats: tuple[Repeat, ...]
    dropped: tuple[Dropped, ...]
    damaged: int

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON, the tokens saved included."""
        plain = asdict(self)
        for name in MECHANISMS:
            plain[name]["tokens_saved"] = getattr(self, name).tokens
        return plain

    def _repr_html_(self) -> str:
        from agentlab import draw

        looks = {"tool": "tool result"}
        parts = [(role, count, looks.get(role, role)) for role, count in self.tokens.items()]
        rows = [(name, getattr(self, name).tokens, getattr(self, name).changed) for name in MECHANISMS]
        table = draw.table(rows, head=(say("mechanism"), say("tokens saved"), say("changes")))
        waste = say(
            "{n} pairing problems, {wasted:,} tokens of cache waste",
            n=sum(self.problems.values()),
            wasted=self.cache.wasted,
        )
        return draw.html(draw.bar(parts, unit="tokens"), table, waste)._repr_html_()


def audit(transcript: Transcript, *, budget: OutputBudget | None = None, ttl_s: float | None = None) -> Report:
    """Report on one session; the rules stand at the top of the module. The transcript is not changed.

    `budget` is the output budget to try. `ttl_s` is how long a cache lives, in seconds: by default an hour where the
    usages tell of writes for an hour, else five minutes.
    """
    history = transcript.history
    faults = problems(history)
    spilled, folded, pruned = _outputs(transcript, budget or OutputBudget())
    repeats = _repeats(history)
    return Report(
        format=transcript.format,
        messages=len(history),
        meta=dict(transcript.meta),
        tokens=_by_role(history),
        problems=dict(Counter(fault.kind for fault in faults)),
        examples=tuple(visible(fault.sentence, 200) for fault in faults[:TOLD]),
        spill=spilled,
        fold=folded,
        prune=pruned,
        compaction=_compaction(history),
        cache=_cache(transcript.usages, ttl_s),
        breaks=transcript.breaks,
        repeated=sum(repeat.count - 1 for repeat in repeats),
        repeats=tuple(repeats[:TOLD]),
        dropped=transcript.dropped,
        damaged=transcript.damaged,
    )


def chars_of(message: Message) -> int:
    """The characters of a message that a model reads: its text, and the names and arguments of its calls."""
    functions = [call["function"] for call in calls_of(message) if isinstance(call.get("function"), dict)]
    said = [function.get(key) for function in functions for key in ("name", "arguments")]
    return len(text_of(message)) + sum(len(text) for text in said if isinstance(text, str))


def tokens_of(message: Message) -> int:
    """The estimate: a quarter of the characters, rounded up."""
    return -(-chars_of(message) // CHARS_PER_TOKEN)


def _by_role(history: Sequence[Message]) -> dict[str, int]:
    counts = dict.fromkeys(("system", "user", "assistant", "tool"), 0)
    for message in history:
        role = "system" if message.get("role") == "developer" else str(message.get("role"))
        counts[role] = counts.get(role, 0) + tokens_of(message)
    return counts


def _batches(history: Sequence[Message]) -> Iterator[list[ToolResult]]:
    """The outputs behind each reply. A result whose call is not known has the name ""."""
    names: dict[str, str] = {}
    batch: list[ToolResult] = []
    for message in history:
        if message.get("role") == "assistant":
            yield batch
            batch = []
            names = {str(call.get("id")): str(call["function"].get("name")) for call in calls_of(message)}
        elif message.get("role") == "tool" or message.get("origin") == "observation":
            id = str(message.get("tool_call_id") or "")
            name = names.get(id, "") if message.get("role") == "tool" else "observation"
            spillable = name.casefold() not in READERS
            batch.append(ToolResult(id, name, {}, "completed", text_of(message), spillable))
    yield batch


class _DryStore(SpillStore):
    """A spill store that only counts."""

    def save(self, text: str) -> Saved:
        lines = text.count("\n") + (not text.endswith("\n"))
        return Saved("spill/0001-0123456789.txt", len(text), size(text, "bytes"), lines)

    def remove(self, name: str) -> bool:
        return True


def _outputs(transcript: Transcript, budget: OutputBudget) -> tuple[Saving, Saving, Saving]:
    """What spill, fold and prune would each save on the outputs."""
    store = _DryStore("spill")
    before, spilled, folded, pruned = 0, [0, 0], [0, 0], [0, 0]
    logs = SHELLS | {"observation"} if transcript.format == "mini-swe-agent" else SHELLS
    for batch in _batches(transcript.history):
        kept = apply_budget(batch, budget, store).results
        for result, left in zip(batch, kept, strict=True):
            text = result.output
            before += len(text)
            _add(spilled, text, len(left.output))
            if result.name.casefold() in logs and len(text) <= FOLD_CHARS and (log := fold(text)).folded:
                _add(folded, text, len(log.content) + 1 + len(pointer(store.save(text))))
            _add(pruned, text, PRUNE_HEAD + PRUNE_TAIL + len(_omitted(len(text) - PRUNE_HEAD - PRUNE_TAIL)))
    spill, logfold, prune = (Saving(before, before - saved, changed) for saved, changed in (spilled, folded, pruned))
    return spill, logfold, prune


def _omitted(chars: int) -> str:
    return f"\n… [{chars} characters omitted] …\n"


def _add(sums: list[int], text: str, after: int) -> None:
    """Count an output that would get shorter."""
    if after < len(text):
        sums[0] += len(text) - after
        sums[1] += 1


def _compaction(history: Sequence[Message]) -> Saving:
    """Characters of the view since the last compaction, before and after one more; `changed` counts messages."""
    last = max((at for at, message in enumerate(history) if message.get("origin") == "compaction"), default=0)
    view = repair(history[last:]).history
    before = sum(map(chars_of, view))
    old = [message for message in view[: split_index(view)] if message.get("role") not in ("system", "developer")]
    gone = sum(map(chars_of, old))
    summary = SUMMARY_TOKENS * CHARS_PER_TOKEN
    return Saving(before, before - gone + summary, len(old)) if gone > summary else Saving(before, before, 0)


def _cache(usages: Sequence[Used], ttl_s: float | None) -> Cache:
    if ttl_s is None:
        ttl_s = HOUR_S if any(used.usage.written_1h for used in usages) else FIVE_MINUTES_S
    ledger = Ledger(ttl_s=ttl_s)
    found: list[Miss] = []
    at, model = 0.0, ""
    for used in usages:
        if used.compacted:
            ledger.reset()
        first = not ledger.entries
        at = at if used.at is None else used.at
        entry = ledger.record(used.usage, at)
        if entry.missed:
            changed = not first and used.model != model
            culprit = f"the model changed from {model or '?'} to {used.model or '?'}" if changed else _culprit(entry)
            found.append(Miss(used.line, entry.missed, entry.verdict, round(entry.idle_s, 3), culprit))
        model = used.model
    every = total(used.usage for used in usages)
    worst = sorted(found, key=lambda miss: -miss.missed)[:TOLD]
    timed = bool(usages) and all(used.at is not None for used in usages)
    return Cache(
        len(usages), every.prompt, every.hit, every.output, every.reported, ledger.wasted, ledger.misses, timed,
        tuple(worst),
    )  # fmt: skip


def _culprit(entry: Entry) -> str:
    paused = entry.verdict == "expired"
    return f"a pause of {entry.idle_s:,.0f} seconds" if paused else "not known: the requests were not recorded"


def _repeats(history: Sequence[Message]) -> list[Repeat]:
    """Calls that were made more than once, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for message in history:
        for call in calls_of(message):
            counts[visible(call["function"].get("name"), 60), _canonical(call["function"].get("arguments"))] += 1
    often = [(key, count) for key, count in counts.most_common() if count > 1]
    return [Repeat(name, visible(given), count) for (name, given), count in often]


def _canonical(arguments: Any) -> str:
    """Arguments in one form, so that another order of the keys is no other input."""
    try:
        return jsonio.dumps(jsonio.loads(arguments), sort_keys=True)
    except (ValueError, TypeError):
        return str(arguments)
