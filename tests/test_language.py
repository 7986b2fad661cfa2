"""The words that people read: the catalogue is complete, and a translation says no less than the English."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentlab.language import LANGUAGE, WORDS, catalogue, chosen, languages, say
from scripts import words

ROOT = Path(__file__).resolve().parent.parent
OTHERS = [each for each in languages() if each != "en"]
BOOK = Path("project", "notebooks")


def test_there_is_a_chinese_catalogue():
    assert OTHERS == ["zh"]


def test_every_text_is_a_literal_and_gets_the_values_that_it_names():
    assert words.faults() == []


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_translated_and_no_translation_is_left_over(language):
    assert words.problems(catalogue(language), words.said()) == []


@pytest.mark.parametrize("language", OTHERS)
def test_what_is_translated_is_not_english(language):
    same = [english for english, text in catalogue(language).items() if text == english and " " in english.strip()]
    assert same == []


def test_the_catalogue_is_sorted_as_the_script_writes_it(tmp_path):
    for language in OTHERS:
        path = WORDS / f"{language}.json"
        words.write(tmp_path / path.name, words.read(path))
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("folder", "named", "language"),
    [
        (BOOK, None, "en"),
        (BOOK, "zh", "zh"),
        (BOOK / "zh", None, "zh"),
        (BOOK / "zh", "en", "zh"),
        (BOOK / "xx", None, "en"),
        (Path("zh"), None, "en"),
        (Path("elsewhere"), "xx", "en"),
        (Path("elsewhere"), "../zh", "en"),
        (Path("elsewhere"), "", "en"),
    ],
)
def test_the_folder_of_a_book_chooses_the_language_and_elsewhere_the_variable(folder, named, language):
    assert chosen({} if named is None else {"AGENTLAB_LANGUAGE": named}, folder) == language


def test_in_english_a_text_is_what_the_code_says():
    assert LANGUAGE == "en"
    assert say("Source") == "Source"
    assert say("{a} of {b} {a}", a="{b}", b=1_000) == "{b} of 1000 {b}"
    assert say("{n:,} letters", n=1_000) == "1,000 letters"
    assert say("a literal {brace} without values") == "a literal {brace} without values"


def in_chinese(code: str, folder: Path) -> str:
    environment = {**os.environ, "AGENTLAB_LANGUAGE": "zh", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_in_chinese_says_it_in_chinese_and_what_it_does_not_know_in_english(tmp_path):
    out = in_chinese("from agentlab.language import say; print(say('Source'), say('{x} is new', x='{y}'))", tmp_path)
    assert out == f"{catalogue('zh')['Source']} {{y}} is new\n"


def test_every_exercise_is_checked_in_chinese(tmp_path):
    """Right answers pass there, too, and what is said holds Chinese: no text is compared by its English."""
    code = """
from agentlab import check
from agentlab.check.progress import EXERCISES
for name in EXERCISES:
    exercise = getattr(check, name)
    report = exercise(exercise.solution)
    assert report.passed, repr(report)
    assert any('\\u4e00' <= c <= '\\u9fff' for c in repr(report)), repr(report)
    number = 1
    while f'hint({number})' in repr(exercise) or number == 1:
        assert any('\\u4e00' <= c <= '\\u9fff' for c in repr(exercise.hint(number))), exercise.hint(number)
        number += 1
print(len(EXERCISES))
"""
    assert int(in_chinese(code, tmp_path)) > 20


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("say(text)", "no literal"),
        ("say(f'{n} cases', n=1)", "no literal"),
        ("say()", "no literal"),
        ("say('{n} cases', m=1)", "the text names"),
        ("say('{n} of {0}', n=1)", "no plain name"),
        ("say('{n} {', n=1)", "'{'"),
    ],
)
def test_a_call_that_cannot_be_translated_is_found(tmp_path, code, fault):
    (tmp_path / "module.py").write_text(code)
    (found,) = words.faults([tmp_path / "module.py"])
    assert fault in found


def test_a_call_that_can_be_translated_is_none(tmp_path):
    (tmp_path / "module.py").write_text("say('a {brace}')\nsay('{n:,}' ' of {all}', n=1, all=2)\nsay('{x}', **values)")
    assert words.faults([tmp_path / "module.py"]) == []
    assert words.said([tmp_path / "module.py"]) == {"a {brace}": False, "{n:,} of {all}": True, "{x}": True}


@pytest.mark.parametrize(
    ("translation", "why"),
    [(" ", "is empty"), ("{m} 个", "names ['m']"), ("个", "names []"), ("{n} {", "'{'"), ("{n} 共 {n}", None)],
)
def test_a_translation_that_would_say_less_or_raise_is_refused(tmp_path, translation, why):
    path = tmp_path / "zh.json"
    refused = words.merge(path, {"{n} cases": translation}, {"{n} cases": True})
    assert [why in each for each in refused] == ([True] if why else [])
    assert (words.read(path) == {"{n} cases": translation}) is (why is None)


def test_merging_keeps_what_is_there_and_pruning_drops_what_is_no_longer_said(tmp_path):
    path = tmp_path / "zh.json"
    path.write_text(json.dumps({"old": "旧", "b": "乙"}))
    assert words.merge(path, {"a": "甲"}, {"a": False, "b": False}) == []
    assert words.read(path) == {"a": "甲", "b": "乙", "old": "旧"}
    words.prune(path, {"a": False, "b": False})
    assert list(words.read(path)) == ["a", "b"]


def test_problems_name_what_is_missing_unused_and_wrong():
    found = words.problems({"gone": "没了", "{n}": "{m}"}, {"new": False, "{n}": True})
    assert [each.split(":")[0] for each in found] == ["missing", "no longer said", "'{n}'"]


def test_a_wrong_command_line_gets_one_line_and_code_2(capsys):
    assert words.main(["merge"]) == 2
    assert "usage" in capsys.readouterr().err
