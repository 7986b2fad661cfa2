"""Output budgets, excerpts, the spill store, and which files may go."""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import AgentLabError
from agentlab.messages import assistant, call, tool, user
from agentlab.spill import (
    DAY_S,
    Ends,
    Mode,
    OutputBudget,
    SpillError,
    SpillStore,
    Unit,
    apply_budget,
    collect,
    excerpt,
    not_saved,
    pointer,
    shortened,
    size,
)
from agentlab.tools import Status, ToolResult
from agentlab.workspace import Workspace
from tests.cases import case

OMITTED = re.compile(r"\n… \[(\d+) (characters|bytes) omitted\] …\n")
texts = st.text(alphabet=st.sampled_from("ab \n\ré東🟡\u0301\u2028\ud83d\udfff\x00"), max_size=120) | st.text(
    max_size=60
)
modes = st.sampled_from(["head", "tail"])
units = st.sampled_from(["chars", "bytes"])


def result(output: str, *, id: str = "call_1", status: Status = "completed", spillable: bool = True) -> ToolResult:
    return ToolResult(id, "run_shell", {}, status, output, spillable)


@pytest.fixture
def store(tmp_path: Path) -> SpillStore:
    return SpillStore(tmp_path / ".agent-spill", base=tmp_path)


def raw(store: SpillStore, path: str | None) -> bytes:
    assert path is not None
    return (store.root / Path(path).name).read_bytes()


def names(store: SpillStore) -> list[str]:
    return sorted(os.listdir(store.root)) if store.root.is_dir() else []


# The scenes of the seed


def test_two_million_characters_come_back_as_two_thousand(store: SpillStore) -> None:
    text = "".join(
        f"row {n}: id={n * 7} name=user_{n} email=user_{n}@example.com status=active\n" for n in range(30_000)
    )[:2_097_212]
    assert len(text) == 2_097_212
    batch = apply_budget([result(text)], OutputBudget(), store)
    [spilled] = batch.results
    assert (batch.before, batch.after) == (2_097_212, len(spilled.output))
    assert 2_000 < batch.after < 2_200
    assert raw(store, spilled.output_path) == text.encode()
    assert batch.spilled == [spilled.output_path] and spilled.output_path == f".agent-spill/{names(store)[0]}"
    last = spilled.output.splitlines()[-1]
    lines = text.count("\n") + 1
    assert "2097212 characters" in last and f"{lines} lines" in last and f'"{spilled.output_path}"' in last
    assert "read_file" in last and "do not run the command again" in last and "column" not in last


def test_of_60_and_three_times_30_thousand_only_the_first_spills(store: SpillStore) -> None:
    results = [result("x" * length, id=str(length)) for length in (60_000, 30_000, 30_000, 30_000)]
    batch = apply_budget(results, OutputBudget(), store)
    assert [bool(each.output_path) for each in batch.results] == [True, False, False, False]
    assert batch.results[1:] == results[1:] and len(batch.spilled) == 1
    assert batch.before == 150_000 and 90_000 < batch.after < 100_000


def test_the_largest_goes_first_and_ties_go_in_call_order(store: SpillStore) -> None:
    lengths = [20_000, 40_000, 20_000, 40_000, 20_000]
    batch = apply_budget([result("x" * length) for length in lengths], OutputBudget(per_batch=110_000), store)
    assert [bool(each.output_path) for each in batch.results] == [False, True, False, False, False]
    batch = apply_budget(batch.results, OutputBudget(per_batch=80_000), store)
    assert [bool(each.output_path) for each in batch.results] == [False, True, False, True, False]


def test_what_a_tool_read_from_a_file_is_never_copied(store: SpillStore) -> None:
    read = result("x" * 200_000, spillable=False)
    batch = apply_budget([read, result("y" * 3_000), result("z")], OutputBudget(), store)
    assert batch.results[0] is read and batch.results[2].output == "z"
    assert batch.results[1].output_path is not None, "the batch is over its limit, so what can go goes"


def test_within_both_limits_nothing_happens(store: SpillStore) -> None:
    results = [result("x" * 50_000), result("y" * 50_000)]
    batch = apply_budget(results, OutputBudget(), store)
    assert batch.results == results and (batch.before, batch.after, batch.spilled) == (100_000, 100_000, [])
    assert names(store) == []


