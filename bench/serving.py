"""`specchat serve` as a process of its own, for the benchmarks of the endpoint."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextmanager
def serve(arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields (address, process id) once it listens; `arguments` are those of `specchat serve`."""
    command = [sys.executable, "-m", "specchat", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"serving (http\S+)/v1", line):
                yield found[1], process.pid
                return
            sys.stderr.write(line)
        raise SystemExit(f"the server did not start (exit code {process.wait()})")
    finally:
        process.terminate()
        process.wait(30)
