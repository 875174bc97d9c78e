"""What an empty chat says: the kinds of tokens, and where to go from here."""

from __future__ import annotations

from textual.content import Content

from specchat.default_model import FILE
from specchat.tui.kinds import MEANINGS, Looks, shown

_KEYS = (
    ("Enter", "sends, Ctrl+J breaks the line, /file PATH attaches a text file"),
    ("F2", "looks into a token: probabilities, alternatives, refusals"),
    ("F7", "shows the answer round by round"),
    ("F1", "lists all keys; Ctrl+P all commands"),
)
_DEFAULT = (
    "This is the small model that comes with specchat: quick, but not clever. F5 chooses "
    "another; or start with  specchat -m large.gguf -d small.gguf"
)


def greeting(looks: Looks, target: str, server: str = "") -> Content:
    """`target` is the name of the model that answers, `server` where, if elsewhere."""
    where = f" at {shown(server)}" if server else ""
    parts: list[Content | str] = [Content.styled(shown(target), "bold"), f"{where} is ready.\n"]
    if FILE.startswith(target) and not server:
        parts.append(Content.styled(_DEFAULT + "\n", looks.muted))
    parts.append("\nTokens are marked by where they came from:\n")
    for kind, style in looks.kinds.items():
        parts += [Content.styled(f"  {kind}", style), f"{'':{12 - len(kind)}}{MEANINGS[kind]}\n"]
    parts.append("\n")
    parts += [f"  {key:<8}{text}\n" for key, text in _KEYS]
    return Content.assemble(*parts)
