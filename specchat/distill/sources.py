"""What the target is asked to continue: packaged questions, the user's texts, their chats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from specchat.distill.prompts import question
from specchat.engine.engine import Engine
from specchat.engine.messages import Message
from specchat.errors import BadRequestError

_PASSAGE = 400  # characters of a text that the target continues
_MOST_TEXT = 64 * 2**20  # characters of a corpus that are looked at
_LONGEST_CHAT = 6000  # characters of a chat; of a longer one only the last question is asked


@dataclass(frozen=True, slots=True)
class Sources:
    """`texts` are continued as they are, `chats` (ending with a question) are answered.
    Packaged questions are always among the prompts.
    """

    texts: Sequence[str] = ()
    chats: Sequence[Sequence[Message]] = ()
    seed: int = 1
    _kinds: list[str] = field(init=False)

    def __post_init__(self) -> None:
        kinds = ["questions"] + ["texts"] * bool(self.texts) + ["chats"] * bool(self.chats)
        object.__setattr__(self, "_kinds", kinds)

    def prompt(self, index: int, engine: Engine, longest: int) -> list[int]:
        """Token ids of prompt `index`, at most `longest` of them; the same for every run."""
        rng = np.random.default_rng((self.seed, index))
        kind = self._kinds[index % len(self._kinds)]
        if kind == "texts":
            text = self.texts[int(rng.integers(len(self.texts)))]
            start = int(rng.integers(max(1, len(text) - _PASSAGE)))
            tokens = engine.target.tokenizer.tokenize(
                text[start : start + _PASSAGE], add_special=True
            )
            return tokens[:longest]
        if kind == "chats":
            messages = self.chats[int(rng.integers(len(self.chats)))]
            tokens = engine.template.tokens(messages)
            if len(tokens) <= longest:
                return tokens
        return engine.template.tokens([Message("user", question(rng))])[:longest]


def read_corpus(folder: Path) -> list[str]:
    """All UTF-8 texts below `folder`, without hidden files. Raises BadRequestError."""
    if not folder.is_dir():
        raise BadRequestError(f"--corpus: {folder} is not a folder.", "corpus")
    texts, total = [], 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith(".") or total > _MOST_TEXT:
                continue
            try:
                text = (Path(root) / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue  # pictures, archives, what may not be read
            if len(text) >= 40 and "\0" not in text:
                texts.append(text)
                total += len(text)
    if not texts:
        raise BadRequestError(f"--corpus: there is no UTF-8 text below {folder}.", "corpus")
    return texts


def read_chats(path: Path | None = None) -> list[list[Message]]:
    """The user's stored chats, each cut after every question. Raises BadRequestError when
    there are none.
    """
    from specchat.history import open_history
    from specchat.history.opening import default_path

    chats: list[list[Message]] = []
    if (path or default_path()).exists():
        history, _ = open_history(path)
        try:
            for conversation in history.list_conversations():
                messages = [Message("system", conversation.system_prompt)]
                messages = messages if conversation.system_prompt else []
                for stored in history.path(conversation.active_leaf):
                    messages = [*messages, Message(stored.role, stored.content)]
                    if stored.role == "user":
                        chats.append(messages)
        finally:
            history.close()
    if not chats:
        raise BadRequestError("--from-history: there are no stored chats yet.", "from_history")
    size = _LONGEST_CHAT
    return [c if sum(len(m.content) for m in c) <= size else [_cut(c[-1])] for c in chats]


def _cut(message: Message) -> Message:
    return Message(message.role, message.content[:_LONGEST_CHAT])
