"""The exercise of chapter 13: count the usage of a recorded session, each request once.

The answer is a function of the records of a Claude Code session file: a list of whatever the lines hold. It returns the
usages that count, one per request, in any order. It is judged on what those come to.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentlab import jsonio
from agentlab.check.compare import Difference, finding
from agentlab.check.report import Exercise, Finding, Live, blame, short
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, calls_of, user
from agentlab.simulator import Simulator
from agentlab.tools import Registry
from agentlab.usage import read_usage, total

HINTS = (
    say(
        "Print `record['message']['id']` and `record['message']['usage']` for every assistant record of "
        "the session: which numbers are the same in all parts of a reply, and which is not?"
    ),
    say(
        "Keep the usages in a dict whose key is `message['id']`: a later part then takes the place of the earlier one,"
        " whatever stands between them. A part without a usage changes nothing."
    ),
    say(
        "A line may be a number, a list or a text, and a `message` may be a text, too: look at an item only after"
        " `isinstance(item, dict)`. Where a reply has no id, use its position in the list as its key."
    ),
)

SHOWN = 7
"""So many records of a failed case are shown."""

Record = Any
"""A line of a session file: nearly always a dict."""


def reply(id: str | None, fresh: int, written: int, read: int, output: int, *, block: str = "text") -> Record:
    """One record of a reply, with the keys that matter here. The counts are tokens."""
    usage = {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": output,
    }
    message = {"id": id, "role": "assistant", "model": "claude-sonnet-4", "content": [{"type": block}], "usage": usage}
    if id is None:
        del message["id"]
    return {"type": "assistant", "message": message}


def _without_usage(record: Record) -> Record:
    return {**record, "message": {**record["message"], "usage": None}}


def _synthetic(record: Record) -> Record:
    return {**record, "message": {**record["message"], "model": "<synthetic>"}}


ASKED = {"type": "user", "message": {"role": "user", "content": "Go on."}}
TITLE = {"type": "summary", "summary": "Tools are listed", "leafUuid": "a1"}
TASK = {
    "type": "user",
    "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Done."}]},
    "toolUseResult": {"usage": reply("", 9, 9, 9, 9)["message"]["usage"]},
}
NO_RECORDS = (42, [1], "massive error", None, {"silly": "this"}, {"type": "assistant", "message": "error"})

SAMPLE = (
    ("ZU", 3, 27_356, 0, 3),
    ("ZU", 3, 27_356, 0, 1_662),
    ("W3", 10, 29_364, 0, 3),
    ("W3", 10, 29_364, 0, 3),
    ("W3", 10, 29_364, 0, 406),
    ("2Y", 12, 34_883, 0, 1),
    ("2Y", 12, 34_883, 0, 520),
    ("y4", 10, 12_313, 22_912, 5),
    ("y4", 10, 12_313, 22_912, 5),
    ("y4", 10, 12_313, 22_912, 785),
    ("Dh", 12, 43_351, 0, 1),
    ("Dh", 12, 43_351, 0, 1_136),
)
"""The usages in `data/sessions/claude_code_2.1.4_interrupted_tool_use.jsonl`: the end of the id, and the counts."""


@dataclass(frozen=True)
class Case:
    """The lines of a session, and the positions of those whose usages count."""

    name: str
    records: tuple[Record, ...]
    right: tuple[int, ...]
    why: str
    bonus: bool = False


def _case(name: str, records: Iterable[Record], right: Iterable[int], why: str, *, bonus: bool = False) -> Case:
    return Case(name, tuple(records), tuple(right), why, bonus)


CASES = (
    _case(
        say("one reply, one record"),
        [ASKED, reply("A", 10, 0, 0, 5)],
        [1],
        say("One request was made, and one was paid."),
    ),
    _case(
        say("a reply in three records"),
        [reply("A", 10, 90, 0, 3, block="thinking"), reply("A", 10, 90, 0, 3), reply("A", 10, 90, 0, 400)],
        [2],
        say("The parts were written down while the reply arrived: only the last one knows how long it became."),
    ),
    _case(
        say("something between the parts"),
        [ASKED, reply("A", 10, 90, 0, 3), TITLE, TITLE, reply("A", 10, 90, 0, 400)],
        [4],
        say("Parts belong together by message.id. Neighbours they need not be."),
    ),
    _case(
        say("the parts of two replies, mixed"),
        [reply("A", 1, 0, 0, 3), reply("B", 2, 0, 0, 4), reply("A", 1, 0, 0, 30), reply("B", 2, 0, 0, 40)],
        [2, 3],
        say("The ids say what belongs together, and not the order of the lines."),
    ),
    _case(
        say("two requests that cost the same"),
        [reply("A", 10, 0, 90, 7), reply("B", 10, 0, 90, 7)],
        [0, 1],
        say("Equal numbers are no sign of one request: another id is another request."),
    ),
    _case(
        say("a last part without a usage"),
        [reply("A", 10, 90, 0, 400), _without_usage(reply("A", 0, 0, 0, 0))],
        [0],
        say("A part that says nothing takes nothing back."),
    ),
    _case(
        say("a tool with a usage of its own"),
        [reply("A", 10, 90, 0, 30), TASK],
        [0],
        say("toolUseResult is the product's note on a tool. What counts stands in the message of a reply."),
    ),
    _case(
        say("lines that are no records"),
        [*NO_RECORDS, reply("A", 10, 90, 0, 30)],
        [len(NO_RECORDS)],
        say("Such lines stand in real files. One of them must not cost the whole session."),
    ),
    _case(
        say("two replies without an id"),
        [reply(None, 10, 0, 0, 5), reply(None, 12, 0, 0, 6)],
        [0, 1],
        say("Nothing says that they are parts of one reply, so each counts."),
    ),
    _case(say("a real session"), [reply(*row) for row in SAMPLE], [1, 4, 6, 9, 11], say("Five requests were made.")),
    _case(
        say("a reply that no model made"),
        [_synthetic(reply("A", 0, 0, 0, 0)), reply("B", 10, 90, 0, 30)],
        [1],
        say("The product wrote this one itself, and no request was made: its model is <synthetic>."),
        bonus=True,
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per case. Raises AgentLabError when the answer is no function."""
    if not callable(answer) or inspect.iscoroutinefunction(answer):
        raise AgentLabError(
            say("Give check.usage_once a plain function, without brackets: check.usage_once(my_usages).")
        )
    return [_judge(case, answer) for case in CASES]


