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
# # Start here: one whole turn
#
# [中文版](zh/00_start.ipynb)
#
# A coding agent looks like a mind that remembers, plans and acts. Inside there is a list of messages, a loop, and a
# model that forgets everything the moment it has answered. This book takes that loop apart, one mechanism a chapter.
#
# Everything runs on your machine. The model is a *simulator* that follows the rules of the real providers (the companies
# that serve models): it sends its reply piece by piece, as they do, refuses what they refuse, and counts *tokens*, the
# pieces of text that models read and bills are made of. You need no API key.
#
# **How to read:** run each cell with `Shift`+`Enter`, top to bottom. Change what you like. To begin
# anew, choose "Restart Kernel and Run All Cells" in the menu "Kernel". (A cell may `await`; in a script of your own, put the same lines into an `async def` and run it
# with `asyncio.run`.)
#
# **Contents:** [01 The loop](01_loop.ipynb) · [02 Tool output](02_spill.ipynb) · [03 The stream](03_stream.ipynb) ·
# [04 Interrupt](04_interrupt.ipynb) · [05 Compaction](05_compaction.ipynb) · [06 The prompt cache](06_cache.ipynb) ·
# [07 Layers](07_layers.ipynb) · [08 The journal](08_journal.ipynb) · [09 The surface](09_surface.ipynb) ·
# [10 Many tools](10_disclosure.ipynb) · [11 MCP](11_mcp.ipynb) · [12 The whole agent](12_agent.ipynb) ·
# [13 Your sessions](13_your_sessions.ipynb). Words that are new to you stand in the [glossary](../docs/GLOSSARY.md),
# and messages that stop you in [TROUBLESHOOTING](../TROUBLESHOOTING.md).

# %%
from agentlab import check, draw, pairing
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, user
from agentlab.provider import ChatClient, ProviderRefused
from agentlab.simulator import Simulator
from agentlab.tools import Registry
from agentlab.widgets import stream

# %% [markdown]
# ## The model remembers nothing
#
# Two requests, one after the other. The second one asks what the model can see. (The simulator is a handful of rules and
# says so: it knows `say ...`, `count to 10`, `2 + 3`, `what do you see?`, and how to call a tool that you name.)

# %%
model = Simulator().client()

await model.complete([user("say My name is Ada.")])
reply = await model.complete([user("what do you see?")])
print(reply["content"])

# %% [markdown]
# The first exchange is gone. **A conversation is the list that you send**, whole, every time:

# %%
conversation = [user("say My name is Ada.")]
conversation.append(await model.complete(conversation))
conversation.append(user("what do you see?"))
conversation.append(await model.complete(conversation))

print(conversation[-1]["content"])
draw.strip(conversation)

# %% [markdown]
# That bar is the **context strip**: the messages of the conversation, as wide as they are long;
# the last one is the reply. It comes back in every
# chapter, because all that an agent does for its memory happens to this list.
#
# ## Tools
#
# A model cannot read a file. It can only *ask* for it: with a **tool call**, a name and some JSON. Your program runs the
# function and appends a **tool result**. A registry holds the functions, and describes them to the model:

# %%
FILES = {
    "todo.txt": "[x] buy milk\n[ ] call Bob\n[ ] fix the leap-year bug\n",
    "done.txt": "painted the fence\n",
}
registry = Registry()


@registry.tool(read_only=True)
def list_files() -> str:
    """List the files in the folder."""
    return "\n".join(FILES)


@registry.tool(read_only=True)
def read_file(path: str) -> str:
    """Read one text file."""
    return FILES[path]


registry.specs()[1]

# %% [markdown]
# ## Break it
#
# The model asked for the list of files. This program forgets to send the result, and the provider refuses the whole conversation:

# %%
ask = user("What is still to do?")
story = [
    assistant("Let me look.", call("call_1", "list_files")),
    assistant("", *[call(f"call_{n}", "read_file", path=path) for n, path in enumerate(FILES, 2)]),
    "Two things are left: call Bob, and fix the leap-year bug.",
]
model = Simulator(story).client()

history = [ask]
history.append(await model.complete(history, registry.specs()))
try:
    await model.complete(history, registry.specs())
except ProviderRefused as refused:
    print(refused)

# %% [markdown]
# Behind the status, 400, come OpenAI's own words. The other two lines are hints by the simulator and by our client; a
# real provider leaves you to guess.
#
# ## The loop
#
# Ask the model. If it calls tools, run them, append the results, ask again. If it does not, the **turn** is over. That
# is all there is to an agent, and `run_turn` does it. What this model says was written beforehand, in `story`; the loop
# and its requests are real.

