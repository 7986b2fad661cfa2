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
# # Your own sessions: what other agents wrote down
#
# ← [The whole agent](12_agent.ipynb) · modules: `transcripts`, `audit`, `auditcli`
#
# **The problem.** Agents write their sessions to your disk, each product in a form of its own. What did a session cost,
# what was wasted in it, could it be sent again? A careless reader of such a file gets wrong numbers, and no error.

# %%
import json
import tempfile
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from ipywidgets import Dropdown

from agentlab import auditcli, check, draw, transcripts
from agentlab.audit import MECHANISMS, audit
from agentlab.errors import ProviderRefused
from agentlab.notebook import data, source
from agentlab.pairing import problems, repair
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget
from agentlab.transcripts import TranscriptError, visible
from agentlab.usage import read_usage, total
from agentlab.widgets import explore, stream

# %% [markdown]
# Claude Code writes one JSON record a line. This is a real session (`data/sessions`, where every file has its origin
# and licence): a call was rejected, and two sub-agents (agents started by the agent) explored a repository.

# %%
SAMPLES = data("sessions")
FILE = SAMPLES / "claude_code_2.1.4_interrupted_tool_use.jsonl"


def records(file):
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


for record in records(FILE)[18:23]:
    shown = record["message"]["content"] if "message" in record else record
    print(f"{record['type']:>21}  {visible(shown, 70)}")


# %% [markdown]
# ## Break it
#
# **1. Add up what the replies cost.** Nothing could be simpler:

# %%
def told(usages):
    summed = total(map(read_usage, usages))
    return f"{len(usages)} requests, {summed.prompt:,} tokens in, {summed.output:,} out"


replies = [record["message"] for record in records(FILE) if record["type"] == "assistant"]
print(told([message["usage"] for message in replies]))

# %% [markdown]
# There were five requests. A reply is written down in parts, while it arrives: one record for each block, and each
# repeats the usage *so far*.

# %%
rows = []
for message in replies[:5]:
    usage = read_usage(message["usage"])
    block = message["content"][0]["type"]
    rows.append((f"…{message['id'][-6:]}", block, usage.prompt, usage.output))
draw.table(rows, head=("message.id", "block", "tokens in", "tokens out"))


# %% [markdown]
# So the sum counts the input two or three times. And the *first* part of each reply knows next to nothing of its output.
#
# **2. Follow the parent links.** Every record names its parent, so the history seems to be the way back from the last
# record. We follow it in a sample that was rewound and compacted, and in five records written for this cell, in Claude
# Code's shape: one reply calls two tools at once.

# %%
def walk_back(found):
    known = {record["uuid"]: record for record in found}
    way = [found[-1]]
    while parent := known.get(way[-1]["parentUuid"]):
        way.append(parent)
    return way


def made(uuid, parent, role, **block):
    message = {"role": role, "content": [block]} | ({"id": "m1"} if role == "assistant" else {})
    return {"uuid": uuid, "parentUuid": parent, "type": role, "message": message}


parallel = [
    made("asked", None, "user", type="text", text="Read both."),
    made("call a", "asked", "assistant", type="tool_use", id="a", name="Read", input={}),
    made("call b", "call a", "assistant", type="tool_use", id="b", name="Read", input={}),
    made("result a", "call a", "user", type="tool_result", tool_use_id="a", content="12"),
    made("result b", "call b", "user", type="tool_result", tool_use_id="b", content="30"),
]
REWOUND = SAMPLES / "claude_code_2.1.0_rewind_then_compact.jsonl"
for found in records(REWOUND), parallel:
    way = walk_back(found)
    lost = ", ".join(record["uuid"] for record in found if record not in way)
    print(f"{len(way)} of {len(found)} records; not on the way: {lost}")

# %% [markdown]
# A [compaction](05_compaction.ipynb) starts a new root: all before it is lost, the person's task, too. And a result hangs
# on its own call, so parallel results fork: `result a` is not on the way back. Its call was answered, and looks as if
# it was not.
#
# **3. Read while it is being written.** The last line is half there:

# %%
temporary = tempfile.TemporaryDirectory()
half = Path(temporary.name) / "half.jsonl"
half.write_bytes(FILE.read_bytes()[:-300])
try:
    print(len(records(half)), "records")
except json.JSONDecodeError as error:
    print("0 records:", visible(error.msg))

# %% [markdown]
# ## The mechanism
#
# `transcripts.read` makes **the history that this whole book works on** from any of six formats. It reads the file as a
# log, in its order: parts go to their reply by `message.id`, results to their call by its id. Nothing is recognised by
# its wording. What has no place in a history is left out, and counted:

# %%
session = transcripts.read(FILE)
draw.html(session)

# %%
for file in FILE, half:
    each = transcripts.read(file)
    usages = [used.usage for used in each.usages]
    print(f"{told(usages)}; {len(each.history)} messages; lines not readable: {each.damaged}")

