"""Which files of the named pairs are on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from specchat.models.discovery import Found
from specchat.models.registry import ModelFile, Pair, Registry


@dataclass(frozen=True, slots=True)
class PairStatus:
    """A named pair: where its files lie (None where missing), and `missing`, the names in
    `[files]` of what is not here. `problem` says what is wrong with a file that is here.
    """

    name: str
    pair: Pair
    target: Path | None
    draft: Path | None
    missing: tuple[str, ...]
    problem: str = ""

    @property
    def ready(self) -> bool:
        return not self.missing and not self.problem


def statuses(registry: Registry, found: Sequence[Found]) -> list[PairStatus]:
    """Every named pair, as `registry` lists them."""
    return [status(registry, name, found) for name in registry.pairs]


def status(registry: Registry, name: str, found: Iterable[Found]) -> PairStatus:
    """What of the pair `name` is here. Raises UnknownModelError with the nearest names."""
    pair, found = registry.pair(name), list(found)
    places: dict[str, Path | None] = {}
    problem = ""
    for wanted in (pair.target, pair.draft):
        if wanted is not None:
            here = find(registry.file(wanted), found)
            places[wanted] = here.path if here else None
            problem = problem or (here.problem if here else "")
    missing = tuple(wanted for wanted, path in places.items() if path is None)
    draft = places[pair.draft] if pair.draft is not None else None
    return PairStatus(name, pair, places[pair.target], draft, missing, problem)


def find(file: ModelFile, found: Iterable[Found]) -> Found | None:
    """The file of this machine that is `file`: by path, else by name and size (where known),
    preferring one that lies in a folder of its repository.
    """
    if file.path is not None:
        path = Path(file.path)
        known = next((f for f in found if f.path == path), None)
        return known or (Found(path, "", path.stem, None) if path.is_file() else None)
    name = PurePosixPath(file.file).name.casefold()
    best: Found | None = None
    for candidate in found:
        own = candidate.path.name.casefold()
        # llama.cpp's cache puts owner and repository before the name, with underscores.
        cached = f"{(file.repo or '').replace('/', '_')}_{name}".casefold()
        if own not in (name, cached):
            continue
        if best is None or (candidate.facts is not None, in_repository(file, candidate.path)) > (
            best.facts is not None,
            in_repository(file, best.path),
        ):
            best = candidate
    return best


def in_repository(file: ModelFile, path: Path) -> bool:
    """Whether `path` lies in a folder of the repository, in the Hub's or LM Studio's layout."""
    text, repo = path.as_posix().casefold(), (file.repo or "").casefold()
    return f"/{repo}/" in text or f"/models--{repo.replace('/', '--')}/" in text
