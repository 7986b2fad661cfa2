"""The command line: `agentlab serve` puts the offline provider behind a port, for any client that speaks to one.

Errors are one line on stderr, without a traceback, and exit code 1; a wrong command line is exit code 2.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from agentlab import __version__
from agentlab.errors import AgentLabError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help says more)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="agentlab", description="Mechanisms of coding agents, and a model that needs no key.")
    parser.add_argument("--version", action="version", version=f"agentlab {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    serve = commands.add_parser("serve", help="serve the offline provider over HTTP until Ctrl-C")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s: this machine only)")
    serve.add_argument("--port", type=int, default=8080, help="port to listen on (%(default)s); 0 takes a free one")
    serve.add_argument("--dialect", default="openai", help="whose API it speaks (%(default)s)")
    serve.set_defaults(run=_serve)
    return parser


def _serve(options: argparse.Namespace) -> None:
    from agentlab.simulator import Simulator, serve

    with serve(Simulator(dialect=options.dialect, clock=time.time), host=options.host, port=options.port) as server:
        url = server.url.removesuffix("/v1") if options.dialect == "anthropic" else server.url  # its SDK adds /v1
        print(f"offline provider ({options.dialect}) at {url}, Ctrl-C stops it", flush=True)
        threading.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are those of the process by default. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except AgentLabError as error:
        print(f"agentlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
