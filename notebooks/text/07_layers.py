# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     formats: ipynb,text//py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version,-widgets,-language_info
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Four layers: the cheap ones first
#
# ← [The prompt cache](06_cache.ipynb) · modules: `layers`, `snip`, `micro`, `artifacts`, `layersummary`, `gates`
#
# **The problem.** A conversation grows by what tools return, and nearly all of that was read once and is never needed
# again. A summary would shorten it, but it needs a model, time and room of its own: too dear to be the first idea.

# %%
import errno
import itertools
import json
import os
import re
import tempfile
import textwrap
from pathlib import Path
from unittest.mock import patch


from agentlab import check, draw, layers
from agentlab.compaction import CompactionError, Limits
from agentlab.context import hooks
from agentlab.errors import ContextOverflow
from agentlab.layers import CompactionManager, Thresholds, fields_summarizer, micro, snip
from agentlab.layersummary import FIELDS, FIELDS_PROMPT
from agentlab.loop import Hooks, run_turn
from agentlab.messages import assistant, call, groups, jsonl, size_bytes, tool, user
from agentlab.notebook import data, source
from agentlab.provider import ChatClient
from agentlab.segments import SegmentManager
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.spill import OutputBudget
from agentlab.tools import Registry, ToolResult
from agentlab.usage import Ledger, bill, read_usage, total
from agentlab.watchdog import LoopBudget
from agentlab.widgets import explore, run_sync, stream

# %% [markdown]
# A task of 60 steps. The worker is a script that goes on behind the last module it can see; every 20 steps it runs
# the tests, too, in the same batch. They print 32,000 bytes.

# %%
STEPS, WINDOW, ENDLESS = 60, 13_000, 10**6  # windows in tokens
JOB = f"Port the {STEPS} modules to v2, one by one. Leave all comments as they are."
tools = Registry()


@tools.tool(read_only=True, spillable=False)  # a file is in a file already
def port(path: str) -> str:
    """Port one module."""
    lines = 6 + int(path[7:]) * 7 % 23
    return f"{path} was ported.\n" + "\n".join(["changed from version one to version two"] * lines)


@tools.tool(read_only=True)
def run_tests() -> str:
    """Run all tests."""
    return ("ok" + " " * 40 + "checked without problems\n") * 480 + "1 of 481 failed: leapyear"


def worker(request):
    shown = json.dumps(request["messages"])
    if JOB not in shown:
        return "I do not know what I was asked to do."
    n = 1 + max(map(int, re.findall(r"module_(\d+)", shown)), default=0)
    if n > STEPS:
        return "All are ported."
    tests = [call(f"test_{n}", "run_tests")] if n % 20 == 0 else []
    return assistant("", call(f"port_{n}", "port", path=f"module_{n}"), *tests)


async def work(manager=None, window=WINDOW, others=None):
    """The task with this context manager: the provider, the turn, and how it ended."""
    provider = Simulator(worker, context_window=window, cache=BlockCache(slots=2), clock=lambda: 0.0)
    wired = hooks(manager, others) if manager else others
    turn = run_turn([user(JOB)], provider.client(), tools, hooks=wired, budget=LoopBudget(2 * STEPS))
    try:
        ending = (await turn.run()).history[-1]["content"]
    except ContextOverflow as refused:
        ending = str(refused).split("\n")[0]
    return provider, turn, ending


# %%
BATCHES = []  # the results of each step, as the tools returned them
endless, turn, _ = await work(None, ENDLESS, Hooks(after_results=BATCHES.append))
RAW, BATCHES = turn.history, [batch for batch in BATCHES if batch]
sizes = [sum(len(result.output) for result in batch) for batch in BATCHES]
parts = [
    ("words and calls", size_bytes(RAW) - sum(sizes), "assistant"),
    ("results of the last 3 steps", sum(sizes[-3:]), "kept"),
    ("all older results", sum(sizes[:-3]), "dropped"),
]
draw.bar(parts, unit="bytes")

