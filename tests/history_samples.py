"""Tokens and rounds as the engine emits them, and a check of the database that keeps them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from specchat.engine.events import (
    Alternative,
    Finish,
    FinishReason,
    Kind,
    Rejected,
    Round,
    Token,
    Usage,
)

KINDS = (Kind.ACCEPTED, Kind.ACCEPTED, Kind.RESAMPLED, Kind.BONUS, Kind.PLAIN)


def sample_token(index: int, text: str, *, alternatives: bool = False) -> Token:
    """Token number `index` of an answer; kinds take turns, five tokens a round."""
    kind = KINDS[index % 5]
    drafted = kind in (Kind.ACCEPTED, Kind.RESAMPLED)
    return Token(
        id=index,
        text=text,
        kind=kind,
        text_kind=kind,
        round=index // 5,
        p=(index * 37 % 1000 + 1) / 1001,
        q=(index * 53 % 1000 + 1) / 1001 if drafted else None,
        acceptance=0.75 if drafted else None,
        rejected=Rejected(9, " no", 0.1, 0.6) if kind is Kind.RESAMPLED else None,
        logprob=-0.5 if alternatives else None,
        alternatives=(Alternative(index, text, -0.5), Alternative(3, " x", -2.25))
        if alternatives
        else (),
        draft_alternatives=(Alternative(4, " y", -1.0),) if alternatives and drafted else (),
    )


def sample_tokens(texts: list[str], *, alternatives: bool = False) -> list[Token]:
    return [sample_token(i, text, alternatives=alternatives) for i, text in enumerate(texts)]


def sample_round(index: int) -> Round:
    return Round(
        index, "draft", 3, 2, 3, 100 + index, 0.004, 0.008, 0.001, 0.0135,
        ((1, " a"), (2, " b"), (9, " no")), ((9, " no"),), (7, " yes"), "predicted best",
    )  # fmt: skip


FINISH = Finish(FinishReason.LENGTH, Usage(10, 4, 3, 20, 15, 9, 8), 0.25, 1.5, stop="###")


def index_agrees(path: Path) -> None:
    """FTS5's own check that the index matches the messages; raises if not."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO message_search (message_search, rank) VALUES ('integrity-check',1)")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
