"""The app: widgets, keys, and the timer that carries the engine's updates to the screen."""

from __future__ import annotations

import argparse
import queue
from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer

from specchat.cli import options
from specchat.engine.engine import Settings
from specchat.engine.events import Finish, Prefill, Round, Token
from specchat.engine.messages import Message
from specchat.engine.stats import Stats
from specchat.tui.message_view import MessageView
from specchat.tui.panel import Panel
from specchat.tui.prompt import Prompt
from specchat.tui.session import Began, Ended, Failed, Loading, Ready, Session, Update

_FRAMES = 20  # per second
_NARROW = 80  # columns below which the panel hides


class SpecchatApp(App[None]):
    """One conversation with one engine."""

    CSS_PATH = "app.tcss"
    TITLE = "specchat"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+r", "regenerate", "Again"),
        Binding("ctrl+n", "new", "New chat"),
        Binding("f2", "inspect", "Inspect"),
        Binding("f3", "panel", "Panel"),
        Binding("ctrl+q", "quit", "Quit"),
        Binding("left", "move(-1)", "Previous token", show=False),
        Binding("right", "move(1)", "Next token", show=False),
    ]

    def __init__(self, session: Session, settings: Settings, system: str | None = None) -> None:
        super().__init__()
        self.session, self.settings, self.system = session, settings, system
        self.messages: list[Message] = []
        self.stats: Stats | None = None
        self.rounds: dict[int, Round] = {}
        self.n_ctx = 0
        self.queued: list[str] = []  # prompts sent while an answer is running
        self.ready = self.busy = False
        self._answer: MessageView | None = None
        self._fresh: list[Token] = []

    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            yield VerticalScroll(id="chat")
            yield Panel(id="panel")
        yield Prompt()
        yield Footer()

    def on_mount(self) -> None:
        self.chat = self.query_one("#chat", VerticalScroll)
        self.panel = self.query_one(Panel)
        self.chat.anchor()
        self.query_one(Prompt).focus()
        self.set_interval(1 / _FRAMES, self.drain)
        self.call_after_refresh(self.session.start)

    def on_resize(self, event: Resize) -> None:
        self.query_one(Panel).set_class(event.size.width < _NARROW, "hidden")

    def on_unmount(self) -> None:
        self.session.close()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        for title, text, action in (
            ("Stop", "End the running answer", self.action_stop),
            ("Answer again", "Replace the last answer by another one", self.action_regenerate),
            ("New chat", "Forget this conversation", self.action_new),
            ("Inspect tokens", "Look at each token's probabilities", self.action_inspect),
            ("Panel", "Show or hide the live figures", self.action_panel),
        ):
            yield SystemCommand(title, text, action)

    # -- updates from the engine ----------------------------------------------------

    def drain(self) -> None:
        """Apply everything that came since the last frame."""
        changed = False
        while True:
            try:
                update = self.session.updates.get_nowait()
            except queue.Empty:
                break
            self._apply(update)
            changed = True
        if self._fresh and self._answer is not None:
            self._answer.extend(self._fresh)
            self._fresh = []
        if changed and self.stats is not None:
            self.panel.figures(self.stats, self.n_ctx)

    def _apply(self, update: Update) -> None:
        if isinstance(update, Loading):
            self.panel.say(f"Loading {update.stage} {update.share:.0%}")
        elif isinstance(update, Ready):
            self.ready, self.n_ctx = True, update.n_ctx
            self.sub_title = update.pair
            self.panel.say(update.refusal or f"{update.pair}\nAsk something.")
            self._next()
        elif isinstance(update, Failed):
            self._failed(update.message)
        elif isinstance(update, Began):
            self.stats, self.rounds = update.stats, {}
        elif isinstance(update, Ended):
            self._ended()
        else:
            if self.stats is not None:
                self.stats.add(update)
            if isinstance(update, Token):
                self._fresh.append(update)
            elif isinstance(update, Round):
                self.rounds[update.index] = update
            assert isinstance(update, Token | Round | Prefill | Finish)

    def _failed(self, message: str) -> None:
        if self._answer is not None:
            self._answer.note(message)
        else:
            self.panel.say(message)
            self.notify(message, severity="error", markup=False, timeout=10)

    def _ended(self) -> None:
        self.busy = False
        if self._answer is not None:
            self._answer.extend(self._fresh)
            self._fresh = []
            if self._answer.text:
                self.messages.append(Message("assistant", self._answer.text))
        self._next()

    # -- what the user does ---------------------------------------------------------

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        self.queued.append(event.text)
        self._next()

    def _next(self) -> None:
        """Send the oldest waiting prompt, if the engine is free."""
        if not self.ready or self.busy or not self.queued:
            return
        text = self.queued.pop(0)
        self.messages.append(Message("user", text))
        self.chat.mount(MessageView("you", text))
        self._ask()

    def _ask(self) -> None:
        self.busy = True
        self._answer = MessageView("specchat")
        self.chat.mount(self._answer)
        self.panel.token(None, None)
        system = [Message("system", self.system)] if self.system else []
        self.session.ask([*system, *self.messages], self.settings)

    def action_stop(self) -> None:
        if self._answer is not None and self._answer.cursor is not None:
            self._leave_inspector()
        else:
            self.session.stop()

    def action_regenerate(self) -> None:
        """Another answer to the last question."""
        if self.busy or not self.ready:
            return
        if self.messages and self.messages[-1].role == "assistant":
            self.messages.pop()
        if self.messages and self._answer is not None:
            self._answer.remove()
            self._ask()

    def action_new(self) -> None:
        if not self.busy:
            self.messages.clear()
            self._answer = None
            self.chat.remove_children()

    def action_panel(self) -> None:
        self.panel.toggle_class("hidden")

    def action_inspect(self) -> None:
        """Put the cursor on the last token; arrows move it, Escape leaves."""
        if self._answer is None or not self._answer.tokens:
            return
        if self._answer.cursor is not None:
            self._leave_inspector()
            return
        self.panel.remove_class("hidden")
        self.set_focus(None)
        self._show(len(self._answer.tokens) - 1)

    def action_move(self, step: int) -> None:
        if self._answer is not None and self._answer.cursor is not None:
            self._show(self._answer.cursor + step)

    def _show(self, index: int) -> None:
        assert self._answer is not None
        token = self._answer.select(index)
        self.panel.token(token, self.rounds.get(token.round) if token else None)

    def _leave_inspector(self) -> None:
        assert self._answer is not None
        self._answer.select(None)
        self.panel.token(None, None)
        self.query_one(Prompt).focus()


def run(args: argparse.Namespace) -> int:
    """Open the app with what the command line named."""
    from specchat.tui.terminal import own_terminal

    settings = options.settings(args)
    system = options.read_text(args.system_file) if args.system_file else args.system
    session = Session(lambda progress: options.load_engine(args, progress))
    with own_terminal():
        SpecchatApp(session, settings, system).run()
    return 0
