"""The checkers of chapter 10: right answers pass, likely wrong ones fail with a line that helps."""

from __future__ import annotations

import pytest

from agentlab import check, toolarray
from agentlab.errors import AgentLabError, ToolError


def failed(report):
    """The first case that failed."""
    found = next((f for f in report.findings if not f.passed), None)
    assert found is not None, "every case passed"
    return found


# --- the array --------------------------------------------------------------------------------------------------------


def known(direct, deferred):
    return {tool["name"]: tool for tool in deferred}


def short_one(protocol, unmasked, *, direct, deferred):
    """As in the seed, for names that come once."""
    if protocol == "free-text":
        return direct
    names = sorted(dict.fromkeys(unmasked))
    return [*direct, *filter(None, (known(direct, deferred).get(name) for name in names))]


def test_the_solution_and_the_modules_own_pass():
    for answer in check.resolve_tools.solution, toolarray.resolve_tools, short_one:
        report = check.resolve_tools(answer)
        assert report.passed, report
        assert "strict: Version 7 is deployed, and you were told. The array changed once." in report.live.said
        assert "free-text: Version 7 is deployed, and you were told. The array never changed." in report.live.said


def never_adds(protocol, unmasked, *, direct, deferred):
    return direct


def always_adds(protocol, unmasked, *, direct, deferred):
    return check.resolve_tools.solution("strict", unmasked, direct=direct, deferred=deferred)


def swapped(protocol, unmasked, *, direct, deferred):
    other = "strict" if protocol == "free-text" else "free-text"
    return check.resolve_tools.solution(other, unmasked, direct=direct, deferred=deferred)


def all_of_them(protocol, unmasked, *, direct, deferred):
    return direct if protocol == "free-text" else direct + sorted(deferred, key=lambda tool: tool["name"])


def as_found(protocol, unmasked, *, direct, deferred):
    by_name = known(direct, deferred)
    found = dict.fromkeys(name for name in unmasked if name in by_name)
    return direct if protocol == "free-text" else direct + [by_name[name] for name in found]


def catalogue_order(protocol, unmasked, *, direct, deferred):
    return direct if protocol == "free-text" else direct + [t for t in deferred if t["name"] in unmasked]


def twice(protocol, unmasked, *, direct, deferred):
    by_name = known(direct, deferred)
    return direct if protocol == "free-text" else direct + [by_name[n] for n in sorted(unmasked) if n in by_name]


def no_made_up_names(protocol, unmasked, *, direct, deferred):
    by_name = known(direct, deferred)
    return direct if protocol == "free-text" else direct + [by_name[name] for name in sorted(set(unmasked))]


def doubles_direct(protocol, unmasked, *, direct, deferred):
    by_name = known(direct, direct + deferred)
    names = sorted(set(unmasked) & set(by_name))
    return direct if protocol == "free-text" else direct + [by_name[name] for name in names]


def grows(protocol, unmasked, *, direct, deferred):
    if protocol == "strict":
        direct += check.resolve_tools.solution(protocol, unmasked, direct=[], deferred=deferred)
    return direct


def sorts_in_place(protocol, unmasked, *, direct, deferred):
    unmasked.sort()
    return check.resolve_tools.solution(protocol, unmasked, direct=direct, deferred=deferred)


def sorts_all(protocol, unmasked, *, direct, deferred):
    array = check.resolve_tools.solution(protocol, unmasked, direct=direct, deferred=deferred)
    return sorted(array, key=lambda tool: tool["name"])


def names_only(protocol, unmasked, *, direct, deferred):
    array = check.resolve_tools.solution(protocol, unmasked, direct=direct, deferred=deferred)
    return [tool["name"] for tool in array]


def marks(protocol, unmasked, *, direct, deferred):
    array = check.resolve_tools.solution(protocol, unmasked, direct=direct, deferred=deferred)
    return [{**tool, "deferred": tool in deferred} for tool in array]


