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
# # The whole agent: a day in its life
#
# ← [MCP](11_mcp.ipynb) · modules: `agent`, `project`
#
# **The problem.** Each chapter had one mechanism and one trouble. A real day has all the troubles, one after the other, in
# one conversation: so all the mechanisms must hang on one loop, and none may spoil the work of another.
#
# <details><summary>All the parts, their chapters, and how to leave each out</summary>
#
# | what it does | chapter | the argument of `open_agent` | how to leave it out |
# |---|---|---|---|
# | tools, the loop | [01](01_loop.ipynb) | `tools=[...]`: more of them | always there |
# | permissions | [01](01_loop.ipynb) | `policy=...` | `policy=None`: reading only |
# | watchdog | [01](01_loop.ipynb) | | `without=["watchdog"]` |
# | output budget, spill, folding | [02](02_spill.ipynb) | `output=...` | `without=["spill"]` |
# | stream, Stop, steering | [03](03_stream.ipynb), [04](04_interrupt.ipynb) | `turn.stop`, `agent.steer` | always there |
# | context manager | [05](05_compaction.ipynb), [07](07_layers.ipynb), [09](09_surface.ipynb) | `context="surface"`, `limits=...` | `without=["context"]` |
# | cache ledger, bill | [06](06_cache.ipynb) | `prices=...` | `prices=None`: tokens, no money |
# | journal, resume, fork | [08](08_journal.ipynb) | `id=...`, `resume=...` | `without=["journal"]` |
# | deferred tools, MCP | [10](10_disclosure.ipynb), [11](11_mcp.ipynb) | `deferred=[...]`, `mcp=...` | none by default |
#
# </details>

# %%
import os
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path

from IPython.display import Markdown

from agentlab import check, draw
from agentlab.agent import Agent
from agentlab.check.agent import TESTS, coder
from agentlab.check.agent_day import morning, new_simulator, whole_day
from agentlab.compaction import Limits
from agentlab.draw.logview import log_and_view
from agentlab.loop import Finished, Hooks, Steered
from agentlab.notebook import data, source
from agentlab.pairing import problems
from agentlab.permissions import Policy, Rule, matching
from agentlab.project import open_agent
from agentlab.provider import ChatClient, Retrying
from agentlab.usage import PriceList, bill, total
from agentlab.widgets import chat, explore, stream

# %% [markdown]
# The work: a small repository with a fault, `data/repo`. Its tests compare many years with Python's own calendar.

# %%
temporary = tempfile.TemporaryDirectory()
copies = count(1)
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `python` is this one


def fresh_copy(of=data("repo")):
    return Path(shutil.copytree(of, Path(temporary.name) / f"copy{next(copies)}"))


Markdown(f"```python\n{(fresh_copy() / 'leap.py').read_text()}```")

# %% [markdown]
# The model is a script again. It reads nothing but the request: what has been cut off, it does not know. We wrote two
# weaknesses into it: it copies line numbers into an edit, and sends the same edit again until somebody speaks.

# %%
source(coder, fold="Source")

# %% [markdown]
# ## Break it
#
# The same morning, each time with one part left out. The window is 6,000 tokens; what the tests print needs about 6,800.

# %%
POLICY = Policy(
    [
        Rule("allow", "edit_file"),
        Rule("allow", "write_file"),
        Rule("allow", "run_shell", matching(command=TESTS)),  # this command, and no other
    ]
)
WISHES = [
    "The tests fail. Find out why, and mend it.",
    "Which years had failed? Read the whole log of the first run.",
    "Put a note into CHANGES.md.",
]
PRICES = PriceList.read(data("prices.json")).find("gpt-6.2-sol")  # as if it were this model


def new_agent(folder, simulator, window, **options):
    options = {"policy": POLICY, "prices": PRICES, "clock": lambda: 0.0} | options
    return open_agent(folder, simulator.client(), limits=Limits(window), **options)


