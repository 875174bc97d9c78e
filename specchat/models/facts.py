"""What one GGUF says of itself, in a form small enough to keep between runs.

Kept in the user's cache by path, size and time of change, so that a second look at the same
files reads no header.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import platformdirs

from specchat.engine.header import Header, part_names, read_header
from specchat.errors import ModelFileError

VERSION = 2  # of the cache file; another version is read anew
_LIMIT = 20_000  # files remembered at most
# Architectures of encoders: they embed texts and cannot continue one.
_ENCODERS = {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2",
             "jina-bert-v3", "eurobert", "t5encoder", "gemma-embedding"}  # fmt: skip

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """Header facts. `file_type` is the mix of tensor types, `quantisation` the commonest of
    them. Sizes are bytes (`step_bytes` those read for one token), `context` the
    trained one in tokens (0 unknown), `tokenizer` what must agree between target and draft
    (kind, pre-tokenizer, BOS, EOS, add-BOS), `fingerprint` that of the token texts.
    """

    architecture: str
    name: str
    family: str
    file_type: str
    quantisation: str
    parameters: int
    weight_bytes: int
    step_bytes: int
    context: int
    template: str
    tokenizer: tuple[Any, ...]
    vocabulary: int
    fingerprint: str
    recurrent: bool
    constructed: bool


def facts_of(header: Header) -> Facts:
    """Raises ModelFileError for files that hold no model to chat with."""
    name = header.path.name
    if header.metadata.get("general.type") == "adapter":
        raise ModelFileError(f"{name} is a LoRA adapter; use it with --lora.")
    if header.architecture in _ENCODERS:
        raise ModelFileError(f"{name} is an embedding model; it cannot chat.")
    if not header.tensors:
        raise ModelFileError(f"{name} holds a vocabulary only, no weights.")
    return Facts(
        architecture=header.architecture,
        name=header.name,
        family=str(header.metadata.get("general.basename") or header.architecture),
        file_type=header.file_type,
        quantisation=header.quantisation,
        parameters=header.parameters,
        weight_bytes=header.weight_bytes,
        step_bytes=header.step_bytes,
        context=header.context_length,
        template=_template(header.chat_template),
        tokenizer=header.tokenizer_identity,
        vocabulary=header.vocabulary_size,
        fingerprint=header.vocabulary_fingerprint(),
        recurrent=header.recurrent,
        constructed=header.constructed,
    )


# A piece of text that only this kind of chat template has.
_KINDS = (
    ("<|im_start|>", "ChatML"),
    ("<|start_header_id|>", "Llama 3"),
    ("<start_of_turn>", "Gemma"),
    ("<|turn>", "Gemma 4"),
    ("<｜User｜>", "DeepSeek"),
    ("[INST]", "Mistral"),
    ("<|channel|>", "Harmony"),
    ("<|START_OF_TURN_TOKEN|>", "Command R"),
    ("<|start_of_role|>", "Granite"),
    ("[gMASK]", "GLM"),
    ("<|assistant|>", "Phi / Zephyr"),
)


def _template(source: str | None) -> str:
    """A short name for a chat template; "none" where the file has none."""
    if source is None:
        return "none"
    return next((kind for mark, kind in _KINDS if mark in source), "own")


class FactsCache:
    """Facts of files by path, valid while size and time of change (of all parts) stay."""

    def __init__(self, path: Path | None = None) -> None:
        """A missing or damaged file is an empty cache. `path` is for tests."""
        self.path = path or Path(platformdirs.user_cache_dir("specchat")) / "headers.json"
        self._known: dict[str, Any] = {}
        self._changed = False
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if state["version"] == VERSION:
                self._known = dict(state["files"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("ignoring %s: %s", self.path, error)

    def read(self, path: Path) -> Facts:
        """Facts of the GGUF at `path`, from the cache if it has not changed since.

        Raises ModelFileError saying what is wrong with the file.
        """
        try:
            stamp = _stamp(path)
        except OSError:
            stamp = None  # the reader says why
        entry = self._known.get(str(path))
        if stamp is not None and isinstance(entry, dict) and entry.get("stamp") == stamp:
            facts = _restored(entry.get("facts"))
            if facts is not None:
                return facts
        facts = facts_of(read_header(path))
        if stamp is not None:
            self._known[str(path)] = {"stamp": stamp, "facts": asdict(facts)}
            self._changed = True
        return facts

    def save(self) -> None:
        """Write atomically what is new; a read-only cache folder is no error."""
        if not self._changed:
            return
        kept = list(self._known.items())[-_LIMIT:]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps({"version": VERSION, "files": dict(kept)}))
            temporary.replace(self.path)
            self._changed = False
        except OSError as error:
            log.warning("cannot keep the facts of models: %s", error)


def _stamp(path: Path) -> list[int]:
    """Size and time of change of the file, or of every part of a split one."""
    parts = [path.with_name(name).stat() for name in part_names(path.name)]
    return [value for part in parts for value in (part.st_size, part.st_mtime_ns)]


def _restored(state: Any) -> Facts | None:
    """None where the cache was written by hand or by another program."""
    names = {f.name for f in fields(Facts)}
    if not isinstance(state, dict) or set(state) != names:
        return None
    if not isinstance(state["tokenizer"], (list, tuple)):
        return None
    return Facts(**{**state, "tokenizer": tuple(state["tokenizer"])})
