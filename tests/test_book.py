"""The chapters' two forms agree, a build is repeatable, unfit outputs are refused, and nbval sees a changed number."""

import copy
import itertools
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook, new_output

from scripts import book

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = """\
# %% [markdown]
# # A chapter
# with `code` and *one* thing.

# %%
import asyncio, os, sys
from pathlib import Path
import ipywidgets

await asyncio.sleep(0)
print("one", flush=True)
print("two", flush=True)
print("aside", file=sys.stderr, flush=True)
print(3, flush=True)

# %%

# %% tags=["raises-exception"]
def fail(): raise LookupError("nothing there")
fail()

# %%
print([name for name in os.environ if name.startswith("AGENT_")], Path("text").is_dir())
slider = ipywidgets.IntSlider(value=3)
display(slider, ipywidgets.IntText(value=4))
slider
"""
FORMS = ("text/07_small.py", "07_small.ipynb")


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def ran(*outputs, tags=(), count=1, source="work()"):
    """A notebook of one cell that ran and left `outputs`."""
    cell = new_code_cell(source, outputs=list(outputs), execution_count=count, metadata={"tags": list(tags)})
    return new_notebook(cells=[cell])


def contents(folder):
    return {form: (folder / form).read_bytes() for form in FORMS}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder whose python3 kernel is not ours and does not work."""
    folder = tmp_path_factory.mktemp("home")
    kernel = folder / "kernels/python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "Other", "language": "python"}))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory, home):
    """A folder with one chapter, built for a user with another python3 kernel and with a key."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "text").mkdir()
    (folder / FORMS[0]).write_text(CHAPTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(home))
        patch.setenv("AGENT_API_KEY", "a secret")
        assert book.main(["build"], folder) == 0
    return folder


@pytest.fixture
def chapter(built, tmp_path):
    """A copy of the built chapter to spoil."""
    (tmp_path / "text").mkdir()
    for form, data in contents(built).items():
        (tmp_path / form).write_bytes(data)
    return tmp_path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def edit_notebook(folder, change):
    notebook = nbformat.read(folder / FORMS[1], as_version=4)
    change(notebook)
    nbformat.write(notebook, folder / FORMS[1])


# The book itself


def test_the_chapters_are_in_step_and_fit_to_be_kept():
    folder = ROOT / "notebooks"
    problems = {name: book.check(folder, name) for name in book.names(folder)}
    assert {name: found for name, found in problems.items() if found} == {}


# Build


def test_a_build_saves_what_a_reader_without_a_key_sees(built):
    notebook = nbformat.read(built / FORMS[1], as_version=4)
    nbformat.validate(notebook)
    first, blank, error, last = notebook.cells[1:]
    assert [(output.name, output.text) for output in first.outputs] == [
        ("stdout", "one\ntwo\n"),
        ("stderr", "aside\n"),
        ("stdout", "3\n"),
    ]
    assert (blank.execution_count, blank.outputs) == (None, [])
    assert error.outputs[0].traceback == ["LookupError: nothing there"]
    assert last.outputs[0].text == "[] True\n"
    assert [set(output.data) for output in last.outputs[1:]] == [{"text/plain"}] * 3
    assert [cell.get("execution_count") for cell in notebook.cells] == [None, 1, None, 2, 3]
    assert [cell.id for cell in notebook.cells] == [f"cell-00{n}" for n in range(1, 6)]
    assert [dict(cell.metadata) for cell in notebook.cells] == [{}, {}, {}, {"tags": ["raises-exception"]}, {}]
    assert set(notebook.metadata) == {"jupytext", "kernelspec"}


def test_a_second_build_gives_the_same_bytes(chapter, capsys):
    before = contents(chapter)
    assert book.main(["build", "07"], chapter) == 0
    assert contents(chapter) == before
    assert capsys.readouterr().out == "07_small: build done\n"


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("{}['key']", "cell 2 raised KeyError: 'key'"),
        ("print(object())", "cell 2 shows an object's address"),
        ("print(__import__('os').getcwd())", "cell 2 shows a path of this machine"),
        ("import os; os._exit(1)", "no kernel: "),
    ],
)
def test_a_chapter_that_is_not_fit_is_refused_in_one_line_and_not_saved(tmp_path, capsys, cell, complaint):
    (tmp_path / "text").mkdir()
    (tmp_path / FORMS[0]).write_text(f"# %%\nx = 1\n\n# %%\n{cell}\n")
    assert book.main(["build"], tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"07_small: {complaint}")
    assert not (tmp_path / FORMS[1]).exists()


