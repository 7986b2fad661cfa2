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
# # The surface: prune, checkpoint, rewind
#
# ← [The journal](08_journal.ipynb) · modules: `surface` (`surfaceview`, `pruner`, `compactor`, `surfacemanager`)
#
# **The problem.** The log keeps everything, and the model cannot read everything. So what it sees is shorter than what
# was said; and one day somebody wants to go back, and needs what is not seen any more.

# %%
import asyncio
import os
import re
import tempfile
from pathlib import Path


from agentlab import check, draw
from agentlab.compaction import Limits
from agentlab.context import hooks
from agentlab.draw.logview import log_and_view
from agentlab.errors import AgentLabError
from agentlab.journal import Journal, fork, replay
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, tool, user
from agentlab.notebook import data, source
from agentlab.provider import ChatClient, ProviderRefused
from agentlab.simulator import Simulator
from agentlab.summary import summarizer
from agentlab.surface import MARKER, CheckpointError, Compactor, Pruner, Surface, SurfaceManager
from agentlab.tools import Registry
from agentlab.widgets import explore, stream

# %% [markdown]
# A coding session. What was said is ours; what the five builds printed is real (`data/logs`).

# %%
LOGS = {path.stem: path.read_text() for path in sorted(data("logs").glob("*.log"))}
TALK = [user("Build these five projects, and say what fails.")]
for name, text in LOGS.items():
    TALK += [assistant(f"Now {name}.", call(name, "build", project=name)), tool(name, text)]
TALK += [assistant("Each of them fails."), user("Then delete what fails."), assistant("Deleted.")]
draw.strip(TALK)

# %% [markdown]
# ## Break it
#
# Compaction by **editing the list**: a summary in the place of the oldest messages. Where is the cut? By count, say:

# %%
summary = user("So far: five projects were built, and what failed was deleted.")


async def send(history):
    try:
        return (await Simulator(["Fine."]).client().complete(history))["content"]
    except ProviderRefused as refused:
        return f"{refused.status}: {refused.body['error']['message']}"


for keep in 4, 3, 2:
    print(f"the last {keep}: {await send([summary, *TALK[-keep:]])}")

# %% [markdown]
# A cut into a pair is refused. The next one is fine, and now the person thinks twice: *I never wanted to delete anything.*
# Back to message 12, please:

# %%
edited = [summary, *TALK[-3:], user("Stop! I never wanted to delete anything.")]
back = edited[:12]  # where is message 12 in a list of five?
rows = [
    ("rewind to message 12", f"{len(back)} messages; 'deleted' in it: {'deleted' in str(back)}"),
    ("... and without the summary", f"{len(edited[1:2])} message: {edited[1]['content']}"),
    ("a branch from message 4", "messages 1 to 10 are nowhere"),
    ("what did pytest print?", f"'2 failed' in the list: {'2 failed' in str(edited)}"),
]
draw.table(rows, head=("wish", "what the edited list can do"))


# %% [markdown]
# The summary tells what was taken back, and without it nothing is left. The list was *the* session, and it was edited.
#
# ## The mechanism
#
# A **surface** is a view that is worked out from a log. To replace is an event, too: it names a range of nodes by their
# numbers and brings one message in their place. Nodes stand in the order of their positions, not of their numbers.

# %%
def picture(surface):
    return log_and_view(surface.events, surface.nodes, surface.source)


checkpoint = summary | {"origin": "compaction"}
surface = Surface()
surface.append_all(TALK)  # numbers 1 to 14
short = Pruner(8_192).message(TALK[10])
surface.replace(11, 11, short, reason="prune")
surface.replace(2, 14, checkpoint, reason="compaction")
surface.append(user("Stop! I never wanted to delete anything."))
picture(surface)

# %% [markdown]
# Every event is a row; a lane leads from what was replaced down to the event that stands for it. Result 11 is in two:
# it became 15, which became part of 16. Now the same wishes:

# %%
surface.rewind(12)
print("'deleted' in the view:", "deleted" in str(surface.history()))
print("what did pytest print?", surface.transcript()[10][1]["content"].strip()[-62:])
draw.html(surface)

# %% [markdown]
# The view is that of message 12 again, whole. Nothing was deleted, nothing in the log has moved, and the summary left
# together with what it tells. This is all the code that writes; what reads is `replay`, from the last chapter.

