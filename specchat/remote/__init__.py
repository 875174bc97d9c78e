"""Chatting through somebody else's server: any that speaks OpenAI's API.

`RemoteEngine` stands where the engine does; what the server does not tell stays unknown.
"""

from .engine import RemoteEngine

__all__ = ["RemoteEngine"]
