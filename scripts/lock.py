"""Write requirements.lock anew: one file for every supported Python and platform, with the newest versions.

It is used as constraints (pip install -c), so an install takes from it only what it needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = [
    "--universal",
    "--python-version=3.11",
    "--all-extras",
    "--no-annotate",
    "--custom-compile-command=make lock",
]
LINE = re.compile(r"[a-z0-9-]+==[a-z0-9.+!]+( ; [\w\s.<>!='()]+)?")


def foreign(lock: str) -> list[str]:
    """Lines that are neither a comment nor `name==version ; marker`, such as an index, an option or a path."""
    return [line for line in lock.splitlines() if not line.startswith("#") and not LINE.fullmatch(line)]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        tools, lock = Path(folder, "tools"), Path(folder, "requirements.lock")
        venv.create(tools, with_pip=True)
        try:
            subprocess.run([tools / "bin/pip", "install", "-q", "--disable-pip-version-check", "uv"], check=True)
            uv = [str(tools / "bin/uv"), "pip", "compile", "-q", *OPTIONS, "pyproject.toml", "-o", str(lock)]
            subprocess.run(uv, cwd=ROOT, check=True)
        except subprocess.CalledProcessError:
            print("agentlab: no new lock, the reason is above; the old one stays", file=sys.stderr)
            return 1
        text = lock.read_text()
    if odd := foreign(text):
        print(f"agentlab: no new lock, it would hold {odd[0]!r}; the old one stays", file=sys.stderr)
        return 1
    (ROOT / "requirements.lock").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
