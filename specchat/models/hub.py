"""The Hugging Face Hub (or the server that HF_ENDPOINT names): what a file is, and its bytes.

`hf_hub_download` of huggingface_hub 2 throws away what has arrived when it is interrupted; for
files of many GB that will not do. So the bytes are fetched here, with its client, its
headers and token (HF_TOKEN, `hf auth login`) and its errors. Imported only to download.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub as hf
from huggingface_hub import errors as hf_errors
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status
from huggingface_hub.utils import logging as hf_logging

from specchat.errors import DownloadError

_TRIES = 5  # in a row without a single byte, before giving up
_PASSING = {408, 429, 500, 502, 503, 504}  # errors that may pass
_LONGEST_WAIT = 30.0  # seconds between two tries
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)  # seconds without a byte

Progress = Callable[[int], None]  # bytes of the file that are here


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at one `commit`. `size` in bytes; `sha256` as the Hub says it,
    None for small files that it keeps in Git itself.
    """

    repo: str
    name: str
    commit: str
    size: int
    sha256: str | None


class Hub:
    """One server that speaks the Hub's protocol. All methods raise DownloadError."""

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint` is for tests; None means HF_ENDPOINT or huggingface.co."""
        self.endpoint = endpoint or hf.constants.ENDPOINT
        hf_logging.set_verbosity_error()  # our messages say it all

    def look_up(self, repo: str, name: str, revision: str | None = None) -> RemoteFile:
        """What the Hub says of the file `name` of `repo` (revision: main)."""
        with self._explained(repo, name):
            found = hf.get_hf_file_metadata(
                self._url(repo, name, revision), headers=self._headers(), endpoint=self.endpoint
            )
        if found.commit_hash is None or found.etag is None or found.size is None:
            raise DownloadError(
                f"{self.endpoint} does not answer as the Hub does. Check HF_ENDPOINT, and "
                "whether a proxy answers in its place."
            )
        if found.size > hf.constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise DownloadError(
                f"{name} has {found.size / 1e9:.0f} GB, more than {self._host} sends over HTTP. "
                f"Fetch it with: hf download {repo} {name}. specchat finds it then."
            )
        sha256 = found.etag if len(found.etag) == 64 else None
        return RemoteFile(repo, name, found.commit_hash, found.size, sha256)

    def fetch(self, file: RemoteFile, path: Path, progress: Progress) -> None:
        """Complete `path`, which may hold the beginning of `file`. What has arrived stays there
        when this fails. Raises OSError where it cannot be written.
        """
        failures = 0
        while (have := _size(path)) < file.size:
            try:
                with self._explained(file.repo, file.name):
                    self._append(file, path, have, progress)
                if _size(path) < file.size:  # ended early, but properly
                    raise _Passing(f"{self._host} ended the connection.")
            except _Passing as error:
                failures = 1 if _size(path) > have else failures + 1
                if failures > _TRIES:
                    raise DownloadError(
                        f"Downloading {file.name} failed: {error} What has arrived is kept; "
                        "the same command goes on from there."
                    ) from None
                time.sleep(min(error.wait or 2.0 ** (failures - 1), _LONGEST_WAIT))

    def _append(self, file: RemoteFile, path: Path, have: int, progress: Progress) -> None:
        headers = self._headers() | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        url = self._url(file.repo, file.name, file.commit)
        # Redirected to another host, the client leaves the token out.
        with get_session().stream(
            "GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            begins = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if have and not (response.status_code == 206 and begins):
                have = 0  # it sends the whole file again
            with path.open("ab" if have else "wb", buffering=0) as out:
                for piece in response.iter_bytes():
                    have += len(piece)
                    if have > file.size:
                        raise DownloadError(
                            f"{self._host} sends more of {file.name} than the {file.size:,} bytes "
                            "it announced. Try again later."
                        )
                    view = memoryview(piece)
                    while view:  # a disk that fills up takes a part
                        view = view[out.write(view) :]
                    progress(have)

    def _url(self, repo: str, name: str, revision: str | None) -> str:
        return hf.hf_hub_url(repo, name, revision=revision, endpoint=self.endpoint)

    def _headers(self) -> dict[str, str]:
        return build_hf_headers(library_name="specchat")

    @property
    def _host(self) -> str:
        return self.endpoint.partition("://")[2] or self.endpoint

    @contextmanager
    def _explained(self, repo: str, name: str) -> Iterator[None]:
        """What went wrong, in one line that says what to do."""
        page = f"{self.endpoint}/{repo}"
        try:
            yield
        except hf_errors.GatedRepoError:
            raise DownloadError(
                f"{repo} is gated: accept its terms at {page}, and set HF_TOKEN to a token of "
                "the account that did (or run: hf auth login)."
            ) from None
        except hf_errors.RepositoryNotFoundError:
            raise DownloadError(
                f"There is no repository {repo} on {self._host}, or it is private. Check the "
                "name; for a private one set HF_TOKEN."
            ) from None
        except hf_errors.EntryNotFoundError:
            raise DownloadError(f"{repo} has no file {name}.{self._others(repo)}") from None
        except hf_errors.RevisionNotFoundError:
            raise DownloadError(f"{repo} has no such revision. See {page}.") from None
        except hf_errors.OfflineModeIsEnabled:
            raise DownloadError(
                "HF_HUB_OFFLINE is set, so nothing is downloaded. `specchat models` lists what "
                "is on this machine."
            ) from None
        except hf_errors.HfHubHTTPError as error:
            raise self._refusal(repo, error.response) from None
        except hf_errors.HFValidationError:
            raise DownloadError(f"{repo} is not the name of a repository.") from None
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise _Passing(
                f"Cannot reach {self._host} ({reason}). Check the connection; HF_ENDPOINT may "
                "name a mirror."
            ) from None

    def _refusal(self, repo: str, response: Any) -> DownloadError:
        status = response.status_code
        if status in _PASSING:
            after = response.headers.get("Retry-After", "")
            wait = float(after) if after.isdecimal() else 0.0
            return _Passing(f"{self._host} answers with status {status}; try again later.", wait)
        if status in (401, 403):
            return DownloadError(
                f"{self._host} does not let you have {repo} (status {status}). Check that "
                "HF_TOKEN is valid and may read it."
            )
        return DownloadError(f"{self._host} answers with status {status}. Try again later.")

    def _others(self, repo: str) -> str:
        """Which GGUFs the repository has instead, if it says so."""
        with suppress(hf_errors.HfHubHTTPError, httpx2.HTTPError, OSError, ValueError):
            files = hf.HfApi(endpoint=self.endpoint).list_repo_files(repo)
            names = sorted(name for name in files if name.lower().endswith(".gguf"))
            if names:
                more = f" and {len(names) - 12} more" if len(names) > 12 else ""
                return f" It has: {', '.join(names[:12])}{more}."
            return " It has no GGUF at all."
        return ""


class _Passing(DownloadError):
    """An error that another try may not meet; `wait` seconds before, if the server says so."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
