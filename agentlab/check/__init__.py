"""Exercises that check themselves: one file per exercise, and what they share (`report`).

`check.assembler(MyAssembler)` says what passes, what fails and why, and then lets the class run an agent.
`check.assembler.hint(1)` gives a hint; `check.assembler.turn(MyAssembler)` is that agent's turn, to watch.
`check.progress()` is a table of what has been tried and solved.
"""

from agentlab.check.agent_wiring import wiring
from agentlab.check.cache import ledger
from agentlab.check.cache_culprit import culprit
from agentlab.check.cache_threshold import threshold
from agentlab.check.compaction import split_index
from agentlab.check.compaction_rolling import rolling_summary
from agentlab.check.compaction_stable import stable_summary
from agentlab.check.disclosure import resolve_tools
from agentlab.check.disclosure_permission import target_permission
from agentlab.check.interrupt import repair
from agentlab.check.interrupt_steering import steering
from agentlab.check.interrupt_wording import wording
from agentlab.check.journal import compacted_event
from agentlab.check.journal_chain import broken_chain
from agentlab.check.journal_replay import replay
from agentlab.check.layers import snip
from agentlab.check.layers_micro import micro
from agentlab.check.layers_spill import when_to_spill
from agentlab.check.loop import list_dir
from agentlab.check.mcp import answer_ping
from agentlab.check.mcp_lines import read_lines
from agentlab.check.progress import Progress, progress
from agentlab.check.report import Exercise, Finding, Hint, Live, Report
from agentlab.check.sessions import usage_once
from agentlab.check.spill import tail_excerpt
from agentlab.check.spill_collector import collector
from agentlab.check.stream import assembler
from agentlab.check.surface import prune
from agentlab.check.surface_cut import cut

__all__ = [
    "Exercise", "Finding", "Hint", "Live", "Progress", "Report",
    "answer_ping", "assembler", "broken_chain", "collector", "compacted_event", "culprit", "cut", "ledger", "list_dir",
    "micro", "progress", "prune", "read_lines", "repair", "replay", "resolve_tools", "rolling_summary", "snip",
    "split_index", "stable_summary", "steering", "tail_excerpt", "target_permission", "threshold", "usage_once",
    "when_to_spill", "wiring", "wording",
]  # fmt: skip
