"""Every tool call has exactly one result: find what breaks that rule in a history, and repair it.

A chat API refuses a history with an unpaired call or result (HTTP 400), and refuses it again with every later
request: one Ctrl+C at the wrong moment ends the conversation for good. (Seed 000, streaming and interruption.)

How a history is read:

1. A *window* is one assistant message and all that follows it, up to the next assistant message.
2. A result counts only in the window of its call, since ids may come back in later turns; elsewhere it is an orphan.
3. The first result of a call wins, but a real one beats the placeholder of an earlier repair. If one message uses an
   id twice, the k-th result goes to the k-th call. Results without an id answer the calls without one.

How it is sent: the assistant message, one result per call in call order, then everything else in its own order.
Windows do not depend on each other, so a repaired history stays byte for byte the same while it grows at its end, and
the provider's prompt cache stays warm. Only a real result that arrives late for a placeholder changes earlier bytes.

Placeholders are known by `origin: "repair"`, never by their wording. Nothing that is passed in is changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from agentlab import jsonio
from agentlab.errors import AgentLabError, PairingError
from agentlab.language import say
from agentlab.messages import Message, ToolCall, calls_of

INTERRUPT_NOTE = (
    "The turn was interrupted before this tool call started: it did not run. "
    "This is no failure of the tool, and it may be called again if it is still needed."
)
UNKNOWN_NOTE = (
    "The turn was interrupted while this tool call was running: its effects are unknown, "
    "it may have done all, part or none of its work. Look at the present state before repeating it."
)

KINDS = {
    "unanswered": "call {} has no result",
    "orphan": "result {} belongs to no call",
    "misplaced": "result {} comes too early or too late for its call",
    "duplicate": "call {} has another result already",
    "between": "this message stands between a call and its results",
    "order": "result {} is not in call order",
    "empty": "the assistant message has neither text nor a call",
    "arguments": "the arguments of call {} are not a JSON object in a string",
    "id": "the id {} is missing, no string, or taken by another call of this message",
    "name": "the function's name in call {} holds characters that chat APIs refuse",
    "call": "an entry of tool_calls names no function",
    "calls": "tool_calls is empty, or no list",
    "content": "the content of result {} is neither text nor a list of parts",
    "entry": "this is no message: it has no role",
}
_MENDED = ("arguments", "id", "name", "call", "calls", "content", "entry")
_REFUSED_IN_NAMES = re.compile("[^a-zA-Z0-9_-]")


@dataclass(frozen=True)
class Problem:
    """One broken rule: the message's index in the history, a key of `KINDS`, the call id concerned ("" for none)."""

    index: int
    kind: str
    call_id: str = ""

    @property
    def sentence(self) -> str:
        """What is wrong, for people. A long id is cut."""
        shown = self.call_id if len(self.call_id) <= 60 else self.call_id[:59] + "…"
        return f"messages[{self.index}]: {KINDS[self.kind].format(repr(shown))}."


@dataclass(frozen=True)
class Repair:
    """A history that can be sent, and how many things were put right on the way.

    `filled` counts placeholders written for missing results; `mended` malformed arguments, ids and entries; `orphans`
    results outside the window of their call; `duplicates` further results of a call, a replaced placeholder included.
    """

    history: list[Message]
    filled: int
    mended: int
    orphans: int
    duplicates: int

    def _repr_html_(self) -> str:
        from agentlab import draw

        fates = ["repaired" if message.get("origin") == "repair" else "kept" for message in self.history]
        counts = say(
            "{filled} filled, {mended} mended, {orphans} orphans, {duplicates} duplicates",
            filled=self.filled,
            mended=self.mended,
            orphans=self.orphans,
            duplicates=self.duplicates,
        )
        return draw.strip(self.history, fates=fates, caption=counts)._repr_html_()


def problems(history: Sequence[Message]) -> list[Problem]:
    """Name what breaks the rules, in the order of the messages. Empty if and only if `repair` would change nothing."""
    found = sorted(_Reading(history).faults, key=lambda fault: fault.index)
    if all(fault.kind != "orphan" for fault in found):
        return found
    called = {_text(call.get("id")) for message in history if _role(message) for call in calls_of(message)}
    return [replace(it, kind="misplaced") if it.kind == "orphan" and it.call_id in called else it for it in found]


def require(history: Sequence[Message]) -> None:
    """Strict mode, for development: raise PairingError at the first problem instead of repairing it in silence."""
    if found := problems(history):
        raise PairingError(
            f"{found[0].sentence} This is the first of {len(found)} problem(s), and a provider would refuse the "
            "history: send repair(history).history, and look for the code that left it so."
        )


