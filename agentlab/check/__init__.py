"""Exercises that check themselves: one file per exercise, and what they share (`report`).

`check.assembler(MyAssembler)` says what passes, what fails and why, and then lets the class run an agent.
`check.assembler.hint(1)` gives a hint; `check.assembler.turn(MyAssembler)` is that agent's turn, to watch.
"""

from agentlab.check.interrupt import repair
from agentlab.check.interrupt_steering import steering
from agentlab.check.interrupt_wording import wording
from agentlab.check.loop import list_dir
from agentlab.check.report import Exercise, Finding, Hint, Live, Report
from agentlab.check.spill import tail_excerpt
from agentlab.check.spill_collector import collector
from agentlab.check.stream import assembler

__all__ = [
    "Exercise", "Finding", "Hint", "Live", "Report",
    "assembler", "collector", "list_dir", "repair", "steering", "tail_excerpt", "wording",
]  # fmt: skip
