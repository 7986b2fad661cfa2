"""A folder of files with whole tool outputs, so that only an excerpt of each has to stay in the context.

    folder/0001-9f2c41d07a.txt    a number, and a hash of the content: no part of a name comes from a model

A file gets its name only when it is complete: until then it is a hidden `.part` file, to which nothing points. Names
are taken exclusively, so two stores on one folder never share one, and a name that is used again after a collection
stands for the same bytes. The folder is for its owner only; one that is a symbolic link is refused.
(Seed 003, "saveSpill"; its names are a time and a random number.)
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from agentlab.errors import AgentLabError

KEEP_CHARS = 16_000
MAX_BYTES = 4 * 1024**3
_BLOCK = 1 << 20
_NAME = re.compile(r"([0-9]{4,12})-[0-9a-f]{10}\.txt")
_PART = re.compile(r"\.spill-.+\.part")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


class SpillError(AgentLabError):
    """An output could not be saved. `reason` is a short phrase, such as "no space"."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The full output could not be saved ({reason}). Make room, or give SpillStore another folder."
        )
        self.reason = reason


@dataclass(frozen=True)
class Saved:
    """One complete file. `path` is the way to it as the model may use it; the sizes are those of its text."""

    path: str
    chars: int
    bytes: int
    lines: int


@dataclass(frozen=True)
class Ends:
    """The first and the last characters of a text that is too large to hold, and its whole size."""

    head: str
    tail: str
    chars: int
    bytes: int


@dataclass(frozen=True)
class Entry:
    """A file in the folder. `modified` is in seconds since the epoch; `part` says that it is not complete."""

    name: str
    bytes: int
    modified: float
    part: bool = False


