"""layers: the seed's limits on both sides, a view that is kept, failures that lose nothing, and the loop."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from hypothesis import given, settings
from hypothesis import strategies as st
from long_session import WINDOW, desk, get_through

from agentlab.agent import Agent
from agentlab.compaction import CompactionError
from agentlab.context import ContextManager, hooks
from agentlab.errors import AgentLabError, StopRequested
from agentlab.gates import Thresholds
from agentlab.interrupt import Stop
from agentlab.layers import FIELDS, CompactionManager, Layered, OverflowRetry, fields_summarizer, micro, snip
from agentlab.loop import Compacted, Hooks, run_turn
from agentlab.messages import Message, assistant, call, groups, jsonl, size_bytes, tool, user
from agentlab.pairing import problems, repair
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.simulator.tokens import render
from agentlab.spill import collect
from agentlab.summary import Breaker
from agentlab.tools import ToolResult
from agentlab.watchdog import LoopBudget
from tests.strategies import torn_histories, whole_histories

SYSTEM = {"role": "system", "content": "Rules."}


def five(goal: str = "Port it.") -> str:
    return json.dumps(dict.fromkeys(FIELDS, "") | {"current_goal": goal})


def numbers() -> Iterator[str]:
    return map(str, range(1, 100_000))


class Scribe:
    """A summariser that keeps what it was given, and answers with goals `S1`, `S2`, ... unless told otherwise."""

    def __init__(self, answer: Callable[[int], Any] = lambda number: five(f"S{number}")) -> None:
        self.sources: list[str] = []
        self.answer = answer

    def __call__(self, source: str) -> Any:
        self.sources.append(source)
        return self.answer(len(self.sources))


def manager_in(folder: Path, scribe: Any = None, **options: Any) -> CompactionManager:
    options.setdefault("ids", numbers().__next__)
    return CompactionManager(folder / "art", scribe or Scribe(), base=folder, **options)


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "art")) if (folder / "art").is_dir() else []


def rounds(count: int, *, first: int = 0, size: int = 20) -> list[Message]:
    history: list[Message] = []
    for n in range(first, first + count):
        history += [assistant("", call("a", "read_file", path=f"{n}.py")), tool("a", f"{n}:" + "x" * size)]
    return history


def of_size(length: int, text: str = "x") -> list[Message]:
    """Two messages of exactly so many bytes of canonical JSON Lines."""
    history = [user("Port it."), assistant("")]
    room = length - size_bytes(history)
    history[1]["content"] = text * (room // len(text.encode())) + "y" * (room % len(text.encode()))
    assert size_bytes(history) == length
    return history


def result(output: str, id: str = "a", **options: Any) -> ToolResult:
    return ToolResult(id, "run_shell", {}, options.pop("status", "completed"), output, **options)


# Layer one: results


@pytest.mark.parametrize("text", ["x", "é", "東", "🟡"])
@pytest.mark.parametrize(("length", "spilled"), [(29_999, False), (30_000, False), (30_001, True), (30_003, True)])
def test_a_result_above_thirty_thousand_bytes_goes_to_a_file(
    tmp_path: Path, text: str, length: int, spilled: bool
) -> None:
    wide = len(text.encode())
    output = "y" * (length % wide) + text * (length // wide)
    assert len(output.encode()) == length
    batch = manager_in(tmp_path).compact_tool_results([result(output)])
    [after] = batch.results
    assert (len(batch.spilled), batch.before) == (spilled, length)
    if not spilled:
        assert after == result(output) and files(tmp_path) == []
        return
    assert (tmp_path / str(after.output_path)).read_bytes() == output.encode()
    head, tail = after.output.split("\n… [")[0], after.output.split("] …\n")[1].rsplit("\n", 1)[0]
    assert output.startswith(head) and output.endswith(tail) and "\ufffd" not in after.output
    for end in (head, tail):
        assert 2_000 - wide < len(end.encode()) <= 2_000
    assert "tool-result-1.txt" in after.output.splitlines()[-1]


@pytest.mark.parametrize(("last", "spilled"), [(20_000, []), (20_001, ["art/tool-result-1.txt"])])
def test_a_batch_above_two_hundred_thousand_bytes_spills_its_largest_first(
    tmp_path: Path, last: int, spilled: list[str]
) -> None:
    sizes = [29_000, 30_000, 29_000, 30_000, 29_000, 29_000, 4_000, last]
    batch = manager_in(tmp_path).compact_tool_results([result("x" * size, str(at)) for at, size in enumerate(sizes)])
    assert batch.spilled == spilled and batch.before == 180_000 + last
    assert [r.call_id for r in batch.results if r.output_path] == (["1"] if spilled else [])


def failing_after(good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full from the file after `good` files on."""
    real, left = os.fsync, iter(range(good))

    def fsync(fd: int) -> None:
        if not os.path.isdir(f"/dev/fd/{fd}") and next(left, None) is None:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)


