"""The command line: `agentlab chat`, the agent; `audit`, for session files; `serve`, the offline provider on a port.

Errors are one line on stderr, without a traceback, and exit code 1; a wrong command line is exit code 2.
"""

from __future__ import annotations

import argparse
import os
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

    chat = commands.add_parser(
        "chat",
        help="talk to the agent, which works in a folder",
        description="Talk to the agent. AGENT_BASE_URL, AGENT_API_KEY and AGENT_MODEL name a provider; without them "
        "the offline model answers. Through a pipe every line is said in turn, and what would be asked is denied.",
    )
    chat.add_argument("--folder", default=".", help="where its tools work, and its sessions are kept (%(default)s)")
    chat.add_argument("--resume", metavar="ID", help="go on with a session; the start of its id will do")
    chat.add_argument("--offline", action="store_true", help="the offline model, whatever the environment says")
    chat.add_argument("--model", help="another model than AGENT_MODEL, or than the session's")
    chat.add_argument("--prices", metavar="FILE", help="a price list (JSON), for /cost in money")
    chat.set_defaults(run=_chat)

    audit = commands.add_parser("audit", help="what session files show, and what could have been saved", add_help=False)
    audit.set_defaults(run=lambda options: 2)  # main hands its arguments on as they are
    return parser


def _chat(options: argparse.Namespace) -> int:
    from agentlab import chat

    return chat.main(
        folder=options.folder,
        resume=options.resume,
        offline=options.offline,
        model=options.model,
        price_list=options.prices,
    )


def _serve(options: argparse.Namespace) -> None:
    from agentlab.simulator import Simulator, serve

    with serve(Simulator(dialect=options.dialect, clock=time.time), host=options.host, port=options.port) as server:
        url = server.url.removesuffix("/v1") if options.dialect == "anthropic" else server.url  # its SDK adds /v1
        print(f"offline provider ({options.dialect}) at {url}, Ctrl-C stops it", flush=True)
        threading.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are those of the process by default. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["audit"]:
        from agentlab import auditcli

        return auditcli.main(arguments[1:])
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except AgentLabError as error:
        print(f"agentlab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of stdout has gone: nothing is left to tell, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
