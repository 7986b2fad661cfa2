"""Session files of other products: what each format needs; files that are damaged, huge or something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import transcripts
from agentlab.messages import wire
from agentlab.pairing import problems, repair
from agentlab.simulator.openai_rules import refuse
from agentlab.transcripts import Transcript, TranscriptError, UnsupportedFormat, builder, source
from tests.strategies import json_values

SAMPLES = Path(__file__).parent.parent / "data" / "sessions"
FILES = [
    "claude_code_1.0.x_edge_cases.jsonl",
    "claude_code_2.1.0_rewind_then_compact.jsonl",
    "claude_code_2.1.4_interrupted_tool_use.jsonl",
    "codex_rollout_0.129.0_small.jsonl",
    "mini_swe_agent_bare_list.traj.json",
    "openai_chat_tau_airline_3.json",
    "swe_agent_thought_action.traj",
]


def lines(path: Path, *records: Any) -> Path:
    path.write_bytes("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())
    return path


def said(role: str, *blocks: Any, id: str | None = None, **fields: Any) -> dict[str, Any]:
    """A record of Claude Code."""
    message: dict[str, Any] = {"role": role, "content": list(blocks), "usage": fields.pop("usage", None)}
    return {"type": role, "sessionId": "s", "message": message | ({"id": id} if id else {}), **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def answer(id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    """A record of Codex."""
    return {"type": "response_item", "payload": {"type": kind, **fields}}


def shape(transcript: Transcript) -> list[str]:
    """A history in short: role, then text, call ids or call id."""
    short = []
    for message in transcript.history:
        ids = [call["id"] for call in message.get("tool_calls", [])] or [message.get("tool_call_id")]
        short.append(f"{message['role']} {message['content']} {'+'.join(i for i in ids if i)}".strip())
    return short


def dropped(transcript: Transcript) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {entry.kind: (entry.count, entry.lines) for entry in transcript.dropped}


@pytest.mark.parametrize("name", FILES)
def test_every_sample_is_accepted_after_repair(name: str) -> None:
    for transcript in transcripts.sessions(SAMPLES / name):
        mended = repair(transcript.history).history
        assert transcript.history and not problems(mended)
        assert refuse({"model": "m", "messages": wire(mended)}) is None
        assert transcript.format == transcripts.detect(SAMPLES / name)


@pytest.mark.parametrize(
    ("name", "format", "messages", "sessions"),
    [
        ("claude_code_1.0.x_edge_cases.jsonl", "claude-code", 12, 1),
        ("claude_code_2.1.0_rewind_then_compact.jsonl", "claude-code", 11, 1),
        ("claude_code_2.1.4_interrupted_tool_use.jsonl", "claude-code", 12, 1),
        ("codex_rollout_0.129.0_small.jsonl", "codex", 9, 1),
        ("mini_swe_agent_bare_list.traj.json", "mini-swe-agent", 22, 1),
        ("openai_chat_tau_airline_3.json", "openai", 62, 3),
        ("swe_agent_thought_action.traj", "swe-agent", 12, 1),
    ],
)
def test_the_samples(name: str, format: str, messages: int, sessions: int) -> None:
    every = list(transcripts.sessions(SAMPLES / name))
    assert (every[0].format, len(every[0].history), len(every)) == (format, messages, sessions)


def test_records_that_are_none_are_counted_with_their_lines() -> None:
    counted = dropped(transcripts.read(SAMPLES / "claude_code_1.0.x_edge_cases.jsonl"))
    assert counted["a str instead of a record"] == (1, (13,))
    assert counted["a int instead of a record"] == (1, (15,))
    assert counted["a list instead of a record"] == (1, (16,))
    assert counted["a record without a type"] == (1, (14,))


def test_a_reply_in_several_records_is_one_message_with_its_last_usage(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        said("user", text("go")),
        said("assistant", text("I look."), id="m1", usage={"input_tokens": 10, "output_tokens": 8}),
        {"type": "summary", "summary": "between", "leafUuid": "x"},
        said("assistant", use("a"), id="m1", usage={"input_tokens": 10, "output_tokens": 8}),
        said("user", answer("a", [text("one"), text("two")])),
        said("assistant", use("b"), id="m1", usage={"input_tokens": 10, "output_tokens": 90}),
        said("user", answer("b", "three")),
    )
    read = transcripts.read(path)
    assert shape(read) == ["user go", "assistant I look. a+b", "tool one\ntwo a", "tool three b"]
    assert [(used.usage.output, used.line) for used in read.usages] == [(90, 2)]


def test_a_late_result_goes_to_its_call_and_an_id_may_come_back(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        said("assistant", use("a"), use("b"), id="m1", parentUuid=None, uuid="1"),
        said("user", answer("b", "B"), parentUuid="1", uuid="2"),
        said("assistant", use("b"), id="m2", parentUuid="2", uuid="3"),
        said("user", answer("a", "A"), parentUuid="1", uuid="4"),
        said("user", answer("b", "B again"), parentUuid="3", uuid="5"),
    )
    read = transcripts.read(path)
    assert shape(read) == ["assistant  a+b", "tool B b", "tool A a", "assistant  b", "tool B again b"]
    assert read.meta["moved_results"] == 1


def test_sub_agents_in_the_same_file_are_sessions_of_their_own(tmp_path: Path) -> None:
    side = {"isSidechain": True}
    path = lines(
        tmp_path / "a.jsonl",
        said("user", text("main"), uuid="1", isSidechain=False),
        said("user", text("first"), uuid="2", parentUuid=None, **side),
        said("user", text("second"), uuid="3", parentUuid=None, **side),
        said("assistant", text("to the first"), uuid="4", parentUuid="2", **side),
        said("assistant", text("to the second"), uuid="5", parentUuid="3", **side),
    )
    assert [shape(one)[-1] for one in transcripts.sessions(path)] == [
        "user main",
        "assistant to the first",
        "assistant to the second",
    ]
    assert transcripts.read(path).dropped[-1].count == 2


def test_compactions_and_rewinds_are_told_and_the_log_stays_whole() -> None:
    read = transcripts.read(SAMPLES / "claude_code_2.1.0_rewind_then_compact.jsonl")
    assert [message.get("origin", "") for message in read.history] == [""] * 7 + ["compaction"] + [""] * 3
    assert (read.meta["compactions"], read.meta["rewinds"]) == (1, 1)
    assert [used.compacted for used in read.usages] == [False, False, False, True, False]


def test_a_repeated_record_counts_once_and_what_the_product_wrote_is_marked(tmp_path: Path) -> None:
    again = said("user", text("hello"), uuid="1")
    path = lines(
        tmp_path / "a.jsonl",
        again,
        again,
        said("user", text("caveat"), uuid="2", isMeta=True),
        said("assistant", text("API Error"), uuid="3", isApiErrorMessage=True),
    )
    read = transcripts.read(path)
    assert [message.get("origin") for message in read.history] == [None, "meta"]
    assert dropped(read)["a repeated record"] == (1, (2,))
    assert dropped(read)["an API error shown as a message"] == (1, (4,))


def test_codex_reads_items_and_not_their_echo_on_the_screen(tmp_path: Path) -> None:
    count = {"last_token_usage": {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 5}}
    tokens = {"type": "event_msg", "payload": {"type": "token_count", "info": count | {"total_token_usage": {"t": 1}}}}
    path = lines(
        tmp_path / "a.jsonl",
        {"type": "session_meta", "payload": {"id": "x", "base_instructions": {"text": "be good"}}},
        item("message", role="user", content=[{"type": "input_text", "text": "go"}]),
        {"type": "event_msg", "payload": {"type": "agent_message", "message": "I look."}},
        item("message", role="assistant", content=[{"type": "output_text", "text": "I look."}]),
        item("function_call", call_id="a", name="shell", arguments='{"x":1}'),
        item("custom_tool_call", call_id="b", name="apply_patch", input="*** Begin"),
        tokens,
        tokens,
        {"type": "event_msg", "payload": {"type": "token_count", "info": None}},
        item("function_call_output", call_id="a", output={"type": "input_text", "text": "object"}),
        item("custom_tool_call_output", call_id="b", output=[{"type": "input_text", "text": "list"}]),
        item("message", role="assistant", content=[{"type": "output_text", "text": "Done."}]),
        {"type": "compacted", "payload": {"message": "summary", "replacement_history": [{"type": "message"}]}},
    )
    read = transcripts.read(path)
    assert shape(read) == [
        "system be good", "user go", "assistant I look. a+b", "tool object a", "tool list b", "assistant Done.",
        "user summary",
    ]  # fmt: skip
    assert [(used.usage.prompt, used.usage.hit) for used in read.usages] == [(100, 60)]
    assert json.loads(read.history[2]["tool_calls"][1]["function"]["arguments"]) == {"input": "*** Begin"}
    assert dropped(read)["an entry of a replacement_history"] == (1, (13,))


def test_a_rollout_that_begins_with_a_compaction_starts_from_its_replacement(tmp_path: Path) -> None:
    entry = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "earlier"}]}
    path = lines(
        tmp_path / "a.jsonl", {"type": "compacted", "payload": {"message": "", "replacement_history": [entry]}}
    )
    assert shape(transcripts.read(path)) == ["user earlier"]


def test_swe_agent_ids_in_a_list_and_observations(tmp_path: Path) -> None:
    call = {"id": "a", "function": {"name": "ls", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "shown", "is_demo": True},
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "", "tool_calls": [call, call | {"id": "b"}], "thought": "t"},
        {"role": "tool", "content": "both", "tool_call_ids": ["a", "b"]},
        {"role": "assistant", "content": "`ls`"},
        {"role": "user", "content": "seen"},
    ]
    path = tmp_path / "a.traj"
    path.write_text(json.dumps({"history": history, "trajectory": [], "info": {"exit_status": "done"}}))
    read = transcripts.read(path)
    assert not problems(read.history) and read.meta["exit_status"] == "done"
    assert [message.get("origin") for message in read.history] == [
        "demonstration", None, None, None, None, None, "observation",
    ]  # fmt: skip


def test_pi_leaves_aborted_calls_unanswered(tmp_path: Path) -> None:
    call = {"type": "toolCall", "id": "a", "name": "bash", "arguments": {"c": "ls"}}
    zero = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    path = lines(
        tmp_path / "a.jsonl",
        {"type": "session", "id": "x"},
        {
            "type": "message",
            "message": {"role": "assistant", "content": [call], "stopReason": "aborted", "usage": zero},
        },
        {"type": "message", "message": {"role": "user", "content": "stop"}},
    )
    read = transcripts.read(path)
    assert [fault.kind for fault in problems(read.history)] == ["unanswered"]
    assert (read.meta["aborted"], read.usages) == (1, ())


def test_recorded_requests_are_compared_with_one_another(tmp_path: Path) -> None:
    ask: list[dict[str, Any]] = [{"role": "system", "content": "at 10:00"}, {"role": "user", "content": "hi"}]
    more = [*ask, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "go"}]
    late = [{"role": "system", "content": "at 10:01"}, *more[1:]]
    path = lines(tmp_path / "a.jsonl", *({"model": "m", "messages": m} for m in (ask, more, late)))
    read = transcripts.read(path)
    assert len(read.history) == 4 and read.meta["requests"] == 3
    assert [(one.line, one.culprit) for one in read.breaks] == [(3, "system")]


def test_old_function_calls_and_messages_per_line(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        {"role": "user", "content": [text("a"), {"type": "image_url", "image_url": {"url": "data:…"}}]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "critic", "content": "?"},
    )
    read = transcripts.read(path)
    assert not problems(read.history) and shape(read)[0] == "user a\n[an image, left out]"
    assert dropped(read)["message of role critic"] == (1, (4,))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "empty"),
        ("a.jsonl", b" \n\0\0\n", "blanks"),
        ("a.jsonl", bytes(range(256)) * 40, "binary"),
        ("a.txt", b"hello there, this is prose\n", "known format"),
        ("a.json", b'{"name": "x", "version": 1}', "no session"),
        ("a.json", b'{\n "messages": [\n {"role": "us', "cut short"),
        ("a.json", b"[]", "no session"),
        ("a.json", b'{"messages": [{"role": "nobody"}]}', "no message"),
        ("a.json", b"[" * 100_000, "cut short"),
    ],
)
def test_what_is_no_session_gets_one_clear_line(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TranscriptError, match=words) as caught:
        list(transcripts.sessions(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_known_formats_that_are_not_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("a\0b")):
        with pytest.raises(TranscriptError, match="cannot be opened"):
            transcripts.detect(path)
    (tmp_path / "g.json").write_text('{"sessionId": "x", "messages": [{"type": "gemini", "content": "hi"}]}')
    lines(tmp_path / "k.jsonl", {"type": "metadata", "protocol_version": "1.4"}, {"type": "turn.prompt"})
    (tmp_path / "a.md").write_text("x\n# aider chat started at 2024-01-01\n")
    for name, format in (("g.json", "gemini-cli"), ("k.jsonl", "kimi"), ("a.md", "aider")):
        assert transcripts.detect(tmp_path / name) == format
        with pytest.raises(UnsupportedFormat, match="not supported"):
            transcripts.read(tmp_path / name)


def test_half_a_file_costs_its_torn_line_only(tmp_path: Path) -> None:
    whole = lines(tmp_path / "a.jsonl", said("user", text("one")), said("user", text("two"))).read_bytes()
    for cut in range(1, len(whole)):
        (tmp_path / "b.jsonl").write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
        if complete:
            read = transcripts.read(tmp_path / "b.jsonl")
            assert len(read.history) == complete
            assert read.damaged == (whole[:cut][-1:] != b"\n" and whole[cut : cut + 1] != b"\n")


def test_bytes_and_lines_that_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(said("user", text("good"))).encode()
    bad = json.dumps(said("user", text("bad X"))).encode().replace(b"X", b"\xff")
    long = json.dumps(said("user", text("x" * 900))).encode()
    monkeypatch.setattr(source, "LINE_BYTES", 500)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([good, b"{torn", bad, long, b"\0\0\0", good]))
    read = transcripts.read(tmp_path / "a.jsonl")
    assert shape(read) == ["user good", "user bad \ufffd", "user good"]
    assert {kind: where for kind, (_, where) in dropped(read).items()} == {
        "a line that is no JSON": (2,),
        "bytes that are no UTF-8, replaced": (3,),
        "a line that is too long": (4,),
    }
    assert read.damaged == 2


def test_a_long_session_comes_in_parts_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "HISTORY_BYTES", 20_000)
    records = []
    for n in range(40):
        records += [said("assistant", use(f"c{n}"), id=f"m{n}"), said("user", answer(f"c{n}", "x" * 500))]
    parts = list(transcripts.sessions(lines(tmp_path / "a.jsonl", *records)))
    assert len(parts) > 2 and [part.meta["part"] for part in parts] == [*range(1, len(parts) + 1)]
    assert sum(len(part.history) for part in parts) == 80
    assert not any(problems(part.history) or part.damaged for part in parts)


records = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["user", "assistant", "system", "message", "response_item", "event_msg", "compacted", 7]
        ),
        "subtype": st.sampled_from(["compact_boundary", ["x"]]),
        "payload": json_values,
        "uuid": st.sampled_from(["a", "b", 3, None]),
        "isSidechain": st.booleans(),
        "parentUuid": st.sampled_from(["a", "b", [], None]),
        "message": st.fixed_dictionaries(
            {},
            optional={
                "id": st.sampled_from(["m", 5]),
                "role": st.sampled_from(["user", "assistant", "toolResult", None]),
                "usage": json_values,
                "content": st.lists(
                    st.fixed_dictionaries(
                        {"type": st.sampled_from(["text", "tool_use", "tool_result", "toolCall", "image", None, 4])},
                        optional={"text": json_values, "id": json_values, "input": json_values, "content": json_values},
                    )
                    | json_values,
                    max_size=3,
                )
                | json_values,
            },
        ),
        "role": st.sampled_from(["user", "tool", "assistant", []]),
        "messages": json_values,
        "tool_calls": json_values,
    },
)
first = st.sampled_from(
    [
        said("user", text("go")),
        item("message", role="user", content="go"),
        {"type": "session", "id": "x"},
        {"role": "user", "content": "go"},
    ]
)


@given(first, st.lists(records | json_values, max_size=8))
def test_no_record_crashes_a_reader_and_every_history_can_be_sent(tmp_path_factory: Any, head: Any, rest: Any) -> None:
    path = lines(tmp_path_factory.mktemp("any") / "a.jsonl", head, *rest)
    try:
        every = list(transcripts.sessions(path))
    except TranscriptError:
        return
    for transcript in every:
        sent = wire(repair(transcript.history).history)
        assert not sent or refuse({"model": "m", "messages": sent}) is None
        assert transcript._repr_html_()


def test_texts_for_people_are_bounded_and_visible() -> None:
    assert transcripts.visible("a\x1b[31m\n\ud800\u202e") == "a\\x1b[31m\\n\\ud800\\u202e"
    assert transcripts.visible("x" * 100, 10) == "x" * 9 + "…"
