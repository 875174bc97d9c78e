"""What writers of GGUF files share: the package, copied metadata, a finished file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specchat.errors import BadRequestError


def gguf_package(extra: str) -> Any:
    """The gguf package. Raises BadRequestError naming the `extra` that installs it."""
    try:
        import gguf
    except ImportError:
        raise BadRequestError(
            f"This needs the gguf package: pip install 'specchat[{extra}]'"
        ) from None
    return gguf


def copy_fields(
    reader: Any,
    writer: Any,
    changed: Mapping[str, Any],
    wanted: Callable[[str], bool] = lambda key: True,
) -> None:
    """The `wanted` metadata of `reader`, but for the `changed` values."""
    array = gguf_package("bench").GGUFValueType.ARRAY
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or not wanted(key):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == array else None
        writer.add_key_value(key, changed.get(key, field.contents()), kind, sub_type=sub_type)


def finish(writer: Any) -> None:
    """Write everything that was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def written_whole(path: Path, make: Callable[[Path], Any]) -> Path:
    """`path`, made by `make(temporary path)` beside it: never half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        make(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
