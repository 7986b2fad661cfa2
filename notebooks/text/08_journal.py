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
# or the power fails, and nobody knows any more what was said, or which tool was running.

# %%
import json
import os
import tempfile
import textwrap
from pathlib import Path

from agentlab import check, draw, replay
from agentlab.errors import AgentLabError
from agentlab.journal import Journal, fork
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
# when 60 % is written:

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
(folder / "session.json").write_text(torn)  # opening it for writing has emptied the version before

print(f"{len(torn)} of {len(full)} characters are on the disk.")
try:
    json.loads((folder / "session.json").read_text())
except ValueError as error:
    print("Resume:", error)

# %% [markdown]
# Not one message is lost but all of them. And the longer a session gets, the longer each write takes in which this can
# happen.
#
# ## The mechanism
#
# **A log**: write down what *happens*, not what the session *is*. Each event is one more line at the end, and bytes that
# are there are never touched again. (Clock and id are given here, so that each run writes the same bytes.)

# %%
NOON = 1_767_268_800.0  # seconds since 1970


def new_journal(id, meta):
    return Journal.create(folder / "log", meta, id=id, clock=lambda: NOON, secrets=())


with new_journal("login", {"model": "small"}) as journal:
    journal.append({"type": "message", "message": user("Mend the login page.")})
    journal.append({"type": "message", "message": assistant("I read the code.")})
    journal.append({"type": "message", "message": user("And be quick.")})
print(journal.path.read_text())

# %% [markdown]
# **Replay** works out the session from its events. The same accident, with 60 % of the last line on the disk, costs that
# line. It stays where it is; the next append ends it with a line feed, and goes on:

