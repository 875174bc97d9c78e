"""Looking into an answer token by token, and the windows that open on top of the chat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specchat.engine.messages import Message as EngineMessage
from specchat.errors import HistoryError
from specchat.history import Record
from specchat.tui.choices import as_json
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.widgets.inspector import Inspector
from specchat.tui.widgets.message import MessageView

if TYPE_CHECKING:
    pass


class InspectingScreen(ChatScreen):
    """The chat, with the inspector, the rounds, settings, models and help."""

    inspected: MessageView | None = None

    def chosen(self, role: str = "") -> MessageView | None:
        """The message that has the focus or is inspected, else the newest of the role."""
        for view in (self.inspected, self.focused):
            if isinstance(view, MessageView) and role in ("", view.message.role):
                return view
        views = [v for v in self.view.messages if role in ("", v.message.role)]
        return views[-1] if views else None

    def idle(self) -> bool:
        """Whether nothing is being answered; tells the user otherwise."""
        if self.busy:
            self.tell("An answer is running. Esc stops it.")
        return not self.busy

    def can_go_on(self) -> bool:
        """Whether an answer can be gone on with now; tells the user otherwise."""
        if self.ready is not None and not self.ready.continues:
            self.tell(f"{self.ready.server} cannot go on with an answer. Ctrl+R asks again.")
            return False
        return self.idle()

    # -- inspector ----------------------------------------------------------------------

    def action_inspect(self) -> None:
        """Put the cursor on a token of the chosen or newest answer; again leaves."""
        if self.inspected is not None:
            self.leave_inspector()
            return
        view = self.chosen("assistant")
        if view is None or not view.tokens:
            self.tell("There is no answer with tokens to inspect yet.")
            return
        self.inspect(view, len(view.tokens) - 1)

    def inspect(self, view: MessageView, index: int) -> None:
        if self.inspected not in (None, view):
            self.leave_inspector()
        self.inspected = view
        inspector = self.query_one(Inspector)
        inspector.display = True
        inspector.focus()
        self.view.release_anchor()
        token = view.select(index)
        if token is not None and view.cursor is not None:
            mates = [t for t in view.tokens if t.round == token.round]
            place = f"{view.cursor + 1} of {len(view.tokens)}"
            inspector.show(token, view.rounds.get(token.round), mates, place)

    def leave_inspector(self) -> None:
        if self.inspected is not None:
            self.inspected.select(None)
            self.inspected = None
            self.query_one(Inspector).display = False
            self.prompt.focus()

    def on_message_view_token_clicked(self, event: MessageView.TokenClicked) -> None:
        self.inspect(event.view, event.index)

    def on_inspector_left(self) -> None:
        self.leave_inspector()

    def on_inspector_go(self, event: Inspector.Go) -> None:
        view = self.inspected
        if view is None or view.cursor is None:
            return
        at = view.cursor + event.step
        if event.refused:
            while 0 <= at < len(view.tokens) and view.tokens[at].rejected is None:
                at += event.step
            if not 0 <= at < len(view.tokens):
                self.tell("No draft token was refused there.")
                return
        self.inspect(view, at)

    def on_inspector_take(self, event: Inspector.Take) -> None:
        """Answer again from the cursor, with the alternative in its token's place."""
        view = self.inspected
        if view is None or view.cursor is None or not self.can_go_on():
            return
        if self.ready is None or self.settings is None:
            self.tell("No model is loaded.")
            return
        tokens = (*view.tokens[: view.cursor], event.token)
        rounds = tuple(r for i, r in sorted(view.rounds.items()) if i <= event.token.round)
        self.leave_inspector()
        self.settle()
        try:
            self.chat.cut(view.message)
            messages = self.chat.engine_messages()
            message = self.chat.begin_answer(
                self.ready.target, self.ready.draft, as_json(self.settings)
            )
            self.chat.history.append_answer(message.id, tokens, rounds)
        except HistoryError as error:
            self.warn(str(error))
            return
        self.view.show(self.chat.path)
        branch = self.view.view_of(message.id)
        assert branch is not None
        branch.restore(Record(tokens, rounds))
        text = "".join(token.text for token in tokens)
        messages.append(EngineMessage("assistant", text))
        self.run_answer(branch, messages, continued=True)

    # -- windows ------------------------------------------------------------------------

    def action_rounds(self) -> None:
        """The rounds of an answer, one a line; choosing one inspects its first token."""
        self.run_worker(self._rounds(), exclusive=True)

    async def _rounds(self) -> None:
        from specchat.tui.screens.rounds import RoundsScreen

        view = self.chosen("assistant")
        if view is None or not view.rounds:
            self.tell("There are no rounds to show yet.")
            return
        rounds = [view.rounds[i] for i in sorted(view.rounds)]
        at = len(rounds) - 1
        if view.cursor is not None:
            wanted = view.tokens[view.cursor].round
            at = next((i for i, r in enumerate(rounds) if r.index == wanted), at)
        screen = RoundsScreen(rounds, view.tokens, self.specchat.looks, at)
        chosen = await self.app.push_screen_wait(screen)
        if chosen is not None:
            index = rounds[chosen].index
            first = next((i for i, t in enumerate(view.tokens) if t.round == index), 0)
            self.inspect(view, first)

    def action_settings(self) -> None:
        """Sampling, draft length, rule, system prompt and how the app behaves."""
        self.run_worker(self._choose_settings(), exclusive=True)

    async def _choose_settings(self) -> None:
        from specchat.tui.screens.settings import SettingsScreen

        if self.settings is None:
            return
        screen = SettingsScreen(self.settings, self.chat.system, self.preferences)
        chosen = await self.app.push_screen_wait(screen)
        if chosen is None:
            return
        self.preferences.alternatives = chosen.preferences.alternatives
        self.preferences.view = chosen.preferences.view
        self.preferences.submit_key = chosen.preferences.submit_key
        self.preferences.save()
        self.prompt.submit_key = chosen.preferences.submit_key
        self.change(chosen.settings)
        try:
            self.chat.set_system(chosen.system)
            if self.chat.stored is not None:
                self.chat.history.set_settings(self.chat.stored.id, as_json(self.settings))
        except HistoryError as error:
            self.warn(str(error))

    def action_models(self) -> None:
        """Choose other models."""
        self.run_worker(self._choose_models(), exclusive=True)

    async def _choose_models(self) -> None:
        from specchat.tui.screens.models import ModelsScreen

        pair = await self.app.push_screen_wait(ModelsScreen(*self.specchat.model_places()))
        if pair is not None and self.idle():
            self.ready = None
            self.session.load(self.specchat.loader(pair.target, pair.draft))

    def action_rename(self) -> None:
        """Give this chat another title."""
        self.run_worker(self._rename(), exclusive=True)

    async def _rename(self) -> None:
        from specchat.tui.screens.dialogs import AskLine

        id = self.chats.highlighted if self.chats.list.has_focus else None
        id = id or (self.chat.stored.id if self.chat.stored else None)
        if id is None:
            self.tell("This chat has no name yet; ask something first.")
            return
        try:
            title = self.chat.history.conversation(id).title
            chosen = await self.app.push_screen_wait(AskLine("Rename the chat", title))
            self.chat.history.rename(id, chosen or title)
            if self.chat.stored is not None and self.chat.stored.id == id:
                self.chat.stored = self.chat.history.conversation(id)
        except HistoryError as error:
            self.warn(str(error))
        self.show_title()
        self.list_chats()


def gguf_folders(files: list[Path], data: Path) -> list[Path]:
    """Where to look for models: beside those in use, and in the app's own folder."""
    return list(dict.fromkeys([*(f.resolve().parent for f in files), data / "models"]))