# %%
source(Surface.replace_all, fold="Source")

# %% [markdown]
# ### The example of the seed
#
# A log of 26 events, of which eight are nodes, and `compact_now` with a retention budget of 0: seven nodes become one
# checkpoint. The view is **27 + 22**. (The seed says no more of the others; here they are notes.)

# %%
note = {"type": "note"}
two = [call("A", "read_file", path="a.py"), call("B", "read_file", path="b.py")]
example = Surface()
example.append_all([note] * 14)
example.append_all([user("Why does the build fail?"), assistant("I look.", *two)])
example.append_all([tool("A", "line\n" * 60), tool("B", "line\n" * 70), assistant("Found it.")])
example.append_all([user("Then fix it."), assistant("It is fixed."), assistant("Anything else?")])
example.append_all([note] * 4)

made = await Compactor(example, lambda text: "Why the build failed was found.").compact_now(retain_tokens=0)
print("view:", [number for number, _ in example.nodes], "- 27 stands for", made.source)
picture(example)

# %% [markdown]
# A checkpoint is no bare summary. The frame is fixed, code has copied the person's last words, and the summary has tags of its
# own; so the model takes it for what is already settled, and goes on.

# %%
print(example.history()[0]["content"])

# %% [markdown]
# ## First prune
#
# A summary costs a model call, and it paraphrases. But often one tool result is much too long, and what must be read word
# for word stands at its ends. So: **head, marker, tail**, by rule. In code points, which Python's `len` counts.

# %%
pruner = Pruner(8_192)  # head 4,096, tail 1,024
once = pruner.text(LOGS["pytest"])
print(f"{len(LOGS['pytest']):,} characters became {pruner.head_chars} + {len(MARKER)} + {pruner.tail_chars}")
print("a second look changes nothing:", pruner.text(once) == once)
try:
    Pruner(5_000)
except AgentLabError as error:
    print(error)

surface = Surface(events=[{"type": "message", "message": message} for message in TALK])
pruner.prune(surface)
for event in surface.events[-4:]:
    print(event if event["type"] == "prune" else {**event, "node": "..."})

# %% [markdown]
# The sizes of what is left follow from the settings alone, so the rule of the error is enough: each cut makes a result
# strictly shorter, and none is cut twice. On a surface a pruning is a pair of events, and the first is for the books only.

# %%
source(Pruner.message, fold="Source")

# %% [markdown]
# ### Turn the knob
#
# How short may it get? The lines that say what failed are in the middle, too. Watch how many of them the model still sees:

# %%
FAILS = re.compile(r"error|FAILED|panicked|not ok", re.I)


def matter(history):
    results = [message["content"] for message in history if message["role"] == "tool"]
    return [sum(bool(FAILS.search(line)) for line in text.split("\n")) for text in results]


def pruned(threshold, head, tail):
    surface = Surface(events=[{"type": "message", "message": message} for message in TALK])
    return surface, Pruner(threshold, head, tail).prune(surface)


def view(threshold, head, tail):
    try:
        surface, _ = pruned(threshold, head, tail)
    except AgentLabError as error:
        return str(error)
    left = [len(message["content"]) for message in surface.history() if message["role"] == "tool"]
    seen = [f"{after} of {before}" for before, after in zip(matter(TALK), matter(surface.history()))]
    rows = zip(LOGS, map(len, LOGS.values()), left, seen)
    return draw.html(surface, draw.table(rows, head=("log", "characters", "left", "lines with a failure")))


knob = explore(view, threshold=(1_000, 12_000, 500), head=(0, 8_000, 100), tail=(0, 4_000, 100))
knob.set(threshold=6_000, head=4_000, tail=1_000)

# %%
rows = []
for sizes in (12_000, 4_000, 1_000), (6_000, 4_000, 1_000), (2_000, 1_500, 400), (2_000, 400, 1_500):
    knob.set(**dict(zip(("threshold", "head", "tail"), sizes)))
    surface, done = pruned(*sizes)
    seen = [f"{after}/{before}" for before, after in zip(matter(TALK), matter(surface.history()))]
    rows.append((*sizes, len(done.nodes), done.before - done.after, "  ".join(seen)))
