"""The provider: one httpx client, and one file per dialect for what differs between vendors."""

from agentlab.errors import ContextOverflow, ProviderError, ProviderRefused, ProviderUnavailable, RateLimited
from agentlab.provider.client import ChatClient, Reply

__all__ = [
    "ChatClient",
    "ContextOverflow",
    "ProviderError",
    "ProviderRefused",
    "ProviderUnavailable",
    "RateLimited",
    "Reply",
]
