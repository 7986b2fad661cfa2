"""What the model reads about tools outside the array: the listing, and the text of a search's result.

    deferred tools -> listing -> the system prompt: a line each, sorted
    hits -> found -> the result of search_tool: name, description and schema of each, at most 8,000 characters

The same tools give the same text. Descriptions may come from a stranger's server: each stays on one line, so that none
can pass for another tool's. (Seed 003, progressive disclosure: the schema travels as the text of a result.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlab.messages import canonical_json
from agentlab.tools import Tool
from agentlab.toolsearch import Hits, summary

SEARCH, RUN = "search_tool", "run_tool"
LISTING_CHARS = 8_000
RESULT_CHARS = 8_000
NAMES_CHARS = 2_000
DESCRIPTION_CHARS = 600
SCHEMA_CHARS = 3_000
_NAME_CHARS = 100
_REQUIRED_CHARS = 500


def listing(tools: Sequence[Tool]) -> str:
    """Name and summary of each tool, a line each, at most 8,000 characters; "" without tools."""
    if not tools:
        return ""
    title = f"More tools. Look one up with {SEARCH}, run it with {RUN}:"
    return "\n".join(_fitting([title], [f"- {tool.name}: {summary(tool)}" for tool in tools], LISTING_CHARS))


def found(query: str, hits: Hits, tools: Sequence[Tool]) -> tuple[str, list[str]]:
    """The text of a search's result, and the names of the tools in it. Without a hit it names some of `tools`."""
    said = f"{' '.join(query.split())[:80]!r}"
    if not hits:
        title = f"No tool matches {said}. The search compares words, in the language of the tools. There are:"
        return "\n".join(_fitting([title], [tool.name for tool in tools], NAMES_CHARS)), []
    blocks = [_described(hit.tool) for hit in hits]
    title = f"Found for {said}, best first. Run one with {RUN}, its arguments as input."
    parts = _fitting([title], blocks, RESULT_CHARS)
    return "\n\n".join(parts), [hit.name for hit, block in zip(hits, blocks, strict=True) if block in parts]


def _fitting(parts: Sequence[str], more: Sequence[str], limit: int) -> list[str]:
    """These parts, and as many more as fit into `limit` characters; the last one says how many did not."""
    kept, room = list(parts), limit - sum(len(part) + 2 for part in parts) - 40
    for number, part in enumerate(more):
        room -= len(part) + 2
        if room < 0:
            return [*kept, f"[{len(more) - number:,} more]"]
        kept.append(part)
    return kept


def _described(tool: Tool) -> str:
    text = " ".join(tool.description.split())
    text = text if len(text) <= DESCRIPTION_CHARS else text[: DESCRIPTION_CHARS - 1] + "…"
    return f"{tool.name}: {text}\ninput: {_schema(tool.parameters)}"


def _schema(parameters: dict[str, Any]) -> str:
    """The schema as JSON; where that is too long, only the names of the arguments, as many as fit."""
    text = canonical_json(parameters)
    if len(text) <= SCHEMA_CHARS:
        return text
    required = ", ".join(_names(parameters.get("required")))[:_REQUIRED_CHARS] or "nothing"
    start = f"the schema has {len(text):,} characters and is not shown. Required: {required}. Arguments: "
    return start + ", ".join(_fitting([], _names(parameters.get("properties")), SCHEMA_CHARS - len(start)))


def _names(value: Any) -> list[str]:
    """Of an object its keys, of an array its items: a server's schema may hold anything."""
    return [str(name)[:_NAME_CHARS] for name in value] if isinstance(value, dict | list) else []
