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
# **The problem.** The model asked for two tools; your program runs them, one after the other, and somebody presses Stop in
# between. One tool call has its result, the other never will, and the provider refuses such a conversation for good.

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
torn = [
    user("Run the tests, and look at the README."),
    assistant(
        "First the tests.",
        call("call_test", "run_shell", command="make test"),
        call("call_read", "read_file", path="README.md"),
    ),
    tool("call_test", "1 failed, 41 passed"),
]
draw.strip(torn, caption="after Stop")


# %% [markdown]
# The `?` stands under the call that has no result.
#
# ## Break it
#
# Send it like that, and go on talking. Three providers, three refusals, in their own words:

# %%
async def answer_to(history, dialect="openai"):
    client = Simulator(["Hello again!"], dialect=dialect).client()
    try:
        return (await client.complete(history))["content"]
    except ProviderRefused as refused:
        return f"{refused.status}: {refused.body['error']['message']}"


for dialect in "openai", "deepseek", "anthropic":
    print(f"{dialect} {await answer_to([*torn, user('go on')], dialect)}\n")

# %% [markdown]
# Had Stop fallen a little earlier, inside the arguments of the second call, there would be one refusal more:

# %%
half = call("call_read", "read_file")
half["function"]["arguments"] = '{"path": "READ'
cut = [torn[0], assistant("First the tests.", torn[1]["tool_calls"][0], half), torn[2]]
print(await answer_to([*cut, user("go on")]))

# %% [markdown]
# There are three ways out. The first makes the model forget what you have seen, the second is refused:

# %%
ways = {
    "throw the half message away": [torn[0]],
    "send it as it is": torn,
    "keep it, fill what is missing": repair(torn).history,
}
rows = []
for way, history in ways.items():
    says, knows = await answer_to([*history, user("go on")]), "1 failed" in json.dumps(history)
    rows.append((way, says.split(":")[0], "yes" if knows else "no: only you do"))
draw.table(rows, head=("way out", "the provider says", "does the model know that a test failed?"))

# %% [markdown]
# ## The mechanism
#
# First, see what is wrong. A result counts only *behind* its call and before the next assistant message. A set of ids is
# not enough: some servers use the same id again and again.

# %%
for problem in pairing.problems(cut):
    print(problem.sentence)

# %% [markdown]
# Then repair it: one result for every call, in call order, straight behind the call. `origin` says that no person and no
# tool wrote it; it is not sent. Arguments that were cut short become `{}`: nobody guesses the rest.

# %%
mended = repair(cut)
for message in mended.history[1:]:
    print(json.dumps(message, indent=1))

# %%
print("twice is once:", repair(mended.history).history == mended.history)
print("the provider says:", await answer_to([*mended.history, user("go on")]))
mended

# %% [markdown]
# The rules, as the module gives them, and the code that puts one window in order:

# %%
print(pairing.__doc__.split("How a history is read:")[1].split("Placeholders are known")[0].strip())
source(pairing._Reading.send_results, fold="Source")

# %% [markdown]
# ### Two truths
#
# The note in the place of a result is all that the model learns, so it must be true. A call that never started *did not
# run*. A call that was killed may have done anything:

# %%
draw.table(
    [("never started", pairing.INTERRUPT_NOTE), ("had started", pairing.UNKNOWN_NOTE)],
    head=("the call", "what the model reads"),
)


# %% [markdown]
# ### Four policies
#
# Products do not agree on what to do. Here are four policies in a few lines each (the products do more), on one history:
# Stop fell between two tools. The last column counts what the second exercise below asks of a note.

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
    has_result = {message["tool_call_id"] for message in history if message["role"] == "tool"}
    for message in history:
        yield message
        for each in message.get("tool_calls", []):
            if each["id"] not in has_result:
                yield tool(each["id"], "aborted")


def interrupted(history):
    return repair(history).history


# %%
stopped = [*torn, user("go on")]


