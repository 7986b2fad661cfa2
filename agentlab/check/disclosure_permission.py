"""The second exercise of chapter 10: `run_tool` asks for the permission of the tool that it runs.

The answer is an async function `(name, input, *, tools, policy)`: run the tool of this name, and return a status
(`completed`, `failed` or `rejected`) and a text. It is judged by what ran, and by what the policy was asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError, ToolError
from agentlab.language import say
from agentlab.loop import Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.permissions import Policy, Rule, matching
from agentlab.simulator import Simulator
from agentlab.tools import Registry, Tool

HINTS = (
    say(
        "Find the target first. Then everything that follows, the permission too, is about the target and "
        "its input; what is allowed for run_tool says nothing about what stands behind it."
    ),
    say(
        "`await policy.permits(target, input)` does all of it: the rules, the question to the person, and "
        "no for an answer when nobody is there. `policy.judge` only says what is to be done: 'ask' is not "
        "yes."
    ),
    say(
        "A model makes names up, and calls run_tool with run_tool. Neither is a tool that can run: return "
        "'failed', and say what to do instead. Without an input, the input is {}."
    ),
)

RAN = "ran"


class Bench:
    """Tools that write down what ran, and a person who is asked and answers."""

    def __init__(self, answer: bool | None = None) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[str] = []
        self._answer = answer
        made = [self._tool(name, name in ("weather_forecast", "email_search")) for name in NAMES]
        self.tools = {tool.name: tool for tool in made}

    def _tool(self, name: str, read_only: bool) -> Tool:
        async def handler(**input: Any) -> str:
            self.ran.append((name, input))
            if name == "broken":
                raise ToolError("The disk is full.")
            return f"{name} {RAN}"

        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return Tool(name, name.replace("_", " "), schema, handler, read_only=read_only)

    async def ask(self, tool: Any, input: dict[str, Any]) -> bool:
        self.asked.append(tool.name)
        return self._answer is True

    def policy(self, rules: Any) -> Policy:
        return Policy(rules, ask=None if self._answer is None else self.ask)


NAMES = ("run_tool", "weather_forecast", "email_search", "email_send", "delete_branch", "deploy_start", "broken")


def _raises(input: dict[str, Any]) -> bool:
    raise RuntimeError("a mistake in a rule")


@dataclass(frozen=True)
class Case:
    """A call of run_tool, the rules, the person's answer (None: nobody is there), and what has to come of it."""

    name: str
    target: Any
    input: Any
    rules: Any
    status: str
    why: str
    answer: bool | None = None
    asked: tuple[str, ...] = ()


