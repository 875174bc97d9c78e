"""What the engine's thread tells the app, besides the engine's own events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specchat.engine.events import Event
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.engine.engine import Engine, Settings
    from specchat.engine.stats import Stats
    from specchat.tui.answering import Remote

Progress = Callable[[str, float], bool]
Load = Callable[[Progress], "Engine | Remote"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The command line's settings, or with `error` what is wrong with them."""

    settings: Settings | None = None
    error: SpecchatError | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """Weights of "target" or "draft" are being read; `share` is 0..1."""

    stage: str
    share: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Questions can be answered. `refusal` says why nothing can be drafted. `thinking` are the
    marks around reasoning, `thinks_first` whether answers begin inside them.

    `server` is host and port where the model is elsewhere: then `draft` "" and `n_ctx` 0 mean
    that the server does not tell, `steers` that it takes rule and draft length from its
    clients, `continues` that it can go on with an answer.
    """

    target: str
    draft: str
    n_ctx: int
    refusal: str
    thinking: tuple[str, str] | None = None
    thinks_first: bool = False
    server: str = ""
    steers: bool = True
    continues: bool = True

    @property
    def name(self) -> str:
        """The models in a line."""
        return self.target + (f" + {self.draft}" if self.draft else "")


@dataclass(frozen=True, slots=True)
class Unloaded:
    """There is no engine now: loading failed or, with an empty message, was cancelled."""

    message: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something to tell the user once, about the server that answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Began:
    """An answer is about to come; its figures gather in `stats`."""

    stats: Stats


@dataclass(frozen=True, slots=True)
class Depths:
    """Tokens in the KV caches after a round; `draft` None where there is no draft model."""

    target: int
    draft: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over; `error` says why it failed, if it did."""

    error: str = ""


Update = Prepared | Loading | Ready | Unloaded | Noted | Began | Depths | Ended | Event
