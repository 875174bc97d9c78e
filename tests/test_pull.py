"""Downloading models from a server that speaks the Hub's protocol, and all that goes wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import pytest
from hub_server import COMMIT, File, HubServer
from test_header import split
from tiny_llama import write_tiny_llama

from specchat.engine.header import read_header
from specchat.errors import DownloadError
from specchat.models.discovery import discover
from specchat.models.download import download
from specchat.models.hub import Hub
from specchat.models.places import own_folder
from specchat.models.registry import ModelFile

REPO = "owner/Tiny-GGUF"
FILE = ModelFile(repo=REPO, file="tiny.gguf")
TOKEN = "hf_of_the_tests"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("pull") / "tiny.gguf"
    write_tiny_llama(path)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without the user's settings and token; and no waiting."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CACHE", "DATA", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("specchat.models.hub.time.sleep", lambda _seconds: None)
    return tmp_path


@pytest.fixture
def server(tiny: bytes):
    with HubServer() as running:
        running.files[REPO, "tiny.gguf"] = File(tiny)
        yield running


def pull(server: HubServer, file: ModelFile = FILE, report=lambda *_: None) -> Path:
    return download(file, report, Hub(server.url))


def left_over() -> list[str]:
    """Files that an unfinished download keeps."""
    folder = own_folder().with_name("incoming")
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def models() -> list[str]:
    return sorted(f.name for f in discover() if f.program == "specchat" and "Smol" not in f.name)


# -- what goes well --------------------------------------------------------------------


def test_a_file_arrives_whole_and_is_found(server: HubServer, tiny: bytes) -> None:
    reports: list[tuple[str, int, int]] = []
    path = pull(server, report=lambda *args: reports.append(args))
    assert path == own_folder() / REPO / "tiny.gguf"
    assert path.read_bytes() == tiny
    assert models() == ["tiny"]
    assert not own_folder().with_name("incoming").exists()
    assert reports[0] == ("fetching tiny.gguf", 0, len(tiny))
    assert ("fetching tiny.gguf", len(tiny), len(tiny)) in reports
    assert reports[-1] == ("checking tiny.gguf", len(tiny), len(tiny))


def test_the_token_goes_to_the_hub_and_nowhere_else(server: HubServer) -> None:
    pull(server)
    asked = [headers for _, path, headers in server.requests if not path.startswith("/cdn/")]
    assert {h.get("authorization") for h in asked} == {f"Bearer {TOKEN}"}
    (bytes_of,) = server.fetched("tiny.gguf")
    assert bytes_of["host"].startswith("localhost")
    assert "authorization" not in bytes_of


def test_all_parts_of_one_commit(server: HubServer, tiny: bytes, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "tiny.gguf").write_bytes(tiny)
    first = split(tmp_path / "tiny.gguf", tmp_path / "source", 3, 3)
    for part in first.parent.iterdir():
        server.files[REPO, f"Q4/{part.name}"] = File(part.read_bytes())
    path = pull(server, ModelFile(repo=REPO, file=f"Q4/{first.name}"))
    assert read_header(path).weight_bytes == read_header(first).weight_bytes
    assert len(models()) == 1
    asked = [path.split("/resolve/")[1] for _, path, _ in server.requests if "/cdn/" not in path]
    assert {path.split("/")[0] for path in asked[1:]} == {COMMIT}
    assert asked[0] == f"main/Q4/{first.name}"


def test_small_files_have_no_checksum(server: HubServer, tiny: bytes) -> None:
    server.files[REPO, "tiny.gguf"].small = True
    assert pull(server).read_bytes() == tiny


# -- interrupted -----------------------------------------------------------------------


def test_cut_connections_are_taken_up_again(server: HubServer, tiny: bytes) -> None:
    server.files[REPO, "tiny.gguf"].cuts = [1000, 0, 0, 5000]
    assert pull(server).read_bytes() == tiny
    ranges = [headers.get("range") for headers in server.fetched("tiny.gguf")]
    assert ranges == [None, "bytes=1000-", "bytes=1000-", "bytes=1000-", "bytes=6000-"]


def test_a_server_without_ranges_starts_over(server: HubServer, tiny: bytes) -> None:
    server.files[REPO, "tiny.gguf"].cuts = [1000]
    server.files[REPO, "tiny.gguf"].ranges = False
    assert pull(server).read_bytes() == tiny


def test_a_busy_server_is_asked_again(server: HubServer, tiny: bytes, tmp_path: Path) -> None:
    hub, path = Hub(server.url), tmp_path / "part"
    remote = hub.look_up(REPO, "tiny.gguf")
    server.files[REPO, "tiny.gguf"].busy = 3
    hub.fetch(remote, path, lambda _have: None)
    assert path.read_bytes() == tiny


def test_what_arrived_is_used_the_next_time(server: HubServer, tiny: bytes) -> None:
    file = server.files[REPO, "tiny.gguf"]
    file.cuts = [3000, *[0] * 5]
    with pytest.raises(DownloadError, match="What has arrived is kept"):
        pull(server)
    assert models() == []
    assert len(left_over()) == 1
    pull(server)
    assert server.fetched("tiny.gguf")[-1]["range"] == "bytes=3000-"
    assert left_over() == []


def test_another_version_is_not_mixed_in(server: HubServer, tiny: bytes) -> None:
    server.files[REPO, "tiny.gguf"].cuts = [3000, *[0] * 5]
    with pytest.raises(DownloadError):
        pull(server)
    changed = tiny[:-1] + bytes([tiny[-1] ^ 1])
    server.files[REPO, "tiny.gguf"] = File(changed)
    assert pull(server).read_bytes() == changed


def command(server: HubServer | None, *args: str, **env: str) -> list:
    address = {"HF_ENDPOINT": server.url} if server else {}
    return [[sys.executable, "-m", "specchat", "pull", *args], os.environ | address | env]


@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT"])
def test_a_killed_download_goes_on(server: HubServer, tiny: bytes, end: str) -> None:
    server.files[REPO, "tiny.gguf"].cuts = [7000]
    stalled = server.files[REPO, "tiny.gguf"].stall = threading.Event()
    name = f"hf:{REPO}/tiny.gguf"
    args, env = command(server, name)
    process = subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert stalled.wait(60)
        folder = own_folder().with_name("incoming") / REPO
        for _ in range(600):  # until the bytes have been written
            if [p for p in folder.glob("*.part") if p.stat().st_size]:
                break
            threading.Event().wait(0.05)
    finally:
        process.send_signal(getattr(signal, end))
        errors = process.communicate(timeout=60)[1]
    if end == "SIGINT":
        assert process.returncode == 130
        assert b"What has arrived is kept" in errors
        assert b"Traceback" not in errors
    have = next(folder.glob("*.part")).stat().st_size
    assert have > 0
    again = subprocess.run(args, env=env, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    assert server.fetched("tiny.gguf")[-1]["range"] == f"bytes={have}-"
    path = own_folder() / REPO / "tiny.gguf"
    assert path.read_bytes() == tiny
    assert again.stdout.splitlines() == [f"{name}: {path}", f"Chat with it: specchat -m {path}"]
    assert again.stderr == ""


# -- what is wrong with what came ------------------------------------------------------


def test_a_damaged_file_never_reaches_the_models(server: HubServer, tiny: bytes) -> None:
    file = server.files[REPO, "tiny.gguf"]
    file.sent = tiny[:-1] + bytes([tiny[-1] ^ 1])
    with pytest.raises(DownloadError, match=f"SHA-256.*{hashlib.sha256(tiny).hexdigest()}"):
        pull(server)
    assert (models(), left_over()) == ([], [])
    file.sent = None
    assert pull(server).read_bytes() == tiny


def test_more_than_was_announced_is_refused(server: HubServer, tiny: bytes) -> None:
    server.files[REPO, "tiny.gguf"].sent = tiny + b"more"
    with pytest.raises(DownloadError, match="more of tiny"):
        pull(server)
    assert models() == []


def test_a_file_that_is_no_gguf_is_refused(server: HubServer) -> None:
    server.files[REPO, "tiny.gguf"].data = b"<html>not here</html>"
    with pytest.raises(DownloadError, match="web page"):
        pull(server)
    assert (models(), left_over()) == ([], [])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"sha256": "0" * 64}, f"SHA-256.*{'0' * 64}.*models.toml"),
        ({"size": 5}, "models.toml says 5"),
    ],
)
def test_what_models_toml_says_is_held_to(server: HubServer, facts: dict, words: str) -> None:
    """Before a byte is fetched; but not what it marks as unverified."""
    with pytest.raises(DownloadError, match=words):
        pull(server, FILE.model_copy(update=facts))
    assert server.fetched("tiny.gguf") == []
    assert pull(server, FILE.model_copy(update=facts | {"unverified": tuple(facts)})).is_file()


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ((401, "GatedRepo", ""), "gated: accept its terms at http.*HF_TOKEN"),
        ((403, "GatedRepo", ""), "gated"),
        ((401, "RepoNotFound", ""), "no repository owner/Tiny-GGUF .* or it is private"),
        ((401, "", "Invalid credentials in Authorization header"), "status 401.*is valid"),
        ((403, "", ""), "does not let you have .*403.*HF_TOKEN"),
        ((404, "RevisionNotFound", ""), "no such revision"),
        ((500, "", ""), "status 500; try again later"),
        ((418, "", ""), "status 418"),
    ],
)
def test_refusals_say_what_to_do(
    server: HubServer, error: tuple[int, str, str], words: str
) -> None:
    server.files[REPO, "tiny.gguf"].error = error
    with pytest.raises(DownloadError, match=words) as raised:
        pull(server)
    assert "\n" not in str(raised.value)


def test_names_that_are_not_there(server: HubServer) -> None:
    with pytest.raises(DownloadError, match=r"no file none\.gguf\. It has: tiny\.gguf\."):
        pull(server, ModelFile(repo=REPO, file="none.gguf"))
    with pytest.raises(DownloadError, match="no repository owner/None"):
        pull(server, ModelFile(repo="owner/None", file="tiny.gguf"))


def test_a_server_that_is_no_hub_is_told(server: HubServer) -> None:
    server.files["api/models", "x.gguf"] = File(b"")
    with pytest.raises(DownloadError, match="does not answer as the Hub"):
        pull(server, ModelFile(repo="api/models", file="x.gguf"))


def test_what_the_hub_does_not_send_whole_is_told(server: HubServer, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 1000)
    with pytest.raises(DownloadError, match=f"hf download {REPO} tiny.gguf"):
        pull(server)
    assert server.fetched("tiny.gguf") == []


def test_no_connection(server: HubServer) -> None:
    with pytest.raises(DownloadError, match=r"Cannot reach 127\.0\.0\.1:9 .*Check the connection"):
        download(FILE, lambda *_: None, Hub("http://127.0.0.1:9"))


# -- the disk --------------------------------------------------------------------------


def test_too_small_a_disk_is_noticed_before(server: HubServer, tiny: bytes, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage(0, 0, len(tiny) - 1))
    with pytest.raises(DownloadError, match=r"needs .* GB free\. Make room"):
        pull(server)
    assert server.fetched("tiny.gguf") == []


def test_a_disk_that_fills_up_keeps_what_arrived(server: HubServer, tiny: bytes) -> None:
    """As far as a process can be kept from writing on."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(DownloadError, match=r"no more room .*make room"):
            pull(server)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert pull(server).read_bytes() == tiny
    assert server.fetched("tiny.gguf")[-1]["range"] == "bytes=5000-"


