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
# # Interrupt: stop, repair, steer
#
# ← [The stream](03_stream.ipynb) · modules: `interrupt`, `pairing`, `steer`
#
# **The problem.** The model asked for two tools. Your program runs them one after the other, and somebody presses Stop in
# between. One [tool call](../docs/GLOSSARY.md) now has its result, the other never will, and the provider refuses such a
# conversation for good.

# %%
import asyncio
import inspect
import json
import os
import subprocess
import sys

import psutil

from agentlab import check, draw, pairing
from agentlab.agent import Agent
from agentlab.assemble import Assembler
from agentlab.errors import PairingError
from agentlab.loop import Called, Finished
from agentlab.messages import assistant, call, tool, user, wire
from agentlab.notebook import source
from agentlab.pairing import repair
from agentlab.permissions import Policy
from agentlab.provider import ChatClient, ProviderRefused
from agentlab.simulator import Simulator
from agentlab.sse import json_events
from agentlab.tools import Registry
from agentlab.widgets import chat, explore, stream
from agentlab.workspace import Workspace

# %%
asks = assistant(
    "First the tests.",
    call("call_test", "run_shell", command="make test"),
    call("call_read", "read_file", path="README.md"),
)
torn = [user("Run the tests, and look at the README."), asks, tool("call_test", "1 failed, 41 passed")]
draw.strip(torn, caption="after Stop")


# %% [markdown]
# The `?` stands under the message with the call that has no result.
#
# ## Break it
#
# Send it as it is, and go on talking. The offline provider can play three vendors, and refuses in the words of each:

# %%
async def answer_to(history, dialect="openai"):
    client = Simulator(["Hello again!"], dialect=dialect).client()
    try:
        return (await client.complete(history))["content"]
    except ProviderRefused as refused:
        return f"{refused.status}: {refused.body['error']['message']}"


go_on = user("go on")
for dialect in "openai", "deepseek", "anthropic":
    print(f"{dialect} {await answer_to([*torn, go_on], dialect)}\n")

# %% [markdown]
# Had Stop fallen a little earlier, while the second call's arguments were still streaming, there would be one fault more:

# %%
half = call("call_read", "read_file")
half["function"]["arguments"] = '{"path": "READ'
cut = [torn[0], assistant("First the tests.", asks["tool_calls"][0], half), torn[2]]
print(await answer_to([*cut, go_on]))

# %% [markdown]
# There are three ways out. The first makes the model forget what you have seen, and the second is refused:

# %%
ways = {
    "throw the half message away": [torn[0]],
    "send it as it is": torn,
    "keep it, fill what is missing": repair(torn).history,
}
rows = []
for way, history in ways.items():
    says, knows = await answer_to([*history, go_on]), "1 failed" in json.dumps(history)
    rows.append((way, says.split(":")[0], "yes" if knows else "no: only you do"))
draw.table(rows, head=("way out", "the provider says", "does the model know that a test failed?"))

# %% [markdown]
# ## The mechanism
#
# First find what is wrong. A result counts only *behind* its call and before the next assistant message. Comparing sets of
# ids is not enough: some servers use the same id again and again.

# %%
for problem in pairing.problems(cut):
    print(problem.sentence)

# %% [markdown]
# Then **repair** it: one result for every call, in call order, straight behind the call. Anything else, such as your next
# words, comes after the results. Arguments that were cut short become `{}`, since nobody guesses the rest.

# %%
mended = repair(cut)
print("arguments:", mended.history[1]["tool_calls"][1]["function"]["arguments"])
print(json.dumps(mended.history[3], indent=1))
print("the provider says:", await answer_to([*mended.history, go_on]))
print("twice is once:", repair(mended.history).history == mended.history)
mended

# %% [markdown]
# `origin` marks what neither a person nor a tool wrote. It stays in your program and is never sent. The code that puts
# the results of one assistant message in order:

# %%
source(pairing._Reading.send_results, fold="Source")


# %% [markdown]
# ### What products do
#
# They do not agree. Here are four ways in a few lines each (the products do more), tried on the history from above. Four
# things the model should learn; the last column counts them, and the second exercise below is about them.

# %%
def refuse(history):
    pairing.require(history)


def delete(history):
    has_result = {message["tool_call_id"] for message in history if message["role"] == "tool"}
    for message in history:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [call for call in calls if call["id"] in has_result]}
        yield message


def aborted(history):
    for message in repair(history).history:
        yield {**message, "content": "aborted"} if message.get("origin") == "repair" else message


def interrupted(history):
    return repair(history).history


