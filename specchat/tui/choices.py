"""An answer's settings as a JSON object and back, for what a conversation remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from specchat.errors import BadRequestError

if TYPE_CHECKING:
    from specchat.engine.engine import Settings

_KEPT = ("rule", "tau", "draft_length", "drafter", "max_tokens")


def as_json(settings: Settings) -> dict[str, Any]:
    """Without grammar, schema and logit bias, which belong to one run."""
    sampling = asdict(settings.sampling)
    del sampling["logit_bias"]
    return sampling | {name: getattr(settings, name) for name in _KEPT}


def with_json(settings: Settings, saved: Mapping[str, Any]) -> Settings:
    """`settings` changed by what was saved; saved nonsense changes nothing."""
    names = {f.name for f in fields(settings.sampling)}
    try:
        return replace(
            settings,
            sampling=replace(settings.sampling, **{k: v for k, v in saved.items() if k in names}),
            **{k: v for k, v in saved.items() if k in _KEPT},
        )
    except (BadRequestError, TypeError, ValueError):
        return settings