def pieces():
    names = st.sampled_from(["stdout", "stderr"])
    return st.lists(
        st.builds(stream, st.text("ab\n", min_size=1), names) | st.builds(new_output, st.just("display_data"))
    )


@given(pieces())
def test_settling_joins_neighbours_loses_nothing_and_has_nothing_left_to_do(outputs):
    notebook = ran(*copy.deepcopy(outputs))
    book.settle(notebook)
    settled = copy.deepcopy(notebook.cells[0].outputs)
    names = [output.get("name") for output in settled]
    assert not any(a == b is not None for a, b in itertools.pairwise(names))
    for name in ("stdout", "stderr"):
        text = ["".join(o.text for o in group if o.get("name") == name) for group in (outputs, settled)]
        assert text[0] == text[1]
    assert names.count(None) == sum(output.output_type != "stream" for output in outputs)
    book.settle(notebook)
    assert notebook.cells[0].outputs == settled


# Unfit outputs


def display(**data):
    return new_output("display_data", data={kind.replace("_", "/"): value for kind, value in data.items()})


@pytest.mark.parametrize(
    "output",
    [
        stream("Text(0.5, 91.2024, 'x') at 0x7f3a00c0ffee"),
        new_output("execute_result", data={"text/plain": "Text(0.5, 91.2024, 'x') at 0x7f3a00c0ffee"}),
        display(text_html="<pre>&lt;function f at 0x7F3A00C0FFEE&gt;</pre>"),
        display(application_json={"repr": "<object object at 0x1>"}),
        new_output("error", ename="E", evalue="<f at 0x12ab>", traceback=[]),
    ],
)
def test_an_address_is_unfit_wherever_it_shows(output):
    (problem,) = book.unfit(ran(output, tags=["raises-exception"]))
    assert "address" in problem
    assert "assign the value to _" in problem


@pytest.mark.parametrize("path", [ROOT, Path.home() / "notes.txt", Path(tempfile.gettempdir(), "x/y"), Path.cwd()])
@pytest.mark.parametrize("text", ["{}", "saved\n{}\n", "see {}.", 'File "{}", line 3', "file://{}", "{}:3: error"])
def test_a_path_of_this_machine_is_unfit(path, text):
    (problem,) = book.unfit(ran(stream(text.format(path))))
    assert "path of this machine" in problem


@pytest.mark.parametrize(
    "output",
    [
        stream("paths elsewhere: /srv{0} {0}s my{0}/x\n".format(tempfile.gettempdir())),
        stream("0x7f3a is a number, at 0 it starts, at 0xZZ it does not"),
        display(image_png="xx at 0x7f3a00c0ffee"),
        new_output("error", ename="E", evalue="announced", traceback=[]),
    ],
)
def test_what_only_looks_like_it_is_fit(output):
    assert book.unfit(ran(output, tags=["raises-exception"])) == []


def test_an_error_that_no_tag_announces_is_unfit():
    error = new_output("error", ename="KeyError", evalue="'k'\nmore", traceback=[])
    assert book.unfit(ran(error)) == ["cell 1 raised KeyError: 'k'"]


@pytest.mark.parametrize("count", [None, 2])
def test_a_cell_that_was_not_run_in_order_is_unfit(count):
    (problem,) = book.unfit(ran(count=count))
    assert "cell 1 was not run in order" in problem
    assert book.unfit(ran(count=None, source=" \n")) == []


# Check


def test_check_passes_what_was_built_and_writes_nothing(chapter, capsys):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in chapter.rglob("*") if path.is_file()}
    assert book.main(["check"], chapter) == 0
    assert book.main(["check", "07"], chapter) == 0
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in chapter.rglob("*") if path.is_file()
    } == before


