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
# # Many tools: show a few, find the rest
#
# ← [The surface](09_surface.ipynb) · modules: `disclosure`, `toolarray`, `toolsearch`, `tooltext`, `toolcost`, `permissions`
#
# **The problem.** Every request carries its **array of tools**: for each the name, a description, and the schema of its
# arguments. With five tools nobody notices; with forty it is most of the request. And it must not change, since it stands at
# the very front: [the cache](06_cache.ipynb) holds only what stands before the first difference.

# %%
import json
import os
import textwrap

from agentlab import check, draw, toolarray
from agentlab.disclosure import Catalog, protocol_of
from agentlab.errors import ProviderRefused
from agentlab.loop import run_turn
from agentlab.messages import assistant, call, tool, user
from agentlab.notebook import data, source
from agentlab.permissions import Policy, Rule, matching
from agentlab.provider import ChatClient
from agentlab.simulator import Simulator
from agentlab.simulator.cache import BlockCache
from agentlab.simulator.tokens import tokenize
from agentlab.toolarray import array_history, array_text
from agentlab.toolcost import break_even, schema_tokens
from agentlab.tools import Tool
from agentlab.toolsearch import ToolIndex, terms
from agentlab.usage import PriceList, bill, read_usage, total
from agentlab.widgets import AskPanel, explore, stream

# %% [markdown]
# The 42 tools of an office (`data/tools/office.json`, written for this project; each only says that it ran), and one small
# question:

# %%
OFFICE = json.loads(data("tools", "office.json").read_text())["tools"]


def make(name, description, parameters, read_only):
    async def handler(**input):
        return f"{name} ran"

    return Tool(name, description, parameters, handler, read_only=read_only)


TOOLS = [make(**entry) for entry in OFFICE]
question = user("Which day is best for a walk in Oslo?")
tool_tokens = len(tokenize(array_text(TOOLS)))
parts = [("42 tools", tool_tokens, "paid again"), ("the question", len(tokenize(question["content"])), "user")]
draw.bar(parts, unit="tokens")

# %% [markdown]
# What the tools alone cost in a session of 30 requests, and what they cost while a cache knows them:

# %%
PRICES = PriceList.read(data("prices.json"))
MODELS = {"gpt-6.2-sol": None, "claude-sonnet-5": None, "deepseek-v4-pro": "peak"}
rows = []
for model, tier in MODELS.items():
    price, sent = PRICES.find(model, tier=tier), 30 * tool_tokens
    rows.append((model, sent, f"{sent * price.input / 1e6:.4f}", f"{sent * price.read / 1e6:.4f}"))
draw.table(rows, head=("model", "tokens", "USD, full price", "USD, read from a cache"))

# %% [markdown]
# ## Break it
#
# So hide them, and let the model search: a **deferred** tool is not in the array, and `search_tool` finds it by words. This
# model is a script: it is to report a build log in three places. For each it searches first, then calls what it found.

# %%
LOG = data("logs", "make_gcc.log").read_text()
JOBS = {
    "issue_create": ("open a new issue", {"title": "The build fails"}),
    "chat_post_message": ("post a message to the team", {"channel": "build", "text": "The build fails."}),
    "notify_user": ("notify the person", {"text": "Reported."}),
}
ask = [user(f"Report this to the tracker, to the team and to me:\n{LOG}")]


def works(call_of):
    """A model that does its three jobs, each call made by `call_of(id, name, input)`."""

    def model(request):
        shown = json.dumps(request["tools"])
        seen = " ".join(str(m["content"]) for m in request["messages"] if m["role"] == "tool")
        for name, (query, input) in JOBS.items():
            if f"{name} ran" in seen:
                continue
            if f"{name}: " in seen or f'"{name}"' in shown:
                return assistant("", call_of(f"run_{name}", name, input))
            return assistant("", call(f"find_{name}", "search_tool", query=query))
        return "It is in the tracker, the team knows, and so do you."

    return model


def by_name(id, name, input):
    return call(id, name, **input)


def through_run_tool(id, name, input):
    return call(id, "run_tool", name=name, input=input)


# %% [markdown]
# **First idea: what was found is added to the array.** (A `Catalog` holds the tools, found and not; `protocol` is explained
# below.)

# %%
ANYTHING = Policy(default="allow")


