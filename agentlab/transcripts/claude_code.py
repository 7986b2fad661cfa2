"""Claude Code project files (`~/.claude/projects/**/*.jsonl`): one record per content block of a reply, and much else.

1. The records of one reply share `message.id`, with others in between. They become one message where the first part
   stood. Their usages differ; the last one counts.
2. Results hang on their own calls, so parent links fork. They are paired by id, in file order; a parent link only
   tells to which sub-agent a record belongs. After a rewind both branches stay, since the log holds both.
3. A compaction is a new root (`compact_boundary`) and a summary (`isCompactSummary`): `origin: "compaction"`.
4. `isMeta` marks what the product wrote in the person's name: `origin: "meta"`. An interrupt is ordinary text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentlab import jsonio
from agentlab.messages import Message
from agentlab.transcripts.builder import Builder, Tally, Transcript, call
from agentlab.transcripts.source import Source

MAIN = ""


def read(source: Source, tally: Tally) -> Iterator[Transcript]:
    """The main thread, then each sub-agent whose records stand in the same file."""
    file = _File(tally)
    for line, record in source.objects():
        file.take(record, line)
        if tally.low and file.threads[file.last].settled:
            yield from file.parts()
    threads = [thread for _, thread in sorted(file.threads.items(), key=lambda item: item[0] != MAIN) if thread.size]
    for thread in threads:
        yield thread.done()


class _File:
    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.threads: dict[str, Builder] = {}
        self.side: dict[Any, str] = {}  # the thread of each record of a sub-agent
        self.seen: set[int] = set()
        self.last = MAIN
        self.typed: Counter[str] = Counter()
        self.announced: set[Builder] = set()  # a boundary came, its summary not yet

    def parts(self) -> Iterator[Transcript]:
        """What there is of every thread, to make room."""
        for thread in self.threads.values():
            if thread.size:
                yield thread.part()

    def take(self, record: dict[str, Any], line: int) -> None:
        kind, subtype, message = record.get("type"), record.get("subtype"), record.get("message")
        thread = self.thread(record)
        thread.tell(session=record.get("sessionId"), version=record.get("version"), started=record.get("timestamp"))
        if kind == "system" and subtype == "compact_boundary":
            self.announced.add(thread)
            return thread.compaction()
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            name = f"{kind}/{subtype}" if isinstance(subtype, str) else str(kind)
            return self.tally.drop(f"record {name}" if kind else "a record without a type", line)
        if self.repeated(record, message):
            return self.tally.drop("a repeated record", line)
        if record.get("isApiErrorMessage"):
            return self.tally.drop("an API error shown as a message", line)
        if "content" not in message:
            return self.tally.drop("a message without content", line)
        if kind == "assistant":
            self.assistant(thread, record, message, line)
        else:
            self.user(thread, record, message, line)

    def thread(self, record: dict[str, Any]) -> Builder:
        """The main thread, or a sub-agent's: by its id, or by the thread of its parent."""
        key = MAIN
        if record.get("isSidechain") is True:
            uuid, agent = record.get("uuid"), record.get("agentId")
            parent = record.get("parentUuid") or record.get("logicalParentUuid")
            known = self.side.get(parent) if isinstance(parent, str) else None
            key = f"agent {agent}" if isinstance(agent, str) else known or f"root {uuid}"
            if isinstance(uuid, str):
                self.side[uuid] = key
        self.last = key
        if key not in self.threads:
            self.threads[key] = Builder("claude-code", self.tally)
            if key != MAIN:
                self.threads[key].count("sub_agent", len(self.threads.keys() - {MAIN}))
        return self.threads[key]

    def repeated(self, record: dict[str, Any], message: Message) -> bool:
        """Whether the same record, with the same content, came before (a session that was resumed or compacted)."""
        uuid = record.get("uuid")
        if not isinstance(uuid, str):
            return False
        digest = hash((uuid, jsonio.dumps(message)))
        known = digest in self.seen
        self.seen.add(digest)
        return known

    def assistant(self, thread: Builder, record: dict[str, Any], message: Message, line: int) -> None:
        texts, calls = [], []
        for block in _blocks(message.get("content")):
            kind = block.get("type")
            if kind == "text" and isinstance(block.get("text"), str):
                texts.append(block["text"])
            elif kind == "tool_use":
                calls.append(call(block.get("id"), block.get("name"), block.get("input", {})))
            else:
                self.tally.drop(f"block {kind}", line)
        key = message.get("id") if isinstance(message.get("id"), str) else None
        if texts or calls:
            thread.reply("\n".join(texts), calls, line, key=key)
        if message.get("model") != "<synthetic>":  # no request was made
            model, at = message.get("model"), record.get("timestamp")
            thread.usage(message.get("usage"), line, at=at, key=key, model=model)

    def user(self, thread: Builder, record: dict[str, Any], message: Message, line: int) -> None:
        summary, meta = record.get("isCompactSummary") is True, record.get("isMeta") is True
        if summary and thread not in self.announced:
            thread.compaction()
        if summary:
            self.announced.discard(thread)
        texts, results = [], 0
        for block in _blocks(message.get("content")):
            if block.get("type") == "tool_result":
                results += 1
                thread.result(block.get("tool_use_id"), self.tally.flat(block.get("content"), line), line)
                if block.get("is_error") is True:
                    thread.count("failed")
            elif block.get("type") in ("text", "image", "document"):
                texts.append(self.tally.flat(block, line))
            else:
                self.tally.drop(f"block {block.get('type')}", line)
        if texts or not results:
            thread.words("user", "\n".join(texts), line, origin="compaction" if summary else "meta" if meta else "")
        parent = record.get("parentUuid")
        if texts and not (results or meta or summary) and isinstance(parent, str):
            self.typed[parent] += 1
            if self.typed[parent] == 2:
                thread.count("rewinds")


def _blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a content; a bare text is one."""
    parts = content if isinstance(content, list) else [content]
    return [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts if part is not None]
