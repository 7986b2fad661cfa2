"""What a tool call at an MCP server gave, as text for the model.

    {"content": [text, image, resource, ...], "structuredContent", "isError"} -> McpResult(ok, text)

Text passes whole: the output budget shortens it as it does every other output. What a model cannot read as text
(images, sound, binary resources) is described instead. `isError` decides before `structuredContent`: a failure is what
its text says. (MCP, "Tools: tool result"; seed 003.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentlab import jsonio

_FIELD_CHARS = 200
_PART_CHARS = 2_000


@dataclass(frozen=True)
class McpResult:
    """`text` is for the model. `ok` is False when the tool said that it failed. `raw` is the server's own result."""

    ok: bool
    text: str
    raw: Any = None

    def __str__(self) -> str:
        return self.text


def read_result(result: Any) -> McpResult:
    """The result of a `tools/call`, whatever shape it has."""
    if not isinstance(result, dict):
        return McpResult(True, _json(result), result)
    ok = result.get("isError") is not True
    content = result.get("content")
    parts = [describe(part) for part in content] if isinstance(content, list) else []
    text = "\n".join(part for part in parts if part)
    if not text and ok:
        text = _json(result["structuredContent"]) if "structuredContent" in result else ""
        if not text and not isinstance(content, list):
            text = _json({key: value for key, value in result.items() if key != "_meta"})
    if not text:
        text = "The tool ran and returned nothing." if ok else "The tool failed and did not say why."
    return McpResult(ok, jsonio.sendable(text), result)


def describe(part: Any) -> str:
    """One part of a result as text: its own, or what it is."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image", "audio"):
        return _label(kind, part.get("mimeType"), _size(part.get("data")))
    if kind == "resource_link":
        facts = [part.get(name) for name in ("title", "name", "uri", "mimeType", "description")]
        return _label("link to a resource", *dict.fromkeys(fact for fact in facts if isinstance(fact, str)))
    if kind == "resource" and isinstance(part.get("resource"), dict):
        resource = part["resource"]
        text = resource.get("text")
        label = _label("resource", resource.get("uri"), resource.get("mimeType"), _size(resource.get("blob")))
        return f"{label}\n{text}" if isinstance(text, str) else label
    return _label("a part of an unknown kind") + " " + _json(part)[:_PART_CHARS]


def _label(kind: str, *facts: Any) -> str:
    known = [fact[:_FIELD_CHARS] for fact in facts if isinstance(fact, str) and fact]
    return f"[{kind}{': ' if known else ''}{', '.join(known)}]"


def _size(base64: Any) -> str | None:
    """How many bytes these base64 characters stand for."""
    if not isinstance(base64, str):
        return None
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _json(value: Any) -> str:
    try:
        return jsonio.dumps(value)
    except (TypeError, ValueError):
        return "[a value that cannot be shown as JSON]"
