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
import tempfile
from pathlib import Path
from unittest.mock import patch

from agentlab import check, draw
from agentlab.check.layers_task import entered, scribe, tell, work, worker
from agentlab.compaction import Limits
from agentlab.errors import ContextOverflow
from agentlab.layers import CompactionManager, Thresholds, fields_summarizer, micro, snip
from agentlab.layersummary import FIELDS_PROMPT
from agentlab.messages import groups, jsonl, size_bytes, user
from agentlab.notebook import data, source
from agentlab.provider import ChatClient
from agentlab.segments import SegmentManager
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget
from agentlab.usage import Ledger, bill, read_usage, total
from agentlab.widgets import explore, run_sync, stream

# %% [markdown]
# A task of 60 steps, one module each. The model is a script: it goes on behind the last module that it can see. Every 20
# steps it also runs the tests, and they print 32,000 bytes. (`work`, which runs it, is in
# `agentlab/check/layers_task.py`.)

# %%
source(worker, fold="worker")

# %%
WINDOW, ENDLESS = 13_000, 10**6  # tokens
BATCHES = []  # the results of each step, as the tools returned them
endless, turn, _ = await work(ENDLESS, after_results=BATCHES.append)
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
# Now a window of 13,000 tokens, and a plain idea: when the provider refuses a request, ask the model for a summary.

# %%
alone, turn, ending = await work(WINDOW)
print("request", len(alone.requests), "|", ending, "\n")
try:
    everything = FIELDS_PROMPT + jsonl(turn.history).decode()
    await Simulator(["Sure."], context_window=WINDOW).client().complete([user(everything)])
except ContextOverflow as refused:
    print("the summary | ", str(refused).split("\n")[0])

# %% [markdown]
# **The last resort needs room, too:** what the summary is made of has to fit into the window as well.
#
# ## The mechanism
#
# Four gates, from cheap to dear. Each acts only above its limit, never at it:
#
# | | gate | acts above | what it leaves | asks a model |
# |---|---|---|---|---|
# | 1 | **spill**, before a result enters the history | 30,000 bytes a result, 200,000 a batch (largest first) | 2,000 bytes of each end, and a [pointer](../docs/GLOSSARY.md) to the file | no |
# | 2 | **snip** | 50 groups | the first 3, a marker, the last 46 | no |
# | 3 | **micro** | 3 exchanges with tools | the call; a note for its result, and the pointer | no |
# | 4 | **summary** | 50,000 bytes | five fields, then the person's last words | yes |
#
# A **group** is a message, or a call with all its results. Two and three work on groups, so no cut can part a pair:

# %%
source(snip, docstring=False)

# %%
source(micro, fold="micro", docstring=False)

# %% [markdown]
# The summary is five fields of JSON, not prose: code can check fields. (Here a script writes them; a real model gets
# `FIELDS_PROMPT`.) All four at work, with a limit of 10,000 bytes for the last, or it would have nothing to do:

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
ids = map("{:05}".format, itertools.count(1)).__next__  # names for the files


def new_manager(limits=None, summarize=scribe, **options):
    where = {"base": folder, "ids": ids, "thresholds": limits}
    return CompactionManager(folder / "artifacts", summarize, **where | options)


TIGHT = Thresholds(max_bytes=10_000)
manager = new_manager(TIGHT)
history = entered(RAW, BATCHES, manager.after_results)
prepared = await manager.prepare(history)
print(f"spill: {size_bytes(RAW):,} -> {size_bytes(history):,} bytes")
prepared

# %% [markdown]
# ### Four objects
#
# "The messages" are not one list. The output of the first test run stands in four places, in three forms:

# %%
transcript = (folder / prepared.transcript).read_bytes()
objects = {
    "the result": (RAW, "all of it; so has its file", "the tool wrote it"),
    "the history": (history, "both ends, and a pointer", "only grows"),
    "the request": (micro(snip(history)), "a note and the pointer", "made for one request"),
    "the transcript": ([json.loads(line) for line in transcript.splitlines()],
                       "as in the history", "written before a summary"),
}  # fmt: skip
rows = []
for name, (messages, what, life) in objects.items():
    first = next(message for message in messages if message.get("tool_call_id") == "test_20")
    rows.append((name, len(first["content"].encode()), what, life))
