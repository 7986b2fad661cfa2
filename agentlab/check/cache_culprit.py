"""The second exercise of chapter 06: given two requests, say which part broke the prefix.

The answer is a function of the previous and the current request (bodies with `messages` and perhaps `tools`). It
returns `"tools"`, `"system"`, `"messages[i]"` or None. It is judged against `agentlab.prefix`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.prefix import diff
from agentlab.prices import Prices, bill
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.tools import Registry
from agentlab.usage import Ledger

HINTS = (
    say(
        "A request is laid out as tools, system, messages. Whatever comes first breaks all that stands behind it: name"
        " that one, and look no further."
    ),
    say(
        "Compare texts, not objects: `{'a': 1, 'b': 2} == {'b': 2, 'a': 1}` is true, and the two are different prompts."
        " `json.dumps` keeps the order of the keys."
    ),
    say(
        "Walk through the *previous* messages by index. A message that is missing now, or that is another "
        "text, is the culprit; its role tells whether it is `system`. More messages behind the last one "
        "are no break. Settings such as `temperature` are no part of the prompt."
    ),
)

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name} a file.", "parameters": {"type": "object"}}}
    for name in ("read", "edit", "grep")
]
SYSTEM = {"role": "system", "content": "You are a coding assistant. Look before you act."}
LOG = "09:00:01 start\n" + "ok\n" * 40
HISTORY = [
    SYSTEM,
    user("Why does the build fail? [09:00:00]"),
    assistant("", call("c1", "read", path="log.txt")),
    tool("c1", LOG),
    assistant("Line 3 looks odd.", call("c2", "grep", pattern="odd")),
    tool("c2", "3: odd"),
]
MORE = [assistant("Found it."), user("Fix it.")]


def _body(messages: Sequence[Message], tools: Sequence[Any] | None = TOOLS, **settings: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", **settings, "messages": list(messages)}
    return body if tools is None else {**body, "tools": list(tools)}


def _changed(at: int, **fields: Any) -> list[Message]:
    return [{**message, **fields} if i == at else message for i, message in enumerate(HISTORY)]


def _turned(message: Mapping[str, Any]) -> dict[str, Any]:
    """The same dict with its keys the other way round."""
    return dict(reversed(list(message.items())))


@dataclass(frozen=True)
class Case:
    """Two requests, and why the culprit is who it is."""

    name: str
    previous: dict[str, Any]
    current: dict[str, Any]
    why: str


CASES = (
    Case(
        say("only new messages"),
        _body(HISTORY),
        _body([*HISTORY, *MORE]),
        say("All of the previous request is still there."),
    ),
    Case(
        say("a clock in the system prompt"),
        _body(_changed(0, content="It is 09:00:01. Be kind.")),
        _body([*_changed(0, content="It is 09:00:02. Be kind."), *MORE]),
        say("The system prompt stands in front of every message."),
    ),
    Case(
        say("a time in the middle that stays"),
        _body(HISTORY),
        _body([*HISTORY, user("And now? [09:05:00]")]),
        say("A time harms nobody while its bytes stay. Compare, and do not search for dates."),
    ),
    Case(
        say("an old result was trimmed"),
        _body(HISTORY),
        _body([*_changed(3, content=LOG[:30]), *MORE]),
        say("The index is that of the list of messages, the system message included."),
    ),
    Case(
        say("the last result was trimmed"),
        _body(HISTORY),
        _body([*_changed(5, content="3"), *MORE]),
        say("What was sent was cached, the newest message, too."),
    ),
    Case(
        say("a message was taken out"),
        _body(HISTORY),
        _body([*HISTORY[:4], *MORE]),
        say("Where another message stands now, the prefix ends."),
    ),
    Case(
        say("the last message is gone"),
        _body(HISTORY),
        _body(HISTORY[:-1]),
        say("The previous request is not the beginning of this one any more."),
    ),
    Case(
        say("tools in another order"),
        _body(HISTORY),
        _body([*HISTORY, *MORE], [TOOLS[1], TOOLS[0], TOOLS[2]]),
        say("Tools stand in front of everything. Their order is part of the text."),
    ),
    Case(
        say("a tool more"),
        _body(HISTORY, TOOLS[:2]),
        _body([*HISTORY, *MORE]),
        say("It stands where the system prompt stood: all behind it has moved."),
    ),
    Case(
        say("keys in another order"),
        _body(HISTORY),
        _body(HISTORY, [_turned(TOOLS[0]), *TOOLS[1:]]),
        say("Equal dicts, different texts: the model reads text."),
    ),
    Case(
        say("tools and a message"),
        _body(HISTORY),
        _body(_changed(3, content="short"), TOOLS[:2]),
        say("Only the first break matters: behind it everything is paid for anyway."),
    ),
    Case(
        say("arguments written anew"),
        _body(HISTORY),
        _body(_changed(2, tool_calls=[{**call("c1", "read"), "function": {"name": "read", "arguments": "{ }"}}])),
        say("The arguments are a text of their own; parsed and written again, its bytes change."),
    ),
    Case(
        say("another temperature"),
        _body(HISTORY, temperature=0),
        _body([*HISTORY, *MORE], temperature=1),
        say("Settings are no part of what the model reads."),
    ),
    Case(say("no tools at all"), _body(HISTORY, None), _body([*HISTORY, *MORE], None), say("The key may be missing.")),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(say("Give check.culprit a plain function, without brackets: check.culprit(my_culprit)."))
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        pair = copy.deepcopy((case.previous, case.current))
        got, expected = answer(*pair), diff(case.previous, case.current).culprit
        if jsonio.dumps(pair) != jsonio.dumps((case.previous, case.current)):
            return Difference(
                say("what it was given"), say("unchanged"), say("changed"), say("These requests are still needed.")
            )
        return None if got == expected else Difference(say("the culprit"), repr(expected), short(repr(got)))

    fed = say("previous: {previous} | current: {current}", previous=_told(case.previous), current=_told(case.current))
    return finding(case, answer, run, fed=fed, instead=say("a culprit, or None"), why=case.why)


def _told(request: dict[str, Any]) -> str:
    tools = [each["function"]["name"] for each in request.get("tools", [])]
    return say(
        "tools {tools}; {messages} messages",
        tools=", ".join(tools) or say("none"),
        messages=len(request["messages"]),
    )


PRICES = Prices(2.0, 10.0, read=0.2)
STEP_S, REQUESTS, BUGS = 10, 10, 3
CLOCK_FROM, TOOLS_FROM, TRIM_FROM = 3, 5, 7
LINES = "\n".join(f"line {n}: the value of field {n} is {n * n % 97}" for n in range(40))


class _Specs(Registry):
    """A registry that gives its tools in another order for every request, from a certain one on, until it is fixed."""

    stage: _Stage

    def specs(self) -> list[dict[str, Any]]:
        return self.stage.with_tools(super().specs())


class _Stage:
    """An agent with three careless parts, each of which is switched off when the answer names it."""

    def __init__(self, answer: Any) -> None:
        self.number, self.now = 0, 0.0
        self.named: list[str | None] = []
        self.fixed: dict[str, int] = {}  # part -> the request whose form it keeps from then on
        self._answer = answer
        self.ledger = Ledger(noise=128)
        registry = _Specs()
        registry.stage = self
        for name in ("read_file", "list_dir", "search"):
            registry.tool(name=name, read_only=True, spillable=False)(_reader)
        cache = BlockCache(block=64, minimum=128)
        self.simulator = Simulator(_story, cache=cache, clock=lambda: self.now)
        hooks = Hooks(before_request=self._view, on_usage=self._seen)
        self.turn = run_turn([SYSTEM, user("Read the ten parts.")], self.simulator.client(), registry, hooks=hooks)

    def _at(self, part: str, start: int) -> int:
        """Which form this part has now: a new one for every request, 0 before it starts, the same once it is fixed."""
        return self.fixed.get(part, self.number if self.number >= start else 0)

    def with_tools(self, specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        turns = self._at("tools", TOOLS_FROM) % len(specs)
        return specs[turns:] + specs[:turns]

    def _view(self, history: list[Message]) -> list[Message]:
        self.number += 1
        self.now += STEP_S
        view = list(history)
        if at := self._at("system", CLOCK_FROM):
            view[0] = {**SYSTEM, "content": f"It is 09:00:{at:02}. {SYSTEM['content']}"}
        if at := self._at("messages", TRIM_FROM):
            view[3] = {**view[3], "content": str(view[3]["content"])[: 100 - at]}
        return view

    def _seen(self, usage: dict[str, Any]) -> None:
        if self.ledger.record(usage, self.now).verdict != "rewritten":
            return
        culprit = self._answer(*copy.deepcopy(self.simulator.requests[-2:]))
        self.named.append(culprit)
        self.fixed.setdefault(str(culprit).partition("[")[0], self.number)


def _reader(part: int) -> str:
    """Read one part."""
    return LINES


def _story(request: dict[str, Any]) -> Message | str:
    """Read one part after the other."""
    done = sum(message["role"] == "tool" for message in request["messages"])
    if done == REQUESTS - 1:
        return "That is all of them."
    return assistant("", call(f"call_{done + 1}", "read_file", part=done + 1))


def turn(answer: Any) -> Turn:
    """A turn of the careless agent. Whenever the ledger sees a rewritten prefix, the answer says what to switch off."""
    return _Stage(answer).turn


def live(answer: Any) -> Live:
    """Run the turn and read the bill. Three parts are careless, so three misses are what it takes."""
    from agentlab.widgets.sync import run_sync

    stage = _Stage(answer)
    try:
        run_sync(stage.turn.run())
    except Exception as error:
        return Live(
            False,
            say("Your function raised in the loop: {error}", error=blame(error, answer)),
            tuple(stage.turn.history),
        )
    paid, misses = bill(stage.turn.usages, PRICES), stage.ledger.misses
    named = ", ".join(short(name) for name in itertools.islice(stage.named, BUGS))
    said = say(
        "Named: {named}. {wasted:,} tokens were paid again in {misses} misses, USD {actual:.4f}.",
        named=named,
        wasted=stage.ledger.wasted,
        misses=misses,
        actual=paid.actual,
    )
    if misses != BUGS:
        said += say(" Three names, {bugs} misses: that was possible. What is named wrongly goes on costing.", bugs=BUGS)
    return Live(misses == BUGS, said, tuple(stage.turn.history))


def solution(previous: dict[str, Any], current: dict[str, Any]) -> str | None:
    def same(one: Any, other: Any) -> bool:
        return json.dumps(one) == json.dumps(other)

    if not same(previous.get("tools", []), current.get("tools", [])):
        return "tools"
    now = current["messages"]
    for i, message in enumerate(previous["messages"]):
        if i >= len(now) or not same(message, now[i]):
            return "system" if message["role"] == "system" else f"messages[{i}]"
    return None


culprit = Exercise("culprit", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
