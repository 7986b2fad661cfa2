"""What a provider can reuse of the last request: the common prefix, and who broke it.

    previous request -> tools, system, messages -> one text --.
                                                               >-- the same up to here | all behind it is paid again
    current request  -> tools, system, messages -> one text --'    culprit, its field, the words around the break

A prompt cache matches from the first character on, so one changed character costs everything behind it. What counts
is only whether the texts are equal, never what they are about: a time in an old tool result harms nobody, a time in
front of everything does. Keys in another order are another text.

The text is what a model reads: strings as they are, without JSON's escapes. Left out is what is no part of a prompt:
the keys of our own that are never sent (`messages.OWN_KEYS`), Anthropic's `cache_control` (moving a mark changes no
prompt), and settings such as `model`. (Seed 000,
prompt cache: the three disciplines, experiments A to C.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, AnyStr, Literal

from agentlab import jsonio
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.messages import OWN_KEYS

Section = Literal["tools", "system", "messages"]
Request = Mapping[str, Any] | Sequence[Any]
"""A request's body in OpenAI's or Anthropic's form, or only its list of messages."""

Part = tuple[Section, int, Any]
"""A tool, the system prompt (index -1 when it is no message) or a message, with its index in the list it came from."""

ORDER: tuple[Section, ...] = ("tools", "system", "messages")
"""How vendors lay a request out. (Anthropic's documentation names this order.)"""

BLOCK = 64 * 1024
AROUND = 24
WHERE_CHARS = 120
ARRAYS = (list, tuple)
COMPOUND = (str, dict, list, tuple)
NO_PROMPT = OWN_KEYS | {"cache_control"}
_NO_JSON = "This request holds something that is no JSON: build it from dicts with text keys, lists, texts and numbers."


def common_prefix(a: AnyStr, b: AnyStr) -> int:
    """How long a beginning two texts share: in characters for two str, in bytes for two bytes.

    Blocks of 64 KB first, then the one that differs is halved. Raises AgentLabError for any other pair.
    """
    if not any(isinstance(a, kind) and isinstance(b, kind) for kind in (str, bytes)):
        kinds = f"{type(a).__name__} and {type(b).__name__}"
        raise AgentLabError(f"A common prefix needs two str or two bytes, not {kinds}: encode or decode one of them.")
    end = min(len(a), len(b))
    low = 0
    while low < end and a.startswith(b[low : min(low + BLOCK, end)], low):
        low = min(low + BLOCK, end)
    high = min(low + BLOCK, end)
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True)
class PrefixDiff:
    """How much of the previous request a cache can reuse for the current one. Sizes are in characters of `as_text`."""

    reused: int
    previous_size: int
    ratio: float
    """`reused / previous_size`: 1.0 when the current request only adds to the previous one."""

    culprit: str | None
    """The first part that differs: `system`, `tools`, or `messages[i]` of the list passed in. None: nothing does."""

    context: str = ""
    """The words around the break, before and after, as Python literals: at most 24 characters on each side."""

    where: str | None = None
    """The field that differs, such as `messages[3].content` or `tools[0].function.name`."""

    parts: tuple[Part, ...] = field(default=(), repr=False, compare=False)
    """The current request, for the picture; `at` is the first part that differs, `known` how many it had before."""

    at: int = field(default=0, repr=False, compare=False)
    known: int = field(default=0, repr=False, compare=False)

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        if self.culprit is None:
            return "The current request only adds to the previous one: all of it can be reused."
        share = f"{self.reused:,} of {self.previous_size:,} characters ({self.ratio:.1%}) can be reused"
        return f"{self.where} differs: {self.context}. Only {share}."

    def _repr_html_(self) -> str:
        from agentlab import draw

        known = max(self.known, self.at + 1) if self.culprit else self.known
        fates = ["cached"] * self.at + ["paid again"] * (known - self.at) + ["new"] * len(self.parts)
        if self.culprit and self.at < len(self.parts):
            fates[self.at] = "culprit"
        history = [_drawn(part) for part in self.parts]
        sizes = [_same(value, value) for _, _, value in self.parts]
        caption = say("{ratio:.1%} of the previous request can be reused", ratio=self.ratio)
        bar = draw.strip(history, fates=fates[: len(history)], sizes=sizes, unit="characters", caption=caption)
        return draw.html(bar, self.sentence)._repr_html_()


