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
# # The prompt cache: what was sent before is cheap, unless you change it
#
# ← [Compaction](05_compaction.ipynb) · modules: `prefix`, `usage`, `ledger`, `prices`, `devmode`, `ttl`, `simulator.cache`
#
# **The problem.** A model remembers nothing, so an agent sends the whole conversation with every request, and pays for it
# every time. A provider keeps the beginning that it has just computed and sells it again for a tenth or less; one changed
# character ends that beginning, and no error says so.

# %%
import json
import os
import tempfile
from pathlib import Path


from agentlab import check, draw, prefix, ttl
from agentlab.devmode import DevMode
from agentlab.errors import AgentLabError
from agentlab.loop import Hooks, run_turn
from agentlab.messages import assistant, call, calls_of, user
from agentlab.notebook import data, source
from agentlab.prefix import assert_append_only, diff
from agentlab.provider import ChatClient
from agentlab.provider.anthropic import convert
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache, BreakpointCache, UnitCache
from agentlab.tools import Registry
from agentlab.usage import Ledger, PriceList, bill, cost_view, diagnose, read_usage, status_line, total
from agentlab.widgets import explore, stream
from agentlab.workspace import Workspace

# %% [markdown]
# A real conversation from an airline's help desk, 62 messages. The model was asked 30 times, and each time all that stood
# before was sent:

