"""The exercise of chapter 12: hang two mechanisms on the one loop.

The answer is a function of `shorten`, which brings a batch of results within its budget, and of a `Recorder`. It
returns the loop's `Hooks`. A wrong one sends the long text, or writes down another conversation than the one that was
sent.
"""

from __future__ import annotations

import inspect
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.outputs import reducer
from agentlab.recorder import Recorder
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget, SpillStore
from agentlab.surface import Surface
from agentlab.tools import Registry, ToolResult
from agentlab.workspace import Workspace

Shorten = Callable[[Sequence[ToolResult]], list[ToolResult]]

HINTS = (
    say(
        "A hook returns what is kept; one that returns None has only looked. `shorten` returns the short results, the"
        " recorder's methods return None. Which of the two must have the last word?"
    ),
    say(
        "`Hooks` has one place for `after_results`, and two mechanisms want it. Write a function of your own that calls"
        " both, and give that to `Hooks`. The other three places belong to the recorder alone."
    ),
    say(
        "In your function: kept = shorten(results), then recorder.after_results(kept), then return kept. Written down"
        " before it is short, the long text is back after a restart."
    ),
)

LONG, SHORT = "x" * 9_000, "xx... [saved]"
WORDS, REPLY = user("Build it."), assistant("", call("call_1", "show_log"), call("call_2", "show_log"))
USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


