"""Which GGUFs this machine has: each with its header facts, or with what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from specchat.default_model import default_model
from specchat.engine.header_strings import forget_arrays
from specchat.errors import ModelFileError
from specchat.models.facts import Facts, FactsCache
from specchat.models.places import Candidate, candidates, known_places


@dataclass(frozen=True, slots=True)
class Found:
    """A file: `facts`, or None and `problem` saying why it cannot be used. `name` is short
    (for Ollama its model:tag), `program` whose folder it lies in ("" one the user named).
    """

    path: Path
    program: str
    name: str
    facts: Facts | None
    problem: str = ""


def discover(
    folders: Iterable[Path] = (), *, files: Iterable[Path] = (), cache: FactsCache | None = None
) -> list[Found]:
    """All models of this machine, each file once, by name. See `scan`."""
    return sorted(scan(folders, files=files, cache=cache), key=lambda f: f.name.casefold())


def scan(
    folders: Iterable[Path] = (), *, files: Iterable[Path] = (), cache: FactsCache | None = None
) -> Iterator[Found]:
    """Yield models as they are found: `files`, the embedded one, the user's `folders`, then
    the folders of specchat and other programs.

    Files that change, vanish or cannot be read come with a problem; nothing is raised. What
    was read is kept for the next time, also when the caller stops early.
    """
    cache = cache or FactsCache()
    seen: set[Path] = set()
    named = [Candidate(path, "", path.stem) for path in files]
    with suppress(ModelFileError):  # it may not be installed
        named.append(Candidate(default_model(), "specchat", default_model().stem))
    found = (c for place in known_places(folders) for c in candidates(place))
    try:
        for candidate in chain(named, found):
            real = _real(candidate.path)
            if real not in seen:
                seen.add(real)
                yield _read(candidate, real, cache)
    finally:
        cache.save()
        forget_arrays()


def _real(path: Path) -> Path:
    """The file behind links: the same model may be linked from several places."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return path.absolute()


def _read(candidate: Candidate, real: Path, cache: FactsCache) -> Found:
    path, program, name = candidate.path, candidate.program, candidate.name
    if candidate.problem:
        return Found(path, program, name, None, candidate.problem)
    try:
        return Found(path, program, name, cache.read(path))
    except ModelFileError as error:
        return Found(path, program, name, None, str(error))