# %%
CASES = {
    "nothing": (WISHES[:2], {}),
    "watchdog": (WISHES[:1], {"without": ["watchdog"]}),
    "spill": (WISHES[:1], {"without": ["spill"]}),
    "context manager": (WISHES[:2], {"without": ["context"]}),
    "journal": (WISHES[:1], {"without": ["journal"]}),
    "policy": (WISHES[:1], {"policy": None}),
}
rows = []
for part, (wishes, options) in CASES.items():
    rows.append((part, *await morning(new_agent, fresh_copy(), wishes, **options)))
draw.table(rows, head=("left out", "how the morning ends", "the rule in leap.py", "known the next day"))

# %% [markdown]
# - **watchdog**: the same edit for ever; what helps is that somebody speaks, and nobody does.
# - **spill**: the long log is cut in the middle, since it fills the window. The model sees one year of four, mends that
#   one, and cannot know what else there is.
# - **context manager**: the wish is simple, and the conversation is over.
# - **journal**: all went well, and the next day nobody knows of it.
# - **policy**: nobody was there to be asked, so the answer was no. That is not a failure but the default.
#
# ## The mechanism
#
# There is nothing new in it. `send` starts a turn with [hooks](../docs/GLOSSARY.md), functions that the loop calls at fixed
# places; each hook calls the parts in their order. This one is asked for each batch of results:

# %%
source(Agent.send, fold="Agent.send", docstring=False)

# %%
source(Agent._after_results)

# %% [markdown]
# First shorten (`_reduce` folds and spills), then write down: the other way round the log would hold the long text, and
# the model would have seen the short one. The log *is* the conversation; all else is worked out from it. So an agent that
# is opened on an old log goes on where that ended.
#
# ## The day
#
# ### 9:00, Stop
#
# The agent was told of a window of 24,000 tokens, but the server has 6,000. No reply says so, and nobody notices yet. After
# the first log somebody presses Stop, in the middle of a word:

# %%
folder = fresh_copy()
simulator = new_simulator(6_000)
agent = new_agent(folder, simulator, 24_000, id="day")
turn = await stream(agent.send(WISHES[0]), click_after=17)

# %%
print("problems:", problems(agent.history), "| the last message:", agent.history[-1])

# %% [markdown]
# ### 9:05, steer
#
# What had arrived is kept, and can be sent. So it goes on, and would soon go round in circles; but the person sees it, and
# says so *while the turn runs*:

# %%
turn = agent.send("Go on.")
async for event in turn:
    if isinstance(event, Steered):
        print("  you:", event.messages[0]["content"])
    if isinstance(event, Finished):
        result = event.result
        print(result.name, result.status, "|", result.output.splitlines()[0])
        if result.status == "failed" and not len(agent.steer):
            agent.steer.put("The line number is no part of the file.")
        if result.name == "edit_file" and result.status == "completed":
            break  # the file is changed, and the log does not know it yet


# %% [markdown]
# ### 9:06, the power fails
#
# At the worst moment: the edit is done, and the log knows only that it was begun. A dead process leaves behind what is on
# the disk, and nothing else. So we copy the folder as it is now, and open that:

# %%
after_crash = fresh_copy(of=folder)
await turn.aclose()  # this one is not dead: we end it in peace
await agent.aclose()

agent = new_agent(after_crash, simulator, 24_000, resume="day")
print("the last result:", agent.history[-1]["content"])
print("in the file:    ", (after_crash / "leap.py").read_text().splitlines()[-1].strip())

# %% [markdown]
# The resumed conversation has an answer for that call. It does not claim that it failed, or that it worked; so the model
# looks before it repeats anything:

# %%
turn = await stream(agent.send("The power was gone. Where were we?"))

# %% [markdown]
# ### 10:00, the window is full
#
# The log of the first run is a file now, and the model reads it page by page. Soon the server refuses a request; the
# agent makes room, and sends again. The turn does not even end. Below is what the model sees then:

# %%
before = len(simulator.requests)
turn = await agent.send(WISHES[1]).run()
print(turn.reason, "|", turn.history[-1]["content"], "\n")

