"""An MCP server that misbehaves as it is told: what it does is the name on its command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "plain"
EXTRA = sys.argv[2:]
changed = False
held: list[Any] = []
log: list[Any] = []


def raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(**message: Any) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


def schema(name: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "inputSchema": {"type": "object", "properties": {}}}


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    cursor = params.get("cursor", "")
    if MODE == "pages":
        return {
            "": {"tools": [schema("a"), schema("b")], "nextCursor": "p2"},
            "p2": {"tools": [schema("c")], "nextCursor": None},
        }[cursor]
    if MODE in ("late-page", "bad-page", "page-crash"):
        return {"tools": [schema("a"), schema("b")], "nextCursor": "x"}
    if MODE == "circle":
        return {"tools": [schema(f"t{cursor}")], "nextCursor": {"": "1", "1": "2", "2": "1"}[cursor]}
    if MODE == "same":
        return {"tools": [schema("a"), schema("b")], "nextCursor": "x"}
    if MODE == "cursor":
        return {"tools": [schema("a")], "nextCursor": json.loads(EXTRA[0])}
    if MODE == "names":
        return {"tools": [schema(name) for name in json.loads(EXTRA[0])]}
    if MODE == "odd-tools":
        wide = {"type": "object", "properties": {"x": {"description": "y" * 100_000}}}
        return {
            "tools": [
                "no object", {"name": 7}, {"name": ""}, schema("same"), schema("same"),
                {"name": "bare"}, {"name": "list", "inputSchema": [1]}, {"name": "wide", "inputSchema": wide},
                {"name": "long", "description": "d" * 100_000}, {"name": "text", "inputSchema": {"type": "string"}},
            ]
        }  # fmt: skip
    return {"tools": [schema(name) for name in (["echo", "new"] if changed else ["echo"])]}


def call(id: Any, params: dict[str, Any]) -> None:
    global changed
    name, arguments = params["name"], params.get("arguments", {})
    token = params.get("_meta", {}).get("progressToken")
    if name == "hold":
        held.append(id)
    elif name == "release":
        for waiting in [id, *reversed(held)]:
            send(id=waiting, result=text(f"{waiting}"))
        held.clear()
    elif name == "big":
        send(id=id, result=text("é\u2028" * (int(arguments["bytes"]) // 5)))
    elif name == "error":
        send(id=id, error={"code": -32602, "message": "no such tool"})
    elif name == "is-error":
        send(id=id, result=text("no such table", structuredContent={}, isError=True))
    elif name == "string-id":
        send(method="notifications/message", params={})
        send(id=str(id), result=text("by a text"))
    elif name == "log":
        send(id=id, result=text(json.dumps(log)))
    elif name == "change":
        changed = True
        send(method="notifications/tools/list_changed")
        send(id=id, result=text("changed"))
    elif name == "progress":
        for step in range(int(arguments["steps"])):
            done = step * arguments.get("grows", 1)
            send(method="notifications/progress", params={"progressToken": token, "progress": done, "message": "on"})
            time.sleep(arguments.get("pause_s", 0.1))
        send(id=id, result=text("done"))
    elif name == "env":
        send(id=id, result=text(json.dumps(dict(os.environ))))
    elif name == "crash":
        sys.stderr.write(f"token is {os.environ.get('TOKEN', '')}: out of memory\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "half":
        raw(json.dumps({"jsonrpc": "2.0", "id": id, "result": text("no line end")}).encode())
        os._exit(0)
    elif name == "ask":
        for number, method in enumerate(["ping", "roots/list", "sampling/createMessage", "no/such"]):
            send(id=number if number % 2 else f"{number}", method=method)
        send(id=id, result=text("asked"))
    elif name == "flood":
        for number in range(4_000):
            send(id=f"{number:01000}", method="ping")
        send(id=id, result=text("flooded"))
    elif name == "ask-without-id":
        for number in (None, True, [1], 1.5):
            send(id=number, method="sampling/createMessage")
        send(id=id, result=text("asked"))
    elif name == "stderr":
        sys.stderr.write("x" * 256_000)
        sys.stderr.flush()
        send(id=id, result=text("still here"))
    else:
        send(id=id, result=text(json.dumps(arguments, ensure_ascii=False)))


def hostile(seed: int) -> None:
    """Some random lines, valid and not, before each answer."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(6)):
        some_id = chance.choice([None, -1, 0, 1, 10**30, True, "0", "x", [1], {}, 1.5])
        raw(
            chance.choice(
                [
                    b"\xff\xfe\x00noise\n", b"{\n", b"[]\n", b"null\n", b"\n\r\n", b"[" * 5000 + b"\n", b'"\\ud800"\n',
                    json.dumps({"jsonrpc": "2.0", "id": some_id, "method": "x", "params": [1]}).encode() + b"\n",
                    json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}).encode() + b"\n",
                    json.dumps({"jsonrpc": "2.0", "id": 10**9, "result": some_id}).encode() + b"\n",
                    json.dumps({"id": some_id, "result": 1}).encode() + b"\n",
                    json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).encode() + b"\n",
                    bytes(chance.randrange(256) for _ in range(chance.randrange(200))).replace(b"\n", b"") + b"\n",
                ]
            )
        )  # fmt: skip


def main() -> None:
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE in ("family", "stubborn"):
        subprocess.Popen(["sh", "-c", f"trap '' TERM; exec {EXTRA[0]}"], stderr=subprocess.DEVNULL)
    if MODE == "early-stderr":
        sys.stderr.write("x" * 256_000)
    for number, line in enumerate(sys.stdin.buffer):
        message = json.loads(line)
        log.append(message)
        if MODE == "hostile":
            hostile(number + int(EXTRA[0]))
        id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if method == "initialize":
            version = EXTRA[0] if MODE == "version" else params["protocolVersion"]
            send(
                id=id,
                result={
                    "protocolVersion": version,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                },
            )
        elif method == "tools/list" and MODE == "no-tools":
            send(id=id, error={"code": json.loads(EXTRA[0]), "message": "Method not found"})
        elif method == "tools/list" and MODE in ("late-page", "bad-page", "page-crash") and params.get("cursor"):
            if MODE == "bad-page":
                send(id=id, error={"code": -32602, "message": "bad cursor"})
            if MODE == "page-crash":
                os._exit(5)
        elif method == "tools/list" and MODE == "list-once" and changed:
            continue
        elif method == "tools/list":
            send(id=id, result=list_tools(params))
        elif method == "tools/call":
            call(id, params)
    if MODE in ("stubborn", "deaf"):
        time.sleep(300)


if __name__ == "__main__":
    main()
