"""Small questions on top of the chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.visual import VisualType
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option


class AskLine(ModalScreen[str | None]):
    """One line of text; None when the user changed their mind."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="dialog-title")
            yield Input(self._value)
            yield Static("Enter accepts, Esc cancels", classes="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class ReadScreen(ModalScreen[None]):
    """Titled sections to read, longer than a screen perhaps."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,f1", "dismiss(None)", "Close")]

    def __init__(self, title: str, sections: Iterable[tuple[str, VisualType]]) -> None:
        super().__init__()
        self._title, self._sections = title, sections

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(self._title, markup=False, classes="dialog-title")
            with VerticalScroll():
                for title, text in self._sections:
                    yield Static(title, classes="section", markup=False)
                    yield Static(text, markup=False)
            yield Static("↑ ↓ scroll, Esc closes", classes="hint", markup=False)


class ListScreen(ModalScreen[int | None]):
    """Lines to look through; the index of the one chosen, None when none was."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss(None)", "Close")]

    def __init__(self, title: str, lines: list[Content], hint: str, at: int = 0) -> None:
        super().__init__()
        self._title, self._lines, self._hint, self._at = title, lines, hint, at

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(self._title, markup=False, classes="dialog-title")
            yield OptionList(*(Option(line) for line in self._lines), markup=False)
            yield Static(self._hint, classes="hint", markup=False)

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = min(self._at, len(self._lines) - 1) if self._lines else None
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)
