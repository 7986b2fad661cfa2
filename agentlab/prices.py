"""What requests cost, what they would have cost without a cache, and the difference: it may be a loss.

    usages, Prices -> bill -> Bill: per request and in sum   hit x read + written x write + other misses x input
                                                             + output x output, against prompt x input + output

Prices are per million tokens, for one model in one tier (off-peak, long prompts, ...). A price list says for each where
and when it was read; a model that is not in it has no price, and asking for it says so. (Seed 000, prompt cache,
`/cost`; the write premiums are Anthropic's and the newer OpenAI models'.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from agentlab import jsonio
from agentlab.cacheusage import CacheUsage, each, total
from agentlab.errors import AgentLabError
from agentlab.language import say

_MILLION = 1_000_000
_RATES = ("input", "output", "read", "write", "write_1h")
_DATED = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d)$")


class UnknownPrice(AgentLabError):
    """No price is known for this model or tier, so nothing can be said about its cost."""


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens. What has no price of its own (None) costs as much as input: that is no guess but the
    plain case of a provider without that feature. Raises AgentLabError for a price below 0."""

    input: float
    output: float = 0.0
    _: KW_ONLY
    read: float | None = None
    """Input tokens that are read from the cache."""

    write: float | None = None
    """Input tokens that are written to it, for as long as the provider keeps them by default."""

    write_1h: float | None = None
    """Input tokens that are written for an hour; without it they cost what `write` does."""

    max_prompt: int | None = None
    """Prompts above so many tokens have other prices (another tier)."""

    model: str = ""
    tier: str = ""
    currency: str = "USD"
    source: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        for name in _RATES:
            rate = getattr(self, name)
            known = isinstance(rate, int | float) and not isinstance(rate, bool) and math.isfinite(rate) and rate >= 0
            if not known and (rate is not None or name in ("input", "output")):
                raise AgentLabError(f"The price '{name}' must be a number of 0 or more, per million tokens.")

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Prices:
        """Prices from a plain dict with the names of the fields; `cached` is another word for `read`."""
        if not isinstance(fields, Mapping):
            raise AgentLabError("Prices are a Prices, or a dict such as {'input': 1.0, 'output': 4.0, 'cached': 0.1}.")
        given = dict(fields)
        if "cached" in given:
            given.setdefault("read", given.pop("cached"))
        if unknown := set(given) - {name for name in cls.__dataclass_fields__ if name != "_"}:
            raise AgentLabError(f"Not a field of Prices: {', '.join(sorted(map(str, unknown)))[:200]}.")
        if "input" not in given:
            raise AgentLabError("Prices need at least the price 'input', per million tokens.")
        return cls(**given)

    def cost(self, usage: CacheUsage) -> float:
        """What this usage costs."""
        write = self.input if self.write is None else self.write
        long = write if self.write_1h is None else self.write_1h
        read = self.input if self.read is None else self.read
        fresh = usage.miss - usage.written
        spent = fresh * self.input + usage.hit * read + usage.output * self.output
        return (spent + (usage.written - usage.written_1h) * write + usage.written_1h * long) / _MILLION

    def without_cache(self, usage: CacheUsage) -> float:
        """What this usage would cost if there were no cache: all input at full price, no write premium."""
        return (usage.prompt * self.input + usage.output * self.output) / _MILLION


TENTH = Prices(1.0, read=0.1)
"""No money, only proportion: a token from the cache at a tenth of the price, writing for free. (Seed 000.)"""


@dataclass(frozen=True)
class Row:
    """One request of a bill."""

    usage: CacheUsage
    actual: float
    without_cache: float

    @property
    def saved(self) -> float:
        """What the cache saved; below 0 when writing to it cost more than it brought."""
        return self.without_cache - self.actual


@dataclass(frozen=True)
class Bill:
    """What a session cost, in `prices.currency`. `saved` is below 0 when the writes cost more than the hits brought."""

    actual: float
    without_cache: float
    saved: float
    total: CacheUsage
    rows: tuple[Row, ...]
    prices: Prices
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = [
            (i, u.prompt, u.hit, u.written, u.output, *(f"{x:.6f}" for x in (row.actual, row.without_cache, row.saved)))
            for i, (row, u) in enumerate(((row, row.usage) for row in self.rows), 1)
        ]
        tokens = (say("prompt"), say("hit"), say("written"), say("output"))
        head = (say("request"), *tokens, say("cost"), say("without cache"), say("saved"))
        title = say(
            "{currency} {actual:.6f}, without cache {without:.6f}",
            currency=self.prices.currency,
            actual=self.actual,
            without=self.without_cache,
        )
        return draw.html(draw.table(rows, head=head, caption=title), *self.notes)._repr_html_()


