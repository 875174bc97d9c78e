"""A conversation as Markdown, JSON or an HTML page with coloured tokens.

Control characters are replaced, so that an exported file may be shown on a terminal.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from specchat.engine.events import Kind, Token
from specchat.engine.text import strip_control

from .records import clean
from .types import Conversation, Message, Record, Status

Exported = Sequence[tuple[Message, Record]]  # a branch, with the records of its answers

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 50rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui; }}
section {{ border-top: 1px solid #8886; padding: .5rem 0; unicode-bidi: isolate; }}
h2 {{ font-size: 1rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; margin: 0; }}
.reasoning {{ opacity: .8; border-left: 3px solid #8886; padding-left: 1rem; }}
.figures {{ font-size: .85rem; opacity: .7; }}
.accepted {{ color: light-dark(#0b57d0, #7cacf8); }}
.bonus {{ color: light-dark(#6b9bd8, #b9d4fa); font-weight: bold; }}
.resampled {{ color: light-dark(#b34700, #ff9e4a); text-decoration: underline; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="figures"><span class="accepted">accepted draft token</span> ·
<span class="resampled">resampled after a rejection</span> ·
<span class="bonus">bonus token</span> · <span class="plain">plain token</span></p>
{body}
</body>
</html>
"""


def to_markdown(conversation: Conversation, messages: Exported) -> str:
    """Headings by role; contents as they are, except that open code fences are closed."""
    parts = [f"# {_line(conversation.title) or 'Untitled'}"]
    if conversation.system_prompt:
        parts += ["## System", _closed(_shown(conversation.system_prompt))]
    for message, _ in messages:
        parts.append(f"## {_heading(message)}")
        if message.reasoning:
            parts.append("> " + _shown(message.reasoning.strip()).replace("\n", "\n> "))
        parts.append(_closed(_shown(message.content)))
        if figures := _figures(message):
            parts.append(f"*{figures}*")
    return "\n\n".join(parts) + "\n"


def to_json(conversation: Conversation, messages: Exported) -> str:
    """Everything that is stored, including tokens and rounds, with the names of types.py
    and events.py. Numbers that JSON does not have are null.
    """
    data = {
        "format": "specchat.conversation",
        "version": 1,
        "conversation": asdict(conversation),
        "messages": [asdict(message) | asdict(record) for message, record in messages],
    }
    text = json.dumps(_plain(data), ensure_ascii=False, indent=1)
    return clean(strip_control(text)) + "\n"


def to_html(conversation: Conversation, messages: Exported) -> str:
    """One page without scripts or links. Tokens have the colour of their kind (and bold or
    underline besides), and their probabilities as tooltips.
    """
    body = []
    if conversation.system_prompt:
        text = _escaped(conversation.system_prompt)
        body.append(f'<section><h2>System</h2><pre dir="auto">{text}</pre></section>')
    for message, record in messages:
        body.append(f"<section><h2>{_escaped(_heading(message))}</h2>")
        if message.reasoning:
            thought = "".join(_spans(record, message.reasoning, last=False))
            body.append(f'<pre class="reasoning" dir="auto">{thought}</pre>')
        body.append(f'<pre dir="auto">{"".join(_spans(record, message.content, last=True))}</pre>')
        if figures := _figures(message):
            body.append(f'<p class="figures">{_escaped(figures)}</p>')
        body.append("</section>")
    title = _escaped(_line(conversation.title) or "Untitled")
    return _PAGE.format(title=title, body="\n".join(body))


def _spans(record: Record, text: str, last: bool) -> Iterator[str]:
    """`text` as HTML, coloured where the answer's tokens spell it (first or last time)."""
    pieces = [clean(t.text) for t in record.tokens]
    written = "".join(pieces)
    start = written.rfind(text) if last else written.find(text)
    if start < 0:
        yield _escaped(text)
        return
    end, at = start + len(text), 0
    for token, piece in zip(record.tokens, pieces, strict=True):
        part = piece[max(start - at, 0) : max(end - at, 0)]
        at += len(piece)
        if part:
            tip = _escaped(_tooltip(token))
            yield f'<span class="{token.text_kind.value}" title="{tip}">{_escaped(part)}</span>'


def _tooltip(token: Token) -> str:
    if token.kind is Kind.UNKNOWN:
        return "not reported by the server"
    tip = f"{token.kind.value}, round {token.round}"
    if token.p is not None:
        tip += f", p {token.p:.3g}"
    if token.q is not None:
        tip += f", q {token.q:.3g}"
    if token.acceptance is not None:
        tip += f", acceptance {token.acceptance:.3g}"
    if token.rejected is not None:
        tip += f", instead of {token.rejected.text!r}"
    return tip


def _heading(message: Message) -> str:
    heading = _line(message.role).capitalize()
    if message.target:
        heading += f" ({_line(message.target)}"
        heading += f", drafted by {_line(message.draft)})" if message.draft else ")"
    return heading


def _figures(message: Message) -> str:
    """One line about an answer; "" where there is nothing to say."""
    words = [] if message.status is Status.DONE else [message.status.value]
    if message.error:
        words.append(_line(message.error))
    if message.finish:
        usage = message.finish.usage
        if "completion_tokens" not in usage.unknown:
            words.append(f"{usage.completion_tokens} tokens")
        if usage.target_calls:
            words.append(f"{usage.completion_tokens / usage.target_calls:.2f} tok/call")
        if usage.drafted_tokens:
            words.append(f"{usage.accepted_tokens / usage.drafted_tokens:.0%} accepted")
    if message.role == "assistant":
        words.append(time.strftime("%Y-%m-%d %H:%M", time.localtime(message.created)))
    return " · ".join(words)


def _shown(text: str) -> str:
    return strip_control(clean(text.replace("\r\n", "\n")))


def _line(text: str) -> str:
    return _shown(" ".join(text.split()))


def _escaped(text: str) -> str:
    return escape(_shown(text))


def _closed(text: str) -> str:
    """Markdown with its last code fence closed, so that what follows is not code."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if not found:
            continue
        if not fence:
            fence = found[1]
        elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
    return f"{text.rstrip()}\n{fence}" if fence else text


def _plain(value: Any) -> Any:
    """The same value, with only what JSON knows."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
