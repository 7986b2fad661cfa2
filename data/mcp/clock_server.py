"""A small MCP server over stdio: a clock that stands still, and faults on demand. Needs nothing but Python.

    python clock_server.py                      a well-behaved server
    python clock_server.py --fault noise        prints a banner and logs to stdout, floods stderr
    python clock_server.py --fault silence      never answers
    python clock_server.py --fault crash        dies in the middle of a call
    python clock_server.py --fault pages        a list of tools that never ends
    python clock_server.py --fault ping         asks the client: ping, roots/list, and something unknown
    python clock_server.py --fault large        answers a call with one line of more than 100,000 bytes
    python clock_server.py --fault stuck        never answers a call, and all else at once

Written for the chapter and the tests; it knows nothing of agentlab.
"""

import argparse
import json
import sys
from datetime import datetime, timedelta

NOW = "2026-01-05T09:00:00"

TOOLS = [
    {
        "name": "now",
        "description": "The time on the clock.",
        "inputSchema": {"type": "object", "properties": {}},
    },
    {
        "name": "add.minutes",
        "description": "The time some minutes after another.",
        "inputSchema": {
            "type": "object",
            "properties": {"time": {"type": "string"}, "minutes": {"type": "integer"}},
            "required": ["time", "minutes"],
        },
    },
]
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


class Refused(Exception):
    """Becomes a JSON-RPC error."""


def send(message: dict) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def run_tool(name: str, arguments: dict, now: str) -> str:
    if name == "now":
        return now
    if name == "add.minutes":
        return (datetime.fromisoformat(arguments["time"]) + timedelta(minutes=arguments["minutes"])).isoformat()
    raise Refused(f"Unknown tool: {name}")


def answer(method: str, params: dict, options: argparse.Namespace) -> dict:
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "clock", "version": "1.0"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        if options.fault != "pages":
            return {"tools": TOOLS}
        page = int(params.get("cursor", 0))
        return {"tools": [{**TOOLS[0], "name": f"now{page}"}], "nextCursor": str(page + 1)}
    if method == "tools/call":
        if options.fault == "crash":
            print("out of springs", file=sys.stderr)
            sys.exit(3)
        try:
            name = "now" if options.fault == "pages" else params["name"]
            text, failed = run_tool(name, params.get("arguments", {}), options.now), False
        except (KeyError, ValueError, TypeError) as error:
            text, failed = f"{type(error).__name__}: {error}", True
        if options.fault == "large":
            text += "\n" + "tick\n" * 20_000
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    raise Refused(f"Method not found: {method}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--now", default=NOW)
    parser.add_argument("--fault", choices=["noise", "silence", "crash", "pages", "ping", "large", "stuck"])
    options = parser.parse_args()
    if options.fault == "noise":
        print("Clock v1.0 is starting\n-----\n42\n[1, 2]\n" + json.dumps({"level": "info", "msg": "hi"}), flush=True)
        sys.stderr.write("tick " * 60_000)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message or options.fault == "silence":
            continue
        if "id" not in message:
            if message["method"] == "notifications/initialized" and options.fault == "ping":
                for number, method in enumerate(["ping", "roots/list", "sampling/createMessage"]):
                    send({"id": number, "method": method})
            continue
        if options.fault == "stuck" and message["method"] == "tools/call":
            continue
        try:
            send({"id": message["id"], "result": answer(message["method"], message.get("params", {}), options)})
        except Refused as error:
            send({"id": message["id"], "error": {"code": -32601, "message": str(error)}})


if __name__ == "__main__":
    main()
