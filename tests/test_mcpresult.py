"""Results of MCP tools as text for the model."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given

from agentlab.mcp import McpResult, describe, read_result
from tests.cases import case
from tests.strategies import json_values

IMAGE = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"x" * 4033).decode()}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "text", "text": "a\n<b>"}, "a\n<b>"),
        ({"type": "text", "text": ""}, ""),
        (IMAGE, "[image: image/png, 4,033 bytes]"),
        ({"type": "audio", "mimeType": "audio/wav", "data": "AA=="}, "[audio: audio/wav, 1 bytes]"),
        ({"type": "image"}, "[image]"),
        ({"type": "resource", "resource": {"uri": "f:///a", "text": "in it"}}, "[resource: f:///a]\nin it"),
        (
            {"type": "resource", "resource": {"uri": "f:///a", "mimeType": "x/y", "blob": "AAAA"}},
            "[resource: f:///a, x/y, 3 bytes]",
        ),
        (
            {"type": "resource_link", "uri": "f:///a", "name": "a", "title": "a", "mimeType": "x/y"},
            "[link to a resource: a, f:///a, x/y]",
        ),
        ({"type": "hologram", "n": 1}, '[a part of an unknown kind] {"type":"hologram","n":1}'),
        ({"type": "text", "text": 5}, '[a part of an unknown kind] {"type":"text","text":5}'),
        ("words", '[a part of an unknown kind] "words"'),
        (None, "[a part of an unknown kind] null"),
    ],
    ids=range(12),
)
def test_a_part(part: Any, text: str) -> None:
    assert describe(part) == text


@pytest.mark.parametrize(
    ("result", "ok", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, IMAGE]}, True, "a\n[image: image/png, 4,033 bytes]"),
        ({"content": [], "structuredContent": {"a": 1}}, True, '{"a":1}'),
        ({"content": [{"type": "text", "text": "a"}], "structuredContent": {"a": 1}}, True, "a"),
        ({"structuredContent": {"a": 1}}, True, '{"a":1}'),
        (
            {"content": [], "structuredContent": {"a": 1}, "isError": True},
            False,
            '{"a":1}',
        ),
        ({"content": []}, True, "The tool ran and returned nothing."),
        ({"toolResult": 5, "_meta": {}}, True, '{"toolResult":5}'),
        ({"content": "words"}, True, "words"),
        ({"content": [], "isError": "yes"}, True, "The tool ran and returned nothing."),
        (None, True, "null"),
        ([1], True, "[1]"),
        ({"content": [{"type": "text", "text": "\ud800"}]}, True, "\ufffd"),
    ],
    ids=range(12),
)
def test_a_result(result: Any, ok: bool, text: str) -> None:
    assert read_result(result) == McpResult(ok, text, result)


NO_TABLE = {"error": "no such table"}
TEXT = {"type": "text", "text": "no such table"}
RESOURCE = {"type": "resource", "resource": {"uri": "f:///log", "text": "no such table"}}
PICTURE = "[image: image/png, 4,033 bytes]"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "The tool failed and did not say why."),
        ({"content": None, "structuredContent": {}, "error": ""}, "The tool failed and did not say why."),
        ({"structuredContent": NO_TABLE}, '{"error":"no such table"}'),
        ({"content": [], "structuredContent": NO_TABLE}, '{"error":"no such table"}'),
        ({"content": [], "structuredContent": "no such table"}, "no such table"),
        ({"content": [{"type": "text", "text": " "}], "structuredContent": NO_TABLE}, ' \n{"error":"no such table"}'),
        ({"content": "no such table"}, "no such table"),
        ({"content": TEXT}, "no such table"),
        ({"content": [IMAGE, TEXT]}, f"{PICTURE}\nno such table"),
        ({"content": [IMAGE], "structuredContent": NO_TABLE}, f'{PICTURE}\n{{"error":"no such table"}}'),
        ({"content": [RESOURCE], "structuredContent": NO_TABLE}, "[resource: f:///log]\nno such table"),
        ({"error": "no such table"}, "no such table"),
        ({"error": {"code": 7, "message": "no"}}, '{"code":7,"message":"no"}'),
        ({"content": [TEXT], "error": "no such table"}, "no such table"),
        ({"content": [IMAGE], "error": "no such table"}, f"{PICTURE}\nno such table"),
        ({"content": [{"type": "text", "text": "It failed."}], "error": "no such table"}, "It failed.\nno such table"),
        ({"content": [], "message": "no such table", "_meta": {"n": 1}}, '{"message":"no such table"}'),
    ],
    ids=range(17),
)
@pytest.mark.parametrize("yes", [True, 1, "true", "True"], ids=repr)
def test_no_explanation_of_a_failure_is_lost(said: dict[str, Any], text: str, yes: Any) -> None:
    result = {**said, "isError": yes}
    assert read_result(result) == McpResult(False, text, result)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [IMAGE], "structuredContent": {"a": 1}}, f'{PICTURE}\n{{"a":1}}'),
        ({"content": [IMAGE], "structuredContent": None}, PICTURE),
        ({"content": [IMAGE], "structuredContent": {}}, PICTURE),
        ({"content": [IMAGE, TEXT], "structuredContent": {"a": 1}}, f"{PICTURE}\nno such table"),
        ({"content": [], "structuredContent": None}, "The tool ran and returned nothing."),
        ({"content": [], "error": "rate limited"}, "rate limited"),
        ({"content": [TEXT], "isError": "false"}, "no such table"),
        ({"content": [TEXT], "isError": 0}, "no such table"),
    ],
    ids=range(8),
)
def test_what_no_text_says_stands_beside_the_rest(result: dict[str, Any], text: str) -> None:
    assert read_result(result) == McpResult(True, text, result)


def test_a_failure_is_what_its_text_says() -> None:
    """Case M06."""
    found = case("M06")
    result = read_result(found["input"]["result"])
    assert (result.ok, str(result)) == (found["expected"]["ok"], found["expected"]["model_sees"])


def test_labels_are_bounded_and_text_is_not() -> None:
    long = "x" * 100_000
    assert len(describe({"type": "resource_link", "uri": long, "name": long + "y", "description": long})) < 1000
    assert len(describe({"type": "new", "data": long})) < 3000
    assert len(describe({"type": "text", "text": long})) == 100_000


@given(result=json_values)
def test_every_result_is_some_text(result: Any) -> None:
    found = read_result({"content": result, "isError": True})
    assert not found.ok
    assert found.text
    assert read_result(result).text
    assert isinstance(describe(result), str)