# %%
SESSION = json.loads(data("sessions", "airline_chat.json").read_text())
names = sorted({each["function"]["name"] for message in SESSION for each in calls_of(message)})
schema = {"type": "object", "properties": {}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
ends = [at for at, message in enumerate(SESSION) if message["role"] == "assistant"]
REQUESTS = [{"model": "offline", "messages": SESSION[:end], "tools": TOOLS} for end in ends]


def replay(requests, cache, dialect="openai", times=None):
    """The usage of these requests, as a provider with this cache reports it; the model says what it said then."""
    now = 0.0
    replies = iter(SESSION[end] for end in ends)
    simulator = Simulator(lambda _: next(replies), dialect=dialect, cache=cache, clock=lambda: now)
    for number, request in enumerate(requests):
        now = times[number] if times else 10.0 * number
        status, _, chunks = simulator.respond(request)
        body = b"".join(chunks)
        assert status == 200, body
    return [read_usage(usage) for usage in simulator.usages]


usages = replay(REQUESTS, BlockCache())
last, sent = usages[-1].prompt, total(usages).prompt
print(f"The conversation: {last:,} tokens. Sent in all: {sent:,}, {sent / last:.0f} times that.")
draw.chart({"tokens sent in each request": [usage.prompt for usage in usages]}, unit="tokens")

# %% [markdown]
# ## Break it
#
# **Experiment A: a clock in the system prompt.** This system prompt holds a time, in its second line. Here it stands
# still. Many agents put the real time there, so let it tick:

# %%
print("\n".join(SESSION[0]["content"].splitlines()[:3]))


def ticking(request, number):
    system, *rest = request["messages"]
    system = system | {"content": system["content"].replace("15:00:00", f"15:00:{number:02}")}
    return request | {"messages": [system, *rest]}


TICKING = [ticking(request, number) for number, request in enumerate(REQUESTS)]

# %% tags=["breaks-prefix"]
broken = replay(TICKING, BlockCache())
print("stands still:", status_line(usages[-1], session=usages))
print("ticks:       ", status_line(broken[-1], session=broken))
paid = {"stands still": [u.miss for u in usages], "ticks": [u.miss for u in broken]}
draw.chart(paid, unit="tokens at full price", looks={"stands still": "cached", "ticks": "paid again"})

# %% [markdown]
# The same words and the same answers. Nothing failed, nobody was told; only the bill knows. Prices come from the
# providers' own pages (`data/prices.json`); a model that is not there has none, and says so.

# %%
PRICES = PriceList.read(data("prices.json"))
MODELS = {"gpt-6.2-sol": None, "claude-sonnet-5": None, "deepseek-v4-pro": "peak"}
rows = []
for model, tier in MODELS.items():
    price = PRICES.find(model, tier=tier)
    good, bad = bill(usages, price).actual, bill(broken, price).actual
    rows.append((model, price.date, f"{good:.4f}", f"{bad:.4f}", f"{bad / good:.1f}"))
try:
    PRICES.find("my-own-model")
except AgentLabError as unknown:
    print(unknown)
draw.table(rows, head=("model", "price read on", "stands still, USD", "ticks, USD", "times"))

# %% [markdown]
# (One session's token counts with each model's prices, without write premiums: what was written is not reported here.
# That these caches follow three different rules comes below.)
#
# The seed of this chapter speaks of "almost 7 times": 30 requests of 60,000 tokens, 95 % of them hits, a hit at a tenth.
# And this is its status line of one healthy request:

# %%
steady = [{"prompt_tokens": 60_000, "prompt_tokens_details": {"cached_tokens": 57_000}}] * 30
seed = bill(steady, {"input": 1.0, "read": 0.1})
print(f"{seed.actual / seed.without_cache:.3f} of the full price: {seed.without_cache / seed.actual:.1f} times less")
print(status_line({"prompt_tokens": 48_213, "prompt_tokens_details": {"cached_tokens": 47_616}}))

# %% [markdown]
# ## The mechanism
#
# A request is laid out as one text: tools, system prompt, messages. What a cache can reuse is the **common prefix** of
# this text and an earlier one, and nothing behind it.

# %%
source(prefix.common_prefix)

# %% [markdown]
# `diff` compares two requests, and names the **culprit**: the first part that differs.

# %%
diff(TICKING[13], TICKING[14])

# %%
diff(REQUESTS[13], REQUESTS[14])


# %% [markdown]
# Hence three disciplines:
#
# 1. **A byte-stable system prompt.** No clock, no counter, no "7 requests left".
# 2. **Tools in one fixed order.** None added, removed, sorted anew or described anew while a session runs.
# 3. **Append only.** What was sent is never edited.
#
# **Experiment B: the time at the tail.** What changes goes into the newest message, and stays there as it was written:

# %%
def stamped(request):
    messages = [
        message | {"content": f"{message['content']}\n[15:00:{at:02}]"} if message["role"] == "user" else message
        for at, message in enumerate(request["messages"])
    ]
    return request | {"messages": messages}


STAMPED = [stamped(request) for request in REQUESTS]
assert_append_only(STAMPED)  # for your own test suite: it raises, and names the culprit
print(status_line(total(replay(STAMPED, BlockCache()))))

# %% [markdown]
# The time is not lost; its bytes just never change again. The checker compares, it does not look for dates.
#
# **Experiment C: a good deed.** From request 20 on, somebody shortens an old tool result, to save context:

# %%
LONG = max(range(20), key=lambda at: len(SESSION[at]["content"] or "") * (SESSION[at]["role"] == "tool"))


def trimmed(request):
    old = request["messages"][LONG]
    new = old | {"content": old["content"][:80] + " [shortened]"}
    return request | {"messages": [*request["messages"][:LONG], new, *request["messages"][LONG + 1 :]]}


TRIMMED = [*REQUESTS[:19], *map(trimmed, REQUESTS[19:])]
after = replay(TRIMMED, BlockCache())
print(f"saved: {usages[19].prompt - after[19].prompt:,} tokens in each request from then on")
print(f"paid again at once: {after[19].miss - usages[19].miss:,} tokens, at ten times the price or more")
diff(TRIMMED[18], TRIMMED[19])

# %% [markdown]
# Whoever wants to save does it earlier, before the result is sent ([Tool output](02_spill.ipynb)), or all at once
# ([Compaction](05_compaction.ipynb)).
#
# **Experiment D: from numbers alone.** Nobody keeps the text of every request, but every response carries three numbers.
# The last prompt was just computed, so this request should have read all of it:
# `missed = min(last prompt, this prompt) - hit`. The **ledger** adds this up. The same session; before request 10 the
# person is away for 38 minutes, and at request 20 that result is shortened:

# %%
times = [10.0 * number + (38 * 60 if number >= 9 else 0) for number in range(len(REQUESTS))]
ledger = Ledger(ttl_s=300)
for usage, at in zip(replay(TRIMMED, BlockCache(ttl_s=300), times=times), times, strict=True):
    ledger.record(usage, at)

rows = []
for number, entry in enumerate(ledger.entries, 1):
    if number in (1, 2, 9, 10, 11, 19, 20, 21):
        usage = entry.usage
        rows.append((number, usage.prompt, usage.hit, entry.missed, f"{entry.idle_s:g} s", entry.verdict))
title = f"Cache waste: {ledger.wasted:,} tokens in {ledger.misses} misses"
draw.table(rows, head=("request", "prompt", "hit", "paid again", "idle", "verdict"), caption=title)

# %% [markdown]
# Requests 10 and 20 look alike: the hits fall. Only the pause tells them apart. Longer than the **TTL**, the time to live
# of an unused cache: **expired**, nobody's fault. Shorter: **rewritten**, a fault in the program.

# %%
source(Ledger.record)


# %% [markdown]
# The seed's own figures for A to D, from three requests laid out as one text and from six turns. The words here are ours,
# the lengths and the numbers are the seed's.

# %%
def seeded(number, in_system, trimmed=False):
    clock = f"10:23:0{number + 1 if in_system else 4}"
    system = "Look first, then act.".ljust(29, ".")
    asked = "How do I run the tests?".ljust(40, ".")
    parts = [f"Now: {clock}.{system}" if in_system else system, "run_shell, read_file".ljust(98, ".")]
    parts = [f"[system]\n{parts[0]}", f"[tools]\n{parts[1]}"]
    parts.append(f"[user]\n{asked}" + ("" if in_system else f"\n\n[Time {clock}]"))
    for at, (said, length) in enumerate([(38, 324), (44, 54)][:number]):
        result = f"result {at}".ljust(length, ".")
        result = result[:80] + "(shortened" if trimmed and at == 0 else result
        parts += [f"[assistant]\n{'call'.ljust(said, '.')}", f"[tool]\n{result}"]
    return "\n\n".join(parts)


A, B = ([seeded(number, in_system) for number in range(3)] for in_system in (True, False))
PAIRS = {
    "A, a clock in front: request 1, then 2": (A[0], A[1]),
    "A, request 2, then 3": (A[1], A[2]),
    "B, the clock at the tail: 2, then 3": (B[1], B[2]),
    "C, a result shortened: 2, then 3": (B[1], seeded(2, False, trimmed=True)),
}
for what, (one, other) in PAIRS.items():
    print(f"{what}: {prefix.common_prefix(one, other) / len(one):.1%} can be reused")

six, now = Ledger(), 0
TURNS = [(0, 8200, 0), (15, 11400, 8200), (20, 14100, 11400), (2280, 16300, 0), (10, 18000, 16300), (12, 17600, 5100)]
for gap, prompt, read in TURNS:
    now += gap
    fields = {"input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": prompt - read}
    six.record(fields, now)
print(f"D, six turns: {six.wasted:,} tokens in {six.misses} misses")

# %% [markdown]
# From a ledger to a diagnosis. Four sessions, four symptoms; the third is compacted at request 20, and `reset()` called:

# %%
COMPACTED = [*REQUESTS[:19]]
for request in REQUESTS[19:]:
    system, *rest = request["messages"]
    summary = user("So far: the bookings were looked up.")
    COMPACTED.append(request | {"messages": [system, summary, *rest[ends[9] - 1 :]]})


def kept_books(usages, compacted_at=None):
    books = Ledger()
    for number, usage in enumerate(usages):
        if number == compacted_at:
            books.reset()
        books.record(usage, 10.0 * number)
    return books


silent = [{"prompt_tokens": usage.prompt} for usage in usages]
LEDGERS = {
    "the clock ticks": kept_books(broken),
    "a result is shortened": kept_books(after),
    "compacted": kept_books(replay(COMPACTED, BlockCache()), compacted_at=19),
    "the provider is silent": kept_books(silent),
}
rows = []
for what, books in LEDGERS.items():
    for symptom in diagnose(books.entries):
        if symptom.found:
            rows.append((what, symptom.sign, len(symptom.requests), symptom.requests[0], symptom.meaning))
draw.table(rows, head=("session", "symptom", "requests", "first", "what it means"))

# %% [markdown]
# And what a person sees when they type `/cost`:

# %%
print(cost_view(after, PRICES.find("gpt-6.2-sol"), ledger=LEDGERS["a result is shortened"]))


# %% [markdown]
# ### Three kinds of caches
#
# "The common prefix" is what *can* be reused. What a provider does reuse depends on its rule. The simulator has all three:
# **blocks** (OpenAI; llama.cpp's server with blocks of one token), **breakpoints** (Anthropic, you set marks), **units**
# (DeepSeek, whole stored pieces only). The same session again:

# %%
def as_anthropic(request):
    """The request in Anthropic's form, with a mark at its newest block."""
    system, messages = convert(request["messages"])
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    tools = [{"name": t["function"]["name"], "input_schema": schema} for t in request["tools"]]
    return {"model": "offline", "max_tokens": 900, "system": system, "messages": messages, "tools": tools}


MARKED = [as_anthropic(request) for request in REQUESTS]
KINDS = {
    "blocks of 128": (usages, "gpt-6.2-sol"),
    "breakpoints": (replay(MARKED, BreakpointCache(), "anthropic"), "claude-sonnet-5"),
    "units": (replay(REQUESTS, UnitCache(), "deepseek"), "deepseek-v4-pro"),
}
rows = []
for kind, (read, model) in KINDS.items():
    whole, made = total(read), bill(read, PRICES.find(model, tier=MODELS[model]))
    written = whole.written or "not reported"
    rows.append((kind, whole.prompt, whole.hit, f"{whole.hit_ratio:.1%}", written, model, f"{made.actual:.4f}"))
draw.table(rows, head=("cache", "prompt", "hit", "ratio", "written", "at the prices of", "USD"))


# %% [markdown]
# While a session only grows they nearly agree. They differ when three sessions share a beginning. `A` is a long system
# prompt; `B`, `C` and `D` are three people's first words:

# %%
def three(cache, dialect, mark_a=False, mark_end=False):
    long = "Be precise, and say where you looked it up. " * 150
    hits = []
    simulator = Simulator(lambda _: "Yes.", dialect=dialect, cache=cache)
    for words in "Book a flight.", "Cancel a flight.", "Where is my bag?":
        if dialect == "anthropic":
            front, end = {"type": "text", "text": long}, {"type": "text", "text": words}
            for block, mark in (front, mark_a), (end, mark_end):
                block |= {"cache_control": {"type": "ephemeral"}} if mark else {}
            request = {"system": [front], "messages": [{"role": "user", "content": [end]}], "max_tokens": 99}
        else:
            request = {"messages": [{"role": "system", "content": long}, user(words)]}
        list(simulator.respond({"model": "offline"} | request).chunks)
        hits.append(read_usage(simulator.usages[-1]).hit)
    return hits


rows = [
    ("blocks", *three(BlockCache(), "openai")),
    ("breakpoints, no mark", *three(BreakpointCache(), "anthropic")),
    ("breakpoints, mark at the end", *three(BreakpointCache(), "anthropic", mark_end=True)),
    ("breakpoints, mark behind A and at the end", *three(BreakpointCache(), "anthropic", True, True)),
    ("units", *three(UnitCache(interval=None), "deepseek")),
]
draw.table(rows, head=("cache", "A+B", "then A+C", "then A+D"), caption="hits, in tokens")

# %% [markdown]
# Without marks, Anthropic's cache does nothing. Units learn what two requests had in common only when they have seen
# both: the third one profits. (Our `interval` is off here; with it, long prompts have units every so often.)
#
# ## Turn the knob
#
# The first 14 requests of the session. Where does the time stand, and is it kept? When is an old result shortened, when is
# the history compacted (0: never)? How long is the person away before request 8, how long does the cache live?

# %%
CLOCKS = ["nowhere", "in the system prompt", "newest message, not kept", "newest message, kept"]


def variant(number, clock, trim, compact):
    """Request `number`, from 1, of the session with these habits."""
    request = REQUESTS[number - 1]
    messages = list(request["messages"])
    if trim and number >= trim and (results := [at for at, m in enumerate(messages) if m["role"] == "tool"]):
        messages[results[0]] = messages[results[0]] | {"content": messages[results[0]]["content"][:80]}
    if clock == "in the system prompt":
        messages = ticking(request | {"messages": messages}, number)["messages"]
    elif clock == "newest message, kept":
        messages = stamped({"messages": messages})["messages"]
    elif clock == "newest message, not kept":
        messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n[15:00:{number:02}]"}
    if compact and number >= compact > 3:
        summary = user("So far: the person and the booking are known.")
        messages = [messages[0], summary, *messages[ends[compact - 3] :]]
    return request | {"messages": messages}


# %%
def session(clock, trim, compact, away_min, ttl_min):
    requests = [variant(number, clock, trim, compact) for number in range(1, 15)]
    times = [10.0 * number + (60 * away_min if number >= 8 else 0) for number in range(1, 15)]
    books = Ledger(ttl_s=60 * ttl_min)
    read = replay(requests, BlockCache(ttl_s=60 * ttl_min), times=times)
    for number, (usage, at) in enumerate(zip(read, times, strict=True), 1):
        if number == compact:
            books.reset()
        books.record(usage, at)
    return requests, books


def view(clock, trim, compact, away_min, ttl_min, model):
    requests, books = session(clock, trim, compact, away_min, ttl_min)
    read = [entry.usage for entry in books.entries]
    made = bill(read, PRICES.find(model, tier=MODELS[model]))
    worst = max(range(1, 14), key=lambda at: min(read[at].prompt, read[at - 1].prompt) - read[at].hit)
    charts = {"prompt": [u.prompt for u in read], "of it paid in full": [u.miss for u in read]}
    looks = {"prompt": "cached", "of it paid in full": "paid again"}
    return draw.html(
        f"{total(read).hit_ratio:.0%} hits. USD {made.actual:.4f}; without a cache {made.without_cache:.4f}. "
        f"Waste: {books.wasted:,} tokens in {books.misses} misses. "
        f"Below: request {worst + 1}, which pays most again.",
        draw.chart(charts, unit="tokens", looks=looks, height=60),
        diff(requests[worst - 1], requests[worst]),
    )


START = {"clock": "nowhere", "trim": 0, "compact": 0, "away_min": 0, "ttl_min": 5, "model": "gpt-6.2-sol"}
counts = {"trim": (0, 14), "compact": (0, 14), "away_min": (0, 60), "ttl_min": (1, 60)}

# %% tags=["breaks-prefix"]
knob = explore(view, clock=CLOCKS, **counts, model=list(MODELS))
knob.set(**START | {"clock": "in the system prompt"})

# %% tags=["breaks-prefix"]
SETTINGS = {
    "nothing": {},
    "time in the system prompt": {"clock": CLOCKS[1]},
    "time in the newest message, not kept": {"clock": CLOCKS[2]},
    "time in the newest message, kept": {"clock": CLOCKS[3]},
    "a result shortened at request 6": {"trim": 6},
    "the same at request 12": {"trim": 12},
    "compacted at request 12": {"compact": 12},
    "away for 38 minutes, TTL 5": {"away_min": 38},
    "away for 38 minutes, TTL 60": {"away_min": 38, "ttl_min": 60},
}
rows = []
for what, values in SETTINGS.items():
    _, books = session(**{key: value for key, value in (START | values).items() if key != "model"})
    whole = total(entry.usage for entry in books.entries)
    cost = bill([entry.usage for entry in books.entries], PRICES.find("gpt-6.2-sol")).actual
    verdicts = sorted({entry.verdict for entry in books.entries if entry.missed})
    rows.append((what, f"{whole.hit_ratio:.1%}", books.wasted, ", ".join(verdicts), f"{cost:.4f}"))
draw.table(rows, head=("habit", "hits", "paid again", "verdict", "USD"))

# %% [markdown]
# Two things to see. A time that is *not kept* costs the last message of each request, time and again, which is little here
# and stays below the ledger's noise. And a ticking system prompt shows **no waste at all** here: this provider reports hits
# only, and without a single one the ledger cannot tell it from a provider without a cache. That is the symptom "0 % in
# every request", and needs a look of its own. (Where writes are reported, as Anthropic's are, the ledger sees the waste.)
#
# ### When to compact?
#
# A compaction breaks the prefix once, on purpose, for shorter prompts from then on. The seed's rule of thumb: with a short
# TTL compact late (80 to 85 % of the window) and right after the cache expired, with a long TTL early (60 to 70 %). `ttl`
# plays a session of 20 turns for every threshold and adds up the bill. `rework` is how many requests it takes to read
# again what a compaction lost.

# %%
TTLS = {"1 min": 60, "5 min": 300, "30 min": 1800, "2 h": 7200}
SHARES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.85, 0.95)


