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

# %%
import os
import shutil
import sys
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

from IPython.display import Markdown

from agentlab import check, draw
from agentlab.agent import Agent
from agentlab.check.agent import TESTS, coder
from agentlab.compaction import Limits
from agentlab.draw.logview import log_and_view
from agentlab.errors import AgentLabError, ContextOverflow
from agentlab.loop import Called, Finished, Hooks, Steered
from agentlab.messages import calls_of
from agentlab.notebook import data, source
from agentlab.pairing import problems
from agentlab.permissions import Policy, Rule, matching
from agentlab.project import open_agent, tidy
from agentlab.provider import ChatClient, Retrying
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.usage import PriceList, bill, total
from agentlab.widgets import chat, explore, stream

# %% [markdown]
# The work: `data/repo`, a small repository with a fault. Its tests compare every year with Python's own calendar.

# %%
temporary = tempfile.TemporaryDirectory()
copies = count(1)
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `python` is this one


def fresh_copy(of=data("repo")):
    return Path(shutil.copytree(of, Path(temporary.name) / f"copy{next(copies)}"))


Markdown(f"```python\n{(fresh_copy() / 'leap.py').read_text()}```")

# %% [markdown]
# The model is a script again. It reads nothing but the request: what has been cut off, it does not know. And it has two
# weaknesses that we wrote into it: it copies line numbers into an edit, and sends the same edit again until somebody
# speaks.

# %%
source(coder, fold="Source")

# %% [markdown]
# ## Break it
#
# The same morning, with a part left out each time. The window is 6,000 tokens, what the tests print needs about 6,800.
# `send` gives a turn, as `run_turn` does.

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


def new_simulator(window):
    return Simulator(coder(), context_window=window, cache=BlockCache())


# %%
async def morning(wishes, **options):
    """What the agent says in the end, the rule as it stands then, and what is known of it the next day."""
    folder, simulator = fresh_copy(), new_simulator(6_000)
    async with new_agent(folder, simulator, 6_000, id="day", **options) as agent:
        ending = await answers(agent, wishes)
    try:
        async with new_agent(folder, simulator, 6_000, resume="day") as again:
            known = f"{len(again.said())} of {len(wishes)} wishes"
    except AgentLabError as error:
        known = str(error).split(". ")[0]
    return ending, (folder / "leap.py").read_text().split("return")[1].strip(), known


async def answers(agent, wishes):
    try:
        for wish in wishes:
            turn = agent.send(wish)
            async for event in turn:
                if isinstance(event, Called) and len(turn.usages) > 25:
                    turn.stop.request()  # somebody has seen enough
        return agent.history[-1]["content"] if turn.reason == "done" else f"{turn.reason} by hand: {circle(turn)}"
    except ContextOverflow as refused:
        return str(refused).splitlines()[0]


def circle(turn):
    calls = Counter(each["function"]["name"] for message in turn.history for each in calls_of(message))
    return ", ".join(f"{name} {times} times" for name, times in calls.items())


# %%
CASES = {
    "nothing": (WISHES[:2], {}),
    "watchdog": (WISHES[:1], {"without": ["watchdog"]}),
    "spill": (WISHES[:1], {"without": ["spill"]}),
    "context manager": (WISHES[:2], {"without": ["context"]}),
    "journal": (WISHES[:1], {"without": ["journal"]}),
    "policy": (WISHES[:1], {"policy": None}),
}
rows = [(part, *await morning(wishes, **options)) for part, (wishes, options) in CASES.items()]
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
# There is nothing new in it. `send` gives the loop hooks, and each hook calls the parts in their order:

# %%
source(Agent.send)

# %%
source(Agent._after_results)

# %% [markdown]
# First it is folded and spilled, then it is written down: the other way round the log would hold the long text, and the
# view the short one. The log *is* the conversation; all else is worked out from it, so an agent that is opened on an old
# log goes on where that ended.
#
# ## The day
#
# ### 9:00, Stop
#
# The agent believes in a window of 24,000 tokens. The server has 6,000: no API tells. Nobody notices yet. After the
# first log somebody presses Stop, in the middle of a word:

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
# What had arrived is kept, and can be sent. So it goes on, and soon in circles. Here the watchdog need not nudge: the
# person sees it, and says so *while the turn runs*.

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
# At this very moment, the worst one: the edit is done, and the log knows only that it was begun. What a dead process
# leaves behind is on the disk, and nothing else. So a copy of the folder, as it is now, is what we find after the crash.

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
# agent makes room, and sends again. The turn does not even end.

