"""Take keys out of data before it is written down: a log is copied, shared and backed up, and lives for years.

    settings      -> strict: what stands under a name that may be a key's goes ----+
    anything else -> with care: only names that mean nothing else, the shape stays +-> known values -> one JSON line

The rule. 1. In settings (`session_meta`, `config`) each name that ends in a key's word counts: `api_key`, `HF_TOKEN`.
2. In messages, inputs and results only the unmistakable do: `api_key`, `Authorization`, a field called `password`.
3. The values of the environment's keys become [redacted] anywhere. A key known by neither name nor value stays.

In settings a field is left out, not masked: a mask that comes back on resume would be sent as a key, while a missing
key is looked up again. In a list of words, `["--api-key", "sk-..."]`, it is masked, since places count there, and so it
is outside the settings: what a person or a tool said keeps its shape. Keys in URLs go from the settings. Nothing that
is passed in is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

from agentlab.journalfile import JournalError, encode

MASK = "[redacted]"
MIN_CHARS = 8

_CLEAR = frozenset(
    {
        "apikey", "apitoken", "apisecret", "authorization", "accesskey", "authkey", "secretkey", "secretaccesskey",
        "privatekey", "subscriptionkey", "accesstoken", "authtoken", "bearertoken", "refreshtoken", "sessiontoken",
        "idtoken", "clientsecret",
    }
)  # fmt: skip
_CLEAR_FIELDS = {"password", "passwd", "passphrase"}
_STRICT = _CLEAR | _CLEAR_FIELDS | {"accesskeyid", "secret", "credential", "bearer", "cookie"}
_WEAK = {"key", "token", "auth", "authheader"}  # these name other things too: only a value like a key's counts
_OTHER = {
    "key": {"cache", "sort", "public", "primary", "foreign", "partition"},
    "token": {"eos", "bos", "pad", "stop", "unk", "sep", "mask", "cls"},
}
_PLAIN = frozenset({str, int, float, bool, type(None)})
_VARIABLES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "AUTHORIZATION")
_SETTINGS = ("session_meta", "config")
_NAMES_ONLY = ("required", "enum")  # in a schema: lists of names, no values
_SCHEMA = ("anyOf", "oneOf", "allOf", "$ref", "enum", "const")
_TYPES = ("string", "object", "array", "number", "integer", "boolean", "null")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAMED = re.compile(r"(-{0,2}([A-Za-z][\w-]*)\s*[:=]\s*)(\S[^\n]*)")  # a header, a variable, an argument
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)")
_URL_KEY = re.compile(r"(?<=[?&])([\w-]*(?:key|token|secret|password|sig|signature))=[^&#\s]+", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/?#\s@]+(?=@)")


class Secrets:
    """Key values that must not be written. Under `MIN_CHARS` characters, or a plain lower-case word, a value is no key:
    it would hit ordinary text."""

    def __init__(self, values: Iterable[str]) -> None:
        keys = [it for it in {value.strip() for value in values} if _like_a_key(it)]
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
        if record.get("type") in _SETTINGS:
            record = without_keys(record)
        elif _has_clear(record):
            record = with_masks(record)
        line = encode(record)
        return encode(secrets.mask(record)) if secrets.maybe_in(line) else line
    except RecursionError:
        raise JournalError("This event is nested too deeply to be written: nothing was written.") from None


def without_keys(value: Any) -> Any:
    """Settings without their keys: fields and pairs are left out, words of a list and parts of a URL masked.

    True, False and None under a key's name only say whether there is one, and stay; so does a schema that describes it.
    """
    if isinstance(value, dict):
        named = value.get("name") if "value" in value else None
        return {
            name: inner if name in _NAMES_ONLY else without_keys(inner)
            for name, inner in value.items()
            if not _gives_away(name, inner) and not (name == "value" and _gives_away(named, inner))
        }
    if isinstance(value, list | tuple):
        if _is_pair(value) and _gives_away(value[0], value[1]) and _may_be_key(value[1]):
            return [value[0], MASK]
        return [
            _word(it, before) if isinstance(it, str) else without_keys(it)
            for before, it in pairwise([None, *value])
            if not (_is_pair(it) and _gives_away(it[0], it[1]))
        ]
    return _url(value) if isinstance(value, str) else value


def with_masks(value: Any) -> Any:
    """What was said, with `MASK` for what stands under an unmistakable name. All else stays, and so does the shape."""
    if isinstance(value, dict):
        header = "value" in value and _is_clear(value.get("name"))
        return {
            name: MASK
            if (_is_clear(name, fields=True) or (header and name == "value")) and inner and _tells(inner)
            else with_masks(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [value[0], MASK] if _is_clear_pair(value) else [with_masks(inner) for inner in value]
    return value


def _has_clear(value: Any) -> bool:
    """Whether `with_masks` may change anything: quick, since nearly always it would not."""
    left = [value]
    for item in left:  # it grows meanwhile
        if isinstance(item, dict):
            if _any_clear(tuple(item)) or ("value" in item and _is_clear(item.get("name"))):
                return True
            for inner in item.values():
                if inner.__class__ not in _PLAIN:
                    left.append(inner)
        elif isinstance(item, list | tuple):
            if _is_clear_pair(item):
                return True
            left += item
    return False


@lru_cache(maxsize=4096)
def _any_clear(names: tuple[Any, ...]) -> bool:
    """For the names of one dict. Dicts of one kind have the same names, so this is seldom worked out."""
    return any(_is_clear(name, fields=True) for name in names)


@lru_cache(maxsize=4096)
def is_key_name(name: str) -> bool:
    """Whether a setting of this name holds a key, or may. Case, `-` and `_` make no difference."""
    return _kind(name) != ""


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """`"clear"`, `"field"` (clear as a field), `"strict"` or `"weak"`; "" for a name that is no key's."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return ""
    words[-1] = words[-1].removesuffix("s")
    ends = {"".join(words[-count:]) for count in (1, 2, 3)}
    if ends & _CLEAR or words[-1].endswith("apikey"):
        return "clear"
    if words[-1] in _CLEAR_FIELDS:
        return "field"
    if ends & _STRICT:
        return "strict"
    other = _OTHER.get(words[-1], set())
    return "weak" if ends & _WEAK and other.isdisjoint(words[-2:-1]) else ""


