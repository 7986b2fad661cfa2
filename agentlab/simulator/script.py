"""Scripts: what the model says next. A list of steps, a function of the request, or the rules when there is none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from agentlab.errors import AgentLabError
from agentlab.messages import Message, assistant, calls_of
from agentlab.simulator import rules
from agentlab.simulator.dialect import CHAT, Ask, Request, Words
from agentlab.simulator.faults import Fault
from agentlab.simulator.shown import Memory, missing_history, missing_tools, recognise, tools_by_id

Step = str | Message | Fault
Script = Sequence[Step] | Callable[[Request], Step | None] | None


@dataclass(frozen=True)
class Turn:
    """What the model says to one request. `counts`: later requests must show it, once it has arrived whole."""

    message: Message
    fault: Fault | None = None
    counts: bool = False


class Story:
    """A script and where it stands.

    A list is a story: each step is given once, in order, and only to a request that shows all that came before (see
    `shown`); a request that does not gets an answer that names what is missing, and the step stays. A function reads
    the request itself (its `messages` in the OpenAI chat shape, whatever the dialect; the rest as sent), so only the
    tools are checked for it. The rules read the last message. `words` are the dialect's, for what is missing.
    """

    def __init__(self, script: Script, words: Words = CHAT) -> None:
        self.memory = Memory()
        self._words = words
        self._next = 0
        self._script: Script = script
        if script is not None and not callable(script):
            if isinstance(script, str | dict):
                raise AgentLabError("A script is a list of steps: write [step], or give a function.")
            self._script = [check(step) for step in copy.deepcopy(list(script))]

    def turn(self, ask: Ask, request: Request) -> Turn:
        """The answer to this request."""
        ask = replace(ask, messages=recognise(ask.messages, self.memory)[0])
        if self._script is None:
            turn = Turn(rules.answer(ask))
        elif callable(self._script):
            turn = self._from_function(self._script, ask, request)
        else:
            turn = self._from_list(self._script, ask)
        if called := tools_by_id(turn.message):
            self.memory.batches.append(called)
        return turn

    def _from_function(self, function: Callable[[Request], Step | None], ask: Ask, request: Request) -> Turn:
        step = function(copy.deepcopy({**request, "messages": ask.messages}))
        if step is None:
            return Turn(assistant("My script has no answer to this request."))
        turn = _turn(check(step), counts=False)
        missing = missing_tools(ask, turn.message)
        return Turn(assistant(missing)) if missing else turn

    def _from_list(self, steps: Sequence[Step], ask: Ask) -> Turn:
        missing = missing_history(ask.messages, self.memory, self._words)
        if missing:
            return Turn(assistant(missing))
        if self._next >= len(steps):
            return Turn(assistant(f"My script is over: it has {len(steps)} step(s), and all are used."))
        turn = _turn(steps[self._next], counts=True)
        missing = missing_tools(ask, turn.message)
        if missing:
            return Turn(assistant(missing))
        self._next += 1
        self.memory.show(ask.messages)
        return turn


def check(step: Any) -> Step:
    """The step itself. Raises AgentLabError when it is no text, no assistant message and no Fault."""
    said = step.step if isinstance(step, Fault) else step
    if not isinstance(said, str) and not (isinstance(said, dict) and said.get("role") == "assistant"):
        kind = type(said).__name__
        raise AgentLabError(f"A step is a text, an assistant message (messages.assistant) or a Fault, not {kind}.")
    for call in calls_of(said) if isinstance(said, dict) else []:
        function = call.get("function")
        texts = [call.get("id"), *(function.get(key) for key in ("name", "arguments"))] if function else [None]
        if not all(isinstance(text, str) for text in texts):
            raise AgentLabError("A tool call in a step needs an id, a name and arguments, all text: use messages.call.")
    return cast(Step, step)


def _turn(step: Step, *, counts: bool) -> Turn:
    fault, said = (step, step.step) if isinstance(step, Fault) else (None, step)
    message = assistant(said) if isinstance(said, str) else said
    return Turn(message, fault, counts and fault is None)
