"""Usage in front of a person: the status line of a request and the `/cost` view of a session.

    response.usage -> read_usage -> CacheUsage -> Ledger (waste), bill (money) -> status_line, cost_view (text)

The pieces live in `cacheusage` (every dialect's fields), `ledger` (who broke the cache) and `prices` (what it cost);
all their names can be imported from here. Both views are plain text and the same for the same numbers. A provider that
says nothing about its cache gets no made-up 0 %. (Seed 000, prompt cache.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentlab.cacheusage import CacheUsage, each, read_usage, total
from agentlab.ledger import Diagnosis, Entry, Ledger, Symptom, diagnose
from agentlab.prices import TENTH, Bill, PriceList, Prices, Row, UnknownPrice, bill

__all__ = [
    "TENTH", "Bill", "CacheUsage", "Diagnosis", "Entry", "Ledger", "PriceList", "Prices", "Row", "Symptom",
    "UnknownPrice", "bill", "cost_view", "diagnose", "read_usage", "saved_share", "status_line", "total",
]  # fmt: skip


def saved_share(usage: Any, prices: Prices = TENTH) -> float:
    """The share of the input's full price that the cache saved, at most 1; below 0 when writing cost more.

    Without prices, a token from the cache is taken to cost a tenth.
    """
    read = read_usage(usage)
    spent_on_output = read.output * prices.output / 1_000_000
    full = prices.without_cache(read) - spent_on_output
    return (full - (prices.cost(read) - spent_on_output)) / full if full > 0 else 0.0


def status_line(usage: Any, *, session: Iterable[Any] = (), prices: Prices = TENTH) -> str:
    """One line on one request: prompt, hits, misses, the share of the input price that was saved.

    `session` is the usage of all requests so far, this one included, for the session's share of hits; requests of
    which nothing was reported do not count in it.
    """
    read = read_usage(usage)
    if not read.reported:
        return f"prompt {read.prompt:,} tokens (this provider reports no cache){_odd(read)}"
    share = saved_share(read, prices)
    parts = [
        f"prompt {read.prompt:,}",
        f"hit {read.hit:,} ({read.hit_ratio:.1%})",
        f"miss {read.miss:,}",
        f"input {'saves' if share >= 0 else 'costs'} about {abs(share):.0%}{'' if share >= 0 else ' more'}",
    ]
    if known := [one for one in each(session) if one.reported]:
        parts.append(f"session hits {total(known).hit_ratio:.1%}")
    return " | ".join(parts) + _odd(read)


def _odd(usage: CacheUsage) -> str:
    return f" | does not add up: {usage.anomaly}" if usage.anomaly else ""


def cost_view(usages: Iterable[Any], prices: Prices | None, *, model: str = "", ledger: Ledger | None = None) -> str:
    """What `/cost` shows: tokens, money, the bill without a cache, and the waste if there is a ledger.

    With `prices` None the tokens are shown and the view says that there is no price.
    """
    every = each(usages)
    name = model or (prices.model if prices else "")
    summed = total(every)
    rows = [("model", _one_line(name))] if name else []
    rows += [
        ("requests", f"{len(every):,}"),
        ("input tokens", f"{summed.prompt:,}"),
        ("  from cache", f"{summed.hit:,} ({summed.hit_ratio:.1%})" if summed.reported else "not reported"),
        ("  paid in full", f"{summed.miss:,}" + (f", {summed.written:,} of it written" if summed.written else "")),
        ("output tokens", f"{summed.output:,}"),
    ]
    notes: list[str] = []
    if prices is None:
        rows.append(("cost", "no price is known for this model"))
    else:
        made = bill(every, prices)
        share = made.saved / made.without_cache if made.without_cache else 0.0
        rows += [
            ("cost", f"{prices.currency} {made.actual:.6f}"),
            ("without cache", f"{prices.currency} {made.without_cache:.6f}"),
            ("saved", f"{prices.currency} {made.saved:.6f} ({share:.1%})"),
        ]
        notes += made.notes
        if prices.source:
            notes.append(f"Prices: {_one_line(prices.source)}, {_one_line(prices.date)}.")
    if ledger:
        rows.append(("cache waste", f"{ledger.wasted:,} tokens in {ledger.misses} misses"))
    width = max(len(label) for label, _ in rows)
    return "\n".join([f"{label:<{width}}  {value}" for label, value in rows] + notes)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:200])
