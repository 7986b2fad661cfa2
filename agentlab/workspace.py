"""Five tools for files and the shell, kept inside one folder.

    read_file   lines with their numbers; goes on where the last answer ended, inside one long line too
    write_file  the whole file, at once or not at all
    edit_file   a literal replacement that must match exactly once; several at once, all or nothing
    list_dir    what is in a folder, with types and sizes
    run_shell   one command, in its own session

Every failure is raised as ToolError, whose text tells the model what to do next. The four file tools refuse a path
that leads out of the folder, by `..` or by a symbolic link; a shell command can go anywhere, so it asks for permission.
(Seed 003, "tools"; its edit rule "exactly one match".)
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from agentlab import jsonio, process
from agentlab.errors import AgentLabError, ToolError
from agentlab.spill import OutputBudget, SpillStore
from agentlab.spool import Spool, Spooled
from agentlab.textfile import BOM, PAGE_CHARS, apply_edit, is_text, numbered, read_edit
from agentlab.tools import Output, Registry, Tool

SHELL_SECONDS = 30
SHELL_SECONDS_MAX = 600
READ_LINES = 800
PAGE_NOTE_CHARS = 200
LIST_ENTRIES = 500
EDIT_BYTES = 32 * 1024 * 1024
_NAME_CHARS = 200
_NEAR_ENTRIES = 2_000


class Workspace:
    """One folder and its five tools. `reach="anywhere"` opens the file tools to all paths, on purpose.

    `env` is the environment of shell commands: by default this process's, without variables that end in `API_KEY`.
    With a `store`, an output of any size is kept whole: what is too large for memory goes straight to a file there, and
    the model gets an excerpt of `budget.preview`. Without one, the middle of an output above 8 MiB is dropped. A page
    of `read_file` stays within `budget.per_result`, too. Raises AgentLabError when the folder does not exist, or when
    the model could not follow the store's pointers.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        reach: Literal["inside", "anywhere"] = "inside",
        env: Mapping[str, str] | None = None,
        store: SpillStore | None = None,
        budget: OutputBudget | None = None,
    ) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise AgentLabError(f"There is no folder {str(root)!r} to work in. Create it first.")
        self._reach = reach
        beyond = reach == "inside" and store and not store.root.resolve().is_relative_to(self.root)
        if store and (beyond or not store.shown_from(self.root)):
            raise AgentLabError(
                "The model cannot follow the pointers of this SpillStore from the workspace: give the store a folder "
                "inside of it, and base= the workspace's root."
            )
        self._store = store
        self._budget = budget or OutputBudget()
        inherited = {name: value for name, value in os.environ.items() if not name.upper().endswith("API_KEY")}
        self._env = inherited if env is None else dict(env)

    def tools(self) -> list[Tool]:
        """The five tools, for `Registry(workspace.tools())`."""
        registry = Registry()
        registry.tool(read_only=True, spillable=False)(self.read_file)
        registry.tool(self.write_file)
        registry.tool(self.edit_file)
        registry.tool(read_only=True)(self.list_dir)
        registry.tool(log=True)(self.run_shell)
        return [tool for name in registry.names() if (tool := registry.get(name))]

    def read_file(
        self,
        path: str,
        offset: Annotated[int, "first line, from 1"] = 1,
        limit: Annotated[int, "how many lines"] = READ_LINES,
        column: Annotated[int, "first character of each line, from 1: to go on inside a long line"] = 1,
    ) -> str:
        """Read a text file. Lines come with their numbers; the last line says how to go on."""
        offset, limit, column = (
            _whole("offset", offset, 1),
            _whole("limit", limit, READ_LINES),
            _whole("column", column, 1),
        )
        if min(offset, limit, column) < 1:
            raise ToolError("offset, limit and column count from 1. Send the call again with larger numbers.")
        with self._reading(path) as file:
            page = min(PAGE_CHARS, self._budget.per_result - PAGE_NOTE_CHARS)
            return numbered(
                _shown(path), file, offset=offset, limit=min(limit, READ_LINES), column=column, page_chars=page
            )

    def write_file(self, path: str, content: str) -> str:
        """Write a whole text file, replacing what was there. Missing folders are made."""
        data = jsonio.sendable(_text("content", content)).encode()
        if _text("path", path).endswith("/"):
            raise ToolError(f"{_shown(path)} names a folder. Give the file a name.")
        existed = self._replace(path, data)
        lines = len(content.split("\n")) - content.endswith("\n") if content else 0
        size = f"{lines} {'line' if lines == 1 else 'lines'}, {len(data)} bytes"
        return f"{'Replaced' if existed else 'Created'} {_shown(path)}: {size}."

    def edit_file(
        self,
        path: str,
        old_string: Annotated[str, "the text to replace, exactly as it is in the file"] = "",
        new_string: str | None = None,
        replace_all: Annotated[bool, "replace every match instead of the only one"] = False,
        edits: Annotated[list[dict[str, Any]], "several {old_string, new_string, replace_all}, in order"] | None = None,
    ) -> str:
        """Replace text in a file, literally. old_string must match exactly once, unless replace_all is true."""
        if not isinstance(edits, list | None):
            raise ToolError("edits must be a list of objects with old_string and new_string. Nothing was changed.")
        if edits and old_string:
            raise ToolError("Give either old_string or edits, not both. Nothing was changed.")
        single = {"old_string": old_string, "new_string": new_string, "replace_all": replace_all}
        named = [(f"edit {n}: ", edit) for n, edit in enumerate(edits, 1)] if edits else [("", single)]
        wanted = [(where, read_edit(edit, where)) for where, edit in named]
        with self._reading(path) as file:
            data = file.read(EDIT_BYTES + 1)
        name = _shown(path)
        if len(data) > EDIT_BYTES:
            raise ToolError(f"{name} is larger than {EDIT_BYTES:,} bytes. Edit it with run_shell.")
        if not is_text(data):
            raise ToolError(f"{name} is no UTF-8 text file. Edit it with run_shell.")
        text = data.decode("utf-8", "surrogateescape")  # foreign bytes come back as they were
        mark = BOM if text.startswith(BOM) else ""
        text = text.removeprefix(BOM)
        count = 0
        for earlier, (where, edit) in enumerate(wanted):
            text, replaced = apply_edit(text, edit, name=name, where=where, earlier=earlier)
            count += replaced
        self._replace(path, (mark + text).encode("utf-8", "surrogateescape"))
        return f"Edited {name}: {count} replacement{'s' * (count != 1)}."

    def list_dir(self, path: str = ".") -> str:
        """List a folder: folders first, then files with their sizes in bytes."""
        path = "." if path in (None, "") else path
        folder = self._resolve(path)
        name = _shown(path)
        with _telling(f"list {name}"):
            if not folder.exists():
                raise ToolError(f"There is no {name}. {self._near(folder)}")
            if not folder.is_dir():
                raise ToolError(f"{name} is a file, not a folder. Read it with read_file.")
            with os.scandir(folder) as found:
                entries = sorted((not _is_folder(entry), entry.name, entry) for entry in found)
        if not entries:
            return f"{name} is empty."
        files = sum(is_file for is_file, *_ in entries)
        lines = [f"{name}: {len(entries) - files} folders, {files} files"]
        lines += [_entry(entry) for *_, entry in entries[:LIST_ENTRIES]]
        if len(entries) > LIST_ENTRIES:
            more = len(entries) - LIST_ENTRIES
            lines.append(f"[{more} more entries are not shown: list a folder below, or use run_shell]")
        return "\n".join(lines)

    async def run_shell(
        self,
        command: str,
        timeout_s: Annotated[int, f"time limit in seconds, at most {SHELL_SECONDS_MAX}"] = SHELL_SECONDS,
    ) -> Output:
        """Run one shell command in the folder; returns stdout and stderr. Commands get no input."""
        if not _text("command", command).strip():
            raise ToolError("command must not be empty. Send the call again with a shell command.")
        seconds = min(max(_whole("timeout_s", timeout_s, SHELL_SECONDS), 1), SHELL_SECONDS_MAX)
        with Spool(self._store, self._budget) if self._store else nullcontext() as spool:
            try:
                ended = await process.run(command, cwd=self.root, timeout_s=seconds, env=self._env, into=spool)
            except (OSError, ValueError) as error:  # its folder is gone, it is too long, it holds a NUL
                why = error.strerror if isinstance(error, OSError) else "it holds characters that no command can hold"
                raise ToolError(f"The command was not started: {why}. Write a script file, and run that.") from None
            problem = _problem(ended.exit_code, seconds)
            left = "[something that the command had started was still running, and was ended with it]"
            ending = "\n".join(filter(None, [left if ended.left_running else "", problem]))
            if spool:
                said = spool.close("tail" if problem else "head", ending=ending, blank="(no output)")
            else:
                text = ended.output.rstrip("\n") or "(no output)"
                said = Spooled("\n".join(filter(None, [text, ending])))
        if problem:
            raise ToolError(said.text, output_path=said.path)
        return Output(said.text, said.path)

    def _resolve(self, path: str) -> Path:
        try:
            target = (self.root / _text("path", path)).resolve()
            if os.path.islink(target):
                raise RuntimeError("a loop of links")  # newer versions of Python leave that to us
        except (ValueError, OSError, RuntimeError):  # a NUL, a lone surrogate, a loop of links
            raise ToolError(f"{_shown(path)} is no usable path. Look for the right one with list_dir.") from None
        if self._reach == "inside" and not target.is_relative_to(self.root):
            raise ToolError(
                f"{_shown(path)} leads out of the workspace. Use a path inside of it, such as the ones of list_dir."
            )
        return target

    @contextmanager
    def _reading(self, path: str) -> Iterator[BinaryIO]:
        target = self._resolve(path)
        with _telling(f"read {_shown(path)}"):
            if not target.exists():
                raise ToolError(f"There is no file {_shown(path)}. {self._near(target)}")
            _require_file(path, target)
            with target.open("rb") as file:
                yield file

    def _near(self, missing: Path) -> str:
        """A hint where to look for it."""
        folder = next(parent for parent in missing.parents if parent.is_dir())
        if not folder.is_relative_to(self.root):
            return "Check the path."
        there = sorted(entry.name for entry in islice(folder.iterdir(), _NEAR_ENTRIES))
        if close := get_close_matches(missing.name, there):
            inside = folder.relative_to(self.root)
            return f"Did you mean {' or '.join(_shown((inside / name).as_posix()) for name in close)}?"
        return f"Look with list_dir({str(folder.relative_to(self.root))!r})."

    def _replace(self, path: str, data: bytes) -> bool:
        """Write beside the file, then rename: whatever fails, the old file is whole. Whether there was one."""
        target = self._resolve(path)
        with _telling(f"write {_shown(path)}", "Nothing was changed. "):
            if existed := target.exists():
                _require_file(path, target)
                if not os.access(target, os.W_OK):
                    raise ToolError(
                        f"{_shown(path)} is read-only. Nothing was changed. Ask the user, or write elsewhere."
                    )
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}")
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                if existed:
                    shutil.copymode(target, temporary)
                os.replace(temporary, target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return existed


@contextmanager
def _telling(doing: str, so_far: str = "") -> Iterator[None]:
    """What the system refuses, as text for the model."""
    try:
        yield
    except OSError as error:
        raise ToolError(
            f"Cannot {doing}: {error.strerror or error}. {so_far}Check the path with list_dir, or ask the user."
        ) from None


def _problem(exit_code: int | None, seconds: int) -> str:
    """What the model is told of a command that did not end well; "" when it did."""
    if exit_code is None:
        return f"[killed at the time limit of {seconds} s: give it a longer timeout_s, or less to do]"
    if exit_code < 0:
        return f"[ended by signal {-exit_code}: {signal.strsignal(-exit_code)}]"
    return f"[exit code {exit_code}]" if exit_code else ""


def _require_file(path: str, target: Path) -> None:
    """A pipe would wait for ever, and a device must not be replaced by a file."""
    if not target.is_file():
        kind = "a folder. Look into it with list_dir" if target.is_dir() else "no regular file. Use run_shell"
        raise ToolError(f"{_shown(path)} is {kind}.")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _entry(entry: os.DirEntry[str]) -> str:
    name = _shown(entry.name)
    try:
        if entry.is_symlink():
            return f"{name} -> {_shown(os.readlink(entry))}"
        if _is_folder(entry):
            return f"{name}/"
        return f"{name}  {entry.stat().st_size:,} bytes"
    except OSError as error:
        return f"{name}  ({error.strerror})"


def _shown(path: str) -> str:
    """A path as a short text of one line, whatever is in it."""
    short = path if len(path) <= _NAME_CHARS else f"{path[:_NAME_CHARS]}..."
    return short if short and short.isprintable() else repr(short)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ToolError(f"{name} must be text. Send the call again with a text.")
    return value


def _whole(name: str, value: Any, default: int) -> int:
    """A whole number as a model sends it: 3, 3.0 or "3"; null stands for the default."""
    if value is None:
        return default
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ToolError(f"{name} must be a whole number. Send the call again with one, or without {name}.")
    return value
