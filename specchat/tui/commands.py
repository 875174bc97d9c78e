"""The command palette lists every action that has a key, and a few that have none."""

from __future__ import annotations

from collections.abc import Iterator

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from specchat.tui.screens.main import MainScreen
from specchat.tui.widgets.message import MessageView

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
            yield binding.description, action, binding.key.partition(",")[0]


def summary(action: str) -> str:
    """The first sentence of what an action's docstring says."""
    method = getattr(MainScreen, f"action_{action.partition('(')[0]}")
    return (method.__doc__ or "").strip().partition("\n")[0]


class Commands(Provider):
    """Actions run on the main screen, whatever had the focus."""

    async def discover(self) -> Hits:
        for name, action, key in actions():
            yield DiscoveryHit(_line(name, key), self._runner(action), help=summary(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, action, key in actions():
            score = matcher.match(f"{name} {summary(action)}")
            if score > 0:
                yield Hit(score, _line(name, key), self._runner(action), help=summary(action))

    def _runner(self, action: str):  # type: ignore[no-untyped-def]
        async def run() -> None:
            await self.screen.run_action(action)

        return run


def _line(name: str, key: str) -> str:
    return f"{name}  ({key})" if key else name
