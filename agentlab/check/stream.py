"""The exercise of chapter 03: write an assembler, deltas in and one assistant message out.

The answer is a class with `feed(event) -> str`, which returns the new text, and `message() -> dict`.
"""

from __future__ import annotations

from typing import Any

from agentlab import jsonio
from agentlab.check.compare import finding
from agentlab.check.report import Exercise, Finding, Live, blame
from agentlab.check.stream_cases import CASES, Case, Event, told
from agentlab.check.stream_solution import Solution
from agentlab.errors import AgentLabError, ProviderError
from agentlab.language import say
from agentlab.loop import Turn, run_turn
from agentlab.messages import Message, assistant, call, user
from agentlab.provider import ChatClient
from agentlab.simulator import Simulator
from agentlab.tools import Registry

HINTS = (
    say(
        "Print the events of one stream. Which keys come only once, in a call's first piece, and which "
        "come in every one?"
    ),
    say(
        "Keep a dict from `index` to what you know of that call: id, name, and the arguments so far, as text. A missing"
        " key, null and an empty text all mean nothing new. Parse nothing."
    ),
    say(
        "Build the message only in message(): a new dict for each call with id, type and function, nothing "
        "else in it, in the order of the indexes, and no `tool_calls` key when there are none."
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no class."""
    if not callable(answer):
        raise AgentLabError(
            say("Give check.assembler the class itself, without brackets: check.assembler(MyAssembler).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    fed = " | ".join(map(told, case.events))
    return finding(
        case,
        answer,
        lambda: case.run(case, answer),
        fed=fed,
        instead=jsonio.dumps(case.message),
        bonus=case.bonus,
        why=case.why,
    )


class Adapter:
    """A reader's assembler as the client needs it: it only adds what the client reads off the events itself."""

    def __init__(self, inner: Any) -> None:
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self._inner = inner
        self._done = False

    @property
    def complete(self) -> bool:
        return self._done or self.finish_reason is not None

    def done(self) -> None:
        self._done = True

    def feed(self, event: Event) -> str:
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.usage = event.get("usage") or self.usage
        return str(self._inner.feed(event) or "")

    def message(self) -> Message:
        message: Message = self._inner.message()
        return message


FILES = {"apples.txt": "17 apples", "pears.txt": "25 pears"}
TOTAL = "17 apples and 25 pears: that makes 42."


def _story(request: dict[str, Any]) -> Message | str:
    """Ask for both files, then add up what the request shows of them."""
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if not results:
        calls = [call(f"call_{n}", "read_file", path=path) for n, path in enumerate(FILES, 1)]
        return assistant("Let me count.", *calls)
    if sorted(results) == sorted(FILES.values()):
        return TOTAL
    told = "; ".join(results)
    return f"I asked for {' and '.join(FILES)}, and this is what I was told: {told} From that I cannot count anything."


def turn(answer: Any) -> Turn:
    """A turn of an agent whose client puts the stream together with the reader's class. Two files are to be counted."""
    registry = Registry()

    @registry.tool(read_only=True)
    async def read_file(path: str) -> str:
        """Read one text file."""
        return FILES[path]

    client = ChatClient(
        base_url="http://simulator/v1",
        model="offline",
        transport=Simulator(_story, chunk=7).transport(),
        assembler=lambda: Adapter(answer()),
    )
    return run_turn([user("How much fruit is there?")], client, registry)


def live(answer: Any) -> Live:
    """Run the turn and say how it ended: the right answer, the provider's refusal, or an error."""
    from agentlab.widgets.sync import run_sync

    running = turn(answer)
    try:
        run_sync(running.run())
        history = tuple(running.history)
    except ProviderError as error:
        return Live(False, str(error), _history(running))
    except Exception as error:
        return Live(False, say("The loop broke: {error}", error=blame(error, answer)), _history(running))
    said = str(history[-1].get("content") or "")
    if running.reason == "done" and said == TOTAL:
        return Live(True, said, history)
    return Live(
        False,
        say("The turn ended ({reason}) with: {said}", reason=running.reason, said=said or say("no text")),
        history,
    )


def _history(running: Turn) -> tuple[Message, ...]:
    try:
        return tuple(running.history)
    except Exception:  # the reader's message() failed, and fails again here
        return ()


assembler = Exercise("assembler", judge=judge, turn=turn, live=live, hints=HINTS, solution=Solution)
