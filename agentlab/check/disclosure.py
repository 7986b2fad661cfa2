"""The first exercise of chapter 10: which tools stand in the array of a request.

The answer is a function `(protocol, unmasked, *, direct, deferred)` of plain dicts that each have a `name`. It is
judged by the arrays that it gives over a session: what stands in them, in which order, and how often they change.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.disclosure import Catalog
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.permissions import Policy
from agentlab.simulator import Simulator
from agentlab.toolarray import Protocol, array_history
from agentlab.tools import Registry

HINTS = (
    say(
        "Three questions, one after the other. Does this protocol add anything at all? Which names are deferred tools?"
        " In which order do they stand?"
    ),
    say(
        'With "strict" the direct tools stay in front, as they are, and the deferred ones with a found '
        "name follow, sorted by name. A set forgets repeats; a dict from name to tool finds what is there "
        "and skips what is not."
    ),
    say(
        "Make a new list: `list(direct) + [...]`. `direct += ...` and `unmasked.sort()` change what the "
        "caller still uses, and the array grows with every request."
    ),
)


def _tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "description": f"This is {name.replace('_', ' ')}."} for name in names]


DIRECT = _tools("run_shell", "read_file", "search_tool")
DEFERRED = _tools("schedule_wakeup", "convene_panel", "recall_memory", "create_subtask", "notify_user")


@dataclass(frozen=True)
class Case:
    """A session: what has been found at each request, and the names that then stand in the array behind the direct
    ones."""

    name: str
    protocol: Protocol
    found: tuple[tuple[str, ...], ...]
    added: tuple[tuple[str, ...], ...]
    why: str


ONE, TWO = ("notify_user",), ("convene_panel", "notify_user")
CASES = (
    Case(say("free-text, nothing found"), "free-text", ((),), ((),), say("The direct tools are always there.")),
    Case(
        say("free-text, two found"),
        "free-text",
        ((), ONE, TWO),
        ((), (), ()),
        say("This provider takes any name: whatever you add here breaks the cache, and buys nothing."),
    ),
    Case(say("strict, nothing found"), "strict", ((),), ((),), say("What nobody found is paid for in every request.")),
    Case(
        say("strict, one found"),
        "strict",
        ((), ONE, ONE, ONE),
        ((), ONE, ONE, ONE),
        say("Without it in the array this provider refuses the call; once it is there it stays."),
    ),
    Case(
        say("strict, two found in one step"),
        "strict",
        ((), TWO, TWO),
        ((), TWO, TWO),
        say("One step, one change: both come at once."),
    ),
    Case(
        say("strict, the same names in another order"),
        "strict",
        ((), TWO, TWO[::-1], TWO),
        ((), TWO, TWO, TWO),
        say("Names often live in a set, which has no order. Sorted, the same names give the same bytes."),
    ),
    Case(
        say("strict, found again"),
        "strict",
        (("notify_user", "notify_user"),),
        (ONE,),
        say("A name twice in the array is refused by the provider."),
    ),
    Case(
        say("strict, a later one"),
        "strict",
        (ONE, ("schedule_wakeup", "notify_user")),
        (ONE, (*ONE, "schedule_wakeup")),
        say("All that were found stand there, sorted: tomorrow a server may list its tools in another order."),
    ),
    Case(
        say("strict, names that are no deferred tools"),
        "strict",
        (("no_such_tool", "read_file", *ONE),),
        (ONE,),
        say("A model makes names up, and calls direct tools, too: neither adds anything."),
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.resolve_tools a plain function, without brackets: check.resolve_tools(mine).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    direct, deferred = copy.deepcopy(DIRECT), copy.deepcopy(DEFERRED)
    arrays: list[list[Any]] = []

    def run() -> Difference | None:
        for found, added in zip(case.found, case.added, strict=True):
            unmasked = list(found)
            array = answer(case.protocol, unmasked, direct=direct, deferred=deferred)
            if wrong := _wrong(array, added):
                return wrong
            if (direct, deferred, unmasked) != (DIRECT, DEFERRED, list(found)):
                return Difference(
                    say("what it was given"),
                    say("unchanged"),
                    say("changed"),
                    say("The caller uses these lists again."),
                )
            arrays.append(list(array))
        breaks, due = array_history(arrays).breaks, array_history([[*DIRECT, *added] for added in case.added]).breaks
        if breaks != due:
            return Difference(
                say("times that the array changed"), str(due), str(breaks), say("The same tools, other bytes.")
            )
        return None

    found = finding(case, answer, run, fed="", instead=say("a list of tools"), why=case.why)
    if found.passed:
        return found
    number = min(len(arrays), len(case.found) - 1)
    fed = say(
        "{protocol!r}, request {number} of {requests}, found {found}",
        protocol=case.protocol,
        number=number + 1,
        requests=len(case.found),
        found=list(case.found[number]),
    )
    return Finding(case.name, False, False, fed, found.where, found.expected, found.got, found.why)


def _wrong(array: Any, added: Sequence[str]) -> Difference | None:
    if not isinstance(array, list | tuple) or not all(isinstance(tool, dict) and "name" in tool for tool in array):
        return Difference(
            say("what it returns"), say("a list of tools, as they were given"), short(array), say("Return the dicts.")
        )
    expected = [tool["name"] for tool in DIRECT] + list(added)
    got = [tool["name"] for tool in array]
    if got != expected:
        return Difference(
            say("the names in the array"), ", ".join(expected), short(", ".join(map(str, got)) or say("none"))
        )
    by_name = {tool["name"]: tool for tool in [*DIRECT, *DEFERRED]}
    if changed := [tool for tool in array if tool != by_name[tool["name"]]]:
        return Difference(
            say("a tool"), short(by_name[changed[0]["name"]]), short(changed[0]), say("Leave the tools as they are.")
        )
    return None


class _Desk(Catalog):
    """A catalogue whose array is the answer's, and which gives the found names in another order every time."""

    def __init__(self, answer: Any, protocol: Protocol) -> None:
        direct, deferred = Registry(), Registry()
        direct.tool(name="read_file", read_only=True)(lambda path: "")
        for name in "notify_user", "deploy_status":
            deferred.tool(name=name)(_named(name))
        super().__init__(direct, deferred, protocol=protocol)
        self._answer = answer
        self._asked = 0

    def specs(self) -> list[dict[str, Any]]:
        self._asked += 1
        direct = [spec["function"] for spec in self.tools("free-text")]
        deferred = [spec["function"] for spec in self.tools("strict", self.deferred)[len(direct) :]]
        found = list(self.unmasked)[:: -1 if self._asked % 2 else 1]
        array = self._answer(self.protocol, found, direct=direct, deferred=deferred)
        return [{"type": "function", "function": tool} for tool in array]


