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
# # Tool output: keep it small, lose nothing
#
# ← [The loop](01_loop.ipynb) · modules: `spill`, `logfold`, `outputs`, `workspace`
#
# **The problem.** A command prints what it likes: two lines, or two million characters. All of it would go into the
# conversation and stay there, sent and paid for again with every request, until the model's
# [context window](../docs/GLOSSARY.md) is full. So it must be cut; and what is cut off is what the model asks for next.

# %%
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from agentlab import check, draw, spill
from agentlab.errors import ContextOverflow
from agentlab.logfold import fold
from agentlab.loop import Hooks, run_turn
from agentlab.messages import assistant, call, user
from agentlab.notebook import data, source
from agentlab.outputs import reducer
from agentlab.permissions import Policy
from agentlab.provider import ChatClient
from agentlab.simulator import Simulator
from agentlab.simulator.tokens import tokenize
from agentlab.spill import OutputBudget, SpillStore, apply_budget, collect
from agentlab.tools import Registry, ToolResult
from agentlab.widgets import explore, stream
from agentlab.workspace import Workspace

# %% [markdown]
# A table of about 27,000 rows, and one number that somebody wants to know:

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
row = "row {0}: id={1} name=user_{0} email=user_{0}@example.com status=active\n"
table = "".join(row.format(n, n * 7) for n in range(30_000))[:2_097_212]
(folder / "users.txt").write_text(table)

WINDOW = 8_000  # tokens
needed = len(tokenize(table))
parts = [("the window", WINDOW, "kept"), ("what `cat users.txt` needs beyond it", needed - WINDOW, "dropped")]
draw.bar(parts, unit="tokens")


# %% [markdown]
# ## Break it
#
# This model is a script: it prints the table, looks for row 20,000, reads on where the text tells it to, and says what it
# can see. The tools and the loop are those of the last chapter.

# %%
def find_row(request):
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    seen = results[-1] if results else ""
    if not results:
        return assistant("", call("call_1", "run_shell", command="cat users.txt"))
    if found := re.search(r"row 20000: id=(\d+)", seen):
        return f"The id in row 20,000 is {found[1]}."
    if saved := re.search(r'read_file\("(.+?)"', seen):
        return assistant("", call("call_2", "read_file", path=saved[1], offset=20_001, limit=1))
    return f"I see {len(seen):,} characters, and no row 20,000 in them. I would have to run it again."


def ask(tools, hooks=None):
    client = Simulator(find_row, context_window=WINDOW).client()
    question = [user("What is the id in row 20000?")]
    return run_turn(question, client, tools, policy=Policy(default="allow"), hooks=hooks)


tools = Registry(Workspace(folder).tools())
try:
    await ask(tools).run()
except ContextOverflow as refused:
    print(refused)


# %% [markdown]
# One command, and the conversation is over: the result stands in the history now, so the next request is refused, too.
# **Cutting** it helps, in a way:

# %%
def cut(results):
    return [replace(result, output=result.output[:2_000]) for result in results]


turn = await ask(tools, Hooks(after_results=cut)).run()
print(turn.history[-1]["content"])

# %% [markdown]
# It fits, and the answer is gone. Run again, the command would be cut again.
#
# ## The mechanism
#
# **Spill**: the whole text goes to a file, and into the conversation go an *excerpt* and a *pointer* to the file. Nothing
# is lost; every row is one `read_file` away.

# %%
store = SpillStore(folder / "spill", base=folder)  # `base` is where the model's paths begin
result = ToolResult("call_1", "run_shell", {"command": "cat users.txt"}, "completed", table)
batch = apply_budget([result], OutputBudget(), store)
spilled = batch.results[0]

print(f"{batch.before:,} characters became {batch.after:,}:\n")
print(spilled.output[:90], "[...]", spilled.output[-420:], sep="\n")
print("\nThe file holds every byte:", (folder / spilled.output_path).read_bytes() == table.encode())

# %% [markdown]
# The pointer is written for the model: **how large** the text is, **how to read on**, and what *not* to do: many a model's
# first idea is to run the command again.
#
# In the loop, `reducer` does this. It is a *hook*, a function that the loop calls at a fixed place: here with the results of
# every step. The same model finds its way now:

