"""What the model is told, what runs, and what comes back, whatever the model sends."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
from typing import Annotated, Any, Literal, Optional

import pytest
from clean_run import run
from hypothesis import given
from hypothesis import strategies as st

from agentlab import jsonio
from agentlab.errors import AgentLabError, StopRequested, ToolError
from agentlab.interrupt import Stop
from agentlab.messages import assistant, call, user
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE, problems
from agentlab.permissions import Policy, Rule
from agentlab.tools import Output, Registry, Tool, ToolResult, read_call

ANYTHING = Policy(default="allow")


def registry_of(*handlers: Any, **options: Any) -> Registry:
    registry = Registry()
    for handler in handlers:
        registry.tool(**options)(handler)
    return registry


def dispatch(
    handler: Any, /, *, policy: Policy | None = ANYTHING, stop: Stop | None = None, **input: Any
) -> ToolResult:
    registry = registry_of(handler)
    return run(registry.dispatch(call("c1", registry.names()[0], **input), stop=stop, policy=policy))


async def for_ever() -> None:
    await asyncio.Event().wait()


# ---------------------------------------------------------------- what the model is told


def every_type(
    text: str,
    count: int,
    share: float,
    sure: bool,
    names: list[str],
    rows: list[dict[str, int]],
    extra: dict[str, Any],
    mode: Literal["head", "tail"],
    level: Literal[1, 2],
    mixed: Literal["all", 1],
    path: Annotated[str, "where the file is"],
    maybe: Optional[int] = None,  # noqa: UP045 -- the older spelling must work too
    newer: str | None = None,
    both: Annotated[list[str] | None, "several"] = None,
    either: int | str = 0,
    anything: Any = None,
    bare: list = [],  # type: ignore[type-arg]  # noqa: B006
    untyped=1,  # type: ignore[no-untyped-def]
    *,
    only: bool = False,
) -> str:
    """Do everything.

    In two paragraphs.
    """
    return ""


def test_type_hints_become_a_schema() -> None:
    (spec,) = registry_of(every_type).specs()
    assert spec["type"] == "function"
    assert spec["function"]["name"] == "every_type"
    assert spec["function"]["description"] == "Do everything.\n\nIn two paragraphs."
    parameters = spec["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["properties"] == {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "rows": {"type": "array", "items": {"type": "object"}},
        "extra": {"type": "object"},
        "mode": {"type": "string", "enum": ["head", "tail"]},
        "level": {"type": "integer", "enum": [1, 2]},
        "mixed": {"enum": ["all", 1]},
        "path": {"type": "string", "description": "where the file is"},
        "maybe": {"type": "integer"},
        "newer": {"type": "string"},
        "both": {"type": "array", "items": {"type": "string"}, "description": "several"},
        "either": {},
        "anything": {},
        "bare": {"type": "array", "items": {}},
        "untyped": {},
        "only": {"type": "boolean"},
    }
    assert parameters["required"] == list(parameters["properties"])[:11]


def test_specs_are_the_same_bytes_each_time() -> None:
    def read_file(path: Annotated[str, "relative"], limit: int = 10) -> str:
        """Read."""
        return ""

    def now() -> str:
        return ""

    expected = (
        '[{"type":"function","function":{"name":"read_file","description":"Read.","parameters":{"type":"object",'
        '"properties":{"path":{"type":"string","description":"relative"},"limit":{"type":"integer"}},'
        '"required":["path"]}}},{"type":"function","function":{"name":"now","description":"",'
        '"parameters":{"type":"object","properties":{},"required":[]}}}]'
    )
    registry = registry_of(read_file, now)
    assert jsonio.dumps(registry.specs()) == expected
    assert jsonio.dumps(registry.specs()) == jsonio.dumps(registry_of(read_file, now).specs())


def test_the_decorator_gives_the_function_back_and_takes_options() -> None:
    registry = Registry()

    @registry.tool
    def plain(a: int) -> int:
        return a + 1

    @registry.tool(name="renamed", read_only=True, log=True, spillable=False)
    def other() -> None: ...

    assert plain(1) == 2
    assert other() is None
    assert registry.names() == ["plain", "renamed"]
    assert len(registry) == 2
    assert "renamed" in registry
    assert "other" not in registry
    assert registry.get("other") is None
    first, second = registry.get("plain"), registry.get("renamed")
    assert first and (first.read_only, first.log, first.spillable) == (False, False, True)
    assert second and (second.read_only, second.log, second.spillable) == (True, True, False)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "häh", "x" * 65, "a/b", "a\n", "run_tool\0"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(AgentLabError, match="cannot be a tool's name"):
        Registry([Tool(name, "", {}, print)])


def test_a_name_can_be_taken_once() -> None:
    registry = Registry([Tool("x" * 64, "", {}, print), Tool("a", "", {}, print)])
    with pytest.raises(AgentLabError, match="already"):
        registry.add(Tool("a", "", {}, print))
    assert len(registry) == 2


def test_arguments_without_a_name_cannot_be_a_tool() -> None:
    def star(*paths: str) -> None: ...
    def double(**options: str) -> None: ...
    def positional(path: str, /) -> None: ...

    for handler in (star, double, positional):
        with pytest.raises(AgentLabError, match="every argument needs a name"):
            registry_of(handler)


def test_a_method_is_a_tool_without_its_self() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, step: int = 1) -> int:
            self.count += step
            return self.count

    counter = Counter()
    result = dispatch(counter.add, step=3)
    assert (result.status, result.output, counter.count) == ("completed", "3", 3)


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (3.5, "3.5"),
        ({"ä": [1, None]}, '{"ä":[1,null]}'),
        ("\ud800", "\ufffd"),
        ({"half": "\ud800"}, '{"half":"\\ud800"}'),
        (b"ab", "b'ab'"),
        ({1, 2}, "{1, 2}"),
        (2**70, str(2**70)),
    ],
)
def test_output_is_text(value: Any, output: str) -> None:
    def plain() -> Any:
        return value

    async def asynchronous() -> Any:
        await asyncio.sleep(0)
        return value

    for handler in (plain, asynchronous):
        result = dispatch(handler)
        assert (result.status, result.output) == ("completed", output)


def test_an_output_that_holds_itself_is_text_too() -> None:
    def ring() -> Any:
        value: list[Any] = []
        value.append(value)
        return value

    assert dispatch(ring).output == "[[...]]"


def test_the_result_says_what_was_called() -> None:
    def add(a: int, b: int = 2) -> int:
        return a + b

    registry = registry_of(add, spillable=False)
    result = run(registry.dispatch(call("c9", "add", a=1), policy=ANYTHING))
    assert result == ToolResult("c9", "add", {"a": 1}, "completed", "3", spillable=False, output_path=None)
    assert result.message() == {"role": "tool", "tool_call_id": "c9", "content": "3"}


def test_async_plain_and_wrapped_handlers_run_alike() -> None:
    def plain(a: int) -> int:
        return a * 2

    async def asynchronous(a: int) -> int:
        return a * 2

    class Callable:
        async def __call__(self, a: int) -> int:
            return a * 2

    handlers: list[Any] = [plain, asynchronous, Callable(), functools.partial(asynchronous), lambda a: asynchronous(a)]
    for handler in handlers:
        tool = Tool("t", "", {"type": "object", "properties": {"a": {"type": "integer"}}}, handler)
        assert run(Registry([tool]).dispatch(call("c", "t", a=4), policy=ANYTHING)).output == "8"


def test_a_slow_plain_handler_does_not_hold_up_the_loop() -> None:
    async def main() -> None:
        go_on = threading.Event()

        def slow() -> str:
            return str(go_on.wait(20))

        task = asyncio.create_task(registry_of(slow).dispatch(call("c", "slow"), policy=ANYTHING))
        await asyncio.sleep(0)
        go_on.set()  # can only be reached while the handler waits
        assert (await task).output == "True"

    run(main())


def test_where_there_are_no_threads_a_plain_handler_runs_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def plain() -> str:
        threads.append(threading.current_thread())
        return "done"

    def first() -> Any:
        return next(iter([]))

    monkeypatch.setattr(sys, "platform", "emscripten")
    assert dispatch(plain).output == "done"
    assert threads == [threading.main_thread()]
    assert dispatch(first).status == "failed"


def _raises(error: BaseException) -> Any:
    def plain() -> Any:
        raise error

    async def asynchronous() -> Any:
        await asyncio.sleep(0)
        raise error

    return plain, asynchronous


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad value"), "ValueError: bad value"),
        (KeyError("k"), "KeyError: 'k'"),
        (RuntimeError(), "RuntimeError"),
        (ExceptionGroup("two", [ValueError("a"), OSError("b")]), "two"),
        (TimeoutError(), "TimeoutError"),
        (SystemExit(2), "SystemExit: 2"),  # argparse does this for bad arguments
        (asyncio.CancelledError(), "CancelledError"),  # of something inside the tool: nobody cancelled the call
    ],
)
def test_a_handler_that_raises_has_failed(error: BaseException, said: str) -> None:
    for handler in _raises(error):
        result = dispatch(handler)
        assert result.status == "failed"
        assert said in result.output
        assert result.output.endswith("Check the input before you try again.")


def test_a_plain_handler_that_runs_out_of_items_has_failed_and_does_not_hang() -> None:
    def first() -> Any:
        return next(iter([]))

    result = dispatch(first)
    assert (result.status, "StopIteration" in result.output) == ("failed", True)


def test_an_error_that_cannot_even_be_printed_is_a_failure_like_any_other() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    for handler in _raises(Broken()):
        assert dispatch(handler).status == "failed"


def test_the_text_of_a_tool_error_is_the_output() -> None:
    for handler in _raises(ToolError("No such file. List the folder first.")):
        result = dispatch(handler)
        assert (result.status, result.output) == ("failed", "No such file. List the folder first.")


# ---------------------------------------------------------------- what the model gets wrong


def _search(pattern: str, path: str = ".", limit: int = 10) -> str:
    raise AssertionError("must not run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"pattern": "x"', "not valid JSON"),
        ("pattern=x", "not valid JSON"),
        (" ", "not valid JSON"),
        ("[1]", "one JSON object"),
        ('"pattern"', "one JSON object"),
        ("null", "one JSON object"),
        (7, "not valid JSON"),
        (["pattern"], "not valid JSON"),
        ("{}", "Missing argument: pattern"),
        ("", "Missing argument: pattern"),
        (None, "Missing argument: pattern"),
        ('{"path": "."}', "Missing argument: pattern"),
        ('{"pattern": "x", "regex": true, "q": 1}', "Unknown argument: regex, q"),
        ({"pattern": "x", 1: 2}, "Unknown argument: 1"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a":' * 100_000, "not valid JSON"),
        ("9" * 5000, "not valid JSON"),
    ],
)
def test_bad_arguments_never_reach_the_handler(arguments: Any, said: str) -> None:
    made = {"id": "c", "type": "function", "function": {"name": "_search", "arguments": arguments}}
    result = run(registry_of(_search).dispatch(made, policy=ANYTHING))
    assert result.status == "failed"
    assert said in result.output
    assert "must not run" not in result.output
    assert len(result.output) < 500
    if "argument:" in said:
        assert "_search takes: pattern, path, limit." in result.output


def test_an_unknown_tool_is_told_with_the_known_ones() -> None:
    def a() -> None: ...
    def b() -> None: ...

    result = run(registry_of(a, b).dispatch(call("c", "x" * 10_000), policy=ANYTHING))
    assert result.status == "failed"
    assert result.output.endswith("The tools are: a, b.")
    assert len(result.output) < 300
    assert "The tools are: none." in run(Registry().dispatch(call("c", "a"))).output


@pytest.mark.parametrize(
    ("parameters", "input", "status"),
    [
        ({}, {"any": 1}, "completed"),
        ({"type": "object"}, {"any": 1}, "completed"),
        ({"properties": None, "required": None}, {"any": 1}, "completed"),
        ({"properties": {"a": {}}}, {"b": 1}, "failed"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "failed"),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, "completed"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"b": 1}, "completed"),
        ({"properties": {"a": {}}, "additionalProperties": {}}, {"b": 1}, "completed"),
        ({"properties": {"a": {}}, "required": ["a"]}, {}, "failed"),
        ({"properties": {"a": {}}, "required": None}, {}, "completed"),
        ({"properties": {"a": {}}, "required": "a"}, {}, "completed"),
        ({"properties": {"a": {}}, "required": [["a"], {}]}, {}, "completed"),
    ],
)
def test_a_schema_of_another_server_may_hold_anything(parameters: Any, input: Any, status: str) -> None:
    tool = Tool("t", "", parameters, lambda **given: given)
    result = run(Registry([tool]).dispatch(call("c", "t", **input), policy=ANYTHING))
    assert result.status == status


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
things = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner),
    max_leaves=8,
)
names = st.sampled_from(["strict", "free", "broken"]) | things
arguments = things | st.sampled_from(
    ["{}", '{"a":1}', '{"a":1', '{"b":2}', "[]", "NaN", '{"a":1}{"a":1}', '{"a":"\\ud800"}']
)
functions = st.fixed_dictionaries({}, optional={"name": names, "arguments": arguments})
calls = st.fixed_dictionaries({}, optional={"id": things, "type": things, "function": functions | things}) | (
    st.dictionaries(st.text(max_size=8), things, max_size=3)
)


@given(calls)
def test_dispatch_never_raises(made: Any) -> None:
    async def strict(a: int = 0) -> int:
        return a

    async def free(**given: Any) -> Any:
        return given

    async def broken(**given: Any) -> Any:
        raise LookupError("always")

    registry = registry_of(strict)
    for handler in (free, broken):
        registry.add(Tool(handler.__name__, "", {"type": "object"}, handler))
    result = run(registry.dispatch(made, policy=ANYTHING))
    assert result.status in ("completed", "failed")
    assert (type(result.call_id), type(result.name), type(result.output)) == (str, str, str)
    assert (result.call_id, result.name) == read_call(made)[:2]
    jsonio.dumps(result.message()).encode()


# ---------------------------------------------------------------- permission


def test_what_the_policy_refuses_does_not_run() -> None:
    ran: list[str] = []

    def write_file(path: str) -> str:
        ran.append(path)
        return "written"

    for policy in (None, Policy(), Policy([Rule("deny")]), Policy([Rule("allow", when=lambda _: 1 / 0)])):
        result = dispatch(write_file, policy=policy, path="a")
        assert result.status == "rejected"
        assert result.input == {"path": "a"}
        assert "did not run" in result.output
    assert ran == []
    assert dispatch(write_file, path="a").status == "completed"
    assert ran == ["a"]


def test_reading_runs_by_default() -> None:
    registry = registry_of(lambda_named_read(), read_only=True)
    assert run(registry.dispatch(call("c", "read"))).status == "completed"


def lambda_named_read() -> Any:
    def read() -> str:
        return "text"

    return read


# ---------------------------------------------------------------- Stop and Interrupt


def test_a_call_that_has_not_started_did_not_run() -> None:
    stop = Stop()
    stop.request()
    result = dispatch(_search, stop=stop, pattern="x")
    assert (result.status, result.output) == ("interrupted", INTERRUPT_NOTE)
    assert result.message()["origin"] == "repair"


def test_a_call_that_was_running_has_unknown_effects() -> None:
    async def main() -> None:
        stop, log, started = Stop(), [], asyncio.Event()

        async def work() -> None:
            log.append("started")
            started.set()
            try:
                await for_ever()
            finally:
                log.append("cleaned up")

        task = asyncio.create_task(registry_of(work).dispatch(call("c", "work"), stop=stop, policy=ANYTHING))
        await started.wait()
        stop.request()
        result = await task
        assert (result.status, result.output) == ("interrupted", UNKNOWN_NOTE)
        assert log == ["started", "cleaned up"]
        assert problems([user("go"), assistant("", call("c", "work")), result.message()]) == []

    run(main())


def test_a_plain_handler_in_its_thread_does_not_hold_up_stop() -> None:
    async def main() -> None:
        stop, started, go_on = Stop(), threading.Event(), threading.Event()

        def slow() -> None:
            started.set()
            go_on.wait(20)

        task = asyncio.create_task(registry_of(slow).dispatch(call("c", "slow"), stop=stop, policy=ANYTHING))
        await asyncio.to_thread(started.wait, 20)
        stop.request()
        assert (await task).output == UNKNOWN_NOTE
        go_on.set()

    run(main())


def test_stop_while_the_person_is_asked_means_that_it_did_not_run() -> None:
    async def main() -> None:
        stop = Stop()
        asked = asyncio.Event()

        async def ask(tool: Any, input: Any) -> bool:
            asked.set()
            await for_ever()
            return True

        task = asyncio.create_task(
            registry_of(_search).dispatch(call("c", "_search", pattern="x"), stop=stop, policy=Policy(ask=ask))
        )
        await asked.wait()
        stop.request()
        result = await task
        assert (result.status, result.output) == ("interrupted", INTERRUPT_NOTE)

    run(main())


@pytest.mark.parametrize("answer", [True, False])
def test_stop_together_with_the_answer_means_that_it_did_not_run(answer: bool) -> None:
    stop = Stop()

    async def ask(tool: Any, input: Any) -> bool:
        stop.request()
        return answer

    result = dispatch(_search, policy=Policy(ask=ask), stop=stop, pattern="x")
    assert (result.status, result.output) == ("interrupted", INTERRUPT_NOTE)


def test_a_handler_that_finishes_in_spite_of_stop_has_completed() -> None:
    stop = Stop()

    async def quick() -> str:
        stop.request()
        return "done"

    async def careful() -> str:
        stop.request()
        try:
            await for_ever()
        except asyncio.CancelledError:
            return "saved what there was"
        return "never"

    assert dispatch(quick, stop=stop).output == "done"
    stop = Stop()
    assert dispatch(careful, stop=stop).output == "saved what there was"


def test_a_handler_that_is_stopped_by_its_own_means_is_interrupted() -> None:
    for handler in _raises(StopRequested("the model inside the tool was stopped")):
        assert dispatch(handler).output == UNKNOWN_NOTE


def test_a_handler_that_fails_while_it_is_stopped_shows_its_failure() -> None:
    stop = Stop()

    async def work() -> None:
        stop.request()
        try:
            await for_ever()
        finally:
            raise OSError("disk full")

    result = dispatch(work, stop=stop)
    assert (result.status, "disk full" in result.output) == ("failed", True)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
@pytest.mark.parametrize("pressed", ["interrupt", "stop"])
def test_a_running_child_process_dies_with_its_call(pressed: str) -> None:
    """Case I07: the cancellation reaches the handler, which kills and reaps its child, and goes on to the task."""

    async def main() -> None:
        stop, pids, started = Stop(), [], asyncio.Event()

        async def shell(command: str) -> str:
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_shell(command, stdout=pipe, start_new_session=True)
            try:
                assert process.stdout
                pids.append(int(await process.stdout.readline()))  # a grandchild, in the same group
                started.set()
                return str(await process.stdout.read())
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                pids.append(process.pid)
                await process.communicate()

        made = call("c", "shell", command="sleep 60 & echo $!; wait")
        task = asyncio.create_task(registry_of(shell).dispatch(made, stop=stop, policy=ANYTHING))
        await started.wait()
        if pressed == "stop":
            stop.request()
            assert (await task).output == UNKNOWN_NOTE
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
        grandchild, child = pids
        with pytest.raises(ProcessLookupError):  # gone and reaped
            os.kill(child, 0)
        for _ in range(200):  # whoever adopted the grandchild reaps it
            if not _alive(grandchild):
                break
            await asyncio.sleep(0.01)
        assert not _alive(grandchild)

    run(main())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# ---------------------------------------------------------------- a handler that has saved its output itself


def test_a_handler_may_say_in_which_file_its_whole_output_is() -> None:
    def long() -> Output:
        """Long."""
        return Output("both ends \ud83d", "spill/0001.txt")

    def broken() -> Output:
        """Fails late."""
        raise ToolError("the end\n[exit code 1]", output_path="spill/0002.txt")

    done, failed = dispatch(long), dispatch(broken)
    assert (done.status, done.output, done.output_path) == ("completed", "both ends \ufffd", "spill/0001.txt")
    assert (failed.status, failed.output_path) == ("failed", "spill/0002.txt")
    said = {"role": "tool", "tool_call_id": "c1", "content": "both ends \ufffd"}
    assert done.message() == {**said, "output_path": "spill/0001.txt"}


def test_no_output_holds_a_lone_surrogate_whatever_came_of_the_call() -> None:
    def fails(text: str) -> str:
        """Fails."""
        raise ValueError("half an emoji \ud83d") if text else ToolError("half \ud83d")

    for input in ({"text": "x"}, {"text": ""}, {"text": "x", "\ud83d": 1}):
        result = dispatch(fails, **input)
        assert result.status == "failed"
        assert "\ufffd" in result.output
        result.output.encode()


def test_a_refused_call_says_what_it_was_given_so_that_attempts_can_be_told_apart() -> None:
    def read(path: str) -> str:
        """Read."""
        return path

    assert dispatch(read, file="a").input == {"file": "a"}
    assert dispatch(read).input == {}
