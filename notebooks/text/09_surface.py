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
#
# Here is a coding session. What was said is ours; what the five builds printed is real (`data/logs`).

# %%
import os
import re
import tempfile

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
from agentlab.surface import MARKER, Compactor, Pruner, Surface, SurfaceManager
from agentlab.tools import Registry
from agentlab.widgets import explore, stream

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
# A cut between a call and its result is refused. The other two are fine. We keep the last 3, and now the person thinks
# twice: *I never wanted to delete anything.* Back to message 12, please:

# %%
edited = [summary, *TALK[-3:], user("Stop! I never wanted to delete anything.")]
back = edited[:12]  # where is message 12 in a list of five?
rows = [
    ("rewind to message 12", f"{len(back)} messages; 'deleted' in it: {'deleted' in str(back)}"),
    ("... and without the summary", f"{len(edited[1:2])} message: {edited[1]['content']}"),
    ("what did pytest print?", f"'2 failed' in the list: {'2 failed' in str(edited)}"),
]
draw.table(rows, head=("wish", "what the edited list can do"))


# %% [markdown]
# The summary tells what was to be taken back, and without it nothing is left. The list *was* the session, and it was edited.
#
# ## The mechanism
#
# A **surface** is a view, worked out from a log. Its messages are called nodes, and a node has the number of its event. To
# replace is an event, too: it names a range of nodes by their numbers, and brings one message that stands in their place.

# %%
def picture(surface):
    return log_and_view(surface.events, surface.nodes, surface.source)


surface = Surface()
surface.append_all(TALK)  # numbers 1 to 14
surface.replace(11, 11, Pruner(8_192).message(TALK[10]), reason="prune")  # shorter; see below
surface.replace(2, 14, summary | {"origin": "compaction"}, reason="compaction")
surface.append(user("Stop! I never wanted to delete anything."))
picture(surface)

# %% [markdown]
# Every event is a row; a lane leads from what was replaced down to the event that stands for it. Result 11 is in two: it
# became 15, which became part of 16. Node 16 stands before 17, and in the place of 2: the order is that of positions. Now the
# same wishes:

# %%
surface.rewind(12)
print("rewind to message 12:  the view is", [number for number, _ in surface.nodes])
print("'deleted' in the view:", "deleted" in str(surface.history()))
print("what did pytest print?", surface.transcript()[10][1]["content"].strip()[-62:])

# %% [markdown]
# The view is that of message 12 again, whole. Nothing in the log was deleted or has moved; the summary is withdrawn together
# with what it tells. This is the code that writes; what reads is `replay`, from [the last chapter](08_journal.ipynb).

# %%
source(Surface.replace_all, fold="Source", docstring=False)

# %% [markdown]
# ## First prune
#
# A summary costs a model call, and it paraphrases. But often one tool result is much too long, and what must be read word
# for word stands at its ends. So: **head, marker, tail**, by rule, counted in characters.

# %%
pruner = Pruner(8_192)  # above this many characters: head 4,096, tail 1,024
print(f"{len(LOGS['pytest']):,} characters become {pruner.head_chars:,} + {len(MARKER)} + {pruner.tail_chars:,}")
try:
    Pruner(5_000)  # a result could become longer, or be cut again
except AgentLabError as error:
    print(error)

# %%
source(Pruner.message, fold="Source", docstring=False)

# %% [markdown]
# ### Turn the knob
#
# How short may a result get? Watch how many of the lines that say what failed the model still sees:

# %%
FAILS = re.compile(r"error|FAILED|panicked|not ok", re.I)


def matter(history):
    results = [message["content"] for message in history if message["role"] == "tool"]
    return [sum(bool(FAILS.search(line)) for line in text.split("\n")) for text in results]