def bill(usages: Iterable[Any], prices: Prices | Mapping[str, Any]) -> Bill:
    """The bill of these requests, each a raw usage or a CacheUsage: the last usage of each, never every chunk's.

    `notes` say what makes the bill doubtful: a loss, a usage that never came, numbers that did not add up, prompts that
    another tier is for. A usage in the place of a list is one request. Raises AgentLabError for what are no prices.
    """
    rates = prices if isinstance(prices, Prices) else Prices.of(prices)
    every = each(usages)
    rows = tuple(Row(usage, rates.cost(usage), rates.without_cache(usage)) for usage in every)
    actual = math.fsum(row.actual for row in rows)
    without = math.fsum(row.without_cache for row in rows)
    return Bill(actual, without, without - actual, total(every), rows, rates, _notes(rows, rates, without - actual))


def _notes(rows: tuple[Row, ...], prices: Prices, saved: float) -> tuple[str, ...]:
    notes = []
    if saved < 0:
        notes.append("The cache cost more than it saved: more was written to it than was ever read from it.")
    blank = CacheUsage(0, 0, 0, reported=False)
    if lost := [str(i) for i, row in enumerate(rows, 1) if row.usage == blank]:
        notes.append(f"No usage came for request {', '.join(lost[:9])}: what it cost is not in the bill.")
    if odd := [str(i) for i, row in enumerate(rows, 1) if row.usage.anomaly]:
        notes.append(f"Usage that does not add up in request {', '.join(odd[:9])}: the amounts are estimates.")
    limit = prices.max_prompt
    if limit is not None and (long := [str(i) for i, row in enumerate(rows, 1) if row.usage.prompt > limit]):
        notes.append(f"Above {limit:,} prompt tokens another tier applies: request {', '.join(long[:9])}.")
    return tuple(notes)


@dataclass(frozen=True)
class PriceList:
    """Prices by model and tier, each with its source and the day on which it was read."""

    prices: tuple[Prices, ...]

    @classmethod
    def read(cls, path: str | Path) -> PriceList:
        """The list in a JSON file: `{"models": {model: {"source", "date", "currency", "tiers": {tier: prices}}}}`.

        Raises AgentLabError when it cannot be read, or when a price has no source or no date.
        """
        try:
            models = jsonio.loads(Path(path).read_bytes())["models"]
            return cls.of(models)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AgentLabError(f"This is no price list ({type(error).__name__}). See data/prices.json.") from error

    @classmethod
    def of(cls, models: Mapping[str, Any]) -> PriceList:
        """The list from the plain dict under `models`."""
        found = []
        for model, entry in models.items():
            origin = {"model": model, "source": entry.get("source"), "date": entry.get("date")}
            if not (origin["source"] and origin["date"]):
                raise AgentLabError(f"The price of {model!r:.80} has no source or no date. Give both.")
            for tier, rates in entry["tiers"].items():
                found.append(Prices.of({**rates, **origin, "tier": tier, "currency": entry.get("currency", "USD")}))
        return cls(tuple(found))

    def find(self, model: str, *, tier: str | None = None) -> Prices:
        """The prices of a model, also under its dated name. `tier` is needed where there are several and none is
        `standard`. Raises UnknownPrice, which names what there is."""
        names = (model, _DATED.sub("", model)) if isinstance(model, str) else ()
        tiers = {p.tier: p for name in names for p in self.prices if p.model == name}
        if not tiers:
            known = ", ".join(dict.fromkeys(p.model for p in self.prices)) or "none"
            raise UnknownPrice(
                f"No price is known for {model!r:.80}. Known: {known}. Pass your own Prices(input, output)."
            )
        wanted = tier or (next(iter(tiers)) if len(tiers) == 1 else "standard")
        if wanted not in tiers:
            raise UnknownPrice(f"{model!r:.80} has the tiers {', '.join(tiers)}: pass one of them as tier.")
        return tiers[wanted]
