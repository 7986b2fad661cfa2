"""JSON in one place: msgspec where there is one, the standard library elsewhere (it has no build for emscripten).

Both give the same answer to the same bytes: whatever msgspec refuses is asked of the standard library, which also
reads lone surrogates, NaN and integers of any size, as real providers send them.
"""

from __future__ import annotations

import json
import re
from typing import Any

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _decode(data: bytes | str) -> Any:
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply to read") from None


try:
    import msgspec
except ImportError:  # emscripten
    loads = _decode
else:
    _fast = msgspec.json.Decoder().decode

    def loads(data: bytes | str) -> Any:
        """Parse one JSON text. Bytes that are no valid UTF-8 become U+FFFD. Raises ValueError."""
        try:
            return _fast(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _decode(data)


def sendable(text: str) -> str:
    """The text with U+FFFD in the place of each lone surrogate, which UTF-8 and the vendors' JSON cannot hold."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def request_body(value: Any) -> bytes:
    """Compact JSON as a request carries it: lone surrogates become U+FFFD. Raises TypeError and ValueError as dumps."""
    return sendable(_dumps(value, sort_keys=False)).encode()


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Compact JSON text, non-ASCII characters as they are. The text always encodes to UTF-8.

    A lone surrogate, which UTF-8 cannot hold, is written as its `\\uXXXX` escape, so nothing is lost on the way back.
    Raises TypeError for a value that JSON has no form for, ValueError for one that is nested too deeply.
    """
    text = _dumps(value, sort_keys=sort_keys)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text


def _dumps(value: Any, *, sort_keys: bool) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
    except RecursionError:
        raise ValueError("the value is nested too deeply to be written as JSON") from None