def other_key_order(protocol, unmasked, *, direct, deferred):
    array = check.resolve_tools.solution(protocol, unmasked, direct=direct, deferred=deferred)
    return [dict(sorted(tool.items(), reverse=len(unmasked) > 0)) for tool in array]


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (never_adds, "strict, one found", "this provider refuses the call"),
        (always_adds, "free-text, two found", "breaks the cache, and buys nothing"),
        (swapped, "free-text, two found", "breaks the cache, and buys nothing"),
        (all_of_them, "strict, nothing found", "paid for in every request"),
        (as_found, "strict, the same names in another order", "the same names give the same bytes"),
        (catalogue_order, "strict, a later one", "sorted"),
        (twice, "strict, found again", "twice in the array is refused"),
        (no_made_up_names, "strict, names that are no deferred tools", "makes names up"),
        (doubles_direct, "strict, names that are no deferred tools", "makes names up"),
        (grows, "strict, one found", "uses these lists again"),
        (sorts_in_place, "strict, the same names in another order", "uses these lists again"),
        (sorts_all, "free-text, nothing found", "always there"),
        (names_only, "free-text, nothing found", "Return the dicts"),
        (marks, "free-text, nothing found", "Leave the tools as they are"),
        (other_key_order, "free-text, two found", "The same tools, other bytes"),
        (lambda protocol, unmasked, *, direct, deferred: None, "free-text, nothing found", "Return the dicts"),
        (lambda protocol, unmasked: [], "free-text, nothing found", ""),
    ],
)
def test_a_wrong_array_fails_and_is_told_why(answer, case, says):
    found = failed(check.resolve_tools(answer))
    assert found.name == case
    assert says in found.why and "request" in found.fed and found.expected != found.got


