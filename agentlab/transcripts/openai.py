"""Lists of messages in the OpenAI chat shape, as they are: nothing is moved, so that every problem shows.

[message, ...]                        a session                    {"messages": [...]}      a session
[{"traj": [...]}, ...]                one session each (tau-bench, fine-tuning files)
a message on each line                a session
{"messages": [...]} on each line      a session each; with a `model` they are requests of one session, and
                                      each is compared with the one before it (`Transcript.breaks`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agentlab.errors import AgentLabError
from agentlab.prefix import diff
from agentlab.transcripts.builder import Break, Builder, Tally, Transcript, call
from agentlab.transcripts.source import Source

KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call", "origin"})
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
BREAKS_TOLD = 1000


def read(source: Source, tally: Tally) -> Iterator[Transcript]:
    """Every session of a document or of a file of lines."""
    if source.document is not None:
        yield from _of_document(source.document, tally)
        return
    lines = Messages("openai", tally)
    requests: _Requests | None = None
    for line, record in source.objects():
        messages = record.get("messages")
        if not isinstance(messages, list):
            lines.take(record, line)
            if tally.low and lines.out.settled:
                yield lines.out.part()
        elif isinstance(record.get("model"), str):
            requests = requests or _Requests(tally)
            requests.take(record, messages, line)
        else:
            yield from _session(messages, Tally(), line)
    if requests:
        yield from requests.done()
    if lines.out.size:
        yield lines.out.done()


def _of_document(document: Any, tally: Tally) -> Iterator[Transcript]:
    if isinstance(document, dict):
        yield from _session(document["messages"], tally, 1)
        return
    whole = [
        next((e[k] for k in ("traj", "messages") if isinstance(e.get(k), list)), None) for e in map(_dict, document)
    ]
    if not any(messages is not None for messages in whole):
        yield from _session(document, tally, 1)
        return
    for number, messages in enumerate(whole, 1):
        if messages is None:
            tally.drop("an entry that is no session", number)
        else:
            yield from _session(messages, Tally(), number)


def _dict(entry: Any) -> dict[str, Any]:
    return entry if isinstance(entry, dict) else {}


def _session(messages: list[Any], tally: Tally, line: int) -> Iterator[Transcript]:
    reader = Messages("openai", tally)
    for message in messages:
        reader.take(message, line)
    if reader.out.size:
        yield reader.out.done()


class Messages:
    """Messages in the OpenAI shape, one after the other; `observations`: users' messages after a reply are the
    environment's, as in trajectories without tool calls (`origin: "observation"`)."""

    def __init__(self, format: str, tally: Tally, *, observations: bool = False) -> None:
        self.out, self.tally, self.observations = Builder(format, tally), tally, observations
        self.legacy = 0
        self.replied = False

    def take(self, message: Any, line: int, *, keep: frozenset[str] = KEYS) -> None:
        """Add one message. `keep` are the keys that are not counted as dropped."""
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            role = message.get("role") if isinstance(message, dict) else None
            return self.tally.drop("an entry that is no message" if role is None else f"message of role {role}", line)
        for key in [key for key in message if key not in keep]:
            self.tally.drop(f"field {key}", line)
        role, text = message["role"], self.tally.flat(message.get("content"), line)
        if role == "assistant":
            self.replied = True
            self.out.reply(text, self.calls(message), line)
            self.out.usage(message.get("usage"), line)
        elif role in ("tool", "function"):
            id = message.get("tool_call_id") if role == "tool" else f"function_{self.legacy}"
            self.out.put(id if isinstance(id, str) else "", text, line)
        else:
            seen = self.observations and self.replied and role == "user"
            origin = message.get("origin")
            given = origin[:40] if isinstance(origin, str) else ""
            self.out.words(role, text, line, origin=given or ("observation" if seen else ""))

    def calls(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The tool calls, also the single one in the old form `function_call`, which has no id."""
        given = message.get("tool_calls")
        calls = []
        for item in given if isinstance(given, list) else []:
            function = _dict(_dict(item).get("function"))
            calls.append(call(_dict(item).get("id"), function.get("name"), function.get("arguments")))
        if isinstance(old := message.get("function_call"), dict):
            self.legacy += 1
            calls.append(call(f"function_{self.legacy}", old.get("name"), old.get("arguments")))
        return calls


class _Requests:
    """Recorded request bodies: the last one is the history, and each is compared with the one before it."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.last: dict[str, Any] = {}
        self.line = self.count = 0
        self.breaks: list[Break] = []

    def take(self, record: dict[str, Any], messages: list[Any], line: int) -> None:
        body: dict[str, Any] = {key: record[key] for key in ("system", "tools", "messages") if key in record}
        try:
            found = diff(self.last, body) if self.last else None
        except AgentLabError:
            found = None
            self.tally.drop("a comparison of two requests that are no messages", line)
        if found and found.culprit and len(self.breaks) < BREAKS_TOLD:
            lost = found.previous_size - found.reused
            self.breaks.append(Break(line, found.culprit, found.where or found.culprit, lost))
        self.last, self.line, self.count = body, line, self.count + 1

    def done(self) -> Iterator[Transcript]:
        for transcript in _session(self.last["messages"], self.tally, self.line):
            meta = {**transcript.meta, "requests": self.count}
            yield replace(transcript, meta=meta, breaks=tuple(self.breaks))
