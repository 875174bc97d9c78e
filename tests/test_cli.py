"""The command line as a user meets it: real processes, the real default model."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GREEDY = ("--temperature", "0", "-n", "24")


def specchat(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specchat", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
    )


def on_terminal(*args: str, **env: str) -> str:
    """What a terminal receives of stdout and stderr."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "specchat", *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "xterm-256color"} | env,
    )
    os.close(follower)
    received = b""
    try:
        while True:
            if not select.select([leader], [], [], 60)[0]:
                process.kill()
                pytest.fail(f"no output for a minute after {received!r}")
            received += os.read(leader, 65536)
    except OSError:  # the other side closed
        pass
    os.close(leader)
    process.wait(timeout=60)
    return received.decode()


def one_line_error(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("specchat: ")
    for word in words:
        assert word in lines[0]


def test_the_answer_alone_goes_to_a_pipe_and_the_summary_to_stderr() -> None:
    result = specchat("-p", "Name three colours.", *GREEDY)
    assert result.returncode == 0
    assert result.stdout.strip()
    assert "\x1b" not in result.stdout
    assert "tok/s" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    again = specchat("-p", "Name three colours.", *GREEDY)
    assert again.stdout == result.stdout


def test_json_lines_tell_the_whole_answer() -> None:
    args = ("-p", "Repeat: one two three one two three one two three", *GREEDY)
    plain = specchat(*args)
    lines = [json.loads(line) for line in specchat(*args, "--json").stdout.splitlines()]
    tokens = [line for line in lines if line["type"] == "token"]
    rounds = [line for line in lines if line["type"] == "round"]
    summary = lines[-1]
    assert "".join(t["text"] for t in tokens) + "\n" == plain.stdout
    assert summary["type"] == "summary"
    assert summary["usage"]["completion_tokens"] == sum(r["emitted"] for r in rounds)
    assert summary["usage"]["target_calls"] == len(rounds)
    assert {t["kind"] for t in tokens} <= {"accepted", "resampled", "bonus", "plain"}


def test_a_seed_repeats_a_sampled_answer() -> None:
    answers = {specchat("-p", "Tell me a story.", "-n", "30", "--seed", s, "--draft-length", "0")
               .stdout for s in ("5", "5", "6")}  # fmt: skip
    assert len(answers) == 2


def test_standard_input_is_appended_and_can_be_the_whole_question() -> None:
    joined = specchat("-p", "Repeat this word:", *GREEDY, "--json", stdin="elephant\n")
    alone = specchat(*GREEDY, "--json", stdin="Repeat this word:\n\nelephant\n")
    assert joined.returncode == alone.returncode == 0
    prompts = [
        json.loads(r.stdout.splitlines()[-1])["usage"]["prompt_tokens"] for r in (joined, alone)
    ]
    assert prompts[0] == prompts[1]
    assert specchat("-p", "x", "-n", "1", stdin="\udcff".encode("utf-8", "surrogateescape")
                    .decode("latin-1")).returncode == 0  # fmt: skip


def test_stop_string_and_limit_and_schema() -> None:
    stopped = specchat("-p", "Count: 1, 2, 3", *GREEDY, "--stop", ",")
    assert "," not in stopped.stdout
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    result = specchat("-p", "Give n.", "--temperature", "0", "-n", "60", "--json-schema", schema)
    assert isinstance(json.loads(result.stdout)["n"], int)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["does not exist"]),
        (b"", ["is empty"]),
        (b"hello, I am a text", ["not a GGUF"]),
        (b"PK\x03\x04" + bytes(40), ["zip"]),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, ["damaged"]),
    ],
)
def test_bad_files_give_one_line_and_exit_code_two(
    tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    one_line_error(specchat("-m", str(path), "-p", "hi"), str(path), *words)
    one_line_error(specchat("-m", str(tmp_path), "-p", "hi"), "folder")


def test_a_truncated_model_says_how_much_is_missing(tmp_path: Path, smollm2: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:-1000])
    one_line_error(specchat("-m", str(cut), "-p", "hi"), "bytes are missing")


