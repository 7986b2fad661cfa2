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
# ← [Compaction](05_compaction.ipynb) · modules: `prefix`, `usage`, `ledger`, `prices`, `devmode`, `ttl`,
# `simulator.cache`
#
# **The problem.** A model remembers nothing, so an agent sends the whole conversation with every request, and pays for it
# every time. A provider keeps the beginning that it has just computed and sells it again for a tenth or less; one changed
# character ends that beginning, and no error says so.

# %%
import json
import os
import tempfile
from math import ceil
from pathlib import Path

from agentlab import check, draw, ttl
from agentlab.devmode import DevMode
from agentlab.loop import Hooks, run_turn
from agentlab.messages import assistant, call, calls_of, user
from agentlab.notebook import data, source
from agentlab.prefix import assert_append_only, common_prefix, diff
from agentlab.provider import ChatClient
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.tools import Registry
from agentlab.usage import Ledger, PriceList, bill, read_usage, status_line, total
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


def replay(requests, ttl_s=300, times=None):
    """What a provider with a cache reports for these requests; the model says what it said then."""
    now, replies = 0.0, iter(SESSION[end] for end in ends)
    cache = BlockCache(ttl_s=ttl_s)
    simulator = Simulator(lambda _: next(replies), cache=cache, clock=lambda: now)
    for number, request in enumerate(requests):
        now = times[number] if times else 10.0 * number
        list(simulator.respond(request).chunks)
    return [read_usage(usage) for usage in simulator.usages]


usages = replay(REQUESTS)
last, sent = usages[-1].prompt, total(usages).prompt
print(f"The conversation: {last:,} tokens. Sent in all: {sent:,}, {sent / last:.0f} times that.")
draw.chart({"tokens sent in each request": [usage.prompt for usage in usages]}, unit="tokens")

# %% [markdown]
# ## Break it
#
# **Experiment A: a clock in the system prompt.** This [system prompt](../docs/GLOSSARY.md) begins with the time, which
# stands still. Many agents put the real time there, so let it tick:

# %%
print(SESSION[0]["content"].splitlines()[2])


def ticking(request, number):
    system, *rest = request["messages"]
    system = system | {"content": system["content"].replace("15:00:00", f"15:00:{number:02}")}
    return request | {"messages": [system, *rest]}


TICKING = [ticking(request, number) for number, request in enumerate(REQUESTS)]

# %% tags=["breaks-prefix"]
broken = replay(TICKING)
print("stands still:", status_line(usages[-1], session=usages))
print("ticks:       ", status_line(broken[-1], session=broken))
paid = {"stands still": [u.miss for u in usages], "ticks": [u.miss for u in broken]}
draw.chart(paid, unit="tokens at full price", looks={"stands still": "cached", "ticks": "paid again"})

# %% [markdown]
# A **hit** is a token read from the cache, a **miss** one that is computed and paid in full. The words and the answers are
# the same, nothing failed; only the bill knows. Prices are the providers' own (`data/prices.json`; the extra that some
# charge for writing to the cache is left out). Below them the figures of this chapter's *seed*, the course notes that it
# grew from: 30 requests of 60,000 tokens, 95 % hits, a hit at a tenth; and its line for one healthy request.

# %%
PRICES = PriceList.read(data("prices.json"))
MODELS = {"gpt-6.2-sol": None, "claude-sonnet-5": None, "deepseek-v4-pro": "peak"}
for model, tier in MODELS.items():
    good, bad = (bill(each, PRICES.find(model, tier=tier)).actual for each in (usages, broken))
    print(f"{model:16} USD {good:.4f}, with the ticking clock {bad:.4f}: {bad / good:.1f} times")

steady = [{"prompt_tokens": 60_000, "prompt_tokens_details": {"cached_tokens": 57_000}}] * 30
seed = bill(steady, {"input": 1.0, "read": 0.1})
share = seed.actual / seed.without_cache
print(f"seed: {share:.3f} of the full price, {1 / share:.1f} times less")
print(status_line({"prompt_tokens": 48_213, "prompt_tokens_details": {"cached_tokens": 47_616}}))

# %% [markdown]
# ## The mechanism
#
# A request is laid out as one text: tools, system prompt, messages. What a cache can reuse is the **common prefix** of
# this text and an earlier one, and nothing behind it. `diff` compares two requests, and names the **culprit**: the first
# part that differs.

