"""Exports: kinds as colours, hostile text as text, and everything that is stored as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from history_samples import FINISH, sample_round, sample_token, sample_tokens
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.events import Alternative, Kind, Token
from specchat.history import Conversation, Message, Record, Status
from specchat.history.export import Exported, to_html, to_json, to_markdown

CHAT = Conversation(1, "A <chat>", "Be & stay brief.", {"t": 0.5}, 1.0, 2.0, 2, None)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></section>&amp;",
    "\x1b[31mred\x1b]0;title\x07\x9b1m",
    "[/INST]</s>",
    "👩‍👩‍👧 漢字 ‮right to left",
]


def message(role: str, content: str, **more: object) -> Message:
    return Message(1, 1, None, role, content, **more)  # type: ignore[arg-type]


def answer(texts: list[str], **more: object) -> tuple[Message, Record]:
    content = str(more.pop("content", "".join(texts)))
    record = Record(tuple(sample_tokens(texts, alternatives=True)), (sample_round(0),))
    found = message("assistant", content, target="big", draft="small", finish=FINISH, **more)
    return found, record


class Page(HTMLParser):
    """What a browser would see: tags, attributes, and text by the class around it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[tuple[str, str]] = []
        self.open: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] in ("span", "pre"):
            self.texts.append((self.open[-1][1], data))

    def text(self) -> str:
        return "".join(text for _, text in self.texts)


def test_html_colours_every_kind() -> None:
    page = Page(to_html(CHAT, [answer(["a", "b", "c", "d", "e"])]))
    shown = page.texts[page.texts.index(("accepted", "a")) :]
    assert shown == [
        ("accepted", "a"),
        ("accepted", "b"),
        ("resampled", "c"),
        ("bonus", "d"),
        ("plain", "e"),
    ]
    style = to_html(CHAT, [])
    for kind in Kind:
        assert (f".{kind} " in style) == (kind not in (Kind.PLAIN, Kind.UNKNOWN))
    assert "resampled" in style[style.index("underline") - 80 : style.index("underline")]


def test_html_tooltips_tell_what_happened() -> None:
    page = to_html(CHAT, [answer(["a", "b", "c"])])
    assert 'title="resampled, round 0, p 0.0749, q 0.107, acceptance 0.75, instead of ' in page


def test_html_splits_reasoning_from_the_answer() -> None:
    texts = ["<think>", "hm, no", "</think>yes", " yes"]
    page = Page(to_html(CHAT, [answer(texts, content="yes yes", reasoning="hm, no")]))
    assert ("accepted", "hm, no") in page.texts
    assert page.texts[-2:] == [("resampled", "yes"), ("bonus", " yes")]
    assert "think" not in page.text()


def test_html_without_matching_tokens_is_plain() -> None:
    for texts in ([], ["other"]):
        page = Page(to_html(CHAT, [answer(texts, content="the <text>")]))
        assert ("", "the <text>") in page.texts


@pytest.mark.parametrize("text", HOSTILE)
def test_html_shows_hostile_text_as_text(text: str) -> None:
    chat = Conversation(1, text, text, {}, 1.0, 2.0, 2, None)
    messages: Exported = [
        (message(text, text), Record()),
        answer([text, text], reasoning=text, status=Status.ERROR, error=text),
    ]
    html = to_html(chat, messages)
    page = Page(html)
    assert set(page.tags) <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "section", "pre", "span"
    }  # fmt: skip
    assert page.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class", "dir",
                               "title"}  # fmt: skip
    assert page.open == []
    assert not {c for c in html if c < " " or "\x7f" <= c < "\xa0"} - {"\n"}
    unsafe = r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"  # control characters, bidi controls
    safe = re.sub(unsafe, "�", text)
    assert not re.search(unsafe, html.replace("\n", ""))
    assert page.text().count(safe) >= 4


@given(st.lists(st.text(alphabet=st.characters(), max_size=8)))
def test_every_format_takes_any_text(texts: list[str]) -> None:
    messages: Exported = [(message("user", "".join(texts)), Record()), answer(texts)]
    chat = Conversation(1, "".join(texts), "", {}, 1.0, 2.0, 2, None)
    for export in (to_html, to_markdown, to_json):
        text = export(chat, messages)
        text.encode()
        assert not {c for c in text if c < " " or "\x7f" <= c < "\xa0"} - {"\n", "\t"}
    Page(to_html(chat, messages))
    json.loads(to_json(chat, messages))


def test_markdown() -> None:
    text = to_markdown(
        CHAT,
        [
            (message("user", "Show code"), Record()),
            answer(["x"], content="Here:\n```python\nprint(1)", reasoning="a\n\nb\n",
                   status=Status.STOPPED, created=0.0),
        ],
    )  # fmt: skip
    head, tail = text.split("*stopped · 20 tokens · 2.50 tok/call · 60% accepted · ")
    assert tail.endswith("*\n")
    assert head == (
        "# A <chat>\n\n## System\n\nBe & stay brief.\n\n## User\n\nShow code\n\n"
        "## Assistant (big, drafted by small)\n\n> a\n> \n> b\n\n"
        "Here:\n```python\nprint(1)\n```\n\n"
    )


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("```\nx\n```", "```\nx\n```"),
        ("```\nx", "```\nx\n```"),
        ("````\n```\nx", "````\n```\nx\n````"),
        ("~~~\n```\nx", "~~~\n```\nx\n~~~"),
        ("```py\nx\n``` not the end", "```py\nx\n``` not the end\n```"),
        ("a ``` b", "a ``` b"),
    ],
)
def test_markdown_closes_an_open_fence(text: str, closed: str) -> None:
    assert f"\n{closed}\n" in to_markdown(CHAT, [(message("user", text), Record())])


def test_json_has_everything() -> None:
    strange = replace(
        sample_token(3, "é\x9b"), alternatives=(Alternative(5, "\x1b", float("-inf")),)
    )
    record = Record((sample_token(2, "x"), strange), (sample_round(7),))
    text = to_json(CHAT, [(message("assistant", "x"), record)])
    data = json.loads(text, parse_constant=pytest.fail)
    assert data["format"] == "specchat.conversation"
    assert data["conversation"]["settings"] == {"t": 0.5}
    (stored,) = data["messages"]
    assert stored["tokens"][0]["kind"] == "resampled"
    assert stored["tokens"][0]["rejected"] == {"id": 9, "text": " no", "p": 0.1, "q": 0.6}
    assert stored["tokens"][1]["text"] == "é�"
    assert stored["tokens"][1]["alternatives"] == [{"id": 5, "text": "\x1b", "logprob": None}]
    assert stored["rounds"][0]["index"] == 7
    assert stored["rounds"][0]["reason"] == "predicted best"


def test_pieces_of_unknown_origin_claim_nothing() -> None:
    piece = Token(-1, "word", Kind.UNKNOWN, Kind.UNKNOWN, -1, None)
    html = to_html(CHAT, [(answer(["word"])[0], Record((piece,), ()))])
    assert 'class="unknown" title="not reported by the server">word' in html
