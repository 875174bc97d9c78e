"""Named pairs of models: what `models.toml` says, the packaged one and the user's merged.

`[files.NAME]` is a GGUF and where it comes from; `[pairs.NAME]` a target with its draft and
what to run them with. The user's file adds entries and changes single keys of packaged ones.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from specchat.errors import RegistryError, UnknownModelError

_PART = re.compile(r"(.+)-00001-of-(\d{5})\.gguf")
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=80)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Sampling(_Entry):
    """Defaults of a pair, in `SamplingParams`' names; None leaves specchat's own."""

    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=0, le=10_000_000)
    top_p: float | None = Field(default=None, ge=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-100, le=100)
    frequency_penalty: float | None = Field(default=None, ge=-100, le=100)
    penalty_last_n: int | None = Field(default=None, ge=0, le=10_000_000)

    def given(self) -> dict[str, float]:
        """The keys that were set."""
        return self.model_dump(exclude_none=True)


class ModelFile(_Entry):
    """A GGUF of a Hub repository. `size` is in bytes and `sha256` in hexadecimal, of all
    parts together (`sha256` only for a file of one part); None where not known. `path` names a
    file of this machine instead of a repository. `unverified` lists keys that only one public
    source tells.
    """

    repo: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    file: str = ""
    path: str | None = None
    revision: str | None = None
    size: int | None = Field(default=None, gt=0)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    licence: str = ""
    unverified: tuple[str, ...] = Field(default=(), strict=False)

    @field_validator("repo")
    @classmethod
    def _is_no_path(cls, value: str | None) -> str | None:
        if value and not all(re.search(r"[^.]", part) for part in value.split("/")):
            raise ValueError("must be OWNER/REPOSITORY")
        return value

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        parts = PurePosixPath(value).parts
        if value and (not value.endswith(".gguf") or ".." in parts or value.startswith("/")):
            raise ValueError("must be a .gguf file inside the repository")
        return value

    def parts(self) -> list[str]:
        """The files of the repository that make up this model, first part first."""
        match = _PART.fullmatch(self.file)
        if match is None:
            return [self.file]
        count = int(match[2])
        return [f"{match[1]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, count + 1)]


class Pair(_Entry):
    """`target` and `draft` name entries of `[files]`. `context` is in tokens, 0 specchat's
    default. `template` is a Jinja file that replaces the GGUF's chat template: absolute, or
    beside the `models.toml` that names it. `unverified` lists keys that were not checked.
    """

    target: _Name
    draft: _Name | None = None
    context: int = Field(default=0, ge=0, le=2**31 - 1)
    sampling: Sampling = Sampling()
    template: str | None = None
    unverified: tuple[str, ...] = Field(default=(), strict=False)


class _Tables(_Entry):
    folders: list[str] = []
    files: dict[_Name, ModelFile] = {}
    pairs: dict[_Name, Pair] = {}


class Registry:
    """The merged tables: `files` and `pairs` by name, and `folders` to look for models in."""

    def __init__(
        self,
        files: Mapping[str, ModelFile],
        pairs: Mapping[str, Pair],
        folders: Iterable[Path] = (),
    ) -> None:
        self.files, self.pairs, self.folders = dict(files), dict(pairs), tuple(folders)

    def pair(self, name: str) -> Pair:
        """The pair of that name; a name of `[files]` stands for that file without a draft.

        Raises UnknownModelError with the nearest names.
        """
        if name in self.pairs:
            return self.pairs[name]
        if name in self.files:
            return Pair(target=name)
        raise UnknownModelError(name, self.nearest(name))

    def file(self, name: str) -> ModelFile:
        """Raises UnknownModelError with the nearest names."""
        if name in self.files:
            return self.files[name]
        raise UnknownModelError(name, self.nearest(name))

    def nearest(self, name: str, others: Iterable[str] = ()) -> list[str]:
        """Names (of the registry and `others`) that look like `name`, best first, at most
        three.
        """
        names = {n.casefold(): n for n in (*others, *self.files, *self.pairs)}
        wanted = name.casefold()
        inside = sorted((n for n in names if wanted in n), key=len)
        close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        return [names[n] for n in dict.fromkeys([*close, *inside])][:3]


def packaged_path() -> Path:
    """The `models.toml` that comes with specchat: in the package when installed, else at the
    top level of the source tree.
    """
    package = Path(__file__).parent.parent
    inside = package / "models.toml"
    return inside if inside.is_file() else package.parent / "models.toml"


def user_path() -> Path:
    """Where the user's own `models.toml` belongs; it need not exist."""
    return Path(platformdirs.user_config_dir("specchat")) / "models.toml"