def test_a_failed_result_keeps_its_end(store: SpillStore) -> None:
    log = "".join(f"[{n:>5}/9000] compiling module_{n}\n" for n in range(9_000)) + 'error: no "Config"\nexit code: 1'
    good, bad = apply_budget([result(log), result(log, status="failed")], OutputBudget(), store).results
    assert good.output.startswith(log[:1_700]) and not good.output.startswith(log[:1_800])
    assert bad.output.startswith(log[:200]) and not bad.output.startswith(log[:300])
    assert log[-1_700:] in bad.output and log[-200:] in good.output and log[-300:] not in good.output


def test_small_windows_scale_both_limits() -> None:
    budget = OutputBudget()
    assert budget.for_window(1_000_000) == budget
    small = budget.for_window(8_000)
    assert (small.per_result, small.per_batch) == (4_800, 9_600)
    assert replace(small, per_result=50_000, per_batch=100_000) == budget
    assert budget.for_window(8_000, per_token=1).per_batch == 2_400
    assert budget.for_window(0).per_result == 0


def test_an_excerpt_fits_a_small_limit_for_one_result_too(store: SpillStore) -> None:
    budget = OutputBudget().for_window(1_000)
    [short] = apply_budget([result("x" * 9_000)], budget, store).results
    assert len(short.output) <= budget.per_result == 600 and short.output_path


@pytest.mark.parametrize("wrong", [{"per_result": -1}, {"tail": -5}, {"unit": "tokens"}])
def test_a_budget_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentLabError):
        OutputBudget(**wrong)


def test_the_model_can_read_on_from_the_pointer(tmp_path: Path) -> None:
    workspace, store = Workspace(tmp_path), SpillStore(tmp_path / ".agent-spill", base=tmp_path)
    long_line = "{" + "1," * 60_000 + "needle}"
    [spilled] = apply_budget([result(long_line)], OutputBudget(), store).results
    path = re.findall(r'read_file\("([^"]+)", offset, limit, column\)', spilled.output)[0]
    assert path == spilled.output_path
    assert "needle" in workspace.read_file(path, column=120_000)


def test_a_batch_draws_itself(store: SpillStore) -> None:
    drawn = apply_budget([result("<script>" * 30_000), result("y")], OutputBudget(), store)._repr_html_()
    assert "1 spilled" in drawn and "<script>" not in drawn


# Excerpts


def test_case_one_long_line_is_bounded_by_bytes() -> None:
    found = case("O02")
    cap = found["input"]["max_bytes"]
    short = excerpt('{"items":[' + "1," * 500_000 + "1]}", cap, unit="bytes")
    assert len(short.encode()) <= found["expected"]["result_bytes_max"] and OMITTED.search(short)


def test_case_head_and_tail_both_stay() -> None:
    found = case("O03")
    cap = found["input"]["max_bytes"]
    text = (
        "".join(f"ok test_{n}\n" for n in range(900)) + "E  AssertionError: 3 != 4\n1 failed, 899 passed\nexit code 1"
    )
    for mode in ("head", "tail"):
        short = excerpt(text, cap, mode)  # type: ignore[arg-type]
        assert all(part in short for part in found["expected"]["contains"])
        assert len(short) <= found["expected"]["len_max"]
        [(omitted, _)] = OMITTED.findall(short)
        assert int(omitted) == len(text) - len(OMITTED.sub("", short))


def test_case_no_character_is_split() -> None:
    found = case("O04")
    assert excerpt(found["input"]["a"]["utf8_text"], found["input"]["a"]["max_bytes"], unit="bytes") == "aaa"
    assert excerpt("aaa🟡zzz", 5, "tail", unit="bytes") == "zzz"
    assert excerpt(json.loads(found["input"]["b"]["json_text"])["out"], 10) == found["expected"]["b"]["preferred"]


@given(texts.map(lambda text: text * 7), st.integers(-2, 300), modes, st.integers(0, 250), units)
def test_an_excerpt_keeps_to_its_cap_and_counts_right(text: str, cap: int, mode: Mode, tail: int, unit: Unit) -> None:
    clean = re.sub("[\ud800-\udfff]", "\ufffd", text)
    short = excerpt(text, cap, mode, tail=tail, unit=unit)
    assert size(short, unit) <= max(0, cap)
    short.encode()
    if size(text, unit) <= cap:
        assert short == clean
    elif not (found := OMITTED.search(short)):
        assert cap < 50
        assert clean.endswith(short) if mode == "tail" else clean.startswith(short)
        assert size(short, unit) > cap - (4 if unit == "bytes" else 1)
    else:
        start, end = short[: found.start()], short[found.end() :]
        assert clean.startswith(start) and clean.endswith(end)
        assert int(found[1]) == size(clean, unit) - size(start, unit) - size(end, unit) > 0
        assert size(start if mode == "tail" else end, unit) <= tail
        assert size(short, unit) >= cap - (6 if unit == "bytes" else 0) - len(str(len(text) * 4))