def assert_all_failed(results: list[ToolResult], before: list[ToolResult], reason: str) -> None:
    assert [r.call_id for r in results] == [r.call_id for r in before]
    for after, old in zip(results, before, strict=True):
        assert after.output.startswith("tool_result_processing_error: ") and reason in after.output
        assert after.status == ("failed" if old.status == "completed" else old.status)
        assert after.output_path == old.output_path and len(after.output.encode()) < 4_600
        assert old.output[:2_000] in after.output and old.output[-2_000:] in after.output


BATCH = [result("a" * 40_000, "1"), result("short", "2", output_path="other/0001-0123456789.txt"), result("", "3")]
BATCH += [result("b" * 50_000, "4", status="interrupted"), result("c" * 35_000, "5"), result("d" * 1_000, "6")]


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="tells files from folders there")
@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_disk_that_is_full_at_any_artifact_fails_the_batch_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    failing_after(good, monkeypatch)
    manager = manager_in(tmp_path)
    manager.store.root.mkdir()
    (manager.store.root / "tool-result-99.txt").write_text("of another batch")
    batch = manager.compact_tool_results(BATCH)
    assert_all_failed(batch.results, BATCH, "no space")
    assert batch.spilled == [] and files(tmp_path) == ["tool-result-99.txt"]
    assert manager.after_results(BATCH)[1].output_path == BATCH[1].output_path


def test_an_id_that_comes_twice_fails_the_batch_and_overwrites_nothing(tmp_path: Path) -> None:
    manager = manager_in(tmp_path, ids=iter(["1", "2", "1"]).__next__)
    batch = manager.compact_tool_results(BATCH)
    assert_all_failed(batch.results, BATCH, "tool-result-1.txt already")
    assert files(tmp_path) == []
    manager = manager_in(tmp_path, ids=lambda: "1")
    manager.store.save("was there before")
    assert_all_failed(manager.compact_tool_results(BATCH).results, BATCH, "already")
    assert (tmp_path / "art/tool-result-1.txt").read_text() == "was there before"


@pytest.mark.skipif(os.name == "nt", reason="symbolic links")
def test_a_folder_that_becomes_a_link_between_two_files_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()

    def ids() -> str:
        if (tmp_path / "art").exists() and not (tmp_path / "moved").exists():
            (tmp_path / "art").rename(tmp_path / "moved")
            (tmp_path / "art").symlink_to(tmp_path / "elsewhere")
        return str(len(os.listdir(tmp_path)))

    manager = manager_in(tmp_path, ids=ids)
    assert_all_failed(manager.compact_tool_results(BATCH).results, BATCH, "symbolic link")
    assert os.listdir(tmp_path / "elsewhere") == []
    found = run(manager.prepare(of_size(50_001)))
    assert found.history == of_size(50_001) and "symbolic link" in found.why


def test_a_folder_outside_of_the_workspace_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(AgentLabError, match="outside"):
        CompactionManager(tmp_path / "a", Scribe(), base=tmp_path / "b")


# Layers two to four: the view


