"""Codex CLI rollouts (`~/.codex/sessions/**/rollout-*.jsonl`): items of the Responses API, and events for the screen.

1. What the model saw are the items (`response_item`). Events repeat the person's and the assistant's text; of them only
   `token_count` is used. A `token_count` that repeats the running total belongs to no new request.
2. Items that follow one another without a result or a person's words between them are one reply.
3. `compacted` replaces what the model sees: its message, if any, gets `origin: "compaction"`, and its
   `replacement_history` is a view of the log, so it is counted only; in a file that begins with it, it is the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentlab.transcripts.builder import Builder, Tally, Transcript, call
from agentlab.transcripts.source import Source

_ARGUMENTS = ("arguments", "input", "action")


def read(source: Source, tally: Tally) -> Iterator[Transcript]:
    """The one session of a rollout."""
    file = _Rollout(tally)
    for line, record in source.objects():
        file.take(record, line)
        if tally.low and file.out.settled:
            yield file.out.part()
    if file.out.size:
        yield file.out.done()


class _Rollout:
    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.out = Builder("codex", tally)
        self.replies = 0
        self.spoken: Any = None  # the last running total of tokens

    def take(self, record: dict[str, Any], line: int) -> None:
        kind, payload = record.get("type"), record.get("payload")
        if not isinstance(payload, dict):
            if kind is None or "payload" in record:
                return self.tally.drop("a record without a payload" if kind else "a record without a type", line)
            return self.item(record, line)  # the form before there were payloads
        if kind == "session_meta":
            self.session(payload, line)
        elif kind == "response_item":
            self.item(payload, line)
        elif kind == "compacted":
            self.compacted(payload, line)
        elif kind == "turn_context":
            self.out.model = str(payload.get("model") or self.out.model)[:80]
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self.tokens(payload.get("info"), record.get("timestamp"), line)
        elif kind == "event_msg":
            if payload.get("type") == "turn_aborted":
                self.out.count("aborted")
            self.tally.drop(f"event {payload.get('type')}", line)
        else:
            self.tally.drop(f"record {kind}", line)

    def session(self, payload: dict[str, Any], line: int) -> None:
        self.out.tell(session=payload.get("id"), version=payload.get("cli_version"), started=payload.get("timestamp"))
        base = payload.get("base_instructions")
        text = self.tally.flat(base, line) if isinstance(base, dict | str) else ""
        if text and not self.out.size:
            self.out.words("system", text, line)

    def item(self, item: dict[str, Any], line: int) -> None:
        kind, role, id = str(item.get("type")), item.get("role"), item.get("call_id")
        if kind == "message" and role == "assistant":
            self.out.reply(self.tally.flat(item.get("content"), line), [], line, key=self.replies)
        elif kind == "message" and role in ("user", "developer", "system"):
            self.replies += 1
            self.out.words(role, self.tally.flat(item.get("content"), line), line)
        elif kind.endswith("_call") and "call_id" in item:
            given: Any = next((item[key] for key in _ARGUMENTS if key in item), {})
            if kind == "custom_tool_call":
                given = {"input": given}  # free text, which a chat API has no form for
            name = item.get("name") or kind.removesuffix("_call")
            self.out.reply("", [call(id, name, given)], line, key=self.replies)
        elif kind.endswith("_output") and "call_id" in item:
            self.replies += 1
            said = item.get("output", item.get("tools"))
            self.out.result(id, self.tally.flat(said, line), line)
        else:
            self.tally.drop(f"item {kind}" if kind != "message" else f"message of {role}", line)

    def compacted(self, payload: dict[str, Any], line: int) -> None:
        entries = payload.get("replacement_history")
        entries = entries if isinstance(entries, list) else []
        self.replies += 1
        if self.out.size:
            if entries:
                self.tally.drop("an entry of a replacement_history", line, len(entries))
        else:
            for entry in entries:
                if isinstance(entry, dict):
                    self.item(entry, line)
        self.out.compaction()
        message = payload.get("message")
        if isinstance(message, str) and message.strip():
            self.out.words("user", message, line, origin="compaction")

    def tokens(self, info: Any, at: Any, line: int) -> None:
        last = info.get("last_token_usage") if isinstance(info, Mapping) else None
        if not isinstance(last, Mapping):
            return self.tally.drop("event token_count without a count", line)
        if (total := info.get("total_token_usage")) is not None and total == self.spoken:
            return self.tally.drop("event token_count, repeated", line)
        self.spoken = total
        details = {"cached_tokens": last.get("cached_input_tokens")}
        details |= {"cache_write_tokens": last.get("cache_write_input_tokens")}
        usage = {"input_tokens": last.get("input_tokens"), "output_tokens": last.get("output_tokens")}
        self.out.usage(usage | {"input_tokens_details": details}, line, at=at)
