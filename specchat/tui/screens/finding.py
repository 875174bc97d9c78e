"""Finding a text in the open conversation."""

from __future__ import annotations

from textual.widgets import Input

from specchat.tui.kinds import shown
from specchat.tui.screens.opening import OpeningScreen
from specchat.tui.widgets.find_line import FindLine
from specchat.tui.widgets.token_text import hits


class FindingScreen(OpeningScreen):
    """The chat, with a line to search it."""

    _found_at = 0  # which place was shown last, from 1, oldest first; 0: none yet

    def action_find(self) -> None:
        """Find a text in this chat; Enter goes on to earlier places."""
        find = self.query_one(FindLine)
        find.display = True
        find.tell()
        find.focus()

    def close_find(self) -> None:
        """Leave the line empty, and no mark in the chat."""
        find = self.query_one(FindLine)
        find.display = False
        find.clear()
        self._unmark()
        self.prompt.focus()

    def _unmark(self) -> None:
        for view in self.view.messages:
            view.find("")

    def _places(self, query: str) -> list[tuple[int, int]]:
        """Message and which of its places, oldest first."""
        query = shown(query)
        return [
            (m.id, n) for m in self.chat.path for n, _ in enumerate(hits(shown(m.content), query))
        ]

    def on_input_changed(self, event: Input.Changed) -> None:
        if isinstance(event.input, FindLine):
            self._found_at = 0
            places = self._places(event.value)
            event.input.tell(f"{len(places)} found" if event.value else "")

    def on_find_line_wanted(self, event: FindLine.Wanted) -> None:
        """Show the place `step` after the one shown last; the newest one first."""
        places = self._places(event.text)
        if not places:
            self._unmark()
            self.tell("Not found in this chat.")
            return
        at = self._found_at + event.step if self._found_at else len(places)
        self._found_at = (at - 1) % len(places) + 1
        message, place = places[self._found_at - 1]
        self._unmark()
        found = self.view.view_of(message)
        if found is not None:
            self.view.release_anchor()
            found.find(event.text, place)
        self.query_one(FindLine).tell(f"{self._found_at} of {len(places)}")