# %% [markdown]
# ## Break it
#
# A window of 13,000 tokens, and a plain idea: when the provider refuses, ask the model for a summary.

# %%
alone, turn, ending_alone = await work()
print("request", len(alone.requests), "|", ending_alone, "\n")
try:
    everything = FIELDS_PROMPT + jsonl(turn.history).decode()
    await Simulator(["Sure."], context_window=WINDOW).client().complete([user(everything)])
except ContextOverflow as refused:
    print("the summary   |", str(refused).split("\n")[0])

# %% [markdown]
# **The last resort needs room, too.** And one test run more than filled what was left.
#
# ## The mechanism
#
# Four gates, from cheap to dear. Each acts only above its limit, never at it.
#
# | | gate | acts above | what it leaves | asks a model |
# |---|---|---|---|---|
# | 1 | **spill**, before a result enters the history | 30,000 bytes a result, 200,000 a batch (largest first) | 2,000 bytes of each end, and a pointer | no |
# | 2 | **snip** | 50 groups | the first 3, a marker, the last 46 | no |
# | 3 | **micro** | 3 exchanges with tools | the call; a note for its result, and the pointer | no |
# | 4 | **summary** | 50,000 bytes of canonical JSON lines | five fields, then the person's last words | yes |
#
# A **group** is a message, or a call with all its results. Two and three work on groups, so no cut can part a pair:

# %%
source(layers.snip, docstring=False)

# %%
source(layers.micro, fold="Source", docstring=False)

# %% [markdown]
# The summary is five fields of JSON, not prose: fields can be checked. (A scripted scribe; a real one gets
# `FIELDS_PROMPT`.)

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
ids = map("{:05}".format, itertools.count(1)).__next__


def scribe(text):
    last = max(map(int, re.findall(r"module_(\d+)", text)))
    told = ["Port all.", "leapyear fails", f"up to module_{last}", "the rest", "Leave comments."]
    return json.dumps(dict(zip(FIELDS, told, strict=True)))


def new_manager(limits=None, summarize=scribe, **options):
    return CompactionManager(
        folder / "artifacts", summarize, base=folder, thresholds=limits, **{"ids": ids} | options
    )


# %% [markdown]
# The long history: its results come through gate one, batch by batch, and `prepare` makes the view. (Its limit is
# 10,000 bytes here: else gate four would have nothing to do.)

# %%
def entered(manager):
    """The history behind gate one."""
    history, batches = [], iter(BATCHES)
    for group in groups(RAW):
        first, *results = group.messages
        if results:
            results = [result.message() for result in manager.after_results(next(batches))]
        history += [first, *results]
    return history


TIGHT = Thresholds(max_bytes=10_000)
manager = new_manager(TIGHT)
history = entered(manager)
prepared = await manager.prepare(history)
print(f"spill: {size_bytes(RAW):,} -> {size_bytes(history):,} bytes")
prepared


# %% [markdown]
# ### Four objects
#
# "The messages" are not one list. Here is the output of the first test run, in all four:

# %%
def seen(messages):
    return next(m for m in messages if m.get("tool_call_id") == "test_20")


transcript = (folder / prepared.transcript).read_bytes()
there = [json.loads(line) for line in transcript.splitlines()]
objects = {
    "the result": (RAW, "all of it, in a file of its own", "the tool wrote it"),
    "the canonical history": (history, "an excerpt and a pointer", "only grows"),
    "the request history": (micro(snip(history)), "a note and the pointer", "made for a request"),
    "the transcript": (there, "as in the canonical history", "written before a summary"),
}
rows = []
for name, (messages, what, life) in objects.items():
    rows.append((name, len(seen(messages)["content"].encode()), what, life))
artifact = (folder / seen(history)["output_path"]).read_text()
print("the transcript is the history:", transcript == jsonl(history))
print("the artifact is the result:   ", artifact == seen(RAW)["content"])
draw.table(rows, head=("object", "bytes", "what stands there", "its life"))

# %% [markdown]
# So the transcript alone is no backup: it has the pointers, the artifacts have the bytes. And this is *sent* after
# the summary:

