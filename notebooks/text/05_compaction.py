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
# # Compaction: forget how the work went, never what it is
#
# ← [Interrupt](04_interrupt.ipynb) · modules: `compaction`, `summary`, `branching`, `segments`, `context`
#
# **The problem.** Every request carries the whole conversation, so every request is larger than the one before. One day it
# no longer fits the model's [context window](../docs/GLOSSARY.md). Then something old must go, and what goes first is
# what you asked for.

# %%
import json
import os
import re
import textwrap

from IPython.display import Markdown

from agentlab import check, compaction, draw
from agentlab.agent import Agent
from agentlab.check.compaction_session import TASK, session
from agentlab.compaction import Limits, branch, compact, should_compact, split_index
from agentlab.context import hooks
from agentlab.errors import ContextOverflow
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, user
from agentlab.notebook import data, source
from agentlab.provider import ChatClient, ProviderRefused
from agentlab.segments import SegmentManager
from agentlab.simulator import Fault, Simulator
from agentlab.simulator.tokens import render, tokenize
from agentlab.summary import SUMMARY_PROMPT, last_by_person, summarizer, summary_source, text_size
from agentlab.tools import Registry
from agentlab.widgets import explore, stream

# %% [markdown]
# A real conversation (from tau-bench), in which a person changes a flight. Each column is one request:

# %%
airline = json.loads(data("sessions", "airline_chat.json").read_text())
asked = [at for at, message in enumerate(airline) if message["role"] == "assistant"]
sizes = [len(render([], airline[:at])) for at in asked]
draw.chart({"a request of the session": sizes}, unit="tokens", limit=(8_000, "a window of 8,000"))


# %% [markdown]
# ## Break it
#
# Here is a session of a coding agent, 27 messages, written by us: an old task, then the one that is under way. The last
# words of the person are marked `!`.

# %%
def fates(history, cut=0):
    """What becomes of each message when history[:cut] is summarised."""
    person = last_by_person(history)
    kept = ["pinned" if at == person else "kept" for at in range(len(history))]
    return ["summarised" if at < cut and history[at]["role"] != "system" else kept[at] for at in range(len(history))]


work = session()
print(TASK)
draw.strip(work, fates=fates(work))


# %% [markdown]
# The first idea is to keep **the last few messages**. This model is a script that can only report on what it sees:

# %%
def report(request):
    said = [message["content"] for message in request["messages"] if message["role"] == "user"]
    task = next((text for text in reversed(said) if "formatDate" in text), None)
    return f"I did what you asked: {task}" if task else "The tests pass. What do you want me to do?"


async def answer_to(history):
    try:
        return (await Simulator(report).client().complete(history))["content"]
    except ProviderRefused as refused:
        return f"{refused.status}: {refused.body['error']['message']}"


for keep in 7, 8, 27:
    print(f"the last {keep}: {await answer_to(work[-keep:])}\n")

# %% [markdown]
# Seven cut a result from its call: refused. Eight are accepted, and that is worse: nothing fails, and **the task is gone**.
# While tools run, the newest messages are calls and results; the words of the person stand far in front of them.
#
# So a summary has to stand for what goes. But whoever retells changes something, and a long session is retold many times.
# Some things must come through word for word.
#
# ## The mechanism
#
# **When?** Ask the provider. Each response reports its usage: input and output together are about what the next request
# carries. From 75 % of the window on it is time, since writing the summary needs room, too.

# %%
for prompt, output in (58_000, 1_200), (98_400, 1_800):
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    decision = should_compact(usage, 128_000, message_count=27)
    print("yes:" if decision.compact else "no: ", decision.why)

# %% [markdown]
# **Where?** The cut makes three segments: what is summarised, what is pinned, what is simply kept. It starts at the newest
# messages, is **pulled back to the last words of the person** if that is affordable, and never falls between a call and
# its results:

# %%
source(compaction.split_index, docstring=False)

# %%
cut = split_index(work)
print("the newest 8 begin at", len(work) - 8, "- the cut is at", cut)
draw.strip(work, fates=fates(work, cut))

# %% [markdown]
# `last_by_person` looks at the field `origin`, never at words. An earlier summary and the watchdog's nudge (its warning to
# a model that goes round in circles) have the role `user`, too; pinning one of them would lose the task all the same.
#
# **What stands there instead?** One message with a summary. A script writes it here; a real model gets a prompt that asks
# for five sections.

# %%
FIVE = """1. Task: "How are the tests of this project organised?" Answered.
2. Done: node --test runs everything in tests/.
3. Open: nothing. 4. package.json, tests/. 5. None."""

done = await compact(work, summarize=lambda text: FIVE)
print(len(work), "messages became", len(done.history), "and", done.dropped, "were replaced. The first one now:\n")
print(done.history[0]["content"])
print("\nthe rest is verbatim:", done.history[1:] == work[6:])