def pruned(threshold, head, tail):
    surface = Surface()
    surface.append_all(TALK)
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
print("failures in the logs:", matter(TALK))
for sizes in (12_000, 4_000, 1_000), (2_000, 1_500, 400), (2_000, 400, 1_500):
    knob.set(**dict(zip(("threshold", "head", "tail"), sizes)))
    surface, done = pruned(*sizes)
    print(sizes, "seen:", matter(surface.history()), "tokens gained:", done.before - done.after)
_ = knob.set(threshold=6_000, head=4_000, tail=1_000)

# %% [markdown]
# No setting is right for all five: what matters stands in front here, at the end there. And the model has no pointer to what
# is cut out, although the log has it; [spilling](02_spill.ipynb) gives one, and comes before.
#
# ## Then a checkpoint
#
# If that is not enough, a **checkpoint**, a summary in a frame, takes the place of all but the newest messages. Here is a log
# of 26 events: eight are messages, the others notes that no model sees. With a retention budget of 0 tokens only the last
# message stays, and the view is **27 + 22**:

# %%
note = {"type": "note"}
two = [call("A", "read_file", path="a.py"), call("B", "read_file", path="b.py")]
example = Surface()
example.append_all([note] * 14)
example.append_all([user("Why does the build fail?"), assistant("I look.", *two)])
example.append_all([tool("A", "line\n" * 60), tool("B", "line\n" * 70), assistant("Found it.")])
example.append_all([user("Then fix it."), assistant("It is fixed."), assistant("Anything else?")])
example.append_all([note] * 4)

await Compactor(example, lambda text: "Why the build failed was found.").compact_now(retain_tokens=0)
print(example.history()[0]["content"])
picture(example)

# %% [markdown]
# The frame is fixed, code has copied the person's last words, and the summary has tags of its own: so the model takes it for
# what is settled, and goes on.
#
# How many nodes go? **The cut is counted from the end**: add up tokens until the retention budget is reached. One node stays
# in any case, and the cut moves left off a pair.

# %%
source(Compactor._pick, fold="Source", docstring=False)


# %%
async def compacted(retain):
    surface = Surface()
    surface.append_all(TALK)
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
for retain in 0, 4_000, 8_000, 16_000:
    knob.set(retain=retain)
    print(f"{retain:6,}: the view is {[number for number, _ in CUTS[retain].nodes]}")
_ = knob.set(retain=4_000)

# %% [markdown]
# Two steps on the slider often make the same cut: `pytest` is one node of more than 6,000 tokens, and its call goes with it.
# (Tokens are estimated here, from bytes; in the loop the provider's count corrects the estimate.)
#
# ## In the loop
#
# One manager, two moments. **Pressure**, before a step, when the view is close to the window's limit: prune, and if that is
# not enough, make a checkpoint. **Overflow**, after a refusal: the same, and send again, as long as the view changes.
#
# Worker and scribe, who writes the summaries, are scripts that know only what they are shown. The window has 8,000 tokens,
# and the last log alone has more.

# %%
WINDOW = 8_000
NEEDLES = ("E0", "panicked", "error:", "not ok", "2 failed")  # what each of the logs says when the build fails


def worker(request):
    shown = str(request["messages"])
    for name in LOGS:
        if f"Now {name}" not in shown and f"{name} was built" not in shown:
            return assistant(f"Now {name}.", call(name, "build", project=name))
    known = [needle in shown or f"{name} was built" in shown for name, needle in zip(LOGS, NEEDLES)]
    return f"All are built. I know how {sum(known)} of {len(LOGS)} ended."


def scribe(request):
    text = request["messages"][-1]["content"]
    return " ".join(f"{name} was built and fails." for name in LOGS if name in text)


builds = Registry()


@builds.tool(read_only=True)
def build(project: str) -> str:
    """Build one project."""
    return LOGS[project]


# %%
def manager_for(window):
    return SurfaceManager(summarizer(Simulator(scribe).client()), limits=Limits(window))


