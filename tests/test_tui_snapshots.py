"""What whole screens look like, as text, against tests/snapshots/.

After a wanted change: UPDATE_SNAPSHOTS=1 python -m pytest tests/test_tui_snapshots.py, then look
at the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_engine import Recorded
from textual.pilot import Pilot
from tui_driver import app_with, ask, begin, until

from specchat.tui.app import SpecchatApp

SNAPSHOTS = Path(__file__).parent / "snapshots"
ANSWER = (
    "Drafts",
    " are",
    " checked",
    ".\n\n",
    "- one\n",
    "- two\n",
    "```py\n",
    "x = 1\n",
    "```\n",
)
SIZES = [(100, 30), (60, 20)]
STATES = {
    "tokens": (),
    "markdown": ("f4",),
    "inspector": ("f2",),
    "chats": ("f6",),
    "figures": ("f3",),
    "find": ("ctrl+f", *"one", "enter"),
    "help": ("f1",),
}


def lines(app: SpecchatApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def steady(pilot: Pilot[None]) -> str:
    """The screen once it no longer changes."""
    app = pilot.app
    assert isinstance(app, SpecchatApp)
    seen = [""]

    def same() -> bool:
        seen.append(lines(app))
        return len(seen) > 5 and len(set(seen[-4:])) == 1

    await until(pilot, same)
    return lines(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES)
async def test_the_screen_looks_as_it_did(
    state: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specchat.tui.widgets.history_list._ago", lambda then: "just now")
    app = app_with(Recorded(ANSWER))
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        screen = await begin(pilot)
        screen.prompt.cursor_blink = False
        await ask(pilot, "How do drafts work?")
        await pilot.press(*STATES[state])
        seen = await steady(pilot)
    file = SNAPSHOTS / f"{state}-{size[0]}x{size[1]}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(seen, encoding="utf-8")
    assert seen == file.read_text(encoding="utf-8")