# %%
text = f"{SUMMARY_PROMPT}\n\n{summary_source(work[:6])[:220]} [...]"
Markdown(f"<details><summary>SUMMARY_PROMPT</summary>\n\n```text\n{text}\n```\n\n</details>")


# %% [markdown]
# (The fold shows the prompt, and how the old messages are sent: as flat text under headings. Some providers refuse calls
# and results in a request that offers no tools.)
#
# ## Turn the knob
#
# The airline session, stopped where it stands. `so_far` says where; a tool loop may be running there, or not. What stays?

# %%
def view(so_far, keep_recent, max_anchor_chars):
    history = airline[:so_far]
    cut = split_index(history, keep_recent, max_anchor_chars)
    left = text_size(history[cut:]) + text_size(history[:1])
    note = f"the cut is at {cut}: {left:,} of {text_size(history):,} characters stay"
    return draw.strip(history, fates=fates(history, cut), caption=note)


knob = explore(view, so_far=[22, 36, 48, 62], keep_recent=(2, 20), max_anchor_chars=(0, 10_000, 500))
knob.set(so_far=22, keep_recent=8, max_anchor_chars=8_000)

# %%
rows = []
for so_far, keep, limit in (36, 4, 8_000), (62, 8, 8_000), (22, 8, 6_000), (22, 8, 8_000):
    knob.set(so_far=so_far, keep_recent=keep, max_anchor_chars=limit)
    history = airline[:so_far]
    cut, words = split_index(history, keep, limit), last_by_person(history)
    fate = "summarised" if words < cut else "among the newest" if words >= so_far - keep else "pinned"
    rows.append((so_far, keep, limit, cut, f"{words}: {history[words]['content'][:30]}", fate))
head = ("messages", "keep_recent", "max_anchor_chars", "cut at", "the person's last words", "are")
draw.table(rows, head=head)

# %% [markdown]
# With a limit of 6,000 the way back to the words is too far: pinning them would keep nearly everything. Then **code copies
# the words** into the summary message, up to 4,000 characters, whatever the model writes. Our coding session, with a limit
# of 1,000:

# %%
RETOLD = "1. Task: the user is working on date helpers. 2. Done: some edits. 3. Open: tests."
far = await compact(work, summarize=lambda text: RETOLD, max_anchor_chars=1_000)
print("the cut is at", far.kept_from, "\n")
print(far.history[0]["content"].partition("\n\nGo on")[0])

# %% [markdown]
# ## When the summariser fails
#
# The summary is a request, too, and fails like one, and there is no room left to wait. So there is a way that needs no
# model and cannot fail: an **outline**, one line for each message. Here the provider answers 429, too many requests:

# %%
tired = Simulator([Fault(status=429)] * 5).client()
poor = await compact(work, summarize=summarizer(tired))
print("degraded:", poor.degraded, "|", len(poor.history), "messages\n")
for line in poor.summary.split("\n"):
    print(textwrap.shorten(line, 90, placeholder=" [...]"))

# %% [markdown]
# A poor memory is better than a lost session. The same happens when the summariser returns nothing, a tool call, half a
# summary, or one that is longer than what it replaces.
#
# ## Go back
#
# You take back your last words, or go on from an earlier point: a **branch**. The whole transcript is still there. Drop
# the summary and start from the transcript? Then the branch is as long as before, and a new summary must be paid for.
# Keep the summary? Then it may tell what you have just taken back.

# %%
follow_up = user("Now give parseDate the same parameter.")
transcript, seen = [*work, follow_up], [*done.history, follow_up]


def branched(cut):
    taken = ["kept" if at < cut else "dropped" for at in range(len(transcript))]
    timeline = draw.strip(transcript, fates=taken, caption=f"the transcript, cut at {cut}")
    return draw.html(timeline, branch(transcript, seen, cut))


knob = explore(branched, cut=(0, 27))
knob.set(cut=27)

# %%
for cut in 0, 3, 6, 20, 27:
    knob.set(cut=cut)
    found = branch(transcript, seen, cut)
    print(f"cut at {cut:2}: {found.which}, {len(found.history):2} messages instead of {cut:2}")

# %% [markdown]
# One question decides: **is the message at the cut still in the view**, that is, in what is sent now? Then the summary
# covers only what comes before the cut. People mostly take back their newest words, so the cheap case is the frequent one.
#
# ## In the loop
#
# A session of 200 turns in a window of 2,000 tokens. Both models are scripts that know only what they are shown: the
# worker ports the module that the person names, the scribe writes the summaries.

# %%
WINDOW, TURNS = 2_000, 200
port_tools = Registry()


@port_tools.tool(read_only=True)
def port(path: str) -> str:
    """Port one module."""
    return f"{path} was ported.\n" + "\n".join(f"{path}, line {n}: changed" for n in range(1, 13))


