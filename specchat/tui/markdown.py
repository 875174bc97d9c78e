"""Markdown as answers use it: how it is read, and the code blocks in it."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

# Textual makes one to four widgets of a block, at 3 ms each: a list of 75 items takes 0.9 s.
MOST_BLOCKS = 150


def answer_parser() -> MarkdownIt:
    """GitHub's Markdown, but single line breaks count, as models mean them to."""
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("keep_breaks", _keep_breaks)
    return parser


def _keep_breaks(state: StateCore) -> None:
    for block in state.tokens:
        for token in block.children or ():
            if token.type == "softbreak":
                token.type = "hardbreak"


def too_long(text: str) -> bool:
    """Whether Markdown of so many blocks would hold up the screen."""
    if text.count("\n") < MOST_BLOCKS // 10:  # a table's row of ten cells is one line
        return False
    tokens = answer_parser().parse(text)
    return sum(t.nesting >= 0 and t.type != "inline" for t in tokens) > MOST_BLOCKS


def code_blocks(text: str) -> list[str]:
    """Contents of fenced and indented code blocks, in order."""
    tokens = MarkdownIt("commonmark").parse(text)
    return [t.content.rstrip("\n") for t in tokens if t.type in ("fence", "code_block")]
