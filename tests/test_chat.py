"""What a chat does, whatever it is shown on: turns, steering, questions, commands, Ctrl+C, sessions, servers."""

from __future__ import annotations

import asyncio
import json
import re
import sys

import pytest
from clean_run import run
from mcpservers import CLOCK

from agentlab.chat.opening import Opener
from agentlab.chat.session import Chat
from agentlab.errors import AgentLabError
from agentlab.messages import assistant, call
from agentlab.pairing import problems
from agentlab.simulator import Fault, Simulator, serve

KEY = "sk-live-0123456789abcdef"


class Paper:
    """A screen that writes down what it is given, and answers questions as it was told to."""

    def __init__(self, *answers):
        self.lines, self.errors, self.drafts, self.questions = [], [], [], []
        self.answers, self.tail, self.left = list(answers), "", False
        self.seen = asyncio.Event()

    def text(self, piece):
        *whole, self.tail = (self.tail + piece).split("\n")
        self.lines += whole
        self.seen.set()

    def line(self, text, kind="note"):
        self.lines += [self.tail] * bool(self.tail) + text.split("\n")
        self.tail = ""
        self.errors += [text] * (kind == "error")
        self.seen.set()

    async def ask(self, question):
        self.questions.append(question)
        self.seen.set()
        return self.answers.pop(0) if self.answers else await asyncio.Future()

    def draft(self, text):
        self.drafts.append(text)

    def changed(self):
        self.seen.set()

    def leave(self):
        self.left = True

    def __str__(self):
        return "\n".join([*self.lines, self.tail])

    async def until(self, pattern):
        while not re.search(pattern, str(self)):
            self.seen.clear()
            await self.seen.wait()


def talk(folder, *lines, answers=(), resume=None, **options):
    """Say the lines one after the other; returns the screen and the chat."""
    screen = Paper(*answers)

    async def main():
        chat = Chat(Opener(folder, **{"offline": True, **options}), screen, resume=resume)
        chat.start()
        await chat.settled()
        for line in lines:
            chat.submit(line)
            await chat.settled()
        await chat.leave()
        return chat

    return screen, run(main())


def live(server, **more):
    return {
        "environ": {"AGENT_BASE_URL": server.url, "AGENT_API_KEY": KEY, "AGENT_MODEL": "m-1", **more},
        "offline": False,
    }


def test_words_are_answered_and_the_session_is_named(tmp_path):
    screen, chat = talk(tmp_path, "say hello there", "/cost")
    assert "hello there" in screen.lines
    assert screen.lines[0].startswith(f"session {chat.id} · offline")
    assert screen.lines[-1] == f"resume with: agentlab chat --folder {tmp_path} --resume {chat.id}"
    assert any(line.startswith("prompt ") for line in screen.lines)  # the status line
    assert any(re.fullmatch(r"requests +1", line) for line in screen.lines)
    assert not chat.failed


def test_a_tool_that_writes_is_asked_for_with_its_input(tmp_path):
    (tmp_path / "a.txt").write_text("inside\n")
    screen, _ = talk(tmp_path, "read a.txt", "run echo y > b.txt", "run touch c.txt", answers=["yes", "no"])
    assert screen.questions == ["Run run_shell?"] * 2  # reading is not asked for
    assert any(line.endswith("\tinside") for line in screen.lines)
    assert "  command: echo y > b.txt" in screen.lines
    assert (tmp_path / "b.txt").exists()
    assert not (tmp_path / "c.txt").exists()
    assert any(line.startswith("  rejected:") for line in screen.lines)


def test_always_holds_for_this_tool_in_this_chat(tmp_path):
    screen, _ = talk(tmp_path, "run touch a", "run touch b", "/fork", "run touch c", answers=["always"])
    assert screen.questions == ["Run run_shell?"]
    assert {"a", "b", "c"} <= {path.name for path in tmp_path.iterdir()}
    screen, _ = talk(tmp_path, "run touch d", answers=["no"])
    assert len(screen.questions) == 1
    assert not (tmp_path / "d").exists()


