"""A catalogue in a running turn: the array keeps its bytes, and permission is judged on what really runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values

from agentlab.disclosure import Catalog, Protocol, protocol_of
from agentlab.errors import AgentLabError, ProviderRefused
from agentlab.interrupt import Stop
from agentlab.loop import Finished, Hooks, Stopped, run_turn
from agentlab.messages import Message, ToolCall, assistant, call, user
from agentlab.outputs import reduce
from agentlab.permissions import Policy, Rule, inside, matching
from agentlab.simulator import Simulator
from agentlab.spill import OutputBudget, SpillStore
from agentlab.toolarray import array_history, array_text
from agentlab.tools import Output, Registry, Tool, ToolResult
from agentlab.watchdog import LoopBudget
from tests.cases import case

OFFICE = json.loads((Path(__file__).parents[1] / "data/tools/office.json").read_bytes())["tools"]
ANYTHING = Policy(default="allow")
GO = [user("Tell me when it is done.")]
ENTRIES = ["search_tool", "run_tool"]


class Desk:
    """The office's tools, and a record of what ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.office = [self.make(**entry) for entry in OFFICE]
        self.direct = [self.make("read_file", read_only=True, spillable=False), self.make("run_shell", log=True)]

    def make(self, name: str, description: str = "", parameters: Any = None, output: Any = None, **flags: Any) -> Tool:
        async def handler(**input: Any) -> Any:
            self.ran.append((name, input))
            return f"{name} ran" if output is None else output

        open_schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return Tool(name, description, open_schema if parameters is None else parameters, handler, **flags)

    def catalog(self, **options: Any) -> Catalog:
        return Catalog(self.direct, self.office, **options)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def names(specs: Sequence[dict[str, Any]]) -> list[str]:
    return [spec["function"]["name"] for spec in specs]


def dispatch(catalog: Registry, called: ToolCall, policy: Policy | None = ANYTHING) -> ToolResult:
    return run(catalog.dispatch(called, policy=policy))


def run_tool(name: Any, input: Any = None, **more: Any) -> ToolCall:
    given = {} if input is None else {"input": input}
    return call("c1", "run_tool", name=name, **given, **more)


def arrays_of(simulator: Simulator) -> list[list[Any]]:
    return [request["tools"] for request in simulator.requests]


# --- what the model is told


def test_the_array_shows_the_direct_tools_and_the_two_entries(desk: Desk) -> None:
    catalog = desk.catalog()
    assert names(catalog.specs()) == ["read_file", "run_shell", *ENTRIES]
    assert catalog.specs() == catalog.tools("free-text", []) == catalog.tools("strict", [])
    assert catalog.deferred == tuple(sorted(entry["name"] for entry in OFFICE))
    assert len(catalog) == len(OFFICE) + 4 and catalog.get("email_send") is desk.office[17]


def test_tools_forks_by_protocol_and_only_looks(desk: Desk) -> None:
    catalog = desk.catalog()
    found = ["notify_user", "chat_search", "nobody", "read_file", "notify_user"]
    assert names(catalog.tools("strict", found)) == [*names(catalog.specs()), "chat_search", "notify_user"]
    assert catalog.tools("free-text", found) == catalog.specs()
    assert catalog.unmasked == ()
    with pytest.raises(AgentLabError, match="is no protocol"):
        catalog.tools("loose")  # type: ignore[arg-type]


def test_promoted_tools_stand_in_the_array_from_the_start(desk: Desk) -> None:
    catalog = desk.catalog(promoted=["page_fetch", "chat_search"])
    assert names(catalog.specs()) == ["read_file", "run_shell", "chat_search", "page_fetch", *ENTRIES]
    assert "page_fetch" not in catalog.deferred and "page_fetch" not in catalog.listing
    assert catalog.specs() == desk.catalog(promoted=["chat_search", "page_fetch", "read_file"]).specs()
    with pytest.raises(AgentLabError, match=r"not deferred: page_fetsh\. Deferred are: calendar"):
        desk.catalog(promoted=["page_fetsh"])


