"""Take keys out of data before it is written down: a log is copied, shared and backed up, and lives for years.

    record -> fields and headers named like a key are left out -> known key values become [redacted] -> one JSON line

A field counts by its name, at any depth: `api_key`, `X-Api-Key`, `Authorization`, `clientSecret`. It is left out, not
masked: a mask that comes back on resume would be sent as a key, while a missing key is looked up again. Headers may
stand as fields, as pairs, or as `{"name": ..., "value": ...}`. What a name cannot tell, the value does: the keys in
the environment are replaced wherever they appear, in a tool's output too. Keys in URLs go from the settings. A key that
nobody knows by name or by value, in the middle of a text, stays. Nothing that is passed in is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Self

from agentlab.journalfile import JournalError, encode

MASK = "[redacted]"
MIN_CHARS = 8

_NAMES = (
    "apikey", "apitoken", "authorization", "accesskey", "accesskeyid", "authkey", "secretkey", "privatekey",
    "subscriptionkey", "accesstoken", "authtoken", "bearertoken", "refreshtoken", "sessiontoken", "idtoken", "bearer",
    "secret", "password", "passwd", "passphrase", "credentials", "cookie",
)  # fmt: skip
_VARIABLES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "AUTHORIZATION")
_PLAIN = frozenset({str, int, float, bool, type(None)})
_SETTINGS = ("session_meta", "config")
_URL_KEY = re.compile(r"(?<=[?&])([\w-]*(?:key|token|secret|password|sig|signature))=[^&#\s]+", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/?#\s@]+(?=@)")


class Secrets:
    """Key values that must not be written. Under `MIN_CHARS` characters, or a plain lower-case word, a value is no key:
    it would hit ordinary text."""

    def __init__(self, values: Iterable[str]) -> None:
        known = {value.strip() for value in values}
        keys = [it for it in known if len(it) >= MIN_CHARS and not (it.replace("_", "").isalpha() and it.islower())]
        self._texts = sorted(keys, key=lambda text: (-len(text), text))  # the longest first: one may hold another
        self._encoded = [json.dumps(it, ensure_ascii=False)[1:-1].encode("utf-8", "replace") for it in self._texts]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The values of the variables named like keys: `*_KEY`, `*_TOKEN`, `*_SECRET`, ..."""
        return cls(value for name, value in environ.items() if name.upper().endswith(_VARIABLES))

    def maybe_in(self, line: bytes) -> bool:
        """Whether a line of JSON may hold one of them. Never False for one that does."""
        for secret in self._encoded:  # noqa: SIM110 (half the time of any())
            if secret in line:
                return True
        return False

    def mask(self, value: Any) -> Any:
        """The value with `MASK` for each of them in its texts. Names of fields stay."""
        if isinstance(value, str):
            for secret in self._texts:
                value = value.replace(secret, MASK)
            return value
        if isinstance(value, dict):
            return {name: self.mask(inner) for name, inner in value.items()}
        return [self.mask(inner) for inner in value] if isinstance(value, list | tuple) else value


def safe_line(record: dict[str, Any], secrets: Secrets) -> bytes:
    """A record as the line that may be written. Raises JournalError for what JSON cannot hold."""
    try:
        record = without_keys(record, urls=record.get("type") in _SETTINGS)
        line = encode(record)
        return encode(secrets.mask(record)) if secrets.maybe_in(line) else line
    except RecursionError:
        raise JournalError("This event is nested too deeply to be written: nothing was written.") from None


def without_keys(value: Any, *, urls: bool = False) -> Any:
    """The value without its key fields; the same object when there are none. With `urls`, without keys in URLs too.

    True, False and None under a key's name only say whether there is one, and stay; so does a schema that describes it.
    """
    return _cleaned(value, urls) if urls or _has_key(value) else value


@lru_cache(maxsize=4096)
def is_key_name(name: str) -> bool:
    """Whether a field or header of this name holds a key. Case, `-` and `_` make no difference."""
    return "".join(filter(str.isalnum, name.lower())).endswith(_NAMES)


@lru_cache(maxsize=4096)
def _any_key(names: tuple[Any, ...]) -> bool:
    """Whether one of a dict's names is a key's. Dicts of one kind have the same names, so this is seldom worked out."""
    return any(map(_names_key, names))


def _has_key(value: Any) -> bool:
    left = [value]
    for item in left:  # it grows meanwhile
        if type(item) is dict:
            if _any_key(tuple(item)) or ("value" in item and _is_header(item)):
                return True
            for inner in item.values():
                if inner.__class__ not in _PLAIN:
                    left.append(inner)
        elif isinstance(item, list | tuple):
            if _is_pair(item):
                return True
            left += item
        elif isinstance(item, dict):
            left.append(dict(item))
    return False


def _cleaned(value: Any, urls: bool) -> Any:
    if isinstance(value, dict):
        header = _is_header(value)
        return {
            name: _cleaned(inner, urls)
            for name, inner in value.items()
            if not (header and name == "value") and not (_names_key(name) and _tells(inner))
        }
    if isinstance(value, list | tuple):
        return [_cleaned(inner, urls) for inner in value if not _is_pair(inner)]
    if urls and isinstance(value, str) and "://" in value:
        return _URL_KEY.sub(rf"\1={MASK}", _URL_USER.sub(MASK, value))
    return value


def _names_key(name: Any) -> bool:
    return isinstance(name, str) and is_key_name(name)


def _tells(value: Any) -> bool:
    """Whether a value under a key's name may give the key away."""
    return not (value is None or isinstance(value, bool) or (isinstance(value, dict) and "type" in value))


def _is_header(value: dict[Any, Any]) -> bool:
    return "value" in value and _names_key(value.get("name"))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and _names_key(value[0])
