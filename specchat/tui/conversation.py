"""The open conversation: the branch on screen, and what the user does to its tree.

Knows no widgets. Everything may raise HistoryError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specchat.engine.messages import Message as EngineMessage
from specchat.history import Conversation, History, Message, Status


class OpenConversation:
    """`path` is the branch shown, first message first. A new conversation is saved with its
    first message; until then `stored` is None.
    """

    def __init__(self, history: History, system: str = "") -> None:
        self.history, self.system = history, system
        self.stored: Conversation | None = None
        self.path: list[Message] = []
        self._deletions: list[tuple[int, int]] = []  # conversation, what undo takes

    @property
    def title(self) -> str:
        return self.stored.title if self.stored else ""

    def new(self) -> None:
        self.stored, self.path = None, []

    def open(self, id: int) -> None:
        self.stored = self.history.conversation(id)
        self.system = self.stored.system_prompt
        self.reload()

    def reload(self) -> None:
        """Read the branch again, as the active leaf says."""
        if self.stored is not None:
            self.stored = self.history.conversation(self.stored.id)
            self.path = self.history.path(self.stored.active_leaf)

    def say(self, text: str, settings: Mapping[str, Any]) -> Message:
        """Save a user's message at the end of the branch."""
        if self.stored is None:
            self.stored = self.history.create(system_prompt=self.system, settings=settings)
        parent = self.path[-1].id if self.path else None
        message = self.history.add_message(self.stored.id, parent, "user", text)
        self.path.append(message)
        self.stored = self.history.conversation(self.stored.id)  # it has a title now
        return message

    def begin_answer(self, target: str, draft: str, sampling: Mapping[str, Any]) -> Message:
        """Save an empty answer at the end of the branch."""
        assert self.stored is not None
        message = self.history.begin_answer(
            self.stored.id, self.path[-1].id, target, draft, sampling
        )
        self.path.append(message)
        return message

    def finished(self, message: Message) -> None:
        """Replace a message of the branch by its final form."""
        self.path = [message if m.id == message.id else m for m in self.path]

    def cut(self, message: Message) -> None:
        """Go back to before `message`; what is added next is a branch beside it."""
        ids = [m.id for m in self.path]
        self.path = self.path[: ids.index(message.id)]

    def turn(self, message: Message, step: int) -> bool:
        """Show the branch `step` places beside `message`; False where there is none."""
        branches = [m.id for m in self.history.siblings(message.id)]
        at = branches.index(message.id) + step
        if not 0 <= at < len(branches):
            return False
        self._show(self.history.newest_leaf(branches[at]))
        return True

    def place(self, message: Message) -> tuple[int, int]:
        """Which of how many branches a message is, from 1."""
        branches = [m.id for m in self.history.siblings(message.id)]
        at = branches.index(message.id) + 1 if message.id in branches else 1
        return at, max(1, len(branches))

    def show_message(self, message_id: int) -> None:
        """Show the branch a message is on."""
        if message_id not in {m.id for m in self.path}:
            self._show(self.history.newest_leaf(message_id))

    def _show(self, leaf: int) -> None:
        assert self.stored is not None
        self.history.set_active_leaf(self.stored.id, leaf)
        self.reload()

    def delete(self, message: Message) -> None:
        """Hide a message and what follows it."""
        deletion = self.history.delete_message(message.id)
        self._deletions.append((message.conversation_id, deletion))
        self.reload()

    def delete_conversation(self, id: int) -> None:
        self._deletions.append((id, self.history.delete_conversation(id)))
        if self.stored is not None and self.stored.id == id:
            self.new()

    def undo(self) -> int | None:
        """Bring back what was deleted last; returns its conversation."""
        if not self._deletions:
            return None
        conversation, deletion = self._deletions.pop()
        self.history.undo_delete(deletion)
        return conversation

    def fork(self, message: Message) -> Conversation:
        return self.history.fork(message.id)

    def set_system(self, text: str) -> None:
        self.system = text
        if self.stored is not None:
            self.history.set_system_prompt(self.stored.id, text)

    def engine_messages(self) -> list[EngineMessage]:
        """The branch as the engine takes it; answers that failed before a word are left out."""
        chat = [EngineMessage("system", self.system)] if self.system else []
        for m in self.path:
            if m.content or m.role == "user" or m.status is not Status.ERROR:
                chat.append(EngineMessage(m.role, m.content, m.reasoning or None))
        return chat
