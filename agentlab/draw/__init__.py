"""Escaped HTML pieces in one visual language: context strip, bar, table, view of bytes, message sequence.

| module | pieces |
|---|---|
| `base` | `Html`, `escape`, `element`, `html`, `number`, and the palette of roles and fates |
| `pieces` | `bar`, `table`, `columns`, `sequence` |
| `chart` | `chart`, numbers over time, and `heat`, numbers over two settings |
| `contextstrip` | `strip`, the picture that runs through the whole book |
| `bytesview` | `bytes_view`, `cut_kind` |
"""

from agentlab.draw.base import FATES, ROLES, Html, Ink, element, escape, html, number
from agentlab.draw.bytesview import CUTS, bytes_view, cut_kind
from agentlab.draw.chart import chart, heat
from agentlab.draw.contextstrip import strip
from agentlab.draw.pieces import bar, columns, sequence, table

__all__ = [
    "CUTS",
    "FATES",
    "ROLES",
    "Html",
    "Ink",
    "bar",
    "bytes_view",
    "chart",
    "columns",
    "cut_kind",
    "element",
    "escape",
    "heat",
    "html",
    "number",
    "sequence",
    "strip",
    "table",
]
