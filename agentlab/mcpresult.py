"""What a tool call at an MCP server gave, as text for the model.

    {"content": [text, image, resource, ...], "structuredContent", "isError"} -> McpResult(ok, text)

Text passes whole: the output budget shortens it as it does every other output. What a model cannot read as text
(images, sound, binary resources) is described instead. `isError` decides before `structuredContent`: a failure is what
its text says. Where there is no text, whatever else the server said takes its place: `structuredContent`, or, of a
failure, the keys beside it. (MCP, "Tools: tool result", which asks for the text in any case; seed 003.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentlab import jsonio

_FIELD_CHARS = 200
_PART_CHARS = 2_000
_KNOWN = ("_meta", "content", "structuredContent", "isError", "error")


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
    ok = not _is_yes(result.get("isError"))
    parts = _parts(result.get("content"))
    said = [describe(part) for part in parts]
    if not any(_text(part).strip() for part in parts):
        said.append(_plain(result.get("structuredContent")))
    if not ok or not any(said):
        said.append(_plain(result.get("error")))
    if not any(said):
        said.append(_plain({key: value for key, value in result.items() if key not in _KNOWN}))
    text = "\n".join(dict.fromkeys(filter(None, said)))
    if not text:
        text = "The tool ran and returned nothing." if ok else "The tool failed and did not say why."
    return McpResult(ok, jsonio.sendable(text), result)


def _is_yes(value: Any) -> bool:
    """`true`, and how some servers write it: 1 and "true"."""
    return value == 1 or (isinstance(value, str) and value.strip().lower() in ("true", "1"))


def _parts(content: Any) -> list[Any]:
    """The parts, where the one part, or the bare text, may stand without its list."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else [] if content is None else [content]


def _text(part: Any) -> str:
    """The words in a part: its own, or those of its resource."""
    if isinstance(part, dict) and part.get("type") == "resource":
        part = part.get("resource")
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def _plain(value: Any) -> str:
    """Text as it is, other values as JSON, and "" for those that say nothing."""
    if isinstance(value, str):
        return value
    return "" if value is None or value in ([], {}) else _json(value)


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