knob.set(threshold=6_000, head=4_000, tail=1_000)
head = ("threshold", "head", "tail", "pruned", "tokens gained", "lines with a failure, per log")
draw.table(rows, head=head)

# %% [markdown]
# No setting is right for all five: what matters stands in front here, at the end there. Pruning is blind. What it masks is
# in the log, but the model has no pointer to it; [spilling](02_spill.ipynb) gives one, and comes before.
#
# ## Then a checkpoint
#
# If that is not enough, a range of nodes becomes one. **The cut is counted from the end**: add up tokens until the retention
# budget is reached. One node stays in any case, and the cut moves left off a pair.

# %%
source(Compactor._pick)


# %%
async def compacted(retain):
    surface = Surface(events=[{"type": "message", "message": message} for message in TALK])
    await Compactor(surface, lambda text: "Five builds, all fail.").compact_now(retain_tokens=retain)
    return surface


CUTS = {retain: await compacted(retain) for retain in range(0, 16_001, 500)}


def view(retain):
    left = {number for number, _ in CUTS[retain].nodes}
    fates = ["kept" if number in left else "summarised" for number in range(1, len(TALK) + 1)]
    return draw.strip(TALK, fates=fates, caption=f"the view has {len(left)} nodes")


knob = explore(view, retain=(0, 16_000, 500))
knob.set(retain=4_000)

# %%
for retain in 0, 500, 4_000, 8_000, 12_000, 16_000:
    knob.set(retain=retain)
    print(f"{retain:6,}: the view is {[number for number, _ in CUTS[retain].nodes]}")
_ = knob.set(retain=4_000)

# %% [markdown]
# Two steps on the slider often make the same cut: `pytest` is one node of more than 6,000 tokens, and its call goes with
# it. (Tokens are estimated here, from bytes; in the loop the provider's count corrects the estimate.)
#
# ## In the loop
#
# Two moments, one manager. **Pressure**, before a step: measure, prune, measure, make a checkpoint, measure. **Overflow**, after
# a refusal: prune, make a checkpoint, send again, as long as the view changes. Worker and scribe are scripts that know
# only what they are shown; the window has 8,000 tokens, and the last log alone has more.

# %%
WINDOW = 8_000
NEEDLES = {"cargo_build": "E0", "cargo_test": "panicked", "make_gcc": "error:", "npm_test": "not ok",
           "pytest": "2 failed"}  # fmt: skip


def worker(request):
    shown = "\n".join(str(message) for message in request["messages"])
    for name in LOGS:
        if f"Now {name}" not in shown and f"{name} was built" not in shown:
            return assistant(f"Now {name}.", call(name, "build", project=name))
    seen = [
        name for name, needle in NEEDLES.items()
        if needle in shown or f"{name} was built" in shown
    ]  # fmt: skip
    return f"All are built. I know how {len(seen)} of {len(LOGS)} ended."


def scribe(request):
    text = request["messages"][-1]["content"]
    return " ".join(f"{name} was built and fails." for name in LOGS if name in text)


builds = Registry()


@builds.tool(read_only=True)
def build(project: str) -> str:
    """Build one project."""
    return LOGS[project]


# %%
async def run(manager=None):
    provider = Simulator(worker, context_window=WINDOW)
    try:
        turn = await run_turn(
            TALK[:1], provider.client(), builds, hooks=hooks(manager) if manager else None
        ).run()
        said = turn.history[-1]["content"]
    except ProviderRefused as refused:
        said = refused.body["error"]["message"]
    return provider, said


def manager_for(window):
    return SurfaceManager(summarizer(Simulator(scribe).client()), limits=Limits(window))


pressure, overflow = manager_for(WINDOW), manager_for(64_000)
alone, said = await run()
print("without:          ", said)
steady, said = await run(pressure)
print("pressure:         ", said)
rescued, said = await run(overflow)
print("a wrong setting:  ", said)
print(f"its last measure:  {overflow.last.why}")

# %% [markdown]
# Pruned in time, the second run has lost the middles in which two builds say how they ended. The third one believes in a
# window of 64,000, so nothing is done in time; the provider refuses, and the same turn goes on with a shorter view.