async def session(catalog, call_of):
    simulator = Simulator(works(call_of), cache=BlockCache())
    turn = await run_turn(ask, simulator.client(), catalog, policy=ANYTHING).run()
    assert turn.history[-1]["content"].startswith("It is in the tracker"), turn.history[-1]
    return simulator


# %% tags=["breaks-prefix"]
growing = await session(Catalog([], TOOLS, protocol="strict"), by_name)
usages = [read_usage(usage) for usage in growing.usages]
for number, (request, usage) in enumerate(zip(growing.requests, usages, strict=True), 1):
    print(f"request {number}: {len(request['tools']):2} tools, {usage.prompt:,} tokens, {usage.hit:,} of them cached")
draw.chart({"paid in full": [usage.miss for usage in usages]}, unit="tokens", looks={"paid in full": "paid again"})

# %% [markdown]
# After each search the array is another one, it stands in front, and **the whole request is paid again**, the log too.
#
# **Second idea: never add anything.** The model has read name and schema in the search's result, so it can call the tool.
# Some providers take any name in a call. Anthropic does not, as the seed of this chapter reports (the material it was made
# from; the words of the refusal are ours):

# %%
for dialect in "openai", "anthropic":
    client = Simulator(works(by_name), dialect=dialect).client()
    turn = run_turn(ask, client, Catalog([], TOOLS), policy=ANYTHING)
    try:
        await turn.run()
        print(f"{dialect}: {turn.reason}\n")
    except ProviderRefused as refused:
        print(f"{dialect}: {refused}")

# %% [markdown]
# **Seen but untouchable**: the search finds the tool, and the call is refused. It stands in the history now, so each further
# request is refused, too.
#
# ## The mechanism
#
# The array never changes. What was found stands at the *end* of the request, in the search's result, where nothing cached is
# behind it. And the call goes through a tool that is always in the array: **`run_tool(name, input)`**.

# %%
catalog = Catalog([], TOOLS)
names = [spec["function"]["name"] for spec in catalog.specs()]
print("in the array:", ", ".join(names))
sizes = [("the two entries", len(array_text(catalog.specs())), "kept"), ("the listing", len(catalog.listing), "system")]
left = len(array_text(TOOLS)) - sum(size for _, size, _ in sizes)
draw.bar([*sizes, ("not sent", left, "dropped")], unit="characters")

# %% [markdown]
# The **listing** goes into the system prompt: a line for each deferred tool, so that the model knows what it could look for.
# It never changes either. A tool that comes later, from a server, is only found by searching.

# %%
print("\n".join(catalog.listing.splitlines()[:4]), "\n...\n")
result = await catalog.dispatch(call("c1", "search_tool", query="notify the person"))
print(result.output[:420], "...")

# %% [markdown]
# Some agents have no `run_tool`; their models call by name. Then it depends on the provider: does it take any name
# (`free-text`), or only those in the array (`strict`)?

# %%
source(toolarray.resolve_tools, docstring=False)

# %%
print({dialect: protocol_of(dialect) for dialect in ("openai", "deepseek", "anthropic")})

# %% [markdown]
# **Sorted**, because the same names must give the same bytes. And made **once per request**: two tools found in one step are
# one change.
#
# ### The array, request by request
#
# Six strategies, four requests each; a line is a request: its tools, then the conversation. Light green is sent for the first
# time, green is cached, orange is paid again. A *break* is a request whose array differs from the one before. From the second
# request on the model calls a tool each time; the fourth column says how many of the three calls a strict provider takes.

# %%
BY_NAME = {each.name: each for each in TOOLS}
DIRECT = [BY_NAME[name] for name in ("contacts_find", "email_search", "log_search")]
RUN = catalog.get("run_tool")
FOUND = ["notify_user", "issue_create", "chat_post_message"]


found, promoted = [*DIRECT, BY_NAME["notify_user"]], [*DIRECT, BY_NAME["page_fetch"]]
STRATEGIES = {
    "added each time": [[*DIRECT, *(BY_NAME[name] for name in FOUND[:n])] for n in range(4)],
    "through run_tool": [[*DIRECT, RUN]] * 4,
    "never added, called by name": [DIRECT] * 4,
    "added once": [DIRECT, found, found, found],
    "promoted, and it holds": [promoted] * 4,
    "promoted, and it comes and goes": [DIRECT, promoted, promoted, DIRECT],
}


