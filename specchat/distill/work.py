"""The work folder beside the draft: what is being made, its shards, its checkpoint.

It makes a run that was stopped or killed go on where it was; a finished run removes it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.errors import BadRequestError
from specchat.gguf_files import written_whole

_VERSION = 1
_SPARE = 2**28  # bytes that stay free on the disk


@dataclass(frozen=True, slots=True)
class WorkFolder:
    path: Path

    @property
    def shards(self) -> Path:
        return self.path / "shards"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    def open(self, plan: dict[str, Any]) -> bool:
        """Begin here, or go on: true when there is earlier work. `plan` is what must not
        change between the two. Raises BadRequestError when it did, or nothing can be written.
        """
        plan = {"version": _VERSION, **plan}
        file = self.path / "plan.json"
        try:
            self.shards.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                written_whole(file, lambda path: path.write_text(json.dumps(plan, indent=1)))
                return False
            known = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadRequestError(f"Cannot write in {self.path}: {error.strerror}.") from None
        except ValueError:
            raise BadRequestError(f"{file} is damaged; remove {self.path}.") from None
        different = [k for k in plan if not isinstance(known, dict) or known.get(k) != plan[k]]
        if different:
            raise BadRequestError(
                f"{self.path} holds work for another {', '.join(different)}: ask for the same "
                "as before to go on, remove that folder to begin anew, or choose another -o."
            )
        return True

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def require_space(folder: Path, needed: int) -> None:
    """Raises BadRequestError unless the disk that `folder` is on has `needed` bytes to spare.
    `folder` itself may not exist yet.
    """
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise BadRequestError(
            f"{folder} has {free / 2**30:.1f} GiB free, and this needs "
            f"{(needed + _SPARE) / 2**30:.1f} GiB: make room, choose another -o, or fewer --hours."
        )
