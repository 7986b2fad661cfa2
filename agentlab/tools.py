"""The registry of tools, and dispatch: one tool call in, one structured result out.

The registry is the single source for what the model is told (`specs`) and for what runs (`dispatch`). Whatever goes
wrong becomes text for the model, with the next step in it, plus a `status` field; nobody ever reads the wording to
learn the status. (Seed 003, "registry and dispatch".)
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import sys
import threading
import traceback
import types
import typing
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, overload

from agentlab import jsonio
from agentlab.errors import AgentLabError, StopRequested, ToolError
from agentlab.interrupt import Stop
from agentlab.messages import Message, ToolCall
from agentlab.messages import tool as tool_message
from agentlab.pairing import INTERRUPT_NOTE, UNKNOWN_NOTE
from agentlab.permissions import Policy

Status = Literal["completed", "failed", "rejected", "interrupted"]
Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)

_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
_in_force: ContextVar[Policy | None] = ContextVar("the policy of the call that is running", default=None)
_JSON_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


@dataclass(frozen=True)
class Tool:
    """One tool: what the model is told, and the handler that runs.

    `parameters` is a JSON Schema object. `read_only` tools change nothing: they are allowed by default and may run at
    once. `log` says that the output is a log that may be folded. `spillable` says that a long output may be moved to
    a file; a tool that reads files is not, since its file is there already.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    handler: Handler = field(repr=False)
    read_only: bool = False
    log: bool = False
    spillable: bool = True

    def spec(self) -> dict[str, Any]:
        """The tool as a request's `tools` array shows it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Output:
    """What a handler returns when it has saved its whole output in a file: the text for the model, and the file."""

    text: str
    output_path: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """What came of one call. `input` is what the handler was given; `output` is the text for the model.

    `output_path` names the file that holds the whole output, where only a part of it stands in `output`.
    """

    call_id: str
    name: str
    input: dict[str, Any]
    status: Status
    output: str
    spillable: bool = True
    output_path: str | None = None

    def message(self) -> Message:
        """The tool message that answers the call, with our own keys where they say something.

        After an interrupt no tool wrote it: its `origin` says so. `output_path` keeps the file from being collected.
        """
        message = tool_message(self.call_id, self.output)
        if self.status == "interrupted":
            message["origin"] = "repair"
        if self.output_path is not None:
            message["output_path"] = self.output_path
        return message


class Registry:
    """Tools by name, in the order in which they were added: the same tools give the same bytes in every request."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self.add(*tools)

    def add(self, *tools: Tool) -> None:
        """Add tools. Raises AgentLabError when a name is taken, or is one that providers refuse."""
        for tool in tools:
            if not callable(tool.handler):
                raise AgentLabError(f"{tool.handler!r} cannot be called. Write @registry.tool over the function.")
            if not _NAME.fullmatch(tool.name):
                raise AgentLabError(f"{tool.name!r} cannot be a tool's name. Use 1 to 64 letters, digits, _ and -.")
            if tool.name in self._tools:
                raise AgentLabError(f"There is a tool named {tool.name!r} already. Give this one another name.")
            self._tools[tool.name] = tool

    @overload
    def tool(self, handler: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        read_only: bool = False,
        log: bool = False,
        spillable: bool = True,
    ) -> Callable[[F], F]: ...
    def tool(
        self,
        handler: F | None = None,
        /,
        *,
        name: str | None = None,
        read_only: bool = False,
        log: bool = False,
        spillable: bool = True,
    ) -> F | Callable[[F], F]:
        """Decorator: the function becomes a tool. Name, docstring and type hints tell the model how to call it."""

        def register(function: F) -> F:
            if not callable(function):
                raise AgentLabError(f"{function!r} is no function. Write @registry.tool or @registry.tool(name=...).")
            self.add(
                Tool(
                    getattr(function, "__name__", type(function).__name__) if name is None else name,
                    inspect.getdoc(function) or "",
                    _schema(function),
                    function,
                    read_only=read_only,
                    log=log,
                    spillable=spillable,
                )
            )
            return function

        return register if handler is None else register(handler)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._tools.get(name)

    def names(self) -> list[str]:
        """The names of all tools, in order."""
        return list(self._tools)

    def specs(self) -> list[dict[str, Any]]:
        """The `tools` array of a request."""
        return [tool.spec() for tool in self._tools.values()]

    async def dispatch(
        self,
        call: ToolCall,
        *,
        stop: Stop | None = None,
        policy: Policy | None = None,
        on_start: Callable[[str], object] | None = None,
    ) -> ToolResult:
        """Run one tool call and say what came of it. Never raises for what the model or the tool did wrong.

        Status `completed` or `failed` by the handler, `rejected` by the policy, `interrupted` by `stop`. Without a
        policy a call that a running tool makes is judged by the one that let this tool run; else by the default one:
        reading is allowed, the rest asks, and nobody is there to ask. A cancellation from outside
        passes through as CancelledError. `on_start(id)` is called when the handler is entered: from then on the effects
        of a call that is cut off are unknown.
        """
        id, name, raw = read_call(call)
        tool = self._tools.get(name)
        if tool is None:
            offer = ", ".join(self._tools) or "none"
            return ToolResult(id, name, {}, "failed", f"There is no tool named {name[:80]!r}. The tools are: {offer}.")
        input: dict[str, Any] = {}
        try:
            input = _arguments(raw)
            _check(tool, input)
        except ToolError as error:
            return ToolResult(id, name, input, "failed", jsonio.sendable(str(error)), tool.spillable)
        entered = partial(on_start, id) if on_start else lambda: None
        policy = policy or _in_force.get() or Policy()
        outer = _in_force.set(policy)
        try:
            status, output = await _run(tool, input, stop or Stop(), policy, entered)
        finally:
            _in_force.reset(outer)
        return ToolResult(id, name, input, status, jsonio.sendable(output.text), tool.spillable, output.output_path)