@pytest.mark.parametrize(
    ("old", "new", "cell"),
    [
        ("A chapter", "Another", 1),
        ('print("one"', 'print("1"', 2),
        ('"raises-exception"', '"raises-exception", "hard"', 4),
        ("# %% [markdown]\n# # A chapter", "# %%\n# # A chapter", 1),
        ("# %% [markdown]", "# %%\nx = 1\n\n# %% [markdown]", 1),
        ("\nslider\n", "\nslider\n\n# %%\nx = 2\n", 6),
    ],
)
def test_check_finds_where_the_two_forms_differ(chapter, capsys, old, new, cell):
    edit(chapter / FORMS[0], old, new)
    assert book.main(["check"], chapter) == 1
    assert capsys.readouterr().err.startswith(f"07_small: the two forms differ from cell {cell} on")


@pytest.mark.parametrize("form", FORMS)
def test_check_finds_a_missing_form(chapter, capsys, form):
    (chapter / form).unlink()
    assert book.main(["check"], chapter) == 1
    assert capsys.readouterr().err.startswith("07_small: there is no ")


def test_check_finds_outputs_that_are_not_fit(chapter, capsys):
    def spoil(notebook):
        notebook.metadata["widgets"] = {}
        notebook.cells[1].execution_count = None
        notebook.cells[4].outputs.append(new_output("error", ename="E", evalue="late", traceback=[]))

    edit_notebook(chapter, spoil)
    assert book.main(["check"], chapter) == 1
    found = capsys.readouterr().err.splitlines()
    assert ["metadata.widgets" in found[0], "cell 2 was not run" in found[1], "cell 5 raised E" in found[2]] == [
        True
    ] * 3


# Pull, and the command line


def test_pull_takes_an_edit_in_the_notebook_over_to_the_text(chapter):
    edit_notebook(chapter, lambda notebook: notebook.cells[0].update(source="# Edited *here*"))
    assert book.main(["check"], chapter) == 1
    assert book.main(["pull"], chapter) == 0
    assert "# # Edited *here*\n" in (chapter / FORMS[0]).read_text()
    assert book.main(["check"], chapter) == 0


def test_pull_of_what_was_not_edited_changes_nothing(chapter):
    before = contents(chapter)
    assert book.main(["pull"], chapter) == 0
    assert contents(chapter) == before


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["check", "99"]])
def test_a_wrong_command_line_gets_one_line_and_code_2(chapter, capsys, arguments):
    assert book.main(arguments, chapter) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_other_notebooks_of_the_reader_are_no_chapters(chapter):
    (chapter / "Untitled.ipynb").touch()
    (chapter / "text/notes.py").touch()
    assert book.names(chapter) == ["07_small"]


# nbval, as `make test` runs it


def test_nbval_sees_a_changed_number_and_not_where_a_stream_was_cut(tmp_path, home):
    count = new_code_cell("for word in 'ab': print(word, flush=True)\nprint(6 * 7)")
    aside = new_code_cell("import sys; print('x', file=sys.stderr)")
    outputs = {
        "whole": [[stream("a\nb\n42\n")], [stream("x\n", "stderr")]],
        "cut": [[stream("a\n"), stream("b\n4"), stream("2\n")], [stream("x\n", "stderr")]],
        "number": [[stream("a\nb\n43\n")], [stream("x\n", "stderr")]],
        "channel": [[stream("a\nb\n42\n")], [stream("x\n")]],
        "address": [[stream("a\nb\n42\n"), stream("<f at 0x1>")], [stream("x\n", "stderr")]],
    }
    for name, saved in outputs.items():
        notebook = new_notebook(cells=copy.deepcopy([count, aside]))
        for cell, cell_outputs in zip(notebook.cells, saved, strict=True):
            cell.update(outputs=cell_outputs, execution_count=1)
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    options = ["--nbval", "--nbval-current-env", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    environ = os.environ | {"JUPYTER_DATA_DIR": str(home)}
    command = [sys.executable, "-m", "pytest", *options, "."]
    subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, check=False)
    failed = {}
    for case in ET.parse(tmp_path / "report.xml").iter("testcase"):
        name = case.get("classname", "").removesuffix(".ipynb").split(".")[-1]
        failed.setdefault(name, []).append(case.find("failure") is not None)
    assert failed == {
        "whole": [False, False],
        "cut": [False, False],
        "number": [True, False],
        "channel": [False, True],
        "address": [True, False],
    }
