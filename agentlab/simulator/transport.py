"""The simulator behind httpx, in this process: no port, no thread."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio
import httpx

from agentlab.simulator.core import Body

if TYPE_CHECKING:
    from agentlab.simulator.core import Simulator


class SimulatorTransport(httpx.AsyncBaseTransport):
    """Give it to `httpx.AsyncClient(transport=...)`. Every chunk lets other tasks run, so that Stop gets through.

    A stalled answer waits for the client's read timeout, if it has one, and ends with httpx.ReadTimeout.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request. Raises httpx.ConnectError when the script refuses the connection."""
        content = await request.aread()
        try:
            answer = self._simulator.handle(request.method, request.url.path, content, dict(request.headers))
        except ConnectionRefusedError as error:
            raise httpx.ConnectError(str(error), request=request) from None
        patience = request.extensions.get("timeout", {}).get("read")
        stream = _Stream(answer.chunks, self._simulator.pace, patience)
        return httpx.Response(answer.status, headers=answer.headers, stream=stream, request=request)


class _Stream(httpx.AsyncByteStream):
    def __init__(self, body: Body, pace: float, patience: float | None) -> None:
        self._body, self._pace, self._patience = body, pace, patience

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await anyio.sleep(self._pace)  # first: whoever is cancelled here has not been given the next chunk
            if (chunk := next(self._body, None)) is None:
                break
            yield chunk
        if self._body.ending == "cut":
            raise httpx.RemoteProtocolError("The connection broke in the middle of the answer.")
        if self._body.ending == "stall":
            await anyio.sleep(math.inf if self._patience is None else self._patience)
            raise httpx.ReadTimeout("The answer stalled.")

    async def aclose(self) -> None:
        self._body.close()