def _judge(case: Case, answer: Any) -> Finding:
    def run() -> Difference | None:
        records = copy.deepcopy(list(case.records))
        got = answer(records)
        if records != list(case.records):
            return Difference(say("the records"), say("unchanged"), say("changed"), say("Others still read this list."))
        right = [case.records[at]["message"]["usage"] for at in case.right]
        if not isinstance(got, list | tuple) or not all(isinstance(usage, dict) for usage in got):
            return Difference(
                say("what it returns"), say("a list of usages"), short(got), say("Return a list of usages, all dicts.")
            )
        if _counted(got) == _counted(right):
            return None
        return Difference(say("the usages that count"), _shown(right), _shown(got))

    fed = " | ".join([*map(_line, case.records[:SHOWN]), *["…"] * (len(case.records) > SHOWN)])
    return finding(case, answer, run, fed=fed, instead=say("a list of usages"), bonus=case.bonus, why=case.why)


def _counted(usages: Sequence[Any]) -> Counter[str]:
    return Counter(jsonio.dumps(usage, sort_keys=True) for usage in usages)


def _shown(usages: Sequence[Any]) -> str:
    """What a list of usages comes to, for the reader."""
    summed = total(map(read_usage, usages))
    return say(
        "requests: {n}, tokens in: {prompt:,}, tokens out: {output:,}",
        n=len(usages),
        prompt=summed.prompt,
        output=summed.output,
    )