# %%
diff(TICKING[13], TICKING[14])

# %%
source(common_prefix, fold="Source", docstring=False)


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
print(status_line(total(replay(STAMPED))))

# %% [markdown]
# **Experiment C: a good deed.** From request 20 on, somebody shortens an old tool result, to save context:

# %%
LONG = max(range(20), key=lambda at: len(SESSION[at]["content"] or "") * (SESSION[at]["role"] == "tool"))


def trimmed(request):
    old = SESSION[LONG]
    new = old | {"content": old["content"][:80] + " [shortened]"}
    return request | {"messages": [new if message is old else message for message in request["messages"]]}


TRIMMED = [*REQUESTS[:19], *map(trimmed, REQUESTS[19:])]
after = replay(TRIMMED)
print(f"saved: {usages[19].prompt - after[19].prompt:,} tokens in each request from then on")
print(f"paid again at once: {after[19].miss - usages[19].miss:,} tokens, at ten times the price or more")
diff(TRIMMED[18], TRIMMED[19])

# %% [markdown]
# Whoever wants to save does it earlier, before the result is sent ([Tool output](02_spill.ipynb)), or all at once
# ([Compaction](05_compaction.ipynb)).
#
# **Experiment D: from numbers alone.** Nobody keeps the text of every request, but every response carries its usage (in the
# provider's own dialect; `read_usage` reads them all). All of the last prompt should have been a hit, so
# `missed = min(last prompt, this prompt) - hit`. The **ledger** adds this up.
# The same session again: before request 10 the person is away for 38 minutes, at request 20 that result is shortened.

# %%
times = [10.0 * number + (38 * 60 if number >= 9 else 0) for number in range(len(REQUESTS))]
ledger = Ledger(ttl_s=300)
for usage, at in zip(replay(TRIMMED, times=times), times, strict=True):
    ledger.record(usage, at)

rows = []
for number in (1, 2, 9, 10, 19, 20, 21):
    entry = ledger.entries[number - 1]
    row = (number, entry.usage.prompt, entry.usage.hit, entry.missed, f"{entry.idle_s:g} s", entry.verdict)
    rows.append(row)
title = f"Cache waste: {ledger.wasted:,} tokens in {ledger.misses} misses"
draw.table(rows, head=("request", "prompt", "hit", "paid again", "idle", "verdict"), caption=title)

# %% [markdown]
# In requests 10 and 20 alike the hits fall; only the pause tells them apart. Longer than the **TTL**, the time that an
# unused cache lives: **expired**, nobody's fault. Shorter: **rewritten**, a fault in the program.

# %%
source(Ledger.record, fold="Source", docstring=False)

# %% [markdown]
# The seed's own A to D give: with the clock in front 10.0 % and then 3.5 % can be reused, at the tail 100 %, after a result
# was shortened 59.1 %. In its six turns 14,100 tokens (expired, 38 minutes) + 12,500 (rewritten, 12 seconds) = 26,600 are
# paid again, in 2 misses. (`tests/test_prefix.py` and `tests/test_ledger.py` compute this from its data.)
#
# ### Three kinds of caches
#
# The common prefix is what *can* be reused. What is reused depends on the provider's rule. Three sessions share a long system
# prompt `A`; `B`, `C` and `D` are three people's first words. A hit is:
#
# | rule | A+B | then A+C | then A+D |
# |---|---|---|---|
# | **blocks** of the common prefix (OpenAI) | nothing | A | A |
# | **breakpoints**, marks that you set (Anthropic), one behind A | nothing | A | A |
# | the same without a mark | nothing | nothing | nothing |
# | **units**, stored whole (DeepSeek) | nothing | nothing | A |
#
# Units learn what two requests have in common only when they have seen both. While one session only grows, the three
# nearly agree.
#
# ## Turn the knob
#
# The first 14 requests of the session. Where does the time stand? From which request on is an old result shortened, at which
# is the history compacted (0: never)? How many minutes is the person away before request 8, and how many
# does the cache live? (`model` changes the prices alone.)

# %%
CLOCKS = ["nowhere", "in the system prompt", "in the user's messages"]
NUMBERS = range(1, 15)


