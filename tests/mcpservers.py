"""Servers for the tests of MCP: our own, which do as they are told, and real ones where they are installed."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentlab.mcp import McpConnection

ROOT = Path(__file__).resolve().parents[1]
SCRIPTED = str(ROOT / "tests" / "servers" / "scripted.py")
CLOCK = str(ROOT / "data" / "mcp" / "clock_server.py")
_numbers = itertools.count(1)


def scripted(*mode: str, **options: Any) -> McpConnection:
    """A connection to tests/servers/scripted.py in this mode."""
    return McpConnection("srv", sys.executable, [SCRIPTED, *mode], **{"grace_s": 0.5, **options})


def real(program: str) -> str:
    """The path of an MCP server that is installed; without it the test is skipped."""
    places = [str(Path(sys.prefix) / "bin"), str(ROOT / "node_modules" / ".bin"), os.environ.get("PATH", "")]
    found = shutil.which(program, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"{program} is not installed (the test extra has the Python ones, npm install the others)")
    return found


def nap() -> str:
    """A command that sleeps for long, and whose command line no other process has."""
    return f"sleep 300.{os.getpid()}{next(_numbers):04}"


def sleepers(nap: str) -> list[psutil.Process]:
    """The living processes that are this nap."""
    return [found for found in psutil.process_iter(["cmdline"]) if " ".join(found.info["cmdline"] or []) == nap]


async def asleep(nap: str) -> None:
    """Wait until it runs. The time limit of the clean run is the guard."""
    while not sleepers(nap):  # noqa: ASYNC110 -- what it waits for happens in another process
        await asyncio.sleep(0.01)


def children() -> set[int]:
    """Our children, zombies too."""
    return {child.pid for child in psutil.Process().children()}
