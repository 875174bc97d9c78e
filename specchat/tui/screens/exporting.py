"""Writes the open branch to a file."""

from __future__ import annotations

import re
from pathlib import Path

from specchat.errors import BadRequestError, HistoryError
from specchat.history import Record
from specchat.tui.conversation import OpenConversation


def proposed_name(title: str) -> str:
    words = re.findall(r"\w+", title)[:6]
    return "-".join(words).lower() + ".md" if words else "chat.md"


def export(chat: OpenConversation, name: str) -> Path:
    """The format follows the name's ending. Raises BadRequestError, HistoryError."""
    from specchat.history.export import to_html, to_json, to_markdown

    writers = {".md": to_markdown, ".json": to_json, ".html": to_html}
    path = Path(name).expanduser()
    if path.suffix not in writers:
        raise BadRequestError(f"{path.name} must end in {', '.join(writers)}.")
    assert chat.stored is not None
    messages = []
    for message in chat.path:
        try:
            messages.append((message, chat.history.record(message.id)))
        except HistoryError:  # its token record is damaged, its text is not
            messages.append((message, Record()))
    text = writers[path.suffix](chat.stored, messages)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadRequestError(f"{path} exists already. Choose another name.") from None
    except OSError as error:
        raise BadRequestError(f"Cannot write {path}: {error.strerror}.") from None
    return path