# %%
turn = await ask(tools, Hooks(after_results=reducer(tools, store))).run()
print(turn.history[-1]["content"])
draw.strip(turn.history, fates=["pointer" if message.get("output_path") else "kept" for message in turn.history])

# %% [markdown]
# There are **two limits**, one for a result and one for a *batch*, the results of one step: ten that fit may together be
# too much. The largest is spilled first, and no more than needed: a budget is there to save the window, not to shorten
# everything.

# %%
source(spill.apply_budget, fold="Source", docstring=False)

# %%
sizes = [60_000, 30_000, 30_000, 30_000]
batch = [ToolResult("", f"call {n}", {}, "completed", "x" * size) for n, size in enumerate(sizes, 1)]
apply_budget(batch, OutputBudget(per_result=50_000, per_batch=100_000), store)

# %% [markdown]
# ## Turn the knob
#
# A real batch: what five build tools printed (`data/logs`), and a file that was read. The window has 16,000 tokens. Move
# the limits, in characters: what spills, and what is left of the window?

# %%
LOGS = {path.stem: path.read_text() for path in sorted(data("logs").glob("*.log"))}
batch = [ToolResult(name, "run_shell", {}, "failed", text) for name, text in LOGS.items()]
rows_read = "\n".join(table.split("\n")[:200])
batch.append(ToolResult("read_file", "read_file", {}, "completed", rows_read, spillable=False))
ROOM = 16_000 * 4  # characters, at four to a token
trial = SpillStore(folder / "trial", base=folder)


def budgeted(per_result, per_batch):
    budget = OutputBudget(per_result=per_result, per_batch=per_batch, preview=800)
    return apply_budget(batch, budget, trial)


def view(per_result, per_batch):
    parts = []
    for result in budgeted(per_result, per_batch).results:
        parts.append((result.call_id, len(result.output), "pointer" if result.output_path else "kept"))
    return draw.bar(parts, total=70_000, marks=[(ROOM, "window")], unit="characters")


knob = explore(view, per_result=(1_000, 40_000, 1_000), per_batch=(2_000, 80_000, 1_000))
knob.set(per_result=26_000, per_batch=80_000)

# %%
for per_result, per_batch in (40_000, 80_000), (10_000, 50_000), (1_000, 2_000), (26_000, 80_000):
    knob.set(per_result=per_result, per_batch=per_batch)
    after = budgeted(per_result, per_batch)
    names = [result.call_id for result in after.results if result.output_path]
    free = f"{ROOM - after.after:7,} free" if after.after < ROOM else f"{after.after - ROOM:7,} too much"
    print(f"{per_result:6,} and {per_batch:6,}: {free}; spilled: {', '.join(names) or 'none'}")

# %% [markdown]
# What `read_file` read never spills: it stands in a file already, and is read in pages, with `offset` and `limit`.
#
# A small window needs small limits. `for_window` takes 15 % of it for a result and 30 % for a batch, but never more than
# the budget had. Give the same budget to `Workspace(folder, budget=...)`, and a page of `read_file` stays within it, too.

# %%
rows = []
for tokens in 8_000, 32_000, 128_000:
    budget = OutputBudget().for_window(tokens)
    rows.append((tokens, budget.per_result, budget.per_batch))
draw.table(rows, head=("window in tokens", "characters per result", "characters per batch"))


# %% [markdown]
# ## Fold before you count
#
# Most lines of a log say that something went well. **Folding** keeps the lines that matter, with a few neighbours on each
# side, and counts the rest. Two safeguards: a short text is left alone, and so is one where less than 15 % can be gained.
#
# How many neighbours does an error need? Move `context`. `merge_similar` also joins lines that differ in numbers only.

# %%
def folding(log, context, merge_similar):
    return fold(LOGS[log], context=context, merge_similar=merge_similar)


knob = explore(folding, log=list(LOGS), context=(0, 10), merge_similar=False)
knob.set(log="make_gcc", context=2)