def variant(number, clock, trim, compact):
    """Request `number` with these habits."""
    request = REQUESTS[number - 1]
    request = trimmed(request) if trim and number >= trim else request
    request = ticking(request, number) if clock == CLOCKS[1] else request
    request = stamped(request) if clock == CLOCKS[2] else request
    if compact and number >= compact:
        system, *rest = request["messages"]
        summary = user("So far: the person and the booking are known.")
        request = request | {"messages": [system, summary, *rest[ends[compact - 3] - 1 :]]}
    return request


def session(clock=CLOCKS[0], trim=0, compact=0, away_min=0, ttl_min=5):
    requests = [variant(number, clock, trim, compact) for number in NUMBERS]
    times = [10.0 * number + (60 * away_min if number >= 8 else 0) for number in NUMBERS]
    books = Ledger(ttl_s=60 * ttl_min)
    for number, usage in zip(NUMBERS, replay(requests, 60 * ttl_min, times), strict=True):
        if number == compact:
            books.reset()  # paid again on purpose: no waste
        books.record(usage, times[number - 1])
    return requests, books


def view(model, **habits):
    requests, books = session(**habits)
    read = [entry.usage for entry in books.entries]
    made = bill(read, PRICES.find(model, tier=MODELS[model]))
    lost = [min(one.prompt, two.prompt) - two.hit for one, two in zip(read, read[1:])]
    worst = lost.index(max(lost)) + 1
    waste = f"waste {books.wasted:,} tokens" if any(u.hit for u in read) else "no hit reported: waste unknown"
    return draw.html(
        f"hits {total(read).hit_ratio:.0%} | {waste} | USD {made.actual:.4f}, without a cache {made.without_cache:.4f}",
        draw.chart({"paid in full": [u.miss for u in read]}, unit="tokens", looks={"paid in full": "paid again"}),
        f"request {worst + 1}, {max(lost[worst - 1], 0):,} tokens paid again, {books.entries[worst].verdict}:",
        diff(requests[worst - 1], requests[worst]),
    )


# %%
counts = {"trim": (0, 14), "compact": [0, *range(4, 15)], "away_min": (0, 60), "ttl_min": (1, 60)}
knob = explore(view, clock=CLOCKS, **counts, model=list(MODELS))
knob.set(away_min=38, ttl_min=5)

# %% tags=["breaks-prefix"]
rows = []
away = {"away_min": 38}
for habits in {}, {"clock": CLOCKS[1]}, {"clock": CLOCKS[2]}, {"trim": 12}, {"compact": 12}, away, away | {"ttl_min": 60}:
    books = session(**habits)[1]
    read = [entry.usage for entry in books.entries]
    verdicts = ", ".join({entry.verdict for entry in books.entries if entry.missed})
    what = ", ".join(f"{name}={value}" for name, value in habits.items()) or "no bad habit"
    cost = bill(read, PRICES.find("gpt-6.2-sol")).actual
    rows.append((what, f"{total(read).hit_ratio:.1%}", books.wasted, verdicts, f"{cost:.4f}"))
draw.table(rows, head=("habit", "hits", "paid again", "verdict", "USD"))

# %% [markdown]
# A ticking system prompt shows **no waste at all**: this provider reports hits only, and without a single one the ledger
# cannot tell it from a provider without a cache. (Where writes are reported, as Anthropic's are, it can.)
#
# <details><summary>So look for symptoms, too</summary>
#
# `diagnose(books.entries)` finds these four in a ledger:
#
# | symptom | what it means |
# |---|---|
# | 0 % in every request | the prefix breaks at its very start: a clock or a counter in the system prompt or the tools |
# | steady hits, then a sudden fall | old messages were rewritten: look for code that edits what was already sent |
# | close to 0 % right after a compaction | expected: the history was replaced once, and every request is shorter now |
# | hits look right or are missing, the bill does not fall | does the provider cache at all, is its usage read right, what does writing cost? |
#
# </details>
#
# ### When to compact?
#
# **Think.** A [compaction](05_compaction.ipynb) breaks the prefix once, on purpose, for shorter prompts from then on. Should
# an agent compact earlier or later when the TTL is short? The seed's answer: short TTL, late (80 to 85 % of the window),
# and right after the cache expired; long TTL, early (60 to 70 %). `ttl` plays a session of 20 turns for every threshold and
# adds up the bill. `rework` is how many requests it takes to read again what a compaction lost.

# %%
TTLS = {"1 min": 60, "5 min": 300, "30 min": 1800, "2 h": 7200}
SHARES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)


