"""The model behind `Simulator()`: a handful of rules, and honest about it.

It reads the last message only, knows a few patterns, and says so when it knows none. It calls a tool that the request
offers when a person's words say so (`read notes.txt`), and reports what the tool answered. It never pretends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from agentlab import jsonio
from agentlab.messages import Message, assistant, calls_of
from agentlab.simulator.dialect import Ask
from agentlab.simulator.tokens import text_of

ABILITIES = (
    "I am a handful of rules, not a language model. I only know how to say hello, count (`count to 20`), do one sum"
    " (`2 + 3`), repeat (`say something`), tell what I can see (`what do you see?`), and call a tool that your request"
    " offers (`read notes.txt`, `run ls`, or a tool's name and a value)."
)
_SHOWN, _MOST = 200, 1000
_VERBS = {
    "read": ("read",),
    "open": ("read",),
    "show": ("read",),
    "run": ("shell", "bash", "run", "exec"),
    "execute": ("shell", "bash", "run", "exec"),
    "list": ("list", "ls"),
    "search": ("search", "grep", "find"),
    "find": ("search", "grep", "find"),
}
_NUMBER = r"(-?\d{1,15}(?:\.\d{1,9})?)"
_SUM = re.compile(rf"(?:what is |what's |how much is )?{_NUMBER}\s*([-+*/x])\s*{_NUMBER}\s*=?\??", re.I)
_SIGNS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "x": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def answer(ask: Ask) -> Message:
    """The rules' answer to a request: an assistant message with text or with one tool call."""
    last = ask.messages[-1]
    if last.get("role") == "tool":
        return assistant(_report(ask.messages))
    words = text_of(last).strip()
    if re.match(r"(hello|hi|hey|good (morning|day|evening))\b", words, re.I):
        return assistant(f"Hello! {ABILITIES}")
    if re.fullmatch(r"what (do|can) you see\W*", words, re.I):
        return assistant(_sight(ask))
    if found := re.fullmatch(r"count (?:up )?to (\d{1,9})\W*", words, re.I):
        return assistant(" ".join(str(n) for n in range(1, min(int(found[1]), _MOST) + 1)))
    if found := re.fullmatch(r"(?:say|repeat) (.+)", words, re.I | re.S):
        return assistant(found[1])
    if found := _SUM.fullmatch(words):
        return assistant(_sum(found[1], found[2].lower(), found[3]))
    return _call(ask, words) or assistant(f"I do not know what to do with that. {ABILITIES}")


def _sum(left: str, sign: str, right: str) -> str:
    if sign == "/" and float(right) == 0:
        return "I cannot divide by zero."
    return f"{left} {sign} {right} = {_SIGNS[sign](float(left), float(right)):.15g}"


def _sight(ask: Ask) -> str:
    roles = [str(message.get("role")) for message in ask.messages]
    listed = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    tools = ", ".join(f"`{name}`" for name in ask.names) or "no tools"
    return f"I see {len(roles)} message(s) ({listed}) and {tools}. That is all that I know."


def _report(messages: Sequence[Message]) -> str:
    start = next((at for at in reversed(range(len(messages))) if messages[at].get("role") != "tool"), 0)
    called = {call.get("id"): call["function"]["name"] for call in calls_of(messages[start])}
    lines = []
    for result in messages[start + 1 :]:
        text = text_of(result)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} [... the first {_SHOWN} characters]"
        lines.append(f"`{called.get(result.get('tool_call_id'))}` answered {len(text)} characters:\n{shown}")
    return "\n\n".join(lines)


def _call(ask: Ask, words: str) -> Message | None:
    verb, _, rest = words.partition(" ")
    rest = re.sub(r"^(the )?(file|folder|command) ", "", rest.strip(), flags=re.I).strip().strip("`\"'")
    if verb in ask.names:
        tool = verb
    elif verb.lower() in _VERBS:
        parts = _VERBS[verb.lower()]
        tool = next((name for part in parts for name in ask.names if part in name.lower()), "")
        if not tool:
            offered = ", ".join(f"`{name}`" for name in ask.names)
            seen = f"it offers only {offered}" if offered else "it has no `tools`"
            return assistant(f"You asked me to {verb.lower()}, but your request offers no tool for that: {seen}.")
    else:
        return None
    if not ask.may_call:
        return assistant(f'I would call `{tool}`, but your request forbids it with tool_choice "none".')
    id = f"call_{1 + sum(len(calls_of(message)) for message in ask.messages)}"
    arguments = _arguments(ask.tools[ask.names.index(tool)], rest)
    function = {"name": tool, "arguments": jsonio.dumps(arguments)}
    return assistant("", {"id": id, "type": "function", "function": function})


def _arguments(tool: dict[str, Any], value: str) -> dict[str, Any]:
    """The words as the tool's first required argument, or its first one; as they are, the tool judges them."""
    schema = (tool.get("function") or tool).get("parameters") or tool.get("input_schema") or {}
    wanted = [*(schema.get("required") or []), *(schema.get("properties") or {})]
    return {wanted[0]: value} if wanted and value else {}
