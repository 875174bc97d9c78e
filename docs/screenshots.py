"""Makes the README's pictures: the real app, without a terminal, on a constructed pair.

    python docs/screenshots.py FOLDER

FOLDER keeps the pair between runs (1.6 GB). The conversation lives in memory only.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from textual.pilot import Pilot

from specchat.bench.fixtures import standard_fixture
from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import ModelOptions
from specchat.engine.sampling import SamplingParams
from specchat.history import History
from specchat.tui.app import SpecchatApp
from specchat.tui.preferences import Preferences
from specchat.tui.session import Session

DOCS = Path(__file__).parent
SIZE = (110, 32)
QUESTION = "Write a Python function that adds up the prices of a list of items, and explain it."
STATES = {
    "inspector": ("f2", "p", "p"),
    "rounds": ("escape", "f7"),
}


async def until(pilot: Pilot[None], condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await pilot.pause(0.05)


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target, draft = standard_fixture(folder)
    options = ModelOptions(n_ctx=2048)
    settings = Settings(sampling=SamplingParams(temperature=0.3, seed=5), max_tokens=230)
    session = Session(
        lambda _progress: Engine.load(target, draft, options=options), lambda: settings
    )
    app = SpecchatApp(session, History(None), preferences=Preferences(view="tokens"))
    app.animation_level = "none"
    async with app.run_test(size=SIZE) as pilot:
        screen = app.main
        await until(pilot, lambda: screen.ready is not None)
        screen.prompt.load(QUESTION)
        screen.prompt.focus()
        await pilot.press("enter")
        await until(pilot, lambda: len(screen.chat.path) == 2 and not screen.busy)
        await pilot.pause(1)
        for name, keys in STATES.items():
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.2)
            await pilot.pause(0.5)
            picture = app.export_screenshot()
            # Without its web font: a picture should load nothing. Any monospaced one will do.
            picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
            (DOCS / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(Path(sys.argv[1])))
