"""compactor: the cut, the checkpoint, pressure and overflow with their bounds, the manual paths and why they fail."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentlab.compaction import CompactionError, Limits
from agentlab.compactor import Trigger
from agentlab.errors import AgentLabError, StopRequested
from agentlab.interrupt import Stop
from agentlab.journal import Journal
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.pairing import problems
from agentlab.summary import Breaker
from agentlab.surface import (
    CheckpointError,
    Compactor,
    Pruner,
    Surface,
    SurfaceError,
    checkpoint_node,
    tokens_of,
)
from tests.cases import case
from tests.clean_run import run


class Scribe:
    """A summariser that counts: `S1`, `S2`, ..."""

    def __init__(self, answer: Callable[[int], Any] = lambda number: f"S{number}") -> None:
        self.sources: list[str] = []
        self.answer = answer

    def __call__(self, source: str) -> Any:
        self.sources.append(source)
        return self.answer(len(self.sources))


def said(*messages: Message) -> Surface:
    surface = Surface()
    surface.append_all(messages)
    return surface


def rounds(count: int, *, first: int = 0, size: int = 200) -> list[Message]:
    history: list[Message] = []
    for n in range(first, first + count):
        history += [assistant("", call(f"c{n}", "read_file", path=f"a/{n}.py")), tool(f"c{n}", "x" * size)]
    return history


def numbers(surface: Surface) -> list[int]:
    return [seq for seq, _ in surface.nodes]


SYSTEM = {"role": "system", "content": "Rules."}
TASK = user("The task, in the person's own words.")


def hundred(message: Message) -> int:
    return 100


# The checkpoint


def test_the_checkpoint_is_a_frame_the_last_words_and_the_summary_in_its_tags() -> None:
    surface = said(SYSTEM, TASK, *rounds(3))
    made = run(Compactor(surface, Scribe()).compact_now())
    node = surface.nodes[1][1]
    assert (node["role"], node["origin"]) == ("user", "compaction")
    assert "<compacted-summary>\nS1\n</compacted-summary>" in node["content"]
    assert "The task, in the person's own words." in node["content"] and "5 earlier" in node["content"]
    assert made and (made.seq, made.start, made.end, made.source) == (9, 2, 6, (2, 3, 4, 5, 6))
    assert made.summary == "S1" and 0 < made.after < made.before and surface.source(9) == made.source
    assert surface.events[-1]["reason"] == "compaction" and "5 nodes" in made._repr_html_()


def test_a_tag_of_ours_in_a_summary_cannot_end_it() -> None:
    text = checkpoint_node("a</compacted-summary>b<compacted-summary>c", dropped=2)["content"]
    assert text.count("</compacted-summary>") == text.count("<compacted-summary>") == 1


def test_words_that_still_stand_behind_the_range_are_not_copied() -> None:
    surface = said(user("Old words."), *rounds(3), user("New words."))
    run(Compactor(surface, Scribe()).compact_now())
    assert numbers(surface) == [9, 8] and "words" not in surface.nodes[0][1]["content"]


def test_the_words_and_the_summary_go_on_into_the_next_checkpoint() -> None:
    surface, scribe = said(TASK, *rounds(3)), Scribe()
    compactor = Compactor(surface, scribe, goal="Ship it.")
    for n in range(1, 4):
        run(compactor.compact_now())
        assert "own words." in surface.nodes[0][1]["content"] and f"\nS{n}\n" in surface.nodes[0][1]["content"]
        surface.append_all(rounds(2, first=10 * n))
    assert "S1" in scribe.sources[1] and "S2" in scribe.sources[2] and "S1" not in scribe.sources[2]
    assert "compacted-summary" not in scribe.sources[1] and all("Ship it." in source for source in scribe.sources)


# The cut


def test_with_no_budget_only_the_last_node_stays() -> None:
    surface = said(*(user(f"Some words, number {n}.") for n in range(6)))
    run(Compactor(surface, Scribe()).compact_now())
    assert numbers(surface) == [7, 6]


@pytest.mark.parametrize(("budget", "kept"), [(0, 1), (1, 1), (100, 1), (101, 2), (300, 3), (550, 6)])
def test_the_budget_is_counted_from_the_end(budget: int, kept: int) -> None:
    surface = said(*(user(f"Some words, number {n}.") for n in range(10)))
    run(Compactor(surface, Scribe(), tokens=hundred).compact_now(retain_tokens=budget))
    assert len(surface.nodes) == kept + 1 and numbers(surface)[1:] == list(range(11 - kept, 11))


def test_the_cut_moves_left_off_a_pair() -> None:
    calls = [call("a", "run"), call("b", "run")]
    surface = said(TASK, assistant("I look."), assistant("", *calls), tool("a", "x" * 99), tool("b", "y" * 99))
    run(Compactor(surface, Scribe(), tokens=hundred).compact_now(retain_tokens=100))
    assert numbers(surface) == [6, 3, 4, 5] and problems(surface.history()) == []


def test_system_messages_at_the_start_stay() -> None:
    surface = said(SYSTEM, TASK, *rounds(2))
    run(Compactor(surface, Scribe()).compact_now())
    assert surface.history()[0] == SYSTEM


@pytest.mark.parametrize(
    "messages", [[], [TASK], [SYSTEM, TASK], [TASK, assistant("Yes.")], [SYSTEM, *rounds(1)]], ids=len
)
def test_nothing_to_do_is_none_and_asks_nobody(messages: list[Message]) -> None:
    surface, scribe = said(*messages), Scribe()
    assert run(Compactor(surface, scribe).compact_now()) is None
    assert scribe.sources == [] and surface.last == len(messages)


# The manual paths


def test_a_region_stays_off_pairs_that_it_has_in_part() -> None:
    surface, scribe = said(TASK, *rounds(4), user("More."), assistant("Done.")), Scribe()
    made = run(Compactor(surface, scribe).compact_region(3, 8))
    assert made and made.source == (4, 5, 6, 7) and numbers(surface) == [1, 2, 3, 12, 8, 9, 10, 11]
    assert problems(surface.history()) == [] and "own words" not in surface.nodes[3][1]["content"]
    assert run(Compactor(surface, scribe).compact_region(3, 3)) is None
    assert run(Compactor(surface, scribe).compact_region(12, 12)) is None, "a checkpoint is none to summarise"
    wider = run(Compactor(surface, scribe).compact_region(2, 9))
    assert wider and wider.source == (2, 3, 12, 8, 9) and "S1" in scribe.sources[-1]


def test_a_tiny_region_is_refused_with_its_own_size() -> None:
    surface, scribe = said(user("hi"), assistant("hello"), user("go on")), Scribe(lambda _: "A rather long summary.")
    with pytest.raises(CheckpointError, match=r"has 22 characters, .* only 5\. The view") as found:
        run(Compactor(surface, scribe).compact_region(2, 2))
    assert found.value.cause == "summary"
    alone = said(user("hi, all"))
    with pytest.raises(CheckpointError, match="these 7 characters are nothing else") as found:
        run(Compactor(alone, scribe).compact_region(1, 1))
    assert found.value.cause == "summary" and len(scribe.sources) == 1
    both = said(user("hi, all"), assistant("hello"))
    with pytest.raises(CheckpointError, match=r"only 5\. Beside it 7 characters"):
        run(Compactor(both, scribe).compact_region(1, 2))
    assert numbers(both) == [1, 2]


def test_by_hand_a_summariser_that_rests_is_asked_all_the_same() -> None:
    surface, works = said(*rounds(4)), False
    scribe = Scribe(lambda number: "S" if works else "")
    breaker = Breaker(max_failures=2, rest=50)
    compactor = Compactor(surface, scribe, breaker=breaker, limits=Limits(context_window=300))
    for _ in range(3):
        with pytest.raises(CompactionError):
            run(compactor.compact_if_needed("pressure"))
    asked = len(scribe.sources)
    assert breaker.failures == 2 == asked
    with pytest.raises(CheckpointError, match="returned nothing"):
        run(compactor.compact_now())
    assert (len(scribe.sources), breaker.failures) == (asked + 1, 3)
    works = True
    assert run(compactor.compact_region(numbers(surface)[0], numbers(surface)[3])) is not None
    assert breaker.failures == 0


def test_a_region_that_is_not_there_is_refused() -> None:
    surface = said(TASK, *rounds(2))
    for start, end in ((0, 2), (1, 9), (3, 2)):
        with pytest.raises(SurfaceError, match="look at surface"):
            run(Compactor(surface, Scribe()).compact_region(start, end))


def test_a_region_leaves_the_system_message_out_and_may_be_one_node() -> None:
    surface = said(SYSTEM, assistant("long " * 99), TASK)
    made = run(Compactor(surface, Scribe()).compact_region(1, 2))
    assert made and made.source == (2,)


def test_by_hand_nothing_is_pruned() -> None:
    surface = said(TASK, *rounds(3, size=20_000))
    compactor = Compactor(surface, Scribe(), limits=Limits(1_000), pruner=Pruner(100, 40, 10))
    run(compactor.compact_region(2, 3))
    run(compactor.compact_now())
    assert [event["type"] for event in surface.events[7:]] == ["replace", "replace"]
    assert surface.nodes[-1][1] == tool("c2", "x" * 20_000)


def failed(main: Any, cause: str) -> str:
    with pytest.raises(CheckpointError) as error:
        run(main)
    assert error.value.cause == cause and isinstance(error.value, CompactionError)
    return str(error.value)


@pytest.mark.parametrize(
    "answer",
    ["", " \n", None, 7, "y" * 9_999, assistant("", call("a", "run"))],
    ids=["empty", "blank", "none", "number", "long", "call"],
)
def test_a_summary_that_is_none_or_too_long_leaves_all_as_it_was(answer: Any) -> None:
    surface = said(TASK, *rounds(3))
    events = copy.deepcopy(surface.events)
    text = failed(Compactor(surface, Scribe(lambda _: answer)).compact_now(), "summary")
    assert "stays as it was" in text and surface.events == events


def test_a_summary_as_long_as_what_it_replaces_is_refused() -> None:
    messages = [assistant("x" * 50), assistant("y" * 50), TASK]
    failed(Compactor(said(*messages), Scribe(lambda _: "z" * 100)).compact_now(), "summary")
    assert run(Compactor(said(*messages), Scribe(lambda _: "z" * 99)).compact_now())


def test_a_summariser_that_raises_or_hangs_leaves_all_as_it_was() -> None:
    surface = said(TASK, *rounds(3))

    def broken(source: str) -> str:
        raise OSError("no line")

    async def endless(source: str) -> str:
        await asyncio.Event().wait()
        return ""

    assert "no line" in failed(Compactor(surface, broken).compact_now(), "summary")
    assert "0.01 s" in failed(Compactor(surface, endless, timeout_s=0.01).compact_now(), "summary")
    assert surface.last == 7


def test_one_compaction_at_a_time() -> None:
    surface = said(TASK, *rounds(3))
    seen: list[str] = []

    async def slow(source: str) -> str:
        for other in (compactor.compact_now(), compactor.compact_region(1, 1)):
            with pytest.raises(CheckpointError, match="running already") as error:
                await other
            seen.append(error.value.cause)
        return "S"

    compactor = Compactor(surface, slow)
    assert run(compactor.compact_now()) and seen == ["busy", "busy"]


def test_pressure_waits_for_the_compaction_that_is_running() -> None:
    surface, scribe = said(TASK, *rounds(9)), Scribe()

    async def main() -> Any:
        compactor = Compactor(surface, scribe, limits=Limits(1_000))
        return await asyncio.gather(compactor.compact_now(), compactor.compact_if_needed("pressure"))

    made, relief = run(main())
    assert made and not relief.changed and len(scribe.sources) == 1


@pytest.mark.parametrize("to", [0, 3, 5])
def test_a_range_that_changed_meanwhile_is_not_replaced(to: int) -> None:
    surface = said(TASK, *rounds(3))

    def summarize(source: str) -> str:
        surface.rewind(to)
        return "S"

    failed(Compactor(surface, summarize).compact_now(), "changed")
    assert len(surface.nodes) == to and surface.last == 8


def test_a_range_of_which_one_node_was_pruned_meanwhile_is_not_replaced() -> None:
    surface = said(TASK, *rounds(3))

    def summarize(source: str) -> str:
        surface.replace(3, 3, tool("c0", "short"))
        return "S"

    failed(Compactor(surface, summarize).compact_now(), "changed")


def test_words_that_arrive_meanwhile_do_no_harm() -> None:
    surface = said(TASK, *rounds(3))

    def summarize(source: str) -> str:
        surface.append(user("Wait."))
        return "S"

    assert run(Compactor(surface, summarize).compact_now())
    assert surface.history()[-1] == user("Wait.") and numbers(surface) == [9, 6, 7, 8]


def test_a_checkpoint_that_cannot_be_written_leaves_the_view(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, id="s") as journal:
        Surface(journal).append_all([TASK, *rounds(3, size=9_000)])
        other = Surface(Journal.open(tmp_path, "s"))
        before, data = other.history(), journal.path.read_bytes()
        compactor = Compactor(other, Scribe(), limits=Limits(1_000))
        failed(compactor.compact_now(), "write")
        failed(compactor.compact_if_needed("pressure"), "write")
        failed(compactor.compact_if_needed("overflow"), "write")
        assert other.history() == before and journal.path.read_bytes() == data
    assert run(compactor.compact_now())
    assert other.journal
    other.journal.close()


def test_stop_cuts_the_summariser_off_and_nothing_has_changed() -> None:
    stop, surface = Stop(), said(TASK, *rounds(3))

    async def slow(source: str) -> str:
        stop.request()
        await asyncio.Event().wait()
        return "S"

    compactor = Compactor(surface, slow)
    with pytest.raises(StopRequested):
        run(compactor.compact_now(stop=stop))
    assert surface.last == 7 and run(Compactor(surface, Scribe()).compact_now())


# Pressure


def test_below_the_threshold_nothing_happens() -> None:
    surface, scribe = said(TASK, *rounds(3)), Scribe()
    found = run(Compactor(surface, scribe, limits=Limits(4_000)).compact_if_needed("pressure"))
    assert not found.changed and found.before == found.after and scribe.sources == [] and surface.last == 7


def test_pruning_may_be_enough() -> None:
    surface, scribe = said(TASK, *rounds(3, size=1_200)), Scribe()
    found = run(Compactor(surface, scribe, limits=Limits(1_200)).compact_if_needed("pressure"))
    assert len(found.pruned) == 3 and not found.checkpoints and scribe.sources == []
    assert found.after < 900 <= found.before and "900" in found.why and "left" in found._repr_html_()


def test_else_a_checkpoint_is_made_and_the_budget_stays() -> None:
    surface, scribe = said(TASK, *rounds(40)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(4_000), retain_tokens=600)
    found = run(compactor.compact_if_needed("pressure"))
    assert len(found.checkpoints) == 1 and not found.pruned and len(scribe.sources) == 1
    tail = [message for _, message in surface.nodes[1:]]
    assert 600 <= sum(map(tokens_of, tail)) < 800 and found.after == compactor.measure()
    assert not run(compactor.compact_if_needed("pressure")).changed


def test_a_checkpoint_that_is_not_enough_is_followed_by_one_that_keeps_less() -> None:
    surface, scribe = said(TASK, *rounds(40)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(4_000), retain_tokens=2_950)
    found = run(compactor.compact_if_needed("pressure"))
    assert [len(made.source) > 2 for made in found.checkpoints] == [True, True]
    assert numbers(surface) == [83, 80, 81] and found.after < 3_000


def test_still_too_much_is_an_error_after_one_retry() -> None:
    huge = {"role": "system", "content": "Rules. " * 2_000}
    surface, scribe = said(huge, TASK, *rounds(40)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(4_000))
    with pytest.raises(CompactionError, match=r"2 checkpoints.*threshold is 3,000") as error:
        run(compactor.compact_if_needed("pressure"))
    assert len(scribe.sources) == 2 and "system prompt" in str(error.value)
    with pytest.raises(CompactionError, match="0 checkpoints"):
        run(compactor.compact_if_needed("pressure"))
    assert len(scribe.sources) == 2, "nothing new to summarise"


@pytest.mark.parametrize("retries", [0, 1, 2, 3])
def test_the_number_of_rounds_can_be_chosen(retries: int) -> None:
    huge = {"role": "system", "content": "Rules. " * 2_000}
    surface, scribe = said(huge, TASK, *rounds(60)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(4_000), retain_tokens=2_000, retries=retries)
    with pytest.raises(CompactionError, match=f"{retries + 1} checkpoints"):
        run(compactor.compact_if_needed("pressure"))
    assert len(scribe.sources) == retries + 1


def test_a_failing_summary_under_pressure_says_why_and_keeps_what_was_pruned() -> None:
    surface, scribe = said(TASK, *rounds(40, size=600)), Scribe(lambda _: "")
    compactor = Compactor(surface, scribe, limits=Limits(1_000))
    with pytest.raises(CompactionError, match=r"40 prunings and 0 checkpoints.*returned nothing"):
        run(compactor.compact_if_needed("pressure"))
    assert len(scribe.sources) == 1 and len(surface.nodes) == 81 and problems(surface.history()) == []


def test_what_the_provider_counted_beyond_the_estimate_is_added() -> None:
    surface, scribe = said(TASK, *rounds(3)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(2_000), retain_tokens=0)
    guess = compactor.measure()
    compactor.calibrate(1_500, guess)
    assert compactor.measure() == 1_500
    found = run(compactor.compact_if_needed("pressure"))
    assert len(found.checkpoints) == 1 and found.before == 1_500 and found.after < 1_500


# Overflow


def test_an_overflow_prunes_compacts_and_says_that_the_view_changed() -> None:
    surface, scribe = said(TASK, *rounds(10, size=1_000)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(2_000))
    triggers: list[Trigger] = ["overflow", "context-overflow"]
    for trigger in triggers:
        found = run(compactor.compact_if_needed(trigger))
        assert found.changed and found.after < found.before
        surface.append_all(rounds(5, first=20, size=1_000))


def test_pruning_alone_is_a_change_too() -> None:
    surface, scribe = said(TASK, *rounds(1, size=9_000)), Scribe(lambda _: "")
    found = run(Compactor(surface, scribe, limits=Limits(8_000)).compact_if_needed("overflow"))
    assert found.changed and len(found.pruned) == 1 and not found.checkpoints


def test_overflows_are_bounded_until_the_count_is_reset() -> None:
    surface, scribe = said(TASK, *rounds(30)), Scribe()
    compactor = Compactor(surface, scribe, limits=Limits(4_000), max_overflow_retries=2)
    sizes = []
    for n in range(2):
        run(compactor.compact_if_needed("overflow"))
        sizes.append(len(surface.nodes))
        surface.append_all(rounds(5, first=40 + 5 * n))
    with pytest.raises(CompactionError, match="3 requests in a row"):
        run(compactor.compact_if_needed("overflow"))
    assert sizes[0] > sizes[1] == 3 and len(scribe.sources) == 2
    compactor.reset()
    assert run(compactor.compact_if_needed("overflow")).changed


def test_an_overflow_with_nothing_to_gain_is_an_error() -> None:
    surface, scribe = said(user("y" * 9_999)), Scribe()
    with pytest.raises(CompactionError, match="9,999 characters"):
        run(Compactor(surface, scribe, limits=Limits(1_000)).compact_if_needed("overflow"))
    assert scribe.sources == [] and surface.last == 1


def test_bad_options_are_named() -> None:
    for options in ({"retries": -1}, {"retain_tokens": -1}, {"max_overflow_retries": -1}):
        with pytest.raises(AgentLabError, match="negative"):
            Compactor(Surface(), Scribe(), **options)  # type: ignore[arg-type]
    with pytest.raises(AgentLabError, match="pressure"):
        run(Compactor(Surface(), Scribe()).compact_if_needed("often"))  # type: ignore[arg-type]


# Cases


def test_c02_a_result_whose_call_was_summarised_goes_with_the_next_checkpoint() -> None:
    wanted = case("C02")["expected"]
    surface, scribe = said(user("Go."), assistant("", call("A", "run"))), Scribe()
    first = run(Compactor(surface, scribe).compact_region(1, 2))
    surface.append_all([tool("A", "late result"), assistant("x")])
    assert first and problems(surface.history()) == []
    second = run(Compactor(surface, scribe).compact_region(first.seq, first.seq))
    assert second and second.source == (3, 4) and "late result" in scribe.sources[-1]
    kept = [
        "summary" if m.get("origin") == "compaction" else f"{m['role']} '{m['content']}'" for m in surface.history()
    ]
    assert kept == wanted["rebuilt"] and not [m for m in surface.history() if m["role"] == "tool"]


def test_c02_rebuilt_from_the_log_as_it_stands() -> None:
    events: list[dict[str, Any]] = [
        {"type": "message", "message": assistant("", call("A", "run"))},
        {"type": "replace", "start": 1, "end": 1, "node": checkpoint_node("one", dropped=1)},
        {"type": "message", "message": tool("A", "late result")},
        {"type": "message", "message": assistant("x")},
        {"type": "replace", "start": 2, "end": 2, "node": checkpoint_node("two", dropped=1)},
    ]
    history = Surface(events=events).history()
    assert problems(history) == [] and history[-1] == assistant("x") and "two" in history[0]["content"]


def test_c07_one_result_that_fills_the_window_is_cut_on_its_own() -> None:
    found = case("C07")
    limit, filler = found["input"]["limit"], "some words of it, "
    result = tool("A", filler * 101)
    surface = said(user("Summarise the big file, then."), assistant("", call("A", "cat")), result, assistant("Hm."))
    assert 440 < tokens_of(result) < 480
    scribe = Scribe(lambda _: "")
    run(Compactor(surface, scribe, limits=Limits(limit)).compact_if_needed("pressure"))
    after = surface.nodes[2][1]
    assert (after["role"], after["tool_call_id"]) == ("tool", "A") and scribe.sources == []
    assert sum(map(tokens_of, surface.history())) <= found["expected"]["tokens_after_max"]
    assert problems(surface.history()) == []


def test_c07_it_is_cut_whatever_the_total_is() -> None:
    surface = said(TASK, assistant("", call("A", "cat")), tool("A", "word " * 1_120))
    compactor = Compactor(surface, Scribe(), limits=Limits(2_000, 90))
    assert compactor.measure() < compactor.limits.threshold
    assert len(run(compactor.compact_if_needed("pressure")).pruned) == 1


def test_c08_a_second_compaction_without_anything_new_is_skipped(tmp_path: Path) -> None:
    wanted = case("C08")["expected"]
    scribe = Scribe()
    with Journal.create(tmp_path, {}, id="s") as journal:
        surface = Surface(journal)
        surface.append_all([TASK, *rounds(18), assistant("Done.")])
        compactor = Compactor(surface, scribe)
        assert run(compactor.compact_now()) and run(compactor.compact_now()) is None
    again = Surface(Journal.open(tmp_path, "s"))
    assert run(Compactor(again, scribe).compact_now()) is None
    assert len(scribe.sources) == wanted["summariser_calls"]
    assert "S1" in again.history()[0]["content"] and len(again.history()) == 2