# %%
for message in prepared.history:
    text = re.sub(r"transcript-\d+", "transcript-...", message["content"])
    print(f"{message['role']}, origin={message.get('origin')}\n{textwrap.fill(text, 110)}\n")


# %% [markdown]
# ## Turn the knob
#
# Each strip shows what goes into a gate, and what becomes of it there; all have one scale. With `refused`, the provider
# has said no: then it is a summary and the last 5 groups.

# %%
def through(keep, max_groups, tail, per_result, max_bytes, refused):
    """The conversation in front of each gate, and behind the last."""
    budget = OutputBudget(per_result, 200_000, preview=4_100, tail=2_000, unit="bytes", mode="both")
    manager = new_manager(Thresholds(budget, max_groups, 3, tail, keep, max_bytes))
    history = entered(manager)
    snipped = snip(history, max_groups, 3, tail)
    prepare = manager.compact_on_prompt_too_long if refused else manager.prepare
    return [RAW, history, snipped, micro(snipped, keep), run_sync(prepare(history)).history]


def view(**numbers):
    stages, strips = through(**numbers), []
    gates = {"spill": "pointer", "snip": "dropped", "micro": "dropped", "summary": "summarised"}
    for (gate, look), before, after in zip(gates.items(), stages, stages[1:]):
        fates = ["kept" if message in after else look for message in before]
        title = f"{gate}: {size_bytes(before):,} -> {size_bytes(after):,} bytes"
        strips.append(draw.strip(before, fates=fates, scale=size_bytes(RAW), caption=title))
    return draw.html(*strips)


DEFAULTS = {
    "keep": 3, "max_groups": 50, "tail": 46, "per_result": 30_000, "max_bytes": 50_000, "refused": False,
}  # fmt: skip
knob = explore(
    view, keep=(0, 60), max_groups=(10, 70), tail=(1, 60),
    per_result=(10_000, 40_000, 5_000), max_bytes=(5_000, 80_000, 5_000), refused=False,
)  # fmt: skip
knob.set(**DEFAULTS)

# %%
SETTINGS = {
    "the defaults": {},
    "no spill": {"per_result": 40_000},
    "no snip": {"max_groups": 70},
    "no micro": {"keep": 60},
    "a limit of 10,000": {"max_bytes": 10_000},
    "10 groups": {"max_groups": 10, "tail": 6},
    "refused": {"refused": True},
}
rows = []
for name, values in SETTINGS.items():
    knob.set(**DEFAULTS | values)
    rows.append((name, *map(size_bytes, through(**knob.values))))
knob.set(**DEFAULTS)
draw.table(rows, head=("bytes", "before", "behind spill", "snip", "micro", "summary"))

# %% [markdown]
# With the defaults no model is asked: three gates leave 13 % of the bytes. The seed counts **bytes of canonical JSON
# lines** (sorted keys, UTF-8): the same history always gives the same number, on every machine. It is no promise
# about tokens; `Thresholds().for_window(tokens)` makes smaller limits for a small window.
#
# ## What the cache pays
#
# Three gates cost no *request*. But [the cache](06_cache.ipynb) keeps a prefix, and these gates change it. The whole
# task again, gate by gate, the first four with an endless window. A token that is read from the cache counts a tenth:

# %%
SPILL = {"max_groups": 10**6, "keep": 10**6, "max_bytes": 10**9}  # the other three are off
GATED = {
    "no gate": None,
    "spill": SPILL,
    "spill, snip": SPILL | {"max_groups": 50},
    "spill, micro": SPILL | {"keep": 3},
    "all four": {},
    "all four, tail=26": {"tail": 26},
}


def books(usages):
    ledger = Ledger(noise=128)  # one block of this cache
    for usage in usages:
        ledger.record(usage, at=0.0)
    return ledger


def price(usages):
    """The input of these requests, in full-price tokens."""
    return bill(usages, {"input": 1_000_000, "read": 100_000}).actual