def learns(sent):
    if not any(call["id"] == "call_read" for call in sent[1]["tool_calls"]):
        return "nothing: it forgets that it wanted the README"
    note = next(message["content"] for message in sent if message.get("tool_call_id") == "call_read")
    return f"{sum(finding.passed for finding in check.wording(note).findings)} of 4 things to know"


PRODUCTS = {refuse: "LangGraph", delete: "goose", aborted: "codex", interrupted: "pydantic-ai, agentlab"}
rows = []
for policy, product in PRODUCTS.items():
    name = f"{policy.__name__} ({product})"
    try:
        sent = list(policy(stopped))
        rows.append((name, draw.strip(sent), await answer_to(sent), learns(sent)))
    except PairingError as error:
        rows.append((name, f"PairingError: {error}".split(" This is")[0], "", "nothing: no request goes out"))
draw.table(rows, head=("policy", "what is sent", "the provider says", "what the model learns about call_read"))

# %% [markdown]
# To refuse is right while you develop: it shows you the bug. For the person in front of it, the last one loses least.
# (The four things are the second exercise below.)
#
# ## Turn the knob
#
# *Where* does Stop fall? Here is a recorded turn: text and two calls in small pieces, then two results. Move the cut.

# %%
reply = assistant(
    "I run the tests and read the README.",
    call("call_test", "run_shell", command="make test"),
    call("call_read", "read_file", path="README.md"),
)
request = {"model": "m", "messages": [torn[0]], "stream": True, "tools": Registry(Workspace(".").tools()).specs()}
events = list(json_events(Simulator([reply]).respond(request).chunks))
results = [tool("call_test", "1 failed, 41 passed"), tool("call_read", "# A small project")]
last = len(events) + len(results)


def stopped_at(position):
    assembler = Assembler()
    for event in events[:position]:
        assembler.feed(event)
    return [torn[0], assembler.message(), *results[: max(0, position - len(events))]]


def accepted(history):
    return Simulator(["ok"]).respond({"model": "m", "messages": wire(history)}).status == 200


