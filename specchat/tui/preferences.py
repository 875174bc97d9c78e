"""What the user likes, kept between runs in a small JSON file."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import platformdirs

log = logging.getLogger(__name__)

VIEWS = ("markdown", "tokens")
SUBMIT_KEYS = ("enter", "alt+enter")


@dataclass
class Preferences:
    """`view` is how finished answers are shown, `submit_key` what sends a question, `port`
    where the endpoint listened last.
    """

    theme: str = "textual-dark"
    view: str = "markdown"
    submit_key: str = "enter"
    panel: bool = True
    chats: bool = False
    alternatives: int = 5
    port: int = 8080

    def save(self) -> None:
        """A folder that cannot be written is no error: the run goes on."""
        try:
            _path().parent.mkdir(parents=True, exist_ok=True)
            _path().write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        except OSError as error:
            log.warning("cannot keep the preferences: %s", error)


def read_preferences() -> Preferences:
    """The saved ones; defaults for what is missing or makes no sense."""
    found = Preferences()
    try:
        saved = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return found
    for field in fields(Preferences):
        value = saved.get(field.name) if isinstance(saved, dict) else None
        if type(value) is type(getattr(found, field.name)):
            setattr(found, field.name, value)
    found.view = found.view if found.view in VIEWS else VIEWS[0]
    found.submit_key = found.submit_key if found.submit_key in SUBMIT_KEYS else SUBMIT_KEYS[0]
    found.alternatives = min(max(found.alternatives, 0), 20)
    found.port = found.port if 1 <= found.port <= 65535 else Preferences.port
    return found


def _path() -> Path:
    return Path(platformdirs.user_config_dir("specchat")) / "app.json"