draw.table(rows, head=("object", "bytes", "what stands there", "its life"))

# %% [markdown]
# So the transcript alone is no backup: it has pointers, and the bytes are in the files that they name. This is *sent* after
# the summary, the person's own words last:

# %%
print(*(message["content"] for message in prepared.history), sep="\n\n")


# %% [markdown]
# ## Turn the knob
#
# Each strip shows what goes into a gate, and what becomes of it there; all have one scale. With `refused`, the provider
# has said no: then it is a summary and the last `keep_groups` groups.

# %%
def through(keep, max_groups, head, tail, per_result, per_batch, max_bytes, keep_groups, refused):
    """The conversation in front of each gate, and behind the last."""
    budget = OutputBudget(per_result, per_batch, preview=4_100, tail=2_000, unit="bytes", mode="both")
    manager = new_manager(Thresholds(budget, max_groups, head, tail, keep, max_bytes, keep_groups))
    history = entered(RAW, BATCHES, manager.after_results)
    snipped = snip(history, max_groups, head, tail)
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
    "keep": 3, "max_groups": 50, "head": 3, "tail": 46, "per_result": 30_000, "per_batch": 200_000,
    "max_bytes": 50_000, "keep_groups": 5, "refused": False,
}  # fmt: skip
knob = explore(
    view, keep=(0, 60), max_groups=(10, 70), head=(0, 10), tail=(1, 60),
    per_result=(10_000, 40_000, 5_000), per_batch=(20_000, 200_000, 10_000),
    max_bytes=(5_000, 80_000, 5_000), keep_groups=(0, 20), refused=False,
)  # fmt: skip
knob.set(**DEFAULTS)

# %%
SETTINGS = {
    "the defaults": {},
    "no spill": {"per_result": 40_000},
    "no snip": {"max_groups": 70},
    "no micro": {"keep": 60},
    "a limit of 10,000": {"max_bytes": 10_000},
    "refused": {"refused": True},
}
rows = []
for name, values in SETTINGS.items():
    knob.set(**DEFAULTS | values)
    rows.append((name, *map(size_bytes, through(**knob.values))))
knob.set(**DEFAULTS)
draw.table(rows, head=("bytes", "before", "behind spill", "snip", "micro", "summary"))

# %% [markdown]
# With the defaults no model is asked: three gates leave 13 % of the bytes. (All bytes here are those of one JSON object a
# line with sorted keys, so every machine counts alike. They are no tokens: `Thresholds().for_window(tokens)` makes smaller
# limits for a small window.)
#
# ## What the cache pays
#
# Three gates cost no *request*. But [the cache](06_cache.ipynb) keeps a prefix, and they change it. The whole task again,
# one gate after the other. A token that is read from the cache counts a tenth:

# %%
OFF = {"max_groups": 10**6, "keep": 10**6, "max_bytes": 10**9}
MANAGERS = {
    "spill": (new_manager(Thresholds(**OFF)), ENDLESS),
    "spill, snip": (new_manager(Thresholds(**OFF | {"max_groups": 50})), ENDLESS),
    "spill, micro": (new_manager(Thresholds(**OFF | {"keep": 3})), ENDLESS),
    "four layers": (new_manager(), WINDOW),
    "four layers, tail=26": (new_manager(Thresholds(tail=26)), WINDOW),
    "three segments": (SegmentManager(tell, limits=Limits(WINDOW)), WINDOW),
}
usages = {"no compaction": endless.usages}
for name, (manager, window) in MANAGERS.items():
    provider, _, ending = await work(window, manager)
    assert ending == "All are ported."
    usages[name] = provider.usages