usages, rows = {}, []
for name, values in GATED.items():
    if values is None:
        usages[name] = endless.usages
    else:
        manager = new_manager(Thresholds(**values))
        others = Hooks(after_results=manager.after_results)
        provider, _, ending = await work(manager, WINDOW if "four" in name else ENDLESS, others)
        assert ending == "All are ported."
        usages[name] = provider.usages
    whole, waste = total(map(read_usage, usages[name])), books(usages[name]).wasted
    rows.append((name, whole.prompt, f"{whole.hit_ratio:.0%}", waste, round(price(usages[name]))))
draw.table(rows, head=("gates", "tokens sent", "from cache", "paid again", "bill, full-price tokens"))

# %% [markdown]
# **Only spill saves money here:** a result is cut before it is sent for the first time. Micro sends a third of that
# and costs more. And snip, as the defaults have it, costs more than no gate at all: 3 + 1 + 46 = 50 is the limit
# itself, so from the 51st group on *every* new group moves the cut, and all behind it is paid in full. A tail of 26
# is quiet for 20 steps.
#
# What snip and micro buy is **room**, not money. (One session and one kind of cache; the bill is that of the input.)
#
# ## In the loop
#
# **The refusal.** The limits count bytes, the window counts tokens, and sometimes the provider says no all the same.
# The adapter turns its words into `ContextOverflow`, and the loop hands that to `on_overflow`: a summary, and the
# last five groups. Once for each request. The defaults again, in a window of 2,000 tokens:

# %%
manager = new_manager()
provider, turn, ending = await work(manager, 2_000, Hooks(after_results=manager.after_results))
requests, answers = len(provider.requests), len(provider.usages)
print(f"{requests} requests, {requests - answers} of them refused, then: {ending}")
sizes = [usage["prompt_tokens"] for usage in provider.usages]
draw.chart({"answered requests": sizes}, unit="tokens", height=50, limit=(2_000, "the window"))

# %% [markdown]
# What if that is not enough? Here the newest result is a file that alone is too large. The second refusal in a row is
# the end, with a reason that has a name, and the history is whole:

# %%
huge = [assistant("", call("big", "port", path="module_0")), tool("big", "a long line\n" * 2_000)]
provider = Simulator(worker, context_window=2_000)
turn = run_turn([*RAW[:39], *huge], provider.client(), tools, hooks=hooks(new_manager()))
try:
    await turn.run()
except CompactionError as gone:
    print(f"{type(gone).__name__} after {len(provider.requests)} requests: {gone}")
print("history whole:", turn.history == [*RAW[:39], *huge])

# %% [markdown]
# **What can break.** A full disk, an id that is taken, a summariser that answers wrongly. Each is tried for real:

# %%
ANSWERS = {
    "prose": "Sure! So far the modules were ported.",
    "a field is missing": json.dumps({"current_goal": "Port."}),
    "a field too many": json.dumps(dict.fromkeys([*FIELDS, "mood"], "good")),
    "a tool call": assistant("", call("c", "port", path="module_1")),
}
full = patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full"))
two_runs = [ToolResult(f"call_{n}", "run_tests", {}, "completed", run_tests()) for n in (1, 2)]
before, rows = jsonl(history), []


def attempt(what, manager, layer):
    files = len(os.listdir(manager.store.root))
    if layer == 1:
        reason = manager.compact_tool_results(two_runs).results[0].output.split(", so ")[0]
    else:
        reason = run_sync(manager.prepare(history)).why.split(" The transcript is kept")[0]
    rows.append((layer, what, reason, len(os.listdir(manager.store.root)) - files))


with full:
    attempt("the disk is full", new_manager(), 1)
    attempt("the disk is full", new_manager(TIGHT), 4)
attempt("an id comes twice", new_manager(ids=lambda: "same"), 1)
for what, answer in ANSWERS.items():
    attempt(f"summary: {what}", new_manager(TIGHT, lambda _: answer), 4)
print("the history is as it was:", jsonl(history) == before)
draw.table(rows, head=("layer", "fault", "reason", "new files"))


