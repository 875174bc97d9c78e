"""What is kept of a pair between runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specchat.engine import calibration
from specchat.engine.acceptance import Acceptance
from specchat.engine.calibration import Calibration
from specchat.engine.controller import _model_prior
from specchat.engine.engine import Engine
from specchat.engine.llama import ModelOptions


@dataclass
class File:
    """All a Calibration asks of a model before it measures: where it is, how it is loaded."""

    path: Path
    options: ModelOptions


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.setattr(calibration, "folder", lambda: tmp_path / "cache")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"12345")
    return File(path, ModelOptions(threads=2))


def filled(target: File) -> Calibration:
    kept = Calibration(target, None, 16)
    kept.costs.target.add(0, 1, 0.01)
    kept.costs.target.add(0, 5, 0.02)
    kept.costs.overhead = 0.0005
    kept.acceptance("exact|0.8")["draft"] = Acceptance(_model_prior, 16)
    kept.acceptance("exact|0.8")["draft"].observe([0.9] * 3, [0.1, 0.2, 0.1])
    return kept


def test_curves_and_acceptance_survive(target: File) -> None:
    before = filled(target)
    before.save()
    after = Calibration(target, None, 16)
    assert after.costs.target.seconds(5, 0) == pytest.approx(0.02)
    assert after.costs.overhead == pytest.approx(0.0005)
    chance = after.acceptance("exact|0.8")["draft"].chance(0.9)
    assert chance < Acceptance(_model_prior, 16).chance(0.9) - 0.1


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 1}',
        b'{"version": 999, "future": true}',
        b'{"version":1,"target":{"x":{}},"draft":{},"overhead":1,"acceptance":{}}',
        b'{"version":1,"target":{},"draft":{},"overhead":1,"acceptance":{"k":{"draft":{}}}}',
        b"\xff\xfe\x00",
    ],
)
def test_a_bad_file_means_measuring_anew(target: File, damage: bytes) -> None:
    kept = filled(target)
    kept.save()
    kept.path.write_bytes(damage)
    fresh = Calibration(target, None, 16)
    assert not fresh.costs.target
    assert fresh.memory == {}
    fresh.save()
    assert json.loads(fresh.path.read_text())["version"] == calibration.VERSION


def test_another_file_or_setting_has_its_own_measurements(target: File, tmp_path: Path) -> None:
    paths = {Calibration(target, None, 16).path}
    paths.add(Calibration(File(target.path, replace(target.options, threads=1)), None, 16).path)
    paths.add(Calibration(target, target, 16).path)
    target.path.write_bytes(b"123456")
    paths.add(Calibration(target, None, 16).path)
    assert len(paths) == 4
    bigger = File(target.path, replace(target.options, n_ctx=4096))
    assert Calibration(bigger, None, 16).path in paths  # the curve does not depend on it


def test_a_cache_that_cannot_be_written_is_no_error(
    target: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setattr(calibration, "folder", lambda: blocked / "cache")
    filled(target).save()


def test_an_engine_measures_anew_what_it_cannot_read(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "folder", lambda: tmp_path / "cache")
    for damage in (None, b"{", b'{"version": 999}'):
        with Engine.load(smollm2, options=ModelOptions(n_ctx=128, threads=1)) as engine:
            path = engine_path(engine)
            if damage is not None:
                path.write_bytes(damage)
            assert engine.calibration.costs.target.seconds(1, 0) > 0
        kept = json.loads(path.read_text())  # written when the engine closed
        assert kept["version"] == calibration.VERSION
        assert kept["target"]["0"]["1"]


def engine_path(engine: Engine) -> Path:
    return Calibration(engine.target, engine.draft, 16).path
