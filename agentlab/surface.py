"""The surface of a session: the log keeps everything, the model sees a view that prunings and checkpoints make short.

    message, message, ...        -> [Surface]   -> nodes -> history()       the log as events, the view by replay
    a long tool result           -> [Pruner]    -> head, marker, tail       one node in the place of one; no model
    old nodes                    -> [Compactor] -> one checkpoint           one node in the place of many; a summary
    a turn of the loop           -> [SurfaceManager]: sync, prune, compact, send the view

1. The log only grows. A replacement is an event that names the nodes it stands for by their sequence numbers, so what
   it replaced can always be found, and going back is an event too.
2. Pruning is tried first, since it costs no model call and keeps its text verbatim; a summary is the last resort.
3. Under pressure, before a step, the view is measured after every measure that was taken. After a refusal the request
   is sent again as long as the view changes. Both are bounded, and end in an error that says what to do.
4. What a person asks for by hand (`compact_now`, `compact_region`) prunes nothing, and never fails in silence.

The pieces live in `surfaceview`, `pruner`, `compactor` and `surfacemanager`; all their names can be imported from here.
(Seed 002.)
"""

from __future__ import annotations

from agentlab.compactor import Checkpoint, CheckpointError, Compactor, Relief, checkpoint_node
from agentlab.pruner import MARKER, Pruned, Pruner, prune_filling, tokens_of
from agentlab.surfacemanager import SurfaceManager, sync
from agentlab.surfaceview import Node, Replacement, Surface, SurfaceError

__all__ = [
    "MARKER", "Checkpoint", "CheckpointError", "Compactor", "Node", "Pruned", "Pruner", "Relief", "Replacement",
    "Surface", "SurfaceError", "SurfaceManager", "checkpoint_node", "prune_filling", "sync", "tokens_of",
]  # fmt: skip