# %%
kinds = "message", "prune", "replace"
rows = []
for name, provider, manager in ("pressure", steady, pressure), ("overflow", rescued, overflow):
    events = manager.surface.events
    counts = [sum(event["type"] == kind for event in events) for kind in kinds]
    answered = len(provider.usages)
    sent = len(provider.requests)
    rows.append((name, sent, sent - answered, *counts, len(manager.surface.nodes)))
head = ("run", "requests", "refused", "messages", "prunings noted", "replacements", "nodes in the end")
draw.table(rows, head=head)

# %% [markdown]
# ## By hand
#
# `compact_now` is for an idle session: make room now. `compact_region` does the same for a range of your own. Both prune
# nothing. Nothing to do is an answer, None; what goes wrong is an error with a `cause`, and the view stays as it was. All
# four, for real (of two at once, the first goes on):

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def compactor(summarize, journal=None):
    surface = Surface(journal)
    surface.append_all([user("Mend the login page."), assistant("It is mended."), user("Thanks.")])
    return Compactor(surface, summarize)


slow = compactor(lambda text: asyncio.sleep(0.05, "Mended."))
longer = compactor(lambda text: text * 3)
changed = compactor(lambda text: changed.surface.rewind(1) and "Mended.")  # words are taken back
journal = Journal.create(folder, {}, id="small")
unwritten = compactor(lambda text: "Mended.", journal)
journal.close()
other = Journal.open(folder, "small")
other.append(note)  # now another process has the lock

rows = []
for each in slow, longer, changed, unwritten:
    before = [message for _, message in each.surface.nodes]
    try:
        await asyncio.gather(each.compact_now(), *([each.compact_now()] if each is slow else []))
    except CheckpointError as error:
        after = [message for _, message in each.surface.nodes]
        stayed = "all of the view" if after == before else f"{len(after)} node: what the rewind left"
        rows.append((error.cause, str(error).replace(str(folder), "..."), stayed))
other.close()
draw.table(rows, head=("cause", "what happened", "what stayed"))

# %% [markdown]
# ## Rewind to any row
#
# Three compactions, each of which took in the one before, and words that were taken back (events 7 and 8). **Drag the
# slider: this is what the model would see.**

# %%
with Journal.create(folder, {"model": "small"}, id="nested", clock=lambda: 0) as journal:
    nested = Surface(journal)
    by_hand = Compactor(nested, lambda text: f"{len(re.findall('is mended', text))} newly mended.")
    for number, page in enumerate(["login", "search", "cart"], 1):
        nested.append(user(f"Mend the {page} page, please. It is urgent."))
        nested.append(assistant(f"{page} is mended."))
        nested.append_all([user("Well done."), assistant("Thank you.")])
        await by_hand.compact_now()
        if number == 1:
            nested.append_all([user("The secret is 4711."), assistant("I keep it.")])
            nested.rewind(nested.last - 2)
    nested.append(user("What is left?"))
LOG = nested.events


def view(to):
    surface = Surface(events=LOG)
    surface.rewind(to)
    return picture(surface)


knob = explore(view, to=(1, len(LOG)))
knob.set(to=14)

# %%
for to in 5, 8, 13, 14, len(LOG):
    knob.set(to=to)
    surface = Surface(events=LOG)
    surface.rewind(to)
    print(f"{to:2} {LOG[to - 1]['type']:8} view {[number for number, _ in surface.nodes]}")
_ = knob.set(to=14)

# %% [markdown]
# A **fork** is the same cut, into a file of its own. Is a summary in it? No rule is needed. At every event:

# %%
same, other, told = 0, [], []
for number in range(1, len(LOG) + 1):
    branch = replay(fork(journal, number, id=f"branch-{number}").events())
    prefix, rewound = Surface(events=LOG[:number]), Surface(events=LOG)
    rewound.rewind(number)
    same += branch.nodes == prefix.nodes
    other += [number] if rewound.nodes != branch.nodes else []
    told += [number] if "4711" in str(branch.history) else []
print(f"{same} of {len(LOG)}: a fork is the first part of the log, replayed")
print("a rewind shows something else at:", other)
print("the secret is seen in the branches from:", told)


# %% [markdown]
# Both differ in one thing only: what was withdrawn stays withdrawn, and no rewind brings it back. A fork from inside these
# words has them, since they stood at that moment; every later one has neither them nor a summary that tells of them.