# %%
PRODUCTS = {refuse: "LangGraph", delete: "goose", aborted: "codex", interrupted: "pydantic-ai, agentlab"}
rows = []
for way, product in PRODUCTS.items():
    try:
        sent = list(way([*torn, go_on]))
        note = next((message["content"] for message in sent if message.get("tool_call_id") == "call_read"), "")
        told = sum(finding.passed for finding in check.wording(note).findings)
        rows.append((way.__name__, product, await answer_to(sent), note or "(the call is gone, too)", told))
    except PairingError:
        rows.append((way.__name__, product, "(no request goes out)", "(an exception)", 0))
draw.table(rows, head=("way", "product", "the provider says", "the model reads, in the place of the result", "of 4"))

# %% [markdown]
# To refuse is right while you develop, since it shows you the bug. For the person in front of it, the last way loses
# least.
#
# ## Turn the knob
#
# *Where* does Stop fall? Here is a recorded turn: text and two calls in small pieces, then two results. Move the cut.

# %%
request = {"model": "m", "messages": [torn[0]], "stream": True, "tools": Registry(Workspace(".").tools()).specs()}
events = list(json_events(Simulator([asks]).respond(request).chunks))
results = [torn[2], tool("call_read", "# A small project")]
last = len(events) + len(results)


def stopped_at(position):
    assembler = Assembler()
    for event in events[:position]:
        assembler.feed(event)
    return [torn[0], assembler.message(), *results[: max(0, position - len(events))]]


def accepted(history):
    return Simulator(["ok"]).respond({"model": "m", "messages": wire(history)}).status == 200


# %%
def newest(history):
    """What the assistant message ends with: the arguments of its last call, or its text."""
    if len(history) < 2:
        return "(nothing)"
    calls = history[1].get("tool_calls")
    return calls[-1]["function"]["arguments"] or "''" if calls else history[1]["content"] or "''"


def side(history, fates=None):
    verdict = "accepted" if accepted(history) else "refused"
    return draw.strip(history, fates=fates, caption=f"{verdict}: {newest(history)}")


def view(stop_at):
    before = stopped_at(stop_at)
    after = repair(before).history
    fates = ["repaired" if "origin" in message else "kept" for message in after]
    return draw.columns(side(before), side(after, fates), heads=("as Stop left it", "repaired"))


knob = explore(view, stop_at=(0, last))
knob.set(stop_at=18)

# %%
places = [stopped_at(position) for position in range(last + 1)]
print(f"{len(places)} places to stop at")
print(f"{sum(map(accepted, places))} leave a history that the provider accepts")
print(f"{sum(accepted(repair(history).history) for history in places)} do so after repair")
for position in 3, last, 18:
    knob.set(stop_at=position)
    print(f"{position:2} | {newest(places[position])} -> {newest(repair(places[position]).history)}")

# %% [markdown]
# ## In the loop
#
# Stop must reach whatever is waiting: a stream, a connection being made, a tool. The cell presses its own
# **Stop** button after the 12th piece of text; take `click_after` away, and press it yourself.

# %%
slow = Simulator(pace=0.02)
agent = Agent(slow.client())
turn = await stream(agent.send("count to 500"), click_after=12)
noticed = [hangup.produced < hangup.total for hangup in slow.hangups]
print("the provider noticed, and stopped too:", noticed == [True])

# %% [markdown]
# (In a terminal there is no button. `with ctrl_c(turn.stop):` lets the first Ctrl+C press Stop, and the second leave.)
#
# Now a tool. Two commands would sleep for an hour each; Stop is pressed when the first one has started.

# %%
sleep = f"sleep 3600.{os.getpid()}"
calls = [call(id, "run_shell", command=f"{sleep} & {sleep}") for id in ("call_1", "call_2")]
shell = Registry(Workspace(".").tools())
long_job = Simulator([assistant("This takes a while.", *calls)])
agent = Agent(long_job.client(), shell, policy=Policy(default="allow"))  # this once, everything may run

turn = agent.send("Do the long job.")
async for event in turn:
    if isinstance(event, Called):
        asyncio.get_running_loop().call_later(0.3, turn.stop.request)
    if isinstance(event, Finished):
        print(event.result.call_id, event.result.status)
commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
print("the turn:", turn.reason, "| commands still running:", commands.count(sleep.split()))
draw.table([(message["tool_call_id"], message["content"]) for message in agent.history[-2:]], head=("call", "its result"))

# %% [markdown]
# Two notes, and both are true: the first command may have done something, the second never ran. Nothing that the first
# one started is left, not even the `sleep` in the background.
#
# ### Steering: words slipped in
#
# Often Stop is too much, and you only want to add a word. Between a call and its result a user message is refused. So
# your words wait in a queue, and go in behind the last result of the batch (the calls of one message).

# %%
both = Registry()


@both.tool(read_only=True)
def look(folder: str) -> str:
    """What a folder holds."""
    return f"{folder}: 12 files"


