"""steer: words wait in order, none is lost or given twice, whatever thread they come from."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from agentlab.messages import user
from agentlab.pairing import problems
from agentlab.steer import SteerQueue


def test_words_come_out_once_and_in_order_as_a_persons_words() -> None:
    steer = SteerQueue()
    steer.put("also fix the docs")
    steer.put("  and\nbe brief ")
    assert len(steer) == 2
    assert steer.drain() == [user("also fix the docs"), user("  and\nbe brief ")]
    assert len(steer) == 0 and steer.drain() == []


@given(st.lists(st.text(" \n\tab\u3000é", max_size=4)))
def test_blank_words_are_ignored_and_all_others_stay_verbatim(words: list[str]) -> None:
    steer = SteerQueue()
    for text in words:
        steer.put(text)
    kept = [text for text in words if text.strip()]
    assert len(steer) == len(kept)
    assert steer.drain() == [user(text) for text in kept]


def test_two_queues_share_nothing() -> None:
    one, other = SteerQueue(), SteerQueue()
    one.put("a")
    assert len(other) == 0


def test_drained_words_need_no_repair_behind_a_batch() -> None:
    steer = SteerQueue()
    steer.put("a")
    assert problems(steer.drain()) == []


def test_many_threads_put_and_drain_and_nothing_is_lost_or_doubled() -> None:
    steer = SteerQueue()
    writers, each = 8, 300
    drained: list[list[str]] = [[], []]
    done = threading.Event()

    def write(name: int) -> None:
        for number in range(each):
            steer.put(f"{name} {number}")

    def read(mine: list[str]) -> None:
        last = False
        while not last:
            last = done.is_set()
            mine.extend(message["content"] for message in steer.drain())

    threads = [threading.Thread(target=write, args=(name,), daemon=True) for name in range(writers)]
    readers = [threading.Thread(target=read, args=(mine,), daemon=True) for mine in drained]
    for thread in threads + readers:
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()
    for thread in readers:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads + readers)
    assert sorted(drained[0] + drained[1]) == sorted(
        f"{name} {number}" for name in range(writers) for number in range(each)
    )
    for mine in drained:
        for name in range(writers):
            numbers = [int(text.split()[1]) for text in mine if text.split()[0] == str(name)]
            assert numbers == sorted(numbers)


def test_somebody_who_keeps_typing_does_not_hold_the_turn() -> None:
    class Eager(SteerQueue):
        """While it is drained, one more word goes in for each that comes out, up to a hundred."""

        def __init__(self) -> None:
            super().__init__()
            queue, refills = self._words, iter(range(100))

            class Refilled:
                put, qsize = queue.put, queue.qsize

                @staticmethod
                def get_nowait() -> str:
                    if next(refills, None) is not None:
                        queue.put("more")
                    return queue.get_nowait()

            self._words = Refilled()  # type: ignore[assignment]

    steer = Eager()
    steer.put("one")
    assert steer.drain() == [user("one")]
    assert len(steer) == 1


def test_a_drain_that_another_one_overtook_gives_what_is_left() -> None:
    class Overtaken(SteerQueue):
        def __len__(self) -> int:
            return super().__len__() + 1  # as it was, one word ago

    steer = Overtaken()
    steer.put("one")
    assert steer.drain() == [user("one")]
