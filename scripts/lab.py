"""Open JupyterLab at the first chapter, on this machine only, with its token.

python scripts/lab.py PORT [--no-browser]
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = "notebooks/00_start.ipynb"
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
    if not (ROOT / START).is_file():
        return f"{START} is missing: make book builds it"
    return None


def command(port: str, *options: str) -> list[str]:
    """The command line of JupyterLab. As root it must be allowed by name; the address and the token stay."""
    root = ["--allow-root"] if os.geteuid() == 0 else []
    return [
        *(
            sys.executable,
            "-m",
            "jupyterlab",
            f"--ServerApp.root_dir={ROOT}",
            f"--LabApp.default_url=/lab/tree/{START}",
        ),
        *(f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0", *root, *options),
    ]


def main() -> int:
    port, *options = sys.argv[1:]
    if why := trouble(port):
        print(f"agentlab: {why}", file=sys.stderr)
        return 1
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel wins over one in the home folder
    os.environ.setdefault("AGENTLAB_PROGRESS", str(ROOT / ".agentlab/progress.json"))  # of check.progress()
    os.chdir(ROOT)
    os.execv(sys.executable, command(port, *options))


if __name__ == "__main__":
    sys.exit(main())