# %%
before = len(simulator.requests)
turn = await agent.send(WISHES[1]).run()
print(turn.reason, "|", turn.history[-1]["content"], "\n")

sent = simulator.requests[before:]
summaries = sum(not request.get("tools") for request in sent)
refused = len(sent) - len(turn.usages) - summaries
print(f"{len(sent)} requests: {refused} refused, {summaries} for summaries")
draw.html(agent.context.last)

# %% [markdown]
# The strip is the view: what the model sees now. What it said of each page is in the summary, so the four years are right.

# %%
draw.html(agent.surface)

# %% [markdown]
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
# That is the bill of this process. The log also has what was spent before the crash. And the server?

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
# from it. (Here without the events that only count tokens and calls.)

# %%
rows = [event for event in agent.surface.events if event["type"] not in ("usage", "tool_call")]
log_and_view(rows, agent.surface.nodes, agent.surface.source)

# %% [markdown]
# `tidy` looks into the logs of *all* sessions of the folder, and lists what none of them points to; with `dry_run=False` it
# deletes that. Here nothing: what was rewound is in the log still, and the fork has its own.

# %%
found = tidy(after_crash)
print(f"{len(found.kept)} long outputs are kept, {len(found.removed)} would go")
await agent.aclose()


# %% [markdown]
# ## Turn the knob
#
# How large should the window be? The same three wishes, from a window that is too small for one log to one that never
# fills (and this time the agent knows it).

# %%
async def whole_day(window):
    simulator = new_simulator(window)
    async with new_agent(fresh_copy(), simulator, window, id="day") as agent:
        for wish in WISHES:
            await agent.send(wish).run()
    made = [event.get("reason") for event in agent.surface.events if event["type"] == "replace"]
    return {
        "prompts": [usage["prompt_tokens"] for usage in agent.usages],
        "prunings": made.count("prune"),
        "summaries": made.count("compaction"),
        "bill": bill(agent.usages, PRICES),
        "right": "1700, 1800, 1900, 2100" in str(agent.surface.transcript()),
    }


WINDOWS = [6_000, 8_000, 12_000, 24_000, 128_000]
DAYS = {window: await whole_day(window) for window in WINDOWS}

# %%
HEAD = ("window", "requests", "prunings", "summaries", "input tokens", "from cache", "cost in USD")


def row(window):
    day = DAYS[window]
    paid = day["bill"]
    changes = day["prunings"], day["summaries"]
    tokens = paid.total.prompt, f"{paid.total.hit_ratio:.0%}"
    return window, len(day["prompts"]), *changes, *tokens, f"{paid.actual:.4f}"


def view(window):
    prompts = {"tokens in each request": DAYS[window]["prompts"]}
    limit = Limits(window).threshold, "compact from here on"
    picture = draw.chart(prompts, unit="tokens", limit=limit, height=120)
    return draw.html(picture, draw.table([row(window)], head=HEAD))


knob = explore(view, window=WINDOWS)
knob.set(window=6_000)

# %%
for window in WINDOWS:
    knob.set(window=window)
    print(f"{window:7,}: largest request {max(DAYS[window]['prompts']):6,}, right: {DAYS[window]['right']}")
knob.set(window=6_000)
draw.table([row(window) for window in WINDOWS], head=HEAD)


# %% [markdown]
# ## Your turn
#
# Hang two mechanisms on the loop. `shorten(results)` gives short results, and saves the long ones; `recorder` has a method
# for each of the four hooks, and writes to a log. Both want `after_results`, and this function gives it to one of them.

# %%
def my_hooks(shorten, recorder):
    return Hooks(
        before_request=recorder.before_request,
        after_message=recorder.after_message,
        after_results=shorten,
        on_usage=recorder.on_usage,
    )


# %%
check.wiring(my_hooks)

# %%
# check.wiring.hint(1)

# %%
source(check.wiring.solution, fold="One solution")

# %%
check.wiring(check.wiring.solution)

# %% [markdown]
# **Then your code runs the agent.** A turn has run with your hooks, the program has started anew, and this turn goes on from
# your log alone:

# %%
turn = await stream(check.wiring.turn(check.wiring.solution))

# %% [markdown]
# ### And by hand
#
# A panel over a new agent. It knows the three wishes; type one of them, steer while it works, press Stop, go on. The last
# line types for you.

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
