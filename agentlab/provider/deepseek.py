"""The `deepseek` dialect: OpenAI's, with reasoning that goes back to the model.

In thinking mode DeepSeek refuses a request whose tool-calling turns came back without their `reasoning_content`; in
all other turns it ignores it. So a turn (all between two user messages) keeps its reasoning from its first call on.
That is decided by what came before, never by what follows: a message that was sent once is sent again the same way,
and the prompt cache holds. (DeepSeek guide "Thinking mode", tool calls.)
"""

from __future__ import annotations

from agentlab.messages import Message, calls_of
from agentlab.provider.openai import OpenAI, fitting, without


class DeepSeek(OpenAI):
    """Chat completions of DeepSeek."""

    def _messages(self, history: list[Message]) -> list[Message]:
        sent: list[Message] = []
        called = False
        for message in history:
            called = message.get("role") != "user" and (called or bool(calls_of(message)))
            message = without(message, "thinking_blocks", *([] if called else ["reasoning_content"]))
            if calls_of(message):
                message.setdefault("reasoning_content", "")  # empty is accepted, missing is not
            sent.append(fitting(message))
        return sent