class Stage:
    """A log, a recorder on it, and a `shorten` that counts its files. `play` is what the loop does in one step."""

    def __init__(self, answer: Any) -> None:
        self.log, self.files, self.kept = Surface(), 0, [ToolResult("", "", {}, "failed", "")]
        self.hooks = answer(self.shorten, Recorder(self.log))
        if not isinstance(self.hooks, Hooks):
            raise TypeError(
                say("my_hooks returned {value}: return Hooks(before_request=..., ...)", value=short(self.hooks))
            )

    def shorten(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        self.files += len(results)
        return [ToolResult(it.call_id, it.name, it.input, it.status, SHORT, it.spillable, "spill/1") for it in results]

    def play(self) -> Stage:
        raw = [ToolResult(f"call_{n}", "show_log", {}, "completed", LONG) for n in (1, 2)]
        self.call(self.hooks.before_request, [WORDS])
        self.call(self.hooks.after_message, REPLY)
        self.kept = self.call(self.hooks.after_results, raw)
        self.call(self.hooks.on_usage, USAGE)
        return self

    def call(self, hook: Callable[[Any], Any] | None, value: Any) -> Any:
        """As the loop does it: no hook, or None, leaves the value as it is."""
        from agentlab.widgets.sync import run_sync

        answer = hook(value) if hook else None
        if isawaitable(answer):
            answer = run_sync(_wait(answer))
        return value if answer is None else answer

    def logged(self, role: str) -> list[str]:
        messages = [event["message"] for event in self.log.events if event["type"] == "message"]
        return [str(message["content"]) for message in messages if message["role"] == role]


async def _wait(answer: Any) -> Any:
    return await answer


@dataclass(frozen=True)
class Case:
    """One thing to look at after a step: what it should be, what it is, and what a difference means."""

    name: str
    where: str
    expected: Any
    look: Callable[[Stage], Any]
    why: str


CASES = (
    Case(
        say("the model gets the short results"),
        say("what after_results returns"),
        [SHORT] * 2,
        lambda stage: [result.output for result in stage.kept],
        say(
            "The loop keeps what this hook returns. None means that it has only looked: the long text "
            "stays, and is sent."
        ),
    ),
    Case(
        say("the log gets them too"),
        say("the results in the log"),
        [SHORT] * 2,
        lambda stage: stage.logged("tool"),
        say(
            "After a restart the log is the conversation. With the long text in it the next request is "
            "another one than the last, and may not fit; without any, nobody knows what came of the calls."
        ),
    ),
    Case(
        say("each result is saved once"),
        say("files written"),
        2,
        lambda stage: stage.files,
        say("`shorten` writes a file for each long result, every time that it is called. Call it once a batch."),
    ),
    Case(
        say("the person's words"),
        say("the person's words in the log"),
        ["Build it."],
        lambda stage: stage.logged("user"),
        say("They come through before_request, and through no other hook."),
    ),
    Case(
        say("the reply, before its calls run"),
        say("replies in the log"),
        [""],
        lambda stage: stage.logged("assistant"),
        say("after_message is asked before the first call runs. So after a crash the log knows what had been started."),
    ),
    Case(
        say("how each call ended"),
        say("states of the calls"),
        ["running", "running", "completed", "completed"],
        lambda stage: [event["record"]["status"] for event in stage.log.events if event["type"] == "tool_call"],
        say("The recorder writes it down when it sees the results: hand them to recorder.after_results."),
    ),
    Case(
        say("the usage"),
        say("usages in the log"),
        [USAGE],
        lambda stage: [event["usage"] for event in stage.log.events if event["type"] == "usage"],
        say("What is not written down is in no bill after a restart: on_usage."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(say("Give check.wiring a plain function, without brackets: check.wiring(my_hooks)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        got = case.look(Stage(answer).play())
        return None if got == case.expected else Difference(case.where, short(case.expected), short(got), case.why)

    return finding(
        case, answer, run, fed=say("one step: words, a reply with two calls, two long results"), instead=say("hooks")
    )


WINDOW, FAILED = 2_000, 777
LOG = "\n".join(f"step {n}: {'FAILED' if n == FAILED else 'done'}" for n in range(1, 1_001))
RIGHT = f"After the restart I read on in the file: step {FAILED} failed."


def _story(request: dict[str, Any]) -> Message | str:
    """Ask for the log and, after the restart, read on where its pointer leads."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    said = sum(message["role"] == "user" for message in request["messages"])
    if not results:
        return assistant("", call("call_1", "show_log"))
    if said == 1:
        return "The log is there."
    pointer = re.search(r'read_file\("(.+?)"', results[0])
    if not pointer:
        return f"I look for the log in what I was sent, and find: {short(results[0])}"
    if len(results) == 1:
        return assistant("", call("call_2", "read_file", path=pointer[1], offset=FAILED, limit=1))
    return RIGHT if f"step {FAILED}: FAILED" in results[-1] else f"I read on, and got: {short(results[-1])}"


def turn(answer: Any) -> Turn:
    """A turn with the answer's hooks; then the program starts anew, and what is returned goes on from the log alone."""
    from agentlab.widgets.sync import run_sync

    root = Path(tempfile.mkdtemp()).resolve()
    store = SpillStore(root / "spill", base=root)
    registry = Registry(Workspace(root).tools())
    registry.tool(name="show_log", read_only=True)(lambda: LOG)
    shorten = reducer(registry, store, OutputBudget().for_window(WINDOW))
    client, log = Simulator(_story, context_window=WINDOW).client(), Surface()
    try:
        run_sync(run_turn([user("Show the log.")], client, registry, hooks=answer(shorten, Recorder(log))).run())
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    running = run_turn([*log.history(), user("Which step failed?")], client, registry)
    weakref.finalize(running, shutil.rmtree, root, ignore_errors=True)
    return running


def live(answer: Any) -> Live:
    """Run both turns."""
    from agentlab.widgets.sync import run_sync

    try:
        running = turn(answer)
    except AgentLabError as error:
        return Live(False, say("Before the restart: {error}", error=error))
    except Exception as error:
        return Live(False, say("Your hooks raised: {error}", error=blame(error, answer)))
    try:
        run_sync(running.run())
    except AgentLabError as error:
        return Live(False, say("After the restart: {error}", error=error), tuple(running.history))
    said = str(running.history[-1].get("content") or "")
    return Live(said == RIGHT, said, tuple(running.history))


def solution(shorten: Shorten, recorder: Recorder) -> Hooks:
    def after_results(results: list[ToolResult]) -> list[ToolResult]:
        kept = shorten(results)
        recorder.after_results(kept)
        return kept

    return Hooks(
        before_request=recorder.before_request,
        after_message=recorder.after_message,
        after_results=after_results,
        on_usage=recorder.on_usage,
    )


wiring = Exercise("wiring", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