def map_of(rework, pause_min, model):
    price, work = PRICES.find(model, tier=MODELS[model]), ttl.Work(turns=20, rework=rework)
    columns = []
    for seconds in TTLS.values():
        costs = ttl.grid(price, ttl_s=seconds, thresholds=SHARES, pauses_s=[60 * pause_min], work=work).costs
        columns.append([ceil(100 * (cost / min(costs)[0] - 1)) for [cost] in costs])
    lines, heads = [*zip(*columns, strict=True)], [f"{share:.0%}" for share in SHARES]
    title = "cost above the cheapest of the column, in %"
    return draw.heat(lines, rows=heads, columns=[f"TTL {name}" for name in TTLS], corner="threshold", caption=title)


knob = explore(map_of, rework=(0, 16), pause_min=(1, 60), model=list(MODELS))
knob.set(model="claude-sonnet-5", pause_min=15)

# %%
for model, tier in MODELS.items():
    for rework in (0, 16):
        options = {"idle_s": 900, "thresholds": SHARES, "work": ttl.Work(turns=20, rework=rework)}
        short, long = (ttl.best_threshold(PRICES.find(model, tier=tier), ttl_s=ttl_s, **options) for ttl_s in (60, 7200))
        print(f"{model:16} rework={rework:<2} cheapest: TTL 1 min {short:.0%}, TTL 2 h {long:.0%}")

# %% [markdown]
# **What came out: on cost alone, not the seed's rule.** One minute wants a *lower* threshold than two hours, in every row: an
# expiry makes the whole prompt cost its full price, so it should be short. High levels come back when a compaction loses
# much (`rework`), but not the seed's order. The simulation knows nothing of quality; that is the better reason to compact
# late.
#
# <details><summary>And the moment?</summary>
#
# Right after an expiry is no better than any other moment if a model writes the summary: it has to read the whole cold
# prompt first. Just before a long pause is best: reading is cheap now, and what comes back is short. Ask
# `ttl.break_even(120_000, idle_s=0, pause_s=3600, ttl_s=300, prices=PRICES.find("claude-sonnet-5"))` after how many requests
# it pays.
#
# </details>
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
mode, books, named = DevMode(on=True), Ledger(), []
story = [assistant("", call(f"call_{name}", "read_file", path=f"{name}.txt")) for name in "abc"]


def careful(history):
    """Shorten all results but the newest two."""
    results = [at for at, message in enumerate(history) if message["role"] == "tool"]
    view = [m | {"content": m["content"][:80]} if at in results[:-2] else m for at, m in enumerate(history)]
    mode.sent({"tools": tools.specs(), "messages": view})
    return view


def answered(usage):
    named.append(mode.answered(books.record(usage, at=10.0 * len(books.entries))))


hooks = Hooks(before_request=careful, on_usage=answered)
client = Simulator([*story, "I have read all three."], cache=BlockCache()).client()
await run_turn([user("Read a, b and c.")], client, tools, hooks=hooks).run()
[miss] = filter(None, named)
print(f"{miss.missed:,} tokens were paid again. The culprit: {miss.diff.culprit}")
miss.diff


# %% [markdown]
# It is **off unless you switch it on**, and keeps two requests, in memory only. In production it would have to keep
# everybody's, always, since nobody knows which request will miss. For 1,000 people with 100 requests a day, each of 22 kB as
# in the airline's session, that is 2.2 GB a day of what people typed and tools read.
#
# ## Your turn
#
# **1.** The waste ledger. `usage` has `prompt`, `hit` and `written`; `at` is in seconds. Return the tokens that were paid
# again, and a verdict: `"ok"`, `"expired"`, `"rewritten"` or `"unknown"`. `reset()` is called at a compaction. (In the
# live loop the agent asks your ledger at the end what was wasted.) This one cries wolf:

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
# **2.** The culprit finder. Two request bodies; return `"tools"`, `"system"`, `"messages[i]"` or None. (The agent in
# the live loop has three careless parts; each is switched off when your function names it.)

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
# **Then your code runs the agent:** forty pages, a pause now and then, and a compaction wherever you said:

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
# The bytes are affordable, the content is not: code, names, keys, private words would lie in one more place, to be guarded,
# and deleted on request. What production can keep is a *hash* per part (tools, system, each message): a few bytes, no
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
# start JupyterLab. (For money, give your model's `Prices` to
# `status_line`, or to `cost_view`, which is what `agentlab chat` shows for `/cost`.)

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