# %%
def told(history):
    message = history[1] if len(history) > 1 else {"content": "(an empty message: dropped)"}
    calls = [f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls", [])]
    return [line for line in [message["content"], *calls] if line]


def lines(history):
    return draw.element("div", "\n".join(told(history)), style="white-space:pre-wrap;min-height:4.5em")


def view(stop_at):
    before = stopped_at(stop_at)
    after = repair(before).history
    fates = ["repaired" if "origin" in message else "kept" for message in after]
    return draw.columns(
        draw.html(f"the provider accepts it: {'yes' if accepted(before) else 'no'}", draw.strip(before), lines(before)),
        draw.html(f"the provider accepts it: {'yes' if accepted(after) else 'no'}", draw.strip(after, fates=fates), lines(after)),
        heads=("as Stop left it", "repaired"),
    )


knob = explore(view, stop_at=(0, last))
knob.set(stop_at=23)

# %%
places = [stopped_at(position) for position in range(last + 1)]
print(f"{len(places)} places to stop at")
print(f"{sum(map(accepted, places))} leave a history that the provider accepts")
print(f"{sum(accepted(repair(history).history) for history in places)} do so after repair")
for position in 9, 18, last, 23:
    knob.set(stop_at=position)
    print(f"{position:2} | {told(places[position])[-1]} -> {told(repair(places[position]).history)[-1]}")

# %% [markdown]
# ## In the loop
#
# Stop must reach whatever is waiting: a stream, a connection being made, a tool. Press **Stop** while it counts; left
# alone, the cell presses it after the 12th piece of text.

# %%
slow = Simulator(pace=0.002)
agent = Agent(slow.client())
turn = await stream(agent.send("count to 500"), click_after=12)

# %%
print(turn.reason, "|", turn.history[-1]["content"])
print("the provider noticed, and stopped too:", slow.hangups[0].produced < slow.hangups[0].total)
print((await agent.send("what do you see?").run()).history[-1]["content"])

# %% [markdown]
# (In a terminal there is no button: `with ctrl_c(turn.stop):` makes the first Ctrl+C press Stop, and the second leave.)
#
# Now a tool. Two commands would sleep for an hour; Stop is pressed when the first one has started.

# %%
sleep = f"sleep 3600.{os.getpid()}"
story = [
    assistant("This takes a while.", *[call(id, "run_shell", command=f"{sleep} & {sleep}") for id in ("call_1", "call_2")]),
    "I was stopped in the middle of it. Shall I look what is left?",
]
shell = Registry(Workspace(".").tools())
agent = Agent(Simulator(story).client(), shell, policy=Policy(default="allow"))  # this once, everything may run

turn = agent.send("Do the long job.")
async for event in turn:
    if isinstance(event, Called):
        asyncio.get_running_loop().call_later(0.3, turn.stop.request)
    if isinstance(event, Finished):
        print(event.result.call_id, event.result.status)
print("the turn:", turn.reason)

# %%
commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
print("commands still running:", commands.count(sleep.split()))
draw.table([(message["tool_call_id"], message["content"]) for message in agent.history[-2:]], head=("call", "its result"))

# %% [markdown]
# Both notes are true: the first command may have done something, the second never ran. Nothing that it had started is
# left, not even the `sleep` in the background. And the conversation goes on:

# %%
turn = await stream(agent.send("go on"))

# %% [markdown]
# ### Words slipped in
#
# Often Stop is too much: you only want to add a word. A user message between a call and its result is refused, so words
# wait in a queue, and go in behind the last result of the batch.

# %%
both = Registry()


@both.tool(read_only=True)
def look(folder: str) -> str:
    """What a folder holds."""
    return f"{folder}: 12 files"


steered = [
    assistant("I look at both.", call("call_1", "look", folder="src"), call("call_2", "look", folder="tests")),
    "Only the tests, then.",
]

# %%
agent = Agent(Simulator(steered).client(), both)
turn = agent.send("Tidy up the project.")
async for event in turn:
    if isinstance(event, Called) and event.call["id"] == "call_1":
        agent.steer.put("Only the tests, please.")
draw.strip(turn.history)

# %% [markdown]
# In a panel: what you type while it counts steers the turn, and **Stop** ends it. The cells below type by themselves.

# %%
agent = Agent(Simulator(pace=0.02).client())
panel = chat(agent)
panel

# %%
panel.say("count to 30")
while agent.turn is None:
    await asyncio.sleep(0.01)
first = agent.turn
panel.say("say Thank you")
await panel.settled()
print("still the same turn:", agent.turn is first)
for message in agent.history:
    print(f"{message['role']:9} | {message['content'][:14]}")

# %%
panel.say("count to 1000")
while agent.turn is first or agent.history[-1]["role"] != "assistant":
    await asyncio.sleep(0.01)
panel.stop()
await panel.settled()
print(agent.turn.reason, "| counted to the end:", agent.history[-1]["content"].endswith("1000"))


# %% [markdown]
# ### Why the cells say `await`
#
# A click is work for the same loop that runs the cell. Code that cannot `await` can call `run_sync`, and pays for it.
# Measured here: does a ticking task go on meanwhile? (In a child process: `nested` patches asyncio for good.) The last two
# columns were seen in a real kernel (ipykernel 7.4).

# %%
async def others_go_on(way):
    ticks = []

    async def tick():
        while True:
            await asyncio.sleep(0.01)
            ticks.append(1)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    came = way(asyncio.sleep(0.1, "done"))
    if came != "done":
        await came
    ticking.cancel()
    return "yes" if ticks else "no"


# %%
WAYS = {
    "await work": "lambda work: work",
    "asyncio.create_task(work)": "asyncio.create_task",
    "run_sync(work)": "run_sync",
    'run_sync(work, how="nested")': 'lambda work: run_sync(work, how="nested")',
}
script = f"import asyncio\nfrom agentlab.widgets import run_sync\n{inspect.getsource(others_go_on)}"
for way in WAYS.values():
    script += f"\nprint(asyncio.run(others_go_on({way})))"
child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

STOP = ["yes", "yes", "no: the click waits until the cell has ended", "no"]
INTERRUPT = ["yes", "no: its cell has ended", "yes", "ends the cell; the work is never told"]
rows = zip(WAYS, child.stdout.split(), STOP, INTERRUPT, strict=True)
draw.table(rows, head=("way", "others go on", "a Stop button works", "the kernel's Interrupt (■) works"))


# %% [markdown]
# `tests/test_widgets_kernel.py` repeats the clicks for `await` and a task, and Interrupt for `await` and `run_sync`.
#
# ## Your turn
#
# **One: repair.** This one looks right, and is wrong in several ways. Run the check, read what it says, mend the
# function, run it again.

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


# %%
check.repair(my_repair)

# %% [markdown]
# "In the live loop" is no test case: your function **repaired for a running agent**, and those are the provider's words.
# Stuck? There are three hints, and a solution. (It leaves one bonus case open, too.)

# %%
# check.repair.hint(1)

# %%
source(check.repair.solution, fold="One solution")

# %%
check.repair(check.repair.solution)

# %% [markdown]
# **Then your code runs the agent.** This is the solution at work; put `my_repair` in its place and watch:

# %%
turn = await stream(check.repair.turn(check.repair.solution))

# %% [markdown]
# **Think.** The loop repairs before *every* request, not once when Stop is pressed. Why?
#
# <details><summary>An answer</summary>
#
# Stop is not the only way to tear a history. A crash never reaches the code behind Stop, a session comes back from disk,
# somebody pastes one. Before the request there is one place for all of them. It costs next to nothing, and it may run
# again and again, since twice is once: the same history gives the same bytes.
#
# </details>
#
# **Two: the note.** What does the model read in the place of a result, when the call never started? English or Chinese.

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
check.wording("调用开始之前，用户中断了本轮：该工具没有运行。这不是错误，需要时可以再次调用。")


# %% [markdown]
# **Think.** The call *was* running when Stop was pressed: it was sending mails. Which of the four sentences are false now?
#
# <details><summary>An answer</summary>
#
# "It did not run", and with it "it may be called again": half of the mails may be out, and a second run sends them twice.
# So there are two notes. The other one says that the effects are unknown, and that one must look before repeating.
#
# </details>
#
# **Three: steering.** Tools are running, and the person types. Where do the words go? Here they go in at once:

# %%
def my_steering(history, results, words):
    """`history` ends with the assistant message; `results` are those of its calls; `words` were typed meanwhile."""
    return [*history, *[user(word) for word in words], *results]


# %%
check.steering(my_steering)

# %%
# check.steering.hint(1)

# %%
source(check.steering.solution, fold="One solution")

# %%
check.steering(check.steering.solution)

# %%
turn = await stream(check.steering.turn(check.steering.solution))

# %% [markdown]
# **Think.** Why is behind the results safer than before the call? No provider refuses that:

# %%
call_1, word = assistant("", call("call_1", "list_dir")), user("Only the tests, please.")
print(await answer_to([user("Tidy up."), word, call_1, tool("call_1", "src tests")]))

# %% [markdown]
# <details><summary>An answer</summary>
#
# It is accepted, and false. The model reads that you had said it *before* it made the call, and that it did not care.
# The bytes in the middle of what was sent before have changed, so the prompt cache is lost from there on. Behind the
# results, history only grows at its end, and the words are the last thing that the model reads before it goes on.
#
# </details>
#
# **Think.** When is Stop better, although it throws work away?
#
# <details><summary>An answer</summary>
#
# When what is running does harm, or takes long: queued words change nothing before the batch has ended. And when the
# words make the rest of the batch pointless: it will run all the same.
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