# %%
ledgers, rows = {}, []
for name, listed in usages.items():
    ledgers[name] = Ledger(noise=128)  # one block of this cache
    for usage in listed:
        ledgers[name].record(usage, at=0.0)
    whole, paid = total(map(read_usage, listed)), bill(listed, {"input": 1_000_000, "read": 100_000})
    rows.append((name, whole.prompt, f"{whole.hit_ratio:.0%}", ledgers[name].wasted, round(paid.actual)))
draw.table(rows, head=("gates", "tokens sent", "from cache", "paid again", "bill, full-price tokens"))

# %% [markdown]
# **Only spill saves money here:** a result is cut before it is sent for the first time. Micro sends a third of that
# and costs more. And snip, as the defaults have it, costs more than no gate at all: 3 + 1 + 46 = 50 is the limit
# itself, so from the 51st group on *every* new group moves the cut, and all behind it is paid in full. A tail of 26
# is quiet for 20 steps. What snip and micro buy is **room**, not money.
#
# (One session, one kind of cache. The first four rows had an endless window. The bill is that of the worker's input: the
# summary of the [segments](05_compaction.ipynb) is not in it.)
#
# Three ways through one task, request by request, in a window of 13,000 tokens:

# %%
ways = {"no compaction": alone.usages} | {name: usages[name] for name in ("three segments", "four layers")}
sent = {name: [usage["prompt_tokens"] for usage in way] for name, way in ways.items()}
draw.chart(sent, unit="tokens sent", height=40, limit=(WINDOW, "the window"))

# %%
again = {name: [entry.missed for entry in ledgers[name].entries] for name in list(ways)[1:]}
draw.chart(again, unit="tokens paid again", height=30, looks=dict.fromkeys(again, "paid again"))

# %% [markdown]
# The segments let the window fill up, and pay again once; the layers keep it mostly empty, and pay again and again.
#
# ## In the loop
#
# **A refusal.** Limits count bytes, the window counts tokens, so a provider may say no all the same. The adapter turns its
# words into `ContextOverflow`, the loop hands that to `on_overflow`: a summary and the last five groups, once for each
# request. The defaults, in a window of 2,000 tokens:

# %%
provider, turn, ending = await work(2_000, new_manager())
refused = len(provider.requests) - len(provider.usages)
print(f"{len(provider.requests)} requests, {refused} of them refused, then: {ending}")

# %% [markdown]
# **What can break.** The summariser writes prose; the disk is full:

# %%
chatty = new_manager(TIGHT, lambda text: "Sure! So far the modules were ported.")
print((await chatty.prepare(history)).why.rpartition(":")[0])
with patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
    print((await new_manager(TIGHT).prepare(history)).why)


# %% [markdown]
# The view stays as it was, with a reason. The transcript is written **first**: whatever the summariser does then, the
# record is there. (Layer one is all or nothing: when one file cannot be written, those of its batch are removed, and each
# result becomes an error with both ends of the output. A second refusal in a row ends the turn with `OverflowRetry`.)
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


check.snip(my_snip)

# %%
# check.snip.hint(1)

# %%
source(check.snip.solution, fold="One solution")

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
    old, note = results[: max(0, len(results) - keep)], {"content": "[old result]"}
    return [m | note if at in old else m for at, m in enumerate(history)]


check.micro(my_micro)

# %%
# check.micro.hint(1)

# %%
source(check.micro.solution, fold="One solution")

# %% [markdown]
# **Then your code runs the agent.** The first result of a long task is asked for at its end:

# %%
turn = await stream(check.micro.turn(check.micro.solution))


# %% [markdown]
# **3.** When to spill. You get the outputs of one batch, as texts, and the limits in bytes (30,000 and 200,000 in all
# cases). Of a result that is saved, `left` bytes stay (4,300). Return the positions of those that go to files: the largest
# first, and no more than it takes.

# %%
def my_choice(outputs, per_result, per_batch, left):
    return [at for at, text in enumerate(outputs) if len(text) > per_result]


check.when_to_spill(my_choice)

# %%
# check.when_to_spill.hint(1)

# %%
source(check.when_to_spill.solution, fold="One solution")

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
# | no compression | the window overflows | *Break it*, above |
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
