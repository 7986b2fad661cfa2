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
# # The loop: tools, dispatch, and when to stop
#
# ← [Start here, with the map](00_start.ipynb) · modules: `tools`, `loop`, `watchdog`, `permissions`
#
# **The problem.** A model can only write text. To read a file it writes a tool's name and some JSON, and *your* program
# must run the tool, send back what came of it, ask again, and notice when all of that goes in circles.

# %%
import json
import os
import re
import tempfile
from itertools import zip_longest
from pathlib import Path

from agentlab import check, draw, loop
from agentlab.errors import ProviderRefused, ToolError
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, user
from agentlab.notebook import data, source
from agentlab.permissions import Policy
from agentlab.provider import ChatClient
from agentlab.simulator import Simulator
from agentlab.tools import Registry, ToolResult
from agentlab.watchdog import LoopBudget
from agentlab.widgets import explore, stream
from agentlab.workspace import Workspace

# %% [markdown]
# A small folder to work in, five tools for it, and one turn, as it should be:

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
(folder / "notes").mkdir()
(folder / "notes" / "todo.txt").write_text("[ ] call Bob\n[ ] fix the leap-year bug\n")
(folder / "notes" / "done.txt").write_text("[x] paint the fence\n")

files = Registry(Workspace(folder).tools())
ask = [user("What is in notes?")]
story = [
    assistant("Let me look.", call("call_1", "list_dir", path="notes")),
    "Two files: done.txt and todo.txt.",
]

turn = await run_turn(ask, Simulator(story).client(), files).run()
result, answer = [message["content"] for message in turn.history[2:]]
lanes = [
    ("->", ask[0]["content"], "user"),
    ("<-", "list_dir(path='notes')", "assistant"),
    ("->", result.splitlines()[0], "tool result"),
    ("<-", answer, "assistant"),
]
draw.sequence(lanes, left="your program", right="model")


# %% [markdown]
# ## Break it
#
# Ten lines are enough for an agent. `keep` decides what this one remembers of a **step**: one request and its tool calls.

# %%
async def ten_lines(tools, keep):
    history, client = list(ask), Simulator(story).client()
    for _ in range(5):
        message = await client.complete(history, tools)
        calls = message.get("tool_calls")
        if not calls:
            return message["content"]
        results = [(await files.dispatch(each)).message() for each in calls]
        history += keep(message, results)


# %% [markdown]
# Every row but the last forgets something. The provider refuses, or the model says what it cannot see:

# %%
FORGETS = {
    "to send the tools": ([], lambda message, results: [message, *results]),
    "the model's message": (files.specs(), lambda message, results: results),
    "the results": (files.specs(), lambda message, results: [message]),
    "both of them": (files.specs(), lambda message, results: []),
    "nothing": (files.specs(), lambda message, results: [message, *results]),
}
rows = []
for what, (tools, keep) in FORGETS.items():
    try:
        rows.append((what, await ten_lines(tools, keep)))
    except ProviderRefused as refused:
        rows.append((what, f"{refused.status}: {refused.body['error']['message']}"))
draw.table(rows, head=("the loop forgets", "what comes of it"))


# %% [markdown]
# The other fault makes no noise: **an error text that leads nowhere.** This model is a script that does what a small
# model would: where the error names a file, it tries that one; where it does not, it tries the same again.

# %%
def small_model(request):
    told = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if told and "Bob" in told[-1]:
        return "You still have to call Bob."
    named = re.search(r"\w+/\w+\.txt", told[-1]) if told else None
    path = named[0] if named else "todo.txt"
    return assistant("", call(f"call_{len(told) + 1}", "read_file", path=path))


def reader(complaint):
    registry = Registry()

    @registry.tool(read_only=True)
    def read_file(path: str) -> str:
        """Read one text file."""
        if path != "notes/todo.txt":
            raise ToolError(complaint)
        return "[ ] call Bob"

    return registry


rows = []
left = [user("What is left to do?")]
for text in "Error: -1", "There is no file todo.txt. Did you mean notes/todo.txt?":
    turn = await run_turn(left, Simulator(small_model).client(), reader(text)).run()
    calls = sum(message["role"] == "tool" for message in turn.history)
    rows.append((text, calls, turn.reason, draw.strip(turn.history, width=420)))
