"""What every chapter needs: the project's data from wherever the chapter stands, and code to read."""

from __future__ import annotations

import pytest

from agentlab.errors import AgentLabError
from agentlab.notebook import data, source


def twice(number):
    """The number, doubled."""
    return f"""{number * 2}"""


class Holder:
    def method(self):
        r"""Nothing of note."""
        return None


@pytest.mark.parametrize("place", [".", "notebooks", "notebooks/zh"])
def test_data_is_found_from_a_chapter_and_from_its_editions(tmp_path, monkeypatch, place):
    (tmp_path / "data/logs").mkdir(parents=True)
    (tmp_path / "data/logs/a.log").write_text("found")
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / place)
    found = data("logs", "a.log")
    assert found.read_text() == "found"
    assert not found.is_absolute()
    assert data().is_dir()


def test_the_nearest_folder_that_has_it_counts(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/prices.json").write_text("{}")
    (tmp_path / "notebooks/data").mkdir(parents=True)  # the reader's own
    monkeypatch.chdir(tmp_path / "notebooks")
    assert data("prices.json").read_text() == "{}"


def test_where_there_is_none_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentLabError, match=r"There is no data/no/such here or above: run the chapter from"):
        data("no", "such")


def test_source_shows_the_code_with_and_without_its_docstring():
    assert source(twice).code == 'def twice(number):\n    """The number, doubled."""\n    return f"""{number * 2}"""\n'
    assert source(twice, docstring=False).code == 'def twice(number):\n    return f"""{number * 2}"""\n'
    assert source(Holder.method, docstring=False).code == "def method(self):\n    return None\n"


def test_source_draws_itself_as_python_and_folds_up():
    assert source(twice, docstring=False)._repr_markdown_().startswith("```python\ndef twice(number):\n")
    folded = source(twice, fold="<b>")._repr_markdown_()
    assert folded.startswith("<details><summary>&lt;b&gt;</summary>\n\n```python\n") and folded.endswith("</details>")
    assert "<summary>Source</summary>" in source(twice, fold="Source")._repr_markdown_()