def costs(model, pause_min, rework):
    work = ttl.Work(turns=20, rework=rework)
    price = PRICES.find(model, tier=MODELS[model])
    options = {"thresholds": SHARES, "pauses_s": [60 * pause_min], "work": work}
    columns = [ttl.grid(price, ttl_s=seconds, **options) for seconds in TTLS.values()]
    return [[row[0] for row in column.costs] for column in columns]


def map_of(model, pause_min, rework):
    columns = costs(model, pause_min, rework)
    relative = [[cost / min(column) for cost in column] for column in columns]
    lines = [list(line) for line in zip(*relative, strict=True)]
    heads = [f"{share:.0%}" for share in SHARES]
    capped = [[min(value, 3.0) for value in line] for line in lines]
    title = "cost, as a multiple of the cheapest in its column (3 stands for 3 or more)"
    return draw.heat(capped, rows=heads, columns=[f"TTL {name}" for name in TTLS], corner="threshold", caption=title)


knob = explore(map_of, model=list(MODELS), pause_min=(1, 60), rework=(0, 16))
knob.set(model="claude-sonnet-5", pause_min=15, rework=0)

# %%
rows = []
for model in MODELS:
    for rework in (0, 16):
        best = [f"{SHARES[column.index(min(column))]:.0%}" for column in costs(model, 15, rework)]
        rows.append((model, rework, *best))