def _is_clear(name: Any, *, fields: bool = False) -> bool:
    kind = _kind(name) if isinstance(name, str) else ""
    return kind == "clear" or (fields and kind == "field")


def _gives_away(name: Any, value: Any) -> bool:
    """Whether this value under this name in settings may give a key away."""
    kind = _kind(name) if isinstance(name, str) else ""
    return kind != "" and _tells(value) and (kind != "weak" or _may_be_key(value))


def _tells(value: Any) -> bool:
    return not (value is None or isinstance(value, bool) or _is_schema(value))


def _is_schema(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    return isinstance(kind, list) or kind in _TYPES or any(name in value for name in _SCHEMA)


def _may_be_key(value: Any) -> bool:
    """Whether a text like a key, one word or two, stands anywhere in a value."""
    if isinstance(value, dict):
        return any(map(_may_be_key, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_may_be_key, value))
    return isinstance(value, str) and _like_a_key(value) and len(value.split()) <= 2


def _like_a_key(text: str) -> bool:
    return len(text) >= MIN_CHARS and not (text.replace("_", "").isalpha() and text.islower())


def _is_clear_pair(value: Any) -> bool:
    return _is_pair(value) and _is_clear(value[0]) and isinstance(value[1], str) and _may_be_key(value[1])


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _word(text: str, before: Any) -> str:
    """One word of a list, and the one before it: the key in `Authorization: ...` or behind `--api-key` is masked."""
    flag = _FLAG.fullmatch(before) if isinstance(before, str) else None
    if flag and _gives_away(flag[1], text):
        return MASK
    named = _NAMED.fullmatch(text)
    return named[1] + MASK if named and _gives_away(named[2], named[3]) else _url(text)


def _url(text: str) -> str:
    return _URL_KEY.sub(rf"\1={MASK}", _URL_USER.sub(MASK, text)) if "://" in text else text
