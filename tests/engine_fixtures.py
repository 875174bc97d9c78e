"""What the engine's tests share: a loaded SmolLM2, tiny models, and ways to run the loop."""

from dataclasses import dataclass, field

import llama_cpp.llama_cpp as C
import pytest
from tiny_recurrent import write_lfm2, write_mamba

from specchat.engine.batch import drive
from specchat.engine.drafters import Draft, ModelDrafter
from specchat.engine.events import Finish, Prefill, Round, Token
from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.engine.loop import Generation, Request
from specchat.engine.model import Evaluate
from specchat.engine.policy import FixedLength
from specchat.engine.rules import Exact
from specchat.engine.sampling import Chain, SamplingParams, one_hot

GREEDY = SamplingParams(temperature=0.0)
# Two logits closer than this may swap places between batch sizes: on a CPU with AVX2 alone,
# calls of 1 and of 2 tokens moved SmolLM2's five best logits by up to 0.49 against each other.
NEAR_TIE = 0.5
CONTEXT = 512


@pytest.fixture(scope="session")
def chat_model(smollm2):
    """SmolLM2 with three sequences of 512 tokens: target and draft can share it.

    One thread, for llama.cpp's threads wait by spinning, which is slow on a busy machine.
    """
    with LlamaModel.load(smollm2, ModelOptions(n_ctx=CONTEXT, sequences=3, threads=1)) as model:
        yield model


@pytest.fixture(scope="session", params=["mamba", "lfm2"])
def recurrent_model(request, tmp_path_factory):
    """Tiny models that roll back by checkpoint (Mamba) and by snapshots (LFM2)."""
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    {"mamba": write_mamba, "lfm2": write_lfm2}[request.param](path)
    with LlamaModel.load(path, ModelOptions(n_ctx=128, sequences=3, threads=1)) as model:
        yield model


@pytest.fixture
def borrow():
    """Gives empty caches of a model, and takes them back after the test."""
    taken = []

    def new_cache(model):
        taken.append(model.new_cache())
        return taken[-1]

    yield new_cache
    for cache in taken:
        cache.model.abort(False)
        cache.model.release(cache)


def chat(model, text):
    """The token ids of a chat that asks `text`."""
    return model.tokenizer.tokenize(
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", parse_special=True
    )


class Script:
    """A drafter that proposes `tokens`, the continuation of a prompt, right or wrong."""

    name = "script"

    def __init__(self, tokens):
        self.tokens = list(tokens)
        self.start = 0

    def begin(self, prompt):
        self.start = len(prompt)
        return 0

    def catch_up(self, context):
        return
        yield

    def strength(self, context):
        return 1

    def propose(self, request):
        at = len(request.context) - self.start
        tokens = self.tokens[at : at + request.length]
        return Draft(tokens, [one_hot(t) for t in tokens], [1.0] * len(tokens))
        yield

    def rewind(self, length):
        pass


@dataclass
class Run:
    """The events of one answer, sorted."""

    generation: Generation
    tokens: list[Token] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def ids(self):
        return [token.id for token in self.tokens]

    @property
    def text(self):
        return "".join(token.text for token in self.tokens)

    @property
    def answer(self):
        """All ids that were emitted, those behind a stop string too."""
        return self.generation.context[self.generation.usage.prompt_tokens :]


def start(cache, prompt, *drafters, length=4, params=GREEDY, rule=None, vocabulary=None, **request):
    """A generation, not yet running."""
    model = cache.model
    asked = Request(prompt, Chain(params, model.n_vocab), rule or Exact(), **request)
    policy = FixedLength(drafters, length if drafters else 0)
    return Generation(asked, cache, policy, vocabulary or model.tokenizer)


def answer(cache, prompt, *drafters, **settings):
    """Run to the end."""
    run = Run(start(cache, prompt, *drafters, **settings))
    for event in drive(run.generation.run()):
        collect(run, event)
    return run


def collect(run, event):
    if isinstance(event, Token):
        run.tokens.append(event)
    elif isinstance(event, Round):
        run.rounds.append(event)
    elif isinstance(event, Prefill):
        run.prefills.append(event)
    else:
        run.finish = event


def finish(steps):
    """Run a drafter's generator to its value, answering its model calls."""
    try:
        item = next(steps)
        while True:
            item = steps.send(item.cache.model.evaluate([item])[0])
    except StopIteration as stop:
        return stop.value


def check_caches(run, *caches):
    """Caches hold a beginning of the context and nothing else, in llama.cpp too."""
    context = run.generation.context
    for cache in caches:
        assert cache.tokens == context[: len(cache.tokens)]
        assert len(cache.tokens) < len(context)
        last = C.llama_memory_seq_pos_max(cache.model._memory, cache.seq_id)
        assert last == len(cache.tokens) - 1


def margin(token):
    """How far the two best logits are apart, where `token` was asked with logprobs=2."""
    return token.alternatives[0].logprob - token.alternatives[1].logprob


def assert_same_greedy(plain, other, near_tie=NEAR_TIE):
    """Two greedy answers, the first with logprobs=2, agree up to the first near-tie.

    Returns that near-tie as (position, margin), None where they agree to the end.
    """
    for i, (token, other_id) in enumerate(zip(plain.tokens, other.answer, strict=False)):
        if token.id != other_id:
            assert margin(token) < near_tie, (
                f"at token {i} plain decoding said {token.id}, speculative {other_id}, "
                f"with a margin of {margin(token):.4f} between the two best logits"
            )
            return i, margin(token)
    assert len(plain.answer) == len(other.answer)
    return None


class CountingModel:
    """A real model that notes every call as [(cache, tokens, outputs), ...]."""

    def __init__(self, model):
        self.real = model
        self.calls = []

    def __getattr__(self, name):
        return getattr(self.real, name)

    def evaluate(self, requests):
        self.calls.append([(r.cache, list(r.tokens), r.outputs) for r in requests])
        return self.real.evaluate([Evaluate(r.cache.real, r.tokens, r.outputs) for r in requests])


class CountingCache:
    """A cache of a CountingModel."""

    def __init__(self, model, cache):
        self.model, self.real = model, cache

    @property
    def tokens(self):
        return self.real.tokens

    @property
    def seq_id(self):
        return self.real.seq_id

    @property
    def _memory(self):
        return self.real.model._memory

    def truncate(self, length):
        self.real.truncate(length)

    def mark(self):
        self.real.mark()


def self_draft(model, borrow):
    """A drafter that is the target's own model on another sequence."""
    return ModelDrafter(borrow(model), model.n_vocab)
