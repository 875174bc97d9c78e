"""Which models there are, which drafts fit which target, and the choice of a pair."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat.engine.header import Header, read_header
from specchat.engine.pairing import PairFit, check_pair
from specchat.errors import ModelFileError, SpecchatError
from specchat.tui.kinds import shown


@dataclass(frozen=True, slots=True)
class Found:
    """A file, read or not: `problem` says why not."""

    path: Path
    header: Header | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    target: Path
    draft: Path | None


def find_models(files: Iterable[Path], folders: Iterable[Path]) -> list[Found]:
    """The named files and all GGUFs in the folders, each once, by name."""
    paths = {p.resolve() for p in files}
    for folder in folders:
        try:
            paths |= {p.resolve() for p in folder.glob("*.gguf") if p.is_file()}
        except OSError:
            continue
    return [_read(path) for path in sorted(paths, key=lambda p: p.name.casefold())]


def _read(path: Path) -> Found:
    try:
        return Found(path, read_header(path))
    except ModelFileError as error:
        return Found(path, None, str(error))


def _fit(target: Header, draft: Header) -> PairFit:
    try:
        return check_pair(target, draft)
    except SpecchatError as error:
        return PairFit(False, str(error))


class ModelsScreen(ModalScreen[Pair | None]):
    """First the target, then a draft for it. Headers are read in the background."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def __init__(self, files: Iterable[Path], folders: Iterable[Path]) -> None:
        super().__init__()
        self._files, self._folders = list(files), list(folders)
        self._found: list[Found] = []
        self._target: Found | None = None
        self._drafts: list[Path | None] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static("Models: reading…", classes="dialog-title", markup=False)
            yield OptionList(markup=False)
            yield Static("", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.run_worker(self._scan(), exclusive=True)

    async def _scan(self) -> None:
        self._found = await asyncio.to_thread(find_models, self._files, self._folders)
        self._show_targets()

    def _show_targets(self) -> None:
        self._target = None
        self._fill(
            "Choose the target: the model whose answers you want",
            [(_described(f), f.header is not None) for f in self._found],
            "Enter chooses, Esc closes. Looked in " + ", ".join(str(f) for f in self._folders),
        )

    def _fill(self, title: str, lines: list[tuple[Content, bool]], hint: str) -> None:
        self.query_one(".dialog-title", Static).update(title)
        self.query_one(".hint", Static).update(hint)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(line, disabled=not usable) for line, usable in lines])
        usable_at = [i for i, (_, usable) in enumerate(lines) if usable]
        options.highlighted = usable_at[0] if usable_at else None
        options.focus()

    async def _offer_drafts(self, target: Found) -> None:
        self._target = target
        assert target.header is not None
        self._drafts = [None]
        lines = [(Content("no draft model: lookup drafting only"), True)]
        for f in self._found:
            if f.header is not None and f is not target:
                fit = await asyncio.to_thread(_fit, target.header, f.header)
                verdict = f"fits: {fit.note}" if fit.fits else f"does not fit: {fit.reason}"
                self._drafts.append(f.path)
                lines.append((_described(f) + Content("\n  " + shown(verdict)), fit.fits))
        self._fill(f"Choose a draft for {target.path.name}", lines, "Enter loads, Esc goes back")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if self._target is None:
            self.run_worker(self._offer_drafts(self._found[event.option_index]), exclusive=True)
        else:
            self.dismiss(Pair(self._target.path, self._drafts[event.option_index]))

    def action_back(self) -> None:
        if self._target is None:
            self.dismiss(None)
        else:
            self._show_targets()


def _described(found: Found) -> Content:
    name = Content.styled(shown(found.path.stem), "bold")
    h = found.header
    if h is None:
        return name + Content("\n  " + shown(found.problem))
    facts = (
        f"\n  {h.architecture}, {_count(h.parameters)} parameters, {h.quantisation}, "
        f"{h.weight_bytes / 2**20:,.0f} MiB, context {h.context_length}"
    )
    return name + Content.styled(shown(facts), "dim")


def _count(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