OPEN = {"run_tool": "allow"}
TEST_ONLY = [Rule("allow", "deploy_start", matching(environment="test")), Rule("allow", "run_tool"), Rule("deny")]
CASES = (
    Case(
        say("a target that reads"), "weather_forecast", {"place": "Oslo"}, {}, "completed", say("Reading is allowed.")
    ),
    Case(
        say("run_tool allowed, the target denied"),
        "delete_branch",
        {"branch": "main"},
        {**OPEN, "delete_*": "deny"},
        "rejected",
        say("Judged on run_tool, one allowed tool opens the door to all others."),
    ),
    Case(
        say("run_tool denied, the target allowed"),
        "email_send",
        {"to": "a"},
        {"run_tool": "deny", "email_*": "allow"},
        "completed",
        say("Only the target is judged: run_tool is no more than the way to it."),
    ),
    Case(
        say("a target that writes, nobody there"),
        "email_send",
        {"to": "a"},
        OPEN,
        "rejected",
        say("Writing asks, and where nobody can be asked the answer is no. 'ask' is not yes."),
    ),
    Case(
        say("the person says no"),
        "email_send",
        {"to": "a"},
        OPEN,
        "rejected",
        say("The person is asked about the target, once."),
        answer=False,
        asked=("email_send",),
    ),
    Case(
        say("the person says yes"),
        "email_send",
        {"to": "a"},
        OPEN,
        "completed",
        say("The person is asked about the target, once."),
        answer=True,
        asked=("email_send",),
    ),
    Case(
        say("a rule about the arguments, kept"),
        "deploy_start",
        {"environment": "test"},
        TEST_ONLY,
        "completed",
        say("Rules look at the target's own input."),
    ),
    Case(
        say("a rule about the arguments, broken"),
        "deploy_start",
        {"environment": "production"},
        TEST_ONLY,
        "rejected",
        say("Rules look at the target's own input."),
    ),
    Case(
        say("a rule that raises"),
        "email_search",
        {"words": "x"},
        [Rule("allow", when=_raises)],
        "rejected",
        say("A mistake in a policy must not open a door."),
    ),
    Case(
        say("a name that nobody has"),
        "delete_everything",
        {},
        {"*": "allow"},
        "failed",
        say("Say so, and how to go on."),
    ),
    Case(say("a name that is no text"), None, {}, {"*": "allow"}, "failed", say("A model may send anything.")),
    Case(
        say("run_tool through run_tool"),
        "run_tool",
        {"name": "delete_branch", "input": {}},
        {**OPEN, "delete_*": "deny"},
        "failed",
        say("It is no target: it would be judged, and not what stands behind it."),
    ),
    Case(
        say("no input"),
        "email_search",
        None,
        {},
        "completed",
        say("A tool without arguments is called without an input."),
    ),
    Case(
        say("a tool that fails"),
        "broken",
        {},
        {"*": "allow"},
        "failed",
        say("The model reads why: it must not end the turn."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no async function."""
    if not callable(answer) or not inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say(
                "Give check.target_permission an async function, without brackets: "
                "check.target_permission(my_run_tool)."
            )
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    from agentlab.widgets.sync import run_sync

    def run() -> Difference | None:
        bench = Bench(case.answer)
        got = run_sync(answer(case.target, case.input, tools=bench.tools, policy=bench.policy(case.rules)))
        return _wrong(case, bench, got)

    fed = f"name={case.target!r}, input={case.input!r}, rules={_rules(case.rules)}"
    return finding(case, answer, run, fed=fed, instead=say("{status!r} and a text", status=case.status), why=case.why)


def _wrong(case: Case, bench: Bench, got: Any) -> Difference | None:
    runs = case.status == "completed" or case.target == "broken"
    expected = [(case.target, case.input or {})] if runs else []
    if bench.ran != expected:
        return Difference(say("what ran"), short(expected or say("nothing")), short(bench.ran or say("nothing")))
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(part, str) for part in got)):
        return Difference(say("what it returns"), say("two texts: a status, and words for the model"), short(got))
    status, text = got
    if status != case.status:
        return Difference(say("the status"), repr(case.status), repr(short(status)))
    if tuple(bench.asked) != case.asked:
        return Difference(say("what the person was asked"), _told(case.asked), _told(bench.asked))
    if not text.strip():
        return Difference(
            say("the text"), say("words for the model"), say("nothing"), say("An empty result tells it nothing.")
        )
    if case.target == "broken" and "disk is full" not in text:
        return Difference(say("the text"), say("what the tool said: The disk is full."), short(text))
    return None


def _told(names: Any) -> str:
    return ", ".join(names) or say("nothing")


def _rules(rules: Any) -> str:
    if isinstance(rules, Mapping):
        return str(dict(rules))
    return ", ".join(f"{rule.verdict} {rule.tool}{' when …' if rule.when else ''}" for rule in rules)


RIGHT = "Oslo: it runs. The branch main stays: I may not delete it."


def _story(request: dict[str, Any]) -> Message | str:
    """Two calls through run_tool, one of them forbidden; then say what can be seen to have happened."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    if not results:
        first = call("c1", "run_tool", name="weather_forecast", input={"place": "Oslo"})
        second = call("c2", "run_tool", name="delete_branch", input={"branch": "main"})
        return assistant("Both at once.", first, second)
    if f"delete_branch {RAN}" in results[-1]:
        return "I deleted the branch main, though your policy says: deny delete_branch."
    if f"weather_forecast {RAN}" not in results[0]:
        return f"The weather could not be had: {short(results[0])}"
    return RIGHT


def turn(answer: Any) -> Turn:
    """A turn whose `run_tool` is the answer. The policy allows `run_tool` and the weather, and denies deletions."""
    bench, registry = Bench(), Registry()
    policy = bench.policy({"run_tool": "allow", "weather_forecast": "allow", "delete_*": "deny"})

    @registry.tool
    async def run_tool(name: str, input: dict[str, Any]) -> str:
        """Run a tool by its name."""
        status, text = await answer(name, input, tools=bench.tools, policy=policy)
        if status != "completed":
            raise ToolError(str(text))
        return str(text)

    words = [user("What is the weather in Oslo? And delete the branch main.")]
    return run_turn(words, Simulator(_story).client(), registry, policy=policy)


def live(answer: Any) -> Live:
    """Run the turn and say how it ended."""
    from agentlab.widgets.sync import run_sync

    running = turn(answer)
    try:
        run_sync(running.run())
    except Exception as error:
        return Live(
            False, say("Your function raised in the loop: {error}", error=blame(error, answer)), tuple(running.history)
        )
    said = str(running.history[-1].get("content") or "")
    return Live(said == RIGHT, said, tuple(running.history))


async def solution(
    name: str, input: dict[str, Any] | None, *, tools: dict[str, Tool], policy: Policy
) -> tuple[str, str]:
    target = tools.get(name)
    if target is None or name == "run_tool":
        return "failed", f"There is no tool {name!r} to run. Find one with search_tool."
    input = input or {}
    if not await policy.permits(target, input):
        return "rejected", f"Permission to run {name} was refused, so it did not run. Go on without it."
    try:
        return "completed", await target.handler(**input)
    except ToolError as error:
        return "failed", str(error)


target_permission = Exercise("target_permission", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