def test_up_to_auto_tools_all_are_direct(desk: Desk) -> None:
    total = len(OFFICE) + 2
    everything = desk.catalog(auto=total)
    assert names(everything.specs()) == ["read_file", "run_shell", *sorted(entry["name"] for entry in OFFICE)]
    assert Catalog(desk.direct, desk.office[::-1], auto=total).specs() == everything.specs()
    assert everything.listing == "" and everything.deferred == ()
    assert desk.catalog(auto=total - 1).specs() == desk.catalog().specs()
    assert dispatch(everything, call("c1", "email_search", words="a")).status == "completed"
    nested = dispatch(everything, run_tool("email_search"))
    assert nested.status == "failed" and "no tool named 'run_tool'" in nested.output
    with pytest.raises(AgentLabError, match="auto=0"):
        everything.add_deferred([desk.make("late")])


def test_the_listing_is_sorted_and_fixed(desk: Desk) -> None:
    catalog = desk.catalog()
    before = catalog.listing
    lines = before.splitlines()[1:]
    assert lines == sorted(lines) and len(lines) == len(OFFICE)
    assert "- weather_forecast: The weather of the next days in a place." in lines
    assert Catalog(desk.direct, list(reversed(desk.office))).listing == before
    catalog.add_deferred([desk.make("mcp__late__one")])
    assert catalog.listing == before


def test_names_that_are_taken_are_refused(desk: Desk) -> None:
    for direct, deferred in [(desk.direct * 2, []), (desk.direct, desk.direct), ([desk.make("run_tool")], [])]:
        with pytest.raises(AgentLabError, match="already"):
            Catalog(direct, deferred)
    with pytest.raises(AgentLabError, match="is no protocol"):
        desk.catalog(protocol="loose")


def test_registries_are_taken_as_they_are(desk: Desk) -> None:
    catalog = Catalog(Registry(desk.direct), Registry(desk.office))
    assert catalog.specs() == desk.catalog().specs() and catalog.deferred == desk.catalog().deferred


def test_it_draws_itself(desk: Desk) -> None:
    catalog = desk.catalog()
    catalog.unmask(["notify_user"])
    drawn = catalog._repr_html_()
    assert "in the array" in drawn and "unmasked" in drawn and "deferred" in drawn


# --- tools that come later


def test_connecting_changes_only_what_the_search_finds(desk: Desk) -> None:
    catalog = desk.catalog(protocol="strict")
    before = array_text(catalog.specs())
    assert catalog.search("astrolabe") == []
    catalog.add_deferred([desk.make("mcp__stars__astrolabe", "Where a star stands."), desk.make("mcp__stars__moon")])
    assert array_text(catalog.specs()) == before
    assert [hit.name for hit in catalog.search("astrolabe")] == ["mcp__stars__astrolabe"]
    assert dispatch(catalog, run_tool("mcp__stars__moon")).output == "mcp__stars__moon ran"

    @catalog.tool
    async def sextant() -> str:
        return "high"

    assert array_text(catalog.specs()) == before and catalog.search("sextant")[0].name == "sextant"


def test_a_list_may_be_added_again_and_what_was_shown_keeps_its_bytes(desk: Desk) -> None:
    catalog = desk.catalog(protocol="strict")
    catalog.add_deferred([desk.make("mcp__a__one", "Old words.")])
    catalog.unmask(["mcp__a__one"])
    before = array_text(catalog.specs())
    catalog.add_deferred([desk.make("mcp__a__one", "Quite new.", output="new"), desk.make("mcp__a__two")])
    assert array_text(catalog.specs()) == before
    assert catalog.search("quite")[0].name == "mcp__a__one"
    assert dispatch(catalog, run_tool("mcp__a__one")).output == "new"


@pytest.mark.parametrize("taken", ["read_file", "search_tool", "a.b"])
def test_a_bad_name_among_them_adds_none(desk: Desk, taken: str) -> None:
    catalog = desk.catalog()
    with pytest.raises(AgentLabError):
        catalog.add_deferred([desk.make("fine"), desk.make(taken)])
    assert "fine" not in catalog and catalog.search("fine") == []
    with pytest.raises(AgentLabError, match="already"):
        catalog.add(desk.make("fine"), desk.make("email_send"))
    assert "fine" not in catalog


# --- run_tool