# %% [markdown]
# Of the half line only itself is lost. The heart of the reader is this: a result may come late, and an id may be used
# again, so a result goes to the newest call that still waits for one.

# %%
source(transcripts.builder.Builder.result, fold="Builder.result")

# %% [markdown]
# What was broken above, and other products' files. (mini-swe-agent and old SWE-agent make no tool calls: the command
# stands in the text, and what it printed comes back as a user message.)

# %%
joined = half.with_name("parallel.jsonl")
joined.write_text("".join(json.dumps(one) + "\n" for one in parallel))
SHOWN = {
    "two calls at once": joined,
    "rewound, then compacted": REWOUND,
    "Codex": SAMPLES / "codex_rollout_0.129.0_small.jsonl",
    "OpenAI messages (tau-bench)": SAMPLES / "openai_chat_tau_airline_3.json",
    "mini-swe-agent": SAMPLES / "mini_swe_agent_bare_list.traj.json",
    "SWE-agent": SAMPLES / "swe_agent_thought_action.traj",
}
strips = [draw.strip(transcripts.read(file).history, width=340) for file in SHOWN.values()]
draw.columns(*strips, heads=list(SHOWN))

# %% [markdown]
# ## Could it go on?
#
# A session that is resumed is sent again, as it stands. We ask the offline provider, which has the vendors' rules and
# words. This file was made to be difficult (its authors call it `edge_cases`): two calls have no result.

# %%
edge = transcripts.read(SAMPLES / "claude_code_1.0.x_edge_cases.jsonl").history


async def answer(history, dialect):
    try:
        reply = await Simulator(["Yes."], dialect=dialect).client().complete(history)
    except ProviderRefused as refused:
        return f"{refused.status}: {refused.body['error']['message']}"
    return f"accepted: {reply['content']}"


print("without a result:", *(problem.call_id for problem in problems(edge)))
rows = []
for name, history in ("raw", edge), ("repaired", repair(edge).history):
    for dialect in "openai", "deepseek":
        rows.append((name, dialect, await answer(history, dialect)))
draw.table(rows, head=("history", "provider", "what it answers"))

# %% [markdown]
# ## The audit
#
# Now one session under every lens of this book: tokens by role, pairing, and what each mechanism **would have saved**,
# each alone: [spill and fold](02_spill.ipynb), [prune](09_surface.ipynb), [compaction](05_compaction.ipynb). These tokens
# are an estimate, a quarter of the characters. Nothing is changed or written.

# %%
report = audit(session)
draw.html(report)

# %% [markdown]
# And the [cache](06_cache.ipynb)? Here the counts are the provider's own. A request should read from the cache what the
# one before it wrote or read:

# %%
usages = [used.usage for used in session.usages]
shared = [0, *(min(a.prompt, b.prompt) for a, b in pairwise(usages))]
series = {"could be read from the cache": shared, "was read": [usage.hit for usage in usages]}
draw.chart(series, unit="tokens", looks={"was read": "cached"}, height=50)

# %%
for miss in report.cache.worst:
    print(f"line {miss.line}: {miss.missed:,} paid again, {miss.idle_s:.0f} s later: {miss.verdict}")

# %% [markdown]
# Each pause is shorter than the five minutes that this cache lives, so it was not time: the verdict is `rewritten`. What
# was rewritten cannot be seen, since the file holds the conversation and not the requests: the tools and the system
# prompt are not in it.
#
# ## Your own sessions
#
# Name a folder. Its 20 newest files are read **on this machine, and nothing is sent anywhere**. But outputs are saved with
# a notebook: clear them before you pass it on. (For whole folders there is a command, `agentlab audit PATH…`, with
# `--json` for programs.)

# %%
FOLDER = None  # for example "~/.claude/projects" or "~/.codex/sessions"

folder = Path(FOLDER).expanduser() if FOLDER else SAMPLES
found = [path for end in auditcli.SUFFIXES for path in folder.rglob(f"*{end}") if path.is_file()]
newest = sorted(found, key=lambda path: path.stat().st_mtime)[-20:]
read = lru_cache(maxsize=2)(transcripts.read)

own, rows = {}, []
for path in sorted(newest, key=lambda path: (-path.stat().st_size, path)):  # the largest first
    name = visible(path.name, 48)
    try:
        one = audit(read(path))
    except TranscriptError as error:
        rows.append((name, "", "", "", visible(error)))
        continue
    own[name] = path
    gain, best = max((getattr(one, mechanism).tokens, mechanism) for mechanism in MECHANISMS)
    counts = one.messages, sum(one.tokens.values()), sum(one.problems.values())
    most = f"{best} {gain:,}" if gain else ""
    rows.append((name, *counts, most, one.cache.wasted, one.repeated))
if not own:
    raise FileNotFoundError("FOLDER holds no session that could be read: name another one.")
head = ("file", "messages", "tokens", "faults", "most saved by", "cache waste", "calls repeated")
draw.table(rows, head=head)


