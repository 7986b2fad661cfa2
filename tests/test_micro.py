"""micro: the last three exchanges stay whole, older results become notes, and no pointer is lost."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.messages import Message, assistant, call, calls_of, groups, tool, user
from agentlab.micro import NOTE, POINTER_CHARS, micro, noted
from agentlab.pairing import problems, repair
from agentlab.spill import OutputBudget, SpillStore, apply_budget
from agentlab.spillstore import name_of
from agentlab.tools import ToolResult
from tests.strategies import torn_histories, whole_histories

paths = st.text("ab/\\\n\"'é .", max_size=12) | st.sampled_from(["spill/0001-0123456789.txt", "n" * 2_000])


def exchange(n: int) -> list[Message]:
    return [assistant("", call("a", "read", n=n), call("b", "read", n=n)), tool("a", f"A{n}"), tool("b", f"B{n}")]


def test_three_exchanges_stay_as_they_are() -> None:
    history = [user("Go."), *exchange(1), *exchange(2), assistant("So far."), *exchange(3)]
    assert micro(history) == history


def test_of_four_exchanges_the_oldest_one_gets_notes_for_all_its_results() -> None:
    history = [user("Go."), *exchange(1), user("On."), *exchange(2), *exchange(3), *exchange(4)]
    after = micro(history)
    assert [m["content"] for m in after[2:4]] == [NOTE, NOTE]
    assert [m.get("tool_call_id") for m in after] == [m.get("tool_call_id") for m in history]
    assert after[:2] == history[:2] and after[4:] == history[4:]
    assert micro(after) == after and history[2]["content"] == "A1"


def test_keep_may_be_any_number() -> None:
    history = [*exchange(1), *exchange(2)]
    assert [m["content"] for m in micro(history, keep=0) if m["role"] == "tool"] == [NOTE] * 4
    assert micro(history, keep=9) == history
    with pytest.raises(AgentLabError, match="negative"):
        micro([], keep=-1)


def test_a_spilled_result_keeps_its_pointer_line(tmp_path: Path) -> None:
    result = ToolResult("a", "run", {}, "completed", "row\n" * 30_000)
    [spilled] = apply_budget([result], OutputBudget(), SpillStore(tmp_path / "s", base=tmp_path)).results
    history = [assistant("", call("a", "run")), spilled.message(), *exchange(1), *exchange(2), *exchange(3)]
    after = micro(history)[1]
    assert after["content"].splitlines()[1] == spilled.output.splitlines()[-1]
    assert after["output_path"] == spilled.output_path and len(after["content"]) < 300
    other = replace(spilled, output="The way to it is gone.").message()
    assert f'read_file("{spilled.output_path}")' in noted(other)["content"]


def test_a_file_that_an_output_only_talks_about_is_no_pointer() -> None:
    assert noted(tool("a", "[saved: read_file(spill/0001-0123456789.txt)]"))["content"] == NOTE


def test_a_line_that_names_the_file_but_is_far_too_long_is_not_kept() -> None:
    long = tool("a", "x" * POINTER_CHARS + "f.txt") | {"output_path": "s/f.txt"}
    assert noted(long)["content"].endswith('\n[Read it with read_file("s/f.txt").]')


def test_notes_on_interrupted_calls_stay() -> None:
    history = [assistant("", call("a", "run")), *exchange(1), *exchange(2), *exchange(3)]
    after = micro(history)
    assert after[1]["origin"] == "repair" and "did not run" in after[1]["content"] and problems(after) == []


@given(whole_histories(max_turns=6) | torn_histories(), st.integers(0, 4))
def test_any_history(history: list[Message], keep: int) -> None:
    before = copy.deepcopy(history)
    after = micro(history, keep)
    sound = repair(history).history
    assert history == before and problems(after) == [] and micro(after, keep) == after
    exchanges = [group for group in groups(sound) if calls_of(group.messages[0])]
    old_ones = exchanges[: max(0, len(exchanges) - keep)]
    replaced = {at for group in old_ones for at in range(group.start, group.end)}
    for at, (new, old) in enumerate(zip(after, sound, strict=True)):
        if new["role"] != "tool" or at not in replaced or old.get("origin") == "repair":
            assert new == old
        else:
            assert new == old | {"content": NOTE}


@given(st.text('ab/\n"é', max_size=30), paths)
def test_any_path_survives_and_a_note_stays_the_same(content: str, path: str) -> None:
    message = tool("a", content) | {"output_path": path}
    once = noted(message)
    assert noted(once) == once and once["output_path"] == path
    name = name_of(path)
    if name and name.isalnum():
        assert name in once["content"]