def repair(
    history: Sequence[Message],
    *,
    started: Iterable[str | tuple[int, str]] = (),
    orphans: Literal["text", "drop"] = "text",
) -> Repair:
    """Make a history sendable: every call with exactly one result, straight behind it and in call order.

    A missing result is filled with INTERRUPT_NOTE, or with UNKNOWN_NOTE for calls that `started`: a call id (the last
    unanswered call that has it) or a pair (index of the assistant message, call id), which stays right when ids recur.
    Results that answer no call become user messages with `origin: "repair"` (`orphans="text"`) or are dropped
    (`"drop"`); a placeholder, or a duplicate that repeats word for word what is kept, simply goes. Arguments that are
    no JSON object become `{}`, a dict becomes JSON text; nothing is guessed. Calls that name no function are dropped,
    and so are assistant messages with neither text nor calls (reasoning alone is neither). Entries that are no messages
    become text. A message that needs no change is passed on as the same object. Takes linear time.
    Raises AgentLabError for another value of `orphans`.
    """
    if orphans not in ("text", "drop"):
        raise AgentLabError(f'orphans is {orphans!r}: pass "text" to keep their content, or "drop" to lose it.')
    marks = (started,) if isinstance(started, str) else started
    ran: set[Any] = {mark if isinstance(mark, str) else tuple(mark) for mark in marks}
    reading = _Reading(history, keep_orphans=orphans == "text")
    last = {call_id: placeholder for _, call_id, placeholder in reading.gaps}
    for opener, call_id, placeholder in reading.gaps:
        if (opener, call_id) in ran or (call_id in ran and placeholder is last[call_id]):
            placeholder["content"] = UNKNOWN_NOTE
    count = Counter(fault.kind for fault in reading.faults)
    mended = sum(count[kind] for kind in _MENDED)
    return Repair(reading.sent, count["unanswered"], mended, count["orphan"], count["duplicate"])


