"""`-m NAME` and `-d NAME`: a named pair's files and defaults take the place of its name."""

from __future__ import annotations

import argparse
from pathlib import Path


def resolve_names(args: argparse.Namespace) -> None:
    """Put files into `args.model` and `args.draft`, and the pair's defaults where the command
    has such a flag and it was not given. `-d none` means no draft. Raises what
    `naming.resolve` raises.
    """
    given = args.draft
    if given == "none":
        args.draft = None
    name = args.model
    if name is not None and not is_path(name):
        from specchat.models.naming import resolve

        found = resolve(name, draft=given is None)
        args.model = str(found.target)
        args.draft = str(found.draft) if found.draft is not None else args.draft
        defaults = {"ctx": found.context, "template": found.template, "alias": name}
        for flag, value in {**defaults, **found.sampling}.items():
            unset = 0 if flag == "ctx" else None
            if getattr(args, flag, value) == unset:
                setattr(args, flag, value)
    if given is not None and given != "none" and not is_path(given):
        from specchat.models.naming import resolve_draft

        args.draft = str(resolve_draft(given))


def is_path(text: str) -> bool:
    """Whether `text` means a file: it looks like one, or there is one."""
    try:
        path = Path(text)
        looks = text.lower().endswith(".gguf") or path.parent != Path()
        return looks or (path.exists() and not path.is_dir())
    except (OSError, ValueError):
        return True