def test_in_the_loop_the_provider_says_it():
    refused = check.resolve_tools(never_adds).live
    assert not refused.passed
    assert "answered 400" in refused.said and "not found in provided tools" in refused.said
    shaky = check.resolve_tools(as_found).live
    assert not shaky.passed and "(1 is enough)" in shaky.said
    dear = check.resolve_tools(always_adds).live
    assert not dear.passed and "free-text" in dear.said and "changed once. (0 is enough)" in dear.said
    broken = check.resolve_tools(lambda *a, **k: 1 // 0).live
    assert not broken.passed and "ZeroDivisionError" in broken.said


# --- the permission ---------------------------------------------------------------------------------------------------


RUN_TOOL = "run_tool"


async def judged_on_run_tool(name, input, *, tools, policy):
    target = tools.get(name)
    if target is None or name == RUN_TOOL:
        return "failed", "There is none."
    if not await policy.permits(tools[RUN_TOOL], input or {}):
        return "rejected", "no"
    return await ran(target, input)


async def ran(target, input):
    try:
        return "completed", await target.handler(**(input or {}))
    except ToolError as error:
        return "failed", str(error)


def judging(permitted, *, missing=True):
    """An answer whose permission is this."""

    async def answer(name, input, *, tools, policy):
        target = tools.get(name)
        if missing and (target is None or name == RUN_TOOL):
            return "failed", "There is none."
        if not await permitted(policy, tools, target, input or {}):
            return "rejected", "no"
        return await ran(target, input)

    return answer


async def right(policy, tools, target, input):
    return await policy.permits(target, input)


async def never_judged(policy, tools, target, input):
    return True


async def both(policy, tools, target, input):
    return await policy.permits(tools[RUN_TOOL], input) and await policy.permits(target, input)


async def ask_is_yes(policy, tools, target, input):
    return policy.judge(target, input) != "deny"


async def ask_is_no(policy, tools, target, input):
    return policy.judge(target, input) == "allow"


async def asks_twice(policy, tools, target, input):
    return await policy.permits(target, input) and await policy.permits(target, input)


async def the_proxys_input(policy, tools, target, input):
    return await policy.permits(target, {"name": target.name, "input": input})


async def no_input(policy, tools, target, input):
    return await policy.permits(target, {})


async def proxy_first(policy, tools, target, input):
    return policy.judge(tools[RUN_TOOL], input) == "allow" or await policy.permits(target, input)


async def runs_first(name, input, *, tools, policy):
    status, text = await check.target_permission.solution(name, input, tools=tools, policy=policy)
    if status == "rejected":
        await tools[name].handler(**(input or {}))
    return status, text


async def runs_itself(name, input, *, tools, policy):
    if name not in tools:
        return "failed", "There is none."
    if not await policy.permits(tools[name], input or {}):
        return "rejected", "no"
    return await ran(tools[name], input)


async def input_is_needed(name, input, *, tools, policy):
    solution = check.target_permission.solution
    return await solution(name, {**input}, tools=tools, policy=policy)


async def raises(name, input, *, tools, policy):
    status, text = await check.target_permission.solution(name, input, tools=tools, policy=policy)
    if status == "failed":
        raise ToolError(text)
    return status, text


async def text_only(name, input, *, tools, policy):
    return (await check.target_permission.solution(name, input, tools=tools, policy=policy))[1]


async def silent(name, input, *, tools, policy):
    status, text = await check.target_permission.solution(name, input, tools=tools, policy=policy)
    return status, text if status == "completed" else ""


async def all_failed(name, input, *, tools, policy):
    status, text = await check.target_permission.solution(name, input, tools=tools, policy=policy)
    return "failed" if status == "rejected" else status, text


def test_the_solution_and_another_right_answer_pass():
    for answer in check.target_permission.solution, judging(right):
        report = check.target_permission(answer)
        assert report.passed, report
        assert report.live.said == "Oslo: it runs. The branch main stays: I may not delete it."


@pytest.mark.parametrize(
    ("answer", "case", "says"),
    [
        (judged_on_run_tool, "a target that reads", "Reading is allowed"),
        (judging(never_judged), "run_tool allowed, the target denied", "opens the door"),
        (judging(both), "a target that reads", "Reading is allowed"),
        (judging(proxy_first), "run_tool allowed, the target denied", "opens the door"),
        (judging(ask_is_yes), "a target that writes, nobody there", "'ask' is not yes"),
        (judging(ask_is_no), "the person says no", "asked about the target"),
        (judging(asks_twice), "the person says yes", "once"),
        (judging(the_proxys_input), "a rule about the arguments, kept", "target's own input"),
        (judging(no_input), "a rule about the arguments, kept", "target's own input"),
        (judging(right, missing=False), "a name that nobody has", ""),
        (runs_first, "run_tool allowed, the target denied", "opens the door"),
        (runs_itself, "run_tool through run_tool", "no target"),
        (input_is_needed, "no input", "without an input"),
        (raises, "a name that nobody has", "how to go on"),
        (text_only, "a target that reads", ""),
        (silent, "run_tool allowed, the target denied", "tells it nothing"),
        (all_failed, "run_tool allowed, the target denied", ""),
    ],
)
def test_a_wrong_permission_fails_and_is_told_why(answer, case, says):
    report = check.target_permission(answer)
    found = failed(report)
    assert found.name == case, report
    assert says in found.why and "rules=" in found.fed and found.expected != found.got


def test_in_the_loop_the_branch_is_gone_where_only_run_tool_was_judged():
    live = check.target_permission(judged_on_run_tool).live
    assert not live.passed
    assert live.said == "I deleted the branch main, though your policy says: deny delete_branch."

    async def broken(name, input, *, tools, policy):
        return 1 // 0

    report = check.target_permission(broken)
    assert not report.live.passed and "ZeroDivisionError" in report.live.said
    assert "in your line: return 1 // 0" in failed(report).got


@pytest.mark.parametrize("exercise", [check.resolve_tools, check.target_permission], ids=["resolve", "permission"])
def test_only_a_function_is_an_answer(exercise):
    wrong = check.target_permission.solution if exercise is check.resolve_tools else check.resolve_tools.solution
    for answer in (None, "text", wrong):
        with pytest.raises(AgentLabError, match="without brackets"):
            exercise(answer)