class _Reading:
    """One pass over a history: what to send, what was wrong, and the placeholders (opener, call id, message)."""

    def __init__(self, history: Sequence[Message], *, keep_orphans: bool = True) -> None:
        self.history, self.keep_orphans = history, keep_orphans
        self.roles = [_role(message) for message in history]
        self.sent: list[Message] = []
        self.faults: list[Problem] = []
        self.gaps: list[tuple[int, str, Message]] = []
        openers = [index for index, role in enumerate(self.roles) if role == "assistant"]
        for opener, end in pairwise([-1, *openers, len(history)]):
            if self.is_sound(opener, end):
                self.sent += history[max(opener, 0) : end]
            else:
                self.send_results(opener, end, self.send_calls(opener) if opener >= 0 else [])

    def fault(self, index: int, kind: str, call_id: str = "") -> None:
        self.faults.append(Problem(index, kind, call_id))

    def is_sound(self, opener: int, end: int) -> bool:
        """The plain case, as nearly every window is. "No" is no verdict: the two methods below look closer."""
        message: Message = self.history[opener] if opener >= 0 else {"content": "nothing"}
        try:
            calls = message.get("tool_calls", ())
            if not isinstance(calls, list) or not calls:
                seen = "tool_calls" not in message and message["content"].strip()
                return bool(seen) and {"tool", ""}.isdisjoint(self.roles[opener + 1 : end])
            behind = opener + 1 + len(calls)
            for call, result in zip(calls, self.history[opener + 1 : behind], strict=True):
                id, name, arguments = call["id"], call["function"]["name"], call["function"]["arguments"]
                paired = (
                    id and isinstance(id, str) and id == result["tool_call_id"] and isinstance(result["content"], str)
                )
                if not paired or not name or _REFUSED_IN_NAMES.search(name) or _as_object(arguments) is not arguments:
                    return False
            return (
                len({call["id"] for call in calls}) == len(calls)
                and self.roles[opener + 1 : behind] == ["tool"] * len(calls)
                and {"tool", ""}.isdisjoint(self.roles[behind:end])
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return False

    def send_calls(self, opener: int) -> list[tuple[str, str]]:
        """Send the assistant message, unless it is empty. Returns the ids of each call: as it came, as it is sent."""
        message, sound = self.history[opener], len(self.faults)
        listed = message.get("tool_calls")
        if "tool_calls" in message and (not isinstance(listed, list) or not listed):
            self.fault(opener, "calls")
            listed = None
        calls: list[ToolCall] = []
        ids: list[tuple[str, str]] = []
        taken: set[str] = set()
        for place, call in enumerate(listed or ()):
            function: Any = call.get("function") if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or not name:
                self.fault(opener, "call")
                continue
            given = _text(call.get("id"))
            sent = given or f"call_{opener}_{place}"
            if sent in taken:
                sent = f"{sent[:32]}_{place}"
            while sent in taken:
                sent += "_"
            taken.add(sent)
            ids.append((given, sent))
            was = {"id": call.get("id"), "name": name, "arguments": function.get("arguments")}
            now = {"id": sent, "name": _REFUSED_IN_NAMES.sub("_", name), "arguments": _as_object(was["arguments"])}
            if was != now:
                self.faults += [Problem(opener, kind, given) for kind in now if was[kind] != now[kind]]
                function = {**function, "name": now["name"], "arguments": now["arguments"]}
                call = {**call, "id": sent, "function": function}
            calls.append(call)
        if len(self.faults) > sound:
            message = {**message, "tool_calls": calls}
            if not calls:
                del message["tool_calls"]
        if calls or any(_says(message.get(key)) for key in ("content", "refusal", "audio", "function_call")):
            self.sent.append(message)
        else:
            self.fault(opener, "empty")
        return ids

    def send_results(self, opener: int, end: int, calls: list[tuple[str, str]]) -> None:
        """Send one result per call, in call order, and behind them everything else in its own order."""
        body = range(opener + 1, end)
        results: dict[str, list[int]] = {given: [] for given, _ in calls}
        for index in body:
            if self.roles[index] == "tool" and (given := _text(self.history[index].get("tool_call_id"))) in results:
                results[given].append(index)
        shared = Counter(given for given, _ in calls)
        for given, found in results.items():
            if shared[given] == 1:  # a stable sort: real results first, each kind in its own order
                found.sort(key=lambda index: self.history[index].get("origin") == "repair")
        queues = {given: iter(found) for given, found in results.items()}
        reach, used, said = opener, set[int](), set[tuple[str, str]]()
        for given, sent in calls:
            if (index := next(queues[given], -1)) < 0:
                self.fault(opener, "unanswered", given)
                gap = {"role": "tool", "tool_call_id": sent, "content": INTERRUPT_NOTE, "origin": "repair"}
                self.gaps.append((opener, given, gap))
                self.sent.append(gap)
                continue
            if index < reach:
                self.fault(index, "order", given)
            reach = max(reach, index)
            used.add(index)
            said.add((given, _text(self.history[index].get("content"))))
            self.sent.append(self.result(index, given, sent))
        for index in body:
            message = self.history[index]
            if index in used:
                continue
            if self.roles[index] == "tool":
                given, content = _text(message.get("tool_call_id")), message.get("content")
                self.fault(index, "duplicate" if given in results else "orphan", given)
                if self.keep_orphans and message.get("origin") != "repair" and (given, _text(content)) not in said:
                    heading = f"Output of the tool call {given!r}, which has no place as its result"
                    saved = {key: message[key] for key in ("output_path",) if key in message}  # its file must stay
                    self.sent.append(_as_text(heading, content) | saved)
            elif self.roles[index]:
                if index < reach:
                    self.fault(index, "between")
                self.sent.append(message)
            else:
                self.fault(index, "entry")
                self.sent.append(_as_text("An entry that is no message", jsonio.dumps(message)))

    def result(self, index: int, given: str, sent: str) -> Message:
        """A result under the id that its call is sent with, and with a content that an API takes."""
        result = self.history[index]
        id, content = result.get("tool_call_id"), result.get("content")
        if not isinstance(id, str | None):
            self.fault(index, "id", given)
        if not _is_content(content):
            self.fault(index, "content", given)
            content = _text(content)
        elif id == sent:
            return result
        return {**result, "tool_call_id": sent, "content": content}


def _role(message: Any) -> str:
    """The role; "" for an entry that has none."""
    role = message.get("role") if isinstance(message, dict) else ""
    return role if isinstance(role, str) else ""


def _text(value: Any) -> str:
    """An id or a content as text: a string as it is, a missing one as "", anything else as JSON."""
    return value if isinstance(value, str) else "" if value is None else jsonio.dumps(value)


def _is_content(value: Any) -> bool:
    """Whether a chat API takes this as content: text, or a list of typed parts."""
    parts = value if isinstance(value, list) and value else [None]
    return isinstance(value, str) or all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts)


def _as_text(heading: str, content: Any) -> Message:
    """A user message that no person wrote: the heading says what the data behind it is."""
    if isinstance(content, list) and _is_content(content):
        return {"role": "user", "content": [{"type": "text", "text": heading + ":"}, *content], "origin": "repair"}
    return {"role": "user", "content": f"{heading}:\n{_text(content)}", "origin": "repair"}


def _as_object(arguments: Any) -> str:
    """The arguments if they are the JSON text of an object; a dict as such a text; else "{}"."""
    if isinstance(arguments, dict):
        return jsonio.dumps(arguments)
    try:
        return arguments if isinstance(arguments, str) and isinstance(jsonio.loads(arguments), dict) else "{}"
    except ValueError:
        return "{}"


def _says(content: Any) -> bool:
    """Whether a person would see anything: text that is not blank, or a part that is no text."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part for part in parts]
    return any(text.strip() if isinstance(text, str) else text for text in texts)
