"""What a person says to the chat itself: `/name argument`.

Words that begin with `/` and a name are never sent to the model, and a name that does not exist is an error: what was
meant for the chat must not become part of the conversation. (A space before it makes it words.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentlab.compaction import CompactionError
from agentlab.disclosure import Catalog
from agentlab.errors import AgentLabError
from agentlab.project import listed

if TYPE_CHECKING:
    from agentlab.agent import Said
    from agentlab.chat.session import Chat

LISTED = 20
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.S)

Run = Callable[["Chat", str], Coroutine[Any, Any, None] | None]


@dataclass(frozen=True)
class Command:
    """A command as it was typed. `alone`: not while something runs. One that has to wait returns a coroutine."""

    name: str
    run: Run
    help: str
    alone: bool = True
    argument: str = ""


def find(text: str) -> Command | None:
    """The command in this line; None for words. One that does not exist says so when it is run."""
    found = _COMMAND.fullmatch(text.rstrip())
    if not found:
        return None
    command = COMMANDS.get(found[1]) or Command(found[1], _unknown(found[1]), "", alone=False)
    return Command(command.name, command.run, command.help, command.alone, (found[2] or "").strip())


def _unknown(name: str) -> Run:
    def run(chat: Chat, argument: str) -> None:
        raise AgentLabError(f"There is no command /{name[:40]}: /help lists them. A space before it makes it words.")

    return run


def _help(chat: Chat, argument: str) -> None:
    width = max(map(len, COMMANDS))
    chat.note("\n".join(f"/{name:<{width}}  {command.help}" for name, command in COMMANDS.items()))


def _cost(chat: Chat, argument: str) -> None:
    chat.note(chat.show.text(chat.agent.cost(), limit=5_000))


async def _compact(chat: Chat, argument: str) -> None:
    try:
        chat.note(chat.show.line(await chat.agent.compact()))
    except CompactionError as error:  # nothing is broken: the conversation is as it was
        chat.note(f"not compacted: {chat.show.line(error)}")


def _tools(chat: Chat, argument: str) -> None:
    registry, mcp = chat.agent.registry, chat.agent.mcp
    deferred = registry.deferred if isinstance(registry, Catalog) else ()
    for name in registry.names():
        tool = registry.get(name)
        rights = "allowed" if tool and tool.read_only else "asks"
        looked_up = ", looked up with search_tool" if name in deferred else ""
        chat.note(f"{chat.show.line(name)}  {rights}{looked_up}")
    for name in mcp.pending if mcp else ():
        chat.note(f"MCP server {chat.show.line(name)}: not started, it was not approved")
    for name, why in mcp.failed.items() if mcp else ():
        chat.note(f"MCP server {chat.show.line(name)}: left out, {chat.show.line(why)}")


def _numbered(chat: Chat, argument: str) -> Said | None:
    """The person's words that a number stands for; None, and a list of all, without a number."""
    said = chat.agent.said()
    if argument:
        if not (argument.isascii() and argument.isdigit() and 1 <= int(argument[:9]) <= len(said)):
            raise AgentLabError(f"{argument[:20]!r} is no number from 1 to {len(said)} of your words.")
        return said[int(argument) - 1]
    first = max(0, len(said) - LISTED)
    for number, words in enumerate(said[first:], first + 1):
        chat.note(f"{number:>3}  {chat.show.line(words.text, limit=100)}")
    if not said:
        chat.note("You have said nothing yet.")
    return None


def _rewind(chat: Chat, argument: str) -> None:
    if words := _numbered(chat, argument):
        chat.agent.rewind(words.seq)
        chat.note(f"taken back to before: {chat.show.line(words.text)} (files stay as they are)")
        chat.screen.draft(words.text)
    elif chat.agent.said():
        chat.note("/rewind N takes back those words and all that came after them.")


async def _fork(chat: Chat, argument: str) -> None:
    words = _numbered(chat, argument) if argument else None
    before, branch = chat.id, chat.agent.fork(words.seq if words else None)
    branch.close()
    await chat.switch(branch.id)
    chat.note(f"this is the fork; the session before it is {before}")


async def _resume(chat: Chat, argument: str) -> None:
    if not argument:
        infos = listed(chat.opener.folder)
        for info in infos[:LISTED]:
            chat.note(f"{chat.show.text(info.line, limit=300)}{' (this one)' if info.id == chat.id else ''}")
        more = len(infos) - LISTED
        chat.note(f"/resume ID goes on with one of them{f'; {more} older ones are not shown' if more > 0 else ''}.")
    elif (id := chat.opener.session(argument)) == chat.id:
        chat.note("This is that session.")
    else:
        await chat.switch(id)


def _quit(chat: Chat, argument: str) -> None:
    chat.screen.leave()


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("cost", _cost, "what this session has cost since it was opened", alone=False),
        Command("compact", _compact, "make a summary of the conversation now"),
        Command("rewind", _rewind, "list your words; /rewind N takes them back, with all that came after"),
        Command("fork", _fork, "go on in a copy of this session; /fork N in one that ends before your words N"),
        Command("tools", _tools, "list the tools", alone=False),
        Command("resume", _resume, "list the sessions of this folder; /resume ID goes on with one"),
        Command("help", _help, "this list", alone=False),
        Command("quit", _quit, "leave; so do Ctrl+D, and Ctrl+C twice", alone=False),
    )
}
"""All commands by name."""
