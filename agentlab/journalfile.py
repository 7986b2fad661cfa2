"""JSON Lines on disk, and what may happen to them: a crash in the middle of a record, a full disk, a second writer.

    record -> encode -> one write, newline included -> [sync: fdatasync, shared by all who wait] -> acknowledged
    file -> lines, split on LF only -> records; a line that cannot be read costs itself, and is named by its number

Bytes that are in the file are never changed and never cut. A torn record at the end gets a newline before the next one
is written, and then is one broken line; a whole record that only lacks its newline is saved by the same byte. A
broken line uses up one sequence number, so that no number is ever given out twice. Whatever breaks off a write, Ctrl+C
too, the end of the file is looked at again before the next one: it alone knows what got there.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from agentlab import jsonio
from agentlab.errors import AgentLabError

try:
    import fcntl
except ImportError:  # Windows: no lock
    fcntl = None  # type: ignore[assignment]

try:
    from msgspec.json import Encoder

    _fast = Encoder().encode
except ImportError:  # emscripten

    def _fast(obj: Any, /) -> bytes:
        return jsonio.dumps(obj).encode()


ID = re.compile(r"[A-Za-z0-9_-]{1,128}")  # of a session: the whole of it must match
MAX_SEQ = 2**53 - 1  # what every JSON reader can hold
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_SIZE, _SEQ = 0, 2
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BLANK = b"\0 \t\r\n"
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_forks = 0  # how many forks lie between the first process and this one: cheaper to ask than the pid
_datasync = getattr(os, "fdatasync", os.fsync)


class JournalError(AgentLabError):
    """A session's file cannot be read or written, or the session is not there. The message says what was kept."""


