"""Artifacts: whole or not there, never over another file, never in another folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.artifacts import ArtifactStore
from agentlab.errors import AgentLabError
from agentlab.messages import jsonl, user
from agentlab.spill import SpillError, collect

unix = pytest.mark.skipif(sys.platform == "win32", reason="symbolic links and folders as descriptors")


def numbers() -> Iterator[str]:
    return map(str, range(1, 1_000))


def store_in(folder: Path, **options: Any) -> ArtifactStore:
    return ArtifactStore(folder / "art", base=folder, ids=numbers().__next__, **options)


def names(store: ArtifactStore) -> list[str]:
    return sorted(os.listdir(store.root)) if store.root.is_dir() else []


def test_results_and_transcripts_are_files_of_their_own_id(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    saved = store.save("é\r\n\u2028b")
    assert (saved.path, saved.chars, saved.bytes, saved.lines) == ("art/tool-result-1.txt", 5, 8, 2)
    assert (store.root / "tool-result-1.txt").read_bytes() == "é\r\n\u2028b".encode()
    history = [user("é"), user("b") | {"origin": "repair"}]
    assert store.save_transcript(history).path == "art/transcript-2.jsonl"
    assert (store.root / "transcript-2.jsonl").read_bytes() == jsonl(history)
    assert store.save("").lines == 0 and store.save("a\n").lines == 1
    assert names(store) == ["tool-result-1.txt", "tool-result-3.txt", "tool-result-4.txt", "transcript-2.jsonl"]
    if os.name == "posix":
        assert os.stat(store.root).st_mode & 0o077 == 0 and os.stat(store.root / names(store)[0]).st_mode & 0o077 == 0


def test_ids_are_random_unless_given(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "art")
    assert store.save("x").path != store.save("x").path


@given(text=st.text("ab\n\r\u2028é🟡\ud83d", max_size=20))
def test_any_text_comes_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = ArtifactStore(tmp_path_factory.mktemp("a") / "art")
    saved = store.save(text)
    assert store.find(saved.path) == saved
    assert (store.root / Path(saved.path).name).read_bytes().decode() == text.replace("\ud83d", "\ufffd")


def test_an_id_that_comes_twice_fails_and_overwrites_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "art", ids=lambda: "same")
    store.save("first")
    with pytest.raises(SpillError, match="already"):
        store.save("second")
    store.save_transcript([user("first")])
    with pytest.raises(SpillError, match="already"):
        store.save_transcript([])
    assert (store.root / "tool-result-same.txt").read_text() == "first"
    assert names(store) == ["tool-result-same.txt", "transcript-same.jsonl"]


@pytest.mark.parametrize("id", ["", "../x", "a/b", "a\n", "é", "x" * 129])
def test_an_id_cannot_leave_the_folder(tmp_path: Path, id: str) -> None:
    with pytest.raises(SpillError, match="no id"):
        ArtifactStore(tmp_path / "art", ids=lambda: id).save("x")
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_is_no_json_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match="no JSON"):
        store_in(tmp_path).save_transcript([{"role": "user", "content": b"bytes"}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["..", "../elsewhere", "a/../../b"])
def test_a_folder_outside_of_the_workspace_is_refused_at_once(tmp_path: Path, root: str) -> None:
    with pytest.raises(AgentLabError, match="outside"):
        ArtifactStore(tmp_path / "work" / root, base=tmp_path / "work")


@unix
@pytest.mark.parametrize("link", ["art", "deep", "deep/er"])
def test_a_folder_behind_a_symbolic_link_is_refused(tmp_path: Path, link: str) -> None:
    base, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (base / link).parent.mkdir(parents=True)
    (base / link).symlink_to(elsewhere)
    root = base / link if link == "art" else base / link / "art"
    store = ArtifactStore(root, base=base)
    for save in (lambda: store.save("x"), lambda: store.save_transcript([]), lambda: store.open().close()):
        with pytest.raises(SpillError, match=r"symbolic link|out of the workspace"):
            save()
    assert list(elsewhere.iterdir()) == []


@unix
@pytest.mark.parametrize("moment", ["id", "write", "link", "after"])
def test_a_folder_that_is_swapped_while_writing_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    base, elsewhere, moved = tmp_path / "work", tmp_path / "elsewhere", tmp_path / "moved"
    elsewhere.mkdir()
    (base / "art").mkdir(parents=True)

    def swap() -> None:
        if not moved.exists():
            (base / "art").rename(moved)
            (base / "art").symlink_to(elsewhere)

    def ids() -> str:
        if moment == "id":
            swap()
        return "1"

    real_fsync, real_link = os.fsync, os.link

    def fsync(fd: int) -> None:
        if moment == "write":
            swap()
        real_fsync(fd)

    def link(*args: Any, **options: Any) -> None:
        if moment == "link":
            swap()
        real_link(*args, **options)
        if moment == "after":
            swap()

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(SpillError, match=r"symbolic link|out of the workspace"):
        ArtifactStore(base / "art", base=base, ids=ids).save("secret")
    assert list(elsewhere.iterdir()) == [] and list(moved.iterdir()) == []


@unix
def test_a_folder_that_is_replaced_by_another_folder_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    store.root.mkdir()
    real = os.link

    def link(*args: Any, **options: Any) -> None:
        store.root.rename(tmp_path / "moved")
        store.root.mkdir()
        real(*args, **options)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(SpillError, match="replaced"):
        store.save("x")
    assert names(store) == [] and list((tmp_path / "moved").iterdir()) == []


def test_it_works_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = ArtifactStore(tmp_path / "art", ids=lambda: "same")
    store.save("first")
    with pytest.raises(SpillError, match="already"):
        store.save("second")
    assert names(store) == ["tool-result-same.txt"] and (store.root / "tool-result-same.txt").read_text() == "first"


def test_the_bytes_are_on_the_disk_before_the_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("fsync", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, _real=real, _name=name, **options: (steps.append(_name), _real(*args, **options))[1]
        )
    store_in(tmp_path).save("x")
    assert steps[:2] == ["fsync", "link"] and (steps[2:] == ["fsync"] or sys.platform == "win32")


LIMITED = """
import os, resource, sys
from agentlab.artifacts import ArtifactStore
from agentlab.spill import SpillError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
store = ArtifactStore(sys.argv[1], ids=iter("abc").__next__)
store.save("x" * 1000)
try:
    store.save("x" * 1001)
