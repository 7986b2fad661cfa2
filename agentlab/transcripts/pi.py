"""pi sessions (JSONL): messages with blocks, results of the role `toolResult`, compactions.

An aborted reply may leave calls without results; they stay so. Its usage is all zeros and is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentlab.transcripts.builder import Builder, Tally, Transcript, call
from agentlab.transcripts.source import Source

_USAGE = {
    "input": "input_tokens",
    "cacheRead": "cache_read_input_tokens",
    "cacheWrite": "cache_creation_input_tokens",
    "output": "output_tokens",
}


def read(source: Source, tally: Tally) -> Iterator[Transcript]:
    """The one session of a file."""
    out = Builder("pi", tally)
    for line, record in source.objects():
        kind, message = record.get("type"), record.get("message")
        if kind == "session":
            out.tell(session=record.get("id"), started=record.get("timestamp"))
        elif kind == "message" and isinstance(message, dict):
            _message(out, record, message, line)
        elif kind == "compaction" and isinstance(record.get("summary"), str):
            out.compaction()
            out.words("user", record["summary"], line, origin="compaction")
        else:
            tally.drop(f"record {kind}" if kind else "a record without a type", line)
        if tally.low and out.settled:
            yield out.part()
    if out.size:
        yield out.done()


def _message(out: Builder, record: dict[str, Any], message: dict[str, Any], line: int) -> None:
    role, content = message.get("role"), message.get("content")
    if role == "user":
        out.words("user", out.tally.flat(content, line), line)
    elif role == "toolResult":
        out.result(message.get("toolCallId"), out.tally.flat(content, line), line)
        out.count("failed", int(message.get("isError") is True))
    elif role == "assistant":
        _reply(out, content, line)
        if message.get("stopReason") == "aborted":
            out.count("aborted")
        usage = message.get("usage")
        if isinstance(usage, Mapping) and any(usage.get(key) for key in _USAGE):
            counts = {ours: usage.get(theirs) for theirs, ours in _USAGE.items()}
            out.usage(counts, line, at=record.get("timestamp"), model=message.get("model"))
    else:
        out.tally.drop(f"message of role {role}", line)


def _reply(out: Builder, content: Any, line: int) -> None:
    texts, calls = [], []
    for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "toolCall":
            calls.append(call(block.get("id"), block.get("name"), block.get("arguments", {})))
        elif kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        else:
            out.tally.drop(f"block {kind}", line)
    if texts or calls:
        out.reply("\n".join(texts), calls, line)