# %%
rows = []
for name in LOGS:
    cells = []
    for context, merge in (0, False), (2, False), (10, False), (2, True):
        knob.set(log=name, context=context, merge_similar=merge)
        cells.append(f"{knob.picture.savings:.0%}" if knob.picture.folded else "left alone")
    rows.append((name, LOGS[name].count("\n"), *cells))
knob.set(log="make_gcc", context=2, merge_similar=False)
draw.table(rows, head=("log", "lines", "context 0", "context 2", "context 10", "2, similar lines merged"))

# %% [markdown]
# Only tools that declare `log=True` are folded, such as the shell. It prints source code, too, which looks like a log that
# mentions errors; so a result below a fifth of the limit stays whole. Folding loses nothing either: the whole text goes to
# a file first, and the result ends in its pointer.

# %%
logged = ToolResult("call_1", "run_shell", {}, "failed", LOGS["pytest"])
[after] = reducer(tools, store)([logged])
print(after.output[:120], "[...]", after.output[-260:], sep="\n")

# %% [markdown]
# ## Who cleans up?
#
# A long session leaves dozens of files. When may one go? **When nothing that is still alive points to it.** A pointer is
# the field `output_path` of a message, never a name in a sentence.
#
# A session with three files. Then it is *compacted*: its beginning is replaced by a summary, which *mentions* the first
# file. That is the *view*, what the model is sent from now on. The *log* still holds every message.

# %%
store = SpillStore(folder / "day", base=folder)
before = [user("Go.")]
for n in 1, 2, 3:
    result = ToolResult(f"call_{n}", "run_shell", {}, "completed", f"{n} " * 2_000)
    [spilled] = apply_budget([result], OutputBudget(per_result=1_000), store).results
    before += [assistant("", call(f"call_{n}", "run_shell", command=f"step {n}")), spilled.message()]

paths = [message["output_path"] for message in before if message["role"] == "tool"]
summary = user(f"So far: steps 1 and 2, see {paths[0]}.") | {"origin": "compaction"}
compacted = [summary, *before[5:]]
log = [{"seq": n, "type": "message", "message": message} for n, message in enumerate(before, 1)]
draw.columns(draw.strip(before), draw.strip(compacted), heads=("log", "view"))


# %% [markdown]
# What would go, for each idea of what is alive? (`collect` deletes nothing unless it is told `dry_run=False`.)

# %%
def verdict(*alive, **options):
    gone = collect(store, alive, **options).removed
    return ", ".join(f"file {n}" for n, path in enumerate(paths, 1) if Path(path).name in gone) or "nothing"


DAY = 86_400  # seconds
rows = [
    ("view", verdict(compacted)),
    ("view, log", verdict(compacted, log)),
    ("log", verdict(log)),
    ("nothing", verdict()),
    ("all files of the last day", verdict(min_age_s=DAY)),
    ("log, all files of the last day", verdict(log, min_age_s=DAY)),
]
draw.table(rows, head=("alive", "would go"))


# %% [markdown]
# Four moments are usual for it:
#
# - **After a compaction**: not safe with the view alone, since one can go [back in the log](08_journal.ipynb) to where
#   the files are gone. With the log, it is.
# - **When a session is resumed**, with its log: safe. Only what a crash left behind goes.
# - **At its end**, with nothing: only if nobody ever resumes it, branches off, or reads its log.
# - **Now and then, by age**: not safe alone, age does not tell who still points. With all logs, it is.
#
# The seed of this chapter, the material it was made from, deletes at the first moment, and by searching the text. There the
# sentence in the summary would have kept file 1 for ever, and file 2 would be lost.
#
# ## Your turn
#
# **1.** This excerpt shows the head. But a failed command says why at the end: so make `mode="tail"` show more of the end.
# The excerpt must never be longer than `cap`, whatever `cap` is, and its number must be right.

