"""An agent: one conversation, turn after turn, with everything that a turn needs kept in one place."""

from __future__ import annotations

from collections.abc import Callable

from agentlab.errors import AgentLabError
from agentlab.interrupt import Stop
from agentlab.loop import Client, Hooks, Turn, run_turn
from agentlab.messages import Message, user
from agentlab.permissions import Policy
from agentlab.steer import SteerQueue
from agentlab.tools import Registry
from agentlab.watchdog import LoopBudget


class Agent:
    """Owns the history of one conversation. `send` starts a turn; iterate over it, or give it to `widgets.stream`.

    `system` is the system prompt: it stays the same bytes for the whole conversation. Every turn has its own Stop and
    its own `budget()`. Words put into `steer` go into the running turn, or wait for the next one.
    """

    def __init__(
        self,
        client: Client,
        registry: Registry | None = None,
        *,
        system: str = "",
        policy: Policy | None = None,
        hooks: Hooks | None = None,
        budget: Callable[[], LoopBudget] = LoopBudget,
    ) -> None:
        self.client = client
        self.registry = Registry() if registry is None else registry  # an empty one may be filled later
        self.policy = policy
        self.hooks = hooks
        self.steer = SteerQueue()
        self.turn: Turn | None = None
        self._budget = budget
        self._before: list[Message] = [{"role": "system", "content": system}] if system else []

    @property
    def history(self) -> list[Message]:
        """The conversation so far, sendable at any moment."""
        return self.turn.history if self.turn else list(self._before)

    def send(self, text: str) -> Turn:
        """Start a turn with the person's words; words still waiting in `steer` go before them.

        A conversation has one turn at a time: raises AgentLabError while one is running. A turn that was left half-way
        is stopped where it stands.
        """
        if self.turn and self.turn.running:
            raise AgentLabError("A turn is running: put words into agent.steer, or stop it and wait for its end.")
        if self.turn and self.turn.reason is None:
            self.turn.stop.request()
        history = [*self.history, *self.steer.drain(), user(text)]
        self.turn = run_turn(
            history,
            self.client,
            self.registry,
            stop=Stop(),
            steer=self.steer,
            budget=self._budget(),
            policy=self.policy,
            hooks=self.hooks,
        )
        return self.turn