def box(text, look, width):
    style = f"{draw.FATES[look].css};width:{width}px;height:18px;font-size:11px;text-align:center;overflow:hidden"
    return draw.element("div", text, style=style + ";box-sizing:border-box;flex:none")


def line(before, array):
    """One request: tools that stand where they stood are cached; from the first other one on, all is paid again."""
    kept = 0
    while before and kept < min(len(before), len(array)) and before[kept] is array[kept]:
        kept += 1
    whole = bool(before) and len(before) == kept == len(array)
    looks = ["cached" if at < kept else "paid again" if before else "new" for at in range(len(array))]
    boxes = [box(each.name[:1], look, 22) for each, look in zip(array, looks, strict=True)]
    tail = "cached" if whole else "paid again" if before else "new"
    return draw.element("div", *boxes, box("conversation", tail, 92), style="display:flex;margin:1px 0")


async def taken(array, name):
    called = call("c1", name, name="notify_user") if name == "run_tool" else call("c1", name)
    history = [user("Tell me."), assistant("", called), tool("c1", "It ran.")]
    try:
        client = Simulator(["Good."], dialect="anthropic").client()
        return bool(await client.complete(history, [each.spec() for each in array]))
    except ProviderRefused:
        return False


rows = []
for name, arrays in STRATEGIES.items():
    lines = [line(arrays[at - 1] if at else None, array) for at, array in enumerate(arrays)]
    sizes = " → ".join(f"{len(array_text(array)):,}" for array in arrays)
    called = {"t": "run_tool", "p": "page_fetch"}.get(name[0], "notify_user")
    calls = sum([await taken(array, called) for array in arrays[1:]])
    rows.append((name, draw.html(*lines), sizes, f"{calls} of 3", array_history(arrays).breaks))
draw.table(rows, head=("strategy", "requests 1 to 4", "characters of the array", "taken", "breaks"))

# %% [markdown]
# One tool more at the end of the array leaves most of *it* as it was. That is no comfort: all that comes behind it, the whole
# conversation, is paid again.
#
# The third place for a tool, **promoted**: one that this session is sure to need and sure to have, because of the
# subscription or the model, stands in the array from the start. Declare it in the model's settings,
# `Catalog(..., promoted=["page_fetch"])`, and only by facts that hold for the whole session: as the last line shows, one that
# comes and goes is worse than none.
#
# <details><summary>The figures of the seed's own demonstration</summary>
#
# Its tools are shorter, the shape is the same. Added each time: 150 → 205 → 258 → 319 characters, 3 breaks. Through `run_tool`:
# 224, none. Never added: 150, none, but 3 of 3 calls refused. Added once: 150 → 200, 1 break. Promoted: 204, none; coming and
# going: 150 → 204 → 204 → 150, 2 breaks, and 73 % of the array reused at the end.
#
# </details>
#
# ## Whose permission?
#
# `run_tool` is one tool that runs all others: a rule that allows `run_tool` would allow everything. So its call is taken for
# a call of the *target* from the start; rules, log, spilling and the watchdog see the target. Rules may look at the target's
# arguments, too.

# %%
RULES = Policy(
    [
        *(Rule("allow", name) for name in ("run_tool", "batch", "weather_*")),
        Rule("allow", "deploy_start", matching(environment="test")),
        Rule("deny"),
    ]
)


@catalog.tool
async def batch(calls: list) -> list:
    """Run several calls at once."""
    results = [await catalog.dispatch(call(f"b{n}", one["name"], **one["input"])) for n, one in enumerate(calls)]
    return [f"{result.name}: {result.status}" for result in results]


weather, deletion = ("weather_forecast", {"place": "Oslo"}), ("delete_branch", {"branch": "main"})
both = [{"name": name, "input": input} for name, input in (weather, deletion)]
CALLS = {
    "run_tool, the weather": through_run_tool("c1", *weather),
    "run_tool, a deletion": through_run_tool("c2", *deletion),
    "the deletion by its name": by_name("c3", *deletion),
    "batch, both": by_name("c4", "batch", {"calls": both}),
    "run_tool, batch, both": through_run_tool("c5", "batch", {"calls": both}),
}
for place in "test", "live":
    input = {"service": "shop", "version": "7", "environment": place}
    CALLS[f"run_tool, deploy to {place}"] = through_run_tool("c6", "deploy_start", input)
