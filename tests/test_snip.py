"""snip: the figures of the seed on both sides, whole groups, counts that add up, and words that survive."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.messages import Message, assistant, call, groups, size_bytes, tool, user, wire
from agentlab.pairing import problems, repair
from agentlab.snip import left_words, snip, snipped
from tests.strategies import torn_histories, whole_histories

SYSTEM = {"role": "system", "content": "Rules."}
SUMMARY = {"role": "user", "content": "A summary.", "origin": "compaction"}
small = st.integers(0, 6)


def batch(n: int) -> list[Message]:
    """One group of three messages."""
    return [assistant("", call("a", "read", n=n), call("b", "read", n=n)), tool("a", f"A{n}"), tool("b", f"B{n}")]


def batches(count: int) -> list[Message]:
    return [message for n in range(count) for message in batch(n)]


@pytest.mark.parametrize("count", [0, 1, 49, 50])
def test_up_to_fifty_groups_nothing_happens(count: int) -> None:
    assert snip(batches(count)) == batches(count)


@pytest.mark.parametrize("count", [51, 52, 200])
def test_above_fifty_groups_three_a_marker_and_forty_six_are_left(count: int) -> None:
    history = batches(count)
    after = snip(history)
    assert after[:9] == history[:9] and after[10:] == history[-46 * 3 :]
    assert after[9]["role"] == "user" and after[9]["origin"] == "compaction" and str(count - 49) in after[9]["content"]
    assert snipped(after[9]) == count - 49 and len(groups(after)) == 50
    assert problems(after) == [] and snip(after) == after


def test_messages_that_are_no_calls_are_groups_too() -> None:
    history = [user(f"Words {n}.") for n in range(51)]
    after = snip(history)
    assert len(after) == 50 and after[:3] == history[:3] and after[4:] == history[5:]


def test_the_persons_last_words_survive_in_the_marker_from_one_snip_to_the_next() -> None:
    history = [SYSTEM, user("First."), *batches(2), user("Do this, and not that."), *batches(60)]
    after = snip(history)
    assert "verbatim:\nDo this, and not that." in after[5]["content"]
    again = snip([*after, *batches(50)])
    assert again == snip([*history, *batches(50)])
    assert again[5]["content"].endswith("verbatim:\nDo this, and not that.") and snipped(again[5]) == 66
    newer = snip([*again, user("New words."), *batches(2)])
    assert "Do this" not in str(newer) and snipped(newer[5]) == 69
    assert newer == snip([*history, *batches(50), user("New words."), *batches(2)])


@pytest.mark.parametrize(("length", "left"), [(4_000, 0), (4_001, 1), (90_000, 86_000)])
def test_long_words_are_cut_and_counted(length: int, left: int) -> None:
    marker = snip([*batches(3), user("é" * length), *batches(60)])[9]["content"]
    assert marker.count("é") == min(length, 4_000) and marker.endswith(f"[{left} characters omitted]") == (left > 0)


def test_words_cannot_pass_for_a_marker() -> None:
    fake = user("[900 message groups left out]\nx")
    assert snipped(fake) == 0
    marker = snip([*batches(3), fake, *batches(60)])[9]
    assert snipped(marker) == 15 and snip([*batches(3), marker, *batches(60)])[9]["content"].endswith(fake["content"])


def test_what_stands_first_stays_first() -> None:
    history = [SYSTEM, SYSTEM | {"role": "developer"}, SUMMARY, user("Words."), *batches(60)]
    assert snip(history, 10, 0, 5)[:3] == history[:3] and len(snip(history, 10, 0, 5)) == 4 + 15
    once = snip([*batches(2), *history[3:]], 10, 0, 5)
    assert snipped(once[0]) == 58 and len(groups(snip([*once, *batches(20)], 10, 0, 5))) == 6


@pytest.mark.parametrize(("count", "left"), [(9, 9), (10, 10), (11, 6)])
def test_a_limit_above_what_is_left_gives_room_to_grow(count: int, left: int) -> None:
    assert len(groups(snip(batches(count), 10, 2, 3))) == left


def test_one_group_is_never_left_out_alone() -> None:
    history = batches(8)
    assert snip(history, 7, 3, 4) == history and snipped(snip(history, 7, 3, 3)[9]) == 2
    assert snip(history, 0, 0, 0) == [
        {"role": "user", "content": "[8 message groups left out]"} | {"origin": "compaction"}
    ]
    assert snip(history, 2, 90, 90) == history


@pytest.mark.parametrize("numbers", [(-1, 3, 46), (50, -1, 46), (50, 3, -1)], ids=str)
def test_negative_numbers_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(AgentLabError, match="negative"):
        snip([], *numbers)


@given(whole_histories(max_turns=9) | torn_histories(), small, small, small)
def test_any_history(history: list[Message], max_groups: int, head: int, tail: int) -> None:
    before = copy.deepcopy(history)
    after = snip(history, max_groups, head, tail)
    assert history == before and problems(after) == []
    assert snip(after, max_groups, head, tail) == after
    sound = repair(history).history
    made = [message for message in after if snipped(message)]
    at = after.index(made[0]) if made else len(after)
    assert len(made) <= 1 and after[:at] == sound[:at] and after[at + 1 :] == sound[len(sound) - len(after) + at + 1 :]
    assert sum(map(snipped, made)) + len(groups(after)) - len(made) == len(groups(sound))
    if len(groups(sound)) <= max_groups:
        assert after == sound
    words = [m["content"] for m in sound if m["role"] == "user" and not m.get("origin")]
    assert not words or any(words[-1] in str(m["content"]) for m in after)


@given(st.lists(whole_histories(), max_size=6), st.integers(0, 3), st.integers(0, 5))
def test_snipping_again_and_again_is_the_same_as_snipping_once(
    parts: list[list[Message]], head: int, tail: int
) -> None:
    """Where the limit is just what is left, as in the figures of the seed: else a snip leaves room to grow."""
    history: list[Message] = []
    view: list[Message] = []
    for part in parts:
        part = [message for message in part if message["role"] != "system"]
        history, view = [*history, *part], snip([*view, *part], head + tail + 1, head, tail)
        assert view == snip(history, head + tail + 1, head, tail)


def test_a_marker_is_never_longer_than_what_it_stands_for() -> None:
    note = user("x") | {"origin": "watchdog"}
    spoken, silent = ([user("First."), first, note, assistant("b")] for first in (user("Go."), note))
    assert snip(spoken, 2, 1, 1) == spoken
    assert len(snip(silent, 2, 1, 1)) == 3, "without words to quote it is shorter"
    assert len(snip([user(str(n)) for n in range(51)])) == 50


@given(whole_histories(max_turns=9), small, small, small)
def test_no_snip_lengthens(history: list[Message], max_groups: int, head: int, tail: int) -> None:
    assert size_bytes(wire(snip(history, max_groups, head, tail))) <= size_bytes(wire(repair(history).history))


def test_the_words_of_a_marker_can_be_read() -> None:
    for words in ("Do this.", "é" * 9_000):
        marker = snip([*batches(3), user(words), *batches(60)])[9]
        assert left_words(marker) == (words[:4_000], len(words))
        assert left_words(marker | {"content": [{"type": "text", "text": marker["content"]}]}) == left_words(marker)
    assert left_words(user("Do this.")) is None and left_words(snip(batches(60))[9]) is None
