"""Conversations kept between runs, in one SQLite file. Knows neither screens nor models."""

from .opening import open_history
from .store import History
from .types import Conversation, Message, Record, SearchHit, Status

__all__ = [
    "Conversation",
    "History",
    "Message",
    "Record",
    "SearchHit",
    "Status",
    "open_history",
]
