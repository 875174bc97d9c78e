"""What `-m NAME` and `-d NAME` stand for: a file, or an entry of `models.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specchat.errors import ModelFileError, UnknownModelError
from specchat.models.discovery import Found, discover
from specchat.models.local import find, status
from specchat.models.registry import Registry, load_registry


@dataclass(frozen=True, slots=True)
class Resolved:
    """Files and defaults that a name stands for. `sampling` is in `SamplingParams`' names,
    `context` in tokens (0: specchat's default), `template` a Jinja file.
    """

    target: Path
    draft: Path | None = None
    context: int = 0
    sampling: dict[str, float] = field(default_factory=dict)
    template: str | None = None


def resolve(
    name: str,
    *,
    draft: bool = True,
    registry: Registry | None = None,
    found: Sequence[Found] | None = None,
) -> Resolved:
    """Find the files of the pair (or file of `[files]`, or model Ollama knows) called `name`.

    `draft` False leaves the pair's draft out. `found` saves looking for files again. Raises
    UnknownModelError with the nearest names, ModelFileError where a file was not downloaded
    (it says what to type), RegistryError.
    """
    registry = registry or load_registry()
    known = name in registry.pairs or name in registry.files
    if found is None:
        found = discover(registry.folders)
    if not known:
        own = next((f for f in found if f.name == name and f.facts is not None), None)
        if own is not None:
            return Resolved(own.path)
        raise UnknownModelError(name, registry.nearest(name, [f.name for f in found if f.facts]))
    pair = registry.pair(name)
    state = status(registry, name, found)
    wanted = [pair.target] + ([pair.draft] if draft and pair.draft else [])
    missing = [m for m in state.missing if m in wanted]
    if missing:
        hint = " Or go on without its draft: -d none." if pair.target not in missing else ""
        raise ModelFileError(
            f"{name} is known, but not on this machine yet ({' and '.join(missing)}). "
            f"Download it: specchat pull {name}{hint and '.' + hint}"
        )
    assert state.target is not None
    return Resolved(
        target=state.target,
        draft=state.draft if draft else None,
        context=pair.context,
        sampling=pair.sampling.given(),
        template=pair.template,
    )


def resolve_draft(
    name: str, *, registry: Registry | None = None, found: Sequence[Found] | None = None
) -> Path:
    """The file that `-d NAME` stands for. Raises what `resolve` raises."""
    registry = registry or load_registry()
    found = found if found is not None else discover(registry.folders)
    if name in registry.files:
        here = find(registry.files[name], found)
        if here is None:
            raise ModelFileError(
                f"{name} is known, but not on this machine yet. Download it: specchat pull {name}"
            )
        return here.path
    return resolve(name, draft=False, registry=registry, found=found).target
