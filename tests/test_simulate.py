"""`specchat simulate` prints what the loop really counted, beside the formula."""

import argparse
import json

import pytest

from specchat.cli.simulate import add_parser
from specchat.engine.rules import make_rule
from specchat.engine.synthetic import align, predict, random_table, simulate
from specchat.errors import BadRequestError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["simulate", *arguments])
    code: int = args.run(args)
    return code


def document(capsys, *arguments):
    assert run("--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_default_table(capsys):
    assert run() == 0
    out = capsys.readouterr().out
    assert "500 target calls for 500 tokens, 1.00 tok/call" in out
    assert "typical, tau 0.5 (lossy)" in out
    assert "specchat bench" in out
    assert out.splitlines()[:2] == [
        "A draft guesses the next letters and one target call checks them all: every",
        "accepted letter saves a call. Alignment: chance to guess the target's favourite.",
    ]
    rows = [words for line in out.splitlines() if len(words := line.split()) == 8][1:]
    assert [(r[0], r[1]) for r in rows] == [(a, k) for a in ("0.60", "0.75", "0.90") for k in "246"]
    for row in rows:
        assert float(row[4]) == pytest.approx(500 / int(row[2]), abs=0.005)
        assert float(row[6].removesuffix("x")) == float(row[4])
        assert float(row[5]) == pytest.approx(float(row[4]), rel=0.15)
    assert all(len(line) <= 82 for line in out.splitlines())


@pytest.mark.parametrize("rule", ["exact", "match"])
def test_lossless_rules_are_called_so(capsys, rule):
    assert run("--rule", rule, "--tokens", "20") == 0
    out = capsys.readouterr().out
    assert f"Rule: {rule} (lossless)" in out
    assert "typical is lossy" not in out


@pytest.mark.parametrize("rule", ["exact", "match", "typical"])
def test_json_numbers_come_from_the_loop(capsys, rule):
    got = document(capsys, "--rule", rule, "--tokens", "300", "--seed", "5")
    assert (got["rule"], got["tokens"], got["seed"]) == (rule, 300, 5)
    assert got["lossless"] == (rule != "typical")
    assert got["tau"] == (0.5 if rule == "typical" else None)
    assert got["baseline_target_calls"] == 300
    assert len(got["lines"]) == 9
    target = random_table(5)
    for line in got["lines"]:
        draft, length = align(target, line["alignment"]), line["draft_length"]
        *_, finish = simulate(target, draft, make_rule(rule), length, 300, 5)
        usage = finish.usage
        assert line["target_calls"] == usage.target_calls
        assert line["measured"] == {
            "acceptance_rate": usage.accepted_tokens / usage.drafted_tokens,
            "tokens_per_call": 300 / usage.target_calls,
            "speedup": 300 / usage.target_calls,
        }
        prediction = predict(make_rule(rule), target, draft, length)
        assert line["predicted"]["tokens_per_call"] == prediction.tokens_per_call
        assert line["predicted"]["acceptance_rate"] == prediction.acceptance


def test_seed_and_tau_matter_and_repeat(capsys):
    first = document(capsys, "--seed", "3")
    assert document(capsys, "--seed", "3") == first
    assert document(capsys, "--seed", "4")["lines"] != first["lines"]
    strict = document(capsys, "--seed", "3", "--tau", "1")
    assert strict["tau"] == 1
    assert strict["lines"][0]["target_calls"] > first["lines"][0]["target_calls"]


def test_one_token_leaves_no_room_to_draft(capsys):
    assert run("--tokens", "1") == 0
    assert "1 target calls for 1 tokens" in capsys.readouterr().out
    assert document(capsys, "--tokens", "1")["lines"][0]["measured"]["acceptance_rate"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "--tokens must be between 1 and 100000, not 0."),
        (["--tokens", "100001"], "--tokens must be between 1 and 100000, not 100001."),
        (["--seed", "-1"], "--seed must not be negative: -1."),
        (["--tau", "0"], "tau must be above 0 and at most 1, not 0.0."),
        (["--tau", "nan"], "tau must be above 0 and at most 1, not nan."),
        (["--rule", "exact", "--tau", "0.5"], "rule exact has no threshold"),
    ],
)
def test_bad_values_are_named(arguments, message):
    with pytest.raises(BadRequestError) as caught:
        run(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("arguments", [["--rule", "lucky"], ["--tokens", "many"]])
def test_what_does_not_parse_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err
