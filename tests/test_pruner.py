"""pruner: lengths to the character, parts that are no text, keys that stay, the constraint, idempotence, the record."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.surface import MARKER, Pruner, Surface, prune_filling, tokens_of

LEAST = 4_096 + 39 + 1_024


def with_result(*results: Message) -> Surface:
    surface = Surface()
    surface.append(user("Go."))
    surface.append(assistant("", *(call(result["tool_call_id"], "run") for result in results)))
    surface.append_all(results)
    return surface


def text_in(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if "text" in part)


def test_the_marker_stands_between_blank_lines_that_count() -> None:
    assert len(MARKER) == 39 and MARKER.startswith("\n\n[") and MARKER.endswith("]\n\n")


@pytest.mark.parametrize("size", [LEAST + 1, 30_000, 400_000])
def test_what_is_left_has_one_length_whatever_there_was(size: int) -> None:
    text = "".join(chr(0x4E00 + n % 5_000) for n in range(size))
    short = Pruner(LEAST).text(text)
    assert len(short) == LEAST
    assert short == text[:4_096] + MARKER + text[-1_024:]


def test_at_the_threshold_nothing_happens() -> None:
    pruner = Pruner(6_000)
    assert pruner.text("x" * 6_000) == "x" * 6_000 and len(pruner.text("x" * 6_001)) == LEAST
    message = tool("a", "x" * 6_000)
    assert pruner.message(message) is message


def test_code_points_stay_whole() -> None:
    short = Pruner(60, 5, 3).text("😀" * 100)
    assert short == "😀" * 5 + MARKER + "😀" * 3 and len(short) == 47


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((LEAST - 1,), "5,159"), ((46, 5, 3), "threshold of 46"), ((100, -1, 3), "0 or more"), ((-1, 0, 0), "0 or more")],
)
def test_the_constraint_is_checked_at_construction(sizes: tuple[int, ...], words: str) -> None:
    with pytest.raises(AgentLabError, match=words):
        Pruner(*sizes)


def test_the_constraint_may_be_met_exactly() -> None:
    assert len(Pruner(47, 5, 3).text("x" * 48)) == 47
    assert Pruner(39, 0, 0).text("x" * 40) == MARKER


def test_only_the_content_changes() -> None:
    message = tool("a", "x" * 200) | {
        "turn": 3, "step": 2, "error": True, "output_path": "spill/1.txt", "origin": "import", "name": "run",
    }  # fmt: skip
    before = copy.deepcopy(message)
    short = Pruner(60, 5, 3).message(message)
    assert short == before | {"content": "xxxxx" + MARKER + "xxx"} and message == before


def test_parts_that_are_no_text_stay_where_they_are() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 500}}
    parts = [{"type": "text", "text": "abcd"}, image, {"type": "text", "text": "efgh", "cache_control": {}}]
    parts += [{"type": "text", "text": "-" * 90}, image, {"type": "text", "text": "wxyz"}]
    short = Pruner(60, 6, 3).message(tool("a", "") | {"content": parts})["content"]
    assert short == [
        {"type": "text", "text": "abcd"},
        image,
        {"type": "text", "text": "ef" + MARKER, "cache_control": {}},
        image,
        {"type": "text", "text": "xyz"},
    ]
    only_images = tool("a", "") | {"content": [image, image]}
    assert Pruner(60, 6, 3).message(only_images) is only_images


def test_no_other_role_is_cut() -> None:
    for message in (user("x" * 99), assistant("x" * 99), {"role": "system", "content": "x" * 99}):
        assert Pruner(60, 5, 3).message(message) is message


def test_a_record_beside_each_replacement_says_what_was_masked_and_its_worth() -> None:
    long, other = tool("b", "y" * 900), tool("c", "z" * 400)
    surface = with_result(tool("a", "ok"), long, other)
    log = copy.deepcopy(surface.events)
    found = Pruner(100, 40, 10).prune(surface)
    assert surface.events[:5] == log
    kinds = [(event["seq"], event["type"]) for event in surface.events[5:]]
    assert kinds == [(6, "prune"), (7, "replace"), (8, "prune"), (9, "replace")]
    new = [message for _, message in surface.nodes]
    saved = tokens_of(long) - tokens_of(new[3])
    assert surface.events[5] == {"seq": 6, "type": "prune", "node": 4, "tokens": tokens_of(long), "saved": saved}
    assert saved > 150 and (surface.events[6]["start"], surface.events[6]["end"]) == (4, 4)
    assert [seq for seq, _ in surface.nodes] == [1, 2, 3, 7, 9] and surface.source(7) == (4,)
    assert (found.nodes, found.replacements) == ((4, 5), (7, 9))
    assert found.before == tokens_of(long) + tokens_of(other) and found.after == tokens_of(new[3]) + tokens_of(new[4])
    assert surface.transcript()[3] == (4, long)
    again = Pruner(100, 40, 10).prune(surface)
    assert again.nodes == () and surface.last == 9, "a second look emits nothing"
    assert "2 tool results" in found._repr_html_()


parts = st.lists(
    st.text("ab😀\n\ud83d", max_size=60).map(lambda text: {"type": "text", "text": text})
    | st.just({"type": "image_url", "image_url": {"url": "u"}})
    | st.text("cd", max_size=30),
    max_size=6,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text("xyz😀\n", max_size=200) | parts, st.integers(0, 30), st.integers(0, 30), st.integers(0, 20))
def test_any_result(content: Any, head: int, tail: int, more: int) -> None:
    pruner = Pruner(head + tail + len(MARKER) + more, head, tail)
    message = tool("a", "") | {"content": content}
    short = pruner.message(message)

    def text(message: Message) -> str:
        content = message["content"]
        texts = [content] if isinstance(content, str) else content
        return "".join(it if isinstance(it, str) else it.get("text", "") for it in texts)

    old, new = text(message), text(short)
    if len(old) <= pruner.threshold_chars:
        assert short is message
    else:
        assert new == old[:head] + MARKER + (old[-tail:] if tail else "") and len(new) < len(old)
    assert pruner.message(short) is short
    images = [[part for part in it["content"] if "image_url" in part] for it in (message, short)]
    assert isinstance(content, str) or images[0] == images[1]


@given(st.integers(0, 20_000))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_pruner_for_any_threshold(threshold: int) -> None:
    pruner = Pruner.within(threshold)
    assert pruner.threshold_chars == max(39, threshold)
    assert abs(pruner.head_chars - 4 * pruner.tail_chars) <= 4 and pruner.head_chars <= 4_096
    if threshold >= LEAST:
        assert (pruner.head_chars, pruner.tail_chars) == (4_096, 1_024)


def test_a_pruner_for_a_window() -> None:
    assert [Pruner.for_window(tokens).threshold_chars for tokens in (0, 2_000, 128_000)] == [39, 800, 8_192]


@pytest.mark.parametrize("letter", ["word ", "字", "😀"], ids=["latin", "han", "emoji"])
def test_a_result_that_fills_the_window_is_cut_on_its_own(letter: str) -> None:
    size = {"word ": 400, "字": 600, "😀": 450}[letter]
    surface = with_result(tool("a", letter * size), tool("b", "x" * 900))
    assert tokens_of(surface.nodes[2][1]) > 250
    found = prune_filling(surface, 500)
    assert found.nodes == (3,) and 60 < tokens_of(surface.nodes[2][1]) < 200
    assert surface.nodes[3] == (4, tool("b", "x" * 900)), "less than half of the window"
    assert prune_filling(surface, 500).nodes == ()
