"""surface as a whole: the worked example, and what holds after any sequence of operations on a journal."""

from __future__ import annotations

import copy
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab import compactor, pruner, surface, surfacemanager, surfaceview
from agentlab.assemble import Assembler
from agentlab.compaction import CompactionError, Limits
from agentlab.journal import Journal, fork, replay
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.pairing import problems
from agentlab.surface import Compactor, Pruner, Surface, SurfaceManager
from tests.cases import case
from tests.clean_run import run
from tests.strategies import torn_histories

TAG = re.compile(r"#\d+\.")


def echo(source: str) -> str:
    """A summary that tells as much as it can: every tag that the source holds."""
    return " ".join(sorted(set(TAG.findall(source)))) or "Nothing."


def tags(history: list[Message]) -> set[str]:
    return set(TAG.findall(str(history)))


def tagged(history: list[Message], first: int) -> list[Message]:
    """Copies of messages whose contents hold one number each, for ever different."""
    return [
        {**message, "content": f"#{first + at}. {message.get('content') or ''} " + "-" * (30 + at % 3 * 40)}
        for at, message in enumerate(history)
    ]


def test_every_name_can_be_imported_from_one_place() -> None:
    rooms = (compactor, pruner, surfacemanager, surfaceview)
    assert all(any(getattr(room, name, None) is getattr(surface, name) for room in rooms) for name in surface.__all__)


def test_seven_nodes_become_one_checkpoint_and_the_view_is_27_and_22() -> None:
    """Seed 002: retention 0, eight nodes of which the last is number 22, and the checkpoint is event number 27."""
    view = Surface()
    filler = {"type": "note", "text": "log only"}
    view.append_all([filler] * 4)
    calls = [call("c1", "read_file", path="a.py"), call("c2", "read_file", path="b.py")]
    view.append_all([user("Why does the build fail?"), filler, assistant("I look.", *calls), filler, filler])
    view.append_all([tool("c1", "line\n" * 60), filler, tool("c2", "line\n" * 70), filler, assistant("Found it.")])
    view.append_all([filler, user("Then fix it."), filler, assistant("It is fixed."), filler, filler, filler])
    assert view.append(assistant("Anything else?")) == 22
    view.append_all([filler] * 4)
    log = copy.deepcopy(view.events)
    made = run(Compactor(view, lambda source: "构建失败的原因已找到并修好。").compact_now(retain_tokens=0))
    assert [seq for seq, _ in view.nodes] == [27, 22]
    assert made and len(made.source) == 7 and view.source(27) == made.source and view.events[:26] == log
    assert "构建失败" in view.history()[0]["content"] and "Then fix it." in view.history()[0]["content"]
    assert run(Compactor(view, echo).compact_now()) is None


def test_three_nested_compactions_and_a_fork_at_every_event(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {"model": "m"}, id="main") as journal:
        view = Surface(journal)
        compact = Compactor(view, echo, limits=Limits(100_000), pruner=Pruner(200, 100, 50))
        views: dict[int, list[Message]] = {1: []}
        made = []
        for part in range(3):
            for n in range(4):
                at = 20 * part + 3 * n
                batch = [user(f"#{at}. go"), assistant("", call(f"c{at}", "run")), tool(f"c{at}", f"#{at + 1}." * 60)]
                for message in batch:
                    seq = view.append(message)
                    views[seq] = view.history()
            view.append({"type": "usage", "usage": {"prompt_tokens": 10}})
            if part == 1:
                Pruner(200, 100, 50).prune(view)
            made.append(run(compact.compact_now()))
            views[view.last] = view.history()
        first, second, third = (checkpoint for checkpoint in made if checkpoint)
        assert first.seq in second.source and second.seq in third.source
        assert tags(view.history()) > tags(list(views[13])), "a summary that tells everything"
        view.rewind(view.last - 3)
        views[view.last] = view.history()
        events = list(journal.events())
        for number, event in enumerate(events, 1):
            assert event["seq"] == number
            branch = fork(journal, number, id=f"b{number}")
            forked, prefix = Surface(branch), Surface(events=events[:number])
            assert forked.history() == prefix.history() == replay(events[:number]).history
            assert forked.nodes == prefix.nodes and problems(forked.history()) == []
            if number in views:
                assert forked.history() == views[number]
            ahead = tags([e["message"] for e in events[number:] if e["type"] == "message"])
            assert not tags(forked.history()) & ahead, "nothing that came later leaks into a branch"


