"""`/file PATH` in a question: the file's text, fenced, takes the line's place."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from specchat.errors import BadRequestError

LIMIT = 256 * 1024  # bytes
_LINE = re.compile(r"^/file[ \t]+(.+?)[ \t]*$", re.MULTILINE)


def with_files(text: str) -> str:
    """Raises BadRequestError naming a file that is missing, too large or not text."""
    return _LINE.sub(lambda match: _fenced(_path(match[1])), text)


def _path(written: str) -> Path:
    """As a shell reads it, quotes included; a name that a shell would refuse is taken as is."""
    try:
        parts = shlex.split(written)
    except ValueError:
        parts = []
    return Path(parts[0] if len(parts) == 1 else written).expanduser()


def _fenced(path: Path) -> str:
    try:
        if not path.is_file():
            raise BadRequestError(f"There is no file {path}. Write /file and its path.")
        if path.stat().st_size > LIMIT:
            raise BadRequestError(
                f"{path} has {path.stat().st_size:,} bytes; at most {LIMIT:,} can be attached."
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequestError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadRequestError(f"{path} is not UTF-8 text, so it cannot be attached.") from None
    if "\0" in text:
        raise BadRequestError(f"{path} is a binary file, so it cannot be attached.")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{path.name}:\n{fence}{path.suffix.lstrip('.')}\n{text.rstrip()}\n{fence}"
