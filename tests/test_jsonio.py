from __future__ import annotations

import importlib.util
import json
import math
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import jsonio


def without_msgspec() -> ModuleType:
    """The same module where msgspec cannot be imported, as in a browser."""
    spec = importlib.util.find_spec("agentlab.jsonio")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    hidden = sys.modules.get("msgspec")
    sys.modules["msgspec"] = None  # type: ignore[assignment]
    try:
        spec.loader.exec_module(module)
    finally:
        if hidden is None:
            del sys.modules["msgspec"]
        else:
            sys.modules["msgspec"] = hidden
    return module


plain = without_msgspec()
BOTH = pytest.mark.parametrize("module", [jsonio, plain], ids=["msgspec", "stdlib"])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(st.characters(codec=None), max_size=5)  # lone surrogates too
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def outcome(loads: Any, data: bytes | str) -> tuple[str, str]:
    """What came of it, so that 1, 1.0 and True differ and NaN equals itself."""
    try:
        value = loads(data)
    except ValueError:
        return "refused", ""
    return "read", repr(value)


def test_the_two_paths_are_really_two() -> None:
    assert jsonio.loads is not jsonio._decode
    assert plain.loads is plain._decode


@given(values)
def test_both_paths_read_what_any_writer_writes(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        data = text.encode("utf-8", "surrogatepass")
        assert outcome(jsonio.loads, text) == outcome(plain.loads, text) == ("read", repr(json.loads(text)))
        assert outcome(jsonio.loads, data) == outcome(plain.loads, data)


@given(st.binary(max_size=12) | st.text('[]{}",:\\u0d8E-+.1enNtrulfasIiy \n\t\x00é', max_size=14).map(str.encode))
def test_both_paths_judge_any_bytes_alike(data: bytes) -> None:
    assert outcome(jsonio.loads, data) == outcome(plain.loads, data)


@given(values, st.data())
def test_both_paths_judge_broken_json_alike(value: Any, draws: st.DataObject) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    at = draws.draw(st.integers(0, len(data) - 1))
    broken = data[:at] + draws.draw(st.sampled_from([b"", b"\x00", b'"', b"\\", b"\xff", b"9", b"}"])) + data[at + 1 :]
    assert outcome(jsonio.loads, broken) == outcome(plain.loads, broken)


@BOTH
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"12345678901234567890123", 12345678901234567890123),
        (b"-9223372036854775809", -9223372036854775809),
        (b"1" * 4000, int("1" * 4000)),
        (b"1e400", math.inf),
        (b"-Infinity", -math.inf),
        (b"[0.1, -0.0, 1E5]", [0.1, -0.0, 1e5]),
        (rb'"\ud83d"', "\ud83d"),
        (rb'"a\udc00b"', "a\udc00b"),
        (rb'"\ud83d\ude00"', "😀"),
        (b'"\xff"', "�"),
        (b'"\xed\xa0\xbd"', "���"),
        ('"\u2028\u2029\x7f"'.encode(), "\u2028\u2029\x7f"),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b" \t\r\n{} \n", {}),
    ],
)
def test_what_providers_send_is_read(module: ModuleType, data: bytes, expected: Any) -> None:
    assert repr(module.loads(data)) == repr(expected)


@BOTH
def test_nan_is_read(module: ModuleType) -> None:
    assert math.isnan(module.loads(b"NaN"))
    assert math.isnan(module.loads('{"x":NaN}')["x"])


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1,}',
        b"[1 2]",
        b"nul",
        b"{} {}",
        b"'a'",
        b'"a\nb"',
        b'"\x00"',
        b"01",
        b"\xef\xbb\xbf{}",
        b"\x00",
        "\ufeff{}",
        b"1" * 5000,
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_json_is_a_value_error(module: ModuleType, data: bytes | str) -> None:
    with pytest.raises(ValueError):
        module.loads(data)


@given(values)
def test_dumps_gives_utf8_that_reads_back(value: Any) -> None:
    text = jsonio.dumps(value)
    whole = text.encode().decode()
    # Two lone halves that happen to stand side by side are one character in JSON.
    assert json.loads(whole) == json.loads(json.dumps(value))


@given(values)
def test_dumps_is_compact_and_escapes_nothing_needless(value: Any) -> None:
    text = jsonio.dumps(value)
    assert "\n" not in text
    if text.isascii() or "\\ud" not in text:
        assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_dumps_by_value() -> None:
    assert jsonio.dumps({"b": [1, None, True], "a": "é日\u2028"}) == '{"b":[1,null,true],"a":"é日\u2028"}'
    assert jsonio.dumps({"b": 1, "a": {"d": 2, "c": 3}}, sort_keys=True) == '{"a":{"c":3,"d":2},"b":1}'
    assert jsonio.dumps({"\ud83d": "\\ud83d \udc00é"}) == '{"\\ud83d":"\\\\ud83d \\udc00é"}'
    with pytest.raises(TypeError):
        jsonio.dumps({"a": object()})