asks_both = assistant("I look at both.", call("call_1", "look", folder="src"), call("call_2", "look", folder="tests"))
agent = Agent(Simulator([asks_both, "Only the tests, then."]).client(), both)
turn = agent.send("Tidy up the project.")
async for event in turn:
    if isinstance(event, Called) and event.call["id"] == "call_1":
        agent.steer.put("Only the tests, please.")
draw.strip(turn.history)

# %% [markdown]
# A chat panel does the same with what you type. Here the cell types: more words while the first answer still runs. Now
# you: send `count to 100`, and while it counts `say Thank you`. Then send `count to 500`, and press **Stop**.

# %%
agent = Agent(Simulator(pace=0.02).client())
panel = chat(agent)
panel.say("count to 30")
while agent.turn is None:
    await asyncio.sleep(0.01)
panel.say("say Thank you")
await panel.settled()
panel


# %% [markdown]
# ### Why the cells say `await`
#
# The click on Stop is handled by the same event loop that runs the cell. `await` lets it in. Code that cannot `await`
# calls `run_sync`, and pays for it. The second column is measured here (in a child process, since `nested` patches
# asyncio for good): does another task get its turn meanwhile? The last two were seen in a real kernel (ipykernel 7.4).

# %%
async def others_go_on(way):
    other = asyncio.create_task(asyncio.sleep(0.01))
    await asyncio.sleep(0)
    came = way(asyncio.sleep(0.1, "done"))
    if came != "done":
        await came
    return "yes" if other.done() else "no"


WAYS = {
    "await work": "lambda work: work",
    "asyncio.create_task(work)": "asyncio.create_task",
    "run_sync(work)": "run_sync",
    'run_sync(work, how="nested")': 'lambda work: run_sync(work, how="nested")',
}
script = f"import asyncio\nfrom agentlab.widgets import run_sync\n{inspect.getsource(others_go_on)}"
script += "".join(f"\nprint(asyncio.run(others_go_on({way})))" for way in WAYS.values())
child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

STOP = ["yes", "yes", "no: the click waits until the cell has ended", "no"]
INTERRUPT = ["yes", "no: its cell has ended", "yes", "ends the cell; the work is never told"]
rows = zip(WAYS, child.stdout.split(), STOP, INTERRUPT, strict=True)
draw.table(rows, head=("way", "others go on", "a Stop button works", "the kernel's Interrupt (■) works"))


# %% [markdown]
# ## Your turn
#
# **One: repair.** This function looks right, and is wrong in several ways. Run the check, read what it says, mend the
# function, and run it again.

# %%
def my_repair(history):
    has_result = {message["tool_call_id"] for message in history if message["role"] == "tool"}
    repaired = []
    for message in history:
        repaired.append(message)
        for call in message.get("tool_calls", []):
            if call["id"] not in has_result:
                repaired.append(tool(call["id"], pairing.INTERRUPT_NOTE))
    return repaired


check.repair(my_repair)

# %% [markdown]
# "In the live loop" is no test case: your function **repaired for a running agent**, and those are the provider's words.
# Stuck? There are three hints, and a solution. (It leaves one of the bonus cases open, too.)

# %%
# check.repair.hint(1)

# %%
source(check.repair.solution, fold="One solution")

# %% [markdown]
# **Then your code runs the agent.** This is the solution at work. Put `my_repair` in its place and watch:

# %%
turn = await stream(check.repair.turn(check.repair.solution))

# %% [markdown]
# **Think.** The loop repairs before *every* request, not once when Stop is pressed. Why?
#
# <details><summary>An answer</summary>
#
# Stop is not the only way to tear a history: a crash never reaches the code behind Stop, and a session comes back from
# disk, or is pasted in. Before the request there is one place for all of them. It costs next to nothing, and it may run
# again and again: what is repaired already stays the same, byte for byte.
#
# </details>
#
# **Two: the note.** What does the model read in the place of a result, when the call never started? Write it in English
# or Chinese.

# %%
my_note = "The tool failed: aborted by the user."
check.wording(my_note)

# %%
# check.wording.hint(1)

# %% [markdown]
# <details><summary>One solution</summary>
#
# > Interrupted before it started: this call did not run. That is no error, and it may be called again.
#
# > 调用开始之前，用户中断了本轮：该工具没有运行。这不是错误，需要时可以再次调用。
#
# </details>

# %%
turn = await stream(check.wording.turn(check.wording.solution))


# %% [markdown]
# **Think.** Suppose the call *was* running when Stop was pressed, and was sending mails. Which of the four statements are
# false now?
#
# <details><summary>An answer</summary>
#
# "It did not run", and with it "it may be called again": half of the mails may be out, and a second run sends them twice.
# That is why there are two notes. The other one says that the effects are unknown, and that one must look before repeating.
#
# </details>
#
# **Three: steering.** Tools are running, and the person types. Where do the words go? Here they go in at once:

