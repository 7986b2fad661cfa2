"""The provider: one httpx client, and one file per dialect for what differs between vendors."""

from agentlab.errors import ContextOverflow, ProviderError, ProviderRefused, ProviderUnavailable, RateLimited
from agentlab.provider.client import ChatClient, Reply
from agentlab.provider.retry import Retry, Retrying

__all__ = [
    "ChatClient",
    "ContextOverflow",
    "ProviderError",
    "ProviderRefused",
    "ProviderUnavailable",
    "RateLimited",
    "Reply",
    "Retry",
    "Retrying",
]