def test_codes_of_models_and_tools_do_not_reach_the_screen(tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    (tmp_path / "evil.txt").write_text(evil)
    script = [
        assistant("", call("1", "read_file", path="evil.txt")),
        assistant("", call("2", "run_shell", command=evil)),
        evil,
    ]
    with serve(Simulator(script)) as server:
        screen, _ = talk(tmp_path, f"go {evil}", "/rewind", answers=["no"], **live(server))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", str(screen))


def test_words_typed_meanwhile_steer(tmp_path):
    screen = Paper()

    async def main():
        chat = Chat(Opener(tmp_path, offline=True, pace=0.001), screen)
        chat.submit("count to 60")
        await screen.until(r"\b7 8\b")
        chat.submit("say banana")
        assert chat.queued == 1
        assert "queued: say banana" in screen.lines
        chat.submit("/rewind 1")
        assert "/rewind" in screen.errors[-1]
        chat.submit("/tools")
        await chat.settled()
        await chat.leave()
        return [words.text for words in chat.agent.said()]

    assert run(main()) == ["count to 60", "say banana"]
    assert "> say banana" in screen.lines
    assert screen.lines.index("read_file  allowed") < screen.lines.index("banana")


def test_the_first_ctrl_c_stops_and_the_second_leaves(tmp_path):
    screen = Paper()

    async def main():
        chat = Chat(Opener(tmp_path, offline=True, pace=0.001), screen)
        chat.submit("count to 1000")
        await screen.until(r"\b7 8\b")
        chat.submit("say later")
        assert not chat.interrupt()
        await chat.settled()
        partial = str(chat.agent.history[-1]["content"])
        assert partial.startswith("1 2 3") and "1000" not in partial
        assert chat.queued == 1  # what was queued is not lost
        assert chat.interrupt()
        chat.submit("say now")
        await chat.settled()
        assert not chat.interrupt()  # after new words it counts from the start
        await chat.leave()
        return chat

    chat = run(main())
    assert [words.text for words in chat.agent.said()] == ["count to 1000", "say later", "say now"]
    assert problems(chat.agent.history) == []
    assert any("stopped" in line for line in screen.lines)


@pytest.mark.parametrize("command", ["say x", "/compact"])
def test_ctrl_c_before_anything_has_begun(tmp_path, command):
    async def main():
        screen = Paper()
        chat = Chat(Opener(tmp_path, offline=True), screen)
        chat.submit("say a few words, more than a summary would have")
        await chat.settled()
        chat.submit(command)
        chat.interrupt()
        await chat.settled()
        assert "x" not in screen.lines and screen.tail == ""
        chat.submit("say y")
        await chat.settled()
        assert "y" in screen.lines and screen.errors == []
        await chat.leave()

    run(main())


def test_ctrl_c_ends_an_open_question(tmp_path):
    screen = Paper()

    async def main():
        chat = Chat(Opener(tmp_path, offline=True), screen)
        chat.submit("run touch a")
        await screen.until("wants to run")
        await asyncio.sleep(0)
        assert chat.busy
        chat.interrupt()
        await chat.settled()
        await chat.leave()
        return chat.agent.history

    assert problems(run(main())) == []
    assert not (tmp_path / "a").exists()


def test_retries_are_seen_and_can_be_stopped(tmp_path):
    screen = Paper()

    async def main(server):
        chat = Chat(Opener(tmp_path, **live(server)), screen)
        chat.submit("hi")
        await screen.until(r"waiting 25 s: .*429")
        chat.interrupt()
        await chat.settled()
        await chat.leave()
        assert not chat.failed

    with serve(Simulator([Fault(status=429, retry_after=25)])) as server:
        run(main(server))


def test_an_error_is_one_line_and_shows_no_key(tmp_path):
    with serve(Simulator([Fault(status=401), f"your key is {KEY}"])) as server:
        screen, chat = talk(tmp_path, "hi", "what is my key?", **live(server))
    assert chat.failed
    assert len(screen.errors) == 1
    assert "\n" not in screen.errors[0] and "AGENT_API_KEY" in screen.errors[0]
    assert KEY not in str(screen)
    assert "your key is [redacted]" in screen.lines


def test_rewind_lists_the_words_and_takes_them_back(tmp_path):
    screen, chat = talk(tmp_path, "say one", "say two", "/rewind", "/rewind 2", "/rewind 7", "/rewind x")
    assert "  2  say two" in screen.lines
    assert screen.drafts == ["say two"]
    assert [words.text for words in chat.agent.said()] == ["say one"]
    assert len(screen.errors) == 2


def test_fork_goes_on_in_a_copy(tmp_path):
    screen, chat = talk(tmp_path, "say one", "say two", "/fork 2", "say three", "/resume")
    first = re.search(r"session before it is (\w+)", str(screen))[1]
    assert chat.id != first
    assert [words.text for words in chat.agent.said()] == ["say one", "say three"]
    assert f"{chat.id}" in str(screen) and "(this one)" in str(screen)
    screen, chat = talk(tmp_path, resume=first[:8])
    assert [words.text for words in chat.agent.said()] == ["say one", "say two"]


def test_resume_switches_and_names_what_is_missing(tmp_path):
    _, first = talk(tmp_path, "say one")
    screen, chat = talk(tmp_path, "say two", f"/resume {first.id}", "/resume nonsense", f"/resume {first.id}")
    assert chat.id == first.id
    assert "say one" in str(screen)
    assert len(screen.errors) == 1
    with pytest.raises(AgentLabError, match="no session"):
        Chat(Opener(tmp_path, offline=True), Paper(), resume="nonsense")


def test_the_recorded_model_goes_on_and_another_server_is_said(tmp_path):
    first, second = Simulator(), Simulator()
    with serve(first) as one, serve(second) as two:
        _, chat = talk(tmp_path, "say one", **live(one))
        same, _ = talk(tmp_path, "say two", resume=chat.id, **live(one, AGENT_MODEL="m-2"))
        assert f"m-1 at {one.url}" in same.lines[0]
        moved, again = talk(tmp_path, "say three", resume=chat.id, **live(two, AGENT_MODEL="m-2"))
        assert f"m-1 at {two.url}" in moved.lines[0]
        assert one.url in moved.lines[1] and two.url in moved.lines[1]
        chosen, _ = talk(tmp_path, "say four", resume=chat.id, model="m-3", **live(one))
        assert "m-3" in chosen.lines[0] and "m-1" in chosen.lines[1]
        assert first.requests[-1]["model"] == "m-3"
        assert second.requests[-1]["model"] == "m-1"
    offline, _ = talk(tmp_path, "say five", resume=chat.id)
    assert "m-1" in offline.lines[1] and "offline" in offline.lines[1]
    assert again.id == chat.id


def test_an_offline_session_stays_offline(tmp_path):
    _, chat = talk(tmp_path, "say one")
    simulator = Simulator()
    with serve(simulator) as server:
        screen, _ = talk(tmp_path, "say two", resume=chat.id, **live(server))
        assert not simulator.requests
        assert "two" in screen.lines
        talk(tmp_path, "say three", resume=chat.id, model="m-3", **live(server))
        assert simulator.requests[-1]["model"] == "m-3"


def test_half_a_configuration_is_an_error(tmp_path):
    with pytest.raises(AgentLabError, match="AGENT_BASE_URL"):
        Chat(Opener(tmp_path, environ={"AGENT_API_KEY": KEY}), Paper())
    with pytest.raises(AgentLabError, match="folder"):
        Opener(tmp_path / "nowhere")


@pytest.mark.parametrize(("answers", "started"), [(["no"], False), (["yes", "yes"], True)], ids=["no", "yes"])
def test_servers_of_the_folder_start_only_when_approved(tmp_path, answers, started):
    mark = tmp_path / "started"
    code = f"import pathlib, runpy; pathlib.Path({str(mark)!r}).touch(); runpy.run_path({CLOCK!r}, run_name='__main__')"
    server = {"command": sys.executable, "args": ["-c", code], "env": {"A_KEY": "never-shown-value"}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"clock": server}}))
    screen, _ = talk(tmp_path, "say hi", "/fork", "/tools", answers=answers + ["no"] * (not started))
    assert screen.questions == ["Start clock?"] * (1 if started else 2)  # a yes holds for this chat
    assert mark.exists() == started
    assert "never-shown-value" not in str(screen)
    assert ("not approved" in str(screen)) != started


