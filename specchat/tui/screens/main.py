"""What the user can do on the main screen; keys and the command palette lead here."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import DescendantFocus
from textual.widgets import Input

from specchat.errors import HistoryError, SpecchatError
from specchat.tui.markdown import code_blocks
from specchat.tui.screens.serving import ServingScreen
from specchat.tui.widgets.answer_markdown import CopyLine
from specchat.tui.widgets.message import MessageView


class MainScreen(ServingScreen):
    """Actions without a message of their own act on the one that has the focus, else on the
    newest that they make sense for.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+n", "new", "New", priority=True),
        Binding("f1", "help", "Help"),  # here too, for its place in a narrow footer
        Binding("f2", "inspect", "Inspect"),
        Binding("f5", "models", "Models"),
        Binding("f6", "chats", "Chats", priority=True),
        Binding("f3", "panel", "Figures"),
        Binding("ctrl+r", "regenerate", "Again", priority=True),
        Binding("f4", "view", "Tokens"),
        Binding("f7", "rounds", "Rounds", priority=True),
        Binding("f8", "settings", "Settings"),
        Binding("f9", "endpoint", "Endpoint"),
        Binding("ctrl+up", "select(-1)", "Select message", key_display="^↑"),
        Binding("ctrl+down", "select(1)", "Next message", show=False),
        Binding("ctrl+f", "find", "Find", priority=True, show=False),
        Binding("ctrl+g", "go_on", "Go on with the answer", priority=True, show=False),
        Binding("ctrl+o", "copy_code", "Copy code block", priority=True, show=False),
        Binding("ctrl+s", "export", "Export", priority=True, show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("ctrl+home", "page(-1000)", "To the top", show=False),
        Binding("ctrl+end", "page(1000)", "To the end", show=False),
    ]

    # -- messages ---------------------------------------------------------------------

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(event.widget, MessageView):
            event.widget.scroll_visible(animate=False)

    def action_select(self, step: int) -> None:
        """Move the focus among messages; past the newest it returns to the input."""
        views = self.view.messages
        at = views.index(self.focused) if self.focused in views else len(views)
        if at + step >= len(views):
            self.prompt.focus()
        elif at + step < 0:
            self.view.show_earlier()
        else:
            views[at + step].focus()

    def action_stop(self) -> None:
        """Leave what is open, or end what runs."""
        find = self.query_one("#find", Input)
        if find.display:
            self.close_find()
        elif self.load_running:
            self.session.cancel_load()
        elif self.busy and self.focused is self.prompt:
            self.stop()
        elif self.editing is not None:
            self.stop_editing()
            self.prompt.clear()
        elif self.focused is not self.prompt:
            self.prompt.focus()
        else:
            self.queued.clear()
            self.next()

    def action_regenerate(self) -> None:
        """Another answer beside the chosen or last one."""
        view = self.chosen("assistant")
        if self.idle() and view is not None:
            self.chat.cut(view.message)
            self.view.show(self.chat.path)
            self.waiting = True
            self.prompt.focus()
            self.next()

    def action_edit(self) -> None:
        """Put a question back into the input; sending it makes a branch."""
        view = self.chosen("user")
        if self.idle() and view is not None:
            self.editing = view.message
            self.prompt.border_title = "editing an earlier question: sending makes a branch"
            self.prompt.load(view.message.content)
            self.prompt.focus()

    def action_go_on(self) -> None:
        """Continue the last answer where it ended."""
        view = self.view.messages[-1] if self.view.messages else None
        if view is not None and view.tokens and self.can_go_on():
            self.resume(view)

    def action_branch(self, step: int) -> None:
        """Turn to the branch before or after this message."""
        view = self.chosen()
        if view is None or not self.idle():
            return
        depth = self.view.messages.index(view)
        if self._changed(lambda: self.chat.turn(view.message, step)):
            self.set_focus(self.view.messages[min(depth, len(self.view.messages) - 1)])

    def action_delete(self) -> None:
        """Delete the message that has the focus, and what follows it."""
        view = self.focused
        if isinstance(view, MessageView) and self.idle():
            self.prompt.focus()
            if self._changed(lambda: self.chat.delete(view.message)):
                self.waiting = False
                self.tell("Deleted. U on a message, or Undo in the palette, brings it back.")

    def action_undo(self) -> None:
        """Bring back what was deleted last."""
        try:
            conversation = self.chat.undo()
        except HistoryError as error:
            self.warn(str(error))
            return
        if conversation is None:
            self.tell("There is nothing to bring back.")
        else:
            self.open_chat(conversation)

    def action_copy(self) -> None:
        """Copy the chosen or newest message."""
        view = self.chosen()
        if view is not None:
            self.app.copy_to_clipboard(view.text)
            self.tell("Copied the message.")

    def action_copy_code(self) -> None:
        """Copy the next code block of an answer; again for the one after it."""
        view = self.chosen("assistant")
        blocks = code_blocks(view.text) if view is not None else []
        if view is None or not blocks:
            self.tell("There is no code block in this answer.")
            return
        index, code = view.next_code(blocks)
        self.app.copy_to_clipboard(code)
        self.tell(f"Copied code block {index + 1} of {len(blocks)}.")

    def on_copy_line_pressed(self, event: CopyLine.Pressed) -> None:
        self.app.copy_to_clipboard(event.code)
        self.tell("Copied the code block.")

    def action_view(self) -> None:
        """Show an answer as tokens or as Markdown; new answers will be shown alike."""
        view = self.chosen("assistant")
        if view is None or view.streaming:
            return
        if view.too_long:
            self.tell("This answer has too many paragraphs, items or rows to show it as Markdown.")
            return
        kind = "tokens" if view.view == "markdown" else "markdown"
        view.show_as(kind)
        self.preferences.view = kind
        self.preferences.save()
        try:
            self.chat.history.set_view(view.message.id, kind)
        except HistoryError as error:
            self.warn(str(error))

    def action_fold(self) -> None:
        """Show or hide the reasoning of an answer."""
        view = self.chosen("assistant")
        if view is not None:
            view.fold(not view.folded)

    def action_fork(self) -> None:
        """A new conversation that begins with everything up to the chosen message."""
        view = self.chosen()
        if view is not None and self.idle():
            self.settle()
            try:
                self.open_chat(self.chat.fork(view.message).id)
            except HistoryError as error:
                self.warn(str(error))
                return
            self.tell("This is a copy; the original is in the list of chats.")

    # -- the rest -----------------------------------------------------------------------

    def action_panel(self) -> None:
        """Show or hide the figures."""
        self.toggle("panel")
        self.show_figures()

    def action_page(self, pages: int) -> None:
        """Scroll the chat."""
        self.view.scroll_relative(y=pages * max(1, self.view.size.height - 2), animate=False)

    def action_help(self) -> None:
        """All keys, and what the colours mean."""
        self.specchat.action_help()

    def action_export(self) -> None:
        """Write this chat to a Markdown, JSON or HTML file."""
        self.run_worker(self._export(), exclusive=True)

    async def _export(self) -> None:
        from specchat.tui.screens.dialogs import AskLine
        from specchat.tui.screens.exporting import export, proposed_name

        if self.chat.stored is None:
            self.tell("There is nothing to export yet.")
            return
        question = "Export to a file that ends in .md, .json or .html (with token colours)"
        name = await self.app.push_screen_wait(AskLine(question, proposed_name(self.chat.title)))
        if name is None:
            return
        self.settle()
        try:
            self.tell(f"Exported to {export(self.chat, name)}.")
        except SpecchatError as error:
            self.warn(str(error))