def load_registry(paths: Iterable[Path] | None = None) -> Registry:
    """Read and merge `paths`, later ones winning key by key (default: packaged, user's).

    Missing files count as empty. Raises RegistryError naming file, line and key.
    """
    sources = [s for p in paths or (packaged_path(), user_path()) if (s := _Source.read(p))]
    merged: dict[str, Any] = {}
    for source in sources:
        _merge(merged, source.tables)
    try:
        tables = _Tables.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first.get("ctx", {}).get("error") or first["msg"])
        raise _located(sources, first["loc"], message) from None
    for name, file in tables.files.items():
        if (file.repo is None) == (file.path is None) or (file.repo and not file.file):
            problem = "needs either repo and file, or path"
            raise _located(sources, ("files", name), problem)
    for name, pair in tables.pairs.items():
        for key, value in (("target", pair.target), ("draft", pair.draft)):
            if value is not None and value not in tables.files:
                problem = f"there is no [files.{value}]"
                raise _located(sources, ("pairs", name, key), problem)
    return Registry(tables.files, tables.pairs, [Path(f) for f in tables.folders])


class _Source:
    """One TOML file: its text, kept to find lines, and its tables."""

    def __init__(self, path: Path, text: str, tables: dict[str, Any]) -> None:
        self.path, self.text, self.tables = path, text, tables

    @classmethod
    def read(cls, path: Path) -> _Source | None:
        try:
            text = path.read_bytes().decode("utf-8")
            tables = tomllib.loads(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RegistryError(f"Cannot read {path}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise RegistryError(f"{path} is not UTF-8 text.") from None
        except tomllib.TOMLDecodeError as error:
            raise RegistryError(f"{path} is not TOML: {error}.") from None
        folder = path.parent.absolute()  # relative names are meant from the file's own folder
        if isinstance(tables.get("folders"), list):
            tables["folders"] = [
                str(folder / Path(f).expanduser()) if isinstance(f, str) else f
                for f in tables["folders"]
            ]
        for kind, key in (("pairs", "template"), ("files", "path")):
            entries = tables.get(kind)
            for entry in entries.values() if isinstance(entries, dict) else ():
                if isinstance(entry, dict) and isinstance(entry.get(key), str):
                    entry[key] = str(folder / Path(entry[key]).expanduser())
        return cls(path, text, tables)

    def line(self, keys: tuple[str | int, ...]) -> int | None:
        """The line on which the value of `keys` is complete; None if it is not in here."""
        lines = self.text.splitlines(keepends=True)
        for n in range(1, len(lines) + 1):
            try:
                if _has(tomllib.loads("".join(lines[:n])), keys):
                    return n
            except tomllib.TOMLDecodeError:  # inside a value of several lines
                continue
        return None


def _located(sources: list[_Source], keys: tuple[str | int, ...], problem: str) -> RegistryError:
    """The error at the last source that has the key, or at the nearest table above it."""
    dotted = ".".join(str(k) for k in keys if k != "[key]")
    for end in range(len(keys), 0, -1):
        for source in reversed(sources):
            line = source.line(keys[:end])
            if line is not None:
                return RegistryError(f"{source.path}, line {line}, {dotted}: {problem}.")
    return RegistryError(f"models.toml, {dotted}: {problem}.")


def _has(tables: Any, keys: tuple[str | int, ...]) -> bool:
    for key in keys:
        try:
            tables = tables[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