draw.table(rows, head=("model", "rework", *(f"TTL {name}" for name in TTLS)), caption="the cheapest threshold")

# %% [markdown]
# **What came out: on cost alone, not the seed's rule.** One minute wants a *lower* threshold than two hours, in every row: an
# expiry makes the whole prompt cost its full price, so it should be short. And both are far below 60 %, as long as a
# compaction loses nothing. High levels come back when it loses much (`rework`), but not the seed's order. The simulation
# knows nothing of quality; that is the better reason to compact late.
#
# And the moment? A prompt of 120,000 tokens, `claude-sonnet-5`, TTL 5 minutes:

# %%
MOMENTS = {
    "in the middle of work": (0, 0),
    "right after an expiry": (3600, 0),
    "just before a long pause": (0, 3600),
}
rows = []
price = PRICES.find("claude-sonnet-5")
for what, (idle, pause) in MOMENTS.items():
    for summarizes in (True, False):
        work = ttl.Work(summarizes=summarizes)
        found = ttl.break_even(120_000, idle_s=idle, pause_s=pause, ttl_s=300, prices=price, work=work)
        writer = "a model" if summarizes else "code"
        rows.append((what, writer, f"{found.keep:.3f}", f"{found.compact:.3f}", found.requests))
head = ("when", "who writes the summary", "go on, USD", "compact, USD", "pays after so many requests")
draw.table(rows, head=head)

