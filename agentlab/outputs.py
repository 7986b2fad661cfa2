"""What the outputs of one batch go through before they become part of the history: logs are folded, then budgeted.

    results -> fold (only tools that declare `log`) -> apply_budget -> results with excerpts and pointers

Folding comes first, since a folded log often fits. What was folded is on disk, once: when the folded text is still too
long, its excerpt points to the same file. (Seed 003, "fold first, then count".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentlab.logfold import fold
from agentlab.spill import BatchBudget, OutputBudget, SpillError, SpillStore, apply_budget, name_of, pointer, size
from agentlab.terminal import clean
from agentlab.tools import Registry, ToolResult

FOLD_SHARE = 5
TAIL_LINES = 10


def reduce(
    results: Sequence[ToolResult], *, registry: Registry, store: SpillStore, budget: OutputBudget | None = None
) -> BatchBudget:
    """Fold the logs among the results, then bring the batch within its budget. One result each, in the same order.

    A log that takes less than a fifth of the limit is not folded: there is little to gain, and a source file that was
    printed by a shell looks like a log that mentions errors. Of one that did not complete the last lines stay.
    `before` is the size of what came in, `spilled` names every file that was written. A log that cannot be saved is
    not folded: nothing would bring its lines back.
    """
    budget = budget or OutputBudget()
    worth = budget.per_result // FOLD_SHARE
    folded = [
        _folded(result, registry, store) if size(result.output, budget.unit) > worth else result for result in results
    ]
    after = apply_budget(folded, budget, store)
    written = [result.output_path for result, raw in zip(folded, results, strict=True) if result is not raw]
    before = sum(size(result.output, budget.unit) for result in results)
    return replace(after, before=before, spilled=[*filter(None, written), *after.spilled])


def reducer(
    registry: Registry, store: SpillStore, budget: OutputBudget | None = None
) -> Callable[[list[ToolResult]], list[ToolResult]]:
    """`reduce` as the hook `after_results` of the loop."""
    return lambda results: reduce(results, registry=registry, store=store, budget=budget).results


def _folded(result: ToolResult, registry: Registry, store: SpillStore) -> ToolResult:
    tool = registry.get(result.name)
    if tool is None or not tool.log or result.output_path:
        return result
    text = clean(result.output)
    folded = fold(text, tail_lines=0 if result.status == "completed" else TAIL_LINES)
    if not folded.folded:
        return result
    try:
        saved = store.save(text)
    except SpillError:
        return result
    output = f"{folded.content}\n{pointer(saved)}"
    if len(output) >= len(result.output):
        store.remove(name_of(saved.path))
        return result
    return replace(result, output=output, output_path=saved.path)