async def _run(
    tool: Tool, input: dict[str, Any], stop: Stop, policy: Policy, entered: Callable[[], object]
) -> tuple[Status, Output]:
    started = False
    try:
        async with stop.scope():
            permitted = await policy.permits(tool, input)
            if stop.requested:  # while the question was open
                raise StopRequested
            if not permitted:
                return "rejected", Output(
                    f"Permission to run {tool.name} with this input was refused, so it did not run. "
                    "Do not try it again unchanged: go on without it, or ask the user."
                )
            started = True
            entered()
            output = await _call(tool.handler, input)
        if isinstance(output, Output):
            return "completed", replace(output, text=_text(output.text))
        return "completed", Output(_text(output))
    except StopRequested:
        return "interrupted", Output(UNKNOWN_NOTE if started else INTERRUPT_NOTE)
    except ToolError as error:
        return "failed", Output(str(error), error.output_path)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise  # somebody cancelled us; otherwise something inside the handler was cancelled
        said = "".join(traceback.format_exception_only(error)).strip()
        return "failed", Output(f"{tool.name} failed: {said}. Check the input before you try again.")


async def _call(handler: Handler, input: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(handler) or sys.platform == "emscripten":
        output = handler(**input)
    else:  # in a thread, so that a slow plain function does not keep Stop from being seen
        output = await _in_thread(handler, input)
    return await output if isinstance(output, Awaitable) else output


async def _in_thread(handler: Handler, input: dict[str, Any]) -> Any:
    """Run a plain function in a thread of its own: one that hangs after Stop takes no other call's place."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            set_it(value)

    def work() -> None:
        try:
            ended = outcome.set_result, context.run(handler, **input)
        except StopIteration as error:  # a future cannot carry it: the turn would wait for ever
            ended = outcome.set_exception, RuntimeError(f"StopIteration: {error}")
        except BaseException as error:
            ended = outcome.set_exception, error
        with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            loop.call_soon_threadsafe(settle, *ended)

    threading.Thread(target=work, name=f"tool {getattr(handler, '__name__', '')}", daemon=True).start()
    return await outcome


def _text(output: Any) -> str:
    """Text as it is, other values as JSON, and what has no JSON form as Python prints it.

    A lone surrogate (a file name that is no UTF-8, half an emoji) becomes U+FFFD: no provider takes it.
    """
    try:
        text = output if isinstance(output, str) else jsonio.dumps(output)
    except (TypeError, ValueError, RecursionError):
        text = str(output)
    return jsonio.sendable(text)


def read_call(call: ToolCall) -> tuple[str, str, Any]:
    """Id, name and arguments of a call, whatever shape it has: "" for an id or a name that is missing."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return str(call.get("id") or ""), str(function.get("name") or ""), function.get("arguments")


def _arguments(raw: Any) -> dict[str, Any]:
    if raw is None or raw == "":
        return {}
    try:
        value = raw if isinstance(raw, dict) else jsonio.loads(raw)
    except (ValueError, TypeError) as error:
        raise ToolError(f"The arguments are not valid JSON ({error}). Send one JSON object.") from None
    if not isinstance(value, dict):
        raise ToolError("The arguments must be one JSON object with named values. Send the call again that way.")
    return value


def _check(tool: Tool, input: dict[str, Any]) -> None:
    """Names only: types are the handler's business, which can say more about them."""
    known = tool.parameters.get("properties")
    if not isinstance(known, dict):
        return
    usage = f"{tool.name} takes: {', '.join(known) or 'no arguments'}."
    listed = tool.parameters.get("required")
    required = listed if isinstance(listed, list) else []  # a server's schema may hold anything
    if missing := [name for name in known if name in required and name not in input]:
        raise ToolError(f"Missing argument: {', '.join(missing)}. {usage} Send the call again with it.")
    closed = tool.parameters.get("additionalProperties", False) is False
    if unknown := [str(name)[:80] for name in input if closed and name not in known]:
        raise ToolError(f"Unknown argument: {', '.join(unknown)}. {usage} Send the call again without it.")


def _schema(function: Handler) -> dict[str, Any]:
    described = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        hints = typing.get_type_hints(described, include_extras=True)
    except NameError as error:
        raise AgentLabError(
            f"A type hint of {described.__name__} is unknown here: {error}. Import what it names."
        ) from None
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise AgentLabError(
                f"{described.__name__}({parameter}) cannot be a tool: every argument needs a name. Write them out."
            )
        properties[parameter.name] = _type_schema(hints.get(parameter.name, Any))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required}


def _type_schema(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        described = next((note for note in arguments[1:] if isinstance(note, str)), None)
        return {**_type_schema(arguments[0]), **({"description": described} if described else {})}
    if origin is Literal:
        kinds = {type(value) for value in arguments}
        return {**(_type_schema(kinds.pop()) if len(kinds) == 1 else {}), "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        return _type_schema(options[0]) if len(options) == 1 else {}
    if origin is list or hint is list:
        return {"type": "array", "items": _type_schema(arguments[0]) if arguments else {}}
    json_type = _JSON_TYPES.get(origin or hint)
    return {"type": json_type} if json_type else {}