def test_a_folder_that_cannot_be_written_is_named(server: HubServer) -> None:
    own_folder().parent.mkdir(parents=True)
    own_folder().with_name("incoming").write_text("a file")
    with pytest.raises(DownloadError, match=r"Cannot write .*incoming"):
        pull(server)


def test_two_at_once_do_not_mix(server: HubServer) -> None:
    file = server.files[REPO, "tiny.gguf"]
    file.cuts, file.stall = [100], threading.Event()
    first = threading.Thread(target=pull, args=[server], daemon=True)
    first.start()
    assert file.stall.wait(30)
    with pytest.raises(DownloadError, match="Another specchat is downloading"):
        pull(server)
    server.release()
    first.join()
    assert models() == ["tiny"]


# -- the command -----------------------------------------------------------------------


def test_a_pair_is_pulled_once(server: HubServer, tiny: bytes, home: Path) -> None:
    server.files[REPO, "draft.gguf"] = File(tiny)
    (home / "config/specchat").mkdir(parents=True)
    entries = f'[files.big]\nrepo = "{REPO}"\nfile = "tiny.gguf"\n[files.small]\nrepo = "{REPO}"\n'
    entries += 'file = "draft.gguf"\n[pairs.mine]\ntarget = "big"\ndraft = "small"\n'
    (home / "config/specchat/models.toml").write_text(entries)
    args, env = command(server, "mine", "big")
    first = subprocess.run(args, env=env, capture_output=True, text=True, timeout=60)
    assert (first.returncode, first.stderr) == (0, "")
    folder = own_folder() / REPO
    chat = ["Chat with it: specchat -m mine", "Chat with it: specchat -m big"]
    assert first.stdout.splitlines() == [
        f"big: {folder / 'tiny.gguf'}", f"small: {folder / 'draft.gguf'}", *chat
    ]  # fmt: skip
    before = len(server.requests)
    again = subprocess.run(args, env=env, capture_output=True, text=True, timeout=60)
    assert again.stdout.count("was here already") == 2
    assert len(server.requests) == before
    (folder / "draft.gguf").write_bytes(tiny[:-1])  # it is damaged
    third = subprocess.run(args, env=env, capture_output=True, text=True, timeout=60)
    assert third.stdout.count("was here already") == 1
    assert (folder / "draft.gguf").read_bytes() == tiny


