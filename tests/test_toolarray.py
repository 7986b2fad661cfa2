"""Which tools stand in the array, and what its changes cost: the seed's six scenes, and what holds for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError, ProviderRefused
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.simulator import Simulator
from agentlab.toolarray import array_history, array_text, protocol_of, resolve_tools
from agentlab.tools import Tool

SEED = json.loads((Path(__file__).parents[1] / "data/seed_demos_disclosure.json").read_bytes())
DIRECT, DEFERRED, PROXY, PROMOTED = SEED["direct"], SEED["deferred"], SEED["proxy"], SEED["promoted"]
NOTIFY = next(entry for entry in DEFERRED if entry["name"] == "notify_user")
ENTRIES = st.lists(st.sampled_from([entry["name"] for entry in [*DIRECT, *DEFERRED]]), max_size=9)


def sizes(arrays: list[list[Any]]) -> list[int]:
    return [len(array_text(array)) for array in arrays]


def shares(arrays: list[list[Any]]) -> list[str]:
    return [f"{step.share:.0%}" for step in array_history(arrays).steps]


def refused(array: list[dict[str, Any]], *, dialect: str = "anthropic") -> bool:
    """Whether the provider refuses a conversation with a direct call of notify_user, when this is its array."""
    history: list[Message] = [
        user("Tell me when you are done."),
        assistant("", call("c1", "notify_user")),
        tool("c1", "The person was told."),
    ]
    parameters = {"type": "object", "properties": {}}
    specs = [{"type": "function", "function": {**entry, "parameters": parameters}} for entry in array]
    simulator = Simulator(["Done."], dialect=dialect)

    async def ask() -> None:
        async for _ in simulator.client().stream(history, specs):
            pass

    try:
        run(ask())
    except ProviderRefused as error:
        assert error.status == 400 and "Tool 'notify_user' not found" in str(error)
        return True
    return False


def test_adding_what_was_found_breaks_the_prefix_each_time() -> None:
    arrays = [[*DIRECT, *DEFERRED[:n]] for n in range(4)]
    assert sizes(arrays) == [150, 205, 258, 319]
    assert array_history(arrays).breaks == 3
    assert shares(arrays) == ["99%", "100%", "100%"]


def test_an_array_with_a_proxy_never_changes() -> None:
    found: list[str] = []
    arrays = []
    for entry in DEFERRED[:4]:
        arrays.append(resolve_tools("free-text", found, direct=[*DIRECT, PROXY], deferred=DEFERRED))
        found.append(entry["name"])
    assert sizes(arrays) == [224] * 4
    assert array_history(arrays).breaks == 0


def test_never_added_and_called_directly_is_seen_but_untouchable() -> None:
    arrays = [
        resolve_tools("free-text", names, direct=DIRECT, deferred=DEFERRED) for names in ([], *[["notify_user"]] * 3)
    ]
    assert sizes(arrays) == [150] * 4
    assert array_history(arrays).breaks == 0
    assert [refused(array) for array in arrays[1:]] == [True] * 3
    assert [refused(array, dialect="openai") for array in arrays[1:]] == [False] * 3


def test_added_once_it_costs_one_break_and_every_call_is_taken() -> None:
    arrays = [
        resolve_tools("strict", names, direct=DIRECT, deferred=DEFERRED) for names in ([], *[["notify_user"]] * 3)
    ]
    assert sizes(arrays) == [150, 200, 200, 200]
    assert array_history(arrays).breaks == 1
    assert shares(arrays) == ["99%", "100%", "100%"]
    assert [refused(array) for array in arrays[1:]] == [False] * 3


def test_a_promotion_is_free_when_its_reason_holds_and_dear_when_it_does_not() -> None:
    promoted = [*DIRECT, PROMOTED]
    assert sizes([promoted] * 4) == [204] * 4
    assert array_history([promoted] * 4).breaks == 0
    volatile = [DIRECT, promoted, promoted, DIRECT]
    assert array_history(volatile).breaks == 2
    assert shares(volatile) == ["99%", "100%", "73%"]


def test_two_tools_of_one_step_are_one_break() -> None:
    steps = [[], ["notify_user", "convene_panel"], ["convene_panel", "notify_user"]]
    arrays = [resolve_tools("strict", names, direct=DIRECT, deferred=DEFERRED) for names in steps]
    assert array_history(arrays).breaks == 1
    assert [entry["name"] for entry in arrays[1]][3:] == ["convene_panel", "notify_user"]


@given(ENTRIES, st.randoms())
def test_the_array_depends_on_the_names_alone(names: list[str], random: Any) -> None:
    shuffled = random.sample(names, len(names)) + names[:2]
    strict = resolve_tools("strict", names, direct=DIRECT, deferred=DEFERRED)
    assert strict == resolve_tools("strict", shuffled, direct=DIRECT, deferred=DEFERRED)
    assert strict[:3] == DIRECT
    added = [entry["name"] for entry in strict[3:]]
    assert added == sorted(set(names) & {entry["name"] for entry in DEFERRED})
    assert resolve_tools("free-text", names, direct=DIRECT, deferred=DEFERRED) == DIRECT


def test_names_that_nobody_knows_add_nothing_and_tools_may_be_tools() -> None:
    async def handler() -> str:
        return ""

    one = Tool("one", "", {"type": "object", "properties": {}}, handler)
    assert resolve_tools("strict", ["two", "one"], direct=[], deferred=[one]) == [one]
    assert array_text([one]) == array_text([one.spec()])


def test_protocols() -> None:
    assert [protocol_of(name) for name in ("openai", "deepseek", "anthropic")] == ["free-text", "free-text", "strict"]
    with pytest.raises(AgentLabError, match="Known: openai"):
        protocol_of("telex")
    with pytest.raises(AgentLabError, match="'free-text' or 'strict'"):
        resolve_tools("loose", [], direct=DIRECT, deferred=[])  # type: ignore[arg-type]


def test_the_history_draws_itself() -> None:
    drawn = array_history([DIRECT, [*DIRECT, NOTIFY]])._repr_html_()
    assert "broke the prefix once" in drawn and "broken" in drawn
    assert array_history([]).breaks == 0 and array_history([])._repr_html_()
