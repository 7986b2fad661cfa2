"""Chapters in other languages: the same code cells, every word of prose translated, the same figures in the outputs."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import book, edition, lab

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CHAPTERS = book.names(NOTEBOOKS)
FIGURE = re.compile(r"\d[\d,_.]*\d|\d")


def load(path: Path):
    return nbformat.read(path, as_version=4)


def figures(cell) -> Counter[str]:
    """Every number that a reader sees in the outputs of a cell, without regard to the order of the words around it."""
    shown = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        shown += [output.get("text", ""), output.get("evalue", "")]
        html = unescape(re.sub(r"<[^>]*>", " ", data.get("text/html", "")))
        shown.append(html or data.get("text/plain", ""))  # the text of a picture is its label, cut to one line
    return Counter(FIGURE.findall(" ".join(shown)))


def code(notebook):
    return [(kind, source if kind == "code" else "", tags) for kind, source, tags in book.essence(notebook)]


def links(text: str) -> list[str]:
    return sorted(re.findall(r"\]\(([^)\s]+)\)", text))


def test_every_chapter_is_there_in_chinese():
    assert edition.languages(NOTEBOOKS) == ["zh"]
    assert book.names(NOTEBOOKS / "zh") == CHAPTERS
    assert sorted(path.stem for path in (NOTEBOOKS / "text/zh").glob("*.md")) == CHAPTERS


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_code_cells_are_identical_and_the_prose_is_complete(name):
    chapter, translated = load(NOTEBOOKS / f"{name}.ipynb"), load(NOTEBOOKS / f"zh/{name}.ipynb")
    assert code(chapter) == code(translated)
    assert book.check(NOTEBOOKS, name) == []
    for english, other in zip(chapter.cells, translated.cells, strict=True):
        if english.cell_type == "markdown":
            assert re.search("[\u4e00-\u9fff]", other.source), other.source


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_translation_leads_where_the_english_leads_and_shows_the_same_code(name):
    parts = {part.key: part.text for part in edition.read(edition.text_path(NOTEBOOKS, "zh", name))}
    for english in edition.prose(book.read_text(book.text_path(NOTEBOOKS, name))):
        chinese = parts[edition.key(english)]
        if "zh/00_start.ipynb" not in english:  # the link between the two editions
            assert links(chinese) == links(english), english
        fences = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
        assert len(fences.findall(chinese)) == len(fences.findall(english)), english
        for tag in "<details>", "</details>", "<summary>", "</summary>":
            assert chinese.count(tag) == english.count(tag), english


@pytest.mark.parametrize("name", CHAPTERS)
def test_links_of_an_edition_lead_to_files(name):
    for cell in load(NOTEBOOKS / f"zh/{name}.ipynb").cells:
        for link in links(cell.source) if cell.cell_type == "markdown" else []:
            if not re.match(r"https?:|#", link):
                assert (NOTEBOOKS / "zh" / link.split("#")[0]).exists(), link


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_editions_show_the_same_figures(name):
    chapter, translated = load(NOTEBOOKS / f"{name}.ipynb"), load(NOTEBOOKS / f"zh/{name}.ipynb")
    for number, (english, other) in enumerate(zip(chapter.cells, translated.cells, strict=True), 1):
        assert figures(english) == figures(other), f"cell {number}"


# What scripts/edition.py does, on small chapters.

HEADER = """\
# %% [markdown]
# # A title -- with dashes

# %%
print(1)

# %% [markdown]
# See [it](../docs/GLOSSARY.md).
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text/00_a.py").write_text(HEADER)
    return tmp_path


def fill(folder, texts):
    path = edition.text_path(folder, "zh", "00_a")
    pieces = edition.MARK.split(path.read_text())  # before, then three for each part
    marks = [mark[0] for mark in edition.MARK.finditer(path.read_text())]
    assert len(pieces) == 1 + 3 * len(texts)
    path.write_text("".join(f"{mark}{text}\n\n" for mark, text in zip(marks, texts, strict=True)))


