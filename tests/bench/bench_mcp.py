"""Calls per second through our MCP client, next to the official SDK's client on the same server in the same run.

    python tests/bench/bench_mcp.py [calls]

The server is data/mcp/clock_server.py, which does next to nothing, so the clients are what is measured. The best of
three rounds: one call after the other, 50 at once, and answers of 1 MB, which tests/servers/scripted.py gives. Without
the SDK (`pip install mcp`) only ours is measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agentlab.mcp import McpConnection

ROOT = Path(__file__).resolve().parents[2]
CLOCK = str(ROOT / "data" / "mcp" / "clock_server.py")
BIG = [str(ROOT / "tests" / "servers" / "scripted.py"), "names", '["big"]']
AT_ONCE = 50
LARGE = 20
Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


async def rates(now: Call, big: Call, calls: int) -> list[float]:
    """Calls per second: one by one, many at once, 1 MB each."""

    async def at_once() -> None:
        for _ in range(calls // AT_ONCE):
            await asyncio.gather(*(now("now", {}) for _ in range(AT_ONCE)))

    async def one_by_one(call: Call, name: str, arguments: dict[str, Any], count: int) -> None:
        for _ in range(count):
            await call(name, arguments)

    async def best(count: int, work: Callable[[], Awaitable[None]]) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            await work()
            times.append(time.perf_counter() - start)
        return count / min(times)

    return [
        await best(calls, lambda: one_by_one(now, "now", {}, calls)),
        await best(calls // AT_ONCE * AT_ONCE, at_once),
        await best(LARGE, lambda: one_by_one(big, "big", {"bytes": 1_000_000}, LARGE)),
    ]


async def ours(calls: int) -> list[float]:
    async with (
        McpConnection("clock", sys.executable, [CLOCK]) as clock,
        McpConnection("big", sys.executable, BIG) as big,
    ):
        return await rates(clock.call, big.call, calls)


async def official(calls: int) -> list[float]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    def server(*args: str) -> Any:
        return stdio_client(StdioServerParameters(command=sys.executable, args=list(args)))

    async with server(CLOCK) as one, server(*BIG) as two, ClientSession(*one) as clock, ClientSession(*two) as big:
        await clock.initialize()
        await big.initialize()
        await big.list_tools()  # it complains about a call to a tool that it has not seen
        return await rates(clock.call_tool, big.call_tool, calls)


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rows = {"agentlab": asyncio.run(ours(calls))}
    try:
        rows["mcp (official SDK)"] = asyncio.run(official(calls))
    except ImportError:
        print("The official SDK is not installed: only ours is measured.")
    print(f"{'calls per second':24} {'one by one':>12} {f'{AT_ONCE} at once':>12} {'1 MB each':>12}")
    for name, found in rows.items():
        print(f"{name:24} " + " ".join(f"{rate:12,.0f}" for rate in found))
    if len(rows) == 2:
        mine, theirs = rows.values()
        print(f"{'times as fast':24} " + " ".join(f"{a / b:12.1f}" for a, b in zip(mine, theirs, strict=True)))


if __name__ == "__main__":
    main()
