"""Artifacts: a spill store whose files have ids, survive a power cut, and cannot land in another folder.

    text -> hidden .part file -> fsync -> hard link to tool-result-<id>.txt -> fsync of the folder
    history             the same way                  -> transcript-<id>.jsonl

A hard link takes a name exclusively: a file has its name only when all of it is on the disk, and an id that comes twice
fails instead of overwriting. The folder is opened once for each file, and everything happens inside of what was
opened: when the path is swapped for a symbolic link meanwhile, nothing is written behind the link.
(Seed 001, "writeExclusiveAtomic" and "ensureSafeDirectory".)
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from agentlab.messages import Message, jsonl
from agentlab.spillstore import Saved, SpillError, SpillStore, encodable, reason_of, require_folder

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_INSIDE = {os.open, os.link, os.unlink} <= os.supports_dir_fd  # not on Windows: there the path is looked at again
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def new_id() -> str:
    """An id that no other file has: a random UUID."""
    return str(uuid.uuid4())


class ArtifactStore(SpillStore):
    """A `SpillStore` for whole tool results and for transcripts, each a file of its own id from `ids()`.

    With a `base` the folder must lie inside of it, symbolic links followed. Raises SpillError for one that does not,
    at once or when something is to be saved. A file that is written is on the disk.
    """

    _names: ClassVar[re.Pattern[str]] = re.compile(
        r"tool-result-[A-Za-z0-9_-]{1,128}\.txt|transcript-[A-Za-z0-9_-]{1,128}\.jsonl"
        r"|([0-9]{4,12})-[0-9a-f]{10}\.txt"
    )

    def __init__(self, root: str | Path, *, base: str | Path | None = None, ids: Callable[[], str] = new_id) -> None:
        super().__init__(root, base=base)
        self.base = None if base is None else Path(os.path.abspath(base))
        self._ids = ids
        if self.base is not None and not self.root.is_relative_to(self.base):
            raise SpillError("its folder lies outside of the workspace")

    def _begin(self) -> tuple[int, str]:
        self._require_inside()
        return super()._begin()

    def save(self, text: str) -> Saved:
        """Write a tool result, byte for byte, but U+FFFD for a lone surrogate. Raises SpillError; nothing is left."""
        text = encodable(text)
        return self._write("tool-result-{}.txt", text, text.encode())

    def save_transcript(self, history: Sequence[Message]) -> Saved:
        """Write a history as canonical JSON Lines. Raises SpillError; nothing is left then."""
        try:
            data = jsonl(history)
        except (TypeError, ValueError) as error:
            raise SpillError(f"a message is no JSON: {error}") from None
        return self._write("transcript-{}.jsonl", data.decode(), data)

    def _write(self, template: str, text: str, data: bytes) -> Saved:
        try:
            id: Any = self._ids()
        except Exception as error:
            raise SpillError(f"the function that names the files failed: {type(error).__name__}") from error
        if not isinstance(id, str) or not _ID.fullmatch(id):
            shown = repr(id[:40]) if isinstance(id, str) else type(id).__name__
            raise SpillError(f"{shown} is no id for a file: use letters, digits, _ and -")
        name = template.format(id)
        try:
            self._publish_data(name, data)
        except FileExistsError:
            raise SpillError(f"there is a file {name} already, and it was not touched") from None
        except OSError as error:
            raise SpillError(reason_of(error)) from None
        except ValueError:
            raise SpillError("its path has characters that no file system takes") from None
        lines = data.count(b"\n") + (not data.endswith(b"\n")) if data else 0
        return Saved((self._shown / name).as_posix(), len(text), len(data), lines)

    def _publish_data(self, name: str, data: bytes) -> None:
        with self._opened() as folder:
            within = self.root if folder is None else Path()
            part, final = within / f".spill-{name}.part", within / name
            fd = os.open(part, _NEW, 0o600, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                _take_name(part, final, folder)
                try:
                    self._require_same(folder)
                    if folder is not None:
                        os.fsync(folder)
                except BaseException:
                    os.unlink(final, dir_fd=folder)
                    raise
            finally:
                with suppress(OSError):
                    os.unlink(part, dir_fd=folder)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The folder, made if need be and looked at, as a file descriptor; None where the system has none such."""
        self._require_inside()
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise SpillError(f"the way to the folder {self.root.name} leads through a file") from None
        with suppress(FileExistsError):
            os.mkdir(self.root, 0o700)
        require_folder(self.root)
        folder = os.open(self.root, _FOLDER) if _INSIDE else None
        try:
            self._require_same(folder)
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _require_same(self, folder: int | None) -> None:
        """That the path still leads to the folder that was opened, and into the workspace."""
        require_folder(self.root)
        if folder is not None and not os.path.samestat(os.fstat(folder), os.lstat(self.root)):
            raise SpillError(f"{self.root.name} was replaced while it was written to")
        self._require_inside()

    def _require_inside(self) -> None:
        if self.base is None:
            return
        if not Path(os.path.realpath(self.root)).is_relative_to(os.path.realpath(self.base)):
            raise SpillError(f"{self.root.name} leads out of the workspace")


def _take_name(part: Path, final: Path, folder: int | None) -> None:
    """Give a complete file its name. Raises FileExistsError when that is taken."""
    try:
        os.link(part, final, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(final, _NEW, 0o600, dir_fd=folder))
        try:
            os.replace(part, final, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(final, dir_fd=folder)
            raise