draw.table(rows, head=("the tool says", "calls", "how it ended", "the turn"))

# %% [markdown]
# Only one sentence is different. An error text is an interface: somebody reads it and acts on it, so it says what to do
# next.
#
# ## The mechanism
#
# **The registry** holds both what the model is told about a tool and the function that runs. The first is made from the
# second's name, docstring and type hints, so the two cannot drift apart. Of `read_file` above the model is told:

# %%
reader("").specs()

# %% [markdown]
# **Dispatch** takes one call and gives one result. It never raises for what the model did wrong: that becomes text, for
# the model to read. Programs read the *status*, never the wording.

# %%
half = call("call_2", "read_file")
half["function"]["arguments"] = '{"path": "no'
CALLS = {
    "a tool that does not exist": call("call_1", "cat", path="notes/todo.txt"),
    "half the JSON": half,
    "a wrong argument": call("call_3", "read_file", file="notes/todo.txt"),
    "a wrong path": call("call_4", "read_file", path="notes/tofo.txt"),
    "a path out of the folder": call("call_5", "list_dir", path="../.."),
    "an edit that fits nowhere": call("call_6", "edit_file", path="notes/todo.txt", old_string="Rob", new_string="Eve"),
    "a good call": call("call_7", "list_dir", path="notes"),
}
rows = []
for what, each in CALLS.items():
    result = await files.dispatch(each, policy=Policy(default="allow"))
    rows.append((what, result.status, result.output))
draw.table(rows, head=("the model sends", "status", "what it reads"))

# %%
source(Registry.dispatch, fold="Source", docstring=False)

# %% [markdown]
# **The loop** is the ten lines from above, and room for what later chapters bring: [Stop and repair](04_interrupt.ipynb),
# and *hooks*, the places where [other mechanisms](12_agent.ipynb) reach in. It knows no tool by name.

# %%
source(loop._steps, fold="Source")

# %% [markdown]
# **The watchdog** looks at every step's results. A step is *progress* when one of its calls completed that had not
# completed before with the same input. Progress earns more steps; the same call again, the same failure again, or nothing
# new is a reason to stop. The first time, the model gets a **nudge**, a message; the second time the turn ends.

# %%
source(LoopBudget._reason)


# %% [markdown]
# ## Turn the knob
#
# Here is a session that goes in circles, in 18 steps, written for this page: an edit that does not fit (an `O` for a `0`),
# then a test that keeps failing.

# %%
def did(name, status="completed", **input):
    return [ToolResult("", name, input, status, "")]


typo = did("edit_file", "failed", path="cal.py", old_string="% 4 == O")
red = did("run_shell", "failed", command="make test")
listed = did("list_dir", path="src")
SESSION = [
    did("list_dir", path="."),
    did("read_file", path="test_cal.py"),
    *[typo] * 4,
    did("read_file", path="cal.py"),
    did("edit_file", path="cal.py", old_string="% 4 == 0"),
    *[red] * 4,
    *[listed] * 6,
]


# %%
def replay(budget):
    """What the watchdog says to each step, up to the one that ends the turn."""
    says, nudged = [], False
    for results in SESSION:
        if not budget.can_continue():
            return [*says, f"stop before it: {budget.exhausted().message}"]
        problem = budget.record(results)
        if problem and nudged:
            return [*says, f"stop: {problem.message}"]
        says.append(f"nudge: {problem.message}" if problem else "")
        nudged = nudged or problem is not None
    return says


COLOURS = {"nudge": "#f3c35b", "stop ": "#ee8f86", "stop:": "#ee8f86"}


def view(**thresholds):
    rows = []
    for step, ([result], says) in enumerate(zip_longest(SESSION, replay(LoopBudget(**thresholds))), 1):
        asked = f"{result.name} {' '.join(result.input.values())}"
        status = "never run" if says is None else result.status
        colour = COLOURS.get((says or "")[:5])
        look = f"background-color:{colour};color:#1b1b1b;padding:1px 6px" if colour else None
        rows.append((step, asked, status, draw.element("span", says or "", style=look)))
    return draw.table(rows, head=("step", "the model called", "status", "the watchdog"), limit=99)


