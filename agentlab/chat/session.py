"""What a chat does, whatever it is shown on: turns, commands, questions, Ctrl+C.

    a line -> /command | words -> nothing runs: a turn -> events -> Screen
                               -> a turn runs: agent.steer, for the next gap
    Ctrl+C -> the first stops what runs -> the second leaves

One thing runs at a time, as a task; whatever goes wrong in it becomes one line on the screen.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, Protocol

from agentlab.chat import commands
from agentlab.chat.opening import Opener
from agentlab.chat.shown import Shown
from agentlab.errors import AgentLabError
from agentlab.loop import Called, Compacted, Done, Event, Finished, Steered, Stopped, Text
from agentlab.permissions import Policy, Subject
from agentlab.provider.retry import Retry
from agentlab.tools import ToolResult, read_call

Kind = Literal["note", "tool", "status", "person", "error"]
Answer = Literal["yes", "no", "always"]


class Screen(Protocol):
    """Where a chat is shown. All that it gets is fit for a terminal already."""

    def text(self, piece: str) -> None:
        """A piece of the reply: it goes on where the last one ended."""

    def line(self, text: str, kind: Kind = "note") -> None:
        """Whole lines; a reply that has not ended its line ends there."""

    async def ask(self, question: str) -> Answer:
        """Put a question whose details were shown as lines."""

    def draft(self, text: str) -> None:
        """Words for the person to change and send again."""

    def changed(self) -> None:
        """Something started, ended or was queued."""

    def leave(self) -> None:
        """The person wants to go."""


class Chat:
    """One conversation at a time on one screen. `submit` is given every line, `interrupt` every Ctrl+C.

    `settled` waits for what runs, `leave` ends all. `failed` says whether anything went wrong. Raises AgentLabError for
    a session that cannot be opened.
    """

    def __init__(self, opener: Opener, screen: Screen, *, resume: str | None = None) -> None:
        self.opener, self.screen = opener, screen
        self.show = Shown(opener.environ)
        self.failed = False
        self._job: asyncio.Task[None] | None = None
        self._stopped = False
        self._pressed = False
        self._always: set[str] = set()
        opener.on_retry, opener.on_note = self._retry, lambda text: self.note(self.show.line(text))
        self._policy = Policy(ask=self._permission)
        self.agent = opener.open(resume, policy=self._policy)

    @property
    def id(self) -> str:
        return self.agent.journal.id if self.agent.journal else ""

    @property
    def busy(self) -> bool:
        """Whether something runs."""
        return self._job is not None

    @property
    def queued(self) -> int:
        """How many words wait to go in."""
        return len(self.agent.steer)

    def note(self, text: str, kind: Kind = "note") -> None:
        """Show a line."""
        self.screen.line(text, kind)

    # --- what the person does

    def start(self) -> None:
        """Say where we are, and ask for what the folder wants to start."""
        self._run(self._greet())

    def submit(self, text: str) -> None:
        """A line that was typed: a command, words for a new turn, or words for the one that runs."""
        self._pressed = False
        if not text.strip():
            return
        if command := commands.find(text):
            try:
                self._command(command)
            except Exception as error:
                self.fail(error)
        elif self.busy:
            self.agent.steer.put(text)
            self.note(f"queued: {self.show.line(text)}", "person")
            self.screen.changed()
        else:
            self._run(self._turn(text))

    def interrupt(self) -> bool:
        """Ctrl+C. Stops what runs; True says that it is time to leave: it was the second since the last line."""
        again, self._pressed = self._pressed, True
        if not again and self._job:
            self._stopped = True
            asyncio.get_running_loop().call_soon(self._halt, self._job)  # a task that has not begun could not be told
        return again

    async def settled(self) -> None:
        """Wait until nothing runs."""
        while self._job:
            await asyncio.wait([self._job])

    async def leave(self) -> None:
        """Stop what runs, end the servers, and say how to come back."""
        self._pressed = False
        self.interrupt()
        await self.settled()
        await self.agent.aclose()
        folder = self.opener.folder
        where = "" if folder == Path.cwd() else f"--folder {shlex.quote(str(folder))} "
        self.note(f"resume with: agentlab chat {self.show.text(where, limit=5_000)}--resume {self.id}")

    # --- what runs

    def fail(self, error: Exception) -> None:
        """Show an error in one line."""
        self.failed = True
        named = "" if isinstance(error, AgentLabError) else f"{type(error).__name__}: "
        self.note(f"error: {named}{self.show.line(error)}", "error")

    async def switch(self, id: str) -> None:
        """Go on in another session; this one stays as it is."""
        agent = self.opener.open(id, policy=self._policy)
        before, self.agent = self.agent, agent
        for message in before.steer.drain():
            agent.steer.put(str(message["content"]))
        await before.aclose()
        await self._greet()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._stopped = False
        self._job = asyncio.create_task(self._guarded(work))
        self.screen.changed()

    def _halt(self, job: asyncio.Task[None]) -> None:
        if self.agent.turn and self.agent.turn.running:
            self.agent.turn.stop.request()
        elif job is self._job:
            job.cancel()

    def _command(self, command: commands.Command) -> None:
        if command.alone and self.busy:
            raise AgentLabError(f"Something is running: stop it with Ctrl+C before /{command.name}.")
        if work := command.run(self, command.argument):
            self._run(work)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        failed = False
        try:
            await work
        except asyncio.CancelledError:
            self.note("stopped")
        except Exception as error:
            failed = True
            self.fail(error)
        self._job = None
        if self.queued and not failed and not self._stopped:
            *earlier, last = [str(message["content"]) for message in self.agent.steer.drain()]
            for words in earlier:
                self.agent.steer.put(words)
            self._run(self._turn(last))
        elif self.queued:
            self.note(f"{self.queued} queued: what waits goes in before your next words")
        self.screen.changed()

    async def _greet(self) -> None:
        self.note(f"session {self.id} · {self.show.line(self.opener.model)}")
        for note in self.opener.notes:
            self.note(self.show.line(note))
        if said := self.agent.said():
            self.note(
                f"resumed; words of yours so far: {len(said)}, the last: {self.show.line(said[-1].text, limit=200)}"
            )
        mcp = self.agent.mcp
        for config in list(mcp.pending.values()) if mcp else []:
            name = self.show.line(config.name, limit=80)
            self.note(f"{self.show.line(config.source)} of this folder wants to start the MCP server {name}:", "tool")
            what = {"command": config.command, "args": list(config.args), "env": ", ".join(config.env) or "-"}
            self.note("\n".join(self.show.arguments(what)), "tool")
            if mcp and await self.screen.ask(f"Start {name}?") != "no":
                mcp.approve(config.name)
                self.opener.approved.add(config.digest)
            else:
                self.note(f"{name} is not started")

    async def _turn(self, words: str) -> None:
        turn = self.agent.send(words)
        try:
            async for event in turn:
                self._event(event)
        finally:
            self.screen.text(self.show.rest())
            await turn.aclose()
            self.screen.text("\n")
        if status := self.agent.status():
            self.note(self.show.line(status), "status")

    def _event(self, event: Event) -> None:
        match event:
            case Text(text):
                self.screen.text(self.show.piece(text))
                return
            case Called(call):
                _, name, arguments = read_call(call)
                self.note(f"→ {self.show.call(name, arguments)}", "tool")
            case Finished(result):
                self.note(self._result(result), "tool")
            case Compacted(before, after):
                self.note(f"compacted: {before} messages are sent as {after}")
            case Steered(messages):
                for message in messages:
                    self.note(f"> {self.show.line(message['content'])}", "person")
                self.screen.changed()
            case Stopped():
                self.note("stopped: what had arrived is kept")
            case Done(reason, why):
                if why or reason not in ("done", "stopped"):
                    self.note(f"{reason}: {self.show.line(why)}")

    def _result(self, result: ToolResult) -> str:
        lines = self.show.output(result.output)
        if result.status != "completed":
            lines = [f"{result.status}: {lines[0] if lines else ''}", *lines[1:]]
        return "\n".join(f"  {line}" for line in lines or ["(no output)"])

    def _retry(self, retry: Retry) -> None:
        self.note(f"waiting {retry.wait_s:.3g} s: {self.show.line(retry.why)} (try {retry.attempt} of {retry.of})")

    async def _permission(self, tool: Subject, input: dict[str, Any]) -> bool:
        if tool.name in self._always:
            return True
        name = self.show.line(tool.name, limit=80)
        self.note("\n".join([f"{name} wants to run with", *(self.show.arguments(input) or ["  no arguments"])]), "tool")
        answer = await self.screen.ask(f"Run {name}?")
        if answer == "always":
            self._always.add(tool.name)
        return answer != "no"