class AppendOnlyError(AgentLabError, AssertionError):
    """A request is no extension of the one before. `number` is its index in the list, `diff` says what broke."""

    def __init__(self, message: str, *, number: int, diff: PrefixDiff) -> None:
        super().__init__(message)
        self.number = number
        self.diff = diff


def diff(previous: Request, current: Request, *, order: Sequence[Section] = ORDER) -> PrefixDiff:
    """Compare two requests as a prompt cache does, and name the first part that differs.

    Takes request bodies in OpenAI's or Anthropic's form, or lists of messages; leading system and developer messages
    are the system prompt. `order` is the order in which tools, system and messages are laid out. Nothing is changed.
    Raises AgentLabError for what is no request. (Seed 000, prompt cache, experiments A to C.)
    """
    try:
        return _diff(_parts(previous, order), _parts(current, order), order)
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentLabError(f"{_NO_JSON} ({error})") from None


def assert_append_only(requests: Iterable[Request], *, order: Sequence[Section] = ORDER) -> None:
    """For a test suite: every request only adds to the one before it, so that the prompt cache holds.

    Raises AppendOnlyError, which is an AssertionError too, for the first request that does not, with the culprit.
    Leave out the step over a compaction, which rewrites the history on purpose. (Seed 000, prompt cache.)
    """
    for number, (previous, current) in enumerate(pairwise(requests), 1):
        found = diff(previous, current, order=order)
        if found.culprit:
            raise AppendOnlyError(
                f"requests[{number}] does not only add to requests[{number - 1}]: {found.culprit} is the culprit. "
                f"{found.sentence} Append to what was sent, and move what changes into the newest message.",
                number=number,
                diff=found,
            )


def require_request(request: Request) -> None:
    """Raise the AgentLabError of `diff` for what cannot be compared, without comparing."""
    _parts(request, ORDER)


def as_text(request: Request, *, order: Sequence[Section] = ORDER) -> str:
    """A request as the one text that `diff` compares: a line for each tool, the system prompt and each message.

    Raises AgentLabError for what is no request.
    """
    try:
        return "".join("".join(text for _, text in _pieces(part[2], "")) + "\n" for part in _parts(request, order))
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentLabError(f"{_NO_JSON} ({error})") from None


def _diff(before: list[Part], now: list[Part], order: Sequence[Section]) -> PrefixDiff:
    reused = at = 0
    for (section, _, old), (other, _, new) in zip(before, now, strict=False):
        same = _same(old, new) if section == other else -1
        if same < 0:
            break
        reused += same + 1
        at += 1
    size = reused + sum(_same(value, value) + 1 for _, _, value in before[at:])
    if at == len(before):
        return PrefixDiff(reused, size, 1.0, None, parts=tuple(now), at=at, known=at)
    old_part, new_part = before[at], now[at] if at < len(now) else None
    found = min(filter(None, (old_part, new_part)), key=lambda part: order.index(part[0]))
    inside, where, context = _break(old_part, new_part, found)
    reused += inside
    culprit = f"messages[{found[1]}]" if found[0] == "messages" else found[0]
    return PrefixDiff(reused, size, reused / size, culprit, context, where, tuple(now), at, len(before))


def _parts(request: Request, order: Sequence[Section]) -> list[Part]:
    """The parts of a request in order, without what is no part of the prompt."""
    body = request if isinstance(request, Mapping) else {"messages": request}
    tools, messages = body.get("tools") or [], body.get("messages")
    if not (isinstance(messages, ARRAYS) and isinstance(tools, ARRAYS)) or sorted(order) != sorted(ORDER):
        raise AgentLabError(
            "This cannot be compared: pass a list of messages, or a request body with 'messages' and perhaps 'system' "
            f"and 'tools', both lists as they are sent; order is one of the orders of {', '.join(ORDER)}."
        )
    leading = next((i for i, message in enumerate(messages) if not _is_system(message)), len(messages))
    laid: list[Part] = [("messages", i, _prompted(message)) for i, message in enumerate(messages)]
    system: list[Part] = [("system", i, message) for _, i, message in laid[:leading]]
    if body.get("system"):
        system.insert(0, ("system", -1, _content(body["system"])))
    sections: dict[Section, list[Part]] = {
        "tools": [("tools", i, _prompted(tool)) for i, tool in enumerate(tools)],
        "system": system,
        "messages": laid[leading:],
    }
    return [part for section in order for part in sections[section]]


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _prompted(part: Any) -> Any:
    """A message, tool or content block as far as it becomes part of the prompt."""
    if not isinstance(part, dict):
        return part
    content = part.get("content")
    if isinstance(content, str) and NO_PROMPT.isdisjoint(part):
        return part
    sent = {key: value for key, value in part.items() if key not in NO_PROMPT}
    return {**sent, "content": _content(content)} if "content" in sent else sent


