"""Bytes on disk: torn tails, full disks, kill -9, two writers, and lines that are no records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab import journalfile
from agentlab.errors import AgentLabError
from agentlab.journal import Journal, JournalBusy, JournalError, replay
from agentlab.messages import assistant, call, tool, user
from agentlab.surfaceview import Surface
from tests.cases import case

ROOT = Path(__file__).resolve().parents[1]


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "message": user(text)}


def lay(root: Path, data: bytes) -> Journal:
    """A journal on a file with exactly these bytes."""
    (root / "s.jsonl").write_bytes(data)
    return Journal.open(root, "s")


def numbers(journal: Journal) -> list[int]:
    return [event["seq"] for event in journal.events() if event.get("type") != "broken"]


def broken(journal: Journal) -> list[int]:
    return [event["line"] for event in journal.events() if event.get("type") == "broken"]


def run(script: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.mark.parametrize("id", ["J01", "J02", "J03", "J04", "J06", "J07"])
def test_cases(id: str, tmp_path: Path) -> None:
    found = case(id)
    given, expected = found["input"], found["expected"]
    if "file_hex" in given:
        data = bytes.fromhex(given["file_hex"])
    else:
        data = (given.get("file_bytes") or given.get("file_text") or "\n".join(given.get("file_lines", ()))).encode()
    with lay(tmp_path, data) as journal:
        if "then_append" in given:
            assert journal.append(said("next")) == given["then_append"]["seq"]
        assert numbers(journal) == expected["loaded_seq"]
        assert len(broken(journal)) <= expected.get("reported_bad_lines_max", expected.get("reported_bad_lines", 1))
        if "warning_names_line" in expected:
            assert broken(journal) == [expected["warning_names_line"]]
        if "next_seq" in expected:
            assert next(journal.events())["t"] == expected["t"]
            assert journal.append(said("next")) == expected["next_seq"]
        if "t_of_1" in expected:
            assert next(journal.events())["t"] == expected["t_of_1"] and broken(journal) == []
        if id == "J02":
            assert journal.path.read_bytes().startswith(b'{"seq":1}\n{"seq":2}\n{"seq":3,') and broken(journal) == []
        assert journal.path.read_bytes().startswith(data)  # never changed, never cut


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\x0c", "\r", "\x1c", "a\r\nb", "\x00"])
def test_only_a_newline_ends_a_record(end: str, tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}) as journal:
        journal.append(said(f"a{end}b"))
        journal.append(said("next"))
        assert [message["content"] for message in replay(journal.events()).history] == [f"a{end}b", "next"]
        assert journal.path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize(
    ("line", "seqs", "bad"),
    [
        (b"", [], 0),
        (b"   \t\r", [], 0),
        (b"\0" * 4096, [], 0),
        (b'\0\0{"seq":2}\0\0', [2], 0),
        (b'\xef\xbb\xbf{"seq":2}', [2], 0),
        (b'{"seq":2}\0{"seq":3}', [2, 3], 0),
        (b'{"seq":2} {"seq":3,"t":"to', [2], 1),
        (b'{"seq":2,"t":"to\0\0\0', [], 1),
        (b"42", [], 1),
        (b"[1]", [], 1),
        (b'"text"', [], 1),
        (b"null", [], 1),
        (b'{"seq":2}]', [2], 1),
        (b"[" * 100_000, [], 1),
        (b'{"seq":' + b"9" * 5000 + b"}", [], 1),
        (b"\xff\xfe\xff", [], 1),
    ],
    ids=str,
)
def test_a_line_that_is_no_record_costs_itself(line: bytes, seqs: list[int], bad: int, tmp_path: Path) -> None:
    whole = b'{"seq":1}\n' + line + b'\n{"seq":9}\n'
    with lay(tmp_path, whole) as journal:
        assert numbers(journal) == [1, *seqs, 9]
        assert broken(journal) == [2] * bad
        assert replay(journal.events()).skipped == bad
        assert journal.append(said("next")) == 10


def test_a_tail_of_nul_is_closed_off(tmp_path: Path) -> None:
    with lay(tmp_path, b'{"seq":1}\n' + b"\0" * 4096) as journal:
        assert journal.append(said("next")) == 2
        assert (numbers(journal), broken(journal)) == ([1, 2], [])


def test_bytes_that_are_no_utf8_cost_no_record(tmp_path: Path) -> None:
    with lay(tmp_path, b'{"seq":1,"t":"a\xffb"}\n{"seq":2}\n') as journal:
        assert [event.get("t") for event in journal.events()] == ["a\ufffdb", None]


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\U0001f600\ud83d", 'é\u2028\x00\x1f"\\', "x" * 10_000_000])
def test_every_text_comes_back(text: str, tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}) as journal:
        journal.append(said(text))
        journal.append(said("next"))
        assert [event["message"]["content"] for event in list(journal.events())[1:]] == [text, "next"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_json_comes_back_on_one_line(value: Any) -> None:
    line = journalfile.encode({"value": value})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == {"value": value}


@pytest.mark.parametrize("event", [{"x": {1, 2} | {object}}, {"x": object()}], ids=["set", "object"])
def test_what_json_cannot_hold_is_refused_before_a_byte_is_written(event: dict[str, Any], tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}) as journal:
        before = journal.path.read_bytes()
        with pytest.raises(JournalError, match="nothing was written"):
            journal.append({"type": "note"} | event)
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        with pytest.raises(JournalError, match="nested too deeply"):
            journal.append({"type": "note", "x": nested})
        assert journal.path.read_bytes() == before
        assert journal.append(said("next")) == 2


def session_of(root: Path, size: int) -> bytes:
    """A session's file of at least so many bytes."""
    with Journal.create(root, {"model": "m"}, id="whole", clock=lambda: 1.5) as journal:
        turn = 0
        while journal.path.stat().st_size < size:
            turn += 1
            asked = call("c", "read_file", path=f"{turn}.py")
            journal.append(said(f"ü {turn} 😀"))
            caller = journal.append({"type": "message", "message": assistant("", asked)})
            record = {"id": "c", "name": "read_file", "message": caller}
            journal.append({"type": "tool_call", "record": record | {"status": "running"}})
            journal.append({"type": "tool_call", "record": record | {"status": "completed"}})
            journal.append({"type": "message", "message": tool("c", "line\n" * 150)})
            journal.append({"type": "usage", "usage": {"prompt_tokens": turn}})
        return journal.path.read_bytes()


