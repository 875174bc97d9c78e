"""`specchat pull`: download the files of a known pair, or any GGUF, from the Hugging Face Hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.errors import BadRequestError, UnknownModelError

if TYPE_CHECKING:
    from specchat.models.discovery import Found
    from specchat.models.download import Report
    from specchat.models.registry import ModelFile, Registry


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="download models",
        description=__doc__,
        epilog="Gated and private repositories need HF_TOKEN; HF_ENDPOINT names a mirror. "
        "An interrupted download goes on where it stopped.",
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME|hf:OWNER/REPO/FILE.gguf",
        help="a pair or a file that `specchat models` lists, or a file of any repository",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print each file's path. Raises DownloadError, UnknownModelError, RegistryError."""
    from specchat.cli.tables import console
    from specchat.models.discovery import discover
    from specchat.models.download import download
    from specchat.models.local import find
    from specchat.models.registry import load_registry

    registry, out = load_registry(), console()
    wanted = {name: _files(name, registry) for name in args.names}  # all good before the first
    found = discover(registry.folders)
    paths: dict[str, Path] = {}
    for files in wanted.values():
        for label, file in files.items():
            if label in paths:
                continue
            here = find(file, found)
            if here is not None and _is(file, here, exactly=label.startswith("hf:")):
                paths[label] = here.path
                out.print(f"{label}: {here.path} (was here already)", soft_wrap=True)
                continue
            with _progress() as report:
                paths[label] = download(file, report)
            out.print(f"{label}: {paths[label]}", soft_wrap=True)
    for name, files in wanted.items():
        _check(name, [paths[label] for label in files])
    return 0


def _is(file: ModelFile, here: Found, exactly: bool) -> bool:
    """Whether what is here will do: not where it is damaged, nor another repository's file of
    the same name where that was named.
    """
    from specchat.models.local import in_repository

    if exactly and not in_repository(file, here.path):
        return False
    return here.facts is not None or file.path is not None


def _files(name: str, registry: Registry) -> dict[str, ModelFile]:
    """What to fetch for `name`: the target first, then the draft if it has one."""
    if name.startswith("hf:"):
        return {name: _hub_file(name)}
    try:
        pair = registry.pair(name)
    except UnknownModelError as error:
        near = f" Did you mean {' or '.join(error.nearest)}?" if error.nearest else ""
        raise BadRequestError(
            f"models.toml knows no {name}.{near} `specchat models` lists the names; a file of "
            "any repository is hf:OWNER/REPO/FILE.gguf."
        ) from None
    return {label: registry.file(label) for label in (pair.target, pair.draft) if label}


def _hub_file(name: str) -> ModelFile:
    from pydantic import ValidationError

    from specchat.engine.header import part_names
    from specchat.models.registry import ModelFile

    owner, _, rest = name.removeprefix("hf:").strip("/").partition("/")
    repo, _, file = rest.partition("/")
    folder, slash, last = file.rpartition("/")
    try:
        if last:
            return ModelFile(repo=f"{owner}/{repo}", file=f"{folder}{slash}{part_names(last)[0]}")
    except ValidationError:
        pass
    raise BadRequestError(f"{name} is not hf:OWNER/REPO/FILE.gguf.")


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, else nothing but what goes wrong."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from specchat.engine.text import strip_control

    errors = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(strip_control(what), total=total)
            bars.update(tasks[what], completed=done)

        try:
            yield report
        except KeyboardInterrupt:
            errors.print("What has arrived is kept; the same command goes on from there.")
            raise


def _check(name: str, paths: list[Path]) -> None:
    """Say how to use what came, and whether the two of a pair fit."""
    from specchat.cli.tables import console
    from specchat.engine.header import read_header
    from specchat.engine.pairing import check_pair

    out = console()
    if len(paths) > 1:
        fit = check_pair(read_header(paths[0]), read_header(paths[1]))
        if not fit.fits:
            out.print(f"{name}: the draft does not fit: {fit.reason}. Use -d none.")
    usable = paths[0] if name.startswith("hf:") else name
    out.print(f"Chat with it: specchat -m {usable}", soft_wrap=True)
