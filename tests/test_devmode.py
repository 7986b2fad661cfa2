"""Development mode: off it keeps nothing, on it names what broke a warm cache."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import jsonio
from agentlab.devmode import DevMode, Miss
from agentlab.errors import AgentLabError
from agentlab.ledger import Ledger
from agentlab.messages import Message, assistant, user
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache


@dataclass(frozen=True)
class Row:
    """A ledger's entry."""

    verdict: str
    missed: int = 2000
    idle_s: float = 12.0


def request(*texts: str, system: str = "Be kind.") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, *map(user, texts)]}


def run(mode: DevMode, *rows: tuple[dict[str, Any], str]) -> list[Miss | None]:
    found = []
    for sent, verdict in rows:
        mode.sent(sent)
        found.append(mode.answered(Row(verdict)))
    return found


def test_it_is_off_unless_it_is_switched_on_and_then_keeps_nothing() -> None:
    mode = DevMode()
    assert run(mode, (request("a"), "unknown"), (request("b"), "rewritten")) == [None, None]
    assert mode.held_bytes == 0
    mode.sent({"messages": object()})


@pytest.mark.parametrize("verdict", ["ok", "expired", "unknown"])
def test_only_a_miss_within_the_lifetime_is_looked_into(verdict: str) -> None:
    assert run(DevMode(on=True), (request("a"), "unknown"), (request("b"), verdict)) == [None, None]


def test_a_miss_within_the_lifetime_names_the_culprit() -> None:
    mode = DevMode(on=True)
    rows = [(request("a"), "unknown"), (request("a", "b"), "ok"), (request("a", "b", system="10:02"), "rewritten")]
    _, _, miss = run(mode, *rows)
    assert miss is not None
    assert (miss.diff.culprit, miss.missed, miss.idle_s) == ("system", 2000, 12.0)
    for words in ("2,000 tokens", "12 s", "culprit is system", "10:02"):
        assert words in miss.sentence
    assert "culprit is system" in miss._repr_html_() and "paid again 2" in miss._repr_html_()


def test_when_the_requests_are_not_to_blame_it_says_so() -> None:
    _, miss = run(DevMode(on=True), (request("a"), "unknown"), (request("a", "b"), "rewritten"))
    assert miss is not None and miss.diff.culprit is None
    assert "another model" in miss.sentence and "culprit" not in miss.sentence


def test_requests_are_kept_as_they_were_sent_whatever_becomes_of_the_history() -> None:
    mode = DevMode(on=True)
    sent = request("a", "b")
    mode.sent(sent)
    mode.answered(Row("unknown"))
    sent["messages"][1]["content"] = "trimmed"
    mode.sent(sent)
    miss = mode.answered(Row("rewritten"))
    assert miss is not None and miss.diff.where == "messages[1].content"
    sent.clear()
    mode.sent(request("trimmed", "b"))
    again = mode.answered(Row("rewritten"))
    assert again is not None and again.diff.culprit is None


@given(st.lists(st.tuples(st.text(max_size=30), st.booleans()), max_size=6))
def test_it_never_holds_more_than_two_requests(rows: list[tuple[str, bool]]) -> None:
    mode = DevMode(on=True)
    sizes = [0, 0]
    for text, answered in rows:
        mode.sent(request(text))
        sizes.append(len(jsonio.request_body(request(text))))
        if answered:
            mode.answered(Row("ok"))
        assert mode.held_bytes <= sum(sorted(sizes)[-2:])
        assert repr(mode) == "DevMode(on=True)", "what was said stays out of it"
    mode.reset()
    assert mode.held_bytes == 0


def test_a_request_without_an_answer_is_not_what_the_next_one_is_compared_with() -> None:
    mode = DevMode(on=True)
    mode.sent(request("a"))
    mode.answered(Row("unknown"))
    mode.sent(request("never answered"))
    mode.sent(request("a", "b"))
    miss = mode.answered(Row("rewritten"))
    assert miss is not None and miss.diff.culprit is None
    assert mode.answered(Row("rewritten")) is None, "one verdict for one request"


def test_switching_it_off_and_a_compaction_forget_what_was_kept() -> None:
    mode = DevMode(on=True)
    run(mode, (request("a"), "unknown"))
    mode.reset()
    assert run(mode, (request("b"), "rewritten")) == [None]
    mode.on = False
    mode.sent(request("c"))
    assert mode.held_bytes == 0
    mode.on = True
    mode.sent(request("d"))
    mode.on = False
    assert mode.answered(Row("rewritten")) is None and mode.held_bytes == 0


@pytest.mark.parametrize("bad", [{"messages": [object()]}, {"messages": [{1, 2}]}, {"messages": [b"x"]}], ids=range(3))
def test_what_cannot_be_sent_is_refused_and_what_was_kept_stays(bad: Any) -> None:
    mode = DevMode(on=True)
    run(mode, (request("a"), "unknown"))
    held = mode.held_bytes
    with pytest.raises(AgentLabError, match="as JSON"):
        mode.sent(bad)
    assert mode.held_bytes == held


def test_with_a_ledger_and_the_offline_provider_it_finds_the_trimmed_message() -> None:
    now = [0.0]
    simulator = Simulator(["yes"] * 9, cache=BlockCache(block=1, minimum=0, ttl_s=300), clock=lambda: now[0])
    mode, ledger = DevMode(on=True), Ledger(ttl_s=300, noise=20)
    history: list[Message] = [user("A long question. " * 40)]
    found = []
    for step, at in enumerate((0.0, 15.0, 30.0, 2310.0, 2320.0, 2332.0)):
        if step == 5:
            history[0] = user("A long [cut]")
        body = {"model": "offline", "messages": copy.deepcopy(history)}
        mode.sent(body)
        now[0] = at
        _, _, chunks = simulator.respond(body)
        reply = jsonio.loads(b"".join(chunks))
        found.append(mode.answered(ledger.record(reply["usage"], at)))
        history += [assistant(reply["choices"][0]["message"]["content"]), user(f"On with {step}.")]
    assert [entry.verdict for entry in ledger.entries] == ["unknown", "ok", "ok", "expired", "ok", "rewritten"]
    assert found[:5] == [None] * 5
    assert found[5] is not None and found[5].diff.where == "messages[0].content"
    assert found[5].idle_s == 12.0 and math.isclose(found[5].missed, ledger.wasted - ledger.entries[3].missed)


@pytest.mark.parametrize(
    "odd", [{"contents": [1]}, {"messages": "x"}, None, "text", {"messages": [], "tools": {"a": 1}}], ids=str
)
def test_what_cannot_be_compared_is_refused_when_it_is_sent(odd: Any) -> None:
    mode = DevMode(on=True)
    with pytest.raises(AgentLabError, match="cannot be compared"):
        mode.sent(odd)
    assert mode.held_bytes == 0
