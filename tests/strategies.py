"""Hypothesis strategies for histories: whole ones, torn ones, and ones that are hardly histories at all.

Every text in a history is numbered, so that a test can tell whether one of them was lost. Ids come from a small pool,
so that they recur in later turns, as they do with real servers.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from agentlab.messages import Message, assistant, tool, user

IDS = ["a", "b", "c", "call_9"]
SOUND_ARGUMENTS = ["{}", '{"path":"a.txt"}', '{ "n" : 1.50 }', '{"text":"\\u00e9 é \\n"}', '{"deep":{"list":[1,null]}}']
BROKEN_ARGUMENTS = ["", " ", '{"path":"READ', "null", "[1]", '"text"', "7", "{}}", "{'a': 1}", '{"a":1,}', "\x00"]

texts = st.text("abz é😀\n\"'<&\u2028", max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def tool_call(id: Any, arguments: Any = "{}", *, name: Any = "run") -> dict[str, Any]:
    """A tool call in the wire shape, with exactly the values that are given."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@st.composite
def whole_histories(draw: st.DrawFn, *, max_turns: int = 3) -> list[Message]:
    """Well-formed histories: a system message or none, then turns of words, tool batches and a reply.

    The last turn may end anywhere between two batches.
    """
    history: list[Message] = []

    def numbered() -> str:
        return f"#{len(history)} {draw(texts)}."

    if draw(st.booleans()):
        history.append({"role": "system", "content": numbered()})
    for _ in range(draw(st.sampled_from(range(max_turns + 1)))):
        history.append(user(numbered()))
        for _ in range(draw(st.sampled_from([1, 0, 2]))):
            ids = draw(st.permutations(IDS))[: draw(st.sampled_from([2, 1, 3]))]
            calls = [tool_call(id, draw(st.sampled_from(SOUND_ARGUMENTS))) for id in ids]
            history.append(assistant(draw(st.sampled_from(["", "I look."])), *calls))
            for id in ids:
                history.append(tool(id, numbered()))
        if draw(st.booleans()):
            history.append(assistant(numbered()))
    return history


@st.composite
def torn_histories(draw: st.DrawFn, *, max_damages: int = 6) -> list[Message]:
    """Whole histories after interrupts, crashes and careless edits. Every entry is still a message of the right shape:
    only calls and results that do not match, odd orders, cut arguments, repeated ids, and empty messages."""
    history = draw(whole_histories())
    for _ in range(draw(st.sampled_from(range(1, max_damages + 1)))):
        history = _damage(draw, history)
    return history


def _damage(draw: st.DrawFn, history: list[Message]) -> list[Message]:
    history = copy.deepcopy(history)
    note = f"+{len(history)} {draw(texts)}."
    additions: dict[str, Message] = {
        "word": user(note),
        "orphan": tool(draw(st.sampled_from(IDS)), note),
        "placeholder": tool(draw(st.sampled_from(IDS)), "did not run") | {"origin": "repair"},
        "shell": assistant(draw(st.sampled_from(["", " \n"]))),
        "no content": {"role": "assistant", "content": None},
        "half": assistant(note),
        "twins": assistant("", tool_call("a"), tool_call("a")),
    }
    kind = draw(st.sampled_from([*additions, "cut", "lose", "repeat", "repeat", "move", "swap", "swap", "arguments"]))
    if kind in additions:
        history.insert(draw(st.sampled_from(range(len(history) + 1))), additions[kind])
        return history
    at = draw(st.sampled_from(range(len(history) or 1)))
    to = draw(st.sampled_from([at + 1, at - 1, *range(len(history))]))
    if not history:
        pass
    elif kind == "cut":
        del history[at:]
    elif kind == "lose":
        del history[at]
    elif kind == "repeat":
        again = copy.deepcopy(history[at])
        if again["role"] in ("user", "tool") and draw(st.booleans()):
            again["content"] = note
        history.insert(to, again)
    elif kind == "move":
        history.insert(to, history.pop(at))
    elif kind == "swap":
        to %= len(history)
        history[at], history[to] = history[to], history[at]
    else:
        for call in (call for message in history for call in message.get("tool_calls", [])):
            call["function"]["arguments"] = draw(st.sampled_from([*BROKEN_ARGUMENTS, *SOUND_ARGUMENTS]))
    return history


@st.composite
def malformed_histories(draw: st.DrawFn) -> list[Any]:
    """Torn histories with entries that are no messages, and calls and results of the wrong shape.

    What a person or a tool said stays recognisable, and nothing is wrong that has nothing to do with calls and results.
    """
    history: list[Any] = copy.deepcopy(draw(torn_histories(max_damages=3)))
    ids = st.sampled_from([None, "", 7, ["x"], *IDS])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(history)))
        no_call = st.sampled_from(
            [None, "call", 5, {}, {"id": "a"}, {"id": "a", "function": None}, tool_call("a", name="")]
        )
        odd_call = st.builds(
            tool_call,
            ids,
            st.sampled_from([None, 7, {"a": 1}, ["a"], *BROKEN_ARGUMENTS]),
            name=st.sampled_from(["r", "r.x/é"]),
        )
        history.insert(
            at,
            draw(
                st.one_of(
                    st.sampled_from(
                        [None, 42, "words", ["list"], {}, {"content": "no role"}, {"role": None}, {"role": 3}]
                    ),
                    st.sampled_from([None, [], {}, "text", 0]).map(
                        lambda calls: assistant("t") | {"tool_calls": calls}
                    ),
                    st.lists(no_call | odd_call, min_size=1, max_size=4).map(lambda calls: assistant("", *calls)),
                    st.builds(lambda id, value: tool(id, value), ids, json_values),
                    st.just({"role": "tool", "content": f"*{len(history)} without an id"}),
                    st.just({"role": "assistant"}),
                )
            ),
        )
    return history