except SpillError as error:
    print(error.reason, os.listdir(sys.argv[1]))
"""


@unix
def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    script = [sys.executable, "-c", LIMITED, str(tmp_path / "art")]
    ran = subprocess.run(script, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert ran.stdout == "no space ['tool-result-a.txt']\n", ran.stderr


def test_a_collection_knows_its_files_and_leaves_others_alone(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    kept, gone, transcript = store.save("kept"), store.save("gone"), store.save_transcript([])
    (store.root / "notes.txt").write_text("mine")
    with store.open() as sink:
        sink.write(b"streamed")
        streamed = sink.close()
    alive = [{"output_path": kept.path}, {"output_path": transcript.path}, {"output_path": streamed.path}]
    assert collect(store, [alive], dry_run=False).removed == [Path(gone.path).name]
    assert len(names(store)) == 4


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("file/art", "through a file"), ("file/a/b", "through a file"), ("a\ud83d", "no file system")],
    ids=["below a file", "far below", "surrogate"],
)
def test_a_folder_that_cannot_be_is_named_for_what_it_is(tmp_path: Path, folder: str, reason: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SpillError, match=reason) as error:
        ArtifactStore(f"{tmp_path}/{folder}").save("x")
    assert "already" not in str(error.value)


@pytest.mark.parametrize("id", [7, None, b"1", ["1"]], ids=str)
def test_an_id_that_is_no_text_is_refused(tmp_path: Path, id: Any) -> None:
    with pytest.raises(SpillError, match="no id for a file"):
        ArtifactStore(tmp_path / "art", ids=lambda: id).save("x")


def test_ids_that_run_out_are_an_error_of_the_store(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "art", ids=iter(["1"]).__next__)
    store.save("x")
    with pytest.raises(SpillError, match="StopIteration"):
        store.save("y")
    assert names(store) == ["tool-result-1.txt"]
