"""Which process writes an answer, and whether it still lives."""

from __future__ import annotations

import os
import platform

import psutil

_CLOCK_SLACK = 2.0  # seconds; start times are derived from the clock


def this_process() -> str:
    """The name of this process: host, process id and start time."""
    return f"{platform.node()}\n{os.getpid()}\n{psutil.Process().create_time()}"


def is_alive(owner: str | None) -> bool:
    """Whether the process runs. One on another host (a shared home) is taken to run."""
    try:
        host, pid, started = (owner or "").split("\n")
        if host != platform.node():
            return True
        found = psutil.Process(int(pid))
        same = abs(found.create_time() - float(started)) < _CLOCK_SLACK
        return bool(same and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except (ValueError, psutil.NoSuchProcess):
        return False