# %% [markdown]
# ## Turn the knob
#
# Which budget would have suited these sessions? `per_result` and `per_batch` are the limits of
# [Tool output](02_spill.ipynb), in characters, here on what tools really printed.

# %%
def saved(session, per_result, per_batch):
    budget = OutputBudget(per_result=per_result, per_batch=per_batch, preview=400)
    return audit(read(own[session]), budget=budget)


def view(per_result, per_batch, session):
    one = saved(session, per_result, per_batch)
    bars = []
    for mechanism in MECHANISMS:
        saving = getattr(one, mechanism)
        parts = [("left", saving.after // 4, "kept"), (f"{mechanism} saves", saving.tokens, "pointer")]
        bars.append(draw.bar(parts, unit="tokens", width=340))
    strip = draw.strip(read(own[session]).history)
    return draw.html(strip, draw.columns(*bars[:2]), draw.columns(*bars[2:]))


limits = {"per_result": (1_000, 50_000, 1_000), "per_batch": (2_000, 100_000, 2_000)}
knob = explore(view, **limits, session=Dropdown(options=list(own)))
knob.set(per_result=18_000, per_batch=36_000)

# %%
LIMITS = (50_000, 100_000), (18_000, 36_000), (1_000, 2_000)
lines = [f"{'tokens saved by spill':48}" + "".join(f"{a:>8,} and {b:>7,}" for a, b in LIMITS)]
for name in list(own)[:3]:
    lines.append(f"{name:48}")
    for per_result, per_batch in LIMITS:
        knob.set(session=name, per_result=per_result, per_batch=per_batch)
        spill = saved(name, per_result, per_batch).spill
        lines[-1] += f"{spill.tokens:>8,}  of {spill.before // 4:>7,}"
knob.set(session=next(iter(own)), per_result=18_000, per_batch=36_000)
print("\n".join(lines))


# %% [markdown]
# The first column is the default: it spills nothing here. Spill, fold and prune shorten what tools print. In tau-bench's
# session the talk is long and the results are short, so there compaction gains most. Look at your own sessions before
# you choose.
#
# ## Your turn
#
# Count the usage of a session, **each request once**: a function that gets the records, whatever the lines hold, and
# returns the list of the usages that count. This one is careful with the lines, but counts as above:

# %%
def my_usages(records):
    found = []
    for record in records:
        message = record.get("message") if isinstance(record, dict) else None
        if isinstance(message, dict) and message.get("usage"):
            found.append(message["usage"])
    return found


# %%
check.usage_once(my_usages)

# %%
# check.usage_once.hint(1)

# %%
source(check.usage_once.solution, fold="One solution")

# %%
check.usage_once(check.usage_once.solution)

# %% [markdown]
# **Then your code runs the agent.** Put `my_usages` in here: the agent's session is written down in parts, and a tool asks
# your function what was spent. The check has compared that with the provider's bill.

# %%
turn = await stream(check.usage_once.turn(check.usage_once.solution))

# %% [markdown]
# **Think.** The sample that was rewound has two branches, and the model has seen only one of them at a time. Why does
# `transcripts.read` keep both?
#
# <details><summary>An answer</summary>
#
# Both were paid for, and both happened: the file is the log. For what the model saw *last* one would need a view, and the
# rules of the product that made it. `meta` counts `rewinds` and `compactions`, so nobody is misled.
#
# </details>
#
# **Think.** The audit says what spill, fold, prune and compaction would each save. May you add the four numbers?
#
# <details><summary>An answer</summary>
#
# No. Each is counted alone, on the session as it was. What spill has put into a file, prune cannot cut again. And the
# model might have behaved differently: it might have read the file. A saving on paper is a reason to try.
#
# </details>
#
# ## In real products
#
# <details><summary>What stands in their files, and what a reader must know</summary>
#
# | product | where, what |
# |---|---|
# | Claude Code | `~/.claude/projects/**/*.jsonl`, a record for each block; usage repeated in each part; a compaction is a new root; an interrupt is ordinary user text; `stop_reason` is mostly null |
# | Codex | a rollout, one item a line; the reply's text stands twice (`event_msg` and `response_item`); `info` in a `token_count` may be null; `compacted` carries the history that replaces the old one |
# | SWE-agent | a trajectory; results name a list `tool_call_ids`; older files have no calls at all |
# | mini-swe-agent | may be a bare list of messages |
# | pi | calls that were aborted stay without a result |
# | tau-bench | lists of OpenAI messages, several conversations in one file, no usage |
#
# | measured on other real files | |
# |---|---|
# | [codemie-code](https://github.com/codemie-ai/codemie-code), a Claude Code sub-agent | walking back from the last record reaches 5 of 20 results |
# | [claude-code-log](https://github.com/daaain/claude-code-log), the test file above | lines that are JSON and no record: `42`, `[1]` |
#
# </details>
#
# **Next:** back to the map: [Start](00_start.ipynb).