class SpillStore:
    """Saves outputs as files in the folder `root`, which is made at the first one.

    Paths are told relative to `base`, the folder in which the model's tools work; without it, as `root` was given. An
    output of more than `max_bytes` is not saved: a command that never ends must not fill the disk.
    """

    _names: ClassVar[re.Pattern[str]] = _NAME  # of the files that are this store's own

    def __init__(self, root: str | Path, *, base: str | Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        if "\0" in str(root):
            raise AgentLabError("The folder of a SpillStore must not have a NUL in its name.")
        self.max_bytes, self.base = max_bytes, base
        self.root = Path(os.path.abspath(root))
        relative = os.path.relpath(self.root, base) if base is not None else os.path.normpath(root)
        self._shown = self.root if base is not None and relative.startswith("..") else Path(relative)

    def save(self, text: str) -> Saved:
        """Write a text as UTF-8, byte for byte, but U+FFFD for a lone surrogate. Raises SpillError; nothing is left."""
        with self.open(keep=0) as sink:
            for at in range(0, len(text), _BLOCK):
                sink.write_text(text[at : at + _BLOCK])
            return sink.close()

    def open(self, *, keep: int = KEEP_CHARS) -> Sink:
        """Start a file that arrives in pieces. `keep` characters of each end stay in memory for an excerpt."""
        return Sink(self, keep)

    def shown_from(self, folder: str | Path) -> bool:
        """Whether its paths lead into the store for whoever reads them from this folder."""
        return Path(os.path.abspath(Path(folder) / self._shown)) in (self.root, self.root.resolve())

    def find(self, path: str) -> Saved | None:
        """The file that a pointer names, or None when this store has none such."""
        return found[0] if (found := self.read_ends(path, keep=0)) else None

    def read_ends(self, path: str, *, keep: int = KEEP_CHARS) -> tuple[Saved, Ends] | None:
        """The file that a pointer names, and `keep` characters of each end of its text; None for no file of ours."""
        name = name_of(path)
        if not self._names.fullmatch(name):
            return None
        tally = _Tally(keep)
        try:
            with open(self.root / name, "rb", opener=_no_link) as file:
                while block := file.read(_BLOCK):
                    tally.add(block)
        except OSError:
            return None
        tally.add(b"", final=True)
        return self._saved(name, tally), tally.ends()

    def entries(self) -> list[Entry]:
        """What the folder holds of this store, by name. Foreign files are left out. Raises SpillError."""
        return sorted(self._scan(), key=lambda entry: entry.name)

    def remove(self, name: str) -> bool:
        """Delete one file of the store; False when that failed, or when the name is none of the store's."""
        if not (self._names.fullmatch(name) or _PART.fullmatch(name)) or name_of(name) != name:
            return False
        try:
            (self.root / name).unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _scan(self) -> Iterator[Entry]:
        try:
            require_folder(self.root)
            with os.scandir(self.root) as found:
                for file in found:
                    part = _PART.fullmatch(file.name) is not None
                    if part or self._names.fullmatch(file.name):
                        with suppress(FileNotFoundError):
                            info = file.stat(follow_symlinks=False)
                            yield Entry(file.name, info.st_size, info.st_mtime, part)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SpillError(reason_of(error)) from None

    def _begin(self) -> tuple[int, str]:
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(self.root, 0o700)
        require_folder(self.root)
        return tempfile.mkstemp(prefix=".spill-", suffix=".part", dir=self.root)

    def _publish(self, part: str, digest: str) -> str:
        """Give a complete file its name, and return that."""
        taken = [int(found[1]) for name in os.listdir(self.root) if (found := _NAME.fullmatch(name))]
        number = max(taken, default=0)
        while True:
            number += 1
            name = f"{number:04d}-{digest}.txt"
            try:
                os.close(os.open(self.root / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:  # another store was faster
                continue
            try:
                os.replace(part, self.root / name)
            except BaseException:
                os.unlink(self.root / name)
                raise
            return name

    def _saved(self, name: str, tally: _Tally) -> Saved:
        return Saved((self._shown / name).as_posix(), tally.chars, tally.bytes, tally.lines)


class Sink:
    """A file that arrives in pieces. Memory stays bounded; leaving its `with` block without `close()` drops the file.

    A failing disk does not disturb the writer: the half file is removed at once, counting goes on, and `close` raises.
    """

    def __init__(self, store: SpillStore, keep: int) -> None:
        self._store = store
        self._tally = _Tally(keep)
        self._hash = hashlib.blake2b(digest_size=5)
        self._failure: str | None = None
        self._part = ""
        try:
            fd, self._part = store._begin()
            self._file = os.fdopen(fd, "wb")
        except (OSError, SpillError) as error:
            self._fail(error)

    def write(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere. Never raises for the disk's sake."""
        self._tally.add(data)
        self._put(data)

    def write_text(self, text: str) -> None:
        """Take text, as UTF-8. Do not mix it with bytes that end inside a character."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            data = (text := encodable(text)).encode()
        self._tally.count(data, text, len(data))
        self._put(data)

    def _put(self, data: bytes) -> None:
        if self._failure is None:
            try:
                self._file.write(data)
                self._hash.update(data)
            except OSError as error:
                self._fail(error)
            if self._tally.bytes > self._store.max_bytes:
                self._fail(SpillError(f"it has more than {self._store.max_bytes:,} bytes"))

    def close(self) -> Saved:
        """Complete the file. Raises SpillError when it, or an earlier write, failed."""
        self._tally.add(b"", final=True)
        if self._failure is None:
            try:
                self._file.close()
                name = self._store._publish(self._part, self._hash.hexdigest())
            except OSError as error:
                self._fail(error)
            else:
                self._failure = "it was closed already"
                self._part = ""
                return self._store._saved(name, self._tally)
        raise SpillError(self._failure or "")

    def ends(self) -> Ends:
        """What an excerpt needs, at any time: bytes that are no UTF-8 read as U+FFFD."""
        return self._tally.ends()

    def _fail(self, error: OSError | SpillError) -> None:
        self._failure = error.reason if isinstance(error, SpillError) else reason_of(error)
        self._drop()

    def _drop(self) -> None:
        if self._part:
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                os.unlink(self._part)
            self._part = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()
        self._failure = self._failure or "it was not closed"


class _Tally:
    """Counts characters, bytes and lines of UTF-8 that comes in pieces, and keeps both ends of its text."""

    def __init__(self, keep: int) -> None:
        self.keep, self.head, self.tail = keep, "", ""
        self.chars = self.bytes = self.utf8 = self.lines = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._open = False

    def add(self, data: bytes, *, final: bool = False) -> None:
        text = self._decode(data, final)
        self.count(data, text, len(text) if text.isascii() else len(text.encode()))

    def ends(self) -> Ends:
        return Ends(self.head, self.tail[max(0, len(self.tail) - self.keep) :], self.chars, self.utf8)

    def count(self, data: bytes, text: str, utf8: int) -> None:
        self.chars += len(text)
        self.utf8 += utf8
        self.head += text[: self.keep - len(self.head)]
        self.tail += text[-self.keep :] if self.keep else ""
        if len(self.tail) > 8 * self.keep:  # seldom, so that small pieces stay cheap
            self.tail = self.tail[-self.keep :]
        if data:
            self.bytes += len(data)
            self.lines += data.count(b"\n") + (not self._open)
            self._open = not data.endswith(b"\n")
            self.lines -= not self._open


def encodable(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text)
    return text


def name_of(path: str) -> str:
    """The last part of a path, whichever slashes it has."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def require_folder(path: Path) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise SpillError(f"{path.name} is a symbolic link")
    if not stat.S_ISDIR(mode):
        raise SpillError(f"{path.name} is a file, not a folder")


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def reason_of(error: OSError) -> str:
    return "no space" if error.errno in _FULL else (error.strerror or type(error).__name__).lower()