def test_a_draft_of_another_family_is_refused(smollm2: Path, gemma: Path) -> None:
    result = specchat("-m", str(gemma), "-d", str(smollm2), "-p", "hi")
    one_line_error(result, "cannot draft for", "tokenizer")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--temperature", "-1"], ["temperature"]),
        (["--seed", "-5"], ["seed"]),
        (["--top-p", "nan"], ["top_p"]),
        (["--draft-length", "99"], ["draft_length"]),
        (["--logit-bias", "x"], ["logit-bias"]),
        (["--logit-bias", "999999=1"], ["logit_bias"]),
        (["--json-schema", "{"], ["json-schema"]),
        (["--grammar-file", "no-such-file"], ["no-such-file"]),
        (["--type-k", "q9"], ["type_k"]),
        (["--ctx", "32"], ["tokens"]),
        (["--ctx", "3"], ["--ctx"]),
        (["-d", "x.gguf"], ["-m"]),
    ],
)
def test_bad_flags_name_the_flag(flags: list[str], words: list[str]) -> None:
    one_line_error(specchat("-p", "a b c d e f g h i j k l m n o p", *flags), *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--parallel", "0"), ("--parallel",)), (("--api-key-file", os.devnull), ("empty",))],
)
def test_bad_flags_of_the_server_name_the_flag(flags: tuple[str, ...], words: tuple[str]) -> None:
    one_line_error(specchat("serve", "--port", "0", *flags), *words)


def test_no_question_and_unknown_flags_exit_with_two() -> None:
    assert specchat().returncode == 2
    assert specchat("--no-such-flag").returncode == 2
    assert "specchat" in specchat("--version").stdout


def test_kinds_are_coloured_on_a_terminal_and_attributes_survive_no_color() -> None:
    args = ("-p", "Repeat: red blue red blue red blue red blue", *GREEDY,
            "--draft-length", "2", "--drafter", "lookup")  # fmt: skip
    coloured = on_terminal(*args)
    assert "\x1b[38;5;75m" in coloured  # accepted, or its legend
    assert "\x1b[4;38;5;208mresampled" in coloured
    bare = on_terminal(*args, NO_COLOR="1")
    assert "38;5" not in bare
    assert "\x1b[4mresampled" in bare


def test_control_sequences_never_reach_a_terminal() -> None:
    from specchat.cli.output import ColourWriter
    from specchat.engine.events import Kind
    from specchat.engine.text import strip_control

    hostile = "\x1b]0;title\x07\x1b[2Jtext\x9b31m"
    shown = ColourWriter(True).style(Kind.ACCEPTED, strip_control(hostile))
    assert shown.count("\x1b") == 2  # our own colour and its reset
    assert "\x07" not in shown
    assert "\x9b" not in shown


def test_control_c_stops_with_what_was_produced() -> None:
    process, first = begun_story()
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(first + rest) >= 20
    assert b"ended by cancelled" in errors
    assert b"Traceback" not in errors
    assert time.monotonic() - start < 20