def _named(name: str) -> Any:
    def handler() -> str:
        return f"{name} ran"

    handler.__name__ = name
    handler.__doc__ = {"notify_user": "Show the person a note.", "deploy_status": "Show what is deployed."}[name]
    return handler


RIGHT = "Version 7 is deployed, and you were told."


def _story(request: dict[str, Any]) -> Message | str:
    """Search for two tools, call both by their own names, and answer from their results."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    if not results:
        calls = [call("s1", "search_tool", query="deployed"), call("s2", "search_tool", query="note")]
        return assistant("I look for tools.", *calls)
    seen = " ".join(results)
    for name in "deploy_status", "notify_user":
        if name not in seen:
            return f"No search showed me {name}."
        if f"{name} ran" not in seen:
            return assistant(f"I call {name} by its name.", call(f"c_{name}", name))
    return RIGHT


def _running(answer: Any, dialect: str, protocol: Protocol) -> tuple[Turn, Simulator]:
    simulator = Simulator(_story, dialect=dialect)
    words = [user("Tell me what is deployed.")]
    desk = _Desk(answer, protocol)
    return run_turn(words, simulator.client(), desk, policy=Policy(default="allow")), simulator


def turn(answer: Any) -> Turn:
    """A turn with a provider that refuses calls of tools that are not in the array."""
    return _running(answer, "anthropic", "strict")[0]


def live(answer: Any) -> Live:
    """Run the session with a provider that checks names, and with one that does not; count what changed."""
    from agentlab.widgets.sync import run_sync

    said, good = [], True
    history: tuple[Message, ...] = ()
    for dialect, protocol, due in ("anthropic", "strict", 1), ("openai", "free-text", 0):
        running, simulator = _running(answer, dialect, protocol)  # type: ignore[arg-type]
        try:
            run_sync(running.run())
        except AgentLabError as error:
            return Live(False, f"{protocol}: {short(str(error))}", tuple(running.history))
        except Exception as error:
            return Live(
                False,
                say("Your function raised in the loop: {error}", error=blame(error, answer)),
                tuple(running.history),
            )
        last = str(running.history[-1].get("content") or "")
        breaks = array_history([request["tools"] for request in simulator.requests]).breaks
        size = len(jsonio.dumps(simulator.requests[-1]["tools"]))
        good = good and last == RIGHT and breaks == due
        said.append(f"{protocol}: {last} {_changes(breaks, due)} {say('At the end: {size:,} characters.', size=size)}")
        history = history or tuple(running.history)
    return Live(good, "\n".join(said), history)


def _changes(breaks: int, due: int) -> str:
    """How often the array changed, and how often it had to."""
    said = {0: say("The array never changed."), 1: say("The array changed once.")}
    words = said.get(breaks) or say("The array changed {breaks} times.", breaks=breaks)
    return words if breaks == due else words + " " + say("({due} is enough)", due=due)


def solution(protocol: str, unmasked: list[str], *, direct: list[Any], deferred: list[Any]) -> list[Any]:
    if protocol == "free-text":
        return list(direct)
    by_name = {tool["name"]: tool for tool in deferred}
    return list(direct) + [by_name[name] for name in sorted(set(unmasked)) if name in by_name]


resolve_tools = Exercise("resolve_tools", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
