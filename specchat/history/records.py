"""Tokens and rounds of an answer as a compact blob, and back.

A blob is zlib-compressed JSON. Tokens are stored by column (all ids, all texts, …), which
compresses to about 10 bytes a token. Probabilities keep six digits.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

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
from specchat.errors import HistoryError

from .types import Record

_LETTERS = {Kind.ACCEPTED: "a", Kind.RESAMPLED: "r", Kind.BONUS: "b", Kind.PLAIN: "p",
            Kind.UNKNOWN: "u"}  # fmt: skip
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
# Columns in the order of Token's fields. The two kinds are strings, the rest lists.
_COLUMNS = ("id", "text", "kind", "text_kind", "round", "p", "q", "acceptance", "rejected",
            "logprob", "alternatives", "draft_alternatives")  # fmt: skip
_FORMAT = 1
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean(text: str) -> str:
    """Text SQLite can store and search: NUL and surrogates become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def pack(tokens: Sequence[Token], rounds: Sequence[Round]) -> bytes:
    """The blob of some tokens and rounds."""
    columns = {
        "id": [t.id for t in tokens],
        "text": [t.text for t in tokens],
        "kind": "".join(_LETTERS[t.kind] for t in tokens),
        "text_kind": "".join(_LETTERS[t.text_kind] for t in tokens),
        "round": [t.round for t in tokens],
        "p": [_short(t.p) for t in tokens],
        "q": [_short(t.q) for t in tokens],
        "acceptance": [_short(t.acceptance) for t in tokens],
        "rejected": [
            r and (r.id, r.text, _short(r.p), _short(r.q)) for r in (t.rejected for t in tokens)
        ],
        "logprob": [_short(t.logprob) for t in tokens],
        "alternatives": [_alternatives(t.alternatives) for t in tokens],
        "draft_alternatives": [_alternatives(t.draft_alternatives) for t in tokens],
    }
    return _compress({"format": _FORMAT, "tokens": columns, "rounds": [_round(r) for r in rounds]})


def unpack(blob: bytes) -> Record:
    """The tokens and rounds of a blob. Raises HistoryError if it is damaged or too new."""
    data = _decompress(blob)
    try:
        columns = (data["tokens"][name] for name in _COLUMNS)
        return Record(
            tuple(_token(*row) for row in zip(*columns, strict=True)),
            tuple(_restore_round(row) for row in data["rounds"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _damaged() from error


def merge(blobs: Iterable[bytes]) -> bytes:
    """One blob that holds what the blobs hold, in order. Raises HistoryError like `unpack`."""
    parts = [_decompress(blob) for blob in blobs]
    try:
        columns = {
            name: "".join(p["tokens"][name] for p in parts)
            if name.endswith("kind")
            else [value for p in parts for value in p["tokens"][name]]
            for name in _COLUMNS
        }
        rounds = [row for p in parts for row in p["rounds"]]
    except (KeyError, TypeError) as error:
        raise _damaged() from error
    return _compress({"format": _FORMAT, "tokens": columns, "rounds": rounds})


def pack_finish(finish: Finish) -> str:
    """A Finish as JSON text."""
    usage = finish.usage
    return json.dumps({
        "reason": finish.reason.value,
        "usage": {name: getattr(usage, name) for name in Usage.__dataclass_fields__},
        "prefill_seconds": finish.prefill_seconds,
        "generate_seconds": finish.generate_seconds,
        "stop": finish.stop,
    })  # fmt: skip


def unpack_finish(text: str | None) -> Finish | None:
    """The Finish, or None where there is none that can be read."""
    if text is None:
        return None
    try:
        data = json.loads(text)
        counts = data.pop("usage")
        usage = Usage(**counts | {"unknown": tuple(counts.get("unknown", ()))})
        return Finish(reason=FinishReason(data.pop("reason")), usage=usage, **data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _alternatives(alternatives: Sequence[Alternative]) -> list[tuple[int, str, float | None]]:
    return [(a.id, a.text, _short(a.logprob)) for a in alternatives]


def _round(r: Round) -> tuple[object, ...]:
    times = (r.draft_seconds, r.verify_seconds, r.sample_seconds, r.total_seconds)
    return (
        r.index, r.drafter, r.draft_length, r.accepted, r.emitted, r.depth, *map(_short, times),
        r.draft_tokens, r.rejected, r.replacement, r.reason,
    )  # fmt: skip


def _restore_round(row: list[Any]) -> Round:
    row[10] = tuple((id, text) for id, text in row[10])
    row[11] = tuple((id, text) for id, text in row[11])
    row[12] = tuple(row[12]) if row[12] else None
    return Round(*row)


def _token(
    id: int, text: str, kind: str, text_kind: str, round: int, p: float | None, q: float | None,
    acceptance: float | None, rejected: Any, logprob: float | None, alternatives: Any,
    draft_alternatives: Any,
) -> Token:  # fmt: skip
    return Token(
        id, text, _KINDS[kind], _KINDS[text_kind], round, p, q, acceptance,
        Rejected(*rejected) if rejected else None, logprob,
        tuple(Alternative(*a) for a in alternatives),
        tuple(Alternative(*a) for a in draft_alternatives),
    )  # fmt: skip


def _compress(data: object) -> bytes:
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode())


def _decompress(blob: bytes) -> Any:
    try:
        data = json.loads(zlib.decompress(blob))
        known = data["format"] == _FORMAT
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise _damaged() from error
    if not known:
        raise HistoryError("The token record was written by a newer specchat; update to see it.")
    return data


def _damaged() -> HistoryError:
    return HistoryError("The token record of this answer is damaged; its text is kept.")
