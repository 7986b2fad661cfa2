"""Session files of other products, read into the canonical history: a list of messages in the OpenAI chat shape.

    file -> source (text? one document or lines? whose?) -> one reader per format -> Transcript
                                                            history, what was dropped, recorded usages

Nothing is recognised by the wording of a content: only record types, flags and ids count. What has no place in a
history (thinking, images, events, records of unknown types) is counted with its lines. Results are paired with their
calls by id, in file order; what is still unpaired stays so: `pairing.problems` names it, `pairing.repair` mends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from agentlab.transcripts import claude_code, codex, mini_swe_agent, openai, pi, swe_agent
from agentlab.transcripts.builder import Break, Dropped, Tally, Transcript, Used, visible
from agentlab.transcripts.source import UNSUPPORTED, Source, TranscriptError, UnsupportedFormat

__all__ = [
    "FORMATS", "Break", "Dropped", "Transcript", "TranscriptError", "UnsupportedFormat", "Used", "detect", "read",
    "sessions", "visible",
]  # fmt: skip

_READERS: dict[str, Callable[[Source, Tally], Iterator[Transcript]]] = {
    "claude-code": claude_code.read,
    "codex": codex.read,
    "openai": openai.read,
    "swe-agent": swe_agent.read,
    "mini-swe-agent": mini_swe_agent.read,
    "pi": pi.read,
}
FORMATS = tuple(_READERS)


def detect(path: str | Path) -> str:
    """The format of a file: one of `FORMATS`, or the name of a product whose files are not read.

    Raises TranscriptError for a file that cannot be opened, is empty or binary, or is no session file.
    """
    with closing(Source(path)) as source:
        return source.format


def sessions(path: str | Path, *, on_bytes: Callable[[int], None] | None = None) -> Iterator[Transcript]:
    """All sessions in a file, one after the other: the main one first, then its sub-agents or the other conversations.

    `on_bytes` is told how many bytes were read, now and then. Lines above 16 MB are dropped and counted. A session that
    takes more than about 130 MB of memory comes in parts (`meta["part"]`), cut where no call is open; one JSON document
    is read up to 32 MB. Raises TranscriptError (see `detect`), also for a file without any message, and
    UnsupportedFormat for a known format that is not read.
    """
    with closing(Source(path, on_bytes=on_bytes)) as source:
        if source.format in UNSUPPORTED:
            raise UnsupportedFormat(source.format)
        found = 0
        tally = Tally()
        source.damage = tally.drop
        for transcript in _READERS[source.format](source, tally):
            found += 1
            yield transcript
            del transcript  # before the next one is made
        if not found:
            raise TranscriptError("there is no message in it")


def read(path: str | Path) -> Transcript:
    """The main session of a file; other sessions in it are counted in `dropped`. Raises as `sessions` does."""
    every = sessions(path)
    first = next(every)
    others = sum(1 for _ in every)
    if not others:
        return first
    more = Dropped("another session in this file: see transcripts.sessions", others, ())
    return replace(first, dropped=(*first.dropped, more))