def test_the_result_is_the_targets(desk: Desk) -> None:
    catalog = desk.catalog()
    result = dispatch(catalog, run_tool("notify_user", {"text": "Done."}))
    assert result == ToolResult("c1", "notify_user", {"text": "Done."}, "completed", "notify_user ran")
    assert desk.ran == [("notify_user", {"text": "Done."})]
    assert not dispatch(catalog, run_tool("read_file", {"path": "a"})).spillable
    assert dispatch(catalog, run_tool("clipboard_read")).status == "completed"
    assert dispatch(catalog, run_tool("notify_user", '{"text":"as text"}')).input == {"text": "as text"}
    assert dispatch(catalog, run_tool("search_tool", {"query": "mail"})).name == "search_tool"


def test_what_the_target_refuses_is_said_in_its_name(desk: Desk) -> None:
    result = dispatch(desk.catalog(), run_tool("notify_user", {"txet": "Done."}))
    assert (result.name, result.status) == ("notify_user", "failed") and "Missing argument: text" in result.output
    assert "valid JSON" in dispatch(desk.catalog(), run_tool("notify_user", "{")).output
    assert desk.ran == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{}", "needs the name"),
        ('{"name":7}', "needs the name"),
        ('{"name":""}', "needs the name"),
        ("[", "not valid JSON"),
        ('{"name":"notify_user","input":[]}', "The input must be one JSON object: the arguments of notify_user"),
        ('{"name":"notify_user","input":7}', "The input must be one JSON object"),
        ('{"name":"notify_user","\\ud800":1}', "into input: \ufffd."),
        ("[]", "one JSON object"),
        ('{"name":"run_tool","input":{"name":"email_send"}}', "cannot run itself"),
        ('{"name":"notify_user","text":"Done."}', "Put the arguments of notify_user into input: text."),
        ('{"name":"notify_usr","input":{}}', "Did you mean notify_user"),
        ('{"name":"user_notify","input":{}}', "Did you mean notify_user"),
        ('{"name":"read_fil"}', "Did you mean read_file"),
        ('{"name":"zzz"}', "There is no tool named 'zzz'. Find others with search_tool."),
    ],
)
def test_a_call_that_cannot_be_run_says_what_to_do(desk: Desk, arguments: str, said: str) -> None:
    result = dispatch(desk.catalog(), {"id": "c1", "function": {"name": "run_tool", "arguments": arguments}})
    assert (result.call_id, result.name, result.status) == ("c1", "run_tool", "failed") and said in result.output
    assert desk.ran == []


def test_unknown_names_are_told_in_few_words_however_many_tools_there_are(desk: Desk) -> None:
    catalog = Catalog([], [desk.make(f"tool_{n}") for n in range(3_000)])
    assert len(dispatch(catalog, call("c1", "tool_x" * 2_000)).output) < 500


def test_the_body_of_run_tool_is_no_way_around(desk: Desk) -> None:
    tool = desk.catalog().get("run_tool")
    assert tool is not None and not tool.read_only
    with pytest.raises(AgentLabError, match="nothing to run"):
        run(tool.handler(name="delete_branch", input={"branch": "main"}))


@given(json_values, st.sampled_from(["run_tool", "search_tool", "email_send", "no_such", "", "é"]))
def test_dispatch_takes_whatever_a_model_sends(arguments: Any, name: str) -> None:
    desk = Desk()
    catalog = desk.catalog(protocol="strict")
    for sent in (arguments, json.dumps(arguments)):
        result = dispatch(catalog, {"id": "c", "function": {"name": name, "arguments": sent}}, Policy(default="deny"))
        assert result.status in ("failed", "rejected") and result.call_id == "c" and len(result.output) < 1_000
    assert desk.ran == []


# --- permission


def test_permission_is_judged_on_the_target_and_its_input(desk: Desk) -> None:
    asked: list[Any] = []

    async def ask(tool: Any, input: dict[str, Any]) -> bool:
        asked.append((tool.name, input))
        return False

    policy = Policy({"run_tool": "allow", "delete_*": "deny", "email_search": "allow"}, ask=ask)
    catalog = desk.catalog()
    rejected = dispatch(catalog, run_tool("delete_branch", {"branch": "main"}), policy)
    assert (rejected.name, rejected.status) == ("delete_branch", "rejected")
    assert dispatch(catalog, run_tool("email_send", {"to": [], "subject": "", "body": ""}), policy).status == "rejected"
    assert asked == [("email_send", {"to": [], "subject": "", "body": ""})]
    assert dispatch(catalog, run_tool("email_search", {"words": "a"}), policy).status == "completed"
    assert desk.ran == [("email_search", {"words": "a"})]