# %% [markdown]
# Right after an expiry is no better than any moment if a model writes the summary: it has to read the whole cold prompt
# first. (At the end of that turn, as the seed has it, the prompt is warm again: the first row.) Just before a long pause is
# the best moment: reading is cheap now, and what comes back is short.
#
# ## In the loop
#
# **Development mode.** The ledger says *that* somebody rewrote the prefix, not *who*. On your desk you can keep the last two
# requests and compare them. This agent reads three files, and a hook shortens what the model has read already:

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
for name in "abc":
    (folder / f"{name}.txt").write_text("\n".join(f"{name}{n} = {n * n}" for n in range(400)))
tools = Registry(Workspace(folder).tools())


def reads(request):
    done = sum(message["role"] == "tool" for message in request["messages"])
    if done == 3:
        return "I have read all three."
    return assistant("", call(f"call_{done + 1}", "read_file", path=f"{'abc'[done]}.txt"))


def careful(history):
    """Shorten all results but the newest two."""
    results = [at for at, message in enumerate(history) if message["role"] == "tool"]
    return [m | {"content": m["content"][:80]} if at in results[:-2] else m for at, m in enumerate(history)]


async def develop(mode, view):
    simulator = Simulator(reads, cache=BlockCache())
    books, misses = Ledger(), []

    def before(history):
        sent = view(history)
        mode.sent({"tools": tools.specs(), "messages": sent})
        return sent

    def after(usage):
        entry = books.record(usage, at=10.0 * len(simulator.usages))
        misses.append(mode.answered(entry))

    hooks = Hooks(before_request=before, on_usage=after)
    await run_turn([user("Read a, b and c.")], simulator.client(), tools, hooks=hooks).run()
    return books, [miss for miss in misses if miss]