@pytest.mark.parametrize("text", ["x", "é", "🟡"])
@pytest.mark.parametrize(("length", "asked"), [(49_999, 0), (50_000, 0), (50_001, 1), (50_004, 1)])
def test_a_view_above_fifty_thousand_bytes_is_summarised(tmp_path: Path, text: str, length: int, asked: int) -> None:
    scribe = Scribe()
    history = of_size(length, text)
    found = run(manager_in(tmp_path, scribe).prepare(history))
    assert (len(scribe.sources), found.shortened) == (asked, bool(asked))
    if not asked:
        assert found.history == history and files(tmp_path) == [] and found.transcript is None
        return
    [summary, words] = found.history
    assert words == history[0] and summary["origin"] == "compaction" and '"S1"' in summary["content"]
    assert (tmp_path / str(found.transcript)).read_bytes() == jsonl(history)
    assert [gate.name for gate in found.gates] == ["snip", "micro", "summary"]
    assert found.gates[-1].bytes_in == length and found.gates[-1].bytes_out == size_bytes(found.history)


def test_the_four_layers_one_after_the_other(tmp_path: Path) -> None:
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [SYSTEM, user("Port it."), *rounds(60, size=25_000)]
    before = copy.deepcopy(history)
    found = run(manager.prepare(history))
    assert history == before
    snipped_, micro_, summary = found.gates
    assert (snipped_.messages_in, snipped_.messages_out) == (122, 2 + 2 + 1 + 92)
    assert (micro_.messages_in, micro_.messages_out, micro_.acted) == (97, 97, True)
    assert snipped_.bytes_out == micro_.bytes_in and micro_.bytes_out == summary.bytes_in > 75_000
    assert found.history[0] == SYSTEM and found.history[2] == user("Port it.")
    assert found.history[3:] == history[-2:], "the model has not seen this result"
    assert (tmp_path / str(found.transcript)).read_bytes() == jsonl(history), "not what the layers made of it"
    assert "13 message groups left out" in scribe.sources[0] and "An older tool result" in scribe.sources[0]
    assert size_bytes(micro(snip(history))) == micro_.bytes_out


def test_the_same_history_is_returned_as_is_and_an_appended_one_goes_on_from_there(tmp_path: Path) -> None:
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [SYSTEM, *of_size(60_000)]
    first = run(manager.prepare(history))
    again = run(manager.prepare(copy.deepcopy(history)))
    assert again.history == first.history and not again.shortened and again.gates == ()
    grown = [*history, user("On."), *rounds(2)]
    second = run(manager.prepare(grown))
    assert jsonl(second.history) == jsonl([*first.history, *grown[3:]]) and not second.shortened
    assert len(scribe.sources) == 1 and len(files(tmp_path)) == 1
    third = run(manager.prepare(full := [*grown, assistant("z" * 50_000)]))
    assert len(scribe.sources) == 2 and "x" * 100 not in scribe.sources[1] and '"S1"' in scribe.sources[1]
    assert (tmp_path / str(third.transcript)).read_bytes() == jsonl(full)
    assert third.history[2:] == [user("On.")]


