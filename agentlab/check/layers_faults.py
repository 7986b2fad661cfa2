"""The faults that chapter 07 tries out on the four layers. Each is made to happen for real."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.layers import FIELDS, CompactionManager, Thresholds
from agentlab.messages import Message, assistant, call
from agentlab.tools import ToolResult

TIGHT = Thresholds(max_bytes=10_000)
ANSWERS = {
    say("the summary is prose"): "Sure! So far the modules were ported.",
    say("a field is missing"): json.dumps({"current_goal": "Port."}),
    say("a field too many"): json.dumps(dict.fromkeys([*FIELDS, "mood"], "good")),
    say("a tool call instead"): assistant("", call("c", "port", path="module_1")),
}


def faults(history: list[Message], new_manager: Callable[..., CompactionManager]) -> list[tuple[int, str, str, int]]:
    """For each fault: in which layer, what it is, the reason that was given, and how many files were added."""
    runs = [ToolResult(f"call_{n}", "run_tests", {}, "completed", "ok\n" * 11_000) for n in (1, 2)]
    full = patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full"))
    rows = [_spill(say("an id comes twice"), new_manager(ids=lambda: "same"), runs)]
    with full:
        rows.append(_spill(say("the disk is full"), new_manager(), runs))
        rows.append(_summary(say("the disk is full"), new_manager(TIGHT), history))
    for fault, answer in ANSWERS.items():
        rows.append(_summary(fault, new_manager(TIGHT, lambda _, answer=answer: answer), history))
    rows.append(_summary(say("refused twice"), new_manager(), history, tries=1))
    return rows


def _spill(fault: str, manager: CompactionManager, results: Sequence[ToolResult]) -> tuple[int, str, str, int]:
    before = _files(manager)
    output = manager.compact_tool_results(results).results[0].output
    return 1, fault, output.split(", so ")[0], _files(manager) - before


def _summary(
    fault: str, manager: CompactionManager, history: list[Message], *, tries: int = 0
) -> tuple[int, str, str, int]:
    from agentlab.widgets.sync import run_sync

    before = _files(manager)
    asked: Any = manager.compact_on_prompt_too_long(history, retry_count=tries) if tries else manager.prepare(history)
    try:
        reason = str(run_sync(asked).why).split(" The transcript is kept")[0]
    except AgentLabError as error:
        reason = f"{type(error).__name__}: {error}"
    return 4, fault, reason, _files(manager) - before


def _files(manager: CompactionManager) -> int:
    return len(os.listdir(manager.store.root))
