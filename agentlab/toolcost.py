"""Up to how many tools it pays to show them all: the N of `Catalog(auto=N)`.

    all direct:  n tools x tokens of a schema x (written once, read in every later request)
    deferred:    search_tool and run_tool, the same way
                 + searches x (one more request: its prompt read again, the call, the result; and somebody waits)

Both sides are money. Seconds become money by what a second of the waiting person is worth, which nobody but you can
say: at 0 only tokens count. (Seed 003, exercise on the threshold; its sum there mixes seconds, tokens and dollars.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite

from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.prices import Prices
from agentlab.toolarray import array_text
from agentlab.tools import Tool

_MILLION = 1_000_000


@dataclass(frozen=True)
class BreakEven:
    """What a session costs with n tools shown directly, and with them deferred. Money in `currency`."""

    per_tool: float
    """One tool's schema in every request of the session."""

    per_search: float
    """One search: tokens, and the wait."""

    waiting: float
    """The part of `per_search` that is the wait."""

    entry: float
    """The schemas of search_tool and run_tool in every request."""

    searches: float
    currency: str = "USD"

    @property
    def deferred(self) -> float:
        """What the deferred way costs, however many tools there are."""
        return self.entry + self.searches * self.per_search

    def direct(self, tools: int) -> float:
        """What it costs to show so many tools in every request."""
        return tools * self.per_tool

    @property
    def tools(self) -> int | None:
        """Up to so many tools that could be deferred, showing them all costs no more. None: however many they are.

        `Catalog(auto=...)` counts all tools, so add the direct ones.
        """
        if not self.per_tool:
            return None
        return floor(self.deferred / self.per_tool * (1 + 1e-12))  # a quotient of 10 may come out a hair below

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = [
            (say("one schema, the whole session"), f"{self.per_tool:.6f}"),
            (say("search_tool and run_tool, the whole session"), f"{self.entry:.6f}"),
            (say("one search, tokens"), f"{self.per_search - self.waiting:.6f}"),
            (say("one search, the wait"), f"{self.waiting:.6f}"),
            (say("deferred, with {n:g} searches", n=self.searches), f"{self.deferred:.6f}"),
        ]
        known = self.tools
        said = say("Showing a tool costs nothing: show all of them.")
        if known is not None:
            said = say("Up to {n:,} tools it costs no more to show them all; above, defer them.", n=known)
        return draw.html(draw.table(rows, head=(say("what"), self.currency)), said)._repr_html_()


def schema_tokens(tools: Iterable[Tool], *, per_token: float = 4.0) -> float:
    """The mean size of a tool in the array, in tokens of `per_token` characters; 0 without tools. An estimate."""
    sizes = [len(array_text([tool])) - 2 for tool in tools]
    return sum(sizes) / len(sizes) / per_token if sizes else 0.0


def break_even(
    prices: Prices,
    *,
    schema_tokens: float,
    requests: int,
    searches: float = 1,
    search_seconds: float = 0.0,
    second_costs: float = 0.0,
    prefix_tokens: float = 0,
    result_tokens: float = 500,
    call_tokens: float = 40,
    entry_tokens: float = 200,
    breaks: float = 0,
) -> BreakEven:
    """Compare showing tools with searching for them, over a session of so many requests.

    `schema_tokens` is the mean size of one tool, `prefix_tokens` what a request holds when a search happens. A search
    costs `search_seconds`, each worth `second_costs` in the currency of the prices; a call of `call_tokens`; a result
    of `result_tokens`, which half of the session's requests read again, on average; and the prefix, read once more.
    `breaks` is the share of searches that break the prefix, so that it is written again instead (a strict protocol:
    up to 1). Raises AgentLabError for an amount below 0, a share above 1, or a session without requests.
    """
    amounts = {name: value for name, value in locals().items() if name != "prices"}
    if bad := [name for name, value in amounts.items() if not (isfinite(value) and value >= 0)]:
        raise AgentLabError(f"{', '.join(bad)} must be 0 or more: give an amount that can be counted.")
    if breaks > 1:
        raise AgentLabError("breaks is a share of the searches: give 0 to 1.")
    if requests < 1:
        raise AgentLabError("A session has at least one request: give requests=1 or more.")
    read = prices.input if prices.read is None else prices.read
    write = prices.input if prices.write is None else prices.write
    kept = write + (requests - 1) * read
    again = read + breaks * (write - read)
    result = result_tokens * (write + requests / 2 * read)
    tokens = (prefix_tokens * again + result + call_tokens * prices.output) / _MILLION
    waiting = search_seconds * second_costs
    return BreakEven(
        per_tool=schema_tokens * kept / _MILLION,
        per_search=tokens + waiting,
        waiting=waiting,
        entry=entry_tokens * kept / _MILLION,
        searches=searches,
        currency=prices.currency,
    )
