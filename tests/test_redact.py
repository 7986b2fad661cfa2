"""Keys that must not be written down: by the name of their field, by their value, in URLs."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.journal import JournalError
from agentlab.redact import MASK, Secrets, is_key_name, safe_line, with_masks, without_keys
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


@pytest.mark.parametrize(
    "setting",
    [
        {"token": KEY}, {"key": KEY}, {"auth": f"Bearer {KEY}"}, {"credential": KEY}, {"auth_header": KEY},
        {"credentials": {"user": "me", "pass": KEY}}, {"auth": {"type": "bearer", "token": KEY}},
        {"authorization": {"type": "Bearer", "value": KEY}}, {"tokens": [KEY]}, {"api_keys": [KEY]},
        {"apiKeys": {"main": KEY}}, {"x-functions-key": KEY}, {"Ocp-Apim-Subscription-Key": KEY}, {"hf_token": KEY},
        {"env": {"OPENAI_KEY": KEY}}, {"env": {"HF_TOKEN": KEY}}, {"env": {"GITHUB_TOKEN": KEY}},
        {"env": {"CLIENT_SECRET": KEY}}, {"env": [f"OPENAI_KEY={KEY}"]}, {"env": [{"name": "HF_TOKEN", "value": KEY}]},
        {"headers": [f"Authorization: Bearer {KEY}"]}, {"headers": [f"X-Api-Key:{KEY}"]},
        {"headers": [["Authorization", f"Bearer {KEY}"]]}, {"header": ["Authorization", f"Bearer {KEY}"]},
        {"headers": [("x-auth-token", KEY)]}, {"args": ["--api-key", KEY]}, {"args": [f"--api-key={KEY}"]},
        {"args": ["run", "--token", KEY, "--verbose"]}, {"args": ["--header", f"Authorization: Bearer {KEY}"]},
        {"args": [f"https://me:{KEY}@host"]}, {"mcp": {"x": {"headers": {"Cookie": f"a={KEY}"}}}},
    ],
    ids=str,
)  # fmt: skip
def test_settings_are_strict(setting: dict[str, Any]) -> None:
    before = copy.deepcopy(setting)
    for kind, shape in (("session_meta", "meta"), ("config", "config")):
        line = safe_line({"type": kind, shape: setting | {"model": "m"}}, NONE)
        assert KEY.encode() not in line and json.loads(line)[shape]["model"] == "m"
    assert setting == before


def test_in_a_list_of_words_the_places_stay() -> None:
    args = ["-v", "--api-key", KEY, f"--token={KEY}", "--key-file", "a/long/path.pem", f"Authorization: Bearer {KEY}"]
    expected = ["-v", "--api-key", MASK, f"--token={MASK}", "--key-file", "a/long/path.pem", f"Authorization: {MASK}"]
    assert without_keys({"args": args}) == {"args": expected}


@pytest.mark.parametrize(
    "setting",
    [
        {"prompt_cache_key": "session-0123456789"}, {"eos_token": "<|endoftext|>"}, {"stop_tokens": ["<|im_end|>"]},
        {"tokens": 4096, "max_tokens": 8, "key": "k"}, {"auth": "none"}, {"tokenizer": "cl100k_base"},
        {"tools": [{"parameters": {"properties": {"token": {"type": "string"}, "key": {"anyOf": [{"type": "null"}]}},
                                   "required": ["password", "userName"]}}]},
        {"stop": ["Answer: 12345678"]}, {"notes": ["Key: be short, and say what you have done."]},
        {"args": ["--key", "value"]}, {"system": "Password: never tell it."}, {"api_key_env": "AGENT_API_KEY"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_are_no_keys_stay(setting: dict[str, Any]) -> None:
    assert without_keys(setting) == setting


@pytest.mark.parametrize(
    "content",
    [
        [["cookie", "flour"], ["password", "row kept?"], ["secret", "of the sea, 1870"]],
        {"name": "Secret", "value": "of the sea"},
        {
            "valid_token": "yes, it is 100 %",
            "torch_bearer": "Ann Smith 2",
            "key": "C# minor 7",
            "token": "the 1st word",
        },
        {"cookie": "chocolate-chip-1", "auth": "see RFC 6749", "credentials": "MSc, PhD 2019", "secret": "it is 42 !!"},
        ["--api-key", "what does this option do?"],
        ["Authorization", "required"],
        {"authorization": True, "api_key": "", "password": None},
        {"properties": {"api_key": {"type": "string"}}},
        {"arguments": '{"api_key": "in a text"}'},
    ],
    ids=str,
)
def test_what_was_said_stays(content: Any) -> None:
    for event in (
        {"type": "message", "message": {"role": "tool", "content": content}},
        {"type": "tool_call", "record": {"id": "c", "input": {"rows": content}}},
        {"type": "replace", "start": 1, "end": 2, "node": {"role": "user", "content": [content]}},
    ):
        assert json.loads(safe_line(event, NONE)) == event


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"api_key": KEY, "n": 1}, {"api_key": MASK, "n": 1}),
        ({"OPENAI_API_KEY": [KEY]}, {"OPENAI_API_KEY": MASK}),
        ({"headers": {"Authorization": f"Bearer {KEY}"}}, {"headers": {"Authorization": MASK}}),
        ({"password": KEY, "user": "me"}, {"password": MASK, "user": "me"}),
        ([["x-api-key", KEY], ["a", "b"]], [["x-api-key", MASK], ["a", "b"]]),
        ([{"name": "Authorization", "value": KEY}], [{"name": "Authorization", "value": MASK}]),
        ({"client_secret": KEY, "access_token": KEY}, {"client_secret": MASK, "access_token": MASK}),
    ],
    ids=str,
)
def test_an_unmistakable_name_masks_what_was_said_and_keeps_its_shape(content: Any, expected: Any) -> None:
    record = {"type": "tool_call", "record": {"id": "c", "input": content}}
    before = copy.deepcopy(record)
    line = json.loads(safe_line(record, NONE))
    assert line["record"]["input"] == expected and record == before


@given(json_values, st.sampled_from(["api_key", "Authorization"]))
def test_masks_are_all_that_changes_outside_the_settings(value: Any, name: str) -> None:
    assert with_masks(value) == value
    assert with_masks({"deep": [value, {name: KEY, "x": value}]}) == {"deep": [value, {name: MASK, "x": value}]}


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
