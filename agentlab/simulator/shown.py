"""What a request shows of the story so far, and in plain words what it does not show.

A model knows only what the request holds. So a scripted answer is given only when the request holds what the answer
builds on: the last answer, every result that was asked for, the person's words, and the tools to be called. This reads
structure (roles, ids, order), never the wording of a message, and each request once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentlab.messages import Message, calls_of
from agentlab.simulator.dialect import CHAT, Ask, Refusal, Words
from agentlab.simulator.tokens import text_of

Key = tuple[Any, ...]


def key(message: Message) -> Key:
    """What makes a message the same one in a later request. A result is known by its id: it may be shortened."""
    if message.get("role") == "tool":
        return ("tool", message.get("tool_call_id"))
    if calls := calls_of(message):
        return ("assistant", *(call.get("id") for call in calls))
    return (message.get("role"), text_of(message).strip())


def names(ids: Iterable[str], asked: Mapping[str, str]) -> str:
    """Ids with the tools that they stand for: `call_1 (read_file), call_2`."""
    return ", ".join(f"{id} ({asked[id]})" if id in asked else id for id in ids)


@dataclass
class Memory:
    """What the model said in this story, and what it was shown.

    `batches` are the calls of every answer that made some, as tool names by id. `thinks`: an answer had reasoning.
    """

    answers: list[Message] = field(default_factory=list)
    seen: dict[Key, None] = field(default_factory=dict)
    batches: list[dict[str, str]] = field(default_factory=list)
    wanted: Counter[str] = field(default_factory=Counter)
    thinks: bool = False

    @property
    def asked(self) -> dict[str, str]:
        """The tool that each id stands for."""
        return {id: name for batch in self.batches for id, name in batch.items()}

    def show(self, messages: Sequence[Message]) -> None:
        """These messages have been seen, and found good: results that a summary replaced are not due any more."""
        self.seen.update((key(message), None) for message in messages)
        self.wanted &= Counter(m["tool_call_id"] for m in messages if m.get("role") == "tool")

    def say(self, message: Message) -> None:
        """This answer has been given, so later requests must show it and the results that it asks for."""
        self.answers.append(message)
        self.wanted.update(call["id"] for call in calls_of(message))


def tools_by_id(message: Message) -> dict[str, str]:
    """The calls of a message as tool names by id."""
    return {call["id"]: call["function"]["name"] for call in calls_of(message)}


def recognise(messages: Sequence[Message], memory: Memory) -> tuple[list[Message], dict[str, str]]:
    """The messages with the ids that the model gave its calls, and what was changed: ids as sent to ids as given.

    A client may rename calls: Anthropic's API wants ids that are unique in a whole request. So a message with calls is
    the latest answer with these ids; or else, counted from the end, the next one that called the same tools.
    """
    given: dict[int, dict[str, str]] = {}
    place = len(memory.batches)
    for position in reversed(range(len(messages))):
        sent = tools_by_id(messages[position])
        earlier = range(place - 1, -1, -1) if sent else ()
        found = next((at for at in earlier if memory.batches[at] == sent), None)
        if found is None:
            tools = list(sent.values())
            found = next((at for at in earlier if list(memory.batches[at].values()) == tools), None)
        if found is not None:
            given[position], place = dict(zip(sent, memory.batches[found], strict=True)), found
    known: list[Message] = []
    renamed: dict[str, str] = {}
    ids: dict[str, str] = {}
    for position, message in enumerate(messages):
        if calls := calls_of(message):
            ids = given.get(position, {})
            renamed |= ids
            message = {**message, "tool_calls": [{**call, "id": ids.get(call["id"], call["id"])} for call in calls]}
        elif message.get("role") == "tool":
            id = message["tool_call_id"]
            message = {**message, "tool_call_id": ids.get(id, id)}
        known.append(message)
    return known, renamed


def shows(message: Message, answer: Message) -> bool:
    """Whether the message is this answer, or the half of its text that a client kept which hung up at the very end."""
    if key(message) == key(answer):
        return True
    text = text_of(message).strip()
    texts_only = message.get("role") == "assistant" and not calls_of(message) and not calls_of(answer)
    return texts_only and bool(text) and text_of(answer).startswith(text)


def missing_history(messages: Sequence[Message], memory: Memory, words: Words = CHAT) -> str | None:
    """What the messages do not show of the story, in words; None when nothing is missing.

    A summary may stand for what vanished: a user message never seen before, in a place where the person's own next
    words cannot be, that is before the last answer, or beside them, or where results are due.
    """
    if not memory.answers:
        return None
    last = memory.answers[-1]
    keys = [key(message) for message in messages]
    position = next((at for at in reversed(range(len(keys))) if shows(messages[at], last)), None)
    new = [k for k in keys[:position] if k[0] == "user" and k not in memory.seen]
    if position is None and len(new) <= (0 if calls_of(last) else 1):
        return _lost_answer(last, keys, memory, words)
    if new:
        return None
    present = Counter(message.get("tool_call_id") for message in messages if message.get("role") == "tool")
    gone = [id for id, times in memory.wanted.items() if present[id] < times]
    if gone:
        return (
            f"I cannot see the result of {names(gone, memory.asked)} any more, which I had asked for. Your loop lost a"
            " part of the history: keep every call with its result, or put a summary in their place."
        )
    if any(k[0] == "user" for k in memory.seen) and not any(k[0] == "user" for k in keys):
        return "I cannot see what I was asked: your request holds no user message. Keep the person's words in it."
    return None


def _lost_answer(last: Message, keys: Sequence[Key], memory: Memory, words: Words) -> str:
    kept = sum(k in memory.seen for k in set(keys))
    cut = f" Of the {len(memory.seen)} messages that I had seen, {kept} are left: your history was cut." * (
        kept < len(memory.seen)
    )
    ids = [call["id"] for call in calls_of(last)]
    if not ids:
        start = text_of(last).strip()[:40]
        return (
            f'I cannot see my own last answer ("{start}").{cut} I remember nothing between two requests: append every'
            " answer of mine to your messages list, and send the whole list."
        )
    return (
        f"I asked for {names(ids, memory.asked)}, and I can see neither my message nor its result.{cut} Append my"
        f" message, with its {words.calls}, and then {words.results} to your messages list before you send it again."
    )


def missing_tools(ask: Ask, wanted: Message) -> str | None:
    """Why the model cannot make the calls of its next step; None when it can.

    A tool that is not in `tools` may be called when the model has read its name in a message: a deferred tool.
    """
    called = list(dict.fromkeys(call["function"]["name"] for call in calls_of(wanted)))
    if not called:
        return None
    listed = ", ".join(f"`{name}`" for name in called)
    if not ask.names:
        return (
            f"I wanted to call {listed}, but I cannot see any tools: your request has no `tools`. Send them each time."
        )
    if not ask.may_call:
        return f'I wanted to call {listed}, but your request forbids it with tool_choice "none".'
    unknown = [name for name in called if name not in ask.names]
    unread = [name for name in unknown if not any(name in text_of(message) for message in ask.messages)]
    if unread:
        listed, offered = ", ".join(f"`{name}`" for name in unread), ", ".join(f"`{name}`" for name in ask.names)
        return f"I wanted to call {listed}, but your `tools` offer only {offered}."
    return None


def explain(refusal: Refusal, messages: Sequence[Message], memory: Memory, words: Words) -> str:
    """What a refused request does not show, in plain words; "" when there is nothing to add to the vendor's words.

    `messages` are the request's, in the OpenAI chat shape; only a refusal with a `kind` needs them.
    """
    if refusal.hint or not refusal.kind:
        return refusal.hint
    _, renamed = recognise(messages, memory)
    ids = [renamed.get(id, id) for id in refusal.ids]
    asked = memory.asked
    named = names(ids, asked)
    mine = "my message" if all(id in asked for id in ids) else "the assistant message"
    if refusal.kind == "duplicate":
        return f"Your request holds two results for {named}: keep one."
    if refusal.kind == "unanswered":
        shape = words.shape % refusal.ids[0]
        return f"Your request holds {mine} that asks for {named}, but not the result right behind it: append {shape}."
    if all(message.get("role") in ("tool", "system") for message in messages):
        return (
            f"Your history was cut: all that I can see is the result of {named}. The person's words and {mine} that"
            " asked for it are gone. Send the whole list each time."
        )
    return (
        f"Your request holds the result of {named}, but not {mine} that asked for it right before: append the whole"
        f" assistant message, with its {words.calls}, before its results."
    )