def test_any_other_history_is_worked_on_from_its_start(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    history = of_size(60_000)
    run(manager.prepare(history))
    for other in (history[:1], [user("Else."), *history[1:]], [*history[:1], user("In between."), assistant("x")]):
        expected = run(manager_in(tmp_path / "new").prepare(other))
        found = run(manager.prepare(other))
        assert found.history[1:] == expected.history[1:] and len(found.history) == len(expected.history)


def test_what_is_returned_is_the_callers_own_list(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    history = [user("a")]
    run(manager.prepare(history)).history.clear()
    history.append(user("b"))
    assert run(manager.prepare([user("a")])).history == [user("a")]


@pytest.mark.parametrize("count", [3, 4])
def test_micro_begins_at_the_fourth_exchange(tmp_path: Path, count: int) -> None:
    found = run(manager_in(tmp_path).prepare(rounds(count)))
    assert found.shortened == (count == 4) and (found.history == rounds(count)) == (count == 3)


@pytest.mark.parametrize("count", [50, 51])
def test_snip_begins_at_the_fifty_first_group(tmp_path: Path, count: int) -> None:
    found = run(manager_in(tmp_path).prepare([user(str(n)) for n in range(count)]))
    assert len(found.history) == 50 and found.gates[0].acted == (count == 51)


@given(history=whole_histories(max_turns=4), more=whole_histories())
def test_where_no_layer_acts_a_view_is_a_pure_extension(
    history: list[Message], more: list[Message], tmp_path_factory: pytest.TempPathFactory
) -> None:
    more = [message for message in more if message["role"] != "system"]
    manager = manager_in(tmp_path_factory.mktemp("m"), thresholds=Thresholds(keep=99))

    async def main() -> None:
        first = (await manager.prepare(history)).history
        second = (await manager.prepare([*history, *more])).history
        assert second == history + more and jsonl(second) == jsonl(first) + jsonl(more)

    asyncio.run(main())


@settings(max_examples=30)
@given(
    parts=st.lists(whole_histories() | torn_histories(), max_size=4),
    max_bytes=st.integers(400, 3_000),
    fails=st.booleans(),
)
def test_any_conversation(
    parts: list[list[Message]], max_bytes: int, fails: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Sound views, the person's last words in each, an untouched history, a transcript for every question."""
    folder = tmp_path_factory.mktemp("m")
    scribe = Scribe(lambda number: "prose" if fails else five(f"S{number}"))
    limits = Thresholds(max_groups=6, head=2, tail=3, keep=1, max_bytes=max_bytes)
    manager = manager_in(folder, scribe, thresholds=limits)
    history: list[Message] = []

    async def main() -> None:
        acted = fails  # a micro or a summary, after which the view depends on when it was made
        for part in parts:
            history.extend(part)
            before = copy.deepcopy(history)
            found = await manager.prepare(history)
            assert history == before and problems(found.history) == []
            assert len(files(folder)) >= len(scribe.sources)
            words = [m["content"] for m in repair(history).history if m["role"] == "user" and not m.get("origin")]
            assert not words or any(words[-1] in str(m["content"]) for m in found.history)
            if found.gates and found.gates[-1].name == "summary":
                assert (folder / str(found.transcript)).read_bytes() == jsonl(history)
            acted = acted or any(gate.acted for gate in found.gates[1:])
            if not acted:
                fresh = manager_in(folder / "fresh", thresholds=limits)
                assert (await fresh.prepare(history)).history == found.history

    asyncio.run(main())


# What goes wrong


WRONG: dict[str, Any] = {
    "blank": " \n",
    "prose": "They talked about code.",
    "fields": json.dumps({"goal": "x"}),
    "extra": json.dumps(dict.fromkeys([*FIELDS, "notes"], "x")),
    "types": json.dumps(dict.fromkeys(FIELDS, 1)),
    "call": assistant(five(), call("x", "run")),
    "nothing": None,
    "long": five("x" * 60_000),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("way", ["prepare", "compact_proactively", "compact_on_prompt_too_long"])
def test_a_summariser_that_answers_wrongly_changes_nothing(tmp_path: Path, kind: str, way: str) -> None:
    answers = iter([WRONG[kind]])
    manager = manager_in(tmp_path, Scribe(lambda number: next(answers, five())))
    history = [*of_size(55_000), *[user(str(n)) for n in range(6)]]
    found: Layered = run(getattr(manager, way)(history))
    assert found.history == history and not found.shortened and "summar" in found.why.lower()
    assert found.transcript and found.transcript in found.why
    assert (tmp_path / found.transcript).read_bytes() == jsonl(history)
    assert run(manager.prepare(history)).shortened, "it is asked again"


def test_a_transcript_that_cannot_be_written_leaves_the_summariser_unasked(tmp_path: Path) -> None:
    (tmp_path / "art").write_text("in the way")
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [*of_size(55_000), *[user(str(n)) for n in range(6)]]
    for way in (manager.prepare, manager.compact_proactively, manager.compact_on_prompt_too_long):
        found = run(way(history))
        assert found.history == history and not found.shortened and "transcript" in found.why
    assert scribe.sources == [] and (tmp_path / "art").read_text() == "in the way"


def test_an_id_that_is_taken_leaves_the_first_transcript(tmp_path: Path) -> None:
    manager = manager_in(tmp_path, ids=lambda: "same")
    assert run(manager.compact_proactively(of_size(9_000))).shortened
    found = run(manager.compact_proactively(of_size(9_001)))
    assert not found.shortened and "already" in found.why and found.history == of_size(9_001)
    assert (tmp_path / "art/transcript-same.jsonl").read_bytes() == jsonl(of_size(9_000))


def test_a_dead_summariser_is_not_asked_at_every_step_and_no_transcripts_pile_up(tmp_path: Path) -> None:
    scribe = Scribe(lambda number: "prose")
    manager = manager_in(tmp_path, scribe, breaker=Breaker(max_failures=2, rest=100))
    history = of_size(55_000)
    for n in range(20):
        history.append(user(str(n)))
        found = run(manager.prepare(history))
        assert found.history == history
    assert len(scribe.sources) == len(files(tmp_path)) == 2 and "2 times in a row" in found.why


def test_a_view_that_cannot_get_small_enough_is_not_summarised_for_ever(tmp_path: Path) -> None:
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [SYSTEM | {"content": "r" * 51_000}, user("Go.")]
    found = run(manager.prepare(history))
    assert "nothing to replace" in found.why and files(tmp_path) == []
    for n in range(9):
        history += rounds(1, first=n, size=9_000)
        found = run(manager.prepare(history))
    assert len(scribe.sources) == 3 and "3 summaries in a row" in found.why
    assert run(manager.prepare(history[1:])).history == micro(history[1:])


def test_an_interrupt_while_summarising_changes_nothing(tmp_path: Path) -> None:
    stop = Stop()

    async def slow(source: str) -> str:
        stop.request()
        await asyncio.sleep(60)
        return five()

    manager = manager_in(tmp_path, slow)
    history = [*of_size(55_000), user("On.")]
    with pytest.raises(StopRequested):
        run(manager.compact_proactively(history, stop=stop))
    assert run(manager.prepare([user("Else.")])).history == [user("Else.")] and len(files(tmp_path)) == 1


def test_a_message_that_is_no_json_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(AgentLabError, match="cannot be written as JSON"):
        run(manager_in(tmp_path).prepare([{"role": "user", "content": b"bytes"}]))


# The two other entries


def test_a_summary_on_demand_needs_no_threshold_and_is_kept(tmp_path: Path) -> None:
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [SYSTEM, *of_size(3_000)]
    found = run(manager.compact_proactively(history))
    assert found.shortened and [m["role"] for m in found.history] == ["system", "user", "user"]
    assert run(manager.prepare([*history, user("On.")])).history == [*found.history, user("On.")]
    assert len(scribe.sources) == 1


def test_after_a_refusal_the_last_five_groups_stay_as_they_were(tmp_path: Path) -> None:
    scribe = Scribe()
    history = [SYSTEM, user("Port it."), *rounds(9, size=2_000)]
    found = run(manager_in(tmp_path, scribe).compact_on_prompt_too_long(history))
    assert found.history[0] == SYSTEM and found.history[2] == user("Port it.")
    assert found.history[3:] == history[-10:] and len(groups(found.history)) == 3 + 5
    assert "3.py" in scribe.sources[0] and "4.py" not in scribe.sources[0]
    assert (tmp_path / str(found.transcript)).read_bytes() == jsonl(history)
    words_in_reach = [*history, user("On.")]
    found = run(manager_in(tmp_path / "b").compact_on_prompt_too_long(words_in_reach))
    assert found.history[2:] == words_in_reach[-9:], "no second copy of the words"


def test_the_second_try_in_a_window_is_refused(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    history = [user("Port it."), *rounds(9, size=2_000)]
    view = run(manager.prepare(history)).history
    shorter = run(manager.on_overflow(view))
    assert size_bytes(shorter) < size_bytes(view) and problems(shorter) == []
    with pytest.raises(OverflowRetry, match="one attempt"):
        run(manager.on_overflow(shorter))
    assert run(manager.prepare(history)).history == shorter, "no answer came in between"
    with pytest.raises(CompactionError):
        run(manager.compact_on_prompt_too_long(history))
    with pytest.raises(CompactionError):
        run(manager.compact_on_prompt_too_long(history, retry_count=1))
    assert run(manager.compact_on_prompt_too_long([SYSTEM, *of_size(9_000), *rounds(9)], retry_count=0)).shortened
    history += rounds(9, first=9, size=2_000)
    run(manager.prepare(history))
    assert len(run(manager.on_overflow([]))) == 12


def test_a_refusal_after_a_failed_summary_loses_no_new_message(tmp_path: Path) -> None:
    manager = manager_in(tmp_path, Scribe(lambda number: "prose" if number == 1 else five()))
    history = [user("a" * 9_000), assistant("b" * 9_000)]
    run(manager.prepare(history))
    history += [user("c" * 9_000), *rounds(9, size=6_000), user("The newest.")]
    assert run(manager.prepare(full := [*history, assistant("d" * 40_000), user("On.")])).transcript
    assert run(manager.on_overflow(full))[-1] == user("On.")


def test_a_refusal_with_nothing_to_leave_out_says_so(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    with pytest.raises(CompactionError, match="nothing to replace"):
        run(manager.on_overflow([SYSTEM, user("x" * 99)]))
    assert files(tmp_path) == []


@given(history=whole_histories(max_turns=6), more=whole_histories(max_turns=2), keep=st.integers(0, 4))
def test_any_refusal(
    history: list[Message], more: list[Message], keep: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    history = [user("w" * 3_000), *[m for m in [*history, *more] if m["role"] != "system"]]
    limits = Thresholds(max_groups=9, head=2, tail=6, keep=1, keep_groups=keep)
    manager = manager_in(tmp_path_factory.mktemp("m"), thresholds=limits)

    async def main() -> None:
        view = (await manager.prepare(history)).history
        found = await manager.compact_on_prompt_too_long(history)
        sent = await manager.prepare(history)
        assert sent.history == (found.history if found.shortened else view)
        assert problems(found.history) == []
        if found.shortened:
            tail = (
                [m for group in groups(history)[len(groups(history)) - keep :] for m in group.messages] if keep else []
            )
            assert size_bytes(found.history) < size_bytes(history)
            assert not tail or found.history[-1] == tail[-1]
            later = await manager.prepare([*history, user("On.")])
            assert problems(later.history) == [] and later.history[-1] == user("On.")
        else:
            assert found.history == view

    asyncio.run(main())


# In the loop


def test_a_refused_request_reaches_the_reactive_path_once(tmp_path: Path) -> None:
    simulator = Simulator(lambda request: "Fine.", context_window=800)
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [SYSTEM, user("Port it."), *rounds(12, size=1_400), *[user(f"And {n}?") for n in range(3)]]

    async def main() -> list[Any]:
        return [event async for event in run_turn(history, simulator.client(), desk(10), hooks=hooks(manager))]

    events = run(main())
    assert events[-1].reason == "done" and any(isinstance(event, Compacted) for event in events)
    assert len(simulator.requests) == 2 and len(scribe.sources) == 1
    assert simulator.requests[-1]["messages"][-1]["content"] == "And 2?"
    assert not any({"origin", "output_path"} & set(message) for message in simulator.requests[-1]["messages"])


def test_a_request_that_never_fits_is_tried_twice_and_the_history_is_kept(tmp_path: Path) -> None:
    simulator = Simulator(lambda request: "Fine.", context_window=400)
    history = [user("Port it."), *rounds(12, size=900), user("y " * 1_000)]

    async def main() -> Any:
        turn = run_turn(history, simulator.client(), desk(10), hooks=hooks(manager_in(tmp_path)))
        with pytest.raises(OverflowRetry):
            await turn.run()
        return turn

    assert run(main()).history == history and len(simulator.requests) == 2


def test_a_reply_that_reached_its_length_limit_is_no_refusal(tmp_path: Path) -> None:
    scribe = Scribe()
    simulator = Simulator(["many words " * 500], context_window=200)
    turn = run_turn([user("Go.")], simulator.client(), desk(10), hooks=hooks(manager_in(tmp_path, scribe)))
    assert run(turn.run()).reason == "length" and scribe.sources == []


def offline_model(request: dict[str, Any]) -> Any:
    """Reads a file for every word of the person, then answers. Without tools it is being asked for a summary.

    A summary may come between the two: it says whether the file was read.
    """
    messages = request["messages"]
    last = messages[-1]
    if "tools" not in request:
        return five("read" if last["content"].rsplit("\n=== ", 1)[1].startswith("tool result") else "open")
    if last["role"] == "tool" or '"current_goal":"read"' in messages[-2]["content"]:
        return "Done with this one."
    return assistant("", call(f"c{len(messages)}", "read_file", path=f"src/module_{len(messages)}.py"))


@pytest.mark.parametrize("turns", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_many_turns_in_a_small_window(tmp_path: Path, turns: int) -> None:
    simulator = Simulator(offline_model, context_window=WINDOW)
    client = simulator.client()
    manager = manager_in(tmp_path, fields_summarizer(client), thresholds=Thresholds().for_window(WINDOW))
    wired = hooks(manager, Hooks(after_results=manager.after_results))
    agent = Agent(client, desk(2_000), system="You are careful.", context=None, hooks=wired)
    summaries = get_through(agent, simulator, turns)
    assert summaries < 0.6 * turns, "not a summary at every step"
    spilled = [message["output_path"] for message in agent.history if "output_path" in message]
    assert len(spilled) == turns and all((tmp_path / path).stat().st_size > 1_900 for path in spilled)
    view = run(manager.prepare(agent.history)).history
    assert not [n for n in collect(manager.store, [agent.history, view]).removed if n.startswith("tool-result")]


def test_one_task_of_two_hundred_steps_is_never_forgotten(tmp_path: Path) -> None:
    task = "Port every module to v2, and do not touch the tests."
    left = iter(range(200))

    def script(request: dict[str, Any]) -> Any:
        if "tools" not in request:
            return five("Porting.")
        n = next(left, None)
        return "All done." if n is None else assistant("", call(f"c{n}", "read_file", path=f"{n}.py"))

    simulator = Simulator(script, context_window=WINDOW)
    client = simulator.client()
    manager = manager_in(tmp_path, fields_summarizer(client), thresholds=Thresholds().for_window(WINDOW))
    agent = Agent(
        client,
        desk(600),
        context=None,
        hooks=hooks(manager),
        budget=lambda: LoopBudget(300),
        policy=Policy(default="allow"),
    )
    assert asyncio.run(agent.send(task).run()).reason == "done"
    chats = [request for request in simulator.requests if "tools" in request]
    assert len(chats) == 201 and max(len(render(r["tools"], r["messages"])) for r in chats) < WINDOW
    assert all(any(task in str(m["content"]) for m in r["messages"] if m["role"] == "user") for r in chats)


def test_it_is_a_context_manager_and_its_views_draw_themselves(tmp_path: Path) -> None:
    manager: ContextManager = manager_in(tmp_path)
    found = run(manager.prepare(of_size(60_000)))
    assert "summarised" in found._repr_html_()


# What the model has not seen


def kinds(view: list[Message]) -> list[str]:
    return [message.get("origin") or message["role"] for message in view]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 60_000}}


@pytest.mark.parametrize(
    "question",
    [user("item, " * 1_000 + "and never touch prod.db"), {"role": "user", "content": [PICTURE]}],
    ids=["long", "image"],
)
@pytest.mark.parametrize("way", ["prepare", "compact_proactively", "compact_on_prompt_too_long"])
def test_what_the_person_asks_stays_last_and_whole(tmp_path: Path, question: Message, way: str) -> None:
    history = [SYSTEM, user("Hello."), *(assistant("w" * 9_000) for _ in range(7)), question]
    found = run(getattr(manager_in(tmp_path), way)(history))
    assert found.shortened and found.history[-1] is question
    words = ["user"] if isinstance(question["content"], list) and way != "compact_on_prompt_too_long" else []
    assert kinds(found.history)[: 2 + len(words)] == ["system", "compaction", *words]
    assert not words or found.history[2] == user("Hello.")
    assert ("has not seen" in found.why) == (size_bytes([question]) > 50_000)


def test_results_that_the_model_has_not_seen_stay_with_their_call(tmp_path: Path) -> None:
    scribe = Scribe()
    manager = manager_in(tmp_path, scribe)
    history = [user("Who sets TIMEOUT?")]
    for n in range(6):
        batch = [assistant("", call("a", "read", path=f"a{n}"), call("b", "read", path=f"b{n}"))]
        batch += [tool("a", "a" * 28_000 + f"TIMEOUT={n}"), tool("b", "b" * 28_000)]
        history += batch
        found = run(manager.prepare(history))
        assert found.history[-3:] == batch
        assert len(found.history) == (4 if n == 0 else 5), "summary, words, and what is new"
        steered = run(manager.prepare([*history, user("And why?")]))
        assert steered.history == [*found.history, user("And why?")]
    assert len(scribe.sources) == 5, "one for each batch, and none for a summary alone"
    assert all("TIMEOUT" in source for source in scribe.sources)


def test_what_is_too_large_alone_stays_and_why_says_so(tmp_path: Path) -> None:
    scribe = Scribe()
    found = run(manager_in(tmp_path, scribe).prepare([SYSTEM, user("x" * 60_000)]))
    assert found.history == [SYSTEM, user("x" * 60_000)] and not found.shortened
    assert "has not seen" in found.why and "60," in found.why and scribe.sources == []


@pytest.mark.parametrize(
    "limits", [Thresholds(keep=0), Thresholds(max_groups=2, head=1, tail=0)], ids=["micro", "snip"]
)
def test_the_cheap_layers_leave_it_alone_too(tmp_path: Path, limits: Thresholds) -> None:
    history = [user("Port it."), *rounds(9, size=300)]
    assert run(manager_in(tmp_path, thresholds=limits).prepare(history)).history[-2:] == history[-2:]
    answered = [*history, assistant("Done.")]
    found = run(manager_in(tmp_path / "b", thresholds=limits).prepare(answered)).history
    assert found[-2:] != answered[-2:] or len(found) < 4


def test_a_system_message_in_what_stays_stands_first_too(tmp_path: Path) -> None:
    mode = SYSTEM | {"content": "MODE"}
    manager = manager_in(tmp_path)
    history = [SYSTEM, *of_size(60_000), mode, user("On.")]
    view = run(manager.prepare(history)).history
    assert view[:2] == [SYSTEM, mode] and kinds(view) == ["system", "system", "compaction", "user"]
    assert run(manager.prepare([*history, assistant("Yes.")])).history == [*view, assistant("Yes.")]


def test_the_same_history_is_saved_once_however_often_the_summariser_fails(tmp_path: Path) -> None:
    scribe = Scribe(lambda number: "prose")
    manager = manager_in(tmp_path, scribe, breaker=Breaker(max_failures=2, rest=3))
    history = of_size(55_000)
    for _ in range(11):
        found = run(manager.prepare(history))
        assert found.history == history
    assert len(scribe.sources) == 4 and len(files(tmp_path)) == 1
    (tmp_path / "art" / files(tmp_path)[0]).unlink()
    found = run(manager_in(tmp_path, scribe).prepare(history))
    assert found.transcript and (tmp_path / found.transcript).read_bytes() == jsonl(history)
