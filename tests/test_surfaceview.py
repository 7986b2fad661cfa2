"""surfaceview: a view by replay, nodes and their sources, rewinds, a journal beneath, a second writer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from agentlab.errors import AgentLabError
from agentlab.journal import Journal, JournalBusy, replay
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, tool, user
from agentlab.pairing import problems
from agentlab.recorder import Recorder
from agentlab.simulator import Simulator
from agentlab.surface import Replacement, Surface, SurfaceError
from agentlab.tools import Registry
from tests.clean_run import run


def spoken(count: int) -> Surface:
    surface = Surface()
    for n in range(count):
        surface.append(user(f"word {n}") if n % 2 == 0 else assistant(f"reply {n}"))
    return surface


def numbers(surface: Surface) -> list[int]:
    return [seq for seq, _ in surface.nodes]


def test_nodes_stand_in_position_order_and_are_known_by_their_numbers() -> None:
    surface = spoken(6)
    assert surface.replace(2, 4, user("two to four"), reason="compaction") == 7
    assert surface.append(user("more")) == 8
    assert numbers(surface) == [1, 7, 5, 6, 8]
    assert [m["content"] for m in surface.history()] == ["word 0", "two to four", "word 4", "reply 5", "more"]
    assert surface.source(7) == (2, 3, 4) and surface.source(5) == ()
    assert surface.replace(7, 6, user("all of that")) == 9
    assert numbers(surface) == [1, 9, 8] and surface.source(9) == (7, 5, 6)
    assert [e["type"] for e in surface.events] == ["message"] * 6 + ["replace", "message", "replace"]
    assert surface.events[6]["reason"] == "compaction" and surface.last == 9


def test_a_rewind_brings_back_what_a_withdrawn_node_stood_for() -> None:
    surface = spoken(6)
    before = surface.history()
    surface.replace(1, 5, user("summary"))
    surface.append(assistant("later"))
    events = copy.deepcopy(surface.events)
    assert surface.rewind(6) == 9
    assert surface.history() == before and numbers(surface) == [1, 2, 3, 4, 5, 6]
    assert surface.events[:8] == events, "the log is never changed"
    surface.rewind(0)
    assert surface.history() == [] and surface.append(user("anew")) == 11


def test_the_transcript_knows_no_replacement() -> None:
    surface = spoken(4)
    said = surface.transcript()
    first = surface.replace(1, 2, user("summary"))
    surface.replace(first, 3, user("all"))
    assert surface.transcript() == said and numbers(surface) == [6, 4]
    assert [seq for seq, _ in surface.transcript(after=first)] == [5, 3, 4]
    surface.rewind(2)
    assert surface.transcript() == said[:2]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (1, 9), (3, 1), (2, 2), (1, 2)], ids=["0-1", "1-9", "back", "gone", "gone end"]
)
def test_a_range_that_is_not_in_the_view_is_refused_and_nothing_changes(start: int, end: int) -> None:
    surface = spoken(4)
    surface.replace(2, 2, assistant("other"))
    events = surface.events
    with pytest.raises(SurfaceError, match="nothing was replaced"):
        surface.replace(start, end, user("x"))
    assert surface.events == events


def test_some_replacements_are_judged_together() -> None:
    surface = spoken(5)
    note = {"type": "prune", "node": 1}
    plan = [Replacement(4, 4, assistant("four")), Replacement(1, 2, user("one and two"), "prune", note)]
    assert surface.replace_all(plan) == [6, 8]
    assert numbers(surface) == [8, 3, 6, 5] and surface.events[6] == {"seq": 7, **note}
    with pytest.raises(SurfaceError, match="share"):
        surface.replace_all([Replacement(8, 3, user("x")), Replacement(3, 6, user("y"))])
    with pytest.raises(SurfaceError, match="role"):
        surface.replace(3, 3, {"content": "no role"})
    assert surface.last == 8


@pytest.mark.parametrize(
    "item", ["text", {}, {"type": ""}, {"type": "replace", "start": 1}, {"content": "x"}, None], ids=repr
)
def test_what_is_neither_message_nor_event_is_refused(item: Any) -> None:
    surface = spoken(1)
    with pytest.raises(AgentLabError):
        surface.append_all([user("fine"), item])
    assert surface.last == 1


def test_a_rewind_to_a_number_to_come_is_refused() -> None:
    for to in (-1, 3):
        with pytest.raises(SurfaceError, match="cannot go back"):
            spoken(2).rewind(to)


def test_everything_is_written_through_and_read_again(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {"model": "m"}, id="s") as journal:
        surface = Surface(journal)
        for message in (user("a"), assistant("b"), user("c")):
            surface.append(message)
        surface.append({"type": "usage", "usage": {"prompt_tokens": 3}})
        surface.replace(2, 3, user("a and b"))
    again = Surface(Journal.open(tmp_path, "s"))
    assert again.nodes == surface.nodes == replay(journal.events()).nodes
    assert again.session.meta == {"model": "m"} and again.session.usage.prompt == 3
    assert again.source(6) == (2, 3)
    again.rewind(5)
    assert [m["content"] for m in replay(journal.events()).history] == ["a", "b", "c"]


def test_a_write_that_fails_leaves_the_view_as_it_was(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, id="s") as journal:
        surface = Surface(journal)
        surface.append(user("a"))
        other = Surface(Journal.open(tmp_path, "s"))
        with pytest.raises(JournalBusy):
            other.append(user("b"))
        with pytest.raises(JournalBusy):
            other.replace(2, 2, user("b"))
        assert other.history() == [user("a")]
    assert other.append(user("b")) == 3 and surface.history() == [user("a")]
    surface.refresh()
    assert surface.history() == [user("a"), user("b")]
    assert other.journal
    other.journal.close()


def test_a_batch_that_fails_half_way_leaves_the_view_as_the_log_is(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}) as journal:
        surface = Surface(journal)
        with pytest.raises(AgentLabError):
            surface.append_all([user("a"), {"role": "user", "content": object()}, user("c")])
        assert surface.nodes == replay(journal.events()).nodes == [(2, user("a"))]
        assert surface.append(user("b")) == 3 and surface.nodes == replay(journal.events()).nodes


def test_what_another_writer_appended_is_taken_in_with_the_next_append(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}) as journal:
        surface = Surface(journal)
        journal.append({"type": "message", "message": user("theirs")})
        assert surface.append(user("mine")) == 3
        assert surface.nodes == [(2, user("theirs")), (3, user("mine"))]


def test_an_event_of_another_program_names_its_ends() -> None:
    events: list[dict[str, Any]] = [
        {"type": "message", "message": user("a")},
        {"type": "message", "message": user("b")},
        {"type": "message", "message": user("c")},
        {"seq": 4, "type": "replace", "start": 1, "end": 3, "node": user("abc")},
    ]
    surface = Surface(events=events)
    assert surface.source(4) == (1, 3) and surface.history() == [user("abc")] and surface.append(user("d")) == 5


def test_torn_pairs_are_mended_in_the_view_only() -> None:
    surface = Surface()
    surface.append(assistant("", call("a", "run")))
    surface.append(user("and?"))
    assert problems(surface.history()) == [] and len(surface.history()) == 3 and len(surface.nodes) == 2


def test_a_recorder_writes_to_a_surface_as_to_a_journal(tmp_path: Path) -> None:
    registry = Registry()

    @registry.tool(read_only=True)
    def look() -> str:
        return "seen"

    simulator = Simulator([assistant("", call("a", "look")), "Done."])
    with Journal.create(tmp_path, {}) as journal:
        surface = Surface(journal)
        recorder = Recorder(surface)  # type: ignore[arg-type]
        turn = run_turn([user("Go.")], simulator.client(), registry, hooks=recorder.hooks)
        run(turn.run())
        recorder.finish(turn.history)
        assert surface.history() == turn.history == replay(journal.events()).history
        assert [m["role"] for m in surface.history()] == ["user", "assistant", "tool", "assistant"]
        assert replay(surface.events).tool_calls == replay(journal.events()).tool_calls != {}


def test_it_draws_itself() -> None:
    surface = spoken(3)
    surface.append_all([assistant("", call("a", "run")), tool("a", "<script>" * 99)])
    surface.replace(5, 5, tool("a", "<script>"))
    surface.replace(1, 2, {**user("<script>sum"), "origin": "compaction"})
    shown = surface._repr_html_()
    assert "7 events, 4 nodes, 2 replacements" in shown and "pruned" in shown and "summarised" in shown
    assert "<script" not in shown