# %%
whole = journal.path.read_bytes()
last = whole.rstrip().rfind(b"\n") + 1  # where the last line begins
journal.path.write_bytes(whole[: last + (len(whole) - last) * 60 // 100])

session = replay.replay(journal.events())
print(f"{len(session.history)} messages, {session.skipped} line skipped, model {session.meta['model']!r}\n")

with Journal.open(folder / "log", "login", clock=lambda: NOON) as journal:
    journal.append({"type": "message", "message": user("Where were we?")})
print(journal.path.read_text())

# %% [markdown]
# Number 4 is not given out again: the torn line has used it up. This is all there is to writing (`_writer` takes the lock,
# `write` first ends a torn line, and `sync` comes below):

# %%
source(Journal.append, docstring=False)

# %% [markdown]
# And this to reading. Event types that it does not know are skipped, so that an old program can read a newer one's log.

# %%
source(replay._replay, fold="Source")

# %% [markdown]
# ## Turn the knob
#
# The conversation from above, as a snapshot and as a log. The power fails while the file is being written. How many of the
# 62 messages can be read again, if it fails at this byte, or at that one?

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
draw.chart(survive, unit="messages")

# %% [markdown]
# The snapshot is all or nothing, and mostly nothing. Of the log, every finished line is left. Look at one place:

# %%
BYTES = size_bytes(TALK)


def view(byte):
    session, begun = from_log(byte), LOG.rfind(b"\n", 0, byte) + 1
    fates = ["kept"] * len(session.nodes) + ["dropped"] * session.skipped
    read = f"log: {len(session.nodes)} messages read, snapshot: {len(from_snapshot(byte))}"
    tail = LOG[max(begun, byte - 300) : byte]
    return draw.html(
        draw.strip(TALK[: len(fates)], fates=fates, scale=BYTES, caption=read),
        draw.bytes_view(tail) if tail else "The last line is whole.",
    )


knob = explore(view, byte=(LOG.index(b"\n") + 2, len(LOG)))
knob.set(byte=20_000)

# %%
end = [at for at, letter in enumerate(LOG) if letter == 10][30]  # where line 31 has its line feed
for byte in 20_000, end - 1, end, len(SNAPSHOT), len(LOG):
    knob.set(byte=byte)
    left = from_log(byte)
    print(f"byte {byte:6,}: snapshot {len(from_snapshot(byte)):2}, log {len(left.nodes):2}, torn {left.skipped}")
_ = knob.set(byte=20_000)

# %% [markdown]
# At byte 25,238 nothing but the line feed of line 31 is missing. The record is whole, so it counts.
#
# ## What happened, step by step
#
# A session with all that a log may hold: a tool call and its states, another model, words that were taken back, and a
# summary. **Step through it**: this is what the model would see if the process died right there.

# %%
leap = call("call_1", "run_shell", command="make test")
running = {"message": 3, "id": "call_1", "name": "run_shell", "status": "running"}
summary = user("So far: test_leap fails.") | {"origin": "compaction"}
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
    {"type": "message", "message": user("Mend test_leap only.")},
    {"type": "message", "message": assistant("It is mended.")},
    {"type": "replace", "start": 2, "end": 7, "node": summary, "reason": "compaction"},
    {"type": "message", "message": user("Thanks.")},
]
SMALL = {"title": "leap years", "model": "small", "base_url": "http://small/v1"}
with new_journal("leap", SMALL) as journal:
    journal.append_all(STEPS)
EVENTS = list(journal.events())


# %%
def short(event):
    return json.dumps({name: event[name] for name in event if name not in ("seq", "ts")})


def view(event):
    session = replay.replay(EVENTS[:event])
    fates = {"compaction": "summarised", "repair": "repaired"}
    rows = [
        (f"event {event}", short(EVENTS[event - 1])),
        ("meta", json.dumps(session.meta)),
        ("state of the call", ", ".join(each["status"] for each in session.tool_calls.values()) or "none"),
        ("the model sees last", session.history[-1]["content"] if session.history else "nothing"),
    ]
    drawn = [fates.get(message.get("origin"), "kept") for message in session.history]
    return draw.html(draw.table(rows), draw.strip(session.history, fates=drawn, scale=900))


scrubber = explore(view, event=(1, len(EVENTS)))
scrubber.set(event=4)

# %%
for number in 3, 4, 5, 8, 11, 14:
    scrubber.set(event=number)
    session = replay.replay(EVENTS[:number])
    states = [record["status"] for record in session.tool_calls.values()]
    print(number, EVENTS[number - 1]["type"], len(session.history), "messages", states, session.meta)
_ = scrubber.set(event=4)

# %% [markdown]
# - **3 to 5, a call.** The reply is in the log before its call runs. If the process dies at 3, the call has not started. At 4
#   it was running, and nobody knows how far it came: its state becomes `failed`, and the model reads that the effects are
#   unknown.
# - **8, another model.** A resumed session goes on with it, and not with the default of the day. The old model's settings
#   leave with it, all of them. Merged, `base_url` would stay, and send the requests for `large` to the host of `small`.
# - **11, a rewind.** It withdraws what is numbered above `to`, and deletes nothing.
# - **14, a summary.** It names a range by its *numbers*, since positions in a list move.
#
# A **fork** is the first part of the log, in a file of its own. Is the summary in the branch, or what was withdrawn? There
# is no rule for that, and none is needed:

# %%
for seq in 10, 11, 13, 15:
    branch = fork(journal, seq, id=f"branch-{seq}")
    print(f"{seq}: {' | '.join(message['content'] for message in replay.replay(branch.events()).history)}")


# %% [markdown]
# ## In the loop
#
# A `Recorder` turns what the loop does into events of the journal. This agent has to pay an invoice. The model is a script:
# where a result says that something is unknown, it looks before it pays again.

# %%
def cashier(request):
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    last, fresh = results[-1] if results else "", f"call_{len(results) + 1}"
    if "unknown" in last:
        return assistant("It broke off. I look first.", call(fresh, "payments"))
    return "Invoice 17 is paid." if last in ("done", "paid: 17") else assistant("", call(fresh, "pay", invoice=17))


def go_on(journal, history, paid):
    registry = Registry()

    @registry.tool
    def pay(invoice: int) -> str:
        paid.append(invoice)
        return "done"

    @registry.tool(read_only=True)
    def payments() -> str:
        return f"paid: {', '.join(map(str, paid)) or 'nothing'}"

    hooks = Recorder(journal, history).hooks  # of this history nothing is written again
    return run_turn(history, Simulator(cashier).client(), registry, hooks=hooks, policy=Policy(default="allow"))


# %% [markdown]
# One run to the end, for its log. Then the same log as it is when the process is **killed in the middle of the tool**: the
# money is gone, and the end of the call, line 6, is not written. Resume:

# %%
with new_journal("bank", {"model": "small"}) as journal:
    journal.append({"type": "message", "message": user("Pay invoice 17.")})
    await go_on(journal, replay.replay(journal.events()).history, []).run()
BANK = list(journal.events())
LINES = journal.path.read_bytes().splitlines(keepends=True)


def killed(line, id):
    journal = new_journal(id, {})
    journal.path.write_bytes(b"".join(LINES[: line - 1]) + LINES[line - 1][:40])
    history = replay.replay(journal.events()).history
    return journal, history or [user("Pay invoice 17.")]  # lost with line 2: the person asks again


paid = [17]
journal, history = killed(6, "killed")
print(history[-1]["content"])
with journal:
    turn = await stream(go_on(journal, history, paid))
print("payments:", paid)

# %% [markdown]
# And killed in any other line? How often is the invoice paid in the end? Line 6 has two rows: whether the money is gone or
# not, the log looks the same.

# %%
rows = []
for line, before in (2, []), (3, []), (4, []), (5, []), (6, []), (6, [17]), (7, [17]), (8, [17]), (9, [17]):
    paid, event = list(before), BANK[line - 1]
    journal, history = killed(line, f"killed-{len(rows)}")
    with journal:
        turn = await go_on(journal, history, paid).run()
    did = [each["function"]["name"] for m in turn.history[len(history) :] for each in m.get("tool_calls", [])]
    what = event.get("record", {}).get("status") or event.get("message", {}).get("role") or ""
    read = textwrap.shorten(history[-1]["content"], 75, placeholder=" ...")
    rows.append((f"{line} {event['type']} {what}", "yes" if before else "no", read, ", ".join(did), len(paid)))
head = ("killed in line", "paid by then", "the model reads last", "and calls", "payments")
draw.table(rows, head=head)


# %% [markdown]
# ## What else a log must promise
#
# <details><summary>When is an event safe?</summary>
#
# `append` returns when the event is as safe as the journal was told to make it. The bytes are the same.
#
# | `durability` | what was acknowledged survives | how |
# |---|---|---|
# | `"flush"` (default) | the end of this process, `kill -9` included | one `write` for one record: it is the system's now |
# | `"sync"` | a power failure too, as far as the disk keeps its word | and `fdatasync`; those who wait at once share one |
#
# After Ctrl+C in the middle of a write nobody knows whether the record is in the file. So before the next append the file
# itself is asked.
#
# </details>
#
# <details><summary>Who may write?</summary>
#
# One writer: two would give out the same numbers. The first append takes a lock; `close` gives it back, and so does the end
# of the process, `kill -9` included. A second writer gets `JournalBusy` before anything is written. Who only reads is
# welcome.
#
# </details>
#
# <details><summary>What about keys?</summary>
#
# A log is copied, backed up and shown to others. So the values of the keys in the environment become `[redacted]` wherever
# they turn up. By name:
#
# - **In settings** (the first line, `config`) any name that ends in a key's word: `api_key`, `token`, `auth`, `secret`,
#   `password`, `credentials`, `cookie`, `HF_TOKEN`, `x-functions-key`. The field is left out, so that a resumed session looks
#   for a fresh key. In a list of words, `["--api-key", "sk-..."]`, the key is masked.
# - **In messages, inputs and results** only a name that can mean nothing else: `api_key`, `Authorization`, `access_token`,
#   `client_secret`, `password`. It is masked, and all keeps its shape: a recipe for a cookie stays a recipe.
#
# A key known by neither name nor value, in the middle of a text, stays in the log.
#
# </details>
#
# <details><summary>Which sessions are there?</summary>
#
# `sessions(folder)` lists them with size and age. The title is what a person said first, and a session whose first line is
# lost is shown with the reason.
#
# </details>
#
# ## Your turn
#
# **1. The event** that says: these messages are a summary now. `event(view, keep, summary)` makes it, for all but the newest
# `keep` messages, or returns None when there is nothing to replace. `apply(view, event)` is the rule for replay. A view is a
# list of `(number, message)`; the event's `node` is the message that takes the place. This one goes by the size of the
# numbers:

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


check.compacted_event(MyCompaction)

# %%
# check.compacted_event.hint(1)

# %%
source(check.compacted_event.solution, fold="One solution")

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


check.broken_chain(my_chain)

# %%
# check.broken_chain.hint(1)

# %%
source(check.broken_chain.solution, fold="One solution")

# %% [markdown]
# **Then your code runs the agent**, on a log in which a call and another call's result are lost:

# %%
turn = await stream(check.broken_chain.turn(check.broken_chain.solution))


# %% [markdown]
# **3. Replay.** From events to `(meta, messages)`. Calls that lost their results are mended later. This one knows messages
# and models:

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


check.replay(my_replay)

# %%
# check.replay.hint(1)

# %%
source(check.replay.solution, fold="One solution")

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
# whole session again: a session ten times as long writes a hundred times as much. And what was replaced or
# withdrawn is gone: nothing to rewind to, no branch from before the summary, nobody can see how it came to that.
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
