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
# # The stream: from bytes to a message
#
# ← [Tool output](02_spill.ipynb) · modules: `sse`, `assemble`
#
# **The problem.** A reply does not arrive as a message. It arrives as bytes, in **chunks** that the network cuts wherever it
# likes: inside a line, inside JSON, inside one letter. Whoever puts them together carelessly loses words, and sometimes a
# whole tool call.

# %%
import json
import os
import textwrap
from collections import Counter

from agentlab import check, draw
from agentlab.assemble import Assembler
from agentlab.errors import StreamError
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, user
from agentlab.notebook import data, source
from agentlab.provider import ChatClient
from agentlab.simulator import Simulator
from agentlab.sse import LineSplitter, SSEDecoder, json_events
from agentlab.tools import Registry
from agentlab.widgets import explore, stream

# %% [markdown]
# Here are the first bytes of a reply from a real server (llama.cpp). The format is SSE, *server-sent events*: an event is a
# line `data: …` with JSON in it, then a blank line. Each mark is a cut, one every 31 bytes; all of them fall inside JSON.

# %%
DATA = data()


def captured(name):
    return (DATA / "captures" / f"{name}.sse").read_bytes()


def cut_up(body, size):
    return [body[start : start + size] for start in range(0, len(body), size)]


body = captured("text_emoji")
draw.bytes_view(body[:310], cuts=range(31, 310, 31))


# %% [markdown]
# ## Break it
#
# Three readers that look right. The first one takes a chunk for an event. On your desk, where every event may well come in a
# chunk of its own, that even works, up to the `[DONE]` that ends the stream:

# %%
def one_chunk_one_event(chunks):
    for chunk in chunks:
        yield json.loads(chunk.decode().removeprefix("data: "))


on_your_desk = [event + b"\n\n" for event in body.split(b"\n\n") if event]
for name, chunks in ("on your desk", on_your_desk), ("cut every 31 bytes", cut_up(body, 31)), ("all at once", [body]):
    events = []
    try:
        for event in one_chunk_one_event(chunks):
            events.append(event)
    except ValueError as error:
        print(f"{name}: {len(events)} of {len(chunks)} chunks parse, then\n    {type(error).__name__}: {error}")


# %% [markdown]
# The second reader waits for whole lines, but decodes each chunk as it comes:

# %%
def decode_each_chunk(chunks):
    text = "".join(chunk.decode("utf-8", "replace") for chunk in chunks)
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def said(events):
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


broken = said(decode_each_chunk(cut_up(body, 31)))
print("sent:", said(json_events([body])))
print("read:", broken)

# %% [markdown]
# The third one splits lines with `splitlines()`. Python splits at U+2028 as well, a character that may stand in JSON as it
# is:

# %%
event = 'data: {"choices":[{"delta":{"content":"line one\u2028line two"}}]}'
halves = event.splitlines()
try:
    json.loads(halves[0][6:])
except ValueError as error:
    print(f"1 event, {len(halves)} lines: {error}")

# %% [markdown]
# The first lost every word, the second a letter, the third a whole event.
#
# ## The mechanism
#
# One rule, three times: **hold back what is not whole.** First, bytes become *lines*. Nothing is decoded yet, and need not
# be: in UTF-8 the byte of a line feed is never part of another character.

# %%
source(LineSplitter.feed, docstring=False)

# %%
splitter = LineSplitter()
for chunk in cut_up(b'data: {"city":"Paris"}\n\ndata: [DONE]\n\n', 10):
    print(f"{chunk!r:16} -> {splitter.feed(chunk)}")

# %% [markdown]
# Second, lines become *events*. `data:` lines add up until a blank line says "this event is whole". The lines `event:`,
# `id:` and `retry:` belong to the standard; a line that begins with a colon is a comment.

# %%
source(SSEDecoder._events, fold="Source")

# %%
decoder = SSEDecoder()
for position, byte in enumerate(b": still here\r\n\r\nevent: note\r\ndata: one\r\ndata: two\r\n\r\n", 1):
    for event in decoder.feed(bytes([byte])):
        print(f"after byte {position}: {event}")

# %% [markdown]
# Third, the JSON in an event holds a *delta*: a few letters of text, or of a tool call's arguments. Deltas add up to the
# message. The arguments stay text: they are not parsed before the call is whole.

# %%
source(Assembler._tool_call)


