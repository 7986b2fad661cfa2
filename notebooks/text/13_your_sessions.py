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
# what was wasted in it, could it be sent again? Who reads such a file carelessly gets wrong numbers, and no error.

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
# and licence): a call was rejected, two sub-agents explored a repository.

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
# So the sum counts the input two or three times. And who takes the first part of each reply loses nearly all of its
# output.
#
# **2. Follow the parent links.** Every record names its parent, so the history seems to be the way back from the last
# record. It is followed in a session that was rewound and compacted (a sample), and in five records that were written
# for this cell, in the shape that Claude Code uses: one reply calls two tools at once.

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
# A compaction starts a new root: all before it is lost, the task first. And a result hangs on its own call, so parallel
# results fork: `result a` is on no way back. Its call was answered, and looks as if it was not.
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
# `transcripts.read` makes **the history that this whole book works on** from any of six formats. It takes the file as
# an event log: parts of a reply go to where the reply stands (by `message.id`), results to their call (by its id), in
# the order of the file. Nothing is recognised by its wording. What has no place in a history is left out and counted:

# %%
session = transcripts.read(FILE)
draw.html(session)

# %%
for file in FILE, half:
    each = transcripts.read(file)
    usages = [used.usage for used in each.usages]
    print(f"{told(usages)}; {len(each.history)} messages; lines not readable: {each.damaged}")

# %% [markdown]
# The half line costs itself and nothing else. The heart of it is this: a result may come late, and an id may come
# again, so it goes to the newest call that still waits for it.

# %%
source(transcripts.builder.Builder.result, fold="Builder.result")

# %% [markdown]
# All that was broken above, and other products. (mini-swe-agent and old SWE-agent call no tools: a command stands in
# the text, and what it printed comes back as a user message.)

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
# A session that is resumed is sent again, as it stands. Here the offline provider is asked, which has the vendors'
# rules and words. This file was made to be difficult (its authors call it `edge_cases`): two calls have no result.

# %%
edge = transcripts.read(SAMPLES / "claude_code_1.0.x_edge_cases.jsonl").history


async def answer(history, dialect):
    try:
        reply = await Simulator(["Yes."], dialect=dialect).client().complete(history)
    except ProviderRefused as refused:
        return f"{refused.status}: {refused.body['error']['message']}"
    return f"accepted: {reply['content']}"


print("without a result:", *(problem.call_id for problem in problems(edge)))
for name, history in ("raw", edge), ("repaired", repair(edge).history):
    for dialect in "openai", "deepseek":
        print(f"{name}, {dialect}: {await answer(history, dialect)}")

# %% [markdown]
# ## The audit
#
# Now every lens of this book on one session: tokens by role, pairing, what each mechanism **would have saved**, each
# one alone. These tokens are estimated, a quarter of the characters; nothing is changed or written.

# %%
report = audit(session)
draw.html(report)

# %% [markdown]
# And the cache? Here the counts are the provider's own. A request should read from the cache what the one before it
# wrote or read:

# %%
usages = [used.usage for used in session.usages]
shared = [0, *(min(a.prompt, b.prompt) for a, b in pairwise(usages))]
series = {"could be read from the cache": shared, "was read": [usage.hit for usage in usages]}
draw.chart(series, unit="tokens", looks={"was read": "cached"}, height=50)

# %%
for miss in report.cache.worst:
    print(f"line {miss.line}: {miss.missed:,} paid again, {miss.idle_s:.0f} s later: {miss.verdict}")

# %% [markdown]
# Each pause is shorter than the five minutes that this cache lives, so time did not do it: `rewritten`. Who did cannot
# be seen, since the file holds the conversation and not the requests: tools, system prompt, and the server that
# answered are not in it.
#
# ## Your own sessions
#
# Name a folder. Its 20 newest files are read **on this machine, and nothing is sent anywhere**. Names and texts are cut
# short and escaped. But outputs are saved with a notebook: clear them before you pass it on.

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
# For whole folders there is a command, `agentlab audit PATH…`: as text, or with `--json` for programs. It holds one
# session at a time in memory, and its exit status tells whether everything could be read. Called from here:

# %%
auditcli.main([str(SAMPLES / "airline_chat.json")])


# %% [markdown]
# ## Turn the knob
#
# Which budget would have suited these sessions? The limits of [Tool output](02_spill.ipynb), on what tools really
# printed.

# %%
def saved(session, per_result, per_batch):
    budget = OutputBudget(per_result=per_result, per_batch=per_batch, preview=400)
    return audit(read(own[session]), budget=budget)


def view(session, per_result, per_batch):
    one = saved(session, per_result, per_batch)
    bars = []
    for mechanism in MECHANISMS:
        saving = getattr(one, mechanism)
        parts = [("left", saving.after // 4, "kept"), (f"{mechanism} saves", saving.tokens, "pointer")]
        bars.append(draw.bar(parts, unit="tokens", width=340))
    strip = draw.strip(read(own[session]).history)
    return draw.html(strip, draw.columns(*bars[:2]), draw.columns(*bars[2:]))


limits = {"per_result": (500, 50_000, 500), "per_batch": (1_000, 100_000, 1_000)}
knob = explore(view, session=Dropdown(options=list(own)), **limits)
knob.set(per_result=8_000, per_batch=16_000)

# %%
LIMITS = (50_000, 100_000), (8_000, 16_000), (500, 1_000)
lines = [f"{'tokens saved by spill':48}" + "".join(f"{a:>8,} and {b:>7,}" for a, b in LIMITS)]
for name in list(own)[:4]:
    lines.append(f"{name:48}")
    for per_result, per_batch in LIMITS:
        knob.set(session=name, per_result=per_result, per_batch=per_batch)
        spill = saved(name, per_result, per_batch).spill
        lines[-1] += f"{spill.tokens:>8,}  of {spill.before // 4:>7,}"
knob.set(session=next(iter(own)), per_result=8_000, per_batch=16_000)
print("\n".join(lines))


# %% [markdown]
# The first column is the default: it spills nothing here. Spill, fold and prune are for outputs. The talk of tau-bench
# is long and its results are short, so with the default only compaction gains anything. Look at your own sessions before
# you choose.
#
# ## Your turn
#
# Count the usage of a session, **each request once**: a function of the records (whatever the lines hold) that returns
# the usages that count. This one is careful with the lines, and counts as above:

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
# **Then your code runs the agent.** Its session is written down in parts, and it asks your function what it has spent;
# the check holds that against the provider's bill.

# %%
turn = await stream(check.usage_once.turn(check.usage_once.solution))

# %% [markdown]
# **Think.** The session was rewound: two branches, and the model has seen only one of them at a time. Why does the
# reader keep both?
#
# <details><summary>An answer</summary>
#
# Both were paid for, and both happened: the file is the log. For what the model saw *last*, one would need a view, and
# the rules of the product that made it. The reader says `rewinds` and `compactions` in `meta`, so nobody is misled.
#
# </details>
#
# **Think.** The audit adds up what spill, fold, prune and compaction would save. May you add the four numbers?
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