def test_another_repositorys_file_of_that_name_will_not_do(server: HubServer, tiny: bytes) -> None:
    other = own_folder() / "someone/Else-GGUF/tiny.gguf"
    other.parent.mkdir(parents=True)
    other.write_bytes(tiny)
    args, env = command(server, f"hf:{REPO}/tiny.gguf")
    result = subprocess.run(args, env=env, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[0].endswith(str(own_folder() / REPO / "tiny.gguf"))


def test_a_terminal_shows_how_far_it_is(server: HubServer, tiny: bytes) -> None:
    pty = pytest.importorskip("pty")
    server.files[REPO, "tiny.gguf"].cuts = [7000]
    stalled = server.files[REPO, "tiny.gguf"].stall = threading.Event()
    args, env = command(server, f"hf:{REPO}/tiny.gguf", TERM="xterm", COLUMNS="100")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(args, env=env, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        assert stalled.wait(60)
        while b"fetching tiny.gguf" not in shown or b"7.0/" not in shown:
            shown += os.read(ours, 4096)
        server.release()
        with suppress(OSError):  # how a pseudo-terminal ends
            while piece := os.read(ours, 4096):
                shown += piece
    finally:
        server.release()
        code = process.wait(60)
        os.close(ours)
    assert code == 0
    assert b"Traceback" not in shown


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("qwen3-9b", {}, ["Did you mean", "qwen3-8b", "hf:OWNER/REPO/FILE.gguf"]),
        ("hf:owner/repo", {}, ["is not hf:OWNER/REPO/FILE.gguf"]),
        ("hf:../../x.gguf", {}, ["is not hf:OWNER/REPO/FILE.gguf"]),
        ("qwen3-0.6b", {"HF_HUB_OFFLINE": "1"}, ["HF_HUB_OFFLINE is set"]),
    ],
)
def test_mistakes_end_with_one_line(name: str, env: dict[str, str], words: list[str]) -> None:
    args, environment = command(None, name, **env)
    result = subprocess.run(args, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode in (1, 2)
    (line,) = result.stderr.splitlines()
    for word in words:
        assert word in line


def test_nothing_else_imports_the_hub() -> None:
    code = "import sys, specchat.cli.ask, specchat.cli.models, specchat.models.naming, specchat.tui"
    code += "; print([m for m in sys.modules if 'hugging' in m or m.startswith('httpx2')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
