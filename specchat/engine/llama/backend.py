"""What belongs to llama.cpp as a whole: its log, its start, threads, its quantiser."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any, TextIO

import llama_cpp.llama_cpp as C

from specchat.engine.log_file import log_path
from specchat.errors import BadRequestError, ModelLoadError

_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
_LOG_LIMIT = 4 * 1024 * 1024


class _Log:
    """Receives llama.cpp's log: everything to a file, the last errors kept for messages."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)
        self.file: TextIO | None = None
        self.path = log_path()
        self.callback = C.llama_log_callback(self._write)
        self.level = 0

    def install(self) -> None:
        if self.file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self.path.exists() and self.path.stat().st_size > _LOG_LIMIT:
                    self.path.replace(self.path.with_suffix(".old.log"))
                self.file = self.path.open("a", encoding="utf-8", errors="replace")
            except OSError:  # a read-only home must not keep the model from loading
                self.file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        C.llama_log_set(self.callback, None)

    def _write(self, level: int, text: bytes, _data: Any) -> None:
        line = text.decode("utf-8", "replace")
        self.level = level if level != 5 else self.level  # 5 continues the previous line
        if self.level == _ERROR_LEVEL and line.strip():
            self.errors.append(line.strip())
        if self.file is not None:
            with contextlib.suppress(OSError, ValueError):
                self.file.write(line)
                self.file.flush()


log = _Log()


@functools.cache
def start_backend() -> None:
    log.install()
    C.llama_backend_init()


@functools.cache
def extra_buffers() -> bool:
    """Whether weights may be repacked for this CPU: not where that means AMX.

    GCC 12's `_tile_loadconfig` tells the compiler of 8 of its 64 bytes, the other stores are
    dropped, and a llama.cpp built with it (as pip does) dies of SIGSEGV at its first call on an
    Intel CPU with AMX. `SPECCHAT_AMX=1` says that the build at hand is sound.
    """
    amx = b"AMX_INT8 = 1" in C.llama_print_system_info()
    return not amx or os.environ.get("SPECCHAT_AMX") == "1"


def may_use_gpu(n_gpu_layers: int) -> bool:
    """Whether llama.cpp would put layers into another memory than the processor's."""
    return n_gpu_layers != 0 and bool(C.llama_supports_gpu_offload())


@functools.cache
def flag_callback() -> Any:
    """A native `bool f(void *data)` that is true when data's first byte is not zero.

    ggml asks the abort callback before every graph node; a Python callback would take the
    interpreter lock a thousand times per call. C's strlen over a two-byte buffer answers
    the same question without Python: 0 for "", 1 for "x".
    """
    libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    return ctypes.cast(libc.strlen, C.ggml_abort_callback)


def default_threads() -> int:
    """Physical cores this process may use: hyper-threads slow token generation down."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 4, usable or 4))


def last_error() -> str:
    return "; ".join(list(log.errors)[-2:]) or f"see {log.path}"


# File types of llama.h that make sense for a benchmark fixture.
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}


def quantize(source: Path, target: Path, kind: str) -> None:
    """Write `source` with its weights in another type, by llama.cpp's own quantiser.

    Quantised sources are accepted. Raises BadRequestError for an unknown type,
    ModelLoadError with llama.cpp's last error.
    """
    if kind not in FILE_TYPES:
        raise BadRequestError(f"There is no type {kind!r}; choose from {', '.join(FILE_TYPES)}.")
    start_backend()
    log.errors.clear()
    params = C.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    params.allow_requantize = True
    params.nthread = default_threads()
    if C.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        raise ModelLoadError(f"Cannot write {source.name} as {kind}: {last_error()}")
