"""Every error that agentlab raises on purpose.

Each says what happened, what was kept, and what to do next. Catch `AgentLabError` to catch them all.
"""

from __future__ import annotations

from typing import Any

KEPT = "What had arrived was kept: try again, or say 'continue' to go on."
NOTHING_CAME = "Nothing had arrived: try again."


class AgentLabError(Exception):
    """Base of all errors raised by agentlab."""


class StreamError(AgentLabError):
    """A model's stream broke, carried an error, or ended without saying that it was complete.

    `partial` is the assistant message so far, as a dict, or None when nothing had been assembled.
    """

    def __init__(self, message: str, *, partial: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class PairingError(AgentLabError):
    """A history has a tool call without its one result, or a result without its call."""


class StopRequested(AgentLabError):
    """Somebody pressed Stop while the guarded work was running."""


class ToolError(AgentLabError):
    """A tool handler's own failure. Its text goes to the model, so it ends with the next step.

    `output_path` names the file that holds the whole output, where the tool has saved one.
    """

    def __init__(self, message: str, *, output_path: str | None = None) -> None:
        super().__init__(message)
        self.output_path = output_path


class ProviderError(AgentLabError):
    """A provider answered with an error, or could not be reached.

    `status` is the HTTP status, or None when there was no answer. `body` is the decoded error body, if any.
    `partial` is the assistant message that had already arrived, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: Any = None,
        partial: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.partial = partial


class ProviderRefused(ProviderError):
    """The provider read the request and refused it (4xx): the same request will be refused again."""


class ContextOverflow(ProviderRefused):
    """The request does not fit the model's context window: send a shorter history."""


class RateLimited(ProviderError):
    """Too many requests (429). `retry_after` is the wait that the provider asks for, in seconds, or None."""

    def __init__(self, message: str, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class ProviderUnavailable(ProviderError):
    """No answer: connection refused or cut, a time-out, or a server error (5xx). Trying again may help.

    `retry_after` is the wait that the provider asks for, in seconds, or None.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after