# The store


def test_case_names_are_unique_and_stay_inside(store: SpillStore) -> None:
    found = case("O06")
    results = [result(each["text"] * 1_000, id=each["call_id"]) for each in found["input"]["spills"]]
    budget = OutputBudget(per_result=500, preview=10)
    after = [apply_budget([each], budget, store).results[0] for each in results]
    paths = [each.output_path for each in after]
    assert len(set(paths)) == found["expected"]["distinct_files"] == len(names(store))
    assert all((store.root / Path(str(path)).name).resolve().parent == store.root.resolve() for path in paths)
    assert [raw(store, path).decode() for path in paths] == [each.output for each in results]


def test_the_folder_and_its_files_are_private(store: SpillStore) -> None:
    store.save("secret")
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.root / names(store)[0]).stat().st_mode) == 0o600


def test_paths_are_told_from_where_the_tools_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    assert SpillStore("./spills").save("a").path.startswith("spills/0001-")
    assert SpillStore(tmp_path / "spills").save("b").path.startswith(f"{tmp_path}/spills/0002-")
    assert SpillStore("spills", base="work").save("c").path.startswith(f"{tmp_path}/spills/0003-")
    assert SpillStore("work/.out", base="work").save("d").path.startswith(".out/0001-")


def test_the_same_text_twice_is_two_files_with_the_same_hash(store: SpillStore) -> None:
    first, second = store.save("a\r\nb"), store.save("a\r\nb")
    assert first.path != second.path and first.path.split("-")[-1] == second.path.split("-")[-1]
    assert (first.chars, first.bytes, first.lines) == (4, 4, 2)
    assert store.find(first.path) == first


def test_a_number_used_again_never_brings_back_another_text(store: SpillStore) -> None:
    old = store.save("old")
    collect(store, [], dry_run=False)
    new = store.save("new")
    assert old.path != new.path and store.find(old.path) is None


