"""Keys that must not be written down: by the name of their field, by their value, in URLs."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.journal import JournalError
from agentlab.redact import MASK, Secrets, is_key_name, safe_line, without_keys
from tests.strategies import json_values

KEY = "sk-live-0123456789"
NONE = Secrets([])


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "API-KEY", "x-api-key", "X-Goog-Api-Key", "Authorization", "Proxy-Authorization", "password",
     "OPENAI_API_KEY", "client_secret", "clientSecret", "access_token", "refreshToken", "aws_secret_access_key",
     "Cookie", "Set-Cookie", "bearer", "private_key", "credentials"],
)  # fmt: skip
def test_fields_named_like_a_key_are_left_out(name: str) -> None:
    assert is_key_name(name)
    for value in (KEY, [KEY], {"value": KEY}, 12345, b""):
        assert without_keys({"a": [{"b": {name: value, "c": 1}}]}) == {"a": [{"b": {"c": 1}}]}
    assert without_keys({"headers": [[name, KEY], ["accept", "x"]]}) == {"headers": [["accept", "x"]]}
    assert without_keys({"headers": [(name, KEY)]}) == {"headers": []}
    assert without_keys([{"name": name, "value": KEY}]) == [{"name": name}]


@pytest.mark.parametrize(
    "value",
    [
        {
            "prompt_tokens": 3,
            "max_tokens": 4,
            "api_key_env": "AGENT_API_KEY",
            "keyboard": "de",
            "author": "x",
            "key": "k",
        },
        {"api_key": None, "authorization": False, "password": True},
        {"properties": {"password": {"type": "string", "description": "the password"}}},
        {"name": "password"},
        {"name": "path", "value": "a"},
        ["authorization"],
        ["authorization", "Bearer", "x"],
        "authorization: Bearer x",
    ],
    ids=str,
)
def test_what_gives_no_key_away_stays(value: Any) -> None:
    assert without_keys(value) == value


def test_keys_in_urls_go_from_the_settings_only() -> None:
    url = f"https://me:{KEY}@host/v1?model=m&api_key={KEY}&x=1#end"
    for kind, shape in (("session_meta", "meta"), ("config", "config")):
        line = safe_line({"type": kind, shape: {"model": {"base_url": url}}}, NONE)
        assert json.loads(line)[shape]["model"]["base_url"] == f"https://{MASK}@host/v1?model=m&api_key={MASK}&x=1#end"
    line = safe_line({"type": "message", "message": {"content": url}}, NONE)
    assert json.loads(line)["message"]["content"] == url


def test_values_of_the_environment_are_masked_wherever_they_stand() -> None:
    secrets = Secrets.of({"AGENT_API_KEY": KEY, "GH_TOKEN": KEY + "-long", "HOME": "/home/somebody", "X_KEY": "short"})
    record = {"type": "message", "message": {"content": f"env: {KEY}, {KEY}-long /home/somebody short"}, KEY: [KEY]}
    before = copy.deepcopy(record)
    line = json.loads(safe_line(record, secrets))
    assert line["message"]["content"] == f"env: {MASK}, {MASK} /home/somebody short" and line[KEY] == [MASK]
    assert record == before


def test_a_plain_word_or_a_short_value_is_no_key() -> None:
    record = {"type": "tool_calls", "content": "the arguments of a function 1234567"}
    assert safe_line(record, Secrets(["tool_calls", "function", "arguments", "1234567", "  "])) == safe_line(
        record, NONE
    )


@pytest.mark.parametrize("key", ['quo"te-0123', "back\\slash-1", "nl-\n-0123", "é-0123456", "nABCD012"])
def test_keys_with_odd_characters(key: str) -> None:
    line = safe_line({"text": f"<{key}> \nABCD012"}, Secrets([key]))
    assert json.loads(line)["text"] == f"<{MASK}> \nABCD012"


@given(json_values, st.sampled_from(["api_key", "Authorization"]))
def test_no_key_field_is_left_and_all_else_is(value: Any, name: str) -> None:
    before = copy.deepcopy(value)
    assert without_keys(value) == value
    assert without_keys({"deep": [value, {name: KEY}]}) == {"deep": [value, {}]}
    assert value == before


def test_too_deep_is_refused_with_a_sentence() -> None:
    nested: Any = {"api_key": KEY}
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(JournalError, match="nested too deeply"):
        safe_line({"x": nested}, NONE)
