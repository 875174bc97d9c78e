"""Measuring calls on real models: what is timed, and that the cache does not notice."""

from __future__ import annotations

import numpy as np
from engine_fixtures import chat

from specchat.engine.batch import drive
from specchat.engine.controller import Controller
from specchat.engine.costs import Curve, PairCosts, measure
from specchat.engine.drafters import LookupDrafter
from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import ModelOptions
from specchat.engine.messages import Message
from specchat.engine.model import Evaluate
from specchat.engine.sampling import SamplingParams


def test_every_count_is_timed_and_the_cache_left_alone(recurrent_model, borrow) -> None:
    """Also where a state must be restored instead of cut."""
    cache, other = borrow(recurrent_model), borrow(recurrent_model)
    prompt = [5, 9, 40, 41, 42, 43, 44]
    for c in (cache, other):
        recurrent_model.evaluate([Evaluate(c, prompt, 1)])
    curve = Curve()
    assert list(drive(measure(cache, curve, budget=5.0, lengths=(1, 2, 4)))) == []
    assert set(curve.points[len(prompt)]) == {1, 2, 4}
    assert cache.tokens == prompt
    rows = [recurrent_model.evaluate([Evaluate(c, [7], 1)])[0][0].copy() for c in (cache, other)]
    assert np.allclose(rows[0], rows[1], atol=1e-4)


def test_a_small_budget_still_times_one_call(chat_model, borrow) -> None:
    curve = Curve()
    list(drive(measure(borrow(chat_model), curve, budget=0.0)))
    assert set(curve.points[0]) == {1}


def test_a_long_prompt_is_measured_at_its_own_depth(smollm2) -> None:
    """The curve at depth is measured at depth, and used there."""
    options = ModelOptions(n_ctx=2048, threads=1)
    with Engine.load(smollm2, options=options) as engine:
        text = "The sea was calm and the boat was small. " * 120
        settings = Settings(sampling=SamplingParams(temperature=0.0), max_tokens=4)
        prompt = len(engine.template.tokens([Message("user", text)]))
        assert prompt > 1000
        list(engine.chat([Message("user", text)], settings))
        curve = engine.calibration.costs.target
        assert prompt - 1 in curve.points
        assert 1 in curve.points[prompt - 1]


def test_a_short_prompt_costs_no_measurement(chat_model) -> None:
    costs = PairCosts()
    controller = Controller([LookupDrafter()], costs, {})
    costs.target.add(0, 1, 0.01)
    controller.begin(chat(chat_model, "hi"))
    cache = chat_model.new_cache()
    assert list(controller.calibrate(cache)) == []
    chat_model.release(cache)


def test_a_spike_does_not_make_one_count_dearer_than_a_larger_one() -> None:
    times = {1: 0.010, 2: 0.050, 3: 0.016, 5: 0.020}
    curve = Curve({0: {n: [seconds] for n, seconds in times.items()}})
    assert np.allclose(curve.table(np.arange(1, 6), 0), [0.010, 0.016, 0.016, 0.018, 0.020])