# %%
def my_steering(history, results, words):
    """`history` ends with the assistant message; `results` are those of its calls; `words` were typed meanwhile."""
    return [*history, *[user(word) for word in words], *results]


check.steering(my_steering)

# %%
# check.steering.hint(1)

# %%
source(check.steering.solution, fold="One solution")

# %%
turn = await stream(check.steering.turn(check.steering.solution))

# %% [markdown]
# **Think.** Why is it safer behind the results than *before* the call? No provider refuses that:

# %%
call_1, word = assistant("", call("call_1", "list_dir")), user("Only the tests, please.")
print(await answer_to([user("Tidy up."), word, call_1, tool("call_1", "src tests")]))

# %% [markdown]
# <details><summary>An answer</summary>
#
# It is accepted, and false. The model reads that you had said it *before* it made the call, and that it did not care.
# Besides, the middle of what was sent before has changed, so the [prompt cache](../docs/GLOSSARY.md) is lost from there
# on. Behind the results, the history only grows at its end, and your words are the last thing that the model reads.
#
# </details>
#
# **Think.** When is Stop better, although it throws work away?
#
# <details><summary>An answer</summary>
#
# When what is running does harm, or takes long: queued words change nothing before the batch has ended. And when your
# words make the rest of the batch pointless, for it will run all the same.
#
# </details>
#
# ## In real products
#
# <details><summary>What products do with an unpaired call, and what was reported in the field</summary>
#
# | product | what it does |
# |---|---|
# | LangGraph | refuses: INVALID_CHAT_HISTORY. It compares sets of ids, calls against results: orphans and order are not seen ([`_validate_chat_history`](https://github.com/langchain-ai/langgraph/blob/main/libs/prebuilt/langgraph/prebuilt/chat_agent_executor.py)) |
# | goose | deletes, in seven passes over the history, and returns a list of what it did ([`conversation/mod.rs`](https://github.com/aaif-goose/goose/blob/main/crates/goose/src/conversation/mod.rs)) |
# | codex | puts `aborted` right behind the call, the same bytes each time; drops orphans; strict builds panic instead ([`normalize.rs`](https://github.com/openai/codex/blob/main/codex-rs/core/src/context_manager/normalize.rs)) |
# | pydantic-ai | puts an interrupted result with metadata; walks in order, so an early or second result hides no gap ([`_agent_graph.py`](https://github.com/pydantic/pydantic-ai/blob/main/pydantic_ai_slim/pydantic_ai/_agent_graph.py)) |
# | pi | steering: the running tool ends, the remaining calls get error results, then the words go in ([pi](https://github.com/earendil-works/pi)) |
#
# | fault | reported in |
# |---|---|
# | Stop between two calls: 400 for ever | [codex 394](https://github.com/openai/codex/issues/394), [claude-code 3003](https://github.com/anthropics/claude-code/issues/3003), [kimi-code 269](https://github.com/MoonshotAI/kimi-code/issues/269), [goose 1624](https://github.com/aaif-goose/goose/issues/1624) |
# | Stop inside the arguments: half JSON is saved | [agentscope 2469](https://github.com/agentscope-ai/agentscope/issues/2469) |
# | words, or a reminder, between call and result | [software-agent-sdk 1841](https://github.com/OpenHands/software-agent-sdk/issues/1841), [learn-claude-code 55](https://github.com/shareAI-lab/learn-claude-code/issues/55) |
# | a placeholder, and the real result later: two for one call | [CLIProxyAPI 4998](https://github.com/router-for-me/CLIProxyAPI/issues/4998) |
# | a killed call: the model is told that it never ran | [claude-code 86001](https://github.com/anthropics/claude-code/issues/86001) |
# | the turn ends, its shell command goes on | [nanobot 2765](https://github.com/HKUDS/nanobot/issues/2765) |
# | `asyncio.run` in a notebook, where a loop runs already | [pydantic-ai 144](https://github.com/pydantic/pydantic-ai/issues/144) |
# | a button that does nothing while the cell runs | [ipykernel 65](https://github.com/ipython/ipykernel/issues/65) |
#
# Mistral and Gemini refuse, too: `Not the same number of function calls and responses` (code 3230); `Please ensure that
# the number of function response parts is equal to the number of function call parts of the function call turn.`
#
# </details>
#
# ## Go live
#
# The same on your own server: stopped in the middle, and it goes on. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you
# start JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    agent = Agent(ChatClient.from_env())
    await stream(agent.send("Count from one to a hundred, in words."), click_after=20)
    await stream(agent.send("Where did I stop you? Answer in one sentence."))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [Compaction](05_compaction.ipynb), where a conversation gets too long for the model, and keeps its task.