def ends_of(data: bytes) -> list[int]:
    """Where the records end, newline included."""
    return [at + 1 for at, byte in enumerate(data) if byte == 10]


def test_a_cut_at_every_byte_reads_as_the_whole_records_before_it(tmp_path: Path) -> None:
    data = session_of(tmp_path, 20_000)
    start = 0
    for end in ends_of(data):
        whole = list(journalfile.records([data[start:end]]))
        for cut in range(start + 1, end):
            expected = whole if cut == end - 1 else [{"type": "broken", "line": 1}]
            assert list(journalfile.records([data[start:cut]])) == expected
        start = end
    assert start == len(data)


def test_a_cut_file_goes_on_and_loses_at_most_the_torn_record(tmp_path: Path) -> None:
    data = session_of(tmp_path, 20_000)
    near = {cut + shift for cut in [0, *ends_of(data)] for shift in range(-2, 3)}
    cut_files(tmp_path, data, sorted(cut for cut in near | set(range(0, len(data), 61)) if 0 <= cut <= len(data)))


@pytest.mark.soak
def test_a_file_cut_at_every_byte_goes_on(tmp_path: Path) -> None:
    data = session_of(tmp_path, 20_000)
    cut_files(tmp_path, data, range(len(data) + 1))


def cut_files(root: Path, data: bytes, cuts: Iterable[int]) -> None:
    """At each of these bytes: what is left is read, kept as it is, and appended to."""
    ends = ends_of(data)
    path = root / "s.jsonl"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    for cut in cuts:
        os.ftruncate(fd, 0)
        os.pwrite(fd, data[:cut], 0)
        whole = sum(end <= cut + 1 for end in ends)  # a record that only lacks its newline is whole
        torn = cut > 0 and data[cut - 1] != 10 and cut + 1 not in ends
        with Journal.open(root, "s") as journal:
            assert journal.append(said("next")) == whole + torn + 1
        after = os.pread(fd, 2 * len(data), 0)
        assert after.startswith(data[:cut]) and after.endswith(b'"content":"next"}}\n')
        records = list(journalfile.read(path))
        seen = [record.get("seq", ("broken", record.get("line"))) for record in records]
        assert seen == [*range(1, whole + 1), *[("broken", whole + 1)] * torn, whole + torn + 1]
    os.close(fd)


