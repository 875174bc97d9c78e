"""From a target to a draft: collect, train, write, evaluate. Every phase can be interrupted
and goes on from its last finished piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specchat.distill.collect import TOP, collect, load_target
from specchat.distill.data import Sample, load_shards
from specchat.distill.embeddings import initial_embeddings
from specchat.distill.evaluate import Worth, evaluate
from specchat.distill.shape import CONTEXT, TYPES, Shape, choose_shape
from specchat.distill.sources import Sources, read_chats, read_corpus
from specchat.distill.work import WorkFolder, require_space
from specchat.distill.write import write_draft
from specchat.engine.calibration_files import file_identity
from specchat.engine.header import Header, read_header
from specchat.errors import BadRequestError, Cancelled
from specchat.gguf_files import gguf_package
from specchat.models.facts import facts_of

if TYPE_CHECKING:
    from specchat.distill.train import Progress, Recipe, Trainer

_COLLECTING = 0.6  # of the time; the rest is training
_MOST_TOKENS = 2_000_000  # answer tokens that are worth collecting for so small a model
_TOKENS_PER_SECOND = 1500  # more than that no machine is expected to sample
_TOKEN_BYTES = TOP * 6 + 8  # of an answer token in a shard
_TOKENIZERS = {"llama": "SentencePiece", "gpt2": "byte-level BPE"}


@dataclass(frozen=True, slots=True)
class Order:
    """What to make. `steps`, `tokens` and `questions` bound training, collecting and the
    speed measurement; None leaves the first two to the time, `hours`.
    """

    target: Path
    output: Path
    hours: float = 1.0
    width: int | None = None
    layers: int | None = None
    kind: str = "Q8_0"
    corpus: Path | None = None
    from_history: bool = False
    parallel: int = 16
    threads: int = 0
    steps: int | None = None
    tokens: int | None = None
    questions: int = 6
    recipe: dict[str, Any] = field(default_factory=dict)  # changes to train.Recipe

    @property
    def work(self) -> WorkFolder:
        return WorkFolder(self.output.with_name(f"{self.output.name}.distill"))


class Listener(Protocol):
    """Told of what happens; see `cli/distill.py`."""

    def say(self, text: str) -> None: ...

    def collected(self, tokens: int, share: float) -> None: ...

    def trained(self, progress: Progress) -> None: ...

    def evaluated(self, share: float) -> None: ...


def check(order: Order) -> tuple[Header, Shape, Sources]:
    """Everything that can be wrong with an order, before anything is done. Raises
    BadRequestError, ModelFileError.
    """
    _need_packages()
    if not 0.001 <= order.hours <= 1000:
        raise BadRequestError(f"--hours must be 0.001 to 1000, not {order.hours:g}.", "hours")
    if order.kind not in TYPES:
        raise BadRequestError(f"There is no type {order.kind}; choose from {', '.join(TYPES)}.")
    if not 1 <= order.parallel <= 128:
        raise BadRequestError(f"--parallel must be 1 to 128, not {order.parallel}.", "parallel")
    if order.threads < 0:
        raise BadRequestError(f"--threads must not be negative: {order.threads}.", "threads")
    if order.output.exists():
        raise BadRequestError(
            f"{order.output} exists already: remove it, or choose another name with -o."
        )
    header = read_header(order.target)
    facts_of(header)  # refuses adapters, encoders and files without weights
    tokenizer = header.metadata["tokenizer.ggml.model"]
    if tokenizer not in _TOKENIZERS:
        raise BadRequestError(
            f"{order.target.name} has the tokenizer {tokenizer!r}; a draft can be made for "
            f"{' and '.join(f'{k!r} ({v})' for k, v in _TOKENIZERS.items())}."
        )
    shape = choose_shape(header, order.kind, order.width, order.layers)
    seconds = 3600 * order.hours * _COLLECTING
    tokens = min(order.tokens or _MOST_TOKENS, int(seconds * _TOKENS_PER_SECOND))
    # Model, best weights and two moments in the checkpoint; written anew beside the old one.
    require_space(order.output.absolute().parent, tokens * _TOKEN_BYTES + 33 * shape.parameters)
    sources = Sources(
        texts=read_corpus(order.corpus) if order.corpus else (),
        chats=read_chats() if order.from_history else (),
    )
    return header, shape, sources


def distill(order: Order, stop: Callable[[], bool], listener: Listener) -> list[Worth]:
    """Make the draft. Raises Cancelled, with how to go on, when `stop()` said so; and what
    `check` raises.
    """
    header, shape, sources = check(order)
    again = order.work.open(
        {
            "target": file_identity(order.target),
            "shape": [shape.width, shape.layers],
            "corpus": str(order.corpus.absolute()) if order.corpus else None,
            "history": order.from_history,
        }
    )
    listener.say(
        f"{'Going on with' if again else 'Making'} a draft of {shape.parameters / 1e6:.1f} M "
        f"parameters (width {shape.width}, {shape.layers} layers) for {order.target.name}; "
        f"a step reads {shape.step_bytes(order.kind) / max(1, header.step_bytes):.1%} of what the "
        "target's reads."
    )
    samples = _collect(order, sources, stop, listener)
    trainer = _train(order, header, shape, samples, stop, listener)
    write_draft(header, order.output, shape, trainer.best_weights(), order.kind)
    order.work.remove()
    size = order.output.stat().st_size / 2**20
    listener.say(f"Wrote {order.output} ({size:.1f} MiB). Measuring what it is worth.")
    return evaluate(
        order.target,
        order.output,
        samples,
        questions=order.questions,
        threads=order.threads,
        stop=stop,
        report=listener.evaluated,
    )


def _collect(
    order: Order, sources: Sources, stop: Callable[[], bool], listener: Listener
) -> list[Sample]:
    samples, spent = load_shards(order.work.shards)
    known = sum(len(s.top_ids) for s in samples)
    most = order.tokens or _MOST_TOKENS
    limit = 3600 * order.hours * _COLLECTING

    def share(tokens: int, seconds: float) -> float:
        return max((known + tokens) / most, (spent + seconds) / limit)

    def enough(tokens: int, seconds: float) -> bool:
        listener.collected(known + tokens, min(1.0, share(tokens, seconds)))
        return stop() or share(tokens, seconds) >= 1

    if share(0, 0.0) < 1 and not order.work.checkpoint.exists():
        engine = load_target(order.target, order.parallel, order.threads)
        if engine.target.n_ctx < CONTEXT:
            engine.close()
            raise BadRequestError(f"{order.target.name} has a context below {CONTEXT} tokens.")
        first = 1 + max((s.index for s in samples), default=-1)
        collect(engine, sources, order.work.shards, first, enough)
        samples, _ = load_shards(order.work.shards)
    if stop():
        raise _stopped("while collecting text")
    return samples


def _train(
    order: Order,
    header: Header,
    shape: Shape,
    samples: list[Sample],
    stop: Callable[[], bool],
    listener: Listener,
) -> Trainer:
    from specchat.distill.train import Recipe, Trainer

    recipe: Recipe = Recipe(**order.recipe)
    tokens = sum(len(s.top_ids) for s in samples)
    listener.say(f"Training on {tokens:,} tokens that the target wrote in {len(samples)} answers.")
    trainer = Trainer(
        shape,
        samples,
        lambda: initial_embeddings(order.target, shape.vocabulary, shape.width),
        recipe,
        order.work.checkpoint,
        order.threads,
    )
    deadline = 3600 * order.hours * (1 - _COLLECTING)
    if not trainer.run(order.steps, deadline, stop, listener.trained):
        raise _stopped(f"after training step {trainer.step}")
    return trainer


def _stopped(where: str) -> Cancelled:
    return Cancelled(
        f"Stopped {where}. Give the same command again to go on from there, or with "
        "fewer --hours to finish with what there is."
    )


def _need_packages() -> None:
    """Raises BadRequestError naming what to install."""
    gguf_package("distill")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise BadRequestError(
            "Training a draft needs PyTorch: pip install 'specchat[distill]'"
        ) from None
