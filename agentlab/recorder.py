"""Write a running turn down as it happens: the loop's hooks on one side, a journal on the other.

    before_request -> words of the person, and of the watchdog, that the log lacks
    after_message  -> the reply, and each of its calls as running
    after_results  -> the end of each call, then its result
    on_usage       -> the usage

A reply is in the log before its first call runs, so that after a crash the log knows what had been started. The end of
a call and its result go down together, the end first: a crash between them leaves a call that is known to have run.
Every hook returns None: the turn goes on with what it had.

    recorder = Recorder(journal)
    turn = run_turn([user("...")], client, registry, hooks=recorder.hooks)
    try: await turn.run()
    finally: recorder.finish(turn.history)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from agentlab.journal import Event
from agentlab.loop import Hooks
from agentlab.messages import Message, calls_of
from agentlab.tools import ToolResult


class Log(Protocol):
    """Where events go: a `Journal`, or a `Surface` that sits on one."""

    def append(self, event: Event, /) -> int: ...
    def append_all(self, events: Iterable[Event], /) -> list[int]: ...


_STATE = {"interrupted": "failed"}  # a ToolResult's word, and the log's
_ANSWERS = ("assistant", "tool")


class Recorder:
    """Appends what a turn adds to a history. One for each session, for as many turns as it has.

    `history` is what the log holds already, as `replay` gave it, or as the turn before left it.
    """

    def __init__(self, journal: Log, history: Sequence[Message] = ()) -> None:
        self.journal = journal
        self._known = {id(message): message for message in history if message.get("role") not in _ANSWERS}
        self._replies = 0  # since the newest of these
        self._replies = len([it for it in self._news(history) if it.get("role") == "assistant"])
        self._caller = 0
        self._open: list[str] = []

    @property
    def hooks(self) -> Hooks:
        """These methods as the loop's hooks. To combine them with others, call them from your own."""
        return Hooks(
            before_request=self.before_request,
            after_message=self.after_message,
            after_results=self.after_results,
            on_usage=self.on_usage,
        )

    def before_request(self, history: Sequence[Message]) -> None:
        """Append the messages of the history that nobody has recorded yet and that come through no other hook."""
        self._append([message for message in history if message.get("role") not in _ANSWERS])

    def after_message(self, message: Message) -> None:
        """Append a reply, and then its calls: each is running from now on, as far as a crash can tell."""
        self._caller = self.journal.append({"type": "message", "message": message})
        self._replies += 1
        calls = [call for call in calls_of(message) if isinstance(call.get("id"), str)]
        self._open = [call["id"] for call in calls]
        self.journal.append_all(
            {
                "type": "tool_call",
                "record": {"message": self._caller, "id": call["id"], **_asked(call), "status": "running"},
            }
            for call in calls
        )

    def after_results(self, results: Sequence[ToolResult]) -> None:
        """Append how the calls of the batch ended, and their results, in call order."""
        events: list[Event] = []
        for result in results:
            record: dict[str, Any] = {"message": self._caller, "id": result.call_id, "name": result.name}
            record |= {"input": result.input, "status": _STATE.get(result.status, result.status)}
            if result.status == "interrupted":
                record["interrupted"] = True
            if result.output_path is not None:
                record["output_path"] = result.output_path
            events += [{"type": "tool_call", "record": record}, {"type": "message", "message": result.message()}]
            if result.call_id in self._open:
                self._open.remove(result.call_id)
        for id in self._open:  # Stop came first: these never ran
            record = {"message": self._caller, "id": id, "status": "rejected", "interrupted": True}
            events.append({"type": "tool_call", "record": record})
        self._open = []
        self.journal.append_all(events)

    def on_usage(self, usage: dict[str, Any]) -> None:
        """Append the usage of one request, in the provider's own words."""
        self.journal.append({"type": "usage", "usage": usage})

    def finish(self, history: Sequence[Message]) -> None:
        """Append what reached the turn's history but no hook, when an error or Ctrl+C ended it. Always safe to call.

        That is the half reply that had arrived, results of tools that had ended, and the person's last words. A call
        whose result is there has completed; one with a placeholder stays as it was, and replay says that it crashed.
        """
        for message in self._news(history):
            if message.get("role") == "tool":  # a placeholder too: it knows which calls had started
                id = message.get("tool_call_id")
                if id in self._open:
                    self._open.remove(id)
                    events: list[Event] = [{"type": "message", "message": message}]
                    if message.get("origin") != "repair":
                        record = {"message": self._caller, "id": id, "status": "completed"}
                        events.insert(0, {"type": "tool_call", "record": record})
                    self.journal.append_all(events)
            elif message.get("role") != "assistant":
                self._append([message])  # not what the repair put into words
            else:
                self._caller = self.journal.append({"type": "message", "message": message})
                self._replies += 1
                self._open = [call["id"] for call in calls_of(message)]

    def _news(self, history: Sequence[Message]) -> Sequence[Message]:
        """What stands behind the last recorded message. Replies are counted: a mended one is another object each time,
        and the next one may say the same."""
        at = max((at for at, message in enumerate(history) if id(message) in self._known), default=-1)
        replies = [at for at, it in enumerate(history[at + 1 :], at + 1) if it.get("role") == "assistant"]
        written = replies[: self._replies]
        return history[(written[-1] if written else at) + 1 :]

    def _append(self, messages: Sequence[Message]) -> None:
        fresh = [it for it in messages if id(it) not in self._known and it.get("origin") != "repair"]
        if fresh:
            self.journal.append_all({"type": "message", "message": message} for message in fresh)
            self._known |= {id(message): message for message in fresh}
            self._replies, self._open = 0, []


def _asked(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    return {"name": function.get("name")} if isinstance(function, dict) else {}