def told(usages: Sequence[Any]) -> str:
    """The same for the model, in one line."""
    summed = total(map(read_usage, usages))
    requests = f"{len(usages)} request{'' if len(usages) == 1 else 's'}"
    return f"{requests}, {summed.prompt:,} tokens in and {summed.output:,} out"


def _line(record: Record) -> str:
    """A record in short."""
    message = record.get("message") if isinstance(record, dict) else None
    if not isinstance(message, dict):
        return str(record["type"]) if record == TITLE else jsonio.dumps(record)
    if "model" not in message:
        return str(record["type"])
    usage = message["usage"]
    id = message.get("id", say("no id"))
    if usage is None:
        return say("{id}: no usage", id=id)
    return say(
        "{id}: in {prompt:,} out {output:,}", id=id, prompt=read_usage(usage).prompt, output=usage["output_tokens"]
    )


FILES = {"apples.txt": "12", "pears.txt": "30"}


def _story(request: dict[str, Any]) -> Message | str:
    """Read two files at once, then ask what it has cost so far, and pass that on."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    if not results:
        calls = [call(f"call_{n}", "read_file", path=path) for n, path in enumerate(FILES, 1)]
        return assistant("I look into both files.", *calls)
    if len(results) == len(FILES):
        return assistant(f"{' and '.join(results)}. And what did that cost?", call("call_3", "spent"))
    return f"12 and 30 make 42. Spent before this answer: {results[-1]}."


def _agent(answer: Any) -> tuple[Turn, Simulator]:
    """An agent that writes its session down as Claude Code does, and counts with the answer."""
    simulator, registry = Simulator(_story), Registry()
    records: list[Record] = []
    last: list[Message] = []

    @registry.tool(read_only=True)
    async def read_file(path: str) -> str:
        """Read one text file."""
        return FILES[path]

    @registry.tool(read_only=True)
    async def spent() -> str:
        """Say how many tokens were used so far."""
        try:
            return told(answer(copy.deepcopy(records)))
        except Exception as error:
            return f"the counting failed: {blame(error, answer)}"

    def write(usage: dict[str, Any]) -> None:
        read = read_usage(usage)
        blocks = ["text", *("tool_use" for _ in calls_of(last[-1]))]
        for at, block in enumerate(blocks, 1):
            output = read.output if at == len(blocks) else 1
            counts = (read.miss - read.written, read.written, read.hit, output)
            records.extend([reply(f"msg_{len(last)}", *counts, block=block), TITLE])

    hooks = Hooks(after_message=last.append, on_usage=write)
    return run_turn([user("How much fruit, and at what cost?")], simulator.client(), registry, hooks=hooks), simulator


def turn(answer: Any) -> Turn:
    """A turn of an agent that asks what it has spent; the answer counts."""
    return _agent(answer)[0]


def live(answer: Any) -> Live:
    """Run the turn, and hold what it says against the provider's own bill."""
    from agentlab.widgets.sync import run_sync

    running, simulator = _agent(answer)
    run_sync(running.run())
    said, billed = str(running.history[-1].get("content") or ""), told(simulator.usages[:2])
    if said.endswith(f": {billed}."):
        return Live(True, say("{said} So says the provider's bill.", said=said), tuple(running.history))
    return Live(
        False, say("{said} The provider's bill says: {billed}.", said=said, billed=billed), tuple(running.history)
    )


def solution(records: list[Any]) -> list[dict[str, Any]]:
    latest = {}
    for at, record in enumerate(records):
        message = record.get("message") if isinstance(record, dict) else None
        if not isinstance(message, dict) or message.get("model") == "<synthetic>":
            continue
        if message.get("usage"):
            latest[message.get("id", at)] = message["usage"]
    return list(latest.values())


usage_once = Exercise("usage_once", judge=judge, turn=turn, live=live, hints=HINTS, solution=solution)