STORM = """
import signal, sys
from agentlab.journal import Journal
from agentlab.messages import user
from agentlab.surfaceview import Surface

def ring(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, ring)
surface = Surface(Journal.open(sys.argv[1], "s", secrets=()))
seconds, hits, given = 2e-5, 0, []
while hits < 400:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            while True:
                given.append(surface.append(user("x" * 2000)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        hits += 1
        seconds = 2e-5 + hits % 97 * 7e-6
given.append(surface.append(user("last")))
again = Surface(Journal.open(sys.argv[1], "s"))
assert len(given) == len(set(given)), "given out twice"
assert set(given) <= {seq for seq, _ in surface.nodes}, "lost"
assert surface.nodes == again.nodes, "the live view is another one"
print(len(given))
"""


def test_a_storm_of_ctrl_c_gives_no_number_out_twice_and_loses_nothing(tmp_path: Path) -> None:
    Journal.create(tmp_path, {}, id="s")
    done = run(STORM, tmp_path)
    assert done.returncode == 0, done.stderr
    found = numbers(Journal.open(tmp_path, "s"))
    assert found == list(range(1, len(found) + 1)) and len(found) > int(done.stdout) > 0


def test_ctrl_c_straight_behind_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path, {}, id="s")
    surface = Surface(journal)
    surface.append(user("zero"))
    write = os.write

    def interrupted(fd: int, data: bytes) -> int:
        write(fd, data)
        raise KeyboardInterrupt

    for text in ("one", "two"):
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            surface.append(user(text))
        monkeypatch.setattr(os, "write", write)
        assert surface.history()[-1] == user(text)
    assert surface.append_all([user("three"), user("four")]) == [5, 6]
    assert surface.history() == [user(text) for text in ("zero", "one", "two", "three", "four")]
    assert surface.nodes == replay(journal.events()).nodes and surface.last == 6
    assert surface.replace(3, 4, user("both")) == 7
    assert surface.source(7) == (3, 4)
    journal.close()
    assert Surface(Journal.open(tmp_path, "s")).nodes == surface.nodes


