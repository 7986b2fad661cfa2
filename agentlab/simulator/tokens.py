"""A deterministic tokenizer, and the order in which a request and a reply are laid out in tokens.

No vendor's vocabulary: a token is a short piece of the text itself, so that it can be shown and counted by hand. What
matters is kept: nothing is lost (the tokens of a text join to the text), about four letters make a token, and text
that grows at its end keeps all its tokens but the last, as a prefix cache needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentlab import jsonio
from agentlab.messages import Message, calls_of

_OPENING = ("<|tool|>", "<|call|>", "<|system|>", "<|user|>", "<|assistant|>")
_TOKEN = re.compile(
    r" ?[A-Za-z]{1,8}"  # a word, or eight letters of a long one, with the space before it
    r"|[0-9]{1,3}"
    r"|\n+|[^\S\n]+"  # line ends and other white space
    r"|[!-/:-@\[-`{-~]{1,2}"  # punctuation
    r"|[\s\S]"  # any other character is a token by itself
)


def tokenize(text: str) -> list[str]:
    """The tokens of a text. They join to the text; all but the last stay the same when text is added at the end."""
    return _TOKEN.findall(text)


def text_of(message: Message) -> str:
    """The text of a message's content: a string as it is, the text parts of a list joined, "" for anything else."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


@dataclass(frozen=True)
class Piece:
    """The smallest part of a reply that a stream carries, with the tokens that it costs.

    `kind` is `"reasoning"`, `"text"`, `"call"` (the id and the name that open a tool call) or `"arguments"`; `call` is
    the position of the tool call in the message, -1 for reasoning and text.
    """

    kind: Literal["reasoning", "text", "call", "arguments"]
    text: str
    tokens: tuple[str, ...]
    call: int = -1
    id: str = ""


def pieces(message: Message) -> Iterator[Piece]:
    """Cut an assistant message into the pieces that a model would produce: its reasoning, its text, then the calls."""
    for token in tokenize(str(message.get("reasoning_content") or "")):
        yield Piece("reasoning", token, (token,))
    for token in tokenize(text_of(message)):
        yield Piece("text", token, (token,))
    for position, call in enumerate(calls_of(message)):
        id, function = str(call.get("id") or ""), call.get("function") or {}
        name = str(function.get("name") or "")
        yield Piece("call", name, ("<|call|>", *tokenize(id), *tokenize(name)), position, id)
        for token in tokenize(str(function.get("arguments") or "")):
            yield Piece("arguments", token, (token,), position)


def message_of(source: Iterable[Piece]) -> Message:
    """The assistant message that some pieces make up, without `reasoning_content` or `tool_calls` if it has none."""
    texts: dict[str, list[str]] = {"reasoning": [], "text": []}
    calls: list[dict[str, Any]] = []
    arguments: list[list[str]] = []
    for piece in source:
        if piece.kind == "call":
            calls.append({"id": piece.id, "type": "function", "function": {"name": piece.text}})
            arguments.append([])
        else:
            (arguments[-1] if piece.kind == "arguments" else texts[piece.kind]).append(piece.text)
    for call, parts in zip(calls, arguments, strict=True):
        call["function"]["arguments"] = "".join(parts)
    message: Message = {"role": "assistant", "content": "".join(texts["text"])}
    if texts["reasoning"]:
        message["reasoning_content"] = "".join(texts["reasoning"])
    return {**message, "tool_calls": calls} if calls else message


def take(source: Iterable[Piece], limit: int) -> tuple[list[Piece], bool]:
    """The leading pieces that fit into `limit` tokens, and whether that was all of them."""
    taken: list[Piece] = []
    for piece in source:
        limit -= len(piece.tokens)
        if limit < 0:
            return taken, False
        taken.append(piece)
    return taken, True


def count(source: Iterable[Piece]) -> int:
    """The number of tokens in some pieces."""
    return sum(len(piece.tokens) for piece in source)


def message_tokens(message: Message) -> list[str]:
    """One message in tokens: a mark for its role, what it says, a mark for its end. An image or a file costs one."""
    laid = [f"<|{message.get('role')}|>"]
    for label in (message.get("name"), message.get("tool_call_id")):
        laid += tokenize(label) if isinstance(label, str) else []
    content = message.get("content")
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and not isinstance(part.get("text"), str):
            laid.append(f"<|{part.get('type')}|>")
    for piece in pieces(message):
        laid += piece.tokens
    laid.append("<|end|>")
    return laid


def render(tools: Sequence[dict[str, Any]], messages: Sequence[Message]) -> list[str]:
    """A whole request in tokens, as a model reads it: the tools, then the messages, then the mark that opens the reply.

    The keys of a tool keep the order in which they were sent, so another order is another prompt.
    """
    laid: list[str] = []
    for tool in tools:
        laid += ["<|tool|>", *tokenize(jsonio.dumps(tool))]
    for message in messages:
        laid += message_tokens(message)
    laid.append("<|assistant|>")
    return laid


def block_ends(prompt: Sequence[str]) -> list[int]:
    """Where the blocks of a rendered request end, as numbers of leading tokens: each tool, message and tool call."""
    return [
        at
        for at in range(1, len(prompt))
        if prompt[at - 1] == "<|end|>" or (prompt[at] in _OPENING and prompt[at - 1] != "<|assistant|>")
    ]
