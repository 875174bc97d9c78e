"""Opening model files: regular files only, and saying what a file is that is no GGUF."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from specchat.errors import ModelFileError

_MAGIC = b"GGUF"
_LOOKALIKES = (
    (b"PK\x03\x04", "a zip archive or PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer: the real file was not downloaded"),
    (b"<!DOCTYPE", "a web page: the download failed"),
    (b"<html", "a web page: the download failed"),
    (b"ggml", "an old GGML file; convert it to GGUF"),
    (b"ggjt", "an old GGML file; convert it to GGUF"),
)


def open_model(path: Path) -> FileIO:
    """Open a regular file, unbuffered. Raises ModelFileError for all else, without blocking:
    a named pipe would wait for its writer for ever.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{path} is a folder. Name a .gguf file in it.")
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{path} is {_kind(mode)}, not a file.")
        file = FileIO(path, "rb", opener=_open)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it may have been replaced just now
            return file
        file.close()
    except FileNotFoundError:
        if path.is_symlink():
            raise ModelFileError(f"{path} is a link to a file that does not exist.") from None
        raise ModelFileError(f"{path} does not exist. Check the path.") from None
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror or error}.") from None
    except ValueError as error:  # a NUL in the name
        raise ModelFileError(f"Cannot read {path}: {error}.") from None
    raise ModelFileError(f"{path} changed while it was being read.")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


def require_gguf(path: Path, start: bytes) -> None:
    """Raises ModelFileError unless a file beginning with `start` (512 bytes will do) is a GGUF."""
    if start[:4] == _MAGIC:
        return
    what = next((text for begin, text in _LOOKALIKES if start.startswith(begin)), None)
    if what is None and start[8:10] == b'{"':
        what = "a safetensors file; convert it to GGUF"
    raise ModelFileError(f"{path} is not a GGUF file" + (f" but {what}." if what else "."))
