"""The app: its theme, its main screen, its start and its end."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import platformdirs
from textual.app import App
from textual.binding import Binding, BindingType

from specchat.history import History, open_history
from specchat.tui.answering import Remote
from specchat.tui.commands import Commands
from specchat.tui.conversation import OpenConversation
from specchat.tui.kinds import Looks, looks
from specchat.tui.messages import Load, Progress
from specchat.tui.preferences import Preferences, read_preferences
from specchat.tui.screens.inspecting import gguf_folders
from specchat.tui.screens.main import MainScreen
from specchat.tui.session import Session

if TYPE_CHECKING:
    from specchat.engine.engine import Engine, Settings

Loader = Callable[[Path, Path | None], Load]


class SpecchatApp(App[None]):
    """`loader` makes a load for a pair of files that the user chose; `models` are the files
    in use.
    """

    CSS_PATH = "app.tcss"
    TITLE = "specchat"
    COMMANDS: ClassVar = {Commands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help"),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(
        self,
        session: Session,
        history: History,
        *,
        system: str = "",
        warning: str | None = None,
        preferences: Preferences | None = None,
        loader: Loader | None = None,
        models: list[Path] | None = None,
    ) -> None:
        super().__init__()
        self.preferences = preferences or Preferences()
        self.history = history
        self._warning = warning
        self._loader = loader
        self._models = models or []
        self.main = MainScreen(session, OpenConversation(history, system), self.preferences)
        with suppress(Exception):  # a theme that no longer exists
            self.theme = self.preferences.theme

    @property
    def looks(self) -> Looks:
        """How tokens look under the current theme."""
        theme = self.current_theme
        return looks(theme.dark, ansi=theme.name.startswith("ansi"), colour=not self.no_color)

    def get_default_screen(self) -> MainScreen:
        return self.main

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self._theme_changed())
        if self._warning:
            self.main.warn(self._warning)

    def _theme_changed(self) -> None:
        self.preferences.theme = self.theme
        self.preferences.save()
        self.main.panel.repaint()
        self.main.show_figures()
        for view in self.main.view.messages:
            view.repaint()

    def on_unmount(self) -> None:
        self.main.close()

    def action_help(self) -> None:
        from specchat.tui.help import help_text
        from specchat.tui.screens.dialogs import ReadScreen

        if len(self.screen_stack) == 1:
            self.push_screen(ReadScreen("specchat: keys and colours", help_text(self.looks)))

    def loader(self, target: Path, draft: Path | None) -> Load:
        """A load of the pair that was chosen."""
        assert self._loader is not None
        self._models = [target] + ([draft] if draft else [])
        return self._loader(target, draft)

    def model_places(self) -> tuple[list[Path], list[Path]]:
        """Model files in use, and folders where more may be."""
        data = Path(platformdirs.user_data_dir("specchat"))
        return self._models, gguf_folders(self._models, data)


def run(args: argparse.Namespace) -> int:
    """Open the app with what the command line named."""
    from specchat.cli import options, remote
    from specchat.tui.terminal import own_terminal

    system = options.read_text(args.system_file) if args.system_file else args.system

    def settings() -> Settings:
        return options.settings(args)

    def loader(target: Path, draft: Path | None) -> Load:
        chosen: dict[str, object] = {
            "model": str(target),
            "draft": str(draft) if draft else None,
            "lora": [],
        }
        pair = argparse.Namespace(**vars(args) | chosen)
        return lambda progress: options.load_engine(pair, progress, args.parallel)

    def load(progress: Progress) -> Engine | Remote:
        if args.endpoint:
            return Remote(remote.connect(args))
        return options.load_engine(args, progress, args.parallel)

    history, warning = open_history()
    threading.Thread(target=_tidy, args=(history,), daemon=True).start()
    named = () if args.endpoint else (args.model, args.draft)  # there, a name is no file
    files = [Path(name) for name in named if name]
    app = SpecchatApp(
        Session(load, settings, insists=bool(args.endpoint)),
        history,
        system=system or "",
        warning=warning,
        preferences=read_preferences(),
        loader=loader,
        models=files,
    )
    with own_terminal():
        _quit_on_hangup(app)
        app.run()
    if app.main.problem is not None:
        raise app.main.problem
    return app.return_code or 0


def _tidy(history: History) -> None:
    """Finish what crashed runs left, and drop what was deleted long ago."""
    from specchat.errors import HistoryError

    with suppress(HistoryError):
        history.recover()
        history.purge()


def _quit_on_hangup(app: SpecchatApp) -> None:
    """A closed terminal or a polite kill ends the app in order, so that nothing is lost."""
    for name in ("SIGHUP", "SIGTERM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: app.call_later(app.exit))
