"""The chapters in two forms: notebooks/text/NN_name.py is written and reviewed, notebooks/NN_name.ipynb read and run.

    python scripts/book.py build [names]    text -> notebook: run every cell in a fresh kernel, save the outputs
    python scripts/book.py check [names]    the two forms agree and the outputs are fit to be kept; writes nothing
    python scripts/book.py pull [names]     notebook -> text, after editing in JupyterLab
    python scripts/book.py translate [names]    bring the translations' files into the order of the English cells

A name is the beginning of a file's name ("03"); none means all. The same text gives the same bytes on every build.
Building a chapter builds its editions in other languages, too (scripts/edition.py).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jupytext
import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import edition  # noqa: E402

CELL_SECONDS = 120  # a hang guard, not a measure
CHAPTER = "[0-9][0-9]_*"
TEXT_FORM = "py:percent"
WIDGET = "application/vnd.jupyter.widget-view+json"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
METADATA = {
    "jupytext": {
        "cell_metadata_filter": "tags,-all",
        "formats": f"ipynb,text//{TEXT_FORM}",
        "notebook_metadata_filter": (
            "kernelspec,jupytext,-jupytext.text_representation.jupytext_version,-widgets,-language_info"
        ),
    },
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
}


def names(folder: Path, wanted: Sequence[str] = ()) -> list[str]:
    """The chapters of `folder` that exist in either form and begin with one of `wanted` (all when it is empty)."""
    found = {path.stem for pattern in (f"{CHAPTER}.ipynb", f"text/{CHAPTER}.py") for path in folder.glob(pattern)}
    return sorted(name for name in found if not wanted or name.startswith(tuple(wanted)))


def text_path(folder: Path, name: str) -> Path:
    return folder / "text" / f"{name}.py"


def notebook_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.ipynb"


def essence(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    """What both forms must agree on: the type, source and tags of every cell."""
    return [(cell.cell_type, cell.source, list(cell.metadata.get("tags", []))) for cell in notebook.cells]


def plain(cells: Iterable[NotebookNode]) -> NotebookNode:
    """A notebook of `cells` without outputs; ids go by position and metadata is what the two forms share."""
    notebook: NotebookNode = nbformat.v4.new_notebook(metadata=METADATA)
    for number, cell in enumerate(cells, 1):
        new = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")(cell.source, id=f"cell-{number:03}")
        if tags := cell.metadata.get("tags"):
            new.metadata["tags"] = list(tags)
        notebook.cells.append(new)
    return notebook


def read_text(path: Path) -> NotebookNode:
    return plain(jupytext.read(path, fmt=TEXT_FORM).cells)


def write_text(path: Path, notebook: NotebookNode) -> None:
    path.write_text(jupytext.writes(plain(notebook.cells), fmt=TEXT_FORM), encoding="utf-8")


def settle(notebook: NotebookNode) -> None:
    """Take out of the outputs, in place, all that another run would write differently although nothing changed.

    Neighbouring pieces of one stream are joined (flushing cuts them anywhere), and a traceback, which names files of
    this machine, becomes its last line. A live widget, whose model is gone when the notebook is opened again, leaves
    its other forms: its text, and its picture where it has one.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    for _, cell in code_cells(notebook):
        joined: list[NotebookNode] = []
        for output in cell.outputs:
            before = joined[-1] if joined else None
            if output.output_type == "stream" and before is not None and before.get("name") == output.name:
                before.text += output.text
            else:
                joined.append(output)
            if len(data := output.get("data", {})) > 1:
                data.pop(WIDGET, None)
            if output.output_type == "error":
                output.traceback = [f"{output.ename}: {output.evalue}"]
        cell.outputs = joined
        cell.metadata.pop("execution", None)


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """The cells that a kernel runs, code that is not blank, each with its position (the first cell is 1)."""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code" and cell.source.strip():
            yield number, cell


def raised(cell: NotebookNode) -> NotebookNode | None:
    """The error that a cell ended in although its tags do not announce one."""
    if "raises-exception" in cell.metadata.get("tags", []):
        return None
    return next((output for output in cell.outputs if output.output_type == "error"), None)


def machine_paths() -> re.Pattern[str]:
    """Matches this project's folder, the home folder, the temporary one, this environment, and what is below them."""
    folders = [ROOT, Path.cwd(), Path.home(), Path(tempfile.gettempdir())]
    folders += [Path(sys.prefix)] if sys.prefix != sys.base_prefix else []
    known = {str(each) for folder in folders for each in (folder, folder.resolve()) if len(each.parts) > 1}
    return re.compile(r"(?<![\w.-])(" + "|".join(map(re.escape, sorted(known))) + r")(?![\w-])")


def texts(value: object) -> Iterator[str]:
    """Every string in an output, at any depth, except pictures in base64."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("image/png", "image/jpeg"):
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def unfit(notebook: NotebookNode) -> list[str]:
    """Why the outputs of a notebook should not be saved: one line for each problem."""
    paths = machine_paths()
    problems = ["holds metadata.widgets"] if "widgets" in notebook.metadata else []
    for run, (number, cell) in enumerate(code_cells(notebook), 1):
        if cell.execution_count != run:
            problems.append(f"cell {number} was not run in order: its count is {cell.execution_count}, not {run}")
        if error := raised(cell):
            problems.append(f"cell {number} raised {error.ename}: {error.evalue}".splitlines()[0])
        text = "\n".join(texts(cell.outputs))
        if found := ADDRESS.search(text):
            problems.append(f"cell {number} shows an object's address,{found[0]}: assign the value to _")
        if found := paths.search(text):
            problems.append(f"cell {number} shows a path of this machine, {found[0]}")
    return problems


def run(notebook: NotebookNode, folder: Path) -> str | None:
    """Run every cell in a fresh kernel, in place, with `folder` as working directory. Returns what went wrong.

    The kernel sees none of the AGENT_... and AGENTLAB_... variables: saved outputs are those of a new reader. The
    folder says which language they are in.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AGENT_", "AGENTLAB_"))}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        place = next((number for number, cell in code_cells(notebook) if raised(cell)), "?")
        return f"cell {place} raised {error.ename}: {error.evalue}".splitlines()[0]
    except CellTimeoutError:
        return f"a cell ran longer than {CELL_SECONDS} s"
    except (DeadKernelError, NoSuchKernel) as error:
        return f"no kernel: {error}".splitlines()[0]
    return None


