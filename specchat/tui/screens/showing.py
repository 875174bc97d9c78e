"""How the main screen looks: its parts, and what they show of the chat and the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.binding import ActiveBinding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer, Static

from specchat.engine.stats import Stats
from specchat.errors import HistoryError
from specchat.history import Message, Record, Status
from specchat.tui.conversation import OpenConversation
from specchat.tui.kinds import counted, shown, titled
from specchat.tui.messages import Depths, Ready
from specchat.tui.preferences import Preferences
from specchat.tui.widgets.chat_view import ChatView
from specchat.tui.widgets.find_line import FindLine
from specchat.tui.widgets.history_list import HistoryList
from specchat.tui.widgets.inspector import Inspector
from specchat.tui.widgets.message import MessageView
from specchat.tui.widgets.panel import Panel
from specchat.tui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp

_RECALLED = 4000  # characters of a question that ↑ brings back; attached files are longer
_ONE_FROM, _BOTH_FROM = 84, 110  # columns from which side panels fit beside the chat


class ShowingScreen(Screen[None]):
    """Shows `chat`, and the figures of the engine that is `ready`."""

    def __init__(self, chat: OpenConversation, preferences: Preferences) -> None:
        super().__init__()
        self.chat, self.preferences = chat, preferences
        self.ready: Ready | None = None
        self.stats = Stats()
        self.depths: Depths | None = None
        self.front = ""  # "panel" or "chats": the one asked for last

    @property
    def specchat(self) -> SpecchatApp:
        return cast("SpecchatApp", self.app)

    def compose(self) -> ComposeResult:
        yield Static("specchat", id="title", markup=False)
        with Horizontal(id="body"):
            yield HistoryList()
            with Vertical(id="middle"):
                yield ChatView(self.make_view)
                yield Static(id="queue", markup=False)
                yield FindLine()
                yield Inspector()
                yield Prompt()
            yield Panel(id="panel")
        yield Footer()

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """In the footer's order: the focused widget's keys, then ours as they are listed.
        Textual would put keys that we take over from the input in the input's place.
        """
        places = {key: at for at, key in enumerate(self._bindings.key_to_bindings, 1)}

        def place(item: tuple[str, ActiveBinding]) -> int:
            node = item[1].node
            return places.get(item[0], 0) if node is self else 1000 * (node is self.app)

        return dict(sorted(super().active_bindings.items(), key=place))

    def on_mount(self) -> None:
        self.view, self.panel = self.query_one(ChatView), self.query_one(Panel)
        self.prompt, self.chats = self.query_one(Prompt), self.query_one(HistoryList)
        self.prompt.submit_key = self.preferences.submit_key
        self.prompt.focus()
        self.panel.say("starting…")
        self.fit(self.size.width)
        self.list_chats()
        self.remember()

    def on_resize(self, event: Resize) -> None:
        self.fit(event.size.width)

    def fit(self, width: int) -> None:
        """Show the side panels that were asked for and that there is room for: both, or the
        one asked for last. On a narrow screen it stands above the chat, and only on a key.
        """
        narrow = width < _ONE_FROM
        wanted = [name for name in ("panel", "chats") if getattr(self.preferences, name)]
        if width < _BOTH_FROM:
            beside = [] if narrow else wanted[:1]
            wanted = [self.front] if self.front in wanted else beside
        self.query_one("#body").set_class(narrow, "narrow")
        self.panel.display, self.chats.display = "panel" in wanted, "chats" in wanted
        self.panel.can_focus = narrow  # to scroll it with keys
        footer = self.query_one(Footer)
        footer.compact, footer.show_command_palette = narrow, not narrow

    def toggle(self, name: str) -> bool:
        """Show or hide the "panel" or the "chats"; returns whether it is shown now."""
        showing = not (self.panel if name == "panel" else self.chats).display
        setattr(self.preferences, name, showing)
        self.front = name if showing else ""
        self.preferences.save()
        self.fit(self.size.width)
        return showing

    def make_view(self, message: Message) -> MessageView:
        """The widget of a stored message."""
        thinking: dict[str, Any] = {}
        if self.ready is not None:
            thinking = {
                "thinking": self.ready.thinking,
                "thinks_first": self.ready.thinks_first,
            }
        view = message.view or self.preferences.view
        record, place = Record(), (1, 1)
        try:
            place = self.chat.place(message)
            if message.role == "assistant" and message.status is not Status.PARTIAL:
                record = self.chat.history.record(message.id)
        except HistoryError as error:
            self.warn(str(error))
        return MessageView(message, record, place=place, view=view, **thinking)

    def show_figures(self) -> None:
        if self.panel.display:
            n_ctx = self.ready.n_ctx if self.ready is not None else 0
            self.panel.figures(self.stats, self.depths, n_ctx)

    def recall_figures(self) -> None:
        """Show the stored figures of the last answer on the screen."""
        self.stats, self.depths = Stats(), None
        answers = [v for v in self.view.messages if v.rounds]
        for _, r in sorted(answers[-1].rounds.items()) if answers else ():
            self.stats.add(r)
        if self.stats.last is not None:
            self.depths = Depths(self.stats.last.depth + self.stats.last.emitted, None)
        self.show_figures()

    def remember(self) -> None:
        """Let ↑ recall what was asked lately, in this conversation last."""
        mine = [m.content for m in self.chat.path if m.role == "user"]
        try:
            others = [text for text in self.chat.history.questions() if text not in mine]
        except HistoryError as error:
            others = []
            self.warn(str(error))
        self.prompt.remember([text for text in (*others, *mine) if len(text) <= _RECALLED])

    def show_title(self) -> None:
        title = titled(self.chat.title) or "New chat"
        models = "no model"
        if self.ready is not None:
            models = self.ready.name + (f" at {self.ready.server}" if self.ready.server else "")
        name = f"specchat{self.beside_name()}"
        self.query_one("#title", Static).update(f"{name}  ▸ {title}  ▸ {shown(models)}")

    def beside_name(self) -> str:
        """What stands in the title beside the app's name."""
        return ""

    def list_chats(self, query: str = "") -> None:
        """Fill the list of chats, or with what a search finds."""
        try:
            if query.strip():
                self.chats.show_hits(self.chat.history.search(query))
            else:
                opened = self.chat.stored.id if self.chat.stored else None
                found = self.chat.history.list_conversations(limit=500)
                self.chats.show_conversations(found, opened)
        except HistoryError as error:
            self.warn(str(error))

    def warn(self, message: str) -> None:
        self.notify(shown(message), severity="error", markup=False, timeout=10)

    def tell(self, message: str) -> None:
        self.notify(shown(message), markup=False, timeout=3)


def progress(stats: Stats, pieces: int) -> str:
    """How far a running answer is, in a few words; `pieces` of it have come."""
    prefill, speed = stats.prefill, stats.tokens_per_second
    if stats.tokens and speed is not None:
        return f"{counted(stats.tokens, 'token')} · {speed:.1f} tok/s"
    if pieces and (prefill is None or prefill.done >= prefill.total):
        return f"{counted(pieces, 'piece')} so far"
    if prefill is not None and prefill.total:
        return f"reading the prompt: {prefill.done:,} of {prefill.total:,} tokens"
    return "waiting for the model"