class JournalBusy(JournalError):
    """Another writer holds the session."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def encode(record: dict[str, Any]) -> bytes:
    """One record as a line of compact JSON, UTF-8, LF at its end. Raises JournalError for what JSON cannot hold."""
    try:
        return _fast(record) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError):  # lone surrogates and very large integers too
        try:
            return jsonio.dumps(record).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise JournalError(f"This event cannot be written as JSON ({error}): nothing was written.") from None


def read(path: Path, *, start: int = 0) -> Iterator[dict[str, Any]]:
    """The records of a file in their order, one line in memory at a time. Blank lines and runs of NUL are left out.

    What a line holds beside whole records comes as `{"type": "broken", "line": n}`, n counted from 1. Reading begins at
    byte `start`, and so does the counting.
    Raises JournalError when the file is not there, is no regular file, or cannot be read.
    """
    try:
        with open(path, "rb", buffering=1 << 16, opener=_no_link) as file:
            _require_file(file.fileno(), path)
            file.seek(start)
            yield from records(file)
    except OSError as error:
        raise _failed("read", path, error) from None


def records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """What `read` gives, for lines that are at hand."""
    for number, line in enumerate(lines, 1):
        try:
            record = jsonio.loads(line)
        except ValueError:
            record = None
        if type(record) is dict:
            yield record
        else:
            yield from _salvage(line, number)


def _salvage(line: bytes, number: int) -> Iterator[dict[str, Any]]:
    """The whole records at the start of a line that is not one record, and a broken one for anything else in it.

    Writers without a lock leave two records on one line; a power failure leaves runs of NUL before or behind one.
    """
    text = line.strip(_BLANK).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    at = 0
    while at < len(text):
        try:
            record, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            yield {"type": "broken", "line": number}
            return
        yield record
        while at < len(text) and text[at] in "\0 \t\r":
            at += 1


def seq_of(record: dict[str, Any], expected: int) -> int:
    """The sequence number of a record; the expected one where it has none that is an integer from 1 to `MAX_SEQ`."""
    seq = record.get("seq")
    return seq if type(seq) is int and 0 < seq <= MAX_SEQ else expected


class Appender:
    """The one writer of a file, from construction to `close`. The file must be there. Threads may share it.

    Raises JournalBusy when somebody else is writing, JournalError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._forks = path, _forks
        try:
            self._file = open(path, "a+b", buffering=0, opener=_no_create)  # noqa: SIM115 (held until close)
        except OSError as error:
            raise _failed("opened for writing", path, error) from None
        try:
            self._lock()
            self._fd = self._file.fileno()
            _require_file(self._fd, path)
            self._end = (0, False, 1)  # the file's size, whether its last line is torn, the next number: all known once
            self._look()
        except BaseException:
            self._file.close()
            raise
        self._syncing = Lock()
        self._synced = self._end[_SIZE]
        self._lost = 0

    @property
    def inherited(self) -> bool:
        """Whether this process is a child that was forked off the writer."""
        return self._forks != _forks

    @property
    def next_seq(self) -> int:
        """The number of the next record. Raises JournalError when the file has to be looked at and cannot be."""
        if not self._sure:
            self._look()
        return self._end[_SEQ]

    def _lock(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalBusy(
                    f"Somebody else is writing to session {self.path.stem!r}: nothing was written. Close it there "
                    "first. Until then it can be read here, and fork() makes a copy to go on with."
                ) from None
        if not os.path.samestat(os.fstat(self._file.fileno()), os.lstat(self.path)):
            raise JournalError(f"Session {self.path.stem!r} was replaced while it was opened. Open it again.")

    def _look(self) -> None:
        """Take in what stands behind the end that is known: its size, its numbers, and whether it is torn."""
        self._sure = False
        known, _, seq = self._end
        try:
            for record in read(self.path, start=known):  # one that is broken has no number, and uses up one
                seq = max(seq, seq_of(record, seq) + 1)
            size = os.fstat(self._fd).st_size
            torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        except OSError as error:
            raise _failed("read", self.path, error) from None
        self._end = (size, torn, seq)
        self._sure = True

    def write(self, line: bytes) -> int:
        """Write one line, which uses up `next_seq`, and return the file's size. It survives this process, no power cut.

        Raises JournalError when the disk takes none of it, or only a part: that part is closed off by the next write.
        """
        if not self._sure:
            self._look()
        size, torn, seq = self._end
        data = b"\n" + line if torn else line
        self._sure = False  # until all is done: what comes between may be Ctrl+C
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise _failed("written to", self.path, error) from None
        if written < len(data):
            raise _failed("written to", self.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        size += written
        self._end = (size, False, seq + 1)
        self._sure = True
        return size

    def sync(self, size: int) -> None:
        """Return when the first `size` bytes are on the disk. Threads that wait share one fdatasync (group commit).

        Raises JournalError when the disk fails; what it had not acknowledged may be lost then, and is never promised.
        """
        with self._syncing:
            if self._synced >= size:
                return
            ready = self._end[_SIZE]
            try:
                if size <= self._lost:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                _datasync(self._fd)
            except OSError as error:
                self._lost = max(self._lost, ready)
                raise _failed("synced", self.path, error) from None
            self._synced = ready

    def close(self, *, sync: bool = False) -> None:
        """Let go of the file and its lock, with all of it on the disk if asked. Raises as `sync` does, but lets go.

        The lock is given back by name: closing alone would leave it with every child that was forked off meanwhile.
        """
        try:
            if sync:
                self.sync(self._end[_SIZE])
        finally:
            with self._syncing:
                if fcntl is not None and not self.inherited and not self._file.closed:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                self._file.close()


def publish(path: Path, lines: Iterable[bytes], *, sync: bool) -> None:
    """Make a new file out of these lines: all of it or nothing, never over a file that is there.

    It is written under a hidden name and then given its own. With `sync` both steps are on the disk when this returns.
    Raises JournalError when the name is taken or the disk fails; nothing is left behind then.
    """
    part = ""
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path.parent, _FOLDER_MODE)
        fd, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            file.writelines(lines)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        _take_name(part, path)
        if sync:
            _sync_folder(path.parent)
    except FileExistsError:
        raise JournalError(f"There is a session {path.stem!r} already. Open it, or choose another id.") from None
    except OSError as error:
        raise _failed("created", path, error) from None
    finally:
        if part:
            with suppress(OSError):
                os.unlink(part)


def _take_name(part: str, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        os.rename(part, path)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINK)


def _no_create(path: str, flags: int) -> int:
    return os.open(path, (flags & ~os.O_CREAT) | _NO_LINK)


def _require_file(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise JournalError(f"{path.name} is no regular file, so it is no session. Move it away.")


def _failed(what: str, path: Path, error: OSError) -> JournalError:
    name = path.stem
    if isinstance(error, FileNotFoundError):
        return JournalError(f"There is no session {name!r} in this folder. sessions(root) lists those that there are.")
    if error.errno == errno.ELOOP:
        return JournalError(f"{path.name} is a symbolic link, and a session is not looked for elsewhere. Move it away.")
    if error.errno in _FULL:
        return JournalError(
            f"Session {name!r} could not be {what}: no space. All before it is kept; make room, try again."
        )
    reason = (error.strerror or type(error).__name__).lower()
    return JournalError(f"Session {name!r} could not be {what} ({reason}). What was acknowledged before is kept.")
