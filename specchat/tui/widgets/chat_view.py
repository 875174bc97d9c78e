"""The messages of the open branch; of a long one only the newest are on the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from specchat.history import Message
from specchat.tui.widgets.message import MessageView

_FIRST = 10  # messages mounted when a conversation opens
_MORE = 10  # and each time the user reaches the top


class ChatView(VerticalScroll, can_focus=False):
    """Mounts messages through `make`. What `greet` was given fills an empty chat."""

    def __init__(self, make: Callable[[Message], MessageView]) -> None:
        super().__init__(id="chat")
        self._make = make
        self._earlier: list[Message] = []
        self._top = Static("", classes="earlier", markup=False)
        self._greeting = Static("", id="greeting", markup=False)
        # At least as high as the screen: an anchored view pushes anything lower to its end.
        self._column = Vertical(self._top, self._greeting, id="column")
        self.messages: list[MessageView] = []

    def compose(self) -> ComposeResult:
        yield self._column

    def on_mount(self) -> None:
        self._tell_earlier()
        self.anchor()

    def greet(self, content: Content) -> None:
        self._greeting.update(content)

    def show(self, path: Sequence[Message]) -> None:
        """Show a branch; messages that are there already stay."""
        kept = 0
        ids = [*(m.id for m in self._earlier), *(v.message.id for v in self.messages)]
        while kept < min(len(ids), len(path)) and ids[kept] == path[kept].id:
            kept += 1
        if kept < len(self._earlier) or kept == 0:
            self._clear()
            self._earlier = list(path[:-_FIRST])
            fresh = path[len(self._earlier) :]
        else:
            for view in self.messages[kept - len(self._earlier) :]:
                view.remove()
            self.messages = self.messages[: kept - len(self._earlier)]
            fresh = path[kept:]
        for message in fresh:
            self.add(message)
        self._greeting.display = not path
        self._tell_earlier()
        self.anchor()

    def _clear(self) -> None:
        for view in self.messages:
            view.remove()
        self.messages = []

    def add(self, message: Message) -> MessageView:
        """Mount a message at the end."""
        view = self._make(message)
        self.messages.append(view)
        self._greeting.display = False
        self._column.mount(view)
        return view

    def view_of(self, message_id: int) -> MessageView | None:
        """The view of a message; earlier ones are mounted for it."""
        while self._earlier and any(m.id == message_id for m in self._earlier):
            self.show_earlier()
        return next((v for v in self.messages if v.message.id == message_id), None)

    def show_earlier(self) -> None:
        """Mount some of the messages above."""
        if not self._earlier:
            return
        more, self._earlier = self._earlier[-_MORE:], self._earlier[:-_MORE]
        first = self.messages[0] if self.messages else None
        views = [self._make(message) for message in more]
        self.messages[:0] = views
        self._column.mount_all(views, after=self._top)
        self._tell_earlier()
        if first is not None:
            self.release_anchor()
            self.call_after_refresh(first.scroll_visible, animate=False, top=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value == 0 and old_value > 0 and self._earlier:
            self.show_earlier()

    def _tell_earlier(self) -> None:
        self._top.display = bool(self._earlier)
        self._top.update(f"▲ {len(self._earlier)} earlier messages: scroll up to see them")
