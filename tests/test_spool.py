"""An output of any size is kept whole in bounded memory: small ones as text, large ones in a file."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.spill import OutputBudget, SpillStore
from agentlab.spool import Spool, Spooled
from agentlab.terminal import clean, decode

BUDGET = OutputBudget(preview=200, tail=40)


def spooled(data: bytes, store: SpillStore, *, limit: int, size: int = 100, mode: str = "head") -> Spooled:
    with Spool(store, BUDGET, limit=limit) as spool:
        for at in range(0, len(data), size):
            spool.add(data[at : at + size])
        return spool.close("tail" if mode == "tail" else "head")


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_small_output_touches_no_disk(tmp_path: Path) -> None:
    data = b"\x1b[1mone\x1b[0m\r\ntwo 1%\rtwo 2%\n"
    assert spooled(data, SpillStore(tmp_path / "s"), limit=100) == Spooled("one\ntwo 2%")
    assert files(tmp_path) == []


@pytest.mark.parametrize("mode", ["head", "tail"])
def test_a_large_output_is_whole_on_disk_and_both_ends_are_shown(tmp_path: Path, mode: str) -> None:
    lines = [f"line {n} é" for n in range(60_000)]
    data = ("\n".join(lines) + "\n").encode()
    store = SpillStore(tmp_path / "s", base=tmp_path)
    result = spooled(data, store, limit=10_000, size=7_777, mode=mode)
    [file] = files(tmp_path / "s")
    assert file.read_bytes() == data
    assert result.path == f"s/{file.name}"
    text, _, note = result.text.rpartition("\n[All ")
    assert note.startswith(
        f'{len(data.decode())} characters, 60000 lines, are saved. Read on with read_file("s/{file.name}"'
    )
    assert len(text) <= 200
    first, last = text.split("omitted] …")
    assert first.startswith("line 0 é")
    assert last.endswith("line 59999 é\n")
    assert (len(first) > len(last)) == (mode == "head")


@given(st.text("ab\r\né\x1b[m日", max_size=80), st.integers(0, 60), st.integers(1, 9))
def test_in_memory_and_on_disk_it_is_the_same_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, limit: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    whole = clean(decode(text.encode()))
    result = spooled(text.encode(), SpillStore(folder / "s"), limit=limit, size=size)
    if len(whole) <= limit:
        assert result == Spooled(whole.rstrip("\n"))
        assert files(folder) == []
    else:
        [file] = files(folder / "s")
        assert file.read_bytes() == whole.encode()


def test_an_output_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Spool(SpillStore(tmp_path / "s"), BUDGET, limit=10) as spool:
        spool.add(b"x\n" * 500)
        assert len(files(tmp_path / "s")) == 1
        raise KeyboardInterrupt
    assert files(tmp_path / "s") == []


def test_a_full_disk_costs_the_middle_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file where the folder should be")
    result = spooled(b"begin " + b"x" * 100_000 + b" end", SpillStore(tmp_path / "s"), limit=10)
    assert result.path is None
    assert (
        "x end\n[100010 characters in all; the full output could not be saved (s is a file, not a folder)"
        in result.text
    )
    assert result.text.startswith("begin x")


def test_a_disk_that_fills_up_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SpillStore(tmp_path / "s")
    with Spool(store, BUDGET, limit=10) as spool:
        spool.add(b"x\n" * 500)
        assert spool._sink is not None

        def full(data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(spool._sink, "_file", _Failing(spool._sink._file, full))
        spool.add(b"y" * 100_000)
        result = spool.close()
    assert "could not be saved (no space)" in result.text
    assert result.path is None
    assert files(tmp_path / "s") == []


class _Failing:
    def __init__(self, file: object, write: object) -> None:
        self._file, self.write = file, write

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    chunk = b"a line of a log, and another one\n" * 2_000
    tracemalloc.start()
    try:
        with Spool(SpillStore(tmp_path / "s"), OutputBudget()) as spool:
            for _ in range(500):
                spool.add(chunk)
            spool.close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    [file] = files(tmp_path / "s")
    assert file.stat().st_size == 500 * len(chunk)
    assert peak < 10_000_000  # of 33 MB


@pytest.mark.parametrize("limit", [10, 1_000])
def test_what_is_said_of_the_end_stands_behind_the_output(tmp_path: Path, limit: int) -> None:
    for data in (b"one\ntwo\nthree\n", b"one\ntwo\nthree"):
        with Spool(SpillStore(tmp_path / "s"), BUDGET, limit=limit) as spool:
            spool.add(data)
            result = spool.close("tail", ending="[exit code 1]")
        assert result.text.startswith("one\ntwo\nthree\n[exit code 1]")
        if result.path:
            assert files(tmp_path / "s")[-1].read_text() == "one\ntwo\nthree\n[exit code 1]"


def test_only_a_command_without_output_is_said_to_have_none(tmp_path: Path) -> None:
    with Spool(SpillStore(tmp_path / "s"), OutputBudget(preview=0), limit=10) as spool:
        spool.add(b"x\n" * 100)
        assert "(no output)" not in spool.close(blank="(no output)").text
    with Spool(SpillStore(tmp_path / "s"), BUDGET) as spool:
        assert spool.close(ending="[exit code 1]", blank="(no output)").text == "(no output)\n[exit code 1]"


def test_an_output_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    result = spooled(b"x\n" * 5_000, SpillStore(tmp_path / "s", max_bytes=4_000), limit=10)
    assert "10000 characters in all; the full output could not be saved (it has more than 4,000 bytes)" in result.text
    assert files(tmp_path / "s") == []