# %% [markdown]
# Layer one is all or nothing: the file of the first result is removed again, and each call still has exactly one
# result, with both ends of its output. Layer four writes the transcript **first**; whatever the summariser does then,
# the record is there.
#
# **Three ways, one task.** No compaction, the three segments of [chapter 05](05_compaction.ipynb), the four layers,
# and these with a tail of 26:

# %%
def tell(text):
    last = max(map(int, re.findall(r"module_(\d+)", text)))
    return f"1. Task: as quoted. 2. Done: up to module_{last}."


segmented, _, ending = await work(SegmentManager(tell, limits=Limits(WINDOW)))
ways = {
    "no compaction": alone.usages,
    "three segments": segmented.usages,
    "four layers": usages["all four"],
    "four layers, tail=26": usages["all four, tail=26"],
}
listed = {name: [usage["prompt_tokens"] for usage in way] for name, way in ways.items()}
draw.chart(listed, unit="tokens sent", height=40, limit=(WINDOW, "the window"))

# %%
missed = {name: [entry.missed for entry in books(way).entries] for name, way in ways.items()}
draw.chart(missed, unit="tokens paid again", height=30, looks=dict.fromkeys(missed, "paid again"))

# %%
rows = []
for name, way in ways.items():
    sums = (max(listed[name]), sum(listed[name]), sum(missed[name]), round(price(way)))
    rows.append((name, "refused" if len(way) <= STEPS else "ported", *sums))
head = ("way", "the end", "largest request", "sent", "paid again", "bill")
draw.table(rows, head=head, caption="in tokens; the segments' one summary is not in the bill")


# %% [markdown]
# Segments pay again once, and keep the window nearly full; the layers keep it mostly empty, and pay a little again
# and again.
#
# ## Your turn
#
# **1.** Snip. When there are more than `max_groups` groups, keep the first `head` and the last `tail`, and one marker
# between them with the number of groups that it stands for. Pairs stay whole, and the person's last words must get
# through. This one cuts messages:

# %%
def my_snip(history, max_groups=50, head=3, tail=46):
    count = len(groups(history))
    if count <= max_groups:
        return history
    marker = user(f"[{count - head - tail} groups left out]") | {"origin": "compaction"}
    return [*history[:head], marker, *history[-tail:]]


# %%
check.snip(my_snip)

# %%
# check.snip.hint(1)

# %%
source(check.snip.solution, fold="One solution")

# %%
check.snip(check.snip.solution)

# %% [markdown]
# **Then your code runs the agent.** The end of a long task, and what is left of it to see:

# %%
turn = await stream(check.snip.turn(check.snip.solution))


# %% [markdown]
# **2.** Micro. All results before the last `keep` exchanges become a short note; the model must still be able to get
# at what was saved:

# %%
def my_micro(history, keep=3):
    results = [at for at, message in enumerate(history) if message["role"] == "tool"]
    note = {"content": "[old result]"}
    return [m | note if at in results[:-keep] else m for at, m in enumerate(history)]


# %%
check.micro(my_micro)

# %%
# check.micro.hint(1)

# %%
source(check.micro.solution, fold="One solution")

# %%
check.micro(check.micro.solution)

# %% [markdown]
# **Then your code runs the agent.** The first result of a long task is asked for at its end:

# %%
turn = await stream(check.micro.turn(check.micro.solution))


# %% [markdown]
# **3.** When to spill. You get the outputs of one batch and the limits in bytes; of a result that is saved, `left`
# bytes stay. Return the positions of those that go to files: the largest first, and no more than it takes.

# %%
def my_choice(outputs, per_result, per_batch, left):
    return [at for at, text in enumerate(outputs) if len(text) > per_result]


# %%
check.when_to_spill(my_choice)

# %%
# check.when_to_spill.hint(1)

# %%
source(check.when_to_spill.solution, fold="One solution")

# %%
check.when_to_spill(check.when_to_spill.solution)

# %% [markdown]
# **Then your code runs the agent.** Seven results in one batch, and a small window. What was saved it has to read
# back:

