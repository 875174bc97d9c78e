"""Updating a widget without laying out the screen where its height stays the same."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


def put(widget: Static, content: Content) -> None:
    """Show `content`. A new layout costs ten times the painting of the widget alone."""
    size = widget.content_size
    height = content.get_height(widget.styles, size.width) if size.width else -1  # type: ignore[arg-type]
    widget.update(content, layout=height != size.height)
