"""Finding a text in the open conversation."""

from __future__ import annotations

from textual.widgets import Input

from specchat.tui.screens.opening import OpeningScreen


class FindingScreen(OpeningScreen):
    """The chat, with a line to search it."""

    _found_at = -1  # which match of the search was shown last

    def action_find(self) -> None:
        """Find a text in this chat; Enter again goes on to earlier places."""
        find = self.query_one("#find", Input)
        find.display = True
        find.focus()

    def close_find(self) -> None:
        self.query_one("#find", Input).display = False
        for view in self.view.messages:
            view.find("")
        self.prompt.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._found_at = -1

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The next message, from the newest to the oldest, that mentions the text."""
        query = event.value.casefold()
        path = reversed(self.chat.path)
        matching = [m.id for m in path if query and query in m.content.casefold()]
        if not matching:
            self.tell("Not found in this chat.")
            return
        self._found_at = (self._found_at + 1) % len(matching)
        for view in self.view.messages:
            view.find("")
        found = self.view.view_of(matching[self._found_at])
        if found is not None:
            self.view.release_anchor()
            found.find(event.value)
        event.input.border_subtitle = f"{self._found_at + 1}/{len(matching)}"