def test_by_default_a_target_that_reads_runs_and_one_that_writes_does_not(desk: Desk) -> None:
    catalog = desk.catalog()
    assert dispatch(catalog, run_tool("weather_forecast", {"place": "Oslo"}), None).status == "completed"
    assert dispatch(catalog, run_tool("secret_rotate", {"name": "a"}), None).status == "rejected"
    assert dispatch(catalog, call("c", "secret_rotate", name="a"), None).status == "rejected"


def test_denying_run_tool_itself_says_nothing_about_its_targets(desk: Desk) -> None:
    policy = Policy({"run_tool": "deny", "notify_user": "allow"})
    assert dispatch(desk.catalog(), run_tool("notify_user", {"text": "a"}), policy).status == "completed"


def test_patterns_of_arguments_and_folders_reach_behind_run_tool(desk: Desk, tmp_path: Path) -> None:
    rules = [
        Rule("allow", "deploy_start", matching(environment="test")),
        Rule("allow", "document_convert", inside("notes", root=tmp_path)),
    ]
    policy = Policy(rules, default="deny")

    def status(name: str, **input: Any) -> str:
        return dispatch(desk.catalog(), run_tool(name, input), policy).status

    assert status("deploy_start", service="a", version="1", environment="test") == "completed"
    assert status("deploy_start", service="a", version="1", environment="production") == "rejected"
    assert status("document_convert", path="notes/a.md", to="pdf") == "completed"
    assert status("document_convert", path="notes/../a.md", to="pdf") == "rejected"


@pytest.mark.parametrize("route", ["dispatch", "run_tool", "thread"])
@pytest.mark.parametrize("policy", ["rules", "raises", "reading_denied"])
def test_a_batch_opens_no_door(route: str, policy: str) -> None:
    """Case E07."""
    found = case("E07")
    ran: list[str] = []
    catalog = Catalog()

    async def inner(calls: list[dict[str, Any]]) -> list[str]:
        named = [entry["name"] for entry in calls]
        return [(await catalog.dispatch(run_tool(n) if route == "run_tool" else call("c", n))).status for n in named]

    async def batch(calls: list[dict[str, Any]]) -> list[str]:
        return await inner(calls)

    def in_a_thread(calls: list[dict[str, Any]]) -> list[str]:
        return asyncio.run(inner(calls))

    def raising(input: dict[str, Any]) -> bool:
        raise RuntimeError("a mistake in a rule")

    catalog.tool(name="batch")(in_a_thread if route == "thread" else batch)
    catalog.tool(name="read_file", read_only=True)(lambda: ran.append("read_file"))
    catalog.tool(name="delete_file")(lambda: ran.append("delete_file"))
    in_force = {
        "rules": Policy(found["input"]["rules"]),
        "raises": Policy([Rule("allow", "batch"), Rule("allow", when=raising)]),
        "reading_denied": Policy({"batch": "allow", "*": "deny"}),
    }[policy]
    called = found["input"]["call"]
    result = dispatch(catalog, call("c1", called["name"], **called["arguments"]), in_force)
    expected = ["completed", "rejected"] if policy == "rules" else ["rejected", "rejected"]
    assert json.loads(result.output) == expected
    assert ran == (["read_file"] if policy == "rules" else [])
    assert dispatch(catalog, call("c2", "delete_file"), None).status == "rejected"  # it holds for that call only
    assert dispatch(catalog, call("c2", "read_file"), None).status == "completed"


def test_a_policy_is_in_force_no_longer_than_its_call(desk: Desk) -> None:
    async def main() -> list[str]:
        catalog, called = desk.catalog(), call("c", "run_tool", name="secret_rotate", input={"name": "a"})
        return [(await catalog.dispatch(called, policy=policy)).status for policy in (None, ANYTHING, None)]

    assert run(main()) == ["rejected", "completed", "rejected"]


# --- in the loop


def story(*steps: Any, dialect: str = "openai") -> Simulator:
    return Simulator([*steps, "Done."], dialect=dialect)


