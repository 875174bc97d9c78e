"""Fetching a model: resumed where it stopped, checked, and only then put where it belongs."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from specchat.engine.header import read_header
from specchat.errors import DownloadError, ModelFileError
from specchat.models.places import own_folder
from specchat.models.registry import ModelFile

if TYPE_CHECKING:
    from specchat.models.hub import Hub, RemoteFile

_PIECE = 1 << 22  # bytes hashed at once

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}

# Gets what is being done, bytes done and bytes in all. Called often, and at each end.
Report = Callable[[str, int, int], None]


def download(file: ModelFile, report: Report, hub: Hub | None = None) -> Path:
    """Fetch all parts of `file` into specchat's own folder; returns the first part's path.

    Parts gather in a folder beside it, where an interrupted download goes on the next time.
    Nothing appears among the models before its SHA-256 (as `models.toml` or else the Hub
    says) and its header were found good. Raises DownloadError, ModelFileError.
    """
    if hub is None:
        from specchat.models.hub import Hub

        hub = Hub()
    if file.repo is None:
        raise DownloadError(f"{file.path} is a file of this machine; there is nothing to download.")
    remotes: list[RemoteFile] = []
    for name in file.parts():  # all from the commit of the first
        revision = remotes[0].commit if remotes else file.revision
        remotes.append(hub.look_up(file.repo, name, revision))
    _compare(file, remotes)
    target = own_folder() / file.repo
    waiting = own_folder().with_name("incoming") / file.repo
    with _explained(waiting), _alone(waiting):
        staged = [_Staged(remote, waiting) for remote in remotes]
        _require_space(waiting, sum(part.missing for part in staged))
        for part in staged:
            part.fetch(hub, report)
            part.check(report)
        _check_header(staged)
        for part in reversed(staged):  # a split model appears with its first part
            part.move(target)
    for folder in (waiting, waiting.parent, waiting.parent.parent):
        with suppress(OSError):  # others may be in use
            folder.rmdir()
    return target / file.parts()[0]


class _Staged:
    """A part that is on its way: `path` while incomplete, `whole` when it was checked."""

    def __init__(self, remote: RemoteFile, folder: Path) -> None:
        self.remote, self.name = remote, PurePosixPath(remote.name).name
        self.whole = folder / remote.name
        # Another version of the file must not be mixed with this one.
        version = (remote.sha256 or remote.commit)[:12]
        self.path = self.whole.with_name(f"{self.name}.{version}.part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self.whole.replace(self.path)  # checked before, but not moved
        if self.path.exists() and self.path.stat().st_size > remote.size:
            self.path.unlink()

    @property
    def missing(self) -> int:
        return self.remote.size - (self.path.stat().st_size if self.path.exists() else 0)

    def fetch(self, hub: Hub, report: Report) -> None:
        what, size = f"fetching {self.name}", self.remote.size
        report(what, size - self.missing, size)
        hub.fetch(self.remote, self.path, lambda have: report(what, have, size))

    def check(self, report: Report) -> None:
        wanted, done = self.remote.sha256, 0
        if wanted is not None:
            digest = hashlib.sha256()
            with self.path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    done += len(piece)
                    report(f"checking {self.name}", done, self.remote.size)
                os.fsync(file.fileno())
            if digest.hexdigest() != wanted:
                self.path.unlink()
                raise DownloadError(
                    f"{self.name} arrived damaged: its SHA-256 is {digest.hexdigest()}, but it "
                    f"should be {wanted}. It was deleted; pull it again."
                )
        self.path.replace(self.whole)

    def move(self, folder: Path) -> None:
        path = folder / self.remote.name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.whole.replace(path)
        with suppress(OSError):
            self.whole.parent.rmdir()


def _compare(file: ModelFile, remotes: Sequence[RemoteFile]) -> None:
    """What `models.toml` says for certain must be what the Hub is about to send."""
    size = sum(remote.size for remote in remotes)
    if file.size not in (None, size) and "size" not in file.unverified:
        raise DownloadError(
            f"{file.file} of {file.repo} has {size:,} bytes, but models.toml says "
            f"{file.size:,}: it was changed. If that is right, correct models.toml."
        )
    sha256 = remotes[0].sha256
    if sha256 is None or file.sha256 is None or len(remotes) > 1:
        return
    if sha256 != file.sha256 and "sha256" not in file.unverified:
        raise DownloadError(
            f"{file.file} of {file.repo} has the SHA-256 {sha256}, but models.toml says "
            f"{file.sha256}: it was changed. If that is right, correct models.toml."
        )


def _check_header(staged: Sequence[_Staged]) -> None:
    try:
        read_header(staged[0].whole)
    except ModelFileError as error:
        for part in staged:
            part.whole.unlink(missing_ok=True)
        raise DownloadError(
            f"{staged[0].name} is in {staged[0].remote.repo} as it arrived, but of no use: {error}"
        ) from None


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadError(
            f"This needs {needed / 1e9:,.2f} GB, but the disk of {folder} has only "
            f"{free / 1e9:,.2f} GB free. Make room there first."
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps a second download of the same repository out."""
    from huggingface_hub.utils import WeakFileLock

    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    try:
        with WeakFileLock(lock, timeout=0.2):
            yield
            with suppress(OSError):  # Windows keeps files that are open
                lock.unlink()
    except TimeoutError:
        raise DownloadError(
            f"Another specchat is downloading into {folder}. Wait for it to finish."
        ) from None


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DownloadError(
                f"There is no more room for {folder} ({error.strerror}). What has arrived is "
                "kept: make room, and the same command goes on from there."
            ) from None
        where = error.filename or folder
        raise DownloadError(f"Cannot write {where}: {error.strerror or error}.") from None
