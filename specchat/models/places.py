"""Where programs keep GGUFs on this machine: folders to walk, and Ollama's own layout."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from specchat.engine.header import part_names


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to look in; `program` is whose it is. Ollama's is not walked but read."""

    program: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may be a model, or with `problem` one that certainly is none."""

    path: Path
    program: str
    name: str
    problem: str = ""


def own_folder() -> Path:
    """Where `specchat pull` puts models, as OWNER/REPOSITORY/FILE."""
    return Path(platformdirs.user_data_dir("specchat")) / "models"


def known_places(folders: Iterable[Path] = ()) -> list[Place]:
    """The folders that exist: specchat's own, those of other programs, the user's `folders`.

    A folder the user named is listed even if it does not exist, so that this shows.
    """
    home, env = Path.home(), os.environ.get
    cache = Path(env("XDG_CACHE_HOME") or home / ".cache")
    hub = env("HF_HUB_CACHE") or Path(env("HF_HOME") or cache / "huggingface") / "hub"
    places = [
        Place("specchat", own_folder()),
        Place("Hugging Face", Path(hub)),
        Place("llama.cpp", Path(env("LLAMA_CACHE") or _llama_cache(cache))),
        Place("LM Studio", home / ".lmstudio" / "models"),
        Place("LM Studio", home / ".cache" / "lm-studio" / "models"),
        *(Place("LM Studio", folder) for folder in _lm_studio_setting(home)),
        Place("Ollama", Path(env("OLLAMA_MODELS") or home / ".ollama" / "models")),
        Place("Ollama", Path("/usr/share/ollama/.ollama/models")),
    ]
    named = [Place("", folder.expanduser()) for folder in folders]
    return list(dict.fromkeys([*named, *(p for p in places if _is_dir(p.folder))]))


def _llama_cache(cache: Path) -> Path:
    """llama.cpp's own cache folder (common/common.cpp, fs_get_cache_directory)."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama.cpp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "")) / "llama.cpp"
    return cache / "llama.cpp"


def _lm_studio_setting(home: Path) -> list[Path]:
    """The models folder that the user set in LM Studio."""
    try:
        text = (home / ".lmstudio" / "settings.json").read_text(encoding="utf-8")
        folder = json.loads(text)["downloadsFolder"]
        return [Path(folder)] if isinstance(folder, str) and folder else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def candidates(place: Place) -> Iterator[Candidate]:
    """Every file in `place` that may be a model. A folder that cannot be read is one with a
    problem; later parts of split files are left to their first part.
    """
    if place.program == "Ollama" and _is_dir(place.folder / "manifests"):
        yield from _ollama(place.folder)
    elif place.program == "Hugging Face":  # the same cache holds data sets and other weights
        for folder in sorted(place.folder.glob("models--*/snapshots")):
            yield from _walk(Place(place.program, folder))
    else:
        yield from _walk(place)


def _walk(place: Place) -> Iterator[Candidate]:
    waiting, visited = [place.folder], set()
    while waiting:
        folder = waiting.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in visited:
                continue  # a link back to where we have been
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            if folder == place.folder:
                yield Candidate(folder, place.program, folder.name, "This folder does not exist.")
            continue
        except OSError as error:
            problem = f"Cannot read this folder: {error.strerror or error}."
            yield Candidate(folder, place.program, folder.name, problem)
            continue
        names = {entry.name for entry in entries}
        for entry in entries:
            path = Path(entry.path)
            if entry.name.lower().endswith(".gguf") and not _is_dir(path):
                parts = part_names(entry.name)
                if parts[0] == entry.name or parts[0] not in names:
                    yield Candidate(path, place.program, path.stem)
            elif _leads_on(entry):
                waiting.append(path)


def _leads_on(entry: os.DirEntry[str]) -> bool:
    if entry.name == ".git":
        return False
    try:
        return entry.is_dir()
    except OSError:
        return False


def _ollama(root: Path) -> Iterator[Candidate]:
    """manifests/HOST/NAMESPACE/MODEL/TAG are JSON; their model layer names a file in blobs/,
    which has no suffix.
    """
    for path in sorted((root / "manifests").rglob("*")):
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                continue
            parts = path.relative_to(root / "manifests").parts
            name = _ollama_name(parts)
            layers = json.loads(path.read_bytes())["layers"]
            digests = [
                str(layer["digest"])
                for layer in layers
                if layer["mediaType"] == "application/vnd.ollama.image.model"
            ]
        except (OSError, ValueError, KeyError, TypeError):
            yield Candidate(path, "Ollama", path.name, f"{path} is not an Ollama manifest.")
            continue
        for digest in digests[:1]:
            blob = root / "blobs" / Path(digest.replace(":", "-")).name
            yield Candidate(blob, "Ollama", name)


def _ollama_name(parts: tuple[str, ...]) -> str:
    """As `ollama list` shows it: the default host and namespace are left out."""
    *where, model, tag = parts
    if where[:1] == ["registry.ollama.ai"]:
        where = where[1:]
    if where == ["library"]:
        where = []
    return "/".join([*where, model]) + f":{tag}"
