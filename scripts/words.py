"""The catalogue of the words that people read: agentlab/words/<language>.json, English text -> translation.

    python scripts/words.py check              what is missing, unused, or has other {names} than the English
    python scripts/words.py missing [files]    what has no translation yet, as JSON to fill in
    python scripts/words.py merge FILE.json    take translations over into the catalogue
    python scripts/words.py prune              drop what is no longer said

The English is what stands as the first argument of `say` in agentlab/. LANGUAGE_TO=de before the command means another
language than Chinese, zh.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import string
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "agentlab"
WORDS = PACKAGE / "words"


def calls(source: str) -> Iterator[tuple[int, str | None, frozenset[str] | None]]:
    """Every `say(...)` of a module: its line, its text (None when that is no literal), and the names of its values.

    The names are None where they cannot be told, as for `say(text, **values)`.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
            first = node.args[0] if node.args else None
            literal = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
            given = [keyword.arg for keyword in node.keywords]
            yield node.lineno, literal, None if None in given else frozenset(map(str, given))


def fields(text: str) -> frozenset[str]:
    """The names in braces of a text. Raises ValueError where the braces do not match or hold no plain name."""
    found = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    for name in found:
        if not name.isidentifier():
            raise ValueError(f"{{{name}}} is no plain name")
    return frozenset(found)


def sources(files: Iterable[Path] = ()) -> list[Path]:
    return sorted(files) or sorted(path for path in PACKAGE.rglob("*.py") if path.name != "language.py")


def said(files: Iterable[Path] = ()) -> dict[str, bool]:
    """Every text of `say` in these files (all of agentlab when none is named), and whether it has values."""
    found: dict[str, bool] = {}
    for path in sources(files):
        for _, text, given in calls(path.read_text(encoding="utf-8")):
            if text is not None:
                found[text] = found.get(text, False) or given is None or bool(given)
    return found


def faults(files: Iterable[Path] = ()) -> list[str]:
    """What is wrong with the calls themselves: a text that is no literal, values that its braces do not name."""
    problems = []
    for path in sources(files):
        for line, text, given in calls(path.read_text(encoding="utf-8")):
            place = f"{path.relative_to(PACKAGE.parent) if path.is_relative_to(PACKAGE.parent) else path}:{line}"
            if text is None:
                problems.append(f"{place}: the text of say is no literal")
            elif given:
                try:
                    wanted = fields(text)
                except ValueError as error:
                    problems.append(f"{place}: {error}")
                    continue
                if wanted != given:
                    problems.append(f"{place}: the text names {sorted(wanted)}, the call gives {sorted(given)}")
    return problems


def wrong(english: str, translation: str, *, has_values: bool) -> str | None:
    """What is wrong with one translation, or None."""
    if not translation.strip():
        return "is empty"
    if not has_values:
        return None
    try:
        wanted, got = fields(english), fields(translation)
    except ValueError as error:
        return str(error)
    return None if wanted == got else f"names {sorted(got)}, the English {sorted(wanted)}"


def read(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write(path: Path, catalogue: Mapping[str, str]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(dict(sorted(catalogue.items())), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def problems(catalogue: Mapping[str, str], texts: Mapping[str, bool]) -> list[str]:
    """Missing and unused texts, and translations that cannot be right."""
    found = [f"missing: {text!r}" for text in texts if text not in catalogue]
    found += [f"no longer said: {text!r}" for text in catalogue if text not in texts]
    for text, has_values in texts.items():
        if text in catalogue and (why := wrong(text, catalogue[text], has_values=has_values)):
            found.append(f"{text!r}: its translation {why}")
    return found


def merge(path: Path, new: Mapping[str, str], texts: Mapping[str, bool]) -> list[str]:
    """Take `new` into the catalogue, sorted. Returns what was refused. Of two merges at once, one waits."""
    refused = []
    with locked(path.parent):
        known = read(path)
        for english, translation in new.items():
            why = "is not said in agentlab" if english not in texts else None
            why = why or wrong(english, translation, has_values=texts[english])
            if why:
                refused.append(f"{english!r}: {why}")
            else:
                known[english] = translation
        write(path, known)
    return refused


def prune(path: Path, texts: Mapping[str, bool]) -> None:
    """Drop from the catalogue what is no longer said."""
    with locked(path.parent):
        write(path, {english: translation for english, translation in read(path).items() if english in texts})


def main(arguments: Sequence[str]) -> int:
    action, *named = arguments or [""]
    path = WORDS / f"{os.environ.get('LANGUAGE_TO', 'zh')}.json"
    files = [Path(name).resolve() for name in named]
    if action == "check" and not named:
        found = [*faults(), *problems(read(path), said())]
        print("\n".join(found) or f"{len(said())} texts, all translated")
        return int(bool(found))
    if action == "prune" and not named:
        prune(path, said())
        return 0
    if action == "missing":
        known = read(path)
        print(json.dumps({text: "" for text in said(files) if text not in known}, ensure_ascii=False, indent=1))
        return 0
    if action == "merge" and len(named) == 1:
        refused = merge(path, read(files[0]), said())
        print("\n".join(refused) or "merged")
        return int(bool(refused))
    print("usage: words.py check | missing [files] | merge FILE.json | prune", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