rows = []
for what, called in CALLS.items():
    result = await catalog.dispatch(called, policy=RULES)
    rows.append((what, result.name, result.status, result.output[:60]))
draw.table(rows, head=("the model calls", "judged as", "status", "output"))


# %% [markdown]
# The batch was allowed; what stands in it is judged again. The policy is asked at the one place where a tool starts, whatever
# the way there. A rule that raises means no.
#
# And `ask`: without a rule, reading is allowed and everything else asks. `AskPanel` puts the question under the cell. Here a
# script clicks, first Deny and then Allow; write `AskPanel()` and click yourself.

# %%
def sends(request):
    results = [m["content"] for m in request["messages"] if m["role"] == "tool"]
    to = ["everyone@example.com", "me@example.com"]
    if len(results) == 2:
        return "It went to you alone." if "ran" in results[1] else "I sent nothing."
    input = {"to": [to[len(results)]], "subject": "The build", "body": "It fails."}
    return assistant("", through_run_tool(f"call_{len(results)}", "email_send", input))


panel = AskPanel(script=[False, True])
policy = Policy(ask=panel)
turn = await stream(run_turn([user("Mail it.")], Simulator(sends).client(), Catalog([], TOOLS), policy=policy))

# %%
panel

# %% [markdown]
# It asks about `email_send` and its arguments, not about `run_tool`. Where nobody is there to click, the answer is no.
#
# ## What a search finds
#
# The search compares the words of the query with those of each tool. Rare words count more (TF-IDF, cosine):

# %%
catalog.search("send mail", k=3)

# %% [markdown]
# Chinese puts no spaces between words, nor does Japanese. So every character is a term, and every pair; in Korean, too:

# %%
print(terms("发系统通知"))
schema = {"type": "object", "properties": {}}
CHINESE = {"notify_user": "向用户发一条系统通知", "create_subtask": "新建一个子任务", "convene_panel": "召集评审"}
ToolIndex(make(name, text, schema, False) for name, text in CHINESE.items()).search("发通知")

# %% [markdown]
# What it cannot do: it does not know that "hot" is about weather, and it does not cross languages. So a search without a hit
# must not end in silence: the model reads names, and can try again in the tools' own words.

# %%
for query in "forecast", "how hot will it get":
    print(f"{query}: {', '.join(hit.name for hit in catalog.search(query, k=3))}")
result = await catalog.dispatch(call("c1", "search_tool", query="发通知"))
print(textwrap.fill(result.output.replace("\n", " ")[:330], 100), "...")

# %% [markdown]
# ## Turn the knob
#
# Ten tools are better shown than searched for: a search is one more request, and somebody waits for it. `Catalog(auto=N)`
# shows up to N tools all at once. Which N? Both ways cost money, once you say what a second of waiting is worth to you. The
# bars compare them, for a prompt of 20,000 tokens; up to N tools showing all is not longer.

# %%
AVERAGE = schema_tokens(TOOLS)  # of one tool, an estimate at four characters to a token


def even(model, seconds, strict, **options):
    prices = PRICES.find(model, tier=MODELS[model])
    options |= {"search_seconds": seconds, "breaks": float(strict)}
    return break_even(prices, schema_tokens=AVERAGE, prefix_tokens=20_000, **options)


def view(tools, **options):
    found = even(**options)
    tokens = found.searches * (found.per_search - found.waiting)
    show = [(f"show {tools} tools", 100 * found.direct(tools), "paid again")]
    defer = [
        ("search_tool and run_tool", 100 * found.entry, "kept"),
        ("searches", 100 * tokens, "paid again"),
        ("waiting", 100 * found.searches * found.waiting, "user"),
    ]
    scale = max(show[0][1], 100 * found.deferred)
    bars = [draw.bar(parts, total=scale, unit="cents") for parts in (show, defer)]
    return draw.html(*bars, f"N = {found.tools:,}")


