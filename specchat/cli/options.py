"""Flags shared by commands, and what they become: model options, settings, an engine."""

from __future__ import annotations

import argparse
import json
import threading
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.default_model import default_model
from specchat.errors import BadRequestError, ModelFileError

if TYPE_CHECKING:
    from specchat.engine.engine import Engine, LoadProgress, Settings
    from specchat.engine.llama import ModelOptions

_SAMPLING = (
    ("--temperature", "--temp", float, "0 is greedy (default 0.8)"),
    ("--top-k", None, int, "keep the K best tokens; 0 keeps all (default 40)"),
    ("--top-p", None, float, "keep the best tokens that make up P (default 0.95)"),
    ("--min-p", None, float, "drop tokens below P times the best one's (default 0.05)"),
    ("--repeat-penalty", None, float, "divide the logits of recent tokens (default 1: off)"),
    ("--presence-penalty", None, float, "subtract from tokens that occurred (default 0)"),
    ("--frequency-penalty", None, float, "subtract per occurrence (default 0)"),
    ("--penalty-last-n", None, int, "tokens that the penalties look back on (default 64)"),
    ("--seed", None, int, "make sampling repeatable"),
)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("-m", "--model", metavar="GGUF", help="target (default: the embedded one)")
    group.add_argument("-d", "--draft", metavar="GGUF", help="draft with the same vocabulary")
    group.add_argument("--ctx", type=int, default=0, metavar="N", help="context, in tokens")
    group.add_argument("--threads", type=int, default=0, metavar="N", help="default: all cores")
    group.add_argument("--gpu-layers", type=int, default=-1, metavar="N", help="default: all")
    group.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto")
    group.add_argument("--type-k", default="f16", metavar="TYPE", help="KV cache type of keys")
    group.add_argument("--type-v", default="f16", metavar="TYPE", help="KV cache type of values")
    group.add_argument("--no-mmap", action="store_true", help="read the file instead")
    group.add_argument("--mlock", action="store_true", help="keep the weights in memory")
    group.add_argument(
        "--lora", action="append", default=[], metavar="FILE[=SCALE]", help="for the target"
    )
    group.add_argument("--template", metavar="FILE", help="chat template instead of the GGUF's")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for flag, short, kind, text in _SAMPLING:
        names = [flag, short] if short else [flag]
        group.add_argument(*names, type=kind, default=None, metavar="X", help=text)
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=BIAS", help="repeatable"
    )
    group.add_argument("-n", "--max-tokens", type=int, metavar="N", help="longest answer")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")
    group.add_argument("--grammar-file", metavar="FILE", help="GBNF the answer must follow")
    group.add_argument("--json-schema", metavar="FILE|JSON", help="schema the answer must follow")
    group.add_argument("--logprobs", type=int, metavar="N", help="alternatives per token (--json)")
    group = parser.add_argument_group("speculation")
    group.add_argument(
        "--draft-length", type=_draft_length, default=None, metavar="N|auto", help="default auto"
    )
    group.add_argument(
        "--drafter",
        choices=("draft", "lookup", "both", "none"),
        default="both",
        help="who proposes tokens: the draft model, prompt lookup, or both (default)",
    )
    group.add_argument(
        "--rule",
        choices=("exact", "match", "typical"),
        default="exact",
        help="acceptance rule: exact (default) and match are lossless, typical is not",
    )
    group.add_argument("--tau", type=float, default=0.5, help="threshold of typical (default 0.5)")


def _draft_length(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def settings(args: argparse.Namespace) -> Settings:
    """Raises BadRequestError naming the flag's field."""
    from specchat.engine.engine import Settings
    from specchat.engine.sampling import SamplingParams

    names = {f.name for f in fields(SamplingParams)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not None}
    if args.seed is not None and args.seed < 0:
        raise BadRequestError(f"--seed must not be negative: {args.seed}.", "seed")
    given["logit_bias"] = dict(_bias(item) for item in args.logit_bias)
    return Settings(
        sampling=SamplingParams(**given),
        rule=args.rule,
        tau=args.tau,
        draft_length=args.draft_length,
        drafter=args.drafter,
        max_tokens=args.max_tokens,
        stops=tuple(args.stop),
        grammar=read_text(args.grammar_file) if args.grammar_file else None,
        schema=_schema(args.json_schema) if args.json_schema else None,
        logprobs=args.logprobs,
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise BadRequestError(
            f"--logit-bias {text!r} is not ID=BIAS, like 198=-1.5.", "logit_bias"
        ) from None


def _schema(text: str) -> dict[str, Any]:
    source = text if text.lstrip().startswith("{") else read_text(text)
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"--json-schema is not JSON: {error}", "json_schema") from None
    if not isinstance(schema, dict):
        raise BadRequestError("--json-schema must be a JSON object.", "json_schema")
    return schema


def read_text(path: str) -> str:
    """A UTF-8 file's text. Raises BadRequestError naming it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequestError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadRequestError(f"{path} is not UTF-8 text.") from None


def model_options(args: argparse.Namespace, sequences: int = 1) -> ModelOptions:
    from specchat.engine.llama import ModelOptions

    for name in ("ctx", "threads"):
        if getattr(args, name) < 0:
            raise BadRequestError(f"--{name} must not be negative: {getattr(args, name)}.", name)
    try:
        return ModelOptions(
            n_ctx=args.ctx,
            n_gpu_layers=args.gpu_layers,
            threads=args.threads,
            flash_attention=args.flash_attention,
            type_k=args.type_k,
            type_v=args.type_v,
            mmap=not args.no_mmap,
            mlock=args.mlock,
            lora=tuple(_lora(item) for item in args.lora),
            sequences=sequences,
        )
    except BadRequestError as error:
        flag = {"n_ctx": "--ctx", "sequences": "--parallel"}.get(error.param or "")
        if flag is None:
            raise
        raise BadRequestError(str(error).replace(str(error.param), flag), error.param) from None


def _lora(text: str) -> tuple[str, float]:
    path, _, scale = text.rpartition("=")
    try:
        return (path, float(scale)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0  # the file's name contains a "="


def target_path(args: argparse.Namespace) -> Path:
    """The model that -m names, else the embedded default."""
    if args.model is None and args.draft is not None:
        raise ModelFileError("A draft (-d) needs a target: name one with -m.")
    return Path(args.model) if args.model is not None else default_model()


def load_engine(
    args: argparse.Namespace, progress: LoadProgress | None = None, sequences: int = 1
) -> Engine:
    """The engine that the flags describe. Raises what `Engine.load` raises.

    It loads beside the calling thread: a Ctrl-C that reached Python inside llama.cpp's log
    callback would be lost there.
    """
    from specchat.engine.engine import Engine
    from specchat.engine.worker import Worker

    interrupted = threading.Event()

    def go_on(stage: str, share: float) -> bool:
        return not interrupted.is_set() and (progress is None or progress(stage, share))

    worker = Worker("loading")
    loading = worker.submit(
        lambda: Engine.load(
            target_path(args),
            args.draft,
            options=model_options(args, sequences),
            template=read_text(args.template) if args.template else None,
            progress=go_on,
        )
    )
    worker.stop()
    try:
        return loading.result()
    except KeyboardInterrupt:
        interrupted.set()
        loading.exception()  # wait: a process must not end while a thread loads weights
        raise