# %%
def my_excerpt(text, cap, mode="head"):
    if len(text) <= cap:
        return text
    tail = min(200, cap // 4)
    return f"{text[: cap - tail]}\n… [{len(text) - cap} characters left out] …\n{text[-tail:]}"


# %%
check.tail_excerpt(my_excerpt)

# %%
# check.tail_excerpt.hint(1)

# %%
source(check.tail_excerpt.solution, fold="One solution")

# %%
check.tail_excerpt(check.tail_excerpt.solution)

# %% [markdown]
# **Then your code runs the agent.** Its tests fail, and all that the model sees of them is your excerpt:

# %%
turn = await stream(check.tail_excerpt.turn(check.tail_excerpt.solution))


# %% [markdown]
# **2.** Write a safe collector. It gets the names of the files and a list of everything that is alive: histories, branches
# of them, events of a log. It returns the names that may go. This one searches the text:

# %%
def my_collector(files, alive):
    return [name for name in files if name not in str(alive)]


# %%
check.collector(my_collector)

# %%
# check.collector.hint(1)

# %%
source(check.collector.solution, fold="One solution")

# %%
check.collector(check.collector.solution)

# %% [markdown]
# **Then your code runs the agent.** It collects; then the conversation goes on in the branch from *before* a compaction, and
# needs a file:

# %%
turn = await stream(check.collector.turn(check.collector.solution))

# %% [markdown]
# **Think.** When a history is compacted, should the summary keep the pointers of what it replaces?
#
# <details><summary>An answer</summary>
#
# As words it may: "the full log is in ..." can help. But then it should have the field `output_path`, too, or the file may be
# gone when the model follows the words. Most summaries do not need it: who has the conclusion rarely needs the rows.
#
# </details>
#
# **Think.** Why does `apply_budget` leave a small result as it is, even when the batch is over its limit?
#
# <details><summary>An answer</summary>
#
# A pointer alone has some 150 characters. A hundred results of 100 characters would grow. So the batch stays over its limit,
# which is the honest outcome: fewer calls at once would help, cutting would not.
#
# </details>
#
# ## In real products
#
# <details><summary>What products do with long outputs</summary>
#
# | product | what it does |
# |---|---|
# | Claude Code | Bash output is cut above 30,000 characters |
# | Reina (seed 003) | a tool: 50 KB or 2,000 lines, the shell keeps its tail; the engine: 100,000 characters a result, 200,000 a batch, largest first; 15 % and 30 % of a small window; near-equal log lines folded, about 65 % saved on real vitest output and nothing on eslint's |
# | opencode | prunes old outputs from the view: skips the last 2 turns, protects 40,000 tokens, acts only above 20,000 |
# | learn-claude-code | never compacts what the model has not seen yet; never trusts a path that stands in an output |
#
# | fault | reported in |
# |---|---|
# | only the head is kept: the model runs the tests again and again | [cube-harness 368](https://github.com/The-AI-Alliance/cube-harness/issues/368), [SztuCode 74](https://github.com/rojim666/SztuCode/issues/74) |
# | a limit by lines lets a megabyte of JSON through, on one line | [context-guru 138](https://github.com/rossoctl/context-guru/issues/138) |
# | a cut inside an emoji: the request is refused, for ever once it is saved | [context-mode 659](https://github.com/mksglu/context-mode/issues/659), [claude-code 56064](https://github.com/anthropics/claude-code/issues/56064) |
# | two calls, one file name: the older pointer shows the newer text | [sinas 180](https://github.com/sinas-platform/sinas/issues/180) |
# | the disk was full, and the pointer leads nowhere | [houseCARL 306](https://github.com/Avick3110/houseCARL/issues/306), [pi 8575](https://github.com/earendil-works/pi/issues/8575) |
#
# </details>
#
# ## Go live
#
# Your own server, a table that does not fit, and the hook. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you start
# JupyterLab. (Without a policy only reading is allowed, so a tool of its own shows the table.)

# %%
if os.environ.get("AGENT_BASE_URL"):

    @tools.tool(read_only=True)
    def show_users() -> str:
        """Show the table of all users."""
        return table

    hooks = Hooks(after_results=reducer(tools, SpillStore(folder / "live", base=folder)))
    question = [user("What is the id in row 20000 of the users?")]
    await stream(run_turn(question, ChatClient.from_env(), tools, hooks=hooks))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [The stream](03_stream.ipynb), where a reply arrives in pieces that nobody has cut with care.