START = {"tools": 42, "requests": 30, "searches": 2, "seconds": 2.0}
START |= {"second_costs": 0.0, "strict": False, "model": "claude-sonnet-5"}
counts = {"tools": (1, 120), "requests": (1, 300), "searches": (0, 20), "seconds": (0.0, 10.0)}
worth = [("nothing", 0.0), ("0.1 cents", 0.001), ("1 cent", 0.01)]
knob = explore(view, **counts, second_costs=worth, strict=False, model=list(MODELS))
knob.set(**START)

# %%
SETTINGS = {
    "as it stands": {},
    "a long session": {"requests": 300},
    "ten searches": {"searches": 10},
    "a second costs 1 cent": {"second_costs": 0.01},
    "strict": {"strict": True},
}
rows = []
for what, values in SETTINGS.items():
    cells = []
    for model in MODELS:
        options = {key: value for key, value in (START | values | {"model": model}).items() if key != "tools"}
        cells.append(even(**options).tools)
    rows.append((what, *cells))
knob.set(**START)
draw.table(rows, head=("N", *MODELS))

# %% [markdown]
# There is no N for everybody. Long sessions make it small, searches and impatience make it large, and with a strict provider
# a search costs the whole prompt. (The seed's own sum mixes seconds, tokens and dollars, and gets 3,000.)
#
# ## In the loop
#
# The three jobs again, in three ways:

# %%
WAYS = {
    "all 42 in the array": await session(Catalog([], TOOLS, auto=42), by_name),
    "added when found": growing,
    "run_tool": await session(Catalog([], TOOLS), through_run_tool),
}
rows = []
for way, simulator in WAYS.items():
    arrays = [json.dumps(request["tools"]) for request in simulator.requests]
    whole = total(read_usage(usage) for usage in simulator.usages)
    costs = [bill(simulator.usages, PRICES.find(model, tier=MODELS[model])).actual for model in MODELS]
    changes = array_history([request["tools"] for request in simulator.requests]).breaks
    rows.append((way, len(arrays), changes, whole.prompt, whole.miss, *(f"{100 * cost:.2f}" for cost in costs)))
head = ("way", "requests", "breaks", "tokens", "paid in full", *(f"cents, {model}" for model in MODELS))
draw.table(rows, head=head)

# %% [markdown]
# (All rows with a cache like OpenAI's, where writing costs nothing extra.) Searching took three requests more, and still sent
# fewer tokens. Adding what was found was the worst: here it cost about twice as much as hiding nothing.
#
# Watch the third way:

# %%
simulator = Simulator(works(through_run_tool), cache=BlockCache())
turn = await stream(run_turn(ask, simulator.client(), Catalog([], TOOLS), policy=ANYTHING))


# %% [markdown]
# ## Your turn
#
# **1.** Write `resolve_tools`, which makes the array for either kind of provider. Tools are dicts with a `name`; `unmasked`
# are the names that were found or called so far. This one adds what was found:

# %%
def my_resolve_tools(protocol, unmasked, *, direct, deferred):
    return direct + [tool for tool in deferred if tool["name"] in unmasked]


# %% tags=["breaks-prefix"]
check.resolve_tools(my_resolve_tools)

# %%
# check.resolve_tools.hint(1)

# %%
source(check.resolve_tools.solution, fold="One solution")

# %% tags=["breaks-prefix"]
check.resolve_tools(check.resolve_tools.solution)

# %% [markdown]
# **Then your code runs the agent.** A strict provider, two searches in one step, two calls by name:

# %% tags=["breaks-prefix"]
turn = await stream(check.resolve_tools.turn(check.resolve_tools.solution))


# %% [markdown]
# **2.** Write `run_tool` itself. `tools` is a dict from names to tools, each with its `handler`; `policy` has
# `judge(tool, input)` and `await permits(tool, input)`. Return a status, `completed`, `failed` or `rejected`, and a text for
# the model. This one lets everything through where `run_tool` is allowed:

# %%
async def my_run_tool(name, input, *, tools, policy):
    target, input = tools.get(name), input or {}
    if target is None or name == "run_tool":
        return "failed", f"There is no tool {name!r}."
    if policy.judge(tools["run_tool"], input) != "allow" and not await policy.permits(target, input):
        return "rejected", "Permission was refused."
    return "completed", await target.handler(**input)


# %%
check.target_permission(my_run_tool)

# %%
# check.target_permission.hint(1)

# %%
source(check.target_permission.solution, fold="One solution")

# %%
check.target_permission(check.target_permission.solution)