def words(turn):
    return f"Port module_{turn} to v2, and leave its comments as they are."


def worker(request):
    asked = re.findall(r"Port (module_\d+) to v2", json.dumps(request["messages"]))[-1]
    ported = request["messages"][-1]["role"] == "tool"
    return f"{asked} is ported." if ported else assistant("", call(f"call_{asked}", "port", path=asked))


def scribe(request):
    last = max(map(int, re.findall(r"module_(\d+)", request["messages"][-1]["content"])))
    return f"1. Task: as quoted. 2. Done: up to module_{last}. 3. Open: the rest. 4. port. 5. None."


# %%
async def work_on(manager=None):
    provider, history = Simulator(worker, context_window=WINDOW), []
    client, wired = provider.client(), hooks(manager) if manager else None
    for number in range(1, TURNS + 1):
        turn = run_turn([*history, user(words(number))], client, port_tools, hooks=wired)
        try:
            history = (await turn.run()).history
        except ContextOverflow as refused:
            return provider, turn.history, f"in turn {number}: {refused.body['error']['message']}"
    return provider, history, f"turn {number}: {history[-1]['content']}"


alone, _, refusal = await work_on()
manager = SegmentManager(summarizer(Simulator(scribe).client()), limits=Limits(WINDOW))
steady, history, ending = await work_on(manager)
print("without:", refusal)
print("with:   ", ending)
told = [words(1 + at // 2) in json.dumps(request["messages"]) for at, request in enumerate(steady.requests)]
print(f"what the person had asked stands in {sum(told)} of {len(told)} requests, word for word")
print(f"the history of the session is whole: {len(history)} messages")

# %%
usages = {f"without, refused at request {len(alone.requests)}": alone.usages, "with compaction": steady.usages}
rows = {name: [usage["prompt_tokens"] for usage in listed] for name, listed in usages.items()}
draw.chart(rows, unit="tokens", limit=(WINDOW, "the window"))

# %% [markdown]
# The manager changes what is **sent**, never the history: that is the log, and a branch can start anywhere in it. It keeps
# its view, so each summary is paid for once, and its bytes stay the same from request to request.
#
# ## What to count?
#
# "Long" has many units, and they disagree. Why not count tokens yourself? "A token is four characters" is a rule of thumb
# for English prose; see how far off it is for anything else:

# %%
samples = {"an accent": "é", "Chinese": "请把回程航班改成最快的一班。", "an emoji": "🙂", "a family": "👩‍👩‍👧", "JSON": airline[27]["content"]}
rows = []
for name, text in samples.items():
    units = len(text.encode("utf-16-le")) // 2
    rows.append((name, text[:14], len(text), units, len(text.encode()), len(tokenize(text)), len(text) // 4))
head = ("sample", "text", "code points (Python's len)", "UTF-16 units (JavaScript)", "UTF-8 bytes", "tokens", "characters / 4")
draw.table(rows, head=head)


# %% [markdown]
# (Tokens as the offline provider counts them.) So each part of this book says what it counts.
#
# <details><summary>Who counts what, and why</summary>
#
# | who | counts | because |
# |---|---|---|
# | the window, the bill, when to compact | tokens, as **reported** | it is the provider's number, and nobody else has it |
# | anchor and summary here; `spill` | characters: Python's code points | cheap, and known before sending; no cut falls inside one, though it may part a combined emoji |
# | files, the journal, the wire | UTF-8 bytes | that is what is stored and sent |
# | the seeds of this book, in JavaScript | UTF-16 units, now and then called bytes | it is what `.length` gives; a cut may fall into an emoji |
#
# </details>
#
# And there are three ways to shrink a conversation, of which an agent picks one. (Before all three,
# [`spill`](02_spill.ipynb) keeps long outputs from coming in at all.)
#
# | way | what it shrinks | its unit | what is lost |
# |---|---|---|---|
# | **segments**, this chapter | the old part, into one message | reported tokens, then messages and characters | what the summary leaves out; code keeps the person's last words |
# | **layers**, [chapter 07](07_layers.ipynb) | single results first, a summary last | UTF-8 bytes of the request | from the view: groups in the middle, old results; long results stay in files |
# | **surface**, [chapter 09](09_surface.ipynb) | a view over a log | code points | nothing: the log has all of it |
#
# ## Your turn
#
# **One: where to cut.** This one keeps the newest messages. Keep pairs whole, too, and the person's words, if all from
# these words on has at most `max_anchor_chars` characters (`summary.text_size`). Return 0 when nothing is gained.

# %%
def my_split(history, keep_recent=8, max_anchor_chars=40_000):
    return max(0, len(history) - keep_recent)


check.split_index(my_split)

# %%
# check.split_index.hint(1)

# %%
source(check.split_index.solution, fold="One solution")

# %% [markdown]
# **Then your code runs the agent.** The session goes on, cut by your function, with a poor summary in front:

# %%
turn = await stream(check.split_index.turn(check.split_index.solution))


# %% [markdown]
# **Two: a rolling summary.** A long session is compacted again and again, each time from the last summary. Your function
# gets that one (or `None`) and the messages that go now, and returns what the summariser reads. This summariser does what
# a prompt can ask for: what stands under the line `=== earlier summary ===`, up to the next line that begins with `===`,
# it copies. All else it tells again, and loses words.

# %%
def my_source(previous, messages):
    return "\n".join([previous or "", *[message["content"] or "" for message in messages]])


check.rolling_summary(my_source)

# %%
# check.rolling_summary.hint(1)

# %%
source(check.rolling_summary.solution, fold="One solution")

# %% [markdown]
# **Then your code runs the agent.** Something was decided long ago, and is asked for at the end:

# %%
turn = await stream(check.rolling_summary.turn(check.rolling_summary.solution))


# %% [markdown]
# **Three: the time.** The model shall know how late it is. Here the time stands in the summary message, which is made anew
# for each request. The provider has a [prompt cache](../docs/GLOSSARY.md): what begins like the last request is cheap. Run
# the check, and read the bill.

# %%
def my_view(summary, tail, now):
    head = f"[Compacted, {now}] The earlier messages, in short:\n{summary}"
    return [{"role": "user", "content": head, "origin": "compaction"}, *tail]


check.stable_summary(my_view)

# %%
# check.stable_summary.hint(1)

# %%
source(check.stable_summary.solution, fold="One solution")

# %%
check.stable_summary(check.stable_summary.solution)

# %% [markdown]
# **Think.** Why does copying beat rewriting, even when the model is good at it?
#
# <details><summary>An answer</summary>
#
# Because it happens again and again. Every rewriting is a little wrong in its own way, and the next one starts from it: nine
# tenths, ten times, is a third. A copy of a copy is still the text. That is why code copies the person's words; of all
# else code cannot tell what still holds, so there the prompt asks for a copy.
#
# </details>
#
# **Think.** Is the summary message stable, though it is sent with every request? And is the *summary*?
#
# <details><summary>An answer</summary>
#
# The message is: it is text in a list, written once, the same bytes each time, until the next compaction. A time in it
# does no harm if it was written down once; it does if it is filled in anew for each request. The summary is not stable:
# ask twice for a summary of the same messages, and two texts come back. So it is kept, and no branch makes a new one
# without need.
#
# </details>
#
# **Think.** In the airline session, at 22 messages, the words that are pinned are "Sure, it's sofia_kim_7287." Was that
# worth it?
#
# <details><summary>An answer</summary>
#
# The task stands in message 1 there, four messages before, and goes into the summary. Code can tell *who* wrote a message,
# not which one is the task. That is why the prompt asks for the person's words in quotation marks, and why codex keeps
# several of the person's messages, up to a number of tokens.
#
# </details>
#
# ## In real products
#
# <details><summary>How products compact</summary>
#
# | product | what it does |
# |---|---|
# | codex | new history: initial context, the newest user messages up to 20,000 tokens, the summary as a user message. When that overflows, the oldest item goes and it tries again. The compaction is an item in the log, so a fork, which cuts the log, keeps or loses it by itself |
# | pi | starts at window minus 16,384 tokens, keeps the newest 20,000, never cuts a turn in two; the event names the first message kept |
# | opencode | first prunes old tool outputs: skips the last 2 turns, protects 40,000 tokens, acts only above 20,000 |
# | learn-claude-code | folds at 50 messages, down to 30, so that it does not start again at once; never results that the model has not seen |
# | Claude Code | afterwards a user message says that the session continues from an earlier one |
#
# Sources: [codex](https://github.com/openai/codex), [pi](https://github.com/earendil-works/pi),
# [opencode](https://github.com/anomalyco/opencode), [learn-claude-code](https://github.com/shareAI-lab/learn-claude-code).
#
# </details>
#
# ## Go live
#
# Your own model writes the summary of the airline session. Is the flight still in it? Set `AGENT_BASE_URL` and
# `AGENT_MODEL` before you start JupyterLab; `AGENT_CONTEXT_WINDOW` and `AGENT_COMPACT_PERCENT` set the limits of an agent.

# %%
if os.environ.get("AGENT_BASE_URL"):
    result = await compact(airline, summarize=summarizer(ChatClient.from_env()))
    print(result.summary if result.compacted else result.reason)
    manager = SegmentManager(summarizer(ChatClient.from_env()), limits=Limits.from_env())
    agent = Agent(ChatClient.from_env(), context=manager)
    await stream(agent.send("In one sentence: what is lost when a conversation is summarised?"))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [The cache](06_cache.ipynb), where the beginning of a request decides what it costs.
