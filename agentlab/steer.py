"""Words that a person slips in while a turn runs.

A chat API refuses a user message between a tool call and its results. So words typed during a batch wait here, and
the loop drains them behind the last result of the batch, before the next request. (Seed 000, the exercise on steering.)
"""

from __future__ import annotations

from queue import Empty, SimpleQueue

from agentlab import messages
from agentlab.errors import AgentLabError


class SteerQueue:
    """A queue of words, first in, first out. Any thread may `put`; nothing blocks.

    An empty queue is falsy, as every empty container is: ask `steer is not None` to know whether there is a queue.
    """

    def __init__(self) -> None:
        self._words: SimpleQueue[str] = SimpleQueue()

    def put(self, text: str) -> None:
        """Queue what the person typed, verbatim and at any length. Text without a visible character is ignored.

        Raises AgentLabError for what is no text.
        """
        if not isinstance(text, str):
            raise AgentLabError(f"Only text can be slipped in, not {type(text).__name__}.")
        if text.strip():
            self._words.put(text)

    def drain(self) -> list[messages.Message]:
        """Take out what has been put so far, in order, as user messages without `origin`: a person wrote them."""
        drained: list[messages.Message] = []
        for _ in range(len(self)):  # counted first: somebody who keeps typing cannot keep the turn here
            try:
                drained.append(messages.user(self._words.get_nowait()))
            except Empty:  # another drain was faster
                break
        return drained

    def __len__(self) -> int:
        return self._words.qsize()