def finished(simulator: Simulator, catalog: Catalog, **options: Any) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        turn = run_turn(GO, simulator.client(), catalog, **{"policy": ANYTHING, **options})
        results = [event.result async for event in turn if isinstance(event, Finished)]
        assert turn.reason == "done", turn.reason
        return results

    return run(main())


SEARCHED = assistant("", call("s1", "search_tool", query="notify the person"))
RUN = assistant("", call("r1", "run_tool", name="notify_user", input={"text": "Done."}))
NAMED = assistant("", call("d1", "notify_user", text="Done."))


@pytest.mark.parametrize("dialect", ["openai", "deepseek"])
def test_where_names_are_free_the_array_never_changes(desk: Desk, dialect: str) -> None:
    simulator = story(SEARCHED, RUN, NAMED, dialect=dialect)
    results = finished(simulator, desk.catalog(protocol=protocol_of(dialect)))
    assert [result.name for result in results] == ["search_tool", "notify_user", "notify_user"]
    assert [ran[0] for ran in desk.ran] == ["notify_user", "notify_user"]
    assert '"text":{"description"' in results[0].output  # the schema is in the result
    assert array_history(arrays_of(simulator)).breaks == 0 and len(simulator.requests) == 4


def test_where_names_are_checked_what_was_found_is_added_once(desk: Desk) -> None:
    simulator = story(SEARCHED, RUN, NAMED, NAMED, SEARCHED, dialect="anthropic")
    catalog = desk.catalog(protocol=protocol_of("anthropic"))
    results = finished(simulator, catalog)
    assert [result.status for result in results] == ["completed"] * 5
    history = array_history(arrays_of(simulator))
    assert history.breaks == 1 and history.steps[0].broken
    added = [tool["name"] for tool in simulator.requests[-1]["tools"]][4:]
    assert "notify_user" in added and added == sorted(added) == list(catalog.unmasked)


def test_never_adding_is_refused_by_a_provider_that_checks_names(desk: Desk) -> None:
    with pytest.raises(ProviderRefused, match="Tool 'notify_user' not found in provided tools"):
        finished(story(SEARCHED, NAMED, dialect="anthropic"), desk.catalog())
    finished(story(SEARCHED, RUN, dialect="anthropic"), desk.catalog())  # the entries themselves are always there


def test_several_searches_of_one_step_change_the_array_once(desk: Desk) -> None:
    both = assistant("", call("s1", "search_tool", query="deploy"), call("s2", "search_tool", query="e-mail"))
    simulator = story(both, dialect="anthropic")
    catalog = desk.catalog(protocol="strict")
    finished(simulator, catalog)
    assert array_history(arrays_of(simulator)).breaks == 1
    assert {"deploy_start", "email_send"} <= set(catalog.unmasked)


def test_a_name_read_in_the_listing_may_be_called_without_a_search(desk: Desk) -> None:
    catalog = desk.catalog(protocol="strict")
    simulator = Simulator([NAMED, "Done."], dialect="anthropic")

    async def main() -> None:
        history: list[Message] = [{"role": "system", "content": catalog.listing}, *GO]
        assert (await run_turn(history, simulator.client(), catalog, policy=ANYTHING).run()).reason == "done"

    run(main())
    assert catalog.unmasked == ("notify_user",) and len(desk.ran) == 1


def made_up(name: str = "no_such_tool") -> list[Message]:
    return [
        user(f"Use {name}."),
        assistant("", call("m1", name)),
        {"role": "tool", "tool_call_id": "m1", "content": "x"},
    ]


def test_a_made_up_name_does_not_lock_the_conversation(desk: Desk) -> None:
    catalog = desk.catalog(protocol="strict")
    history = [user("Use no_such_tool.")]
    simulator = Simulator([assistant("", call("m1", "no_such_tool")), "There is none."], dialect="anthropic")
    turn = run_turn(history, simulator.client(), catalog, policy=ANYTHING)
    assert run(turn.run()).reason == "done"
    assert "There is no tool named 'no_such_tool'" in turn.history[2]["content"]
    assert catalog.get("no_such_tool") is None
    shown = simulator.requests[-1]["tools"][-1]
    assert shown["name"] == "no_such_tool" and "does not exist" in shown["description"]
    catalog.add_deferred([desk.make("no_such_tool", "Now it does.")])
    assert catalog.specs()[-1]["function"]["description"] == "Now it does."


