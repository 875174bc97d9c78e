"""From what a user types to a full-text query, and from a text to a snippet of it.

A query is a list of terms, all of which must occur, as parts of words and whatever their
case: "…" is one term, every other word is one. The index knows trigrams, so terms of three
characters and more are looked up and shorter ones (most Chinese words) are compared.
"""

from __future__ import annotations

import re

from specchat.engine.text import strip_control

from .records import clean

_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')
_MAX_TERMS = 32
_SNIPPET = 160  # characters
_BEFORE = 50  # of them before the first match


def terms(query: str) -> list[str]:
    """The terms of a query; at most 32. Operators of FTS5 are words like any other."""
    found = (a or b for a, b in _TERM.findall(clean(query)))
    return [term for term in found if term.strip()][:_MAX_TERMS]


def where(terms: list[str]) -> tuple[str, list[str]]:
    """The SQL condition "message m mentions every term" and its arguments."""
    long = ['"' + term + '"' for term in terms if len(term) >= 3]  # no term contains a quote
    short = [term for term in terms if len(term) < 3]
    conditions = ["mentions(m.content, ?)"] * len(short)
    arguments = list(short)
    if long:
        conditions.append("m.id IN (SELECT rowid FROM message_search WHERE message_search MATCH ?)")
        arguments.append(" ".join(long))
    return " AND ".join(conditions), arguments


def snippet(text: str, terms: list[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """One line of text around the first match, and where the terms are in it.

    Offsets are in characters of the snippet. No control character survives.
    """
    pattern = re.compile("|".join(map(re.escape, terms)), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - _BEFORE) if first else 0
    end = max(start + _SNIPPET, first.end() if first else 0)
    lead = "…" if start else ""
    body = text[start:end]
    line = lead + strip_control(re.sub(r"\s", " ", body)) + ("…" if end < len(text) else "")
    shift = len(lead)
    return line, tuple((m.start() + shift, m.end() + shift) for m in pattern.finditer(body))
