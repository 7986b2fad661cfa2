"""Micro: keep the newest tool exchanges whole, and of older ones only that they took place.

    assistant(calls) tool tool | assistant(calls) tool tool | ... | the last 3 exchanges
    assistant(calls) note note | assistant(calls) note note | ... | the last 3 exchanges, untouched

Calls and ids stay, so every call keeps its result. A note is short and always the same, so the bytes of what was
replaced once never change again. A result that was saved keeps the line that points to its file.
(Seed 001, layer three.)
"""

from __future__ import annotations

from collections.abc import Sequence

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.messages import Message, calls_of, groups
from agentlab.pairing import repair
from agentlab.spillstore import name_of
from agentlab.summary import text_of

NOTE = "[An older tool result stood here. Run the tool again if you need it.]"
SAVED_NOTE = "[An older tool result stood here, and all of it is in a file.]"
POINTER_CHARS = 1_000


def micro(history: Sequence[Message], keep: int = 3) -> list[Message]:
    """The history with a note instead of each tool result before the last `keep` exchange groups.

    Short results are replaced too, even where the note is longer: what becomes of a result depends on nothing but its
    place. Only a message that still has its `output_path` keeps its pointer, so do not pass what `wire` has stripped.
    Results that say that a
    call was interrupted (`origin: "repair"`) stay: a note would claim that it ran. A history with pairing problems is
    repaired first; the input is not changed. Takes linear time. Raises AgentLabError for a negative `keep`.
    """
    if keep < 0:
        raise AgentLabError("micro cannot keep a negative number of exchanges. Use 0 to replace every result.")
    after = repair(history).history
    exchanges = [group for group in groups(after) if calls_of(group.messages[0])]
    for group in exchanges[: max(0, len(exchanges) - keep)]:
        for at in range(group.start + 1, group.end):
            if after[at].get("role") == "tool":
                after[at] = noted(after[at])
    return after


def noted(message: Message) -> Message:
    """A tool message with a note for its content, or the very same message if that changes nothing."""
    if message.get("origin") == "repair":
        return message
    path = message.get("output_path")
    pointer = _pointer(text_of(message.get("content")), path) if isinstance(path, str) and path else ""
    content = f"{SAVED_NOTE}\n{pointer}" if pointer else NOTE
    return message if message.get("content") == content else {**message, "content": content}


def _pointer(content: str, path: str) -> str:
    """The last line that names the file, as it stands there; where there is none, a line of our own."""
    name = name_of(path)
    at = content.rfind(name) if name and "\n" not in name else -1
    line = content[content.rfind("\n", 0, at) + 1 :].split("\n", 1)[0] if at >= 0 else ""
    return line if 0 < len(line) <= POINTER_CHARS else f"[Read it with read_file({jsonio.dumps(path)}).]"
