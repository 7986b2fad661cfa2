"""Many tools, a small array: the model sees a few, looks up the rest, and the array keeps its bytes.

    direct, promoted -----------------> array + search_tool + run_tool, fixed for the session
    deferred --> listing (names and summaries, for the system prompt, fixed at the start)
             --> search_tool(query) --> schemas as the text of a result, at the end of the prompt, where growing is free
             --> run_tool(name, input) --> the target's own call: its permission, its limits, its result
    connected later (MCP) ------------> only search_tool finds them

The schema of a tool that is never used is paid in every request; an array that changes makes the whole prompt be paid
again. So what is found never enters the array, unless the provider refuses calls of tools that are not in it: then the
names that were found are added, sorted, once per step. (Seed 003, progressive disclosure.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from agentlab import jsonio
from agentlab.errors import AgentLabError, ToolError
from agentlab.interrupt import Stop
from agentlab.language import say
from agentlab.messages import Message, ToolCall, calls_of
from agentlab.permissions import Policy
from agentlab.toolarray import Protocol, array_text, protocol_of, resolve_tools
from agentlab.tools import Registry, Tool, ToolResult, _arguments, read_call
from agentlab.toolsearch import Hits, ToolIndex, summary
from agentlab.tooltext import RUN, SEARCH, found, listing

__all__ = ["Catalog", "Protocol", "protocol_of", "resolve_tools"]

FOUND = 5
_NAME_CHARS = 64
_SENDABLE_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")


class Catalog(Registry):
    """A registry whose `specs` show only some of its tools; `run_turn` takes it like any other.

    `direct` tools stand in every request, `deferred` ones are found with `search_tool`. `promoted` names deferred tools
    that stand in the array as well: the model's settings declare them, from facts that hold for the whole session.
    Up to `auto` tools in all, every one is direct, and there is nothing to search (`toolcost.break_even` says when that
    pays). `protocol` is that of the provider's dialect: see `protocol_of`.

    Raises AgentLabError for a name that is taken, or a promoted one that is not deferred. (Seed 003, "three tiers".)
    """

    def __init__(
        self,
        direct: Registry | Iterable[Tool] = (),
        deferred: Registry | Iterable[Tool] = (),
        *,
        promoted: Iterable[str] = (),
        auto: int = 0,
        protocol: Protocol = "free-text",
    ) -> None:
        direct, deferred = _tools_of(direct), _tools_of(deferred)
        resolve_tools(protocol, (), direct=direct, deferred=deferred)  # a wrong protocol is told now
        self.protocol = protocol
        self._array: dict[str, Tool] = {}
        self._unmasked: dict[str, Tool] = {}  # as they were when they were found: their bytes stay
        self._index = ToolIndex(())
        super().__init__()
        Registry.add(self, *direct, *deferred, self._search_tool(), _run_tool())

        by_name = {tool.name: tool for tool in deferred}
        wanted = {promoted} if isinstance(promoted, str) else set(promoted)
        if unknown := sorted(wanted - set(by_name) - {tool.name for tool in direct}):
            known = ", ".join(sorted(by_name)[:50]) or "none"
            raise AgentLabError(f"Promoted, but not deferred: {', '.join(unknown)[:200]}. Deferred are: {known}.")
        everything = 0 < len(direct) + len(deferred) <= auto
        shown = [*direct, *(by_name[name] for name in sorted(by_name) if everything or name in wanted)]
        if everything:
            del self._tools[SEARCH], self._tools[RUN]
        else:
            shown += [self._tools[SEARCH], self._tools[RUN]]
        self._array = {tool.name: tool for tool in shown}
        self._index = ToolIndex(self._deferred())
        self.listing = listing(self._deferred())
        """The deferred tools for the system prompt, sorted; it never changes. "" when there are none."""

    @property
    def deferred(self) -> tuple[str, ...]:
        """The names of the tools that are not in the array, sorted."""
        return tuple(tool.name for tool in self._deferred())

    @property
    def unmasked(self) -> tuple[str, ...]:
        """The names, outside the array, that were found or called so far, sorted: what "strict" adds."""
        return tuple(sorted(self._unmasked))

    def _deferred(self) -> list[Tool]:
        return [self._tools[name] for name in sorted(self._tools.keys() - self._array.keys())]

    # --- what the model is told

    def tools(self, protocol: Protocol, unmasked: Iterable[str] = ()) -> list[dict[str, Any]]:
        """The `tools` array of a request with this protocol, when these names have been found. Looks only."""
        array = resolve_tools(protocol, unmasked, direct=self._array.values(), deferred=self._deferred())
        return [tool.spec() for tool in array]

    def specs(self) -> list[dict[str, Any]]:
        """The `tools` array of the next request. It is asked for once a step: all that a step found comes at once."""
        array = resolve_tools(
            self.protocol, self._unmasked, direct=self._array.values(), deferred=self._unmasked.values()
        )
        return [tool.spec() for tool in array]

    def search(self, query: str, k: int = FOUND) -> Hits:
        """The best `k` deferred tools, at most, for these words. Looks only. Raises ToolError for what is no text."""
        return self._index.search(query, k)

    # --- what changes

    def add(self, *tools: Tool) -> None:
        """Add deferred tools. Raises AgentLabError, and adds none, when a name is taken: see `add_deferred`."""
        if taken := [tool.name for tool in tools if tool.name in self]:
            raise AgentLabError(f"There is a tool named {taken[0]!r} already. Give this one another name.")
        self.add_deferred(tools)

    def add_deferred(self, tools: Iterable[Tool]) -> None:
        """Add tools that came later, such as an MCP server's. `search_tool` finds them; nothing else changes.

        A deferred tool of the same name is replaced, so a server's list may be added again whenever it has changed. All
        are added or, with AgentLabError, none: a name in the array is taken, and a session that shows all its tools
        (`auto`) has no `search_tool`.
        """
        fresh = Registry(tools)
        if len(fresh) and self._array and RUN not in self._array:
            raise AgentLabError("This session began with all its tools in the array, without search_tool. Use auto=0.")
        if taken := [name for name in fresh.names() if name in self._array]:
            raise AgentLabError(f"{taken[0]!r} is in this session's array already. Give the new tool another name.")
        for tool in _tools_of(fresh):
            self._tools[tool.name] = tool
            if tool.name in self._unmasked and self._unmasked[tool.name].handler is _absent:
                self._unmasked[tool.name] = tool
        self._index = ToolIndex(self._deferred())

    def unmask(self, names: Iterable[str]) -> None:
        """These names were found or called: with "strict" the next request shows them, and every one after it.

        A name that nobody offers gets a stand-in that says so: without it a strict provider would refuse a conversation
        for ever in which the model made a name up, or whose server is gone.
        """
        for name in names:
            if name not in self._array and name not in self._unmasked and _SENDABLE_NAME.fullmatch(name):
                self._unmasked[name] = self._tools.get(name) or Tool(name, _GONE, _NOTHING, _absent)

    def see(self, history: Sequence[Message]) -> None:
        """Unmask what this history calls by name: for a session that is resumed, and as the hook `before_request`.

        Calls that Stop or the end of a reply kept from running stand in the history too.
        """
        self.unmask(read_call(call)[1] for message in history for call in calls_of(message))

    # --- what runs

    async def dispatch(
        self,
        call: ToolCall,
        *,
        stop: Stop | None = None,
        policy: Policy | None = None,
        on_start: Callable[[str], object] | None = None,
    ) -> ToolResult:
        """Run one call, as every registry does. A call of `run_tool` is taken for its target's call from the start.

        So permission is judged on the target and its input, and the result has the target's name, input and flags: what
        folds, spills or counts repeats sees the target. A deferred tool may also be called by its own name.
        """
        id, name, raw = read_call(call)
        input: dict[str, Any] = {}
        try:
            if name == RUN and name in self:
                input = _arguments(raw)
                call = {"id": id, "type": "function", "function": self._target(input)}
            else:
                self.unmask([name])
                self._require(name)
        except ToolError as error:
            return ToolResult(id, name, input, "failed", jsonio.sendable(str(error)))
        return await super().dispatch(call, stop=stop, policy=policy, on_start=on_start)

    def _target(self, input: dict[str, Any]) -> dict[str, Any]:
        name = input.get("name")
        if not isinstance(name, str) or not name:
            raise ToolError(f"{RUN} needs the name of the tool to run. Find it with {SEARCH}.")
        if name == RUN:
            raise ToolError(f"{RUN} cannot run itself. Give the name of the tool that it shall run.")
        self._require(name)
        if extra := sorted(input.keys() - {"name", "input"}):
            said = ", ".join(extra)[:200]
            raise ToolError(f"{RUN} takes only name and input. Put the arguments of {name} into input: {said}.")
        arguments = input.get("input")
        if not isinstance(arguments, dict | str | None):
            raise ToolError(f"The input must be one JSON object: the arguments of {name} by their names, or {{}}.")
        return {"name": name, "arguments": arguments}

    def _require(self, name: str) -> None:
        if name in self:
            return
        near = get_close_matches(name[:_NAME_CHARS], self.names(), n=3)
        near += [hit.name for hit in self.search(name, 3)]
        hint = f"Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
        ways = f"Find others with {SEARCH}." if SEARCH in self else f"The tools are: {', '.join(self._array)}."
        raise ToolError(" ".join(filter(None, (f"There is no tool named {name[:80]!r}.", hint, ways))))

    def _search_tool(self) -> Tool:
        async def search_tool(query: str) -> str:
            text, shown = found(query, self.search(query), self._deferred())
            self.unmask(shown)
            return text

        text = f"Find tools that are not listed here, by words on what they do. Run what you find with {RUN}."
        query = {"type": "string", "description": "Some words: what the tool does, or parts of its name."}
        parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
        return Tool(SEARCH, text, parameters, search_tool, read_only=True)

    def _repr_html_(self) -> str:
        from agentlab import draw

        rows = []
        for tool in [*self._array.values(), *self._deferred()]:
            state = say("in the array") if tool.name in self._array else say("deferred")
            state = say("unmasked") if tool.name in self._unmasked else state
            rows.append((tool.name, state, len(array_text([tool])) - 2, summary(tool)))
        head = (say("tool"), say("where"), say("characters"), say("what it does"))
        return draw.table(rows, head=head)._repr_html_()


def _tools_of(tools: Registry | Iterable[Tool]) -> list[Tool]:
    if isinstance(tools, Registry):
        return [tool for name in tools.names() if (tool := tools.get(name))]
    return list(tools)


async def _absent(**_: Any) -> str:
    """The body of a tool that has none: stand-ins, and run_tool, whose calls `dispatch` takes for their target's."""
    raise ToolError(f"There is nothing to run here. Find a tool with {SEARCH}.")


_GONE = "This tool does not exist. It is listed only since the conversation has a call of it. Do not call it."
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def _run_tool() -> Tool:
    text = f"Run a tool that is not listed here, by its name. {SEARCH} says what input it takes."
    properties = {
        "name": {"type": "string", "description": f"The tool's name, as {SEARCH} gave it."},
        "input": {"type": "object", "description": "The tool's own arguments.", "additionalProperties": True},
    }
    return Tool(RUN, text, {"type": "object", "properties": properties, "required": ["name"]}, _absent)