DEFAULTS = {"repeated_failures": 3, "repeated_calls": 4, "idle_steps": 6, "base_steps": 12}
knob = explore(view, repeated_failures=(2, 8), repeated_calls=(2, 8), idle_steps=(2, 12), base_steps=(4, 16))
knob.set(**DEFAULTS)

# %%
SETTINGS = {
    "nervous": {"repeated_failures": 2, "repeated_calls": 2},
    "patient": {"repeated_failures": 8, "repeated_calls": 8, "idle_steps": 12},
    "few steps": {"base_steps": 4, "repeated_failures": 8},
    "the defaults": {},
}
for name, thresholds in SETTINGS.items():
    print(name)
    knob.set(**DEFAULTS | thresholds)
    for step, says in enumerate(replay(LoopBudget(**knob.values)), 1):
        if says:
            print(f"    step {step}: {says}")

# %% [markdown]
# Nervous is wrong, too: a test may well fail twice. (What such a list cannot show: after a nudge, a real model might have
# gone another way.)
#
# And a session that *works*? This one is real: 62 messages between a person and an agent that books flights. There the
# watchdog should stay silent:

# %%
recorded = json.loads(data("sessions", "airline_chat.json").read_text())
calls = [each["function"] for message in recorded for each in message.get("tool_calls") or []]
steps = [did(each["name"], **json.loads(each["arguments"])) for each in calls]

for name, thresholds in {"nervous": SETTINGS["nervous"], "the defaults": {}}.items():
    budget = LoopBudget(**DEFAULTS | thresholds)
    said = [problem.message for results in steps if (problem := budget.record(results))]
    print(f"{name}: {len(steps)} steps, {said or 'nothing to say'}")


# %% [markdown]
# ## In the loop
#
# A model that makes the same call for ever and does not listen, and a watchdog with less patience than usual:

# %%
def stuck(request):
    done = sum(message["role"] == "tool" for message in request["messages"])
    return assistant("", call(f"call_{done + 1}", "list_dir", path="notes"))


budget = LoopBudget(repeated_calls=2)
turn = await stream(run_turn(ask, Simulator(stuck).client(), files, budget=budget))

# %%
for message in turn.history:
    if message.get("origin") == "watchdog":
        print("nudge:", message["content"])
draw.strip(turn.history)


# %% [markdown]
# The blue message in the middle is the nudge: to the provider it comes from the user, and only our own key `origin`, which
# is not sent, tells that no person wrote it. Another model listens, and one sentence is enough:

# %%
def listens(request):
    last = request["messages"][-1]
    nudged = last["role"] == "user" and last != ask[0]
    return "I have seen it all: done.txt and todo.txt." if nudged else stuck(request)


turn = await run_turn(ask, Simulator(listens).client(), files).run()
print(turn.reason, "|", turn.history[-1]["content"])

# %% [markdown]
# ### Who may do what
#
# Between the call and the tool's function stands the *policy*. By default reading is allowed and everything else is asked
# about; here nobody is there to be asked, so the answer is no.

# %%
cleaning = [
    assistant("I read it, and tidy up.", call("call_1", "read_file", path="notes/done.txt")),
    assistant("", call("call_2", "write_file", path="notes/done.txt", content="")),
    "That is all that I could do.",
]
rows = []
for name, policy in ("the default", Policy()), ("may write", Policy({"write_file": "allow"})):
    async for event in run_turn([user("Tidy up.")], Simulator(cleaning).client(), files, policy=policy):
        if isinstance(event, loop.Finished):
            rows.append((name, event.result.name, event.result.status, event.result.output.splitlines()[0]))
draw.table(rows, head=("policy", "tool", "status", "what the model reads"))


# %% [markdown]
# ## Your turn
#
# Write the function behind `list_dir`. It gets the root, a `Path`, and the path that the model gave. It returns text: how
# many folders and files there are, then a line for each, folders marked, files with their bytes. An empty folder is said
# in words. For what cannot be listed it raises `ToolError`, whose text names the path and says what to do instead. This
# one looks right, and is not yet.

