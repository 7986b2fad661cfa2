"""What every chapter needs beside the mechanism it opens: the project's data, and the code of a function to read."""

from __future__ import annotations

import inspect
import re
import textwrap
from html import escape
from pathlib import Path
from typing import Any

from agentlab.errors import AgentLabError
from agentlab.language import say

_DOCSTRING = re.compile(r'\n *r?"""(?:.|\n)*?"""')


def data(*parts: str) -> Path:
    """A file or folder below `data/` of the project, looked for in the working folder and those above it.

    The path is relative, so that nothing in a notebook shows where the project lies. Raises AgentLabError when there
    is none, as for a notebook that was moved out of the project.
    """
    folder = Path()
    for _ in range(len(Path.cwd().parts)):
        found = (folder / "data").joinpath(*parts)
        if found.exists():
            return found
        folder = folder / ".."
    wanted = Path("data", *parts).as_posix()
    raise AgentLabError(
        say("There is no {wanted} here or above: run the chapter from the project's notebooks folder.", wanted=wanted)
    )


class Source:
    """The code of a function or class, drawn as Python; folded up behind a title when it has one."""

    def __init__(self, code: str, title: str | None) -> None:
        self.code = code
        self.title = title

    def __repr__(self) -> str:
        return self.code

    def _repr_markdown_(self) -> str:
        block = f"```python\n{self.code}```"
        if self.title is None:
            return block
        return f"<details><summary>{escape(self.title)}</summary>\n\n{block}\n\n</details>"


def source(thing: Any, *, fold: str | None = None, docstring: bool = True) -> Source:
    """The code of a function, method or class, to read in a chapter.

    `fold` is the title to fold it up behind (`"Source"`, `"One solution"`), and is said in the reader's language.
    Without `docstring` the first docstring is left out, where the chapter's own words say the same.
    """
    code = textwrap.dedent(inspect.getsource(thing))
    if not docstring:
        code = _DOCSTRING.sub("", code, count=1)
    return Source(code, None if fold is None else _title(fold))


def _title(fold: str) -> str:
    known = {"Source": say("Source"), "One solution": say("One solution")}
    return known.get(fold, fold)
