"""Find tools by words: TF-IDF weights and the cosine of the angle between a query and each tool.

    name (3 times), description, parameters -> terms -> weights: often here, rare elsewhere -> a vector of length 1
    query -----------------------------------> terms -> the same -> cosine with each tool that shares a term -> best k

A term is a word, or, where a script writes no spaces (Chinese, Japanese, Korean), a character and a pair of neighbours.
The search compares words, not meanings: it does not cross languages. Names, descriptions and schemas may come from a
stranger's server, so all are bounded and any shape is taken. (Seed 003, progressive disclosure: search-tool.)
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import pairwise
from math import log, sqrt
from typing import Any

from agentlab.errors import ToolError
from agentlab.language import say
from agentlab.tools import Tool

QUERY_CHARS = 1_000
FIELD_CHARS = 4_000
PROPERTIES = 100
NAME_WEIGHT = 3

_CJK = "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
_CJK += "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(f"([{_CJK}]+)|([^\\W_{_CJK}]+)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Hit:
    """A tool that a search found. `score` is the cosine, above 0 and at most 1; `terms` are those that it shares."""

    name: str
    score: float
    terms: tuple[str, ...]
    tool: Tool


class Hits(list[Hit]):
    """What a search found, best first."""

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = [(hit.name, f"{hit.score:.2f}", ", ".join(hit.terms), summary(hit.tool)) for hit in self]
        head = (say("tool"), say("score"), say("terms in common"), say("what it does"))
        return draw.table(rows, head=head)._repr_html_()


def terms(text: str) -> list[str]:
    """The terms of a text, in order: words in lower case without a plural's s, CJK characters and their pairs.

    `notify_user`, `notifyUser` and `notify user` have the same terms.
    """
    found: list[str] = []
    for run, word in _RUN.findall(_CAMEL.sub(" ", unicodedata.normalize("NFKC", text))):
        if run:
            found += run
            found += (a + b for a, b in pairwise(run))
        else:
            found.append(_singular(word.casefold()))
    return found


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "shes", "sses", "xes")) else word[:-1]


def summary(tool: Tool, *, limit: int = 100) -> str:
    """The first sentence of a tool's description, on one line and at most `limit` characters long."""
    said = re.split(r"(?<=[.!?])\s|(?<=[。！？])|\n", tool.description[:FIELD_CHARS].strip(), maxsplit=1)[0]
    line = " ".join(said.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class ToolIndex:
    """Tools, ready to be searched. The order in which they are given changes no answer."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        counts = {name: Counter(_document(tool)) for name, tool in self._tools.items()}
        self._spread = Counter(term for count in counts.values() for term in count)
        self._postings: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for name, count in counts.items():
            for term, weight in self._vector(count).items():
                self._postings[term].append((name, weight))

    def search(self, query: str, k: int = 5) -> Hits:
        """The best `k` tools, at most, that share a term with the query; equal scores by name.

        A query that is just a tool's name finds that tool first. Only its first 1,000 characters are read. Raises
        ToolError for a query that is no text.
        """
        if not isinstance(query, str):
            raise ToolError("The query must be text: some words on what the tool shall do.")
        query = query[:QUERY_CHARS]
        scores: dict[str, float] = defaultdict(float)
        shared: dict[str, list[str]] = defaultdict(list)
        for term, weight in sorted(self._vector(Counter(terms(query))).items()):
            for name, own in self._postings.get(term, ()):
                scores[name] += weight * own
                shared[name].append(term)
        named = query.strip()
        best = nsmallest(max(k, 0), scores, key=lambda name: (name != named, -round(scores[name], 9), name))
        return Hits(Hit(name, min(scores[name], 1.0), tuple(shared[name]), self._tools[name]) for name in best)

    def _vector(self, count: Mapping[str, int]) -> dict[str, float]:
        """The weights of the terms, scaled to length 1. A term that no tool has is as rare as can be."""
        tools = len(self._tools)
        weights = {t: (1 + log(n)) * log(1 + tools / self._spread.get(t, 1)) for t, n in sorted(count.items())}
        length = sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        return {term: weight / length for term, weight in weights.items()}


def _document(tool: Tool) -> list[str]:
    """All terms of a tool. A schema may hold anything, and only what looks like one is read."""
    parts = [tool.description[:FIELD_CHARS]]
    properties: Any = tool.parameters.get("properties")
    for name, schema in list(properties.items())[:PROPERTIES] if isinstance(properties, Mapping) else ():
        described = schema.get("description") if isinstance(schema, Mapping) else None
        parts.append(f"{str(name)[:100]} {described[:200] if isinstance(described, str) else ''}")
    return terms(tool.name) * NAME_WEIGHT + terms(" ".join(parts))