def test_prices_make_a_bill(tmp_path):
    (tmp_path / "p.json").write_text(
        '{"models": {"offline": {"source": "test", "date": "2026-01-01", "tiers": {"standard": {"input": 1}}}}}'
    )
    screen, _ = talk(tmp_path, "say hi", "/cost", price_list=tmp_path / "p.json")
    assert re.search(r"cost +USD 0\.000\d+", str(screen))


def test_commands_are_never_said(tmp_path):
    screen, chat = talk(tmp_path, "/nonsense", "/help", "  ", " /help is a command", "/quit")
    assert len(screen.errors) == 1 and "/nonsense" in screen.errors[0]
    assert any(line.startswith("/rewind") for line in screen.lines)
    assert [words.text for words in chat.agent.said()] == [" /help is a command"]
    assert screen.left


def test_compact_says_what_came_of_it(tmp_path):
    screen, chat = talk(tmp_path, "say hi", "say hi", "say hi", "/compact")
    assert any(line.startswith("not compacted: ") for line in screen.lines)
    assert not chat.failed
    words = [f"say {word} " + "and so on " * 30 for word in ("one", "two", "three")]
    screen, chat = talk(tmp_path, *words, "/compact", "say last")
    assert "became a summary" in str(screen)
    assert "last" in screen.lines and not chat.failed