# %%
simulator = Simulator(story, pace=0.02)  # a token every 20 ms, so that you can watch
turn = await stream(run_turn([ask], simulator.client(), registry))

# %%
draw.strip(turn.history)

# %% [markdown]
# Each request carries everything before it, so each one is longer than the last (the 120 tokens of the first are mostly
# the descriptions of the tools). Half of this book is about paying less for that.

# %%
lanes = []
for request, usage in zip(simulator.requests, simulator.usages, strict=True):
    lanes.append(("->", f"messages: {len(request['messages'])}, tokens: {usage['prompt_tokens']}", "user"))
    lanes.append(("<-", f"tokens: {usage['completion_tokens']}", "assistant"))
draw.sequence(lanes, left="your program", right="model")

# %% [markdown]
# ## Stop it
#
# A turn can be ended at any moment. Here the cell presses its own **Stop** button after the 12th piece of text, so that
# this page always ends the same way. Take `click_after` away, and press it yourself.

# %%
counting = Simulator(pace=0.05)
turn = await stream(run_turn([user("count to 400")], counting.client(), registry), click_after=12)

# %%
print(turn.reason, "|", turn.history[-1]["content"])
for hangup in counting.hangups:
    print("tokens produced:", hangup.produced, "of", hangup.total)
print("broken rules in the history:", pairing.problems(turn.history))

# %% [markdown]
# Half a message is kept, the server has stopped working, and the history can be sent again. When a tool call is torn in
# two this takes more care, and has [a chapter of its own](04_interrupt.ipynb).
#
# ## The map
#
# One turn, from top to bottom, and what fails where a mechanism is missing:
#
# | step | module | without it | chapter |
# |---|---|---|---|
# | bytes become events | `sse` | text breaks where the network cuts it | [03 The stream](03_stream.ipynb) |
# | events become a message | `assemble` | parallel tool calls melt into one | [03 The stream](03_stream.ipynb) |
# | every call has its result | `pairing` | one Stop, and the provider refuses the conversation for good | [04 Interrupt](04_interrupt.ipynb) |
# | Stop, and words slipped in | `interrupt`, `steer` | you wait, or you start again | [04 Interrupt](04_interrupt.ipynb) |
# | tools run, or are refused | `tools`, `permissions` | the agent cannot act, or does what it should not | [01 The loop](01_loop.ipynb) |
# | the one loop | `loop`, `watchdog` | it runs in circles at your expense | [01 The loop](01_loop.ipynb) |
# | long outputs become files, logs are folded | `spill`, `logfold` | one `cat`, and the window is full | [02 Tool output](02_spill.ipynb) |
# | the conversation fits the window | `compaction`, `segments` | one day it is refused, or the task is forgotten | [05 Compaction](05_compaction.ipynb) |
# | the same in four layers | `layers` | a model is asked where cutting would do | [07 Layers](07_layers.ipynb) |
# | the prefix stays the same | `prefix`, `usage` | the bill is seven times as high | [06 The prompt cache](06_cache.ipynb) |
# | what happens is written down | `journal`, `replay` | a crash costs the session | [08 The journal](08_journal.ipynb) |
# | what is sent is a view of it | `surface` | no way back behind a compaction | [09 The surface](09_surface.ipynb) |
# | forty tools, a small array | `disclosure` | each request pays for all of them | [10 Many tools](10_disclosure.ipynb) |
# | tools from other programs | `mcp` | you write every tool yourself | [11 MCP](11_mcp.ipynb) |
# | all of it at once | `agent`, `project` | | [12 The whole agent](12_agent.ipynb) |
# | sessions that you have | `transcripts`, `audit` | | [13 Your sessions](13_your_sessions.ipynb) |
# | a model to talk to | `provider`, `simulator` | you learn with a bill | |
#
# Every module stands alone: `from agentlab import pairing` works in your own agent, too.
#
# ## How far you are
#
# Every chapter from 01 on has exercises that check themselves, and `make lab` remembers which checks have run, on your
# answer or on the one to start from, and which were solved. Come back to this cell and run it again. (Opening a solution
# is fine, and does not count.)

# %%
check.progress()

# %% [markdown]
# ## Go live
#
# The same loop against a real model: any OpenAI-compatible server (a local llama.cpp or Ollama, too), DeepSeek or
# Anthropic. Set `AGENT_BASE_URL`, `AGENT_MODEL` and, if the server wants one, `AGENT_API_KEY` before you start
# JupyterLab; then run this cell again.

# %%
import os

if os.environ.get("AGENT_BASE_URL"):
    await stream(run_turn([ask], ChatClient.from_env(), registry))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [The loop](01_loop.ipynb), where the agent acts, and knows when to stop.
