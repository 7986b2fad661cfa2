"""A batch on its way into the history: logs folded, then budgeted, and every file with its one pointer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab.errors import ContextOverflow
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.outputs import reduce, reducer
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget, SpillStore, collect
from agentlab.tools import Registry, Tool, ToolResult
from agentlab.workspace import Workspace

BUDGET = OutputBudget(per_result=5_000)  # so that a log of 4,500 characters is worth folding
LOG = "\n".join([f"ok test_{n}" for n in range(400)] + ["E  AssertionError: 3 != 4", "1 failed, 400 passed"])
NOISE = "\n".join(f"row {n}" for n in range(30_000))


def registry() -> Registry:
    found = Registry()
    parameters = {"type": "object", "properties": {}}
    found.add(Tool("run_shell", "", parameters, str, log=True))
    found.add(Tool("read_file", "", parameters, str, read_only=True, spillable=False))
    found.add(Tool("search", "", parameters, str))
    return found


def result(output: str, name: str = "run_shell", id: str = "c1") -> ToolResult:
    return ToolResult(id, name, {}, "completed", output, spillable=name != "read_file")


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_log_is_folded_and_its_raw_text_is_on_disk_once(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "s", base=tmp_path)
    after = reduce([result(LOG)], registry=registry(), store=store, budget=BUDGET)
    [file] = files(tmp_path / "s")
    assert file.read_text() == LOG
    output = after.results[0].output
    assert "… [398 lines omitted]" in output
    assert "E  AssertionError: 3 != 4\n1 failed, 400 passed\n[All " in output
    assert output.count("read_file(") == 1
    assert after.results[0].output_path == f"s/{file.name}"
    assert (after.before, after.spilled) == (len(LOG), [f"s/{file.name}"])
    assert after.after == len(output) < 400


def test_a_folded_log_that_is_still_too_long_keeps_its_one_file(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "s", base=tmp_path)
    log = "\n".join(line for n in range(3_000) for line in (f"error {n}", *["noise"] * 10))
    budget = OutputBudget(per_result=5_000, per_batch=9_000, preview=1_000)
    after = reduce([result(log)], registry=registry(), store=store, budget=budget)
    [file] = files(tmp_path / "s")
    assert file.read_text() == log
    output = after.results[0].output
    assert len(output) <= 1_300
    assert output.count("read_file(") == 1
    assert output.startswith("error 0")
    assert after.spilled == [f"s/{file.name}"]


@pytest.mark.parametrize("name", ["read_file", "search", "gone"])
def test_what_is_no_log_is_never_folded(tmp_path: Path, name: str) -> None:
    raw = result(LOG, name)
    assert reduce([raw], registry=registry(), store=SpillStore(tmp_path / "s"), budget=BUDGET).results == [raw]
    assert files(tmp_path) == []


def test_a_log_that_fits_easily_is_left_alone(tmp_path: Path) -> None:
    """What `cat` prints looks like a log that mentions errors."""
    code = (Path(__file__).parents[1] / "agentlab" / "process.py").read_text()
    assert reduce([result(code)], registry=registry(), store=SpillStore(tmp_path / "s")).results == [result(code)]
    assert files(tmp_path) == []


def test_colours_do_not_count_and_do_not_hide_anything(tmp_path: Path) -> None:
    log = "\n".join([*[f"\x1b[32mok\x1b[0m test_{n}" for n in range(400)], "\x1b[31m\x1b[1mFAIL\x1b[0m src/a.test.ts"])
    store = SpillStore(tmp_path / "s", base=tmp_path)
    after = reduce([result(log)], registry=registry(), store=store, budget=BUDGET)
    assert "\nFAIL src/a.test.ts\n[All " in after.results[0].output
    assert "\x1b" not in files(tmp_path / "s")[0].read_text()


def test_what_was_streamed_and_is_still_too_long_is_cut_from_its_file(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "spill", base=tmp_path)
    tools = Registry(Workspace(tmp_path, store=store).tools())
    call_it = call("c", "run_shell", command="seq 1000000; exit 1")
    long = run(tools.dispatch(call_it, policy=Policy(default="allow")))
    assert 2_000 < len(long.output) < 2_300
    [short] = reduce([long], registry=tools, store=store, budget=OutputBudget(per_result=1_500, preview=700)).results
    assert short.output_path == long.output_path
    text, _, _ = short.output.rpartition("\n[All ")
    left_out = int(text.partition("… [")[2].partition(" ")[0])
    whole = (tmp_path / str(long.output_path)).read_text()
    assert left_out + len(text) - len(f"\n… [{left_out} characters omitted] …\n") == len(whole)
    assert text.endswith("\n1000000\n[exit code 1]")


def test_what_is_in_a_file_already_is_left_alone(tmp_path: Path) -> None:
    raw = replace(result(LOG), output_path="s/0001-0123456789.txt")
    assert reduce([raw], registry=registry(), store=SpillStore(tmp_path / "s"), budget=BUDGET).results == [raw]


def test_a_log_that_cannot_be_saved_is_not_folded(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("no folder")
    after = reduce([result(LOG)], registry=registry(), store=SpillStore(tmp_path / "s"), budget=BUDGET)
    assert after.results == [result(LOG)]
    assert after.spilled == []


def test_a_fold_that_gains_less_than_its_pointer_leaves_no_file(tmp_path: Path) -> None:
    tiny = "\n".join(["error", *["a"] * 45])
    after = reduce([result(tiny)], registry=registry(), store=SpillStore(tmp_path / "t"), budget=BUDGET)
    assert after.results == [result(tiny)]
    assert files(tmp_path / "t") == []


def test_the_line_that_says_how_a_command_ended_survives_the_fold(tmp_path: Path) -> None:
    log = LOG + "\n" + "\n".join(f"tidying up {n}" for n in range(50)) + "\n[exit code 1]"
    after = reduce(
        [replace(result(log), status="failed")], registry=registry(), store=SpillStore(tmp_path / "s"), budget=BUDGET
    )
    assert "tidying up 1\n… [39 lines omitted]\ntidying up 41\n" in after.results[0].output
    assert "tidying up 49\n[exit code 1]\n[All " in after.results[0].output


outputs = st.lists(st.sampled_from(["ok", "error: x", "  at f (a.js:1)", "", "y" * 90]), max_size=120).map("\n".join)


@given(
    st.lists(st.tuples(outputs, st.sampled_from(["run_shell", "read_file", "search"])), max_size=5),
    st.integers(0, 3_000),
)
def test_one_result_each_nothing_longer_and_every_pointer_leads_to_the_raw_text(
    tmp_path_factory: pytest.TempPathFactory, batch: list[tuple[str, str]], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    store = SpillStore(folder / "s", base=folder)
    raw = [result(text, name, f"c{n}") for n, (text, name) in enumerate(batch)]
    budget = OutputBudget(per_result=limit, per_batch=2 * limit, preview=300)
    after = reduce(raw, registry=registry(), store=store, budget=budget)
    assert [(r.call_id, r.name, r.status) for r in after.results] == [(r.call_id, r.name, r.status) for r in raw]
    for old, new in zip(raw, after.results, strict=True):
        assert len(new.output) <= len(old.output)
        if new.output_path:
            assert (folder / new.output_path).read_text() == old.output
            assert new.output.count(new.output_path) == 1
        else:
            assert new == old
    assert sorted(f"s/{file.name}" for file in files(folder / "s")) == sorted(after.spilled)
    assert {r.output_path for r in after.results} - {None} == set(after.spilled)
    again = reduce(after.results, registry=registry(), store=store, budget=OutputBudget(10**6, 10**6))
    assert again.results == after.results  # what is in a file is not folded a second time


# ---------------------------------------------------------------- in the loop


def turn(folder: Path, commands: list[str], *, window: int, hooked: bool) -> tuple[Turn, Simulator]:
    calls = [call(f"c{n}", "run_shell", command=command) for n, command in enumerate(commands)]
    simulator = Simulator([assistant("", *calls), assistant("Done.")], context_window=window)
    store = SpillStore(folder / "spill", base=folder)
    tools = Registry(Workspace(folder, store=store).tools())
    hooks = Hooks(after_results=reducer(tools, store, OutputBudget().for_window(window))) if hooked else None
    policy = Policy({"run_shell": "allow"})
    return run_turn([user("Look.")], simulator.client(), tools, hooks=hooks, policy=policy), simulator


def test_one_cat_overflows_the_window_and_with_the_hook_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text(NOISE)
    broken, _ = turn(tmp_path, ["cat big.txt"], window=8_000, hooked=False)
    with pytest.raises(ContextOverflow):
        run(broken.run())
    sound, simulator = turn(tmp_path, ["cat big.txt"], window=8_000, hooked=True)
    run(sound.run())
    assert sound.reason == "done"
    [file] = files(tmp_path / "spill")
    assert file.read_text() == NOISE
    message = next(message for message in sound.history if message["role"] == "tool")
    assert message["output_path"] == f"spill/{file.name}"
    sent: list[Message] = simulator.requests[-1]["messages"]
    assert all("output_path" not in message for message in sent)


def test_the_pointers_of_a_plain_history_keep_its_files(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text(NOISE)
    done, _ = turn(tmp_path, ["cat big.txt", "cat big.txt; echo more"], window=20_000, hooked=True)
    history = run(done.run()).history
    store = SpillStore(tmp_path / "spill", base=tmp_path)
    orphan = store.save("nobody points here")
    found = collect(store, [history], dry_run=False)
    assert found.removed == [Path(orphan.path).name]
    assert len(found.kept) == 2


def test_an_output_too_large_for_memory_goes_straight_to_its_file(tmp_path: Path) -> None:
    command = "yes 'row of a table' | head -n 300000; echo the end; exit 3"
    done, _ = turn(tmp_path, [command], window=8_000, hooked=True)
    message = next(message for message in run(done.run()).history if message["role"] == "tool")
    rows = "row of a table\n" * 300_000
    assert (tmp_path / message["output_path"]).read_text() == rows + "the end\n[exit code 3]"
    assert message["content"].startswith("row of a table\n")
    assert "the end\n[exit code 3]\n[All 4500021 characters, 300002 lines, are saved." in message["content"]
    assert len(message["content"]) < 2_200
    assert len(files(tmp_path / "spill")) == 1