# %% [markdown]
# **Then your code runs the agent.** The weather is allowed, deleting is not, and the model tries both:

# %%
turn = await stream(check.target_permission.turn(check.target_permission.solution))

# %% [markdown]
# **Think.** `run_tool` forgets to ask for its target. How large is the hole?
#
# <details><summary>An answer</summary>
#
# As large as the catalogue. One rule, "allow run_tool", then allows every deferred tool, also those of a server that
# connects tomorrow. And nobody notices: the rules for `delete_branch` still stand in the settings, and tests that call it by its
# name still pass.
#
# </details>
#
# **Think.** With a strict provider the model finds two tools in one step. How often does the array change? And if it finds one
# of them in this step, and the other in the next?
#
# <details><summary>An answer</summary>
#
# Once, then twice. The array is made when a request is made, from all that was found by then. That is also a reason for a
# search to return a few tools and not only the best one: the next job often needs its neighbour.
#
# </details>
#
# **Think.** Is the N of `auto` a number of tools? Two servers: one with 40 tools of one line, one with 4 whose schemas fill a
# page each.
#
# <details><summary>An answer</summary>
#
# What is paid is tokens. `break_even` takes the mean size, which is wrong for a mixed catalogue; a limit in tokens for the whole
# array would say it better. And `auto` says nothing about quality: whether a model chooses well among 60 tools only a
# recorded run can tell.
#
# </details>
#
# ## In real products
#
# <details><summary>Who defers, who searches, and what was reported in the field</summary>
#
# | product | what it does |
# |---|---|
# | Reina (seed 003) | deferred by a default list; TF-IDF with keywords and CJK characters and pairs; the array is constant, calls go by name, and what was found is added only where names are checked: learned when a session moved to an Anthropic-compatible endpoint; promotion is declared in the model's settings |
# | Claude Code (seed 003) | core tools always there, MCP tools by name only; ToolSearch brings the schema as a result |
# | Codex (seed 003) | the provider (OpenAI's Responses API) manages tools on its side, and the client's array does not grow. A provider without that feature cannot be used this way: ask what yours does before you copy |
# | Anthropic's API | has a [tool search](https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool) of its own now, with `defer_loading`. The seed says that there is none, which is out of date; and that tools may be appended without losing the cache, which is wrong |
# | Vercel's AI SDK | [`toolSearch`](https://ai-sdk.dev/docs/ai-sdk-core/tool-search) adds what was found for the next step, and its page says that this can invalidate the cached prefix |
# | Pydantic AI | the same trade-off [discussed](https://github.com/pydantic/pydantic-ai/issues/3590) for providers without a feature of their own |
#
# | fault | reported in |
# |---|---|
# | the listing of deferred tools stands in the system prompt, and is written anew at every discovery | [qwen-code 4777](https://github.com/QwenLM/qwen-code/issues/4777) |
# | tools are promoted into the array in the middle of a run: each promotion breaks the prefix | [ironclaw 6986](https://github.com/nearai/ironclaw/issues/6986) |
# | finding a tool invalidates the cache; the remedy is a wrapper tool that is resolved before permissions and hooks | [qwen-code 6721](https://github.com/QwenLM/qwen-code/issues/6721) |
# | a batch tool runs what it holds without asking again: a deny rule has no effect | [altimate-code 1014](https://github.com/AltimateAI/altimate-code/pull/1014) |
# | a server's new tools are never found, since its announcement is not heard | [codex 33266](https://github.com/openai/codex/issues/33266) |
#
# </details>
#
# ## Go live
#
# Your own model and the same catalogue: does it search, and does it use `run_tool`? Every tool only says that it ran, and what
# writes is refused. Set `AGENT_BASE_URL` and `AGENT_MODEL` before you start JupyterLab.

# %%
if os.environ.get("AGENT_BASE_URL"):
    client = ChatClient.from_env()
    live = Catalog([], TOOLS, protocol=protocol_of(client.dialect))
    system = {"role": "system", "content": live.listing}
    await stream(run_turn([system, user("Look up what the weather in Oslo will be.")], client, live))
else:
    print("AGENT_BASE_URL is not set: this cell stays offline.")

# %% [markdown]
# **Next:** [MCP](11_mcp.ipynb), where other people's tools come through a pipe.
