"""A finished answer as Markdown, whose code blocks can be copied one by one."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.events import Click
from textual.message import Message
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownFence

from specchat.tui.kinds import shown
from specchat.tui.markdown import answer_parser


class CopyLine(Static):
    """Above a code block: its language, and a place to click."""

    class Pressed(Message):
        """The user wants `code`."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def __init__(self, language: str, code: str) -> None:
        super().__init__(shown(f"{language or 'code'}  [copy]"), classes="copy", markup=False)
        self._code = code

    def on_click(self, event: Click) -> None:
        event.stop()
        self.post_message(self.Pressed(self._code))


class CodeBlock(MarkdownFence):
    def compose(self) -> ComposeResult:
        yield CopyLine(" ".join(self.lexer.split())[:20], self.code)
        yield from super().compose()


class AnswerMarkdown(Markdown):
    """Opens no links: what a model writes is not to be trusted."""

    BLOCKS = Markdown.BLOCKS | {"fence": CodeBlock, "code_block": CodeBlock}

    def __init__(self, text: str) -> None:
        super().__init__(shown(text), parser_factory=answer_parser, open_links=False)