mode = DevMode(on=True)
books, [miss] = await develop(mode, careful)
print(f"{miss.missed:,} tokens were paid again after {miss.idle_s:g} s. The culprit: {miss.diff.culprit}")
print(f"Kept in memory for this: {mode.held_bytes:,} bytes")
draw.html(books, miss.diff)

# %% [markdown]
# It is **off unless you switch it on**, keeps two requests at most, in memory only. In production it would have to keep
# everybody's, always, since nobody knows which request will miss:

# %%
books, misses = await develop(DevMode(), careful)
sizes = [len(json.dumps(request)) for request in REQUESTS]
people, day = 1_000, 100
print(f"off: {len(misses)} named, though {books.misses} missed")
print(f"one request of the airline session: {sum(sizes) / len(sizes) / 1e3:.0f} kB on average")
print(f"{people:,} people, {day} requests a day each: {sum(sizes) / len(sizes) * people * day / 1e9:.1f} GB a day")


# %% [markdown]
# The size is the smaller half of it. Those gigabytes are what people typed, and what tools read: code, names, keys. They
# would have to be guarded, and deleted on request. The ledger's three numbers hold nothing of anybody.
#
# ## Your turn
#
# **1.** The waste ledger. `usage` has `prompt`, `hit` and `written`; `at` is in seconds. Return the tokens that were paid
# again, and a verdict: `"ok"`, `"expired"`, `"rewritten"` or `"unknown"`. `reset()` is called at a compaction. This one
# cries wolf:

# %%
class MyLedger:
    def __init__(self, ttl_s=300, noise=1024):
        self.ttl_s, self.noise = ttl_s, noise
        self.before = None

    def record(self, usage, at):
        before, self.before = self.before, usage.prompt
        if before is None:
            return 0, "unknown"
        missed = before - usage.hit
        return missed, "rewritten" if missed else "ok"

    def reset(self):
        self.before = None


# %%
check.ledger(MyLedger)

# %%
# check.ledger.hint(1)

# %%
source(check.ledger.solution, fold="One solution")

# %%
check.ledger(check.ledger.solution)

# %% [markdown]
# **Then your code runs the agent.** Your ledger looks on while it works; at the end the agent asks it what was wasted:

# %%
turn = await stream(check.ledger.turn(check.ledger.solution))


# %% [markdown]
# **2.** The culprit finder. Two request bodies; return `"tools"`, `"system"`, `"messages[i]"` or None.

# %%
def my_culprit(previous, current):
    for i, (old, new) in enumerate(zip(previous["messages"], current["messages"])):
        if old != new:
            return "system" if old["role"] == "system" else f"messages[{i}]"
    return None


# %% tags=["breaks-prefix"]
check.culprit(my_culprit)

# %%
# check.culprit.hint(1)

# %%
source(check.culprit.solution, fold="One solution")

# %% tags=["breaks-prefix"]
check.culprit(check.culprit.solution)

# %% [markdown]
# **Then your code runs the agent.** It has three careless parts; each is switched off when your function names it:

# %% tags=["breaks-prefix"]
turn = await stream(check.culprit.turn(check.culprit.solution))


# %% [markdown]
# **3.** The threshold for your provider. You get its prices, its TTL, the mean pause between turns, and what the work is like
# (`ttl.Work`). Return the share of the window at which to compact. The seed's rule:

# %%
def my_threshold(prices, ttl_s, pause_s, work):
    return 0.82 if ttl_s < 600 else 0.65


# %%
check.threshold(my_threshold)

# %%
# check.threshold.hint(1)

# %%
source(check.threshold.solution, fold="One solution")

# %%
check.threshold(check.threshold.solution)

# %% [markdown]
# **Then your code runs the agent:** forty pages, a pause now and then, and a compaction wherever you said.

# %%
turn = await check.threshold.turn(check.threshold.solution).run()
used = [usage["prompt_tokens"] for usage in turn.usages]
draw.chart({"prompt": used}, unit="tokens", limit=(4_000, "the window"))

