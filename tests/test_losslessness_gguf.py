"""`exact` and `match` change nothing on real models in llama.cpp either, caches, rollback and
all; see test_losslessness.py.
"""

from contextlib import ExitStack

import numpy as np
import pytest
from losslessness import (
    PENALTIES,
    RULES,
    RUNS,
    THRESHOLD,
    AcceptAlways,
    AcceptWithP,
    ResidualIsP,
    class_name,
    joint,
    lossless_p_value,
    params,
    sample,
)
from tiny_llama import write_tiny_llama

from specchat.engine.drafters import LookupDrafter, ModelDrafter
from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.engine.policy import FixedLength
from specchat.engine.rules import Exact

# Candidates are few, so that the joint distribution is small; no answer may end early.
CHAINS = {
    "top-k": params(top_k=4, logit_bias={2: -np.inf}),
    "all": params(
        temperature=1.3,
        top_k=6,
        top_p=0.9,
        min_p=0.02,
        logit_bias={2: -np.inf, 100: 2},
        **PENALTIES,
    ),
}
PROMPT = [1, 100, 101, 100, 50]
GRID = [
    ("exact", "top-k", "equal", 4),
    ("exact", "top-k", "near", 1),
    ("exact", "top-k", "terrible", 2),
    ("exact", "all", "equal", 1),
    ("exact", "all", "near", 2),
    ("exact", "all", "terrible", 4),
    ("match", "top-k", "near", 2),
    ("match", "all", "near", 4),
]


@pytest.fixture(scope="module")
def gguf_caches(tmp_path_factory):
    """The caches of a target and of its drafts, each a GGUF loaded by llama.cpp."""
    folder = tmp_path_factory.mktemp("gguf")
    with ExitStack() as stack:

        def load(name, **weights):
            write_tiny_llama(folder / name, **weights)
            options = ModelOptions(n_ctx=128, threads=1, threads_batch=1)
            return stack.enter_context(LlamaModel.load(folder / name, options)).new_cache()

        yield {
            "target": load("target.gguf"),
            "equal": load("equal.gguf"),
            "near": load("near.gguf", noise=0.1),
            "terrible": load("terrible.gguf", seed=5),
        }


def compare_gguf(caches, drafter, chain, rule, length, prompt=PROMPT):
    target, sampling = caches["target"], CHAINS[chain]
    vocabulary, policy = target.model.tokenizer, FixedLength([drafter], length)
    counts = sample(target, policy, vocabulary, prompt, sampling, rule, RUNS)
    return lossless_p_value(counts, joint(target, prompt, sampling))


def gguf_drafter(caches, draft):
    return ModelDrafter(caches[draft], caches["target"].model.n_vocab)


@pytest.mark.parametrize(("rule", "chain", "draft", "length"), GRID)
def test_gguf(gguf_caches, rule, chain, draft, length):
    drafter = gguf_drafter(gguf_caches, draft)
    assert compare_gguf(gguf_caches, drafter, chain, RULES[rule], length) > THRESHOLD


def test_gguf_lookup(gguf_caches):
    prompt = [*PROMPT, 100, 101]
    assert compare_gguf(gguf_caches, LookupDrafter(), "all", Exact(), 3, prompt) > THRESHOLD


@pytest.mark.parametrize("rule", [AcceptAlways(), AcceptWithP(), ResidualIsP()], ids=class_name)
def test_gguf_shows_a_broken_rule(gguf_caches, rule):
    drafter = gguf_drafter(gguf_caches, "near")
    assert compare_gguf(gguf_caches, drafter, "top-k", rule, 2) < THRESHOLD