# %% [markdown]
# ## Your turn
#
# **1. Prune one message.** A function of a message, a threshold, head and tail, in characters. A tool result above the
# threshold becomes head, `MARKER`, tail; all else stays. Sizes that cannot work raise `ValueError`.

# %%
def my_prune(message, threshold, head, tail):
    text = message["content"] or ""
    if len(text) <= threshold:
        return message
    return message | {"content": text[:head] + MARKER + text[-tail:]}


# %%
check.prune(my_prune)

# %%
# check.prune.hint(1)

# %%
source(check.prune.solution, fold="One solution")

# %%
check.prune(check.prune.solution)

# %% [markdown]
# **Then your code runs the agent**: two results, each larger than the window, and a long question of the person.

# %%
turn = await stream(check.prune.turn(check.prune.solution))


# %% [markdown]
# **2. Choose the cut.** A view, a retention budget, and a function that counts the tokens of a message. Return the position:
# what stands before it becomes a checkpoint. This one adds up from the end:

# %%
def my_cut(view, retain, tokens):
    cut, kept = len(view), 0
    while cut and (cut == len(view) or kept < retain):
        cut -= 1
        kept += tokens(view[cut])
    return cut


# %%
check.cut(my_cut)

# %%
# check.cut.hint(1)

# %%
source(check.cut.solution, fold="One solution")

# %%
check.cut(check.cut.solution)

# %% [markdown]
# **Then your code runs the agent**: nine steps with two results each. Your cut decides what every request holds.

# %%
turn = await stream(check.cut.turn(check.cut.solution))

# %% [markdown]
# **Think.** Why does the view name its nodes by the numbers of events, and not by positions in the list?
#
# <details><summary>An answer</summary>
#
# Positions move with every replacement, so an event that names positions is only right for the view of its moment. Numbers
# never move. A range whose middle was lost to a bad line still says what it covers; so does one inside of which something
# was pruned. And number 27 may stand in front of 22: order is one thing, identity another.
#
# </details>
#
# **Think.** After a refusal the request is sent again only while the view changes. Why is a fixed number of tries not enough?
#
# <details><summary>An answer</summary>
#
# The same request is refused for the same reason: each further try costs time and changes nothing. A try is worth it when
# something was gained. The number is there as well, since a view may change for ever without fitting; it is counted from 0
# again as soon as a reply comes.
#
# </details>
#
# **Think.** In [chapter 05](05_compaction.ipynb) a failed summary degrades to an outline. Here it is an error. Why?
#
# <details><summary>An answer</summary>
#
# There the outline is what is left to go on with. Here the log has everything, pruning has gained what a rule can gain, and an
# outline would be one more replacement that somebody has to take back. Under pressure the turn goes on all the same: the
# view is sent as it is, and only the provider's refusal makes it serious.
#
# </details>
#
# ## In real products
#
# <details><summary>Views, prunings and checkpoints elsewhere</summary>
#
# | product | what it does |
# |---|---|
# | the agent of seed 002 | as here: head 4,096, tail 1,024; one retry under pressure; a checkpoint in a fixed English frame with the summary in tags |
# | codex | new history = initial context + the newest words of the person, up to 20,000 tokens, + the summary as a user message; appended to the rollout as one item; if compacting itself overflows, the oldest item goes first ([codex](https://github.com/openai/codex)) |
# | opencode | walks backwards, skips the last 2 turns, protects 40,000 tokens of tool output, acts only above 20,000; marks, and does not delete ([opencode](https://github.com/anomalyco/opencode)) |
# | pi | the event holds summary, first message kept, tokens before; never cuts inside a turn; keeps the newest 20,000 tokens ([pi](https://github.com/earendil-works/pi)) |
# | Claude Code | a compaction starts a new root; only `logicalParentUuid` leads back to what was said before |
#
# </details>
#
# ## Go live
#
# Your own server, both as worker and as scribe. Set `AGENT_BASE_URL`, `AGENT_MODEL` and `AGENT_CONTEXT_WINDOW` before you
# start JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    client = ChatClient.from_env()
    manager = SurfaceManager(summarizer(client), limits=Limits.from_env())
    await stream(run_turn(TALK[:1], client, builds, hooks=hooks(manager)))
    display(picture(manager.surface))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [Many tools](10_disclosure.ipynb): a hundred of them, and what their descriptions cost.
