"""Tables and lines on a terminal or in a pipe, safe for whatever a file is called."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specchat.engine.text import strip_control


class _Console(Console):
    """Prints text as it is: no markup, no control sequences, nothing that cannot be encoded.
    Ends like the other commands when its reader leaves; rich would exit with 1.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(safe(o) if isinstance(o, str) else o for o in objects), **options)


class _Table(Table):
    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(safe(c) if isinstance(c, str) else c for c in cells), **options)


def console() -> Console:
    """As wide as the terminal; in a pipe nothing is folded."""
    return _Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)


def table(*titles: str, title: str | None = None) -> Table:
    """An empty table; a title that ends in ">" heads a column of numbers."""
    made = _Table(title=title, title_justify="left", box=None, pad_edge=False)
    for text in titles:
        right = text.endswith(">")
        made.add_column(
            text.rstrip(">"), justify="right" if right else "left", overflow="fold",
            no_wrap=right,
        )  # fmt: skip
    return made


def safe(text: str) -> Text:
    """One line. A file's name may hold control sequences, markup, or bytes that are no UTF-8."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\n", "�")
    return Text(strip_control(text))


def size(n: int) -> str:
    """Bytes for people: 4.68 GiB, 98 MiB."""
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"