def test_a_translation_is_begun_filled_in_and_built(folder):
    assert book.main(["translate"], folder) == 0
    assert book.main(["check", "00"], folder) == 1
    fill(folder, ["# 标题", "见[这里](../docs/GLOSSARY.md)和[英文](../00_a.ipynb)。"])
    assert book.main(["build"], folder) == 0
    assert book.main(["check"], folder) == 0
    built = load(folder / "zh/00_a.ipynb")
    assert [cell.source for cell in built.cells] == [
        "# 标题",
        "print(1)",
        "见[这里](../../docs/GLOSSARY.zh.md)和[英文](../00_a.ipynb)。",
    ]
    assert built.cells[1].outputs[0].text == "1\n"
    assert "jupytext" not in built.metadata
    assert code(load(folder / "00_a.ipynb")) == code(built)


def test_a_changed_cell_has_no_translation_until_somebody_looked_at_it(folder, capsys):
    book.main(["translate"], folder)
    fill(folder, ["# 标题", "见。"])
    (folder / "text/00_a.py").write_text(HEADER.replace("A title", "Another title"))
    book.main(["translate"], folder)
    first, second, old = edition.read(edition.text_path(folder, "zh", "00_a"))
    assert (first.text, second.text, old.text, old.old) == ("", "见。", "# 标题", True)
    assert book.check_edition(folder, "zh", "00_a") == [
        "zh: no translation of the cell that begins '# Another title - - with dashes'",
        f"zh: part {old.key} belongs to no cell any more",
        "zh: there is no zh/00_a.ipynb",
    ]
    (folder / "text/00_a.py").write_text(HEADER)
    book.main(["translate"], folder)
    assert [part.text for part in edition.read(edition.text_path(folder, "zh", "00_a"))] == ["# 标题", "见。"]


def test_an_edition_that_was_changed_by_hand_or_is_older_is_found(folder):
    book.main(["translate"], folder)
    fill(folder, ["# 标题", "见。"])
    assert book.main(["build"], folder) == 0
    place = folder / "zh/00_a.ipynb"
    notebook = load(place)
    for change in (
        lambda: notebook.cells[1].update(source="print(2)"),
        lambda: notebook.cells.pop(),
        lambda: notebook.cells[0].update(source="# 别的"),
    ):
        change()
        place.write_text(nbformat.writes(notebook))
        assert book.check(folder, "00_a") == ["zh: the notebook is not what its text says: make book builds it"]


def test_text_before_the_first_mark_is_refused_and_kept(folder):
    book.main(["translate"], folder)
    path = edition.text_path(folder, "zh", "00_a")
    path.write_text("lost?\n" + path.read_text())
    before = path.read_bytes()
    assert book.main(["translate"], folder) == 1
    assert book.main(["check"], folder) == 1
    assert path.read_bytes() == before


PROSE = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=30), max_size=4)


@given(PROSE, st.data())
def test_renewing_keeps_every_translation_and_is_done_after_once(cells, data):
    chapter = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text) for text in cells])
    texts = st.text("中文\n字", max_size=6).map(str.strip)
    known = [edition.Part(edition.key(text), data.draw(texts)) for text in dict.fromkeys(cells)]
    known += [edition.Part("00000000", "旧", True)]
    once = edition.renewed(chapter, known)
    again = edition.parts(once)
    assert edition.renewed(chapter, again) == once
    assert {part.key: part.text for part in known if part.text} == {p.key: p.text for p in again if p.text}


# make lab BOOK=zh


def test_the_book_of_a_language_opens_at_its_first_chapter():
    assert lab.books() == ["en", "zh"]
    assert lab.no_book("zh") is None
    assert "--LabApp.default_url=/lab/tree/notebooks/zh/00_start.ipynb" in lab.command("8888", book="zh")


@pytest.mark.parametrize("name", ["xx", "", "../zh", "ZH"])
def test_a_book_that_does_not_exist_gets_the_names_of_those_that_do(name):
    assert "BOOK=en or BOOK=zh" in str(lab.no_book(name))