def test_two_stores_write_to_one_folder_at_once(tmp_path: Path) -> None:
    wanted = [f"text {n % 7}" * 50 for n in range(60)]
    saved: list[tuple[str, str]] = []

    def work(part: list[str]) -> None:
        mine = SpillStore(tmp_path / "s")
        for text in part:
            saved.append((mine.save(text).path, text))

    threads = [threading.Thread(target=work, args=(wanted[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({path for path, _ in saved}) == 60 == len(os.listdir(tmp_path / "s"))
    assert all(Path(path).read_text() == text for path, text in saved)


def test_lone_surrogates_are_replaced_on_disk_and_in_the_excerpt(store: SpillStore) -> None:
    text = "ab\ud83d" * 20_000
    for unit, before in (("chars", 60_000), ("bytes", 100_000)):
        batch = apply_budget([result(text)], OutputBudget(unit=unit), store)  # type: ignore[arg-type]
        assert batch.before == before
        assert raw(store, batch.results[0].output_path).decode() == "ab\ufffd" * 20_000
        batch.results[0].output.encode()


@given(st.lists(st.binary(max_size=9) | texts.map(lambda text: text.encode("utf-8", "replace"))), st.integers(0, 40))
def test_a_stream_of_pieces_is_the_same_as_the_whole(pieces: list[bytes], keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SpillStore(folder)
        with store.open(keep=keep) as sink:
            for piece in pieces:
                sink.write(piece)
            saved = sink.close()
        data = b"".join(pieces)
        text = data.decode("utf-8", "replace")
        assert Path(saved.path).read_bytes() == data
        assert (saved.chars, saved.bytes) == (len(text), len(data))
        assert saved.lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        assert sink.ends() == Ends(text[:keep], text[-keep:] if keep else "", len(text), len(text.encode()))
        assert store.find(saved.path) == saved
        for cap in range(keep + 3):
            assert excerpt(sink.ends(), cap) == excerpt(text, cap if len(text) <= keep else min(cap, keep))


def test_a_stream_gives_the_same_excerpt_and_keeps_little(store: SpillStore) -> None:
    line = "0123456789 äö🟡\n".encode()
    with store.open() as sink:
        for _ in range(4_000):
            sink.write(line * 10)
            assert len(sink._tally.head) + len(sink._tally.tail) < 200_000
        saved = sink.close()
    text = raw(store, saved.path).decode()
    assert saved.lines == 40_000 and saved.chars == len(text)
    for mode in ("head", "tail"):
        whole = shortened(text, pointer(saved), OutputBudget(unit="bytes"), mode)  # type: ignore[arg-type]
        assert shortened(sink.ends(), pointer(saved), OutputBudget(unit="bytes"), mode) == whole  # type: ignore[arg-type]


def test_a_stream_that_is_not_closed_leaves_nothing(store: SpillStore) -> None:
    with pytest.raises(ZeroDivisionError), store.open() as sink:
        sink.write(b"half")
        assert len(names(store)) == 1
        raise ZeroDivisionError
    assert names(store) == []
    with pytest.raises(SpillError):
        sink.close()


def test_only_files_of_the_store_are_found_or_removed(store: SpillStore, tmp_path: Path) -> None:
    store.save("x")
    (tmp_path / "0001-0123456789.txt").write_text("outside")
    (store.root / "0002-0123456789.txt").symlink_to(tmp_path / "0001-0123456789.txt")
    (store.root / "notes.txt").write_text("mine")
    assert store.find("0002-0123456789.txt") is None and store.find("notes.txt") is None
    for name in ("../0001-0123456789.txt", "notes.txt", "/etc/passwd", ".x/../../0001-0123456789.txt", "..part/a.part"):
        assert not store.remove(name)
    collected = collect(store, [], dry_run=False)
    assert len(collected.removed) == 2 and names(store) == ["notes.txt"]
    assert (tmp_path / "0001-0123456789.txt").read_text() == "outside"


# A disk that fails

LIMITED = """
import os, resource, sys
from agentlab.spill import OutputBudget, SpillError, SpillStore, apply_budget
from agentlab.tools import ToolResult
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
store = SpillStore(sys.argv[1])
lost = ToolResult("2", "run_shell", {}, "completed", "x" * int(sys.argv[3]))
batch = apply_budget([lost], OutputBudget(), store)
with store.open() as sink:
    for _ in range(int(sys.argv[3]) // 1000):
        sink.write(b"y" * 1000)
    try:
        sink.close()
    except SpillError as error:
        print(error.reason, sink.ends().chars)
[after] = batch.results
print(after.status, after.output_path, batch.spilled, batch.after, os.listdir(sys.argv[1]))
print(after.output[-200:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits there")
@pytest.mark.parametrize("limit", [0, 1, 150_000, 299_999])
def test_case_a_full_disk_gives_no_pointer_and_leaves_no_half_file(tmp_path: Path, limit: int) -> None:
    length = case("O08")["input"]["output_bytes"]
    script = [sys.executable, "-c", LIMITED, str(tmp_path), str(limit), str(length)]
    ran = subprocess.run(script, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "no space 300000"
    after = len(excerpt("x" * length, 2_000) + "\n" + not_saved(length, "no space"))
    assert lines[1] == f"completed None [] {after} []"
    assert "full output could not be saved (no space)" in ran.stdout and "read_file" not in ran.stdout
    assert os.listdir(tmp_path) == []


def spoil_by_file(store: SpillStore) -> None:
    store.root.write_text("in the way")


def spoil_by_parent(store: SpillStore) -> None:
    store.root = store.root / "below" / "spill"
    store.root.parents[1].write_text("in the way")


def spoil_by_link(store: SpillStore) -> None:
    elsewhere = store.root.with_name("elsewhere")
    elsewhere.mkdir()
    store.root.symlink_to(elsewhere)


@pytest.mark.parametrize("spoil", [spoil_by_file, spoil_by_parent, spoil_by_link])
def test_a_folder_that_cannot_be_used_is_said_and_points_nowhere(store: SpillStore, spoil: Any) -> None:
    spoil(store)
    batch = apply_budget([result("x" * 60_000 + "end")], OutputBudget(), store)
    [after] = batch.results
    assert after.output_path is None and batch.spilled == [] and after.status == "completed"
    assert "could not be saved (" in after.output and "read_file" not in after.output and "end\n" in after.output
    assert len(after.output) < 2_300
    with pytest.raises(SpillError):
        store.save("x")
    with pytest.raises(SpillError):
        collect(store, [])
    assert not (elsewhere := store.root.with_name("elsewhere")).exists() or os.listdir(elsewhere) == []


def test_a_folder_that_goes_away_while_writing_is_a_failed_save(store: SpillStore) -> None:
    with store.open() as sink:
        sink.write(b"x")
        for name in names(store):
            (store.root / name).unlink()
        store.root.rmdir()
        with pytest.raises(SpillError):
            sink.close()


# Outputs that have a file already


def test_a_folded_log_keeps_its_one_file_and_its_one_pointer(store: SpillStore) -> None:
    saved = store.save("the whole log\n" * 20_000)
    folded = replace(result("folded\n" * 10_000 + pointer(saved)), output_path=saved.path)
    batch = apply_budget([folded], OutputBudget(), store)
    [after] = batch.results
    assert after.output_path == saved.path and batch.spilled == [] and len(names(store)) == 1
    assert after.output.endswith("\n" + pointer(saved)) and after.output.count("read_file") == 1
    assert apply_budget([after], OutputBudget(per_result=0, per_batch=0), store).results[0].output == pointer(saved)


def test_a_pointer_to_a_file_that_is_gone_is_not_repeated(store: SpillStore) -> None:
    gone = replace(result("x" * 60_000), output_path=".agent-spill/0001-0123456789.txt")
    [after] = apply_budget([gone], OutputBudget(), store).results
    assert after.output_path != gone.output_path and raw(store, after.output_path) == b"x" * 60_000


# The budget's laws


@st.composite
def batches(draw: st.DrawFn) -> list[ToolResult]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        text = draw(texts) * draw(st.sampled_from([1, 4, 30]))
        status = draw(st.sampled_from(["completed", "failed", "rejected", "interrupted"]))
        made.append(result(text, id=draw(st.sampled_from(["a", "../b", ""])), status=status, spillable=number % 3 != 2))
    return made


small_budgets = st.builds(
    OutputBudget,
    per_result=st.integers(0, 2_000),
    per_batch=st.integers(0, 4_000),
    preview=st.integers(0, 400),
    tail=st.integers(0, 100),
    unit=units,
)


@given(batches(), small_budgets)
def test_the_laws_of_a_budget(results: list[ToolResult], budget: OutputBudget) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SpillStore(Path(folder) / "s")
        given_before = copy.deepcopy(results)
        batch = apply_budget(results, budget, store)
        assert results == given_before, "inputs stay as they were"
        old, new = ([size(each.output, budget.unit) for each in them] for them in (results, batch.results))
        assert (batch.before, batch.after) == (sum(old), sum(new)) and batch.after <= batch.before
        assert len(results) == len(batch.results)
        for was, now, large, length in zip(results, batch.results, old, new, strict=True):
            assert replace(now, output=was.output, output_path=None) == was, "nothing else changes, nor does the order"
            if now.output_path is None:
                assert now is was
                continue
            assert length < large and was.spillable
            clean = re.sub("[\ud800-\udfff]", "\ufffd", was.output)
            assert raw(store, now.output_path) == clean.encode()
            assert Path(now.output_path).name in now.output
        pointed = {Path(each.output_path).name for each in batch.results if each.output_path}
        assert pointed == set(names(store)) == {Path(path).name for path in batch.spilled}, "no file without a pointer"
        order = sorted(range(len(old)), key=lambda at: -old[at])
        total = sum(old)
        for at in order:  # what was replaced was needed, in that order
            needed = old[at] > budget.per_result or total > budget.per_batch
            assert needed or batch.results[at].output_path is None
            total += new[at] - old[at]
        for was, now, length in zip(results, batch.results, new, strict=True):
            if length > budget.per_result or batch.after > budget.per_batch:
                spent = not was.spillable or now.output_path or length < budget.preview + 300
                assert spent, "a limit is exceeded, and something could still go"


# What may go


def spilled(store: SpillStore, text: str) -> ToolResult:
    return apply_budget([result(text * 60_000)], OutputBudget(), store).results[0]


def pointing(it: ToolResult) -> dict[str, Any]:
    return {**it.message(), "output_path": it.output_path}


def test_a_dry_run_comes_first(store: SpillStore) -> None:
    one, two = spilled(store, "a"), spilled(store, "b")
    would = collect(store, [[user("hi"), pointing(one)]])
    assert would.dry_run and would.removed == [Path(str(two.output_path)).name] and would.freed_bytes == 60_000
    assert len(names(store)) == 2
    did = collect(store, [[user("hi"), pointing(one)]], dry_run=False)
    assert replace(did, dry_run=True) == would and names(store) == did.kept == [Path(str(one.output_path)).name]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda it: it,
        lambda it: [it],
        lambda it: [[user("a"), pointing(it)]],
        lambda it: [user("a"), pointing(it)],
        lambda it: [{"type": "tool_call", "record": {"name": "run_shell", "output_path": it.output_path}}],
        lambda it: [{"branches": [{"view": ({"node": [pointing(it)]},)}]}],
        lambda it: [{"role": "user", "content": "sum", "pointers": [{"output_path": it.output_path}]}],
        lambda it: (each for each in [deque([pointing(it)])]),
        lambda it: [{"output_path": "/moved/elsewhere/" + Path(it.output_path).name}],
        lambda it: [{"output_path": Path(it.output_path)}],
        lambda it: [{"output_path": it.output_path.replace("/", "\\")}],
        lambda it: {"a": apply_budget([it], OutputBudget(), SpillStore("unused"))},
    ],
)  # fmt: skip
def test_a_pointer_counts_wherever_its_field_stands(store: SpillStore, wrap: Any) -> None:
    it = spilled(store, "a")
    other = spilled(store, "b")
    collected = collect(store, wrap(it), dry_run=False)
    assert names(store) == [Path(str(it.output_path)).name]
    assert collected.removed == [Path(str(other.output_path)).name]


def test_text_is_never_searched(store: SpillStore) -> None:
    it = spilled(store, "a")
    said = f"The output is in {it.output_path}, output_path={it.output_path}"
    history = [
        user(said),
        assistant(said, call("c", "read_file", output_path=it.output_path)),
        tool("c", it.output),
        {"role": "user", "content": [{"type": "text", "text": said}]},
    ]
    assert collect(store, [history], dry_run=False).kept == [] and names(store) == []


def test_the_four_moments(store: SpillStore) -> None:
    one, two, three = (spilled(store, text) for text in "abc")
    history = [user("go"), pointing(one), pointing(two), pointing(three)]
    log = [{"seq": n, "type": "message", "message": message} for n, message in enumerate(history)]
    compacted = [{"role": "user", "origin": "compaction", "content": f"see {one.output_path}"}, *history[2:]]
    # after a compaction: the log can still go back, so it keeps what the view has dropped
    assert collect(store, [compacted, log]).removed == []
    assert collect(store, [compacted, history[:2]]).removed == [], "nor may a branch lose it"
    # on resume: whatever the session does not know
    assert collect(store, [compacted], dry_run=False).removed == [Path(str(one.output_path)).name]
    # now and then: only what is old enough
    path = store.root / Path(str(two.output_path)).name
    os.utime(path, (1_000, 1_000))
    aged = collect(store, [], min_age_s=3_600, clock=lambda: path.stat().st_mtime + 3_600)
    assert aged.removed == [path.name]
    # at the end of a session
    assert collect(store, [], dry_run=False).kept == [] and names(store) == []


def test_half_written_files_stay_for_a_day(store: SpillStore) -> None:
    with store.open() as sink:
        [name] = names(store)
        modified = (store.root / name).stat().st_mtime
        assert collect(store, [], dry_run=False, clock=lambda: modified + DAY_S - 1).removed == []
        assert collect(store, [], dry_run=False, clock=lambda: modified + DAY_S).removed == [name]
        with pytest.raises(SpillError):
            sink.close()


@pytest.mark.parametrize("blind", [["a text"], "a text", [object()], [7], [[user("a"), {"x": object()}]], [b"bytes"]])
def test_what_cannot_be_looked_into_deletes_nothing(store: SpillStore, blind: Any) -> None:
    spilled(store, "a")
    with pytest.raises(AgentLabError, match="nothing was deleted"):
        collect(store, blind, dry_run=False)
    assert len(names(store)) == 1


def test_a_folder_that_is_not_there_yet_holds_nothing(store: SpillStore) -> None:
    assert collect(store, []).removed == [] and not store.root.exists()


def test_a_file_that_will_not_go_is_named(store: SpillStore) -> None:
    (store.root / "0001-0123456789.txt").mkdir(parents=True)
    collected = collect(store, [], dry_run=False)
    assert collected.failed == ["0001-0123456789.txt"] and collected.removed == []
