"""An agent in a folder: its parts are wired, sessions are kept there, and what is left out is really out."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from clean_run import run

from agentlab.agent import Agent
from agentlab.compaction import Limits
from agentlab.disclosure import Catalog
from agentlab.errors import AgentLabError
from agentlab.journal import Journal
from agentlab.messages import assistant, call, canonical_json
from agentlab.permissions import Policy
from agentlab.project import HIDDEN, PARTS, SYSTEM, listed, open_agent, recorded, tidy
from agentlab.simulator import Simulator
from agentlab.tools import Registry, Tool

NAMES = ["read_file", "write_file", "edit_file", "list_dir", "run_shell"]
ANYTHING = Policy(default="allow")
LONG = "print('line of output\\n' * 9_000)"


def made(function: Any) -> Tool:
    registry = Registry()
    registry.tool(function)
    (name,) = registry.names()
    tool = registry.get(name)
    assert tool
    return tool


def weather() -> str:
    """The weather of today."""
    return "rain"


def moon() -> str:
    """The phase of the moon."""
    return "full"


def say(agent: Agent, text: str) -> str:
    run(agent.send(text).run())
    return str(agent.history[-1]["content"])


def opened(folder: Path, script: Any, **options: Any) -> tuple[Agent, Simulator]:
    simulator = Simulator(script, dialect=options.pop("dialect", "openai"))
    return open_agent(folder, simulator.client(), clock=lambda: 0.0, policy=ANYTHING, **options), simulator


def test_its_tools_work_in_the_folder_and_the_session_is_kept_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Hello from a.\n")
    script = [assistant("", call("1", "read_file", path="a.txt")), "It says hello."]
    agent, simulator = opened(tmp_path, script, id="one")
    assert agent.registry.names() == NAMES
    assert say(agent, "What is in a.txt?") == "It says hello."
    run(agent.aclose())
    assert simulator.requests[0]["messages"][0] == {"role": "system", "content": SYSTEM}
    assert "Hello from a." in agent.history[3]["content"]
    assert [(info.id, info.title) for info in listed(tmp_path)] == [("one", "What is in a.txt?")]
    assert (tmp_path / HIDDEN / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE((tmp_path / HIDDEN).stat().st_mode) == 0o700

    again, simulator = opened(tmp_path, ["As I said."], resume="one", system="Another one.")
    assert again.history == agent.history
    assert say(again, "Again?") == "As I said."
    assert simulator.requests[0]["messages"][0]["content"] == SYSTEM
    run(again.aclose())


def test_a_session_goes_on_with_the_limits_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_CONTEXT_WINDOW", "9000")
    monkeypatch.setenv("AGENT_COMPACT_PERCENT", "60")
    agent, _ = opened(tmp_path, ["Hi."], id="a")
    assert agent.limits == Limits(9_000, 60)
    run(agent.aclose())
    meta = recorded(tmp_path, "a")
    assert (meta["context_window"], meta["compact_percent"]) == (9_000, 60)
    assert (meta["model"], meta["dialect"]) == ("offline", "openai")
    monkeypatch.setenv("AGENT_CONTEXT_WINDOW", "50000")
    assert opened(tmp_path, [], resume="a")[0].limits == Limits(9_000, 60)
    assert opened(tmp_path, [], resume="a", limits=Limits(7_000))[0].limits == Limits(7_000)
    assert opened(tmp_path, [])[0].limits == Limits(50_000, 60)


def test_no_key_reaches_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_API_KEY", "sk-" + "very-secret-1234567890")
    agent, _ = opened(tmp_path, ["I saw sk-" + "very-secret-1234567890."], id="a")
    say(agent, "My key is sk-" + "very-secret-1234567890.")
    run(agent.aclose())
    assert "very-secret" not in (tmp_path / HIDDEN / "sessions" / "a.jsonl").read_text()


# ---------------------------------------------------------------- what is left out


def shelled(command: str) -> list[Any]:
    return [assistant("", call("1", "run_shell", command=command)), "Done."]


def test_without_each_part(tmp_path: Path) -> None:
    whole, _ = opened(tmp_path, [])
    assert whole.store and whole.journal and whole.context
    for part in PARTS:
        folder = tmp_path / part
        folder.mkdir()
        agent, _ = opened(folder, ["Fine."], without=[part])
        there = {"spill": agent.store, "journal": agent.journal, "context": agent.context}
        assert [name for name, value in there.items() if value is None] == [part] * (part != "watchdog")
        assert (folder / HIDDEN / "sessions").exists() is (part != "journal")
        assert agent._budget().can_continue() and (agent._budget().base_steps > 10**6) is (part == "watchdog")
        assert say(agent, "Hello.") == "Fine."
        run(agent.aclose())


def test_long_outputs_go_to_files_unless_the_store_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    command = f"{json.dumps(sys.executable)} long.py"
    agent, simulator = opened(tmp_path, shelled(command), limits=Limits(16_000))
    say(agent, "Run it.")
    result = agent.history[3]
    assert len(result["content"]) < 20_000
    assert (tmp_path / result["output_path"]).read_text().count("line of output") == 9_000
    assert len(simulator.usages) == 2
    run(agent.aclose())


def test_parts_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(AgentLabError, match="'brain' is no part"):
        opened(tmp_path, [], without=["brain"])
    with pytest.raises(AgentLabError, match="cannot be resumed"):
        opened(tmp_path, [], without=["journal"], resume="a")
    with pytest.raises(AgentLabError, match="no session 'a'"):
        opened(tmp_path, [], resume="a")
    assert not (tmp_path / HIDDEN).exists(), "nothing was made"
    for options in ({"without": ["spill"], "context": "layers"}, {"context": "diary"}):
        with pytest.raises(AgentLabError):
            opened(tmp_path, [], **options)
        assert listed(tmp_path) == [], "no empty session is left behind"
    opened(tmp_path, [], id="a")
    with pytest.raises(AgentLabError):
        opened(tmp_path, [], id="a")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / HIDDEN).write_text("a file of that name")
    with pytest.raises(AgentLabError, match="Cannot keep sessions"):
        opened(tmp_path, [])


# ---------------------------------------------------------------- deferred tools


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_deferred_tools_follow_the_dialect(dialect: str, tmp_path: Path) -> None:
    run_it = call("b", "weather") if dialect == "anthropic" else call("b", "run_tool", name="weather", input={})
    script = [assistant("", call("a", "search_tool", query="weather today")), assistant("", run_it), "Rain."]
    deferred = [made(weather), made(moon)]
    agent, simulator = opened(tmp_path, script, dialect=dialect, deferred=deferred, id="a")
    assert isinstance(agent.registry, Catalog)
    assert agent.registry.protocol == ("strict" if dialect == "anthropic" else "free-text")
    assert say(agent, "How is the weather?") == "Rain."
    system = agent.history[0]["content"]
    assert system.startswith(SYSTEM) and "weather" in system and "moon" in system
    run(agent.aclose())

    again, simulator = opened(tmp_path, ["Still rain."], dialect=dialect, deferred=deferred[::-1], resume="a")
    assert say(again, "And now?") == "Still rain."
    assert len(simulator.usages) == 1
    run(again.aclose())


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    fronts = set()
    for n in range(3):
        agent, simulator = opened(tmp_path, ["Hi.", "Ho."], deferred=[made(weather), made(moon)][:: 1 - 2 * (n % 2)])
        say(agent, "one")
        say(agent, "two")
        fronts |= {canonical_json([request["tools"], request["messages"][0]]) for request in simulator.requests}
        run(agent.aclose())
    assert len(fronts) == 1


# ---------------------------------------------------------------- tidying


def test_tidy_deletes_what_no_session_points_to(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    command = f"{json.dumps(sys.executable)} long.py"
    agent, _ = opened(tmp_path, shelled(command), limits=Limits(16_000), id="a")
    say(agent, "Run it.")
    agent.fork(id="b")
    agent.rewind(agent.said()[0].seq)
    run(agent.aclose())
    assert agent.store
    stray = Path(agent.store.save("nobody's").path)
    stray = stray if stray.is_absolute() else tmp_path / stray
    assert [Path(name).name for name in tidy(tmp_path).removed] == [stray.name] and stray.exists()
    assert len(tidy(tmp_path, dry_run=False, min_age_s=3_600.0).removed) == 0
    assert len(tidy(tmp_path, dry_run=False).removed) == 1 and not stray.exists()

    sessions = tmp_path / HIDDEN / "sessions"
    (sessions / "a.jsonl").unlink()
    assert tidy(tmp_path).removed == [], "the fork points to it"
    (sessions / "b.jsonl").unlink()
    assert len(tidy(tmp_path, dry_run=False).removed) == 1


def test_tidy_deletes_nothing_when_a_log_cannot_be_read(tmp_path: Path) -> None:
    agent, _ = opened(tmp_path, [], id="a")
    assert agent.store
    agent.store.save("nobody's")
    (tmp_path / HIDDEN / "sessions" / "bad.jsonl").mkdir()
    with pytest.raises(AgentLabError):
        tidy(tmp_path, dry_run=False)
    os.rmdir(tmp_path / HIDDEN / "sessions" / "bad.jsonl")
    assert len(tidy(tmp_path).removed) == 1


def test_an_empty_folder_has_no_sessions(tmp_path: Path) -> None:
    assert listed(tmp_path) == []
    with pytest.raises(AgentLabError):
        recorded(tmp_path, "../a")
    Journal.create(tmp_path / HIDDEN / "sessions", {}, id="a")
    assert [info.id for info in listed(tmp_path)] == ["a"]
