"""The audit of a session: figures that were worked out by hand, and the rules behind them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from hypothesis import given

from agentlab import transcripts
from agentlab.audit import PRUNE_HEAD, PRUNE_TAIL, audit, tokens_of
from agentlab.cacheusage import CacheUsage
from agentlab.messages import assistant, call, tool, user
from agentlab.spill import OutputBudget
from agentlab.transcripts import Transcript, Used
from tests.strategies import malformed_histories

SAMPLES = Path(__file__).parent.parent / "data" / "sessions"


def test_figures_by_hand_rewind_then_compact() -> None:
    """user: 5, 13, 14, 10, 121, 16 characters -> 2+4+4+3+31+4; assistant: 5, 12, 13, 10, 12 -> 2+3+4+3+3."""
    report = audit(transcripts.read(SAMPLES / "claude_code_2.1.0_rewind_then_compact.jsonl"))
    assert report.tokens == {"system": 0, "user": 48, "assistant": 15, "tool": 0}
    assert (report.problems, report.repeated, report.compaction.saved) == ({}, 0, 0)
    assert (report.cache.requests, report.cache.prompt, report.cache.output) == (5, 50, 25)


def test_figures_by_hand_codex() -> None:
    """system: 38, 99, 99 -> 10+25+25; user: 167, 41, 167, 33 -> 42+11+42+9; assistant: 45, 98 -> 12+25."""
    report = audit(transcripts.read(SAMPLES / "codex_rollout_0.129.0_small.jsonl"))
    assert report.tokens == {"system": 60, "user": 104, "assistant": 37, "tool": 0}
    assert (report.cache.prompt, report.cache.hit, report.cache.output) == (1024 + 1100, 512 + 512, 12 + 20)
    assert report.cache.wasted == 0  # 1,024 - 512 is below the noise


def test_figures_by_hand_edge_cases() -> None:
    """Two calls have no result; the one result has 58 characters, 15 tokens."""
    report = audit(transcripts.read(SAMPLES / "claude_code_1.0.x_edge_cases.jsonl"))
    assert report.problems == {"unanswered": 2} and len(report.examples) == 2
    assert report.tokens["tool"] == 15 and report.meta["failed"] == 1


def test_each_saving_by_hand() -> None:
    noise = "".join(f"step {n:04d}\n" for n in range(6000))  # 60,000 characters
    log = noise[:20_000] + "error: boom\n" + noise[:20_000]  # 40,012
    history = [
        user("go"),
        assistant("", call("a", "Fetch"), call("b", "Read"), call("c", "Bash")),
        tool("a", noise),
        tool("b", noise),
        tool("c", log),
    ]
    report = audit(Transcript("claude-code", history))
    assert report.spill.before == 160_012
    assert report.spill.changed == 2  # 60,000 is above 50,000 a result, and then 100,012 above 100,000 a batch
    left = 60_000 + 2 * 2_000
    assert left < report.spill.after < left + 800  # the two pointers
    assert report.fold.changed == 1 and 39_700 < report.fold.saved < 39_900  # five lines, two markers, a pointer stay
    assert report.prune.changed == 3
    marks = [f"\n… [{size - PRUNE_HEAD - PRUNE_TAIL} characters omitted] …\n" for size in (60_000, 60_000, 40_012)]
    assert report.prune.after == 3 * (PRUNE_HEAD + PRUNE_TAIL) + sum(map(len, marks))
    assert audit(Transcript("x", history), budget=OutputBudget(10**6, 10**6)).spill.changed == 0


def test_compaction_counts_what_is_left_since_the_last_one() -> None:
    turns = [message for n in range(12) for message in (user(f"{n:02d}" * 500), assistant("x" * 1000))]
    report = audit(Transcript("x", turns))
    # 24 messages of 1,000 characters, the newest 8 stay, the other 16 become 8,000 characters
    assert (report.compaction.before, report.compaction.after, report.compaction.changed) == (24_000, 16_000, 16)
    assert report.compaction.tokens == 2_000
    summary = {"role": "user", "content": "s", "origin": "compaction"}
    assert audit(Transcript("x", [*turns, summary, user("on")])).compaction.changed == 0


def test_cache_waste_and_its_culprits() -> None:
    def used(hit: int, at: float | None, model: str = "m", compacted: bool = False) -> Used:
        return Used(CacheUsage(10_000, hit, 10_000 - hit), at, 1, model, compacted)

    report = audit(
        Transcript(
            "x", [], usages=(used(0, 0.0), used(9_000, 10.0), used(0, 20.0), used(1_000, 400.0), used(0, 401.0, "n"))
        )
    )
    assert report.cache.wasted == 10_000 + 9_000 + 10_000 and report.cache.timed
    assert [(miss.missed, miss.verdict, miss.culprit) for miss in report.cache.worst] == [
        (10_000, "rewritten", "not known: the requests were not recorded"),
        (10_000, "rewritten", "the model changed from m to n"),
        (9_000, "expired", "a pause of 380 seconds"),
    ]
    again = audit(Transcript("x", [], usages=(used(9_000, None), used(0, None, compacted=True))))
    assert (again.cache.wasted, again.cache.timed) == (0, False)


def test_an_hour_is_the_life_of_a_cache_that_was_written_for_an_hour() -> None:
    usages = (
        Used(CacheUsage(5_000, 0, 5_000, 5_000, written_1h=5_000), 0.0),
        Used(CacheUsage(5_000, 0, 5_000), 1_000.0),
    )
    assert audit(Transcript("x", [], usages=usages)).cache.worst[0].verdict == "rewritten"
    assert audit(Transcript("x", [], usages=usages), ttl_s=300).cache.worst[0].verdict == "expired"


def test_the_same_call_again_whatever_the_order_of_its_keys() -> None:
    history = [
        assistant("", call("a", "Read", path="x", limit=1)),
        tool("a", "1"),
        assistant("", call("b", "Read", limit=1, path="x"), call("c", "Read", path="y")),
        tool("b", "2"),
        tool("c", "3"),
    ]
    report = audit(Transcript("x", history))
    assert (report.repeated, report.repeats[0].count, report.repeats[0].input) == (1, 2, '{"limit":1,"path":"x"}')


def test_observations_of_mini_swe_agent_are_outputs_and_logs() -> None:
    log = "".join(f"line {n}\n" for n in range(500)) + "error: boom\n"
    history = [assistant("ls"), {"role": "user", "content": log, "origin": "observation"}]
    assert audit(Transcript("mini-swe-agent", history)).fold.changed == 1
    report = audit(Transcript("swe-agent", history))
    assert (report.fold.changed, report.spill.before) == (0, len(log))


def test_reported_texts_are_bounded_and_visible() -> None:
    history = [message for n in range(2) for message in (assistant("", call("i\n" * 99, "n\x1b" * 99, p="z" * 999)),)]
    report = audit(Transcript("x", history))
    assert all(text.isprintable() and len(text) <= 200 for text in report.examples)
    assert report.repeats[0].name.isprintable() and len(report.repeats[0].input) <= 80


@given(malformed_histories())
def test_an_audit_takes_any_history_of_messages_and_changes_none(history: list[object]) -> None:
    from agentlab.pairing import repair

    sound = repair(history).history  # type: ignore[arg-type]
    before = copy.deepcopy(sound)
    report = audit(Transcript("x", sound))
    assert sound == before
    assert sum(report.tokens.values()) == sum(map(tokens_of, sound))
    assert min(report.spill.saved, report.fold.saved, report.prune.saved, report.compaction.saved) >= 0
    assert json.loads(json.dumps(report.as_dict()))["messages"] == len(sound) and report._repr_html_()