sent = simulator.requests[before:]
summaries = sum(not request.get("tools") for request in sent)
refused = len(sent) - len(turn.usages) - summaries
print(f"{len(sent)} requests: {refused} refused, {summaries} for summaries")
draw.html(agent.surface)

# %% [markdown]
# What it had noted of each page is in the summary, so the four years are right.
#
# ### 11:00, compact
#
# Before something new, by hand. The summary and the last reply are all that the next wish can build on.

# %%
print(await agent.compact())
draw.html(agent.surface)

# %%
turn = await stream(agent.send("Put a note into README.md."))

# %% [markdown]
# ### 11:05, say it otherwise
#
# The note should have gone into another file. **Rewind** takes back everything from a certain word of yours on. First a
# **fork**, so that the other way is kept:

# %%
kept = agent.fork(id="day-readme").id
said = agent.said()
draw.table([(word.seq, word.text) for word in said], head=("number", "you said"))

# %%
agent.rewind(said[-1].seq)
turn = await stream(agent.send(WISHES[2]))


# %% [markdown]
# Two sessions, with the same beginning; and one disk. A rewind takes back words. What a tool has done stays done:

# %%
async with new_agent(after_crash, simulator, 24_000, resume=kept) as other:
    for name, each in {"rewound": agent, "forked": other}.items():
        print(f"{name}: {each.said()[-1].text} -> {each.history[-1]['content']}")
for name in "README.md", "CHANGES.md":
    print(f"{name}: {'had failed' in (after_crash / name).read_text()}")

# %% [markdown]
# ### 12:00, the bill
#
# Usage comes from the server, as it counted it, and summaries cost, too.

# %%
print(agent.cost())

# %% [markdown]
# That is the bill since the crash. The log also has what was spent before. And the server?

# %%
logged = total(event["usage"] for event in agent.surface.events if event["type"] == "usage")
counted = total(simulator.usages)
print(f"in the log: {logged.prompt:,} tokens in, {logged.output:,} out")
print(f"the server: {counted.prompt:,} tokens in, {counted.output:,} out")
stopped = simulator.usages[simulator.hangups[0].request]
print(f"the reply that Stop cut off: {stopped['prompt_tokens']:,} in, {stopped['completion_tokens']} out")

# %% [markdown]
# To the token, but for one reply: usage comes last in a stream, and there we had hung up. What a stop costs, the
# client never hears.
#
# ### What is left of the day
#
# All of it, in the order in which it happened. Nothing in this file was ever changed; the view at the right is worked out
# from it. (Here without the events that only count tokens and calls. Long outputs are in files of their own;
# `project.tidy(folder)` lists those that no log of the folder points to, and deletes them with `dry_run=False`.)

# %%
rows = [event for event in agent.surface.events if event["type"] not in ("usage", "tool_call")]
await agent.aclose()
log_and_view(rows, agent.surface.nodes, agent.surface.source)

# %% [markdown]
# ## Turn the knob
#
# How large should the window be? The same three wishes, from a window that is too small for one log to one that never
# fills (and this time the agent knows it).

# %%
WINDOWS = [6_000, 8_000, 12_000, 24_000, 128_000]
DAYS = {window: await whole_day(new_agent, fresh_copy(), WISHES, window) for window in WINDOWS}

# %%
HEAD = ("window", "requests", "largest", "prunings", "summaries", "tokens in", "from cache", "USD", "right")


def prompts(window):
    return [usage["prompt_tokens"] for usage in DAYS[window].usages]


def row(window):
    day, paid = DAYS[window], bill(DAYS[window].usages, PRICES)
    sizes = len(day.usages), max(prompts(window)), day.prunings, day.summaries
    costs = paid.total.prompt, f"{paid.total.hit_ratio:.0%}", f"{paid.actual:.4f}"
    return window, *sizes, *costs, "yes" if day.right else "no"


def view(window):
    limit = Limits(window).threshold, "compact from here on"
    sent = {"tokens in each request": prompts(window)}
    picture = draw.chart(sent, unit="tokens", limit=limit, height=120)
    return draw.html(picture, draw.table([row(window)], head=HEAD))


