"""Development mode: when the cache missed although it was warm, say which part of the request broke it.

    request  -> sent     -> kept as JSON in memory, with the one before it
    response -> ledger's entry -> answered: paid again within the TTL?  -> diff of the two -> Miss, with the culprit

The ledger knows that tokens were paid again, from numbers alone; only the requests tell why. Keeping them is for the
desk: a long session is megabytes a request, and holds whatever the person and the tools said. So it is off unless it is
switched on, holds two requests at most, and writes nothing anywhere. Times come in with the ledger's entries.
(Seed 000, prompt cache: experiments A to C compare requests, as no one can in production; the ledger does the rest.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.prefix import PrefixDiff, Request, diff, require_request


class Entry(Protocol):
    """What development mode needs of a ledger's entry: tokens paid again, seconds of pause, and the verdict on it."""

    @property
    def missed(self) -> int: ...
    @property
    def idle_s(self) -> float: ...
    @property
    def verdict(self) -> str: ...


@dataclass(frozen=True)
class Miss:
    """A miss within the cache's lifetime: `missed` tokens paid again after `idle_s` seconds, and what differed."""

    missed: int
    idle_s: float
    diff: PrefixDiff

    @property
    def sentence(self) -> str:
        """Who did it, for people. If the requests are not to blame, it says so."""
        paid = f"{self.missed:,} tokens were paid again after {self.idle_s:g} s"
        if self.diff.culprit:
            return f"{paid}. The culprit is {self.diff.culprit}: {self.diff.sentence}"
        return (
            f"{paid}, but the request only adds to the one before: look at what is not in the prompt (another model, "
            "other settings, missing cache marks), or at the provider (a shorter lifetime, another machine)."
        )

    def _repr_html_(self) -> str:
        from agentlab import draw

        return draw.html(self.sentence, self.diff)._repr_html_()


@dataclass
class DevMode:
    """Holds the last request that was answered and the one under way, as JSON, while it is `on`.

    Call `sent` before a request and `answered` with the ledger's entry for its usage. A request that got no answer is
    forgotten when the next one is sent, as the ledger forgets it.
    """

    on: bool = False
    _answered: bytes | None = field(default=None, init=False, repr=False)
    _sent: bytes | None = field(default=None, init=False, repr=False)

    @property
    def held_bytes(self) -> int:
        """How much memory the kept requests take."""
        return sum(len(kept) for kept in (self._answered, self._sent) if kept)

    def sent(self, request: Request) -> None:
        """Keep this request as it is now: what happens to the history later does not change it.

        Raises AgentLabError for what cannot be sent as JSON, and for what `prefix.diff` cannot read.
        """
        if not self.on:
            self.reset()
            return
        require_request(request)
        try:
            self._sent = jsonio.request_body(request)
        except (TypeError, ValueError) as error:
            raise AgentLabError(f"Development mode keeps requests as JSON, and this is none: {error}.") from None

    def answered(self, entry: Entry) -> Miss | None:
        """The verdict on the request sent last: a Miss if tokens were paid again within the TTL, else None."""
        if not self.on:
            self.reset()
        previous, current = self._answered, self._sent
        if current is None:
            return None
        self._answered, self._sent = current, None
        if previous is None or entry.verdict != "rewritten":
            return None
        return Miss(entry.missed, entry.idle_s, diff(jsonio.loads(previous), jsonio.loads(current)))

    def reset(self) -> None:
        """Forget both requests: the history was compacted on purpose, or development is over."""
        self._answered = self._sent = None