def build(folder: Path, name: str) -> list[str]:
    """Write one chapter's notebook from its text form, and the text form's header. Returns problems; none: written."""
    if not text_path(folder, name).is_file():
        return [f"there is no text/{name}.py to build it from: book.py pull writes it"]
    notebook = read_text(text_path(folder, name))
    if trouble := run(notebook, folder):
        return [trouble]
    settle(notebook)
    if problems := unfit(notebook):
        return problems
    notebook_path(folder, name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    write_text(text_path(folder, name), notebook)
    return [problem for language in editions(folder, name) for problem in build_edition(folder, language, name)]


def editions(folder: Path, name: str) -> list[str]:
    """The languages into which this chapter is translated."""
    return [each for each in edition.languages(folder) if edition.text_path(folder, each, name).is_file()]


def build_edition(folder: Path, language: str, name: str) -> list[str]:
    """Write one chapter in another language from the English text and its translation, outputs and all."""
    chapter = read_text(text_path(folder, name))
    known = edition.read(edition.text_path(folder, language, name))
    place = folder / language
    place.mkdir(exist_ok=True)
    notebook = edition.translated(chapter, known, language)
    if trouble := run(notebook, place):
        return [f"{language}: {trouble}"]
    settle(notebook)
    notebook.metadata = nbformat.from_dict(edition.METADATA)
    if problems := unfit(notebook):
        return [f"{language}: {problem}" for problem in problems]
    notebook_path(place, name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return []


def check_edition(folder: Path, language: str, name: str) -> list[str]:
    """Problems of one chapter in another language as it is saved."""
    chapter = read_text(text_path(folder, name))
    known = edition.read(edition.text_path(folder, language, name))
    problems = edition.trouble(chapter, known)
    place = notebook_path(folder / language, name)
    if not place.is_file():
        return [f"{language}: {problem}" for problem in [*problems, f"there is no {language}/{name}.ipynb"]]
    notebook = nbformat.read(place, as_version=4)
    if essence(edition.translated(chapter, known, language)) != essence(notebook):
        problems.append("the notebook is not what its text says: make book builds it")
    return [f"{language}: {problem}" for problem in problems + unfit(notebook)]


def translate(folder: Path, name: str) -> list[str]:
    """Bring the translations of one chapter into the order of its cells; new cells get an empty part."""
    if not text_path(folder, name).is_file():
        return [f"there is no text/{name}.py to translate"]
    chapter = read_text(text_path(folder, name))
    for language in edition.languages(folder) or ["zh"]:
        path = edition.text_path(folder, language, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(edition.renewed(chapter, edition.read(path)), encoding="utf-8")
    return []


def check(folder: Path, name: str) -> list[str]:
    """Problems of one chapter as it is saved: a form that is missing, cells that differ, outputs unfit to be kept."""
    if not text_path(folder, name).is_file():
        return [f"there is no text/{name}.py: book.py pull writes it"]
    if not notebook_path(folder, name).is_file():
        return [f"there is no {name}.ipynb: make book builds it"]
    notebook = nbformat.read(notebook_path(folder, name), as_version=4)
    text, saved = essence(read_text(text_path(folder, name))), essence(notebook)
    cells = zip(text, saved, strict=False)
    drift = next((n for n, (a, b) in enumerate(cells, 1) if a != b), min(len(text), len(saved)) + 1)
    problems = []
    if text != saved:
        problems.append(
            f"the two forms differ from cell {drift} on: make book takes the text, book.py pull the notebook"
        )
    problems += unfit(notebook)
    return problems + [found for each in editions(folder, name) for found in check_edition(folder, each, name)]


def pull(folder: Path, name: str) -> list[str]:
    """Write the text form of one chapter from its notebook. Returns problems; none: written."""
    if not notebook_path(folder, name).is_file():
        return [f"there is no {name}.ipynb to read"]
    text_path(folder, name).parent.mkdir(exist_ok=True)
    write_text(text_path(folder, name), nbformat.read(notebook_path(folder, name), as_version=4))
    return []


ACTIONS = {"build": build, "check": check, "pull": pull, "translate": translate}


def main(arguments: Sequence[str], folder: Path = ROOT / "notebooks") -> int:
    if not arguments or arguments[0] not in ACTIONS:
        print("usage: book.py build|check|pull|translate [names]", file=sys.stderr)
        return 2
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel wins over one in the home folder
    action, wanted = arguments[0], arguments[1:]
    chapters = names(folder, wanted)
    for prefix in wanted:
        if not any(name.startswith(prefix) for name in chapters):
            print(f"book.py: no chapter begins with {prefix!r}", file=sys.stderr)
            return 2
    failed = False
    for name in chapters:
        try:
            problems = ACTIONS[action](folder, name)
        except ValueError as error:  # a file that is no notebook, or no translation
            problems = [str(error)]
        failed = failed or bool(problems)
        for problem in problems:
            print(f"{name}: {problem}", file=sys.stderr)
        if not problems:
            print(f"{name}: {action} done")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
