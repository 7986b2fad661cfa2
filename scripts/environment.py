"""Make .venv ready, and make it anew when an earlier run left it half done. Standard library only.

    python scripts/environment.py lab     JupyterLab and agentlab
    python scripts/environment.py test    the same, and what the tests and checks need

A stamp inside .venv says with which Python, in which folder and from which lock it was filled. It is taken away
before anything changes and written last, so an environment without its stamp was never finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"lab": "lab,serve,chat", "test": "lab,serve,chat,test"}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# JupyterLab without its news pop-up, and without the widgets' state in notebooks, which differs in every run.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"},
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": False},
}


def lock_hash(root: Path) -> str:
    """What the packages of an environment depend on, as one hash."""
    return hashlib.sha256(
        (root / "pyproject.toml").read_bytes() + (root / "requirements.lock").read_bytes()
    ).hexdigest()


def read_stamp(root: Path) -> dict[str, Any]:
    """The stamp of `root`/.venv, or {} when there is none that can be read."""
    try:
        stamp = json.loads((root / ".venv" / "agentlab.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(root: Path, groups: list[str]) -> None:
    """Say that `groups` are installed, from today's lock, by this Python, in this folder."""
    stamp = {"python": PYTHON, "folder": str(root), "lock": lock_hash(root), "groups": groups}
    (root / ".venv" / "agentlab.json").write_text(json.dumps(stamp))


def unusable(root: Path) -> str | None:
    """Why `root`/.venv cannot be used or repaired, or None when it can."""
    venv, stamp = root / ".venv", read_stamp(root)
    if not venv.exists():
        return "there is no .venv yet"
    if not stamp:
        return ".venv was never finished"
    if stamp.get("folder") != str(root):
        return ".venv was made in another folder"
    if stamp.get("python") != PYTHON:
        return f".venv was made by Python {stamp.get('python')}, this is {PYTHON}"
    try:
        subprocess.run([venv / "bin/python", "-c", "pass"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ".venv has a Python that no longer runs"
    return None


def make(root: Path, gate: int) -> None:
    """An empty environment with pip in `root`/.venv. Whatever was there is removed."""
    venv = root / ".venv"
    if venv.is_symlink() or venv.is_file():
        venv.unlink()
    base = getattr(sys, "_base_executable", sys.executable)  # this Python may itself be the one in .venv
    subprocess.run([base, "-m", "venv", "--clear", venv], check=True, pass_fds=[gate])


def install(root: Path, group: str, gate: int) -> None:
    """Install agentlab and the packages of `group` at the versions of the lock; a terminal shows how far it is.

    The stamp is away while pip works. A pip that gives up before it changes anything, say without a network, gets it
    back.
    """
    stamp = root / ".venv" / "agentlab.json"
    before = stamp.read_bytes() if stamp.exists() else b""
    stamp.unlink(missing_ok=True)
    pip = [str(root / ".venv/bin/python"), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    what = ["--progress-bar", "off", "--no-compile", "-c", "requirements.lock", "-e", f".[{EXTRAS[group]}]"]
    terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns - 1
    changed = False
    with subprocess.Popen([*pip, *what], cwd=root, stdout=subprocess.PIPE, text=True, pass_fds=[gate]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            changed = changed or line.startswith("Installing collected packages")
            if terminal and line.startswith(("Collecting", "Installing")):
                print("\r\x1b[K" + f"  {line.strip()}"[:width], end="", flush=True)
    if terminal:
        print("\r\x1b[K", end="")
    if process.returncode:
        if before and not changed:
            stamp.write_bytes(before)
        raise subprocess.CalledProcessError(process.returncode, "pip")
    # Not by pip, which compiles on one core. A few packages ship templates that do not compile: no failure.
    compiler = [str(root / ".venv/bin/python"), "-m", "compileall", "-qq", "-j0", "-x/tests/", str(root / ".venv/lib")]
    subprocess.run(compiler, stdout=subprocess.DEVNULL, check=False, pass_fds=[gate])
    settings = root / ".venv/share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(SETTINGS))
    write_stamp(root, [group])


def ready(root: Path, group: str, gate: int) -> None:
    """Bring `root`/.venv to where `group` is installed from today's lock. Costs nothing when it is.

    `gate` is the lock file's descriptor. Children keep it open, so what a killed run left behind still holds the lock.
    """
    why = unusable(root)
    stamp = {} if why else read_stamp(root)
    if stamp.get("lock") == lock_hash(root) and (group in stamp["groups"] or "test" in stamp["groups"]):
        return
    started = time.monotonic()
    print(f"agentlab: {why or 'packages are missing or new'}; installing into .venv, about a minute ...", flush=True)
    if why:
        make(root, gate)
    install(root, group, gate)
    print(f"agentlab: .venv is ready ({time.monotonic() - started:.0f} s)", flush=True)


def main() -> int:
    try:
        with (ROOT / "pyproject.toml").open() as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("agentlab: waiting for another install in this folder ...", flush=True)
                fcntl.flock(gate, fcntl.LOCK_EX)
            ready(ROOT, sys.argv[1], gate.fileno())
    except subprocess.CalledProcessError:
        print("agentlab: the install failed, its reason is above; the same command tries again", file=sys.stderr)
    except OSError as error:
        print(f"agentlab: cannot make .venv: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nagentlab: interrupted; the same command starts again", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
