"""SWE-agent trajectories (`.traj`): one JSON document whose `history` is a list of messages with fields of its own.

A tool message carries `tool_call_ids`, a list. Older files have no calls: the action stands in the text, and what the
environment answered is the next user's message, which gets `origin: "observation"`. A demonstration is nobody's words.
`trajectory` repeats the history step by step and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentlab.transcripts.builder import Tally, Transcript
from agentlab.transcripts.openai import KEYS, Messages
from agentlab.transcripts.source import Source

_OWN = KEYS | {"agent", "message_type", "tool_call_ids", "is_demo"}


def read(source: Source, tally: Tally) -> Iterator[Transcript]:
    """The one session of a trajectory. Lines are the numbers of the messages, from 1."""
    document: dict[str, Any] = source.document
    reader = Messages("swe-agent", tally, observations=True)
    info = document.get("info")
    if isinstance(info, dict):
        reader.out.tell(exit_status=info.get("exit_status"))
    for number, message in enumerate(document["history"], 1):
        ids = message.get("tool_call_ids") if isinstance(message, dict) else None
        if isinstance(message, dict) and message.get("is_demo") is True:
            message = {**message, "origin": "demonstration"}
        if isinstance(ids, list) and ids:
            reader.take({**message, "tool_call_id": ids[0]}, number, keep=_OWN)
            for id in ids[1:]:  # one observation answers them all
                reader.take({"role": "tool", "tool_call_id": id, "content": ""}, number)
        else:
            reader.take(message, number, keep=_OWN)
    if reader.out.size:
        yield reader.out.done()
