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
# # The journal: append, replay, resume
#
# ← [Four layers](07_layers.ipynb) · modules: `journal`, `journalfile`, `replay`, `recorder`, `redact`, `sessions`
#
# **The problem.** An agent has worked for half an hour, and all of it stands in one list in memory. The process is killed,
# or the power fails, and the next one knows nothing: not what was said, and not which tool was running.

# %%
import json
import os
import tempfile
import textwrap
from pathlib import Path


from agentlab import check, draw, replay
from agentlab.errors import AgentLabError
from agentlab.journal import Journal, JournalBusy, fork, sessions
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, size_bytes, tool, user
from agentlab.notebook import data, source
from agentlab.permissions import Policy
from agentlab.provider import ChatClient
from agentlab.recorder import Recorder
from agentlab.simulator import Simulator
from agentlab.tools import Registry
from agentlab.widgets import explore, stream

TALK = json.loads(data("sessions", "airline_chat.json").read_text())
draw.strip(TALK, caption="a real conversation, with an airline's agent")

# %% [markdown]
# ## Break it
#
# The first idea: **a snapshot**. The whole session is one JSON file, written anew at every change. Here the power fails
# when 60 % is written. (A session of the size that the seed of this chapter shows.)

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
snapshot = {
    "id": "ses_snapshot",
    "model": "deepseek-chat",
    "messages": [user("Fix the log"), assistant("I look.")],
}
full = json.dumps(snapshot, indent=2, ensure_ascii=False)
torn = full[: len(full) * 60 // 100]
(folder / "session.json").write_text(torn)  # the version before was emptied when this one was begun

print(f"{len(torn)} of {len(full)} characters are on the disk.")
try:
    json.loads((folder / "session.json").read_text())
except ValueError as error:
    print("Resume:", error)

# %% [markdown]
# Not the last message is lost, but the session: opening the file for writing had emptied it. And the longer a session is,
# the longer is the time in which this can happen.
#
# ## The mechanism
#
# **A log**: not what the session *is* goes to the disk, but what *happens*. Each event is one more line at the end, and
# bytes that are there are never touched again. (Clock and id are given here, so that each run writes the same bytes.)

# %%
NOON = 1_767_268_800.0  # seconds since 1970


def new_journal(id, meta, **options):
    return Journal.create(folder / "log", meta, id=id, clock=lambda: NOON, secrets=(), **options)


with new_journal("login", {"model": "small"}) as journal:
    journal.append({"type": "message", "message": user("Mend the login page.")})
    journal.append({"type": "message", "message": assistant("I read the code.")})
    journal.append({"type": "message", "message": user("And be quick.")})
print(journal.path.read_text())

# %% [markdown]
# **Replay** works out the session from its events. Now the same accident, at the same place: 60 % of the last line.

# %%
whole = journal.path.read_bytes()
last = whole.rstrip().rfind(b"\n") + 1
journal.path.write_bytes(whole[: last + (len(whole) - last) * 60 // 100])

session = replay.replay(journal.events())
print(f"{len(session.history)} messages, {session.skipped} line skipped, model {session.meta['model']!r}")
print(*list(journal.events())[-2:], sep="\n")

# %% [markdown]
# One message is lost, and the log says in which line. The half line stays where it is, too. The next append closes it off
# with a line feed, and goes on:

# %%
with Journal.open(folder / "log", "login", clock=lambda: NOON) as journal:
    journal.append({"type": "message", "message": user("Where were we?")})
print(journal.path.read_text())

# %% [markdown]
# Number 4 is not given out again: the torn line has used it up. This is all there is to writing:

# %%
source(Journal.append)

# %% [markdown]
# And this to reading. Types that it does not know are skipped, so that an old program can read a newer one's log.

# %%
source(replay._replay, fold="Source")

# %% [markdown]
# ## Turn the knob
#
# The conversation from above, as a snapshot and as a log. The power fails while the file is being written: at which byte?
# How many of the 62 messages can be read again?

# %%
with new_journal("airline", {"model": "small"}) as journal:
    journal.append_all({"type": "message", "message": message} for message in TALK)
LOG = journal.path.read_bytes()
SNAPSHOT = json.dumps({"model": "small", "messages": TALK}, ensure_ascii=False).encode()
trial = new_journal("trial", {})


def from_log(byte):
    trial.path.write_bytes(LOG[:byte])
    return replay.replay(trial.events())


def from_snapshot(byte):
    try:
        return json.loads(SNAPSHOT[:byte])["messages"]
    except ValueError:
        return []


places = range(0, len(LOG) + 1, 91)
survive = {
    "snapshot": [len(from_snapshot(byte)) for byte in places],
    "log": [len(from_log(byte).nodes) for byte in places],
}
print(f"{len(SNAPSHOT):,} bytes of snapshot, {len(LOG):,} bytes of log, {len(places)} places")
draw.chart(survive, unit="messages")

# %% [markdown]
# The snapshot is all or nothing, and mostly nothing. The log has every line that was finished. Look at one place:

# %%
BYTES = size_bytes(TALK)


def view(byte):
    session, begun = from_log(byte), LOG.rfind(b"\n", 0, byte) + 1
    kept = len(session.nodes)
    fates = ["kept"] * kept + (["dropped"] if session.skipped else [])
    rows = [
        ("snapshot", min(byte, len(SNAPSHOT)), len(from_snapshot(byte)), ""),
        ("log", byte, kept, f"a torn line of {byte - begun:,} bytes" if session.skipped else "nothing"),
    ]
    tail = LOG[max(begun, byte - 300) : byte]
    return draw.html(
        draw.table(rows, head=("file", "bytes on the disk", "messages read", "lost by the accident")),
        draw.strip(TALK[: len(fates)], fates=fates, scale=BYTES, caption="from the log") if fates else "",
        draw.bytes_view(tail) if tail else "The last line is whole." if byte else "The file is empty.",
    )


knob = explore(view, byte=(0, len(LOG)))
knob.set(byte=20_000)

# %%
ends = [at for at, letter in enumerate(LOG) if letter == 10]  # where the line feeds stand
for byte in 0, 50, 20_000, ends[30] - 1, ends[30], ends[30] + 1, len(SNAPSHOT), len(LOG):
    knob.set(byte=byte)
    left = from_log(byte)
    print(f"byte {byte:6,}: snapshot {len(from_snapshot(byte)):2}, log {len(left.nodes):2}, torn {left.skipped}")
_ = knob.set(byte=20_000)

# %% [markdown]
# One byte before the end of line 31 the record is torn. At its end only the line feed is missing: the record is whole, so
# it is kept, and gets its line feed with the next append.
#
# ## What happened, step by step
#
# A session with all that a log may hold: a tool call and its states, another model, words that were taken back, and a
# summary. **Step through it**, and watch what the model would see if the process died right there.

# %%
leap = call("call_1", "run_shell", command="make test")
running = {"message": 3, "id": "call_1", "name": "run_shell", "status": "running"}
summary = user("So far: test_leap fails.") | {"origin": "compaction"}
SMALL = {"model": "small", "base_url": "http://small/v1", "temperature": 0}
STEPS = [
    {"type": "message", "message": user("Which tests fail?")},
    {"type": "message", "message": assistant("I run them.", leap)},
    {"type": "tool_call", "record": running},
    {"type": "tool_call", "record": running | {"status": "completed"}},
    {"type": "message", "message": tool("call_1", "test_leap failed, 41 passed")},
    {"type": "message", "message": assistant("One: test_leap.")},
    {"type": "config", "config": {"model": "large"}},
    {"type": "message", "message": user("Rewrite everything.")},
    {"type": "message", "message": assistant("All 40 files?")},
    {"type": "rewind", "to": 8},
    {"type": "message", "message": user("Mend test_leap, and nothing else.")},
    {"type": "message", "message": assistant("It is mended.")},
    {"type": "replace", "start": 2, "end": 7, "node": summary, "reason": "compaction"},
    {"type": "message", "message": user("Thanks.")},
]
with new_journal("leap", {"title": "leap years", **SMALL}) as journal:
    journal.append_all(STEPS)
EVENTS = list(journal.events())

# %%
FATES = {"compaction": "summarised", "repair": "repaired"}


def drawn(history, caption=None):
    fates = [FATES.get(message.get("origin"), "kept") for message in history]
    return draw.strip(history, fates=fates, scale=900, caption=caption)


def short(event):
    body = {name: value for name, value in event.items() if name not in ("seq", "ts", "type")}
    return f"{event['type']} {json.dumps(body)}"


def view(event):
    session = replay.replay(EVENTS[:event])
    states = [f"{id} of event {seq}: {call['status']}" for (seq, id), call in session.tool_calls.items()]
    rows = [
        (f"event {event}", short(EVENTS[event - 1])),
        ("model", session.meta["model"]),
        ("calls", "; ".join(states) or "none"),
        ("the model sees last", session.history[-1]["content"] if session.history else "nothing"),
    ]
    return draw.html(draw.table(rows), drawn(session.history))


scrubber = explore(view, event=(1, len(EVENTS)))
scrubber.set(event=4)

# %%
rows = []
for number in 2, 3, 4, 5, 6, 8, 10, 11, 13, 14:
    scrubber.set(event=number)
    session = replay.replay(EVENTS[:number])
    states = ", ".join(record["status"] for record in session.tool_calls.values())
    rows.append((number, EVENTS[number - 1]["type"], len(session.history), states, session.meta["model"]))
scrubber.set(event=4)
draw.table(rows, head=("event", "type", "messages", "the call", "model"))

# %% [markdown]
# - **Events 3 to 5.** A reply is in the log before its first call runs. Dead at 3, the call has not started. Dead at 4, it
#   was running, and nobody knows how far it came: its state becomes `failed`, and the model reads that its effects are
#   unknown. The state is a field, so that no one has to guess it from the wording of an error.
# - **Event 11.** A rewind is an event, too. It withdraws what is numbered above `to`, and deletes nothing.
# - **Event 14.** So is a summary: it names a range by its *numbers*, since positions in a list move.
#
# **Event 8** hands the session over to another model. Resumed, it goes on with that one, and not with the default of the
# day. A model's settings are replaced whole, whatever a vendor calls them: only what is the session's own stays (id,
# parent, title, folder, system prompt). So a `config` carries all of them, the model's name too. Merged, they would send
# the requests for `large` to the host of `small`:

# %%
first, config = EVENTS[0]["meta"], EVENTS[7]["config"]
rows = [("merged", first | config), ("replaced", replay.replay(EVENTS[:8]).meta)]
draw.table(rows, head=("", "meta behind event 8"))

# %% [markdown]
# ## Fork: a cut of the event stream
#
# A branch is the first part of the log, in a file of its own. Is the summary in it? There is no rule for that, and none is
# needed: a branch from before event 14 does not have it, and one from behind it does. Nor can withdrawn words leak.

# %%
pictures = []
for seq in 10, 11, 13, 15:
    branch = fork(journal, seq, id=f"branch-{seq}")
    history = replay.replay(branch.events()).history
    print(f"{seq}: {' | '.join(message['content'] for message in history)}")
    pictures.append(drawn(history, caption=f"branch from event {seq}"))
draw.columns(*pictures[2:])


# %% [markdown]
# ## In the loop
#
# A `Recorder` is hooks on one side and a journal on the other. The agent has to pay an invoice. The model is a script: where
# a result says that something is unknown, it looks before it pays again.

# %%
def cashier(request):
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if not results:
        return assistant("I pay it.", call("call_1", "pay", invoice=17))
    if results[-1] in ("done", "paid: 17"):
        return "Invoice 17 is paid."
    if "unknown" in results[-1]:
        return assistant("It broke off. I look first.", call("call_2", "payments"))
    return assistant("So it is not paid yet.", call("call_3", "pay", invoice=17))


def bank(paid):
    registry = Registry()

    @registry.tool
    def pay(invoice: int) -> str:
        paid.append(invoice)
        return "done"

    @registry.tool(read_only=True)
    def payments() -> str:
        return f"paid: {', '.join(map(str, paid)) or 'nothing'}"

    return registry


# %%
def go_on(journal, history, paid):
    """A turn that is written down; the journal holds this history already."""
    hooks = Recorder(journal, history).hooks
    client = Simulator(cashier).client()
    return run_turn(history, client, bank(paid), hooks=hooks, policy=Policy(default="allow"))


paid = []
with new_journal("bank", {"model": "small"}) as journal:
    journal.append({"type": "message", "message": user("Pay invoice 17.")})
    turn = await go_on(journal, replay.replay(journal.events()).history, paid).run()
LINES = [line + b"\n" for line in journal.path.read_bytes().split(b"\n")[:-1]]
for event in journal.events():
    record = event.get("record", {}).get("status") or event.get("message", {}).get("role") or ""
    print(event["seq"], event["type"], record)

# %% [markdown]
# Now the process is **killed in the middle of the tool**: the money is gone, and the end of the call never reached the log.
# We cut the file inside line 6, and resume.

# %%
KILLED = [b"".join(LINES[:n]) + line[: len(line) // 2] for n, line in enumerate(LINES)]


def resumed(id, data):
    journal = new_journal(id, {})
    journal.path.write_bytes(data)
    return journal, replay.replay(journal.events()).history


journal, history = resumed("killed", KILLED[5])
print(history[-1]["content"])

# %%
with journal:
    turn = await stream(go_on(journal, history, paid))

# %%
print("payments:", paid)
drawn(replay.replay(journal.events()).history, caption="read from the log again")

# %% [markdown]
# Dead at any other line? For each one: what does the model read, what does it do, and how often was the invoice paid in
# the end? Line 6 has two rows, since the log looks the same whether the money was gone or not.

# %%
rows = []
for line, before in (2, []), (3, []), (4, []), (5, []), (6, []), (6, [17]), (7, [17]), (8, [17]), (9, [17]):
    paid = list(before)
    journal, history = resumed(f"dead-{len(rows)}", KILLED[line - 1])
    with journal:
        if not history:
            history = [user("Pay invoice 17.")]  # the person has to ask again
        end = textwrap.shorten(history[-1]["content"], 75, placeholder=" ...")
        turn = await go_on(journal, history, paid).run()
    did = [each["function"]["name"] for m in turn.history[len(history) :] for each in m.get("tool_calls", [])]
    rows.append((line, "yes" if before else "no", end, ", ".join(did) or "answers", len(paid)))
head = ("dead in line", "paid by then", "the model reads last", "the resumed model", "payments")
draw.table(rows, head=head)

# %% [markdown]
# ## A promise, and its price
#
# `append` returns when the event is as safe as the journal was told to make it:
#
# | `durability` | what was acknowledged survives | how |
# |---|---|---|
# | `"flush"` (default) | the end of this process, `kill -9` included | one `write` for one record: it is the system's now |
# | `"sync"` | a power failure too, as far as the disk keeps its word | and `fdatasync`; those who wait at once share one |
#
# The bytes are the same. And there is **one writer**: two would give out the same numbers. The first append takes a lock;
# `close` gives it back, and so does the end of the process, `kill -9` included. Who only reads is welcome.
#
# After Ctrl+C in the middle of a write nobody knows whether the record is in the file. So before the next append the file
# itself is asked; no number is given out twice.

# %%
with new_journal("shared", {"model": "small"}, durability="sync") as first:
    first.append({"type": "message", "message": user("I was here first.")})
    second = Journal.open(folder / "log", "shared")
    print(len(list(second.events())), "events can be read.")
    try:
        second.append({"type": "message", "message": user("Me too!")})
    except JournalBusy as busy:
        print(busy)

# %% [markdown]
# ## Keys stay out
#
# A log is copied, backed up and shown to others. So the values of the keys in the environment become `[redacted]` wherever
# they turn up, a setting named like a key is left out, and in messages and results what can only be a key is masked.
#
# <details><summary>Which names count as a key?</summary>
#
# - **In settings** (the first line, `config`) any name that ends in a key's word: `api_key`, `token`, `auth`, `secret`,
#   `password`, `credentials`, `cookie`, `HF_TOKEN`, `x-functions-key`. The field is left out, so that a resumed session looks
#   for a fresh key. In a list of words, `["--api-key", "sk-..."]`, the key is masked.
# - **In messages, inputs and results** only a name that can mean nothing else: `api_key`, `Authorization`, `access_token`,
#   `client_secret`, `password`. It is masked, and all keeps its shape: a recipe for a cookie stays a recipe.
#
# </details>
#
# A key known by neither name nor value, in the middle of a text, stays in the log.

# %%
KEY = "sk-not-a-real-key-17"
with Journal.create(folder / "log", SMALL | {"api_key": KEY}, id="keys", secrets=[KEY]) as journal:
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "text/plain"}
    journal.append({"type": "config", "config": {"model": "large", "headers": headers}})
    journal.append({"type": "message", "message": tool("call_1", f"$ env\nUSER=me\nMY_KEY={KEY}")})
for event in journal.events():
    print(short(event))
print("the key is in the file:", KEY.encode() in journal.path.read_bytes())

# %% [markdown]
# ## Which sessions are there?
#
# The title is what a person said first. A session whose first line is lost is shown with the reason.

# %%
shelf = folder / "shelf"
shelf.mkdir()
for id, age in ("bank", 20), ("leap", 600), ("airline", 7 * 3_600), ("login", 3 * 86_400):
    lines = (folder / "log" / f"{id}.jsonl").read_bytes()
    copy = shelf / f"{id}.jsonl"
    copy.write_bytes(lines[20:] if id == "login" else lines)
    os.utime(copy, (NOON - age, NOON - age))
for info in sessions(shelf, clock=lambda: NOON):
    print(info.line)


# %% [markdown]
# ## Your turn
#
# **1. The event.** A class with two methods. `event(view, keep, summary)` makes the event that replaces all but the newest
# `keep` messages, or None when there is nothing to replace. `apply(view, event)` is the rule for replay. A view is a list of
# `(number, message)`. This one goes by the size of the numbers:

# %%
class MyCompaction:
    def event(self, view, keep, summary):
        gone = view[:-keep]
        if not gone:
            return None
        return {"type": "replace", "start": gone[0][0], "end": gone[-1][0], "node": user(summary)}

    def apply(self, view, event):
        before = [node for node in view if node[0] < event["start"]]
        behind = [node for node in view if node[0] > event["end"]]
        return [*before, (event["seq"], event["node"]), *behind]


# %%
check.compacted_event(MyCompaction)

# %%
# check.compacted_event.hint(1)

# %%
source(check.compacted_event.solution, fold="One solution")

# %%
check.compacted_event(check.compacted_event.solution)

# %% [markdown]
# **Then your code runs the agent**: a session that was compacted twice and lost a line, and a small window.

# %%
turn = await stream(check.compacted_event.turn(check.compacted_event.solution))


# %% [markdown]
# **2. The broken chain.** A bad line in the *middle* of a log: a call without a result is left, or a result without a call,
# and a provider refuses both. Your function gets the messages that can be read. It returns messages that can be sent; no
# call may vanish, since it may have run. This one trims, by ids:

# %%
def my_chain(messages):
    asked = {each["id"] for message in messages for each in message.get("tool_calls", [])}
    return [message for message in messages if message.get("tool_call_id", "") in asked | {""}]


# %%
check.broken_chain(my_chain)

# %%
# check.broken_chain.hint(1)

# %%
source(check.broken_chain.solution, fold="One solution")

# %%
check.broken_chain(check.broken_chain.solution)

# %% [markdown]
# **Then your code runs the agent**, on a log in which a call and another call's result are lost:

# %%
turn = await stream(check.broken_chain.turn(check.broken_chain.solution))


# %% [markdown]
# **3. Replay.** From events to `(meta, messages)`. Torn pairs are mended later. This one knows messages and models:

# %%
def my_replay(events):
    meta, messages = {}, []
    for event in events:
        if event["type"] == "session_meta":
            meta = dict(event["meta"])
        elif event["type"] == "message":
            messages.append(event["message"])
        elif event["type"] == "config":
            meta |= event["config"]
    return meta, messages


# %%
check.replay(my_replay)

# %%
# check.replay.hint(1)

# %%
source(check.replay.solution, fold="One solution")

# %%
check.replay(check.replay.solution)

# %% [markdown]
# **Then your code runs the agent**: a session that was handed over to another model, and killed while a tool was running.

# %%
turn = await stream(check.replay.turn(check.replay.solution))

# %% [markdown]
# **Think.** A half line at the end can be skipped. Is a bad line in the middle as harmless?
#
# <details><summary>An answer</summary>
#
# No. The end of a log is what happened last, and nothing refers to it yet. In the middle stands what later lines build on:
# a call whose result follows, one end of a range that is replaced, a model's settings. So the rest must be *checked*: pairs
# are mended, a range counts with what is left of it, and the count of skipped lines is shown to the person. To stop
# reading at the bad line would be the worst answer. Days of work would vanish without a word.
#
# </details>
#
# **Think.** A snapshot can be made safe: write a temporary file, then rename it over the old one. Why a log at all?
#
# <details><summary>An answer</summary>
#
# That is safe; `migrate_snapshot`, which turns such a file into a log, works much like it. But each message writes the
# whole session again: ten times as long a session writes a hundred times as much. And what was replaced or withdrawn is gone: nothing to
# rewind to, no branch from before the summary, nobody can see how it came to that.
#
# </details>
#
# **Think.** After a crash, why is a call not simply run again on resume?
#
# <details><summary>An answer</summary>
#
# Reading a file twice is harmless, paying twice is not, and the log cannot tell how far the call came (line 6 above). The
# program does not know what a repetition would do; the model may, and it can look first. So it gets the truth, as text.
#
# </details>
#
# ## In real products
#
# <details><summary>What products write down, and what was reported in the field</summary>
#
# | product | what it does |
# |---|---|
# | Reina (seed 000) | one JSONL file a session, over twenty types of events; one open handle, appends in a queue, no byte is ever rewritten; bad lines are skipped with a warning; on load, calls that stand as running are failed and answered; an old snapshot is migrated by temporary file and rename |
# | codex | a compaction is one more item in the [rollout](https://github.com/openai/codex); a fork is the event stream up to just before the n-th user message |
# | pi | the event of a compaction holds the summary, the first message that is kept, and the tokens before ([pi](https://github.com/earendil-works/pi)) |
# | opencode | an old tool output is marked as pruned, and not deleted ([opencode](https://github.com/anomalyco/opencode)) |
# | Claude Code | one JSONL file a session; each line names its parent (`uuid`, `parentUuid`) |
#
# | fault | reported in |
# |---|---|
# | the next record is glued to a half one: both are lost | [opensre 5750](https://github.com/Tracer-Cloud/opensre/issues/5750), [pi 8345](https://github.com/earendil-works/pi/issues/8345), [copilot-cli 4098](https://github.com/github/copilot-cli/issues/4098) |
# | a bad line in the middle ends the load without a word | [claude-code 50347](https://github.com/anthropics/claude-code/issues/50347), [gen-code 364](https://github.com/genai-io/gen-code/issues/364) |
# | `splitlines` cuts a record at U+2028; its number is given out again | [tau 354](https://github.com/huggingface/tau/issues/354), [OpenViking 3984](https://github.com/volcengine/OpenViking/issues/3984) |
# | record and line feed in two writes: two records share a line | [prismor 197](https://github.com/PrismorSec/prismor/issues/197), [qwen-code 3656](https://github.com/QwenLM/qwen-code/issues/3656) |
# | two processes resume one session, and give out the same numbers | [kolega-code 544](https://github.com/kolega-ai/kolega-code/issues/544), [zeph 5487](https://github.com/bug-ops/zeph/issues/5487) |
# | a session id that is a path leads out of the folder | [hermes-agent 54852](https://github.com/NousResearch/hermes-agent/issues/54852) |
# | a resumed session shows today's default model; the old model's address is left in the settings | Reina (seed 000) |
#
# </details>
#
# ## Go live
#
# A session on your own server, forgotten by everything but the log. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you start
# JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    for words in "My number is 4711.", "Which number did I give you?":
        try:
            journal = Journal.open(folder / "live", "mine")
        except AgentLabError:
            journal = Journal.create(folder / "live", {"model": os.environ.get("AGENT_MODEL")}, id="mine")
        with journal:
            session = replay.replay(journal.events())
            recorder = Recorder(journal, session.history)
            client = ChatClient.from_env({**os.environ, "AGENT_MODEL": session.meta["model"]})
            ask = [*session.history, user(words)]
            turn = await stream(run_turn(ask, client, Registry(), hooks=recorder.hooks))
            recorder.finish(turn.history)
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [The surface](09_surface.ipynb): the log keeps everything; what of it should the model see?
