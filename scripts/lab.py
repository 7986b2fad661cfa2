"""Open JupyterLab at the first chapter, on this machine only, with its token.

python scripts/lab.py PORT [BOOK] [--no-browser]      BOOK is a language: en, or zh
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = "00_start.ipynb"
ENGLISH = "en"
HOST = "127.0.0.1"


def trouble(port: str) -> str | None:
    """Why JupyterLab cannot start on `port`, with what to do about it, or None."""
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return f"PORT={port} is no port number: try make lab PORT=8889"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, int(port)))
        except PermissionError:
            return f"port {port} needs more rights than you have: try make lab PORT=8889"
        except OSError:
            return f"port {port} is in use, by another JupyterLab perhaps: try make lab PORT={int(port) % 65535 + 1}"
    return None


def books(root: Path = ROOT) -> list[str]:
    """The languages of the book: every folder of notebooks that has a first chapter. English comes first."""
    return [ENGLISH, *sorted(path.parent.name for path in (root / "notebooks").glob(f"[a-z][a-z]/{FIRST}"))]


def start(book: str) -> str:
    """The first chapter of a book, relative to the project."""
    return f"notebooks/{FIRST}" if book == ENGLISH else f"notebooks/{book}/{FIRST}"


def no_book(book: str) -> str | None:
    """Why this book cannot be opened, with what to do about it, or None."""
    if book not in books():
        return f"there is no book in {book!r}: try BOOK={' or BOOK='.join(books())}"
    if not (ROOT / start(book)).is_file():
        return f"{start(book)} is missing: make book builds it"
    return None


def command(port: str, *options: str, book: str = ENGLISH) -> list[str]:
    """The command line of JupyterLab. As root it must be allowed by name; the address and the token stay."""
    root = ["--allow-root"] if os.geteuid() == 0 else []
    return [
        *(
            sys.executable,
            "-m",
            "jupyterlab",
            f"--ServerApp.root_dir={ROOT}",
            f"--LabApp.default_url=/lab/tree/{start(book)}",
            f"--LabApp.workspaces_dir={ROOT / '.agentlab/workspaces'}",  # no tabs of other projects
        ),
        *(f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0", *root, *options),
    ]


def main() -> int:
    port, *options = sys.argv[1:]
    book = options.pop(0) if options and not options[0].startswith("-") else ENGLISH
    if why := trouble(port) or no_book(book):
        print(f"agentlab: {why}", file=sys.stderr)
        return 1
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel wins over one in the home folder
    os.environ.setdefault("AGENTLAB_PROGRESS", str(ROOT / ".agentlab/progress.json"))  # of check.progress()
    if book != ENGLISH:
        os.environ["AGENTLAB_LANGUAGE"] = book  # for notebooks that stand in no book's folder
    os.chdir(ROOT)
    os.execv(sys.executable, command(port, *options, book=book))


if __name__ == "__main__":
    sys.exit(main())
