"""Every chapter in JupyterLab as a reader sees it: run, its main slider moved by keys, its picture seen to change.

All chapters in one JupyterLab and one page, one after the other, each with a kernel of its own. `make test` opens
one, and one of every translation; the others are opened by `make soak`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labpage import ROOT, Lab, explorers, reading, server

pytestmark = pytest.mark.browser

QUICK = {"08_journal"}
QUICK_TRANSLATED = "09_surface"
PLAIN = {"00_start"}  # chapters without a slider
FAR = 400  # steps back from the end of a slider


def chapters(folder: Path) -> Iterator[object]:
    """The paths of all chapters below `folder`, those that take their time marked as such."""
    for path in sorted([*folder.glob("[0-9]*.ipynb"), *folder.glob("[a-z][a-z]/[0-9]*.ipynb")]):
        quick = path.stem in QUICK if path.parent == folder else path.stem == QUICK_TRANSLATED
        name = path.relative_to(folder).as_posix()
        yield pytest.param(name, marks=[] if quick else [pytest.mark.soak], id=name.removesuffix(".ipynb"))


@pytest.fixture(scope="module")
def page(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with server(tmp_path_factory.mktemp("lab")) as address, reading(chromium, address) as lab:
        yield lab


@pytest.fixture
def lab(page: Lab) -> Iterator[Lab]:
    """The page, without a chapter before and after."""
    yield page
    page.close()


def test_the_lists_above_name_chapters() -> None:
    assert {*QUICK, QUICK_TRANSLATED, *PLAIN} <= {path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}


@pytest.mark.parametrize("chapter", list(chapters(ROOT / "notebooks")))
def test_the_main_slider_changes_the_picture(lab: Lab, chapter: str) -> None:
    lab.open(chapter)
    lab.run_all()
    assert lab.failures() == []
    found = explorers(lab)
    if Path(chapter).stem in PLAIN:
        assert not found
    else:
        assert found, "no slider: the chapter belongs into PLAIN, or the widgets do not work"
        explorer, main = found[0], found[0].controls[0]
        first, start = explorer.picture, main.position
        assert explorer.screen.is_visible() and explorer.errors() == []

        back = explorer.move(main)
        assert back is not None, f"from {start} to {main.position} the picture stays the same"
        assert explorer.errors() == []

        for _ in range(FAR):
            if main.position == start:
                break
            main.press(back)
        assert main.position == start
        assert explorer.becomes("===", first), "the same value has another picture now"
    assert lab.strangers() == []
    assert any(url.startswith("ws:") for url in lab.asked), "no kernel was asked: the check above saw nothing"
    assert lab.complaints == []