knob = explore(view, window=WINDOWS)
knob.set(window=6_000)

# %%
rows = []
for window in WINDOWS:
    knob.set(window=window)
    rows.append(row(**knob.values))
knob.set(window=6_000)
draw.table(rows, head=HEAD)


# %% [markdown]
# ## Your turn
#
# Hang two mechanisms on the loop. `shorten(results)` gives short results, and saves the long ones; `recorder` has a method
# for each of the four hooks, and writes to a log. Both want `after_results`, and this function gives it to one only:

# %%
def my_hooks(shorten, recorder):
    return Hooks(
        before_request=recorder.before_request,
        after_message=recorder.after_message,
        after_results=shorten,
        on_usage=recorder.on_usage,
    )


check.wiring(my_hooks)

# %%
# check.wiring.hint(1)

# %%
source(check.wiring.solution, fold="One solution")

# %% [markdown]
# **Then your code runs the agent.** A turn has run with your hooks, the program has started anew, and this turn goes on from
# your log alone:

# %%
turn = await stream(check.wiring.turn(check.wiring.solution))

# %% [markdown]
# ### And by hand
#
# A panel over a new agent, whose model knows the three wishes: type one, speak while it works, press Stop, go on. The
# second cell types for you.

# %%
mine = new_agent(fresh_copy(), new_simulator(6_000), 6_000, id="mine")
panel = chat(mine)
panel

# %%
panel.say(WISHES[0])
await panel.settled()
print(len(mine.history), "messages |", mine.history[-1]["content"])

# %% [markdown]
# **Think.** At 9:06 the edit was done and not written down. Could the agent write the result down first, and then do the
# edit?
#
# <details><summary>An answer</summary>
#
# Then a crash in between would leave a log that claims an edit which never was, and nobody would look. Of two things on
# two disks one always comes first. So the log says what was *begun*, and after a crash somebody looks. It costs one
# `read_file`.
#
# </details>
#
# **Think.** The largest window costs more than the one of 24,000 tokens, and neither needs a summary. Why?
#
# <details><summary>An answer</summary>
#
# The output budget follows the window: what is worth a file at 24,000 tokens is allowed to stay whole at 128,000, and is sent
# again with every request. The cache makes that cheaper, not free. A large window is no reason for large results.
#
# </details>
#
# **Think.** Why does the rewind not take back the files, too?
#
# <details><summary>An answer</summary>
#
# It cannot know them all: a shell command may write anywhere, send a mail, drop a table. Version control can, for the
# files that it knows. So commit before the agent begins.
#
# </details>
#
# ## In real products
#
# <details><summary>The same parts, elsewhere</summary>
#
# | product | how it does it |
# |---|---|
# | codex | a session is a file of events; a fork is a cut of them, strictly before the n-th words of the person, so a summary stays or goes by itself |
# | pi | steering: the running tool ends, the calls after it get error results, the words go in |
# | Claude Code | a session is a JSONL file; after a compaction a message says that it continues an earlier one, and up to five recent files are read again |
# | opencode | prunes old outputs, marks them and deletes nothing: the last 2 turns and 40,000 tokens are safe |
# | Reina (the seeds' agent) | a crash is an interrupt, too: on load, calls that stand as running are answered; a resumed session uses the model that its log names |
#
# Sources: the seeds 000, 001 and 003, and the open repositories of codex, opencode and pi.
#
# </details>
#
# ## Go live
#
# The same agent with your own server, on a copy of the repository. It may edit, and run the tests. Set `AGENT_BASE_URL` and
# `AGENT_MODEL` (and `AGENT_CONTEXT_WINDOW`) before you start JupyterLab. In a terminal it is `agentlab chat`.

# %%
if os.environ.get("AGENT_BASE_URL"):
    client = Retrying(ChatClient.from_env())
    async with open_agent(fresh_copy(), client, policy=POLICY) as live:
        await stream(live.send(f"The tests fail ({TESTS}). Find out why, and mend it."))
        print(live.cost())
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [Your own sessions](13_your_sessions.ipynb), under the same lenses.