runs = ("no manager", None), ("pressure", manager_for(WINDOW)), ("a wrong setting", manager_for(64_000))
rows = []
for name, manager in runs:
    provider = Simulator(worker, context_window=WINDOW)
    wired = hooks(manager) if manager else None
    try:
        turn = await run_turn(TALK[:1], provider.client(), builds, hooks=wired).run()
        said = turn.history[-1]["content"]
    except ProviderRefused as refused:
        said = refused.body["error"]["message"]
    kinds = [event["type"] for event in manager.surface.events] if manager else []
    refusals = len(provider.requests) - len(provider.usages)
    rows.append((name, len(provider.requests), refusals, kinds.count("replace"), said))
draw.table(rows, head=("run", "requests", "refused", "replacements", "how it ends"))

# %% [markdown]
# Pruned in time, the second run has lost the middles in which two builds say how they ended. The third one believes in a
# window of 64,000, so nothing is done in time; the provider refuses, and the same turn goes on with a shorter view.
#
# <details><summary>By hand, and what can go wrong</summary>
#
# `compact_now` is for an idle session: make room now. `compact_region` does the same for a range of your own. Both prune
# nothing. When there is nothing to do they return None; what goes wrong is a `CheckpointError`, and no checkpoint is made:
#
# | its `cause` | what happened |
# |---|---|
# | `busy` | a compaction is running already; that one goes on |
# | `summary` | the summary is not smaller than what it would replace, or there is none |
# | `changed` | the view changed while the summary was being written, by a rewind for example |
# | `write` | the log could not be written: a full disk, or another process that has the lock |
#
# </details>
#
# ## Rewind to any row
#
# Three compactions, each of which took in the one before, and words that were taken back (events 6 and 7). **Drag the
# slider: this is what the model would see.**

# %%
temporary = tempfile.TemporaryDirectory()
with Journal.create(temporary.name, {"model": "small"}, id="nested", clock=lambda: 0) as journal:
    nested = Surface(journal)
    by_hand = Compactor(nested, lambda text: f"{len(re.findall('is mended', text))} newly mended.")
    for number, page in enumerate(["login", "search", "cart"], 1):
        nested.append(user(f"Mend the {page} page, please. It is urgent."))
        nested.append(assistant(f"{page} is mended."))
        nested.append(user("Well done."))
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
knob.set(to=12)

# %%
for to in 4, 5, 7, 12, len(LOG):
    knob.set(to=to)
    surface = Surface(events=LOG)
    surface.rewind(to)
    print(f"{to:2} {LOG[to - 1]['type']:8} view {[number for number, _ in surface.nodes]}")
_ = knob.set(to=12)

# %% [markdown]
# A **fork** is the same cut, into a file of its own. Tried at every event, it is the first part of the log, replayed, and
# the summaries are in it or not by themselves:

# %%
same, told = 0, []
for number in range(1, len(LOG) + 1):
    branch = replay(fork(journal, number, id=f"branch-{number}").events())
    same += branch.nodes == Surface(events=LOG[:number]).nodes
    told += [number] if "4711" in str(branch.history) else []
print(f"{same} of {len(LOG)} are the first part of the log; the secret is seen in the forks from {told}")


# %% [markdown]
# A fork from 6 or 7 has the secret, since it was there at that moment; every later one has neither it nor a summary that
# tells it. A rewind to 7 shows it no more: what was withdrawn stays withdrawn.
#
# ## Your turn
#
# **1. Prune one message.** A function of a message and three sizes in characters. A tool result above the threshold becomes
# head, `MARKER`, tail; all else stays. Sizes that cannot work raise `ValueError`. This one is close:

# %%
def my_prune(message, threshold, head, tail):
    text = message["content"] or ""
    if len(text) <= threshold:
        return message
    return message | {"content": text[:head] + MARKER + text[-tail:]}


check.prune(my_prune)

# %%
# check.prune.hint(1)

# %%
source(check.prune.solution, fold="One solution")

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


check.cut(my_cut)

# %%
# check.cut.hint(1)

# %%
source(check.cut.solution, fold="One solution")

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
