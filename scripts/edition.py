"""A chapter in another language: the prose is translated, every code cell is the English chapter's own.

notebooks/text/zh/NN_name.md holds the prose, one part for each markdown cell, in the order of the chapter:

    <!-- 3f2a9c1b | # Tool output: keep it small, lose nothing -->
    # 工具输出：...

A part belongs to the English cell whose text has this hash, so a cell that was changed has no translation until
somebody has looked at it. What it said before stands at the end of the file, marked `old`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

MARK = re.compile(r"^<!-- (old )?([0-9a-f]{8}) \|.*-->\n", re.MULTILINE)
UP = re.compile(r"(\]\()\.\./(?!\d\d_\w+\.ipynb)")
METADATA = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}


@dataclass(frozen=True)
class Part:
    """The translation of one cell. `old` ones have no English any more; `text` is empty until somebody writes it."""

    key: str
    text: str
    old: bool = False


def key(english: str) -> str:
    """What tells one English cell from another, and from itself before a change."""
    return hashlib.sha256(english.strip().encode()).hexdigest()[:8]


def languages(folder: Path) -> list[str]:
    """The languages other than English that have any chapter."""
    return sorted({path.parent.name for path in folder.glob("text/[a-z][a-z]/[0-9][0-9]_*.md")})


def text_path(folder: Path, language: str, name: str) -> Path:
    return folder / "text" / language / f"{name}.md"


def parts(text: str) -> list[Part]:
    """The parts of a translation. What stands before the first mark belongs to no cell and is refused: ValueError."""
    marks = list(MARK.finditer(text))
    if text[: marks[0].start() if marks else len(text)].strip():
        raise ValueError("there is text before the first mark: book.py translate writes the marks")
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [Part(mark[2], text[mark.end() : end].strip(), bool(mark[1])) for mark, end in zip(marks, ends, strict=True)]


def read(path: Path) -> list[Part]:
    """The parts in a file, none when there is no file. Raises ValueError, which names it, for one that has no marks."""
    try:
        return parts(path.read_text(encoding="utf-8")) if path.is_file() else []
    except ValueError as error:
        raise ValueError(f"text/{path.parent.name}/{path.name}: {error}") from error


def prose(chapter: NotebookNode) -> list[str]:
    """The English markdown cells, each once, in order."""
    return list(dict.fromkeys(cell.source for cell in chapter.cells if cell.cell_type == "markdown"))


def renewed(chapter: NotebookNode, known: list[Part]) -> str:
    """The translation's file for the chapter as it is now: known parts in its order, new ones empty, others `old`."""
    texts = {part.key: part.text for part in known}
    current = {key(english): english for english in prose(chapter)}
    blocks = [f"<!-- {each} | {_title(english)} -->\n{texts.get(each, '')}" for each, english in current.items()]
    gone = [(each, text) for each, text in texts.items() if text and each not in current]
    blocks += [f"<!-- old {each} | -->\n{text}" for each, text in gone]
    return "\n\n".join(block.rstrip() for block in blocks) + "\n"


def _title(english: str) -> str:
    return english.strip().splitlines()[0].replace("--", "- -")[:80].strip() if english.strip() else ""


def trouble(chapter: NotebookNode, known: list[Part]) -> list[str]:
    """Why a translation is not complete: one line for each cell without one, and for each that is left over."""
    texts = {part.key: part.text for part in known if not part.old}
    current = {key(english): english for english in prose(chapter)}
    found = [
        f"no translation of the cell that begins {_title(english)!r}"
        for each, english in current.items()
        if not texts.get(each)
    ]
    found += [f"part {part.key} belongs to no cell any more" for part in known if part.old or part.key not in current]
    return found


def translated(chapter: NotebookNode, known: list[Part], language: str) -> NotebookNode:
    """The chapter with its prose translated; code cells, tags and ids are its own. It has no pair and no outputs.

    Links are turned to where they lead from one folder below, and to the glossary in this language.
    """
    texts = {part.key: part.text for part in known if not part.old}
    notebook: NotebookNode = nbformat.v4.new_notebook(metadata=METADATA)
    for cell in chapter.cells:
        copy = nbformat.from_dict(cell)
        if cell.cell_type == "markdown":
            text = UP.sub(r"\1../../", texts.get(key(cell.source)) or cell.source)
            copy.source = text.replace("docs/GLOSSARY.md", f"docs/GLOSSARY.{language}.md")
        else:
            copy.outputs, copy.execution_count = [], None
        notebook.cells.append(copy)
    return notebook