def test_a_half_write_and_ctrl_c_cost_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Journal.create(tmp_path, {}, id="s") as journal:

        def interrupted(fd: int, data: bytes) -> int:
            write(fd, data[: len(data) // 2])
            raise KeyboardInterrupt

        journal.append(said("one"))
        for _ in range(2):
            monkeypatch.setattr(os, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.append(said("torn"))
        monkeypatch.setattr(os, "write", write)
        assert journal.append(said("two")) == 5
        assert (numbers(journal), broken(journal)) == ([1, 2, 5], [3, 4])


WRITER = """
import sys
from agentlab.journal import Journal
journal = Journal.open(sys.argv[1], "s", durability=sys.argv[2])
while True:
    number = journal.append({"type": "message", "message": {"role": "user", "content": "x" * 5000}})
    print(number, flush=True)
"""


def kill_writers(root: Path, rounds: int, durability: str = "flush") -> int:
    """Kill a writing process so many times, and return how many records it had acknowledged in all."""
    Journal.create(root, {}, id="s")
    path = root / "s.jsonl"
    acknowledged = {1}
    for turn in range(rounds):
        before = path.read_bytes()
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, root, durability], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            told = [writer.stdout.readline() for _ in range(1 + turn * 7 % 40)]
            writer.send_signal(signal.SIGKILL)
            told += writer.stdout.read().splitlines(keepends=True)
        now = {int(line) for line in told if line.endswith("\n")}
        assert now and not now & acknowledged  # no number is given out twice
        acknowledged |= now
        assert path.read_bytes().startswith(before)
        with Journal.open(root, "s") as journal:
            assert acknowledged <= set(numbers(journal))
            number = journal.append(said(f"after {turn}"))
            assert number > max(acknowledged)
            acknowledged.add(number)
            *_, last = journal.events()
            assert (last["seq"], last["message"]["content"]) == (number, f"after {turn}")
    found = numbers(Journal.open(root, "s"))
    assert found == sorted(set(found))
    return len(acknowledged)


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    assert kill_writers(tmp_path, 20) > 40


FULL = """
import os, resource, sys
from agentlab.journal import Journal, JournalError
with Journal.open(sys.argv[1], "s") as journal:
    journal.append({"type": "note", "text": "first"})
    size = journal.path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[2]), resource.RLIM_INFINITY))
    for _ in range(3):
        try:
            journal.append({"type": "note", "text": "x" * 500})
            print("written")
        except JournalError as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(journal.append({"type": "note", "text": "last"}))
"""


@pytest.mark.parametrize("room", [0, 1, 10, 200, 545])
def test_a_disk_that_is_full_in_the_middle_of_a_record(room: int, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    Journal.create(tmp_path, {}, id="s", clock=lambda: 1.0)
    done = run(FULL, tmp_path, room)
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and done.stderr == ""
    assert all("no space" in line for line in lines[:3])
    journal = Journal.open(tmp_path, "s")
    assert numbers(journal) == [1, 2, int(lines[3])]
    assert broken(journal) == ([3] if room else [])
    assert int(lines[3]) == (4 if room else 3)
    with journal:
        assert journal.append(said("next")) == int(lines[3]) + 1


def test_no_file_is_left_when_a_new_one_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    done = run(
        "import resource, sys\nfrom agentlab.journal import Journal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\nJournal.create(sys.argv[1], {}, id='s')",
        tmp_path,
    )
    assert "could not be created: no space" in done.stderr
    assert os.listdir(tmp_path) == []


HOLDER = """
import sys
from agentlab.journal import Journal
journal = Journal.open(sys.argv[1], "s")
print(journal.append({"type": "note"}), flush=True)
sys.stdin.read()
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    steps = case("J09")["expected"]
    Journal.create(tmp_path, {}, id="s")
    mine = Journal.open(tmp_path, "s")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as theirs:
        assert theirs.stdout is not None and theirs.stdout.readline() == "2\n"
        assert steps["P2_first_write_open"] == "refused with a clear message"
        with pytest.raises(JournalBusy, match=r"Somebody else is writing to session 's'.*read here.*fork"):
            mine.append(said("mine"))
        assert steps["read_only"] == "works" and numbers(mine) == [1, 2]
        theirs.send_signal(signal.SIGKILL)
    assert steps["after_P1_gone"] == "works, next seq = last + 1" and mine.append(said("mine")) == 3
    mine.close()


def test_a_journal_that_was_closed_goes_on_behind_what_others_wrote(tmp_path: Path) -> None:
    first = Journal.create(tmp_path, {}, id="s")
    second = Journal.open(tmp_path, "s")
    assert first.append(said("a")) == 2
    with pytest.raises(JournalBusy):
        second.append(said("b"))
    first.close()
    first.close()
    assert second.append(said("b")) == 3
    second.close()
    assert first.append(said("c")) == 4
    first.close()
    assert [message["content"] for message in replay(first.events()).history] == ["a", "b", "c"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_a_second_writer(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, id="s") as journal:
        journal.append(said("parent"))
        child = os.fork()
        if not child:
            try:
                journal.append(said("child"))
            except JournalBusy:
                os._exit(3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert journal.append(said("parent")) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_close_gives_the_lock_back_while_a_child_lives_and_a_child_cannot(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, {}, id="s")
    assert journal.append(said("parent")) == 2
    waits, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(tells)
        os.read(waits, 1)  # until the parent is done
        os._exit(0)
    os.close(waits)
    other = Journal.open(tmp_path, "s")
    closer = os.fork()
    if not closer:
        journal.close()  # the child's copy: the parent still writes
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(closer, 0)[1]) == 0
    with pytest.raises(JournalBusy):
        other.append(said("too early"))
    journal.close()
    try:
        assert other.append(said("other")) == 3
    finally:
        other.close()
        os.close(tells)
        os.waitpid(child, 0)


@pytest.mark.parametrize("durability", ["flush", "sync"])
def test_threads_share_a_journal(durability: Any, tmp_path: Path) -> None:
    with Journal.create(tmp_path, {}, durability=durability) as journal:
        seqs: list[int] = []

        def write() -> None:
            seqs.extend(journal.append(said("x" * 300)) for _ in range(50))

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seqs) == list(range(2, 202)) and numbers(journal) == list(range(1, 202))


def test_sync_acknowledges_after_the_disk_and_shares_its_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path, {}, durability="sync")
    synced: list[int] = []
    monkeypatch.setattr(journalfile, "_datasync", lambda fd: synced.append(os.fstat(fd).st_size))
    journal.append(said("one"))
    assert synced == [journal.path.stat().st_size]
    assert journal.append_all([said("two"), said("three"), said("four")]) == [3, 4, 5]
    assert synced[1:] == [journal.path.stat().st_size]
    assert journal.append_all([]) == [] and len(synced) == 2
    journal.close()
    assert len(synced) == 2
    with Journal.open(tmp_path, journal.id) as other:
        other.append(said("five"))
    assert len(synced) == 2


def test_a_sync_that_failed_is_never_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = journalfile.Appender(Journal.create(tmp_path, {}).path)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    first = file.write(b'{"seq":2}\n')
    second = file.write(b'{"seq":3}\n')
    monkeypatch.setattr(journalfile, "_datasync", fail)
    with pytest.raises(JournalError, match="could not be synced"):
        file.sync(second)
    monkeypatch.setattr(journalfile, "_datasync", lambda fd: None)
    with pytest.raises(JournalError, match="could not be synced"):
        file.sync(first)  # its bytes were in the sync that failed
    file.sync(file.write(b'{"seq":4}\n'))
    file.close()


def test_a_file_that_was_replaced_is_not_written_to(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, {}, id="s")
    journal.path.unlink()
    with pytest.raises(JournalError, match="There is no session 's'"):
        journal.append(said("x"))
    journal.path.mkdir()
    for use in (lambda: journal.append(said("x")), lambda: list(journal.events())):
        with pytest.raises(JournalError):
            use()
    journal.path.rmdir()
    (tmp_path / "elsewhere").write_bytes(b"")
    journal.path.symlink_to(tmp_path / "elsewhere")
    for use in (lambda: journal.append(said("x")), lambda: list(journal.events())):
        with pytest.raises(AgentLabError, match="symbolic link"):
            use()
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_publish_works_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    Journal.create(tmp_path, {"model": "m"}, id="s")
    with pytest.raises(JournalError, match="already"):
        Journal.create(tmp_path, {}, id="s")
    assert os.listdir(tmp_path) == ["s.jsonl"] and replay(Journal.open(tmp_path, "s").events()).meta == {"model": "m"}