# %% [markdown]
# **Think.** A provider's cache lives for five minutes only. Does it pay to send a tiny request every four minutes while the
# person is at lunch?
#
# <details><summary>An answer</summary>
#
# Each such request reads the whole prompt, for a tenth of its price. Coming back cold costs the full price instead of that
# tenth, or 1.25 times the full price where writing is charged. So after (1 - 0.1) / 0.1 = 9 requests, or (1.25 - 0.1) / 0.1
# = 11.5, which is 36 or 46 minutes, keeping it warm has cost more than the cold start. For a short pause it can pay; a
# compaction before the pause is often cheaper than both. And a cache that is kept for an hour (Anthropic: twice the input
# price to write) is made for this case.
#
# </details>
#
# **Think.** "Rewritten" is still a coarse verdict. Why not keep the last two requests in production, too, and always know who it
# was?
#
# <details><summary>An answer</summary>
#
# The bytes are affordable, the content is not: private words and secrets would lie in one more place, and comparing
# takes time in every request. What production can keep is a *hash* per part (tools, system, each message): a few bytes, no
# content, and enough to say "the system prompt changed". The words around the break are for your desk.
#
# </details>
#
# ## In real products
#
# <details><summary>What providers charge for and report, and what was reported in the field</summary>
#
# | provider | a hit is | figures |
# |---|---|---|
# | OpenAI | whole blocks of the longest common prefix, automatically | from 1,024 tokens on, in steps of 128; older models: read 0.1 times the input price, write free; the newest bill writes 1.25 times and keep 30 minutes; `prompt_tokens_details.cached_tokens`, part of `prompt_tokens` |
# | Anthropic | a prefix stored at a `cache_control` mark, at most 4 of them, found up to 20 blocks back; order tools, system, messages | read 0.1 times, write 1.25 times (5 minutes) or 2 times (1 hour); minimum 1,024 to 4,096 tokens by model; `input_tokens` counts fresh tokens only, read and written ones come on top |
# | DeepSeek | a whole stored unit; A+B, then A+C may miss | `prompt_cache_hit_tokens` and `prompt_cache_miss_tokens` at the top level, often beside OpenAI's shape |
# | llama.cpp's server | the common prefix with the last prompt and reply, token by token | `prompt_tokens_details.cached_tokens`; it does reuse its KV cache. Measured with Gemma 3 270M: 1,366 of 1,482 tokens with a stable prefix, 27 of 1,505 with a time in front, 68 of 1,290 with two tools swapped |
#
# | product | what it does |
# |---|---|
# | codex | a missing result that it fills in gets its id from the call's, so that the same history gives the same bytes, and the cache holds |
# | Reina (seed 003) | the tools array is constant; deferred tools are called by name and not added to it, but for protocols that check names |
#
# | fault | reported in |
# |---|---|
# | a clock in the system prompt: the cache is written every turn and never read | [home-generative-agent 617](https://github.com/goruck/home-generative-agent/issues/617), [open-chat-studio 3625](https://github.com/dimagi/open-chat-studio/issues/3625), [anything-llm 6398](https://github.com/Mintplex-Labs/anything-llm/issues/6398) |
# | tools in another order, old messages rewritten: 90,000 tokens computed again | [hermes-agent 27339](https://github.com/NousResearch/hermes-agent/issues/27339) |
# | cached tokens charged in full, or counted twice | [litellm 26016](https://github.com/BerriAI/litellm/issues/26016), [laravel/ai 896](https://github.com/laravel/ai/issues/896) |
# | Anthropic's fresh tokens taken for the whole prompt | [candela 206](https://github.com/candelahq/candela/issues/206), [genkit 5412](https://github.com/genkit-ai/genkit/issues/5412) |
# | more cached tokens than prompt tokens: a negative bill | [promptfoo 9908](https://github.com/promptfoo/promptfoo/issues/9908), [vercel/ai 19515](https://github.com/vercel/ai/issues/19515) |
# | a running total in every chunk, added up: the bill times the number of chunks | [open-webui 29064](https://github.com/open-webui/open-webui/issues/29064) |
#
# </details>
#
# ## Go live
#
# Three files to read, and your provider's own numbers, request by request. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you
# start JupyterLab. (For money, give `status_line` and `bill` your model's `Prices`.)

# %%
if os.environ.get("AGENT_BASE_URL"):
    question = [user("Read a.txt, then b.txt, then c.txt, one after the other. What is c7?")]
    turn = await stream(run_turn(question, ChatClient.from_env(), tools))
    for number, usage in enumerate(turn.usages, 1):
        print(status_line(usage, session=turn.usages[:number]))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [Four layers](07_layers.ipynb), of which the first three need no model at all.