def _content(content: Any) -> Any:
    """A content list without marks. One plain text block reads like the text alone; agents turn one into the other
    to mark it."""
    if not isinstance(content, list):
        return content
    blocks = [_prompted(block) for block in content]
    if len(blocks) == 1 and isinstance(blocks[0], dict) and set(blocks[0]) == {"type", "text"}:
        return blocks[0]["text"]
    return blocks


def _same(a: Any, b: Any) -> int:
    """The size of two values that are laid out as the same text, in characters; -1 if they are not.

    Stricter than `==`: keys in another order, 1 and True, 1 and 1.0 are different texts.
    """
    if isinstance(a, dict):
        if not isinstance(b, dict) or list(a) != list(b):
            return -1
        inside: Iterable[Any] = a
        size = 1 + len("".join(a)) + 4 * len(a)
    elif isinstance(a, ARRAYS):
        if not isinstance(b, ARRAYS) or len(a) != len(b):
            return -1
        inside = range(len(a))
        size = 1 + len(a)
    elif isinstance(a, str):
        return len(a) + 2 if isinstance(b, str) and a == b else -1
    else:
        text = jsonio.dumps(a)
        return -1 if isinstance(b, COMPOUND) or jsonio.dumps(b) != text else len(text)
    for key in inside:
        one, other = a[key], b[key]
        if type(one) is str is type(other):  # most of a request, so without a call
            if one != other:
                return -1
            size += len(one) + 2
        elif (same := _same(one, other)) < 0:
            return -1
        else:
            size += same
    return size if a else 2


def _pieces(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """The text of a value in pieces, each with the field that it belongs to."""
    if isinstance(value, str):
        yield from ((where, '"'), (where, value), (where, '"'))
    elif isinstance(value, dict) and value:
        for position, (key, inner) in enumerate(value.items()):
            yield where, f'{"," if position else "{"}"{key}":'
            field = f".{key}" if str.isidentifier(key) else f"[{key[:WHERE_CHARS]!r}]"
            yield from _pieces(inner, (where + field)[:WHERE_CHARS])
        yield where, "}"
    elif isinstance(value, ARRAYS) and value:
        for position, inner in enumerate(value):
            yield where, "," if position else "["
            yield from _pieces(inner, f"{where}[{position}]"[:WHERE_CHARS])
        yield where, "]"
    else:
        yield where, jsonio.dumps(value)


def _break(old: Part, new: Part | None, found: Part) -> tuple[int, str, str]:
    """Inside two parts that differ: how many characters they share, the field, and the words around the break."""
    before, now = (list(_pieces(part[2], _place(part))) if part else [] for part in (old, new))
    at = next((i for i, (one, other) in enumerate(zip(before, now, strict=False)) if one[1] != other[1]), 0)
    shared = common_prefix(before[at][1], now[at][1]) if now else 0
    where = before[at][0] if found is old or not now else now[at][0]
    context = f"{_around(before, at, shared)} became {_around(now, at, shared) if now else 'nothing'}"
    return sum(len(text) for _, text in before[:at]) + shared, where, context


def _place(part: Part) -> str:
    section, index, _ = part
    if section == "system":
        return "system" if index < 0 else f"messages[{index}]"
    return f"{section}[{index}]"


def _around(pieces: Sequence[tuple[str, str]], at: int, shared: int) -> str:
    """The text around a break, as a Python literal: nothing in it can act."""
    text = pieces[at][1]
    left = (
        "".join(piece[-AROUND:] for _, piece in pieces[max(at - AROUND, 0) : at])
        + text[max(shared - AROUND, 0) : shared]
    )
    right = text[shared : shared + AROUND] + "".join(piece[:AROUND] for _, piece in pieces[at + 1 : at + 1 + AROUND])
    return repr(left[-AROUND:] + right[:AROUND])


def _drawn(part: Part) -> dict[str, Any]:
    """A part as a message that the context strip can draw."""
    section, _, value = part
    if section == "messages" or (isinstance(value, dict) and "role" in value):
        return value if isinstance(value, dict) else {"role": "", "content": value}
    role = "system" if section == "system" else "tools"
    return {"role": role, "content": value if isinstance(value, str) else jsonio.dumps(value)}