@pytest.mark.parametrize("name", ["notify_user", "mcp__gone__tool"])
def test_a_resumed_session_shows_what_its_history_calls(desk: Desk, name: str) -> None:
    catalog = desk.catalog(protocol="strict")
    simulator = Simulator(["Done."], dialect="anthropic")
    hooks = Hooks(before_request=catalog.see)
    turn = run_turn([*made_up(name), user("And now?")], simulator.client(), catalog, hooks=hooks)
    assert run(turn.run()).reason == "done"
    assert catalog.unmasked == (name,)


@pytest.mark.parametrize("name", ["a.b", "x" * 65, "", "é"])
def test_names_that_no_provider_takes_are_not_shown(desk: Desk, name: str) -> None:
    catalog = desk.catalog(protocol="strict")
    catalog.see(made_up(name))
    assert catalog.unmasked == ()


def test_output_is_folded_spilled_and_counted_as_the_targets(desk: Desk, tmp_path: Path) -> None:
    log = "\n".join([*(f"compiling part {n}" for n in range(500)), "error: part 7"])
    desk.office += [desk.make("build", output=log, log=True), desk.make("long", output="x" * 9_000)]
    desk.office += [desk.make("show", output="y" * 9_000, spillable=False), desk.make("saved", output=Output("z", "f"))]
    catalog = desk.catalog()
    results = [dispatch(catalog, run_tool(name)) for name in ("build", "long", "show", "saved")]
    store = SpillStore(tmp_path / "spill")
    after = reduce(results, registry=catalog, store=store, budget=OutputBudget(5_000, 50_000)).results
    assert "lines omitted" in after[0].output and after[1].output_path and len(after[1].output) < 5_000
    assert after[2] is results[2] and after[3].output_path == "f"

    budget = LoopBudget()
    reasons = [budget.record([dispatch(catalog, run_tool("notify_user", {"text": "a"}))]) for _ in range(4)]
    assert reasons[:3] == [None] * 3 and reasons[3] and reasons[3].message.startswith("notify_user was called")


def test_stop_reaches_the_target() -> None:
    catalog, stop = Catalog(), Stop()

    @catalog.tool
    async def sleep() -> None:
        stop.request()
        await asyncio.Event().wait()

    simulator = story(assistant("", call("c1", "run_tool", name="sleep")))

    async def main() -> None:
        turn = run_turn([user("sleep")], simulator.client(), catalog, stop=stop, policy=ANYTHING)
        events = [event async for event in turn]
        results = [event.result for event in events if isinstance(event, Finished)]
        assert [(result.name, result.status) for result in results] == [("sleep", "interrupted")]
        assert any(isinstance(event, Stopped) for event in events)

    run(main())


WORDS = st.sampled_from(["search", "run", "name", "add", "unknown"])
PROTOCOLS: list[Protocol] = ["free-text", "strict"]


@given(st.lists(st.lists(st.tuples(WORDS, st.integers(0, len(OFFICE) - 1)), max_size=4), max_size=6))
def test_the_array_changes_only_in_strict_only_at_its_end_and_once_a_step(steps: list[list[tuple[str, int]]]) -> None:
    for protocol in PROTOCOLS:
        desk = Desk()
        catalog = desk.catalog(protocol=protocol)
        start = array = array_text(catalog.specs())
        for number, step in enumerate(steps):
            before = set(catalog.unmasked)
            for word, at in step:
                name = OFFICE[at]["name"]
                if word == "add":
                    catalog.add_deferred([desk.make(f"mcp__s{number}__t{at}", name)])
                elif word == "search":
                    dispatch(catalog, call("c", "search_tool", query=name))
                else:
                    called = {"run": run_tool(name), "name": call("c", name), "unknown": call("c", f"no_{name}")}
                    dispatch(catalog, called[word])
            now = array_text(catalog.specs())
            if protocol == "free-text" or before == set(catalog.unmasked):
                assert now == array
            assert now.startswith(start[:-1]) and before <= set(catalog.unmasked)
            assert names(catalog.specs())[4:] == (list(catalog.unmasked) if protocol == "strict" else [])
            array = now