def begun_story() -> tuple[subprocess.Popen[bytes], bytes]:
    """A process in the middle of an answer that would fill its context; its first bytes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specchat", "-p", "Write a very long story.", "--ctx", "4096",
         "--logit-bias", "2=-100"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.read(20)


def test_sigterm_stops_like_control_c() -> None:
    process, _ = begun_story()
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"ended by cancelled" in errors
    assert b"Traceback" not in errors


def test_a_second_control_c_ends_the_process_where_the_first_does_not() -> None:
    script = (
        "import time\nfrom specchat.cli.ask import _interrupts\n"
        "with _interrupts(lambda: print('stopping', flush=True)):\n"
        "    print('ready', flush=True)\n    time.sleep(30)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in ("ready\n", "stopping\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == -signal.SIGINT
    process.stdout.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ('-p "Write a long story." -n 200', 141),
        ('-p "Write a long story." -n 200 --json', 141),
        ("doctor --no-load", 141),
    ],
)
def test_a_reader_that_leaves_is_no_error(command: str, code: int) -> None:
    process = subprocess.Popen(
        f"exec {sys.executable} -u -m specchat {command}",
        shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before anything is written, so that every write fails
    errors = process.stderr.read()
    assert process.wait(timeout=60) == code
    assert b"Traceback" not in errors
    assert b"Exception" not in errors


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str) -> None:
    command = f'{sys.executable} -m specchat -p "hi" -n 2 {closed}'
    result = subprocess.run(
        command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    assert result.returncode == 0
    assert b"specchat:" not in result.stdout  # the summary went nowhere, not into the answer


@pytest.mark.parametrize("command", ["-p hi -n 1", "simulate", "doctor --no-load"])
def test_a_full_disk_is_told_in_a_line(command: str) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "specchat", *command.split()],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == "specchat: Cannot write the output: No space left on device.\n"


def test_a_terminal_that_lacks_characters_gets_the_rest() -> None:
    result = specchat("simulate", PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert "tok" in result.stdout


def test_a_log_that_cannot_be_written_costs_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "specchat/log/specchat.log").mkdir(parents=True)
    script = "from specchat.cli import main, simulate\nsimulate.run = lambda _: 1 / 0\n"
    result = subprocess.run(
        [sys.executable, "-c", script + "main.main(['simulate'])"],
        capture_output=True, text=True, timeout=60,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert result.stderr.startswith("specchat: Unexpected ZeroDivisionError")
    assert result.stderr.count("\n") == 1


def test_control_c_inside_a_log_callback_is_not_lost() -> None:
    script = """
import os, signal, sys
from specchat.cli.main import main
from specchat.engine.llama import backend
class Log:
    write = lambda self, _: os.kill(os.getpid(), signal.SIGINT)
    flush = lambda self: None
backend.log.file = Log()
sys.exit(main(["doctor", "--ctx", "64"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 130
    assert "Measured" not in result.stdout
    assert result.stderr == ""


def test_control_c_while_python_starts_costs_no_traceback() -> None:
    script = """
import sys
from specchat.__main__ import main
class Finder:
    def find_spec(name, *_):
        if name == "specchat.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder)
sys.exit(main())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (130, b"")


def test_what_was_measured_is_kept_for_the_next_run(tmp_path: Path) -> None:
    assert specchat("-p", "hi", "-n", "2", XDG_CACHE_HOME=str(tmp_path)).returncode == 0
    assert len(list(tmp_path.rglob("calibration/*.json"))) == 1


def test_every_json_key_is_documented() -> None:
    flags = ("--json", "--logprobs", "2", "--draft-length", "2", "--drafter", "lookup")
    lines = specchat("-p", "Repeat: red blue red blue red", *GREEDY, *flags).stdout.splitlines()
    lines += specchat("-p", "hi", "-n", "1", "--json").stdout.splitlines()
    documented = (Path(__file__).parent.parent / "docs" / "json-output.md").read_text()
    keys = {key for line in lines for key in json.loads(line)}
    assert {key for key in keys if f"`{key}`" not in documented} == set()


def test_doctor_says_whether_a_pair_fits(smollm2: Path, gemma: Path) -> None:
    good = specchat("doctor", "-m", str(smollm2), "-d", str(smollm2), "--ctx", "512")
    assert good.returncode == 0
    assert "vocabularies are identical" in good.stdout
    assert "break-even" in good.stdout
    large = specchat("doctor", "-m", str(smollm2), "--ctx", "2000000000")  # not tried then
    assert large.returncode == 2
    assert "DOES NOT FIT" in large.stdout
    assert "--ctx" in large.stdout
    bad = specchat("doctor", "-m", str(gemma), "-d", str(smollm2), "--no-load")
    assert bad.returncode == 2
    assert "MISMATCH" in bad.stdout
