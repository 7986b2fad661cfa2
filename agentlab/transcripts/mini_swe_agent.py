"""mini-swe-agent trajectories (`.traj.json`): a bare list of messages, or an object with `messages` and `info`.

Without tool calls there is one command in each reply, and every user's message behind a reply is the command's output
(`origin: "observation"`). Newer files keep the provider's whole response in `extra`, and with it the usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentlab.transcripts.builder import Tally, Transcript
from agentlab.transcripts.openai import KEYS, Messages
from agentlab.transcripts.source import Source


def read(source: Source, tally: Tally) -> Iterator[Transcript]:
    """The one session of a trajectory. Lines are the numbers of the messages, from 1."""
    document: Any = source.document
    messages = document if isinstance(document, list) else document["messages"]
    reader = Messages("mini-swe-agent", tally, observations=True)
    if isinstance(document, dict) and isinstance(info := document.get("info"), dict):
        reader.out.tell(exit_status=info.get("exit_status"), version=info.get("mini_version"))
    for number, message in enumerate(messages, 1):
        reader.take(message, number, keep=KEYS | {"extra"})
        extra = message.get("extra") if isinstance(message, dict) else None
        response = extra.get("response") if isinstance(extra, dict) else None
        if isinstance(extra, dict) and isinstance(response, dict):
            reader.out.usage(response.get("usage"), number, at=extra.get("timestamp"), model=response.get("model"))
    if reader.out.size:
        yield reader.out.done()
