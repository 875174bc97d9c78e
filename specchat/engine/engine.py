"""A loaded target with its drafters, ready to answer: what every client talks to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from specchat.engine.batch import drive
from specchat.engine.calibration import Calibration
from specchat.engine.controller import Controller
from specchat.engine.drafters import Drafter, LookupDrafter
from specchat.engine.events import Event
from specchat.engine.grammar import gbnf_from_schema
from specchat.engine.header import Header, read_header
from specchat.engine.llama import Grammar, LlamaCache, LlamaModel, ModelOptions
from specchat.engine.loop import Generation, Request, Steps
from specchat.engine.messages import Message
from specchat.engine.model import Evaluate, Model
from specchat.engine.pairing import require_pair
from specchat.engine.policy import FixedLength, Policy
from specchat.engine.prediction import PredictionDrafter
from specchat.engine.rules import make_rule
from specchat.engine.sampling import Chain, SamplingParams
from specchat.engine.slots import Slot, Slots
from specchat.engine.stats import Stats
from specchat.engine.template import PLAIN, ChatTemplate
from specchat.errors import BadRequestError, BusyError

MAX_DRAFT_LENGTH = 16
DRAFTERS = ("draft", "lookup", "both", "none")

LoadProgress = Callable[[str, float], bool]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to answer. `draft_length` None lets the controller choose; 0 is plain decoding.
    `drafter` is one of `DRAFTERS`. `grammar` is GBNF; `schema` a JSON schema; at most one
    of the two. `logprobs` is the number of alternatives to report per token. `prediction` are
    tokens that much of the answer is expected to repeat; see `prediction.py`.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    rule: str = "exact"
    tau: float = 0.5
    draft_length: int | None = None
    drafter: str = "both"
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    grammar: str | None = None
    schema: Mapping[str, Any] | None = None
    logprobs: int | None = None
    prediction: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises BadRequestError naming the field."""
        if self.draft_length is not None and not 0 <= self.draft_length <= MAX_DRAFT_LENGTH:
            raise BadRequestError(
                f"draft_length must be auto or 0 to {MAX_DRAFT_LENGTH}, not {self.draft_length}.",
                "draft_length",
            )
        if self.drafter not in DRAFTERS:
            raise BadRequestError(
                f"There is no drafter {self.drafter!r}; choose from {', '.join(DRAFTERS)}.",
                "drafter",
            )
        if self.max_tokens is not None and self.max_tokens < 0:
            raise BadRequestError(
                f"max_tokens must not be negative: {self.max_tokens}.", "max_tokens"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise BadRequestError(f"logprobs must be 0 to 100, not {self.logprobs}.", "logprobs")
        if self.grammar is not None and self.schema is not None:
            raise BadRequestError("Give a grammar or a JSON schema, not both.", "grammar")
        make_rule(self.rule, self.tau)


class Abortable(Protocol):
    """What a `Cancel` ends: a model's running call, a connection. `abort(False)` takes it back."""

    def abort(self, on: bool = True) -> None: ...


class Cancel:
    """Stops one answer from any thread: between calls, and inside a CPU call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._models: Sequence[Abortable] = ()

    def set(self) -> None:
        with self._lock:
            self._set = True
            for model in self._models:
                model.abort()

    def is_set(self) -> bool:
        return self._set

    def attach(self, models: Sequence[Abortable]) -> None:
        """While attached, `set` also aborts the running call of `models`."""
        with self._lock:
            for model in self._models:
                model.abort(False)
            self._models = models
            if self._set:
                for model in models:
                    model.abort()


class Engine:
    """One target, with or without a draft. Owned by one thread, but for `Cancel.set`.

    `refusal` says why this target cannot speculate ("" when it can).
    """

    def __init__(
        self,
        target: LlamaModel,
        draft: LlamaModel | None = None,
        header: Header | None = None,
        template: str | None = None,
    ) -> None:
        self.target, self.draft, self.header = target, draft, header
        tokenizer = target.tokenizer
        source = template if template is not None else (header.chat_template if header else None)
        self.template = ChatTemplate(source, tokenizer)
        self.refusal = target.rollback_reason
        if draft is not None:
            self.refusal = self.refusal or draft.rollback_reason
        self._slots = Slots(target, draft)
        self._calibration: Calibration | None = None
        self.controller: Controller | None = None  # the latest answer's, where it had one

    @classmethod
    def load(
        cls,
        target: str | Path,
        draft: str | Path | None = None,
        *,
        options: ModelOptions | None = None,
        draft_options: ModelOptions | None = None,
        template: str | None = None,
        progress: LoadProgress | None = None,
    ) -> Engine:
        """Check both headers and vocabularies, then load weights.

        `progress` gets "target" or "draft" and a share 0..1, and returns False to cancel.
        `template` replaces the GGUF's chat template. Raises ModelFileError,
        PairMismatchError, ModelLoadError, LoadCancelled.
        """
        options = options or ModelOptions()
        header = read_header(Path(target))
        draft_header = read_header(Path(draft)) if draft is not None else None
        if draft_header is not None:
            require_pair(header, draft_header)
            draft_header.require_loadable()
        header.require_loadable()

        def report(stage: str) -> Callable[[float], bool] | None:
            return (lambda share: progress(stage, share)) if progress else None

        big = LlamaModel.load(header.path, options, progress=report("target"))
        small = None
        try:
            if draft_header is not None:
                draft_options = replace(draft_options or options, n_ctx=big.n_ctx)
                if draft_options is not None and draft_options.lora == options.lora:
                    draft_options = replace(draft_options, lora=())  # made for the target
                small = LlamaModel.load(draft_header.path, draft_options, progress=report("draft"))
            return cls(big, small, header, template)
        except BaseException:
            big.close()
            if small is not None:
                small.close()
            raise

    def chat(
        self,
        messages: Sequence[Message],
        settings: Settings | None = None,
        cancel: Cancel | None = None,
        *,
        continue_final: bool = False,
    ) -> Iterator[Event]:
        """Answer a conversation; see `generate` and `chat_prompt`."""
        prompt = self.chat_prompt(messages, continue_final=continue_final)
        return self.generate(prompt, self.chat_settings(settings or Settings()), cancel)

    def chat_prompt(
        self, messages: Sequence[Message], *, continue_final: bool = False
    ) -> list[int]:
        """Token ids of a conversation. `continue_final` goes on with the last message instead
        of answering it.
        """
        return self.template.tokens(
            messages, add_generation_prompt=not continue_final, continue_final=continue_final
        )

    def chat_settings(self, settings: Settings) -> Settings:
        """`settings`, ending an answer where the template has no token that ends a turn."""
        if self.template.source != PLAIN:
            return settings
        return replace(settings, stops=(*settings.stops, "\nUser:"))

    def generate(
        self, prompt: Sequence[int], settings: Settings | None = None, cancel: Cancel | None = None
    ) -> Iterator[Event]:
        """Continue `prompt` (token ids). Everything wrong with the request is raised here,
        before the first event. Closing the iterator stops the answer.
        """
        return drive(self.start(prompt, settings, cancel), self.observe)

    def start(
        self,
        prompt: Sequence[int],
        settings: Settings | None = None,
        cancel: Cancel | None = None,
        priority: int = 0,
    ) -> Steps:
        """Make the generation that `batch.Batch` runs beside others; it takes its slot when
        it is first advanced. Its cache outlasts those of lower `priority`.

        Raises BusyError when all slots are taken, and whatever is wrong with the request.
        """
        settings, cancel = settings or Settings(), cancel or Cancel()
        tokenizer = self.target.tokenizer
        chain = Chain(settings.sampling, self.target.n_vocab)
        slot = self._slots.choose(prompt, priority)
        if slot is None:
            raise BusyError("The engine is answering already; wait or raise --parallel.")
        source = gbnf_from_schema(settings.schema) if settings.schema else settings.grammar
        request = Request(
            prompt=prompt,
            chain=chain,
            rule=make_rule(settings.rule, settings.tau),
            max_tokens=settings.max_tokens,
            stops=settings.stops,
            grammar=Grammar(tokenizer, source) if source is not None else None,
            logprobs=settings.logprobs,
            cancelled=cancel.is_set,
        )
        policy = self._policy(settings, slot)
        return self._run(
            Generation(request, slot.target, policy, tokenizer), slot, cancel, priority
        )

    def _run(self, generation: Generation, slot: Slot, cancel: Cancel, priority: int) -> Steps:
        self._slots.occupy(slot, generation.request.prompt, priority)
        if len(self._slots.all) == 1:  # aborting a call would end the neighbours' answers too
            cancel.attach(self.models)
        try:
            yield from generation.run()
        finally:
            cancel.attach([])
            self._slots.release(slot)

    def release_slots(self) -> None:
        """Give all sequences back to the models, for who wants to use those directly."""
        self._slots.close()

    @property
    def models(self) -> tuple[LlamaModel, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def idle_slots(self) -> int:
        return self._slots.idle

    def should_wait(self, prompt: Sequence[int]) -> bool:
        """Whether an answer that has begun is reading much of `prompt` just now."""
        return self._slots.promised(prompt)

    def draft_depth(self, prompt: Sequence[int]) -> int | None:
        """Tokens in the draft's cache of the sequence that answers `prompt`, the very object
        given to `start`; None without a draft.
        """
        for slot in self._slots.all:
            if slot.busy and slot.prompt is prompt and slot.draft is not None:
                return len(slot.draft.tokens)
        return None

    def share(self, busy: int) -> None:
        """`busy` sequences share each call."""
        if self._calibration is not None:
            self._calibration.costs.busy = busy

    def observe(self, model: Model, requests: Sequence[Evaluate], seconds: float) -> None:
        """Learn from the time of a model call."""
        if self._calibration is not None:
            costs = self._calibration.costs
            curve = costs.target if model is self.target else costs.draft
            costs.observe_call(curve, requests, seconds)

    def drafters(
        self, which: str, slot: Slot | None = None, prediction: Sequence[int] = ()
    ) -> list[Drafter]:
        """The drafters that `which` names and this engine has; those that copy first."""
        slot = slot or self._slots.all[0]
        chosen: list[Drafter] = []
        if self.refusal or which == "none":
            return chosen
        if prediction:
            chosen.append(PredictionDrafter(prediction))
        if which in ("lookup", "both"):
            chosen.append(LookupDrafter())
        if which in ("draft", "both") and slot.drafter is not None:
            chosen.append(slot.drafter)
        return chosen

    @property
    def calibration(self) -> Calibration:
        """Cost curves and acceptance; measured (under a second) when first asked for."""
        if self._calibration is None:
            caches = self._empty_caches()
            self._calibration = Calibration(self.target, self.draft, MAX_DRAFT_LENGTH)
            self._calibration.measure(*caches)
        return self._calibration

    def calibrate_afresh(self) -> None:
        """Forget what earlier runs measured, and measure anew."""
        self.calibration.measure_again(*self._empty_caches())

    def _empty_caches(self) -> tuple[LlamaCache, LlamaCache | None]:
        """To measure with: target's and draft's, of a slot that answers nobody now."""
        slot = self._slots.choose(())
        if slot is None:
            raise BusyError("Every sequence is answering; measure when one is idle.")
        for cache in (slot.target, slot.draft):
            if cache is not None:
                cache.truncate(0)
        return slot.target, slot.draft

    def stats(self) -> Stats:
        """Figures for the next answer, with the measured baseline if there is one."""
        if self._calibration is None:
            return Stats()
        costs = self._calibration.costs
        return Stats(lambda depth: costs.at(depth, 1).plain, lambda: costs.target.spread(1))

    def _policy(self, settings: Settings, slot: Slot) -> Policy:
        drafters = self.drafters(settings.drafter, slot, settings.prediction)
        self.controller = None
        if settings.draft_length is not None:
            costs = self._calibration.costs if self._calibration else None
            return FixedLength(drafters, settings.draft_length, costs=costs)
        temperature = settings.sampling.temperature
        memory = self.calibration.acceptance(f"{settings.rule}|{temperature:.1f}")
        self.controller = Controller(
            drafters, self.calibration.costs, memory, MAX_DRAFT_LENGTH, self.refusal
        )
        return self.controller

    def close(self) -> None:
        """Keep what was measured and free both models; safe to call twice."""
        if self._calibration is not None:
            self._calibration.save()
            self._calibration = None
        self.target.close()
        if self.draft is not None:
            self.draft.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
