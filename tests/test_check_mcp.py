"""The checkers of chapter 11: right answers pass, likely wrong ones fail with a line that helps; the clock's faults."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcpservers import CLOCK, children

from agentlab import check
from agentlab.check.mcp_lines import ENDS, LARGE, ONE, _line
from agentlab.check.mcp_live import RIGHT
from agentlab.errors import AgentLabError
from agentlab.jsonrpc import Notice, Peer, Request
from agentlab.mcp import McpConnection, McpError

right = check.answer_ping.solution
Right = check.read_lines.solution


@pytest.fixture(autouse=True)
def every_child_is_reaped() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def failed(report):
    """The first case that failed."""
    found = next((f for f in report.findings if not f.passed), None)
    assert found is not None, "every case passed"
    return found


# --- answering --------------------------------------------------------------------------------------------------------


def test_the_solution_passes_and_runs_the_agent():
    report = check.answer_ping(right)
    assert report.passed, report
    assert report.live.said == RIGHT
    assert [message["role"] for message in report.live.history] == ["user", "assistant", "tool", "assistant"]


def replies(message, result=None):
    return {"jsonrpc": "2.0", "id": message["id"], "result": {} if result is None else result}


def by_truth(message):
    return right(message) if isinstance(message, dict) and message.get("id") else None


def pings_only(message):
    return right(message) if isinstance(message, dict) and message.get("method") == "ping" else None


def yes_to_all(message):
    reply = right(message)
    return replies(message) if reply and "error" in reply else reply


def ids_as_text(message):
    reply = right(message)
    return reply and {**reply, "id": str(reply["id"])}


def ids_as_numbers(message):
    reply = right(message)
    return reply and {**reply, "id": int(reply["id"]) if str(reply["id"]).isdigit() else reply["id"]}


def no_version(message):
    reply = right(message)
    return reply and {key: value for key, value in reply.items() if key != "jsonrpc"}


def answers_notifications(message):
    if isinstance(message, dict) and "method" in message and "id" not in message:
        return {"jsonrpc": "2.0", "id": None, "result": {}}
    return right(message)


def answers_answers(message):
    if isinstance(message, dict) and message.get("jsonrpc") == "2.0" and "id" in message and "method" not in message:
        return replies(message)
    return right(message)


def trusts_any_object(message):
    return right({**message, "jsonrpc": "2.0"}) if isinstance(message, dict) else None


def trusts_everything(message):
    return right(message) if message.get("jsonrpc") == "2.0" else None


def no_roots(message):
    reply = right(message)
    return replies(message) if isinstance(message, dict) and message.get("method") == "roots/list" else reply


def another_code(message):
    reply = right(message)
    return {**reply, "error": {"code": -1, "message": "no"}} if reply and "error" in reply else reply


def text_of_it(message):
    return json.dumps(right(message))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_truth, "server hangs"),
        (pings_only, "server hangs"),
        (lambda message: None, "server hangs"),
        (yes_to_all, "taken for a yes"),
        (ids_as_text, "as it came"),
        (ids_as_numbers, "as it came"),
        (no_version, "no message"),
        (answers_notifications, "nobody who waits"),
        (answers_answers, "an answer to nothing"),
        (trusts_any_object, "Only an object with jsonrpc"),
        (trusts_everything, "Only an object with jsonrpc"),
        (no_roots, "waits for a list"),
        (another_code, "the code for it"),
        (text_of_it, "server hangs"),
    ],
)
def test_a_wrong_reply_fails_and_is_told_why(answer, says):
    assert says in failed_only(answer).why


def failed_only(answer):
    """The first failing case of the judge, without the live loop."""
    return next(f for f in check.answer_ping._judge(answer) if not f.passed)


def test_what_the_server_does_with_a_client_that_does_not_answer():
    live = check.answer_ping(lambda message: None).live
    assert not live.passed and "nobody answered ping" in live.said
    live = check.answer_ping(answers_answers).live
    assert not live.passed and "a question that was not asked: id 0" in live.said
    live = check.answer_ping(lambda message: 1 // 0).live
    assert not live.passed and "ZeroDivisionError" in live.said
    live = check.answer_ping(yes_to_all).live
    assert not live.passed and "the answer to sampling/createMessage is no answer to it" in live.said


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x)))
def test_the_solution_answers_no_junk(junk):
    assert right(junk) is None


# --- reading ----------------------------------------------------------------------------------------------------------


def test_the_solution_reads_and_runs_the_agent():
    report = check.read_lines(Right)
    assert report.passed, report
    assert report.live.said == RIGHT
    assert check.read_lines(lambda: Right()).passed


class Splitlines(Right):
    def feed(self, chunk):
        lines = (self.rest + chunk).decode("utf-8", "surrogateescape").splitlines(keepends=True)
        rest = "" if not lines or lines[-1].endswith("\n") else lines.pop()
        self.rest = rest.encode("utf-8", "surrogateescape")
        ended = [line.strip().encode("utf-8", "surrogateescape") + b"\n" for line in lines]
        return Right().feed(b"".join(ended))


class NoRest:
    def feed(self, chunk):
        return [json.loads(line) for line in chunk.split(b"\n") if line]


class EveryLine(Right):
    def feed(self, chunk):
        *ended, self.rest = (self.rest + chunk).split(b"\n")
        return [json.loads(line) for line in ended]


class EveryJson(Right):
    def feed(self, chunk):
        *ended, self.rest = (self.rest + chunk).split(b"\n")
        found = []
        for line in ended:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


class EveryObject(EveryJson):
    def feed(self, chunk):
        return [message for message in super().feed(chunk) if isinstance(message, dict)]


class DecodesChunks(Right):
    def feed(self, chunk):
        return super().feed(chunk.decode("utf-8", "ignore").encode())


class DecodesLines(Right):
    def feed(self, chunk):
        *ended, self.rest = (self.rest + chunk).split(b"\n")
        texts = [line.decode().strip() for line in ended]
        return [json.loads(text) for text in texts if '"jsonrpc"' in text]


class OneEach(Right):
    def feed(self, chunk):
        return super().feed(chunk)[:1]


class Eager(Right):
    def feed(self, chunk):
        found = super().feed(chunk)
        try:
            found.append(json.loads(self.rest))
            self.rest = b""
        except ValueError:
            pass
        return found


class Shared:
    rest = bytearray()

    def feed(self, chunk):
        *ended, rest = (bytes(self.rest) + chunk).split(b"\n")
        self.rest[:] = rest
        inner = Right()
        return inner.feed(b"".join(line + b"\n" for line in ended))


class Capped(Right):
    def feed(self, chunk):
        found = super().feed(chunk)
        self.rest = self.rest[:65_536]
        return found


class AfterAll(Right):
    def feed(self, chunk):
        return super().feed(chunk) or None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Splitlines, "line feed and nothing else"),
        (NoRest, "where the pipe was full|Its end may still come|hold many lines"),
        (EveryLine, "Only an object with jsonrpc"),
        (EveryJson, "Only an object with jsonrpc"),
        (EveryObject, "Only an object with jsonrpc"),
        (DecodesChunks, "inside a character"),
        (DecodesLines, "One bad line"),
        (OneEach, "hold many lines"),
        (Eager, "Its end may still come"),
        (Shared, "belongs to one connection"),
        (Capped, "as large as it likes"),
        (AfterAll, "empty list"),
    ],
)
def test_a_wrong_reader_fails_and_is_told_why(answer, says):
    found = next(f for f in check.read_lines._judge(answer) if not f.passed)
    assert any(part in found.why for part in says.split("|"))
    assert found.fed


def test_a_reader_that_misses_the_answer_is_told_so_at_once():
    class Cut(Right):
        def feed(self, chunk):
            return super().feed(chunk.replace("\u2028".encode(), b"\n"))

    live = check.read_lines(Cut).live
    assert not live.passed and "not among the messages" in live.said
    live = check.read_lines(EveryLine).live
    assert not live.passed and "JSONDecodeError" in live.said


@given(st.lists(st.sampled_from([_line(ONE), _line(ENDS), b"noise\n", b"42\n", b"\n", _line(LARGE)])), st.data())
def test_the_solution_reads_what_the_module_reads(lines, data):
    stream = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    edges = [0, *cuts, len(stream)]
    mine = Right()
    got = [message for start, end in pairwise(edges) for message in mine.feed(stream[start:end])]
    assert got == [json.loads(line) for line in lines if line.startswith(b"{")]


# --- both, and the server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", [check.answer_ping, check.read_lines], ids=lambda exercise: exercise.name)
def test_hints_and_wrong_kinds_of_answers(exercise):
    for number in 1, 2, 3:
        assert repr(exercise.hint(number)).startswith(f"Hint {number} of 3: ")
    for answer in (None, "text", 3, Right()):
        with pytest.raises(AgentLabError, match="without brackets"):
            exercise(answer)


def test_the_clocks_large_line_and_its_stuck_call():
    async def main():
        async with McpConnection("clock", sys.executable, [CLOCK, "--fault", "large"]) as clock:
            assert len((await clock.call("now")).text) > 100_000
        seen = []
        async with McpConnection(
            "clock", sys.executable, [CLOCK, "--fault", "stuck"], call_timeout_s=0.2,
            trace=lambda way, message: seen.append(message),
        ) as clock:  # fmt: skip
            with pytest.raises(McpError, match="did not answer tools/call"):
                await clock.call("now")
        asked = [message for message in seen if isinstance(message, Request)][-1]
        told = [message for message in seen if isinstance(message, Notice)][-1]
        assert told.method == "notifications/cancelled" and told.params["requestId"] == asked.id

    asyncio.run(main())


def test_the_module_and_the_solution_agree_on_what_is_asked():
    for line in (b'{"jsonrpc":"2.0","id":0,"method":"ping"}\n', b'{"method":"ping","id":5}\n', b"[1]\n"):
        [event] = Peer().feed(line)
        assert isinstance(event, Request) == (right(json.loads(line)) is not None)
