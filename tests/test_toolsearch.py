"""Words find tools, in any script, whatever a server's schema holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values

from agentlab.disclosure import Catalog
from agentlab.errors import AgentLabError
from agentlab.tools import Tool
from agentlab.toolsearch import QUERY_CHARS, ToolIndex, summary, terms

DATA = Path(__file__).parents[1] / "data"
OFFICE = json.loads((DATA / "tools/office.json").read_bytes())["tools"]
SEED = json.loads((DATA / "seed_demos_disclosure.json").read_bytes())["deferred"]


async def nothing(**_: Any) -> str:
    return ""


def make(name: str, description: str = "", parameters: Any = None, **_: Any) -> Tool:
    return Tool(name, description, {"type": "object", "properties": {}} if parameters is None else parameters, nothing)


def index(entries: list[dict[str, Any]]) -> ToolIndex:
    return ToolIndex([make(**entry) for entry in entries])


def names(found: Any) -> list[str]:
    return [hit.name for hit in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("notify_user", ["notify", "user"]),
        ("notifyUser HTTPServer", ["notify", "user", "http", "server"]),
        ("mcp__git-hub__list.issues", ["mcp", "git", "hub", "list", "issue"]),
        ("Emails, branches, queries; status glass us", ["email", "branch", "query", "status", "glass", "us"]),
        ("发通知", ["发", "通", "知", "发通", "通知"]),
        ("DAG上新", ["dag", "上", "新", "上新"]),
        ("ファイル 파일", ["フ", "ァ", "イ", "ル", "ファ", "ァイ", "イル", "파", "일", "파일"]),
        ("ＲＥＡＤ Ünïcode", ["read", "ünïcode"]),
        ("", []),
        ("_ - !? 🟡", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("send an e-mail", "email_send"),
        ("open issues with a label", "issue_search"),
        ("what version is deployed in production", "deploy_start"),
        ("take a screenshot of a page", "page_screenshot"),
        ("pixels width resize", "image_resize"),  # words of parameters
        ("sql statement cost", "database_explain"),
        ("notifications", "notify_user"),
    ],
)
def test_it_finds_what_a_person_would(query: str, best: str) -> None:
    assert best in names(index(OFFICE).search(query, 2))


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("发通知", "notify_user"),
        ("子任务", "create_subtask"),
        ("评审", "convene_panel"),
        ("召回历史", "recall_memory_chunk"),
    ],
)
def test_it_finds_tools_described_in_chinese(query: str, best: str) -> None:
    assert names(index(SEED).search(query))[0] == best


def test_it_does_not_cross_languages() -> None:
    assert index(OFFICE).search("发通知") == []
    assert names(index(SEED).search("memory")) == ["recall_memory_chunk"]  # the name is in English


def test_the_name_weighs_more_than_the_description_and_rare_words_more_than_common_ones() -> None:
    found = index([{"name": "alpha", "description": "beta"}, {"name": "beta", "description": "alpha"}]).search("alpha")
    assert names(found) == ["alpha", "beta"] and found[0].score > found[1].score
    common = [{"name": f"tool_{n}", "description": "common"} for n in range(9)]
    common[4]["description"] = "rare"
    assert names(index(common).search("common rare", 1)) == ["tool_4"]


def test_a_tools_own_name_finds_it_first_even_behind_better_matches() -> None:
    entries = [{"name": "read_file", "description": "A long text on many other things."}, {"name": "file_read"}]
    assert names(index(entries).search(" read_file "))[0] == "read_file"
    assert names(index(entries).search("file read"))[0] == "file_read"


def test_scores_are_cosines_equal_ones_stand_by_name_and_k_bounds_them() -> None:
    same = [{"name": name, "description": "one and the same"} for name in ("zz", "aa", "mm")]
    found = index(same).search("same", 2)
    assert names(found) == ["aa", "mm"] and found[0].terms == ("same",)
    assert 0 < found[0].score == found[1].score <= 1
    assert index(same).search("same", 0) == index(same).search("same", -1) == []
    assert index([]).search("same") == [] and index(same).search("") == []


@given(st.permutations(OFFICE), st.text("abcdefgimnorstu _发通知", max_size=40))
def test_the_order_of_the_tools_changes_nothing(entries: list[dict[str, Any]], query: str) -> None:
    found, again = index(entries).search(query), index(OFFICE).search(query)
    assert found == again
    assert len(found) <= 5 and all(0 < hit.score <= 1 and hit.terms for hit in found)
    assert found == sorted(found, key=lambda hit: (-round(hit.score, 9), hit.name))


@given(st.sampled_from(OFFICE))
def test_every_name_finds_its_tool(entry: dict[str, Any]) -> None:
    assert names(index(OFFICE).search(entry["name"]))[0] == entry["name"]


@given(st.dictionaries(st.sampled_from(["type", "properties", "required"]), json_values), st.text(max_size=50))
def test_any_schema_and_any_words_are_taken(parameters: dict[str, Any], text: str) -> None:
    tools = ToolIndex([make("one_tool", text, parameters)])
    tools.search(text)
    assert names(tools.search("one_tool")) == ["one_tool"]


def test_sizes_are_bounded() -> None:
    big = {"properties": {f"p{n}": {"description": "word " * 10_000} for n in range(10_000)}}
    tools = ToolIndex([make("big", "last " * 10_000 + "hidden", big)])
    assert tools.search("hidden") == [] and tools.search("p9999") == []
    assert names(tools.search("p1")) == ["big"]
    assert tools.search("x " * QUERY_CHARS + "big") == []


def test_summaries_are_one_short_line() -> None:
    assert summary(make("a", " First one.\nSecond. ")) == "First one."
    assert summary(make("a", "Version 2.5 of\tit. More.")) == "Version 2.5 of it."
    assert summary(make("a", "第一句。第二句。")) == "第一句。"
    assert summary(make("a", "x" * 500)) == "x" * 99 + "…"
    assert summary(make("a", "")) == ""


def test_hits_draw_themselves_and_escape() -> None:
    drawn = ToolIndex([make("tool", "<script>alert(1)</script>")]).search("script")._repr_html_()
    assert "<script>" not in drawn and "&lt;script&gt;" in drawn


@pytest.mark.parametrize("query", [None, 7, b"mail", ["mail"]])
def test_what_is_no_text_finds_nothing_and_says_so(query: Any) -> None:
    with pytest.raises(AgentLabError, match="must be text"):
        index(OFFICE).search(query)
    with pytest.raises(AgentLabError, match="must be text"):
        Catalog([], []).search(query)
