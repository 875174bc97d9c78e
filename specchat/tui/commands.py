"""The command palette lists every action that has a key, and a few that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from specchat.tui.screens.main import MainScreen
from specchat.tui.widgets.message import MessageView

_KEYS = {"escape": "Esc", "left": "←", "right": "→", "up": "↑", "down": "↓", "slash": "/",
         "pageup": "PgUp", "pagedown": "PgDn"}  # fmt: skip
_WITHOUT_KEY = (
    ("Search all chats", "search"),
    ("Rename this chat", "rename"),
    ("Undo the last deletion", "undo"),
)


def actions() -> Iterator[tuple[str, str, str]]:
    """Name, action of the main screen, and key of everything the user can do."""
    seen = set()
    for name, action in _WITHOUT_KEY:
        seen.add(action)
        yield name, action, ""
    for binding in [*MainScreen.BINDINGS, *MessageView.BINDINGS]:
        assert isinstance(binding, Binding)
        action = binding.action.removeprefix("screen.")
        if action not in seen:
            seen.add(action)
            yield binding.description, action, key_name(binding).partition(",")[0]


def summary(action: str) -> str:
    """The first sentence of what an action's docstring says."""
    method = getattr(MainScreen, f"action_{action.partition('(')[0]}")
    return (method.__doc__ or "").strip().partition("\n")[0]


def key_name(binding: Binding) -> str:
    """The binding's keys as they are printed on keyboards."""
    if binding.key_display:
        return binding.key_display
    keys = binding.key.split(",")
    return ", ".join("+".join(_KEYS.get(k, k.capitalize()) for k in key.split("+")) for key in keys)


class Commands(Provider):
    """Actions run on the main screen, whatever had the focus."""

    def _all(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Name, explanation and what to do, the app's own first."""
        for name, action, key in actions():
            yield f"{name}  ({key})" if key else name, summary(action), self._runner(action)
        for command in self.app.get_system_commands(self.screen):
            if command.title in ("Theme", "Screenshot", "Quit"):
                yield command.title, command.help, command.callback

    async def discover(self) -> Hits:
        for name, text, run in self._all():
            yield DiscoveryHit(name, run, help=text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, text, run in self._all():
            score = matcher.match(f"{name} {text}")
            if score > 0:
                yield Hit(score, name, run, help=text)

    def _runner(self, action: str) -> Callable[[], object]:
        async def run() -> None:
            await self.screen.run_action(action)

        return run
