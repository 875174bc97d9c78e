"""Sampling, speculation and the app's own habits; a running answer goes on with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Select, Static, TextArea

from specchat.errors import BadRequestError
from specchat.tui.preferences import SUBMIT_KEYS, VIEWS, Preferences

if TYPE_CHECKING:
    from specchat.engine.engine import Settings

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("temperature", float, "0 is greedy"),
    ("top_k", int, "0 keeps all"),
    ("top_p", float, "1 keeps all"),
    ("min_p", float, "0 keeps all"),
    ("repeat_penalty", float, "1 is off"),
    ("seed", int, "empty is random"),
)
_DRAFTERS = ("both", "draft", "lookup", "none")
_RULES = ("exact", "match", "typical")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the user left with."""

    settings: Settings
    system: str
    preferences: Preferences


class SettingsScreen(ModalScreen[Chosen | None]):
    """A form; the changes are returned when they all make sense."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("ctrl+s,f8", "save", "Save", priority=True),
    ]

    def __init__(self, settings: Settings, system: str, preferences: Preferences) -> None:
        super().__init__()
        self._settings, self._system, self._preferences = settings, system, preferences

    def compose(self) -> ComposeResult:
        s, p = self._settings, self._preferences
        with Vertical(classes="dialog wide"):
            yield Static(
                "Settings; a running answer goes on with them", classes="dialog-title", markup=False
            )
            with VerticalScroll(can_focus=False):
                yield Static("Speculation", classes="section", markup=False)
                length = "auto" if s.draft_length is None else str(s.draft_length)
                lengths = ["auto", *(str(n) for n in range(17))]
                yield self._select("draft_length", lengths, length, "tokens proposed per call")
                yield self._select("rule", _RULES, s.rule, "exact and match are lossless")
                yield self._select("drafter", _DRAFTERS, s.drafter, "who proposes")
                yield self._input("tau", s.tau, "threshold of rule typical")
                yield Static("Sampling", classes="section", markup=False)
                for name, _, note in _NUMBERS:
                    yield self._input(name, getattr(s.sampling, name), note)
                yield self._input("max_tokens", s.max_tokens, "empty: until it ends")
                yield Static("App", classes="section", markup=False)
                yield self._input("alternatives", p.alternatives, "recorded per token, 0 to 20")
                yield self._select("view", VIEWS, p.view, "of finished answers")
                yield self._select("submit_key", SUBMIT_KEYS, p.submit_key, "sends a question")
                yield Static("System prompt", classes="section", markup=False)
                yield TextArea(self._system, id="system", compact=True)
            yield Static(classes="note", id="problem", markup=False)
            yield Static("Tab moves, Ctrl+S saves, Esc cancels", classes="hint", markup=False)

    def _row(self, name: str, field: Input | Select[str], note: str) -> Horizontal:
        label = Static(name.replace("_", " "), classes="name", markup=False)
        return Horizontal(label, field, Static(note, classes="hint", markup=False), classes="row")

    def _input(self, name: str, value: object, note: str) -> Horizontal:
        text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        return self._row(name, Input(text, id=name, compact=True), note)

    def _select(self, name: str, values: Any, value: str, note: str) -> Horizontal:
        options = [(v, v) for v in values]
        field = Select(options, value=value, allow_blank=False, id=name, compact=True)
        return self._row(name, field, note)

    def _text(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()

    def _number(self, name: str, kind: type) -> Any:
        text = self._text(name)
        if not text and name in ("seed", "max_tokens"):
            return None
        try:
            return kind(text)
        except ValueError:
            raise BadRequestError(f"{name} must be a number, not {text!r}.", name) from None

    def _choice(self, name: str) -> str:
        return str(self.query_one(f"#{name}", Select).value)

    def action_save(self) -> None:
        try:
            self.dismiss(self._chosen())
        except BadRequestError as error:
            self.query_one("#problem", Static).update(str(error))
            if error.param and self.query(f"#{error.param}"):
                self.query_one(f"#{error.param}").focus()

    def _chosen(self) -> Chosen:
        length = self._choice("draft_length")
        alternatives = self._number("alternatives", int)
        if not 0 <= alternatives <= 20:
            raise BadRequestError("alternatives must be 0 to 20.", "alternatives")
        settings = replace(
            self._settings,
            sampling=replace(
                self._settings.sampling,
                **{name: self._number(name, kind) for name, kind, _ in _NUMBERS},
            ),
            draft_length=None if length == "auto" else int(length),
            rule=self._choice("rule"),
            drafter=self._choice("drafter"),
            max_tokens=self._number("max_tokens", int),
            tau=self._number("tau", float),
        )
        preferences = replace(
            self._preferences,
            alternatives=alternatives,
            view=self._choice("view"),
            submit_key=self._choice("submit_key"),
        )
        return Chosen(settings, self.query_one("#system", TextArea).text.strip(), preferences)