# %%
def my_list_dir(root, path):
    lines = []
    for entry in sorted((root / path).iterdir()):
        size = f"  {entry.stat().st_size} bytes"
        lines.append(entry.name + ("/" if entry.is_dir() else size))
    return "\n".join(lines)


# %%
check.list_dir(my_list_dir)

# %% [markdown]
# The last part is no test case: your function **served a running agent**, and those are the model's words. Stuck? There
# are three hints, and a solution.

# %%
# check.list_dir.hint(1)

# %%
source(check.list_dir.solution, fold="One solution")

# %%
check.list_dir(check.list_dir.solution)

# %% [markdown]
# **Then your code runs the agent.** Put `my_list_dir` in here and watch it work:

# %%
turn = await stream(check.list_dir.turn(check.list_dir.solution))

# %% [markdown]
# **Think.** The model asked for `fruits`, which is not there. Would it not be kinder to return the text, with status
# `completed`, and raise nothing?
#
# <details><summary>An answer</summary>
#
# The model would read the same. But the watchdog would see a call that completed, and take it for progress; a log would
# show no failure; and a program that wants to know would have to search the words. Words are for the model, the status
# is for the program.
#
# </details>
#
# **Think.** Why does the watchdog not look at outputs? The same output twice is surely no progress.
#
# <details><summary>An answer</summary>
#
# Three uploads may all say `true`, and all three were work. And a status that is asked for again and again may show another
# time of day each time, and be a circle all the same. Name and input say what the model *wanted*.
#
# </details>
#
# ## In real products
#
# <details><summary>When products stop a loop, and what was reported in the field</summary>
#
# | product | what it does |
# |---|---|
# | OpenHands | the same call and result 4 times, the same call failing 3 times, two calls in turn 6 times: the run is halted ([stuck detector](https://docs.openhands.dev/sdk/guides/agent-stuck-detector)) |
# | Gemini CLI | the same call 5 times in a row; after 30 turns a model is asked, too, whether there is progress ([`loopDetectionService.ts`](https://github.com/google-gemini/gemini-cli/blob/main/packages/core/src/services/loopDetectionService.ts)) |
# | opencode | a repeated call becomes a question of permission, `doom_loop`, which the settings can deny ([4095](https://github.com/anomalyco/opencode/pull/4095)) |
# | OpenRouter's agent SDK | off by default; five equal calls in *one* step count once, other calls in between do not reset it ([doom-loop detection](https://openrouter.ai/docs/agent-sdk/call-model/doom-loop-detection)) |
# | LangGraph | a limit only: `GraphRecursionError` after 25 steps, unless set otherwise ([reference](https://reference.langchain.com/python/langgraph-sdk/schema/Config/recursion_limit)) |
#
# | fault | reported in |
# |---|---|
# | only *failing* calls counted: 63 equal calls that all succeed | [wisp-science 395](https://github.com/xuzhougeng/wisp-science/pull/395) |
# | only outputs compared: three different uploads taken for a loop | [pydantic-deepagents 208](https://github.com/vstorm-co/pydantic-deepagents/issues/208) |
# | the question answered yes by a machine: 10,943 calls in a headless run | [altimate-code 657](https://github.com/AltimateAI/altimate-code/issues/657) |
# | no watchdog: `ls` 6 times, `ls -la` 5 times | [pi 6158](https://github.com/earendil-works/pi/issues/6158) |
# | an empty folder gives an empty text: the model does not believe it | [docker-agent 3912](https://github.com/docker/docker-agent/pull/3912) |
# | a missing folder reads like "nothing found": the model tries again | [gaia 3575](https://github.com/amd/gaia/issues/3575) |
#
# </details>
#
# ## Go live
#
# The same loop and tools on your own server; it may only read. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you start
# JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    await stream(run_turn([user("What is left to do? Look into notes.")], ChatClient.from_env(), files))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [Tool output](02_spill.ipynb), which can be larger than all that a model can read.
