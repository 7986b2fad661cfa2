"""`agentlab chat`: the agent in a terminal, or through a pipe.

    arguments, environment -> opening (model, session, servers) -> session (turns, commands, questions, Ctrl+C)
                                                                     |            |
                                                       terminal (prompt_toolkit)  plain (a pipe)

| module | what is in it |
|---|---|
| `opening` | from the environment and a session's log to an agent |
| `session`, `commands` | what a chat does, whatever it is shown on |
| `shown` | what a model or a tool says, fit for a terminal |
| `terminal`, `plain` | the two screens |

The terminal needs the packages of the extra `chat`; they are imported when there is one, and a pipe does without.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agentlab.chat.opening import Opener

PACE_S = 0.02


def main(
    *,
    folder: str = ".",
    resume: str | None = None,
    offline: bool = False,
    model: str | None = None,
    price_list: str | None = None,
) -> int:
    """Run a chat on this process's terminal, or on its pipes. Returns the exit status. Raises AgentLabError.

    In a terminal the offline model speaks at a pace that can be watched.
    """
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    opener = Opener(folder, offline=offline, model=model, price_list=price_list, pace=PACE_S if interactive else 0.0)
    if interactive:
        from agentlab.chat import terminal

        return asyncio.run(terminal.run(opener, resume=resume))
    from agentlab.chat import plain

    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
    return asyncio.run(plain.run(opener, sys.stdin.fileno(), sys.stdout, sys.stderr, resume=resume))