# %%
turn = await stream(check.when_to_spill.turn(check.when_to_spill.solution))

# %% [markdown]
# **Think.** Why is the transcript written *before* the summary is asked for? And why the history, not what snip and
# micro left?
#
# <details><summary>An answer</summary>
#
# If the disk is full, the model is not even asked: a summary without a record would lose what it leaves out. And a
# record of what the cheap layers left would be a record of notes. It is the history that somebody will want to go
# back to.
#
# </details>
#
# **Think.** A marker says `[13 message groups left out]`. Could a program find out from it that a history was
# snipped?
#
# <details><summary>An answer</summary>
#
# Not from the words: a file that the agent read may say the same. The field `origin` tells who wrote a message. The
# view that is kept needs neither: it compares histories. The same one: the view as it is. One that only grew: the
# view and what is new. Any other: from the start.
#
# </details>
#
# **Think.** A reply ends with `finish_reason: "length"`. Is that the time for `on_overflow`?
#
# <details><summary>An answer</summary>
#
# No. The *reply* reached its limit; the request was accepted. And looking for "too many tokens" in an error's text in
# the loop is no better: each provider has other words, and a tool may print them. The adapter knows its provider, and
# raises one error of one class.
#
# </details>
#
# ## In real products
#
# <details><summary>Claude Code, and six strategies compared</summary>
#
# | | these four layers | Claude Code, as the seed describes it |
# |---|---|---|
# | measure | UTF-8 bytes of JSON lines | exact tokens: window - output reserve - 13,000 |
# | order | spill, snip, micro, summary | budget, snip, micro, context collapse, auto: five levels |
# | before a full summary | nothing | a light one from the session's memory |
# | old tool results | all become notes | by kind of tool: what can be read again goes first |
# | summary | five fields of JSON, checked by code | nine parts, in `<analysis>` and `<summary>` tags; told twice to call no tools |
# | by hand | `compact_proactively`, for your program | `/compact`, a tool to snip, hooks before and after |
# | afterwards | the person's last words | up to 5 recently changed files are read again: 5,000 tokens each, 50,000 in all |
# | after a refusal | one summary and 5 groups, once | several steps, by kind of error |
#
# A book on agents (the seed's source) had one agent research one question with **six strategies**:
#
# | strategy | what came of it | here |
# |---|---|---|
# | no compression | the window overflows | the first cell of this page |
# | each page summarised alone | more tokens and more rounds | |
# | all pages summarised together, without the task | | |
# | summarised **with the task in the prompt** | the best: 40,157 tokens | not here: layer four has a fixed prompt; `compact(goal=...)` of chapter 05 has it |
# | the same, with citations | what was left out can be found again | transcript, artifacts, pointers |
# | old results only, near the limit, each marked as done | nothing is compressed twice | snip and micro; they compare histories instead of looking for marks |
#
# The same book names five levels for production: output budget, noise removal, micro-compaction by the API, archived
# summary, full compaction with a circuit breaker. It gives two reasons to compact: cost, and **context rot**: answers
# get worse before the window is full. And it prefers one large compaction to many small ones, for the cache's sake:
# so does the table above.
#
# Sources: seed 001; [context window](https://code.claude.com/docs/en/context-window) and
# [commands](https://code.claude.com/docs/en/commands) of Claude Code;
# [learn-claude-code](https://github.com/shareAI-lab/learn-claude-code) (s08);
# [ai-agent-book](https://github.com/bojieli/ai-agent-book), chapter 2.
#
# </details>
#
# ## Go live
#
# Your own model writes the five fields for the airline session of chapter 05. Does it keep to them? Set
# `AGENT_BASE_URL` and `AGENT_MODEL` before you start JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    airline = json.loads(data("sessions", "airline_chat.json").read_text())
    live = new_manager(summarize=fields_summarizer(ChatClient.from_env()))
    result = await live.compact_proactively(airline)
    print(result.why, *(message["content"] for message in result.history[1:3]), sep="\n\n")
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [The journal](08_journal.ipynb), which keeps all of this when the process dies.
