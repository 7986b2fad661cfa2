"""Whatever is unclear, broken or unasked means no."""

from __future__ import annotations

import asyncio
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab.permissions import Policy, Rule, inside, matching


@dataclass(frozen=True)
class Tool:
    name: str
    read_only: bool = False


READ, WRITE = Tool("read_file", read_only=True), Tool("write_file")


def boom(*_: Any) -> bool:
    raise RuntimeError("a mistake in a rule")


def answering(answer: Any, seen: list[Any] | None = None) -> Any:
    async def ask(tool: Any, input: dict[str, Any]) -> Any:
        if seen is not None:
            seen.append((tool.name, input))
        await asyncio.sleep(0)
        return answer() if callable(answer) else answer

    return ask


def permits(policy: Policy, tool: Tool, **input: Any) -> bool:
    return run(policy.permits(tool, input))


def test_by_default_reading_is_allowed_and_the_rest_asks() -> None:
    assert Policy().judge(READ, {}) == "allow"
    assert Policy().judge(WRITE, {}) == "ask"


def test_where_nobody_can_be_asked_the_answer_is_no() -> None:
    assert permits(Policy(), READ) is True
    assert permits(Policy(), WRITE) is False
    assert permits(Policy([Rule("ask", "read_*")]), READ) is False


def test_the_first_rule_that_matches_decides() -> None:
    in_tmp = Rule("allow", "write_*", lambda input: input.get("path", "").startswith("tmp/"))
    policy = Policy([in_tmp, Rule("deny", "write_file"), Rule("allow")])
    assert policy.judge(WRITE, {"path": "tmp/a"}) == "allow"
    assert policy.judge(WRITE, {"path": "src/a"}) == "deny"
    assert policy.judge(Tool("shell"), {}) == "allow"
    assert Policy([Rule("deny"), Rule("allow")]).judge(READ, {}) == "deny"


def test_the_default_stands_behind_the_rules() -> None:
    policy = Policy([Rule("allow", "write_file")], default="deny")
    assert policy.judge(WRITE, {}) == "allow"
    assert policy.judge(READ, {}) == "deny"


@pytest.mark.parametrize("name", ["Write_file", "write_file_2", "xwrite_file", "write", ""])
def test_a_name_matches_whole_and_in_its_case(name: str) -> None:
    assert Policy([Rule("allow", "write_file")]).judge(Tool(name), {}) == "ask"


def test_when_may_answer_with_anything_true_or_false() -> None:
    policy = Policy([Rule("deny", when=lambda input: re.search("rm", input["command"]))], default="allow")
    assert policy.judge(Tool("shell"), {"command": "rm -r /"}) == "deny"
    assert policy.judge(Tool("shell"), {"command": "ls"}) == "allow"


def test_a_rule_that_raises_means_deny_even_before_one_that_allows() -> None:
    assert Policy([Rule("allow", when=boom), Rule("allow")]).judge(READ, {}) == "deny"
    assert permits(Policy([Rule("ask", when=boom)], ask=answering(True)), READ) is False


def test_an_async_when_is_a_mistake_that_opens_no_door() -> None:
    async def when(input: dict[str, Any]) -> bool:
        return False

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody awaits it, and Python says so
        assert Policy([Rule("allow", when=when)]).judge(WRITE, {}) == "deny"  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", ["yes", "Allow", "", True, 1, b"allow"])
def test_an_unknown_verdict_means_deny(verdict: Any) -> None:
    for tool in (WRITE, READ):
        assert Policy([Rule(verdict)]).judge(tool, {}) == "deny"
        assert Policy({"*": verdict}, default="allow").judge(tool, {}) == "deny"
        assert Policy(default=verdict).judge(tool, {}) == "deny"


def test_none_is_no_verdict_but_may_stand_for_no_default() -> None:
    assert Policy([Rule(None)]).judge(READ, {}) == "deny"  # type: ignore[arg-type]
    assert Policy({"read_*": None}, default="allow").judge(READ, {}) == "deny"  # type: ignore[dict-item]
    assert Policy(default=None).judge(READ, {}) == "allow"


def test_the_question_holds_the_tool_and_its_input() -> None:
    seen: list[Any] = []
    assert permits(Policy(ask=answering(True, seen)), WRITE, path="a") is True
    assert permits(Policy(ask=answering(True, seen)), READ, path="b") is True
    assert permits(Policy([Rule("deny")], ask=answering(True, seen)), WRITE) is False
    assert seen == [("write_file", {"path": "a"})]  # what is allowed or denied is not asked


@pytest.mark.parametrize("answer", [False, None, "yes", 1, boom])
def test_only_true_is_a_yes(answer: Any) -> None:
    assert permits(Policy(ask=answering(answer)), WRITE) is False


