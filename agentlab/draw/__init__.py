"""Escaped HTML pieces in one visual language: context strip, bar, table, view of bytes, message sequence.

| module | pieces |
|---|---|
| `words` | `number`, `shown`: numbers, counts and names in the reader's language |
| `base` | `Html`, `escape`, `element`, `html`, and the palette: all colours and signs |
| `pieces` | `bar`, `table`, `columns`, `sequence` |
| `chart` | `chart`, numbers over time, and `heat`, numbers over two settings |
| `contextstrip` | `strip`, the picture that runs through the whole book |
| `bytesview` | `bytes_view`, `cut_kind` |
| `logview` | `log_and_view` |
"""

from agentlab.draw.base import CUTS, FATES, ROLES, Html, Ink, element, escape, html
from agentlab.draw.bytesview import bytes_view, cut_kind
from agentlab.draw.chart import chart, heat
from agentlab.draw.contextstrip import strip
from agentlab.draw.pieces import bar, columns, sequence, table
from agentlab.draw.words import number, shown

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
    "shown",
    "strip",
    "table",
]
