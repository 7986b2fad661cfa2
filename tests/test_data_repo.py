"""The small repository of the chapter on the whole agent: its tests fail as it is, and pass when the rule is mended."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clean_run import run

from agentlab.check.agent import OLD, RULE, TESTS, coder, summary
from agentlab.compaction import Limits
from agentlab.pairing import problems
from agentlab.permissions import Policy
from agentlab.project import open_agent
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.usage import total

REPO = Path(__file__).resolve().parent.parent / "data" / "repo"
WISHES = [
    "The tests fail. Find out why, and mend it.",
    "Which years had failed? Read the whole log of the first run.",
    "Put a note into CHANGES.md.",
]
YEARS = "4 years had failed: 1700, 1800, 1900, 2100."


@pytest.fixture
def repo(tmp_path):
    return Path(shutil.copytree(REPO, tmp_path / "repo"))


def outcome(repo):
    done = subprocess.run([sys.executable, "run_tests.py"], cwd=repo, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def mend(repo, rule):
    file = repo / "leap.py"
    assert file.read_text().count(OLD) == 1
    file.write_text(file.read_text().replace(OLD, rule))


def test_four_centuries_fail_as_it_is(repo):
    code, out, err = outcome(repo)
    failed = [line[:4] for line in out.splitlines() if "FAILED" in line]
    assert (code, err, failed) == (1, "", ["1700", "1800", "1900", "2100"])
    assert out.endswith("4 of 518 years failed\n")


def test_the_right_rule_passes_at_once_and_leaves_nothing_behind(repo):
    outcome(repo)
    mend(repo, RULE)
    assert outcome(repo)[0] == 0
    assert sorted(path.name for path in repo.iterdir()) == sorted(path.name for path in REPO.iterdir())


def test_a_rule_for_one_year_leaves_three(repo):
    mend(repo, f"{OLD} and year != 2100")
    code, out, _ = outcome(repo)
    assert code == 1 and out.endswith("3 of 518 years failed\n")


def test_two_runs_print_the_same_and_no_path(repo):
    out = outcome(repo)[1]
    assert out == outcome(repo)[1]
    assert "/" not in out


def day(repo, monkeypatch, *, window, real=None, without=()):
    """The three wishes, one turn each."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    simulator = Simulator(coder(), context_window=real or window, cache=BlockCache())
    policy = Policy({"edit_file": "allow", "write_file": "allow", "run_shell": "allow"})
    agent = open_agent(
        repo, simulator.client(), id="day", policy=policy, limits=Limits(window), without=without, clock=lambda: 0.0
    )

    async def main():
        async with agent:
            for wish in WISHES:
                assert (await agent.send(wish).run()).reason == "done"

    run(main())
    assert problems(agent.history) == []
    assert total(agent.usages) == total(simulator.usages)  # the bill is the server's own count
    return [message["content"] for message in agent.history]


@pytest.mark.parametrize("window, real", [(5_000, 5_000), (6_000, 6_000), (24_000, 6_000), (128_000, 128_000)])
def test_the_scripted_model_mends_it_in_any_window(repo, monkeypatch, window, real):
    said = day(repo, monkeypatch, window=window, real=real)
    assert outcome(repo)[0] == 0
    assert any(text.endswith(YEARS) for text in said)
    assert (repo / "CHANGES.md").read_text() == f"{YEARS}\n"


def test_without_spill_it_mends_the_one_year_that_it_sees(repo, monkeypatch):
    said = day(repo, monkeypatch, window=6_000, without=["spill"])
    assert any("cannot see which" in text for text in said)
    assert outcome(repo)[1].endswith("3 of 518 years failed\n")


def test_a_summary_of_a_summary_still_has_what_the_model_needs():
    first = summary(f'{WISHES[0]}\n{WISHES[1]}\nLines 1 to 9: 1700.\n{{"path":".agentlab/spill/0001-ab.txt"}}')
    second = summary(f"=== earlier summary ===\n{first}\n=== person ===\n{WISHES[2]}")
    assert second.splitlines()[0] == f"1. Task: {' | '.join(WISHES)}"
    assert "Lines 1 to 9: 1700." in second
    assert ".agentlab/spill/0001-ab.txt" in second


def test_the_command_of_the_model_is_the_one_that_the_readme_names():
    assert f"`{TESTS}`" in (REPO / "README.md").read_text()
