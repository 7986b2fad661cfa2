"""The server of chapter 11's exercises, a program of its own: a clock for clients that keep the rules.

    stdout <- noise first; then ping (id 0), roots/list (id 1), sampling/createMessage (id "two"); then its answers
    stdin  -> the client's requests, and its answers to those three: a wrong one, or none, ends the server

The text that it answers a call with holds a raw U+2028, which is a line end for `splitlines` and none for JSON-RPC.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn

TIME = "09:00\u2028on Monday"
TOOL = {"name": "now", "description": "The time.", "inputSchema": {"type": "object", "properties": {}}}
ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "clock", "version": "1.0"},
    },
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": TIME}], "isError": False},
}
NOISE = "Clock v1.0 is starting\n42\n[1, 2]\n" + json.dumps({"level": "info", "method": "GET", "id": 0})


def _refused(answer: dict[str, Any]) -> bool:
    error = answer.get("error")
    return isinstance(error, dict) and error.get("code") == -32601


def _roots(answer: dict[str, Any]) -> bool:
    result = answer.get("result")
    return isinstance(result, dict) and isinstance(result.get("roots"), list)


QUESTIONS: dict[int | str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    0: ("ping", lambda answer: answer.get("result") == {}),
    1: ("roots/list", _roots),
    "two": ("sampling/createMessage", _refused),
}


def _send(**message: Any) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n")
    sys.stdout.buffer.flush()


def _leave(why: str) -> NoReturn:
    print(why, file=sys.stderr, flush=True)
    sys.exit(4)


def main() -> None:
    waiting = dict(QUESTIONS)
    print(NOISE, flush=True)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if method == "notifications/initialized":
            for number, (question, _) in QUESTIONS.items():
                _send(id=number, method=question)
        elif method is None:
            if not isinstance(id, int | str) or id not in waiting:
                _leave(f"somebody answered a question that was not asked: id {json.dumps(id)}")
            question, right = waiting.pop(id)
            if message.get("jsonrpc") != "2.0" or not right(message):
                _leave(f"the answer to {question} is no answer to it")
        elif method == "tools/call" and waiting:
            _leave(f"nobody answered {next(iter(waiting.values()))[0]}, so the client must be dead")
        else:
            _send(id=id, result=ANSWERS[method])


if __name__ == "__main__":
    main()