# %%
def assemble(events):
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.message()


assemble(json_events(cut_up(captured("tool_call"), 31)))["tool_calls"][0]

# %% [markdown]
# The whole way of the first reply:

# %%
chunks = cut_up(body, 31)
splitter = LineSplitter()
lines = [line for chunk in chunks for line in splitter.feed(chunk)]
events = list(json_events(chunks))
deltas = [choice["delta"] for event in events for choice in event["choices"]]
message = assemble(events)

stages = {"chunks": chunks, "lines": lines, "events": events, "deltas": deltas, "message": [message]}
draw.table(
    [(name, len(items), "\n".join(str(item)[:75] for item in items[:3])) for name, items in stages.items()],
    head=("stage", "how many", "the first of them"),
)

# %% [markdown]
# ## Turn the knob
#
# Take another reply, cut smaller or larger. The first reader never copes, the second one only where no letter is cut in two,
# and `agentlab.sse` gives the same message at every size.

# %%
READERS = {
    "a chunk is an event": one_chunk_one_event,
    "decode each chunk": decode_each_chunk,
    "agentlab.sse": json_events,
}


def told(message):
    calls = [f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls", [])]
    return "\n".join([message["content"], *calls]).strip()


def read(reader, reply, cut):
    try:
        return told(assemble(reader(cut_up(captured(reply), cut))))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"[:100]


# %%
REPLIES = ["text_emoji", "tool_call", "tool_call_parallel", "text_usage"]
BODIES = {reply: captured(reply) for reply in REPLIES}
KINDS = {reply: [draw.cut_kind(body, at) for at in range(len(body))] for reply, body in BODIES.items()}


def view(reply, cut):
    body, kinds = BODIES[reply], KINDS[reply]
    cuts = range(cut, len(body), cut)
    tally = Counter(kinds[at] for at in cuts)
    worst = next((at for kind in reversed(draw.CUTS) for at in cuts if kinds[at] == kind), 300)
    start = max(body.rfind(b"data:", 0, worst), 0)
    shown = draw.bytes_view(body[start : start + 300], cuts=[at - start for at in cuts if start < at < start + 300])
    return draw.html(
        f"{len(cuts)} cuts in all: " + ", ".join(f"{tally[kind]} {kind}" for kind in draw.CUTS) + ". One of the worst:",
        shown,
        draw.table([(name, read(reader, reply, cut)) for name, reader in READERS.items()], head=("reader", "message")),
    )


SIZES = [("1 byte", 1), *((f"{n} bytes", n) for n in (2, 3, 5, 7, 11, 16, 31, 64, 100, 250, 1000, 3000)), ("all", 1 << 20)]
knob = explore(view, reply=REPLIES, cut=SIZES)
knob.set(cut=31)

# %%
for cut in 1, 16, 31:
    knob.set(cut=cut)
    print(f"{cut:2} | {read(decode_each_chunk, 'text_emoji', cut)} | {read(json_events, 'text_emoji', cut)}")
for reply in REPLIES:
    print(f"{reply}: {len({read(json_events, reply, cut) for _, cut in SIZES})} message from {len(SIZES)} sizes of chunks")

# %% [markdown]
# ### Whose piece is it?
#
# A model may call two tools at once, and their pieces may come mixed. `index` says whose piece it is; only the first piece of
# a call has its id and name. (Arguments that are still empty read as `{}`.)

# %%
MIXED = [
    {"index": 0, "id": "call_ls", "function": {"name": "run_shell", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"comm'}},
    {"index": 1, "id": "call_read", "function": {"name": "read_file", "arguments": '{"path":'}},
    {"index": 0, "function": {"arguments": 'and":"ls'}},
    {"index": 1, "function": {"arguments": '"a.txt"}'}},
    {"index": 0, "function": {"arguments": ' -la"}'}},
]


def after(pieces):
    return assemble({"choices": [{"delta": {"tool_calls": [piece]}}]} for piece in MIXED[:pieces])


# %%
def box(text, index):
    colour = ["#80b9ea", "#f3c35b"][index]
    return draw.element("code", text or " ", style=f"background-color:{colour};color:#1b1b1b;padding:1px 6px")


def growing(pieces):
    rows = []
    for number, piece in enumerate(MIXED[:pieces], 1):
        so_far = [call["function"]["arguments"] for call in after(number)["tool_calls"]]
        cells = [box(text, at) if at == piece["index"] else text for at, text in enumerate(so_far)]
        rows.append([box(f"index {piece['index']}", piece["index"]), repr(piece["function"]["arguments"]), *cells])
    return draw.table(rows, head=("piece of", "its arguments", "run_shell so far", "read_file so far"))


pieces = explore(growing, pieces=(1, len(MIXED)))
pieces.set(pieces=len(MIXED))

# %%
for number in 4, 6:
    pieces.set(pieces=number)
    print(f"after {number} pieces:", told(after(number)).replace("\n", " | "))

# %% [markdown]
# Real servers do not always keep to that. Here is what the same assembler makes of twelve recorded streams.
#
# <details><summary>What is odd in them, and the rule that deals with it</summary>
#
# | stream | what is odd | rule |
# |---|---|---|
# | `openai_parallel_tools` | two calls; usage on a chunk without choices | the index is a key |
# | `openai_compat_anthropic_index1` | the only call has index 1 | a key, not a position |
# | `qwen_tool_call_empty_ids` | later pieces have the id `""` | no id: it goes on with the call |
# | `openrouter_tools_variant_a` | id and name come twice, `{}` late | what is repeated is ignored |
# | `openrouter_tools_variant_d` | `arguments: null` | an empty total means `{}` |
# | `xai_reasoning_tool` | the whole call in one piece, reasoning | reasoning never mixes with text |
# | `deepseek_reasoning_tool_cache` | reasoning, then a call | reasoning never mixes with text |
# | `groq_tool_call_x_groq` | usage in two places | the last usage counts |
# | `perplexity_usage_every_chunk` | a running total in every chunk | the last usage counts, they are not added up |
# | `azure_prompt_filter_first` | a first chunk without choices | choices may be empty |
# | `openrouter_error_in_chunk` | status 200, then an error in a chunk | an error is raised, what came is kept |
# | `groq_error_event` | `event: error`, and no end | an error is raised, what came is kept |
#
# </details>

# %%
STREAMS = """
    openai_parallel_tools openai_compat_anthropic_index1 qwen_tool_call_empty_ids
    openrouter_tools_variant_a openrouter_tools_variant_d xai_reasoning_tool
    deepseek_reasoning_tool_cache groq_tool_call_x_groq perplexity_usage_every_chunk
    azure_prompt_filter_first openrouter_error_in_chunk groq_error_event
""".split()


def outcome(name):
    [path] = (DATA / "streams").glob(f"{name}.*")
    body = path.read_bytes()
    events = json_events([body]) if path.suffix == ".sse" else map(json.loads, body.strip().split(b"\n"))
    try:
        return told(assemble(events))
    except StreamError as error:
        return f"StreamError: {error}"


rows = [(name, textwrap.shorten(outcome(name), 100, placeholder=" …")) for name in STREAMS]
draw.table(rows, head=("recorded stream", "what came out"))

# %% [markdown]
# ## In the loop
#
# The same code in a running turn. This network delivers **one byte at a time**, through text, emoji and a tool call:

# %%
registry = Registry()


@registry.tool(read_only=True)
def get_weather(city: str, days: int) -> str:
    """The weather of the next days."""
    return f"{city}, {days} days: ☀ 21 °C"


ask = [user("What will the weather be in Zürich? 🌦")]
story = [
    assistant("I look it up… 🔎", call("call_1", "get_weather", city="Zürich", days=2)),
    "In Zürich: ☀ and 21 °C, for two days. 🚲",
]
turn = await stream(run_turn(ask, Simulator(story, chunk=1).client(), registry))

# %%
big_chunks = await run_turn(ask, Simulator(story, chunk=4096).client(), registry).run()
print("the same history as with 4,096 bytes a chunk:", turn.history == big_chunks.history)

# %% [markdown]
# The assembler can be asked for its message at any time, so what has come by then can be kept. Press **Stop** while it types;
# left alone, the cell presses it after the 9th piece of text.

# %%
slow = Simulator(["Grüezi! It will be sunny on Monday, windy on Tuesday, and grey from Wednesday on."], chunk=3, pace=0.0005)
turn = await stream(run_turn(ask, slow.client(), registry), click_after=9)
print(turn.reason, "|", turn.history[-1])


# %% [markdown]
# ## Your turn
#
# Write the assembler: `feed` takes one event and returns the text that is new in it, `message` returns the whole message.
# This one looks right, and is wrong in two ways. Run the check, read what it says, mend the class, run it again. (`#0` stands
# for a piece with index 0.)

# %%
class MyAssembler:
    def __init__(self):
        self.text = ""
        self.calls = []

    def feed(self, event):
        new = ""
        for choice in event["choices"]:
            delta = choice["delta"]
            new += delta.get("content") or ""
            for piece in delta.get("tool_calls") or []:
                if piece.get("id"):
                    self.calls.append(piece)  # a new call
                else:
                    self.calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
        self.text += new
        return new

    def message(self):
        message = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = self.calls
        return message


# %%
check.assembler(MyAssembler)

# %% [markdown]
# The last part is no test case: your class **ran an agent**, and those are the offline provider's words. Stuck? There are
# three hints, and a solution.

# %%
# check.assembler.hint(1)

# %%
source(check.assembler.solution, fold="One solution")

# %%
check.assembler(check.assembler.solution)

# %% [markdown]
# **Then your code runs the agent.** Put `MyAssembler` in place of the solution and watch it work:

# %%
turn = await stream(check.assembler.turn(check.assembler.solution))

# %% [markdown]
# **Think.** One piece of this captured call is valid JSON all by itself. Why is it wrong all the same to parse a piece when it
# comes?

# %%
deltas = [choice["delta"] for event in json_events([captured("tool_call")]) for choice in event["choices"]]
calls = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
print([piece["function"]["arguments"] for piece in calls if piece["index"] == 0])

# %% [markdown]
# <details><summary>An answer</summary>
#
# A piece that parses proves nothing: ` 2` is a number, but `4` may come next, and then it was 24. Only when the call has ended
# is its text whole. And where a piece ends is an accident: another server, or the next release of this one, cuts elsewhere.
#
# </details>
#
# ## In real products
#
# <details><summary>The same faults in the field, and where they were reported</summary>
#
# | fault | reported in |
# |---|---|
# | each chunk decoded on its own: U+FFFD in the text | [Fabric 2203](https://github.com/danielmiessler/Fabric/pull/2203), [aisix 111](https://github.com/api7/aisix/issues/111) |
# | lines split at U+2028, too | [httpx-sse 34](https://github.com/florimondmanca/httpx-sse/issues/34), mended in 0.4.2; `iter_lines` of httpx 0.28 still does |
# | `choices[0]` on the usage chunk | [pixeltable 1234](https://github.com/pixeltable/pixeltable/pull/1234), [hello-agents 377](https://github.com/datawhalechina/hello-agents/pull/377) |
# | a piece without an id goes to the last call: mixed calls spoil each other | [Qwen-Agent 943](https://github.com/QwenLM/Qwen-Agent/pull/943) |
# | no `index`: a crash, or two calls melt into one | [openai-python 2806](https://github.com/openai/openai-python/issues/2806), [agentao 117](https://github.com/jin-bo/agentao/pull/117) |
# | `index` taken for a position in a list: a ghost call | [pipecat 5342](https://github.com/pipecat-ai/pipecat/pull/5342) |
# | `index` 0 for every call: arguments glued together | [smolagents 1569](https://github.com/huggingface/smolagents/issues/1569), [vercel/ai 14277](https://github.com/vercel/ai/pull/14277) |
# | arguments begun as `{}`, since the first piece says null: `{}{…}` | [ogx 5464](https://github.com/ogx-ai/ogx/issues/5464) |
# | the end without a finish reason taken for "stop" | [pycodeloop 64](https://github.com/dotflow-io/pycodeloop/issues/64) |
# | an error inside a 200 stream overlooked: an empty answer | [OmniRoute 8210](https://github.com/diegosouzapw/OmniRoute/pull/8210) |
#
# The vendors' SDKs are right on well-formed streams, at any cut. Tried on others: openai 3.57 raises when `index` is missing
# or starts at 1, and joins a repeated id to itself (`aa`); anthropic 2.14 parses the growing arguments on every piece, and
# input cut off in the middle becomes `{}` without a word.
#
# </details>
#
# ## Go live
#
# The same code on the bytes of your own server. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you start JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    await stream(run_turn(ask, ChatClient.from_env(), registry))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [Interrupt](04_interrupt.ipynb), where somebody presses Stop in the middle of a tool call.