operations = st.lists(
    st.one_of(
        st.tuples(st.just("say"), torn_histories(max_damages=2)),
        st.tuples(st.just("prune"), st.just(None)),
        st.tuples(st.just("compact"), st.integers(0, 60)),
        st.tuples(st.just("region"), st.tuples(st.integers(0, 30), st.integers(0, 30))),
        st.tuples(st.just("rewind"), st.integers(0, 40)),
        st.tuples(st.just("pressure"), st.just(None)),
        st.tuples(st.just("overflow"), st.just(None)),
        st.tuples(st.just("replace"), st.tuples(st.integers(0, 30), st.integers(0, 30))),
        st.tuples(st.just("resume"), st.just(None)),
    ),
    min_size=3,
    max_size=12,
)


ROUNDS = [user(""), assistant("", call("a", "run"), call("b", "run")), tool("a", ""), tool("b", ""), assistant("")]


def step(view: Surface, kind: str, value: Any, *, said: int) -> None:
    compact = Compactor(view, echo, limits=Limits(400), retain_tokens=60, pruner=Pruner(60, 12, 6))
    numbers = [seq for seq, _ in view.nodes]
    if kind == "say":
        view.append_all(tagged([*ROUNDS, *value], said))
    elif kind == "prune":
        Pruner(60, 12, 6).prune(view)
    elif kind == "rewind":
        view.rewind(max(0, view.last - value))
    elif kind in ("region", "replace") and numbers:
        low, high = sorted(at % len(numbers) for at in value)
        if kind == "replace":
            view.replace(numbers[low], numbers[high], user(" ".join(sorted(tags(view.history()))[:1])))
        else:
            run(compact.compact_region(numbers[low], numbers[high]))
    elif kind == "compact":
        run(compact.compact_now(retain_tokens=value))
    elif kind in ("pressure", "overflow"):
        run(compact.compact_if_needed(kind))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(operations)
def test_after_any_operations_the_view_is_the_replayed_log(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as root, Journal.create(root, {}) as journal:
        view, alone = Surface(journal), Surface(events=journal.events())
        said = 0
        for kind, value in [("say", []), *steps]:
            before, withdrawn_from = journal.path.read_bytes(), view.transcript()
            for target in (view, alone):
                with suppress(CompactionError):
                    step(target, kind, value, said=said)
            said += len(value) + len(ROUNDS) if kind == "say" else 0
            if kind == "resume":
                view = Surface(journal)
            assert journal.path.read_bytes().startswith(before), "the log only grows"
            session = replay(journal.events())
            assert session.history == view.history() == alone.history()
            assert session.nodes == view.nodes == alone.nodes and problems(view.history()) == []
            assert view.transcript() == alone.transcript() == Surface(events=journal.events()).transcript()
            if kind == "rewind":
                gone = withdrawn_from[len(view.transcript()) :]
                assert not tags(view.history()) & tags([message for _, message in gone]), "nothing withdrawn leaks"
            if kind == "prune":
                last = view.last
                assert Pruner(60, 12, 6).prune(view).nodes == () and view.last == last


@settings(max_examples=30, deadline=None, derandomize=True)
@given(torn_histories(), torn_histories(), st.integers(0, 99))
def test_through_the_manager_nothing_withdrawn_leaks(first: list[Message], second: list[Message], cut: int) -> None:
    manager = SurfaceManager(echo, limits=Limits(200), retain_tokens=20)
    history = tagged(first, 0)
    run(manager.prepare(history))
    branch = [*history[: cut % (len(history) + 1)], *tagged(second, 100)]
    view = run(manager.prepare(branch)).history
    assert tags(view) <= tags(branch) and problems(view) == []
    assert replay(manager.surface.events).history == view


def test_t07_reasoning_survives_save_and_resume(tmp_path: Path) -> None:
    found = case("T07")
    assembler = Assembler()
    for delta in found["input"]["deltas"]:
        assembler.feed({"choices": [{"delta": delta}]})
    message = assembler.message()
    result = tool("r", "text " * 99) | {"output_path": ".agent-spill/0001-0123456789.txt"}
    with Journal.create(tmp_path, {}, id="s") as journal:
        view = Surface(journal)
        view.append_all([user("go"), message, result])
        Pruner(60, 12, 6).prune(view)
    resumed = Surface(Journal.open(tmp_path, "s")).history()
    assert resumed[1] == message and resumed[2]["output_path"] == result["output_path"]
    assert resumed[1]["reasoning_content"] == found["expected"]["assistant_message_has"]["reasoning_content"]


@pytest.mark.parametrize("size", [1_000])
def test_many_prunings_and_one_checkpoint(size: int) -> None:
    view = Surface()
    for n in range(size):
        view.append_all([user("go"), assistant("", call(f"c{n}", "run")), tool(f"c{n}", "x" * 100)])
    assert len(Pruner(60, 12, 6).prune(view).nodes) == size
    made = run(Compactor(view, echo).compact_now())
    assert made and len(made.source) == 3 * size - 2 and len(view.nodes) == 3