def test_a_plain_function_may_ask_too() -> None:
    assert permits(Policy(ask=lambda tool, input: True), WRITE) is True
    assert permits(Policy(ask=lambda tool, input: tool.name == "else"), WRITE) is False
    assert permits(Policy(ask=boom), WRITE) is False
    assert permits(Policy(ask=lambda tool, input: 1), WRITE) is False  # type: ignore[arg-type,return-value]


def test_a_question_can_be_interrupted() -> None:
    async def ask(tool: Any, input: Any) -> bool:
        await asyncio.Event().wait()
        return True

    async def main() -> None:
        task = asyncio.create_task(Policy(ask=ask).permits(WRITE, {}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


verdicts = st.sampled_from(["allow", "deny", "ask", "nonsense"])
rules = st.builds(
    Rule,
    verdicts,
    st.sampled_from(["*", "read_*", "write_file", "[", "?"]),
    st.sampled_from([None, lambda _: True, lambda _: False, boom, lambda input: input["absent"]]),
)


@given(st.lists(rules, max_size=4), st.none() | verdicts, st.sampled_from([READ, WRITE, Tool("")]))
def test_judge_knows_three_words_and_a_fault_never_allows(rules: list[Rule], default: Any, tool: Tool) -> None:
    verdict = Policy(rules, default).judge(tool, {})
    assert verdict in ("allow", "deny", "ask")
    reached = next((rule for rule in rules if rule.when is boom and rule.tool == "*"), None)
    if reached is not None and rules[0] is reached:
        assert verdict == "deny"
    if verdict == "allow":
        assert tool.read_only or default == "allow" or any(rule.verdict == "allow" for rule in rules)


def test_rules_may_be_a_dict_from_names_to_verdicts() -> None:
    policy = Policy({"write_*": "deny", "*": "allow"})
    assert policy.judge(WRITE, {}) == "deny"
    assert policy.judge(READ, {}) == "allow"
    assert Policy({"nothing": "allow"}).judge(WRITE, {}) == "ask"
    assert Policy({"write_*": "perhaps"}).judge(WRITE, {}) == "deny"  # type: ignore[dict-item]


def test_patterns_of_arguments_match_whole_and_all_of_them() -> None:
    policy = Policy([Rule("allow", "shell", matching(command="git log*", folder="src"))], default="deny")
    shell = Tool("shell")
    assert policy.judge(shell, {"command": "git log -3", "folder": "src"}) == "allow"
    assert policy.judge(shell, {"command": "git log\n-3", "folder": "src", "more": 1}) == "allow"
    for input in (
        {"command": "git log"},
        {"command": "x git log", "folder": "src"},
        {"command": "git log", "folder": ""},
    ):
        assert policy.judge(shell, input) == "deny"


def test_what_is_no_text_is_compared_as_json() -> None:
    policy = Policy([Rule("deny", when=matching(command='*"rm"*')), Rule("deny", when=matching(force="true"))], "allow")
    assert policy.judge(WRITE, {"command": ["rm", "-r"]}) == "deny"
    assert policy.judge(WRITE, {"force": True}) == "deny"
    assert policy.judge(WRITE, {"force": False, "command": ["ls"]}) == "allow"
    assert policy.judge(WRITE, {"command": object()}) == "deny"  # a rule that raises


def test_a_folder_holds_itself_and_what_really_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "src")
    (tmp_path / "src" / "out").symlink_to(tmp_path)
    policy = Policy([Rule("allow", when=inside("src", root=tmp_path))], default="deny")
    within = ["src", "src/", "./src/a", "a/../src/b/c", "link/a", str(tmp_path / "src/a"), "src//a", "src/new/deep"]
    without = ["", ".", "src2", "srcs/a", "src/..", "src/../a", "src/out/a", "/etc/passwd", "../src/a", "~/src"]
    for path in within:
        assert policy.judge(WRITE, {"path": path}) == "allow", path
    for path in without:
        assert policy.judge(WRITE, {"path": path}) == "deny", path
    assert policy.judge(WRITE, {}) == "deny"
    assert Policy([Rule("allow", when=inside(".", root=tmp_path))], "deny").judge(WRITE, {}) == "allow"
    by_name = Policy([Rule("allow", when=inside("src", root=tmp_path, argument="target"))], "deny")
    assert by_name.judge(WRITE, {"target": "src/a", "path": "b"}) == "allow"


@pytest.mark.parametrize("path", [7, ["src"], {"a": 1}, True, "src/\x00"], ids=repr)
def test_a_path_that_is_none_denies(tmp_path: Path, path: Any) -> None:
    policy = Policy([Rule("deny", when=inside("secret", root=tmp_path))], default="allow")
    assert policy.judge(WRITE, {"path": path}) == "deny"


def test_a_policy_whose_judge_raises_permits_nothing() -> None:
    class Broken(Policy):
        def judge(self, tool: Any, input: dict[str, Any]) -> Any:
            raise RuntimeError("a mistake in a policy")

    assert permits(Broken(), READ) is False
