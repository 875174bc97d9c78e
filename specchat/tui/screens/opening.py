"""Opening, listing and deleting conversations."""

from __future__ import annotations

from textual.widgets import Input

from specchat.errors import HistoryError
from specchat.tui.choices import with_json
from specchat.tui.screens.inspecting import InspectingScreen
from specchat.tui.widgets.history_list import HistoryList


class OpeningScreen(InspectingScreen):
    """The chat, with the list of the others."""

    def action_new(self) -> None:
        """Begin another chat; this one stays in the list."""
        if self.idle():
            self.chat.new()
            self._opened()

    def open_chat(self, id: int, message_id: int | None = None) -> None:
        """Show a saved conversation, at a message if one is named."""
        if not self.idle():
            return
        self.settle()
        try:
            self.chat.open(id)
            if message_id is not None:
                self.chat.show_message(message_id)
        except HistoryError as error:
            self.warn(str(error))
            return
        if self.settings is not None and self.chat.stored is not None:
            self.use(with_json(self.settings, self.chat.stored.settings))
        self._opened()
        view = self.view.view_of(message_id) if message_id is not None else None
        if view is not None:
            view.focus()

    def _opened(self) -> None:
        self.waiting = False
        self.stop_editing()
        self.leave_inspector()
        self.view.show(self.chat.path)
        self.remember()
        self.recall_figures()
        self.show_title()
        self.list_chats()
        self.prompt.focus()

    def _changed(self, change: object) -> bool:
        """Do something to the tree and show what came of it."""
        assert callable(change)
        self.settle()
        try:
            result = change()
        except HistoryError as error:
            self.warn(str(error))
            return False
        self.view.show(self.chat.path)
        for view in self.view.messages:
            view.set_place(self.chat.place(view.message))
        self.recall_figures()
        self.list_chats()
        return result is not False

    def action_chats(self) -> None:
        """Show the list of chats and go there; again hides it."""
        if self.toggle("chats"):
            self.list_chats()
            self.chats.list.focus()
        else:
            self.prompt.focus()

    def action_search(self) -> None:
        """Search all chats."""
        if not self.chats.display:
            self.action_chats()
        self.chats.query_one(Input).focus()

    def on_history_list_searched(self, event: HistoryList.Searched) -> None:
        self.list_chats(event.query)

    def on_history_list_chosen(self, event: HistoryList.Chosen) -> None:
        self.open_chat(event.conversation_id, event.message_id)
        if self.query_one("#body").has_class("narrow"):  # it hides much of the chat
            self.front = ""
            self.fit(self.size.width)

    def action_delete_conversation(self) -> None:
        """Delete the chat under the cursor; Undo brings it back."""
        id = self.chats.highlighted
        if id is None or not self.idle():
            return
        mine = self.chat.stored is not None and self.chat.stored.id == id
        try:
            self.chat.delete_conversation(id)
        except HistoryError as error:
            self.warn(str(error))
            return
        if mine:
            self._opened()
        self.list_chats()
        self.chats.list.focus()
        self.tell("Deleted the chat. U in the list, or Undo in the palette, brings it back.")
