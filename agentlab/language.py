"""The words that people read, in their language: what `check`, its hints, the widgets and the legends of pictures say.

The code holds the English, and `words/<language>.json` what it is in another language: English text -> translation.
What a model reads, and what a model says, is never translated.

    say("{hits} of {all} cases pass", hits=3, all=9)    "3 of 9 cases pass", or the same in the reader's language

The language is chosen once, when agentlab is imported: by the folder of the notebook, since a chapter in `notebooks/zh`
is in Chinese wherever it is opened, and elsewhere by `AGENTLAB_LANGUAGE`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

WORDS = Path(__file__).with_name("words")
VARIABLE = "AGENTLAB_LANGUAGE"
ENGLISH = "en"


def languages() -> list[str]:
    """The languages there are: English, and every one that has a catalogue."""
    return [ENGLISH, *sorted(path.stem for path in WORDS.glob("*.json"))]


def chosen(environment: Mapping[str, str], folder: Path) -> str:
    """The language for these variables and this working folder. One that does not exist is English."""
    named = folder.name if folder.parent.name == "notebooks" and folder.name in languages() else None
    named = named or environment.get(VARIABLE, ENGLISH)
    return named if named != ENGLISH and named in languages() else ENGLISH


def catalogue(language: str) -> dict[str, str]:
    """English text -> its translation; for English nothing. Raises ValueError when the file is no object of texts."""
    if language == ENGLISH:
        return {}
    path = WORDS / f"{language}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError(f"words/{path.name} must be one object of texts: scripts/words.py writes it.")
    return found


def _here() -> str:
    try:
        return chosen(os.environ, Path.cwd())
    except OSError:  # the working folder is gone
        return chosen(os.environ, Path())


LANGUAGE = _here()
_CATALOGUE = catalogue(LANGUAGE)


def say(english: str, /, **values: object) -> str:
    """The text in the reader's language, with `values` in place of its `{names}`; without values it stays as it is.

    `english` is a literal in the code, so that scripts/words.py finds it. A text without a translation is said in
    English. Values are inserted, never looked up or formatted twice: what a model said may stand in them.
    """
    text = _CATALOGUE.get(english, english)
    return text.format_map(values) if values else text
