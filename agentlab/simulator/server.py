"""The simulator behind a loopback HTTP server, for any other client. It needs starlette and uvicorn, an extra."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from agentlab.errors import AgentLabError
from agentlab.simulator.core import Body

if TYPE_CHECKING:
    import uvicorn

    from agentlab.simulator.core import Simulator

_START_S, _STOP_S, _GRACE_S = 10.0, 10.0, 1


@dataclass(frozen=True)
class Served:
    """A running server. `url` is the base URL for clients, `http://host:port/v1`."""

    url: str
    host: str
    port: int


@contextmanager
def serve(simulator: Simulator, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[Served]:
    """Serve a simulator from a thread while the block runs: `with serve(simulator) as server: ... server.url`.

    Port 0 takes a free one. A client that goes away stops the answer and stands in `simulator.hangups`. Faults: a
    refused connection becomes an empty 503, since a server that has accepted cannot refuse any more.
    Raises AgentLabError when the port is taken, the extra is not installed, or the server does not start.
    """
    listener = _listen(host, port)
    with listener:
        server = _server(simulator)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="agentlab-serve", daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + _START_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline:
                    raise AgentLabError("The simulator's server did not start. Try another port.")
                time.sleep(0.005)
            bound = listener.getsockname()[1]
            yield Served(_url(host, bound), host, bound)
        finally:
            server.should_exit = True
            thread.join(_STOP_S)


def run_server(simulator: Simulator, host: str = "127.0.0.1", port: int = 8080) -> None:
    """Serve a simulator until Ctrl-C. Raises AgentLabError as `serve` does."""
    with _listen(host, port) as listener, suppress(KeyboardInterrupt):
        _server(simulator).run(sockets=[listener])


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        raise AgentLabError(
            f"Cannot listen on {host}:{port} ({error}). Choose another port, or 0 for a free one."
        ) from None
    return listener


def _server(simulator: Simulator) -> uvicorn.Server:
    try:
        import uvicorn
        from starlette.requests import Request
        from starlette.responses import StreamingResponse
    except ImportError:
        raise AgentLabError("The loopback server needs an extra: pip install 'agentlab-kernel[serve]'.") from None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            answer = simulator.handle(request.method, request.url.path, await request.body(), request.headers)
        except ConnectionRefusedError:
            await StreamingResponse(iter(()), 503)(scope, receive, send)
            return
        try:
            body = _stream(answer.chunks, simulator.pace)
            await StreamingResponse(body, answer.status, answer.headers)(scope, receive, send)
        finally:
            answer.chunks.close()

    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=_GRACE_S)
    return uvicorn.Server(config)


class _Broken(Exception):
    """Ends an answer without its last bytes, so that the client sees a broken connection."""


async def _stream(body: Body, pace: float) -> AsyncIterator[bytes]:
    while True:
        await anyio.sleep(pace)
        if (chunk := next(body, None)) is None:
            break
        yield chunk
    if body.ending == "cut":
        raise _Broken
    if body.ending == "stall":
        await anyio.sleep_forever()
