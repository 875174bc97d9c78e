"""What `prediction` (Predicted Outputs) brings when code is edited.

    python bench/prediction.py -m MODEL.gguf [--tokens 200] [--repeat 3]
        [arguments of specchat serve]

Every edit is asked three ways in turn: plain decoding, as usual, and with the code before the
edit as prediction; at temperature 0, so all three say the same, near-ties aside. Prints one
JSON object: tokens per second relative to plain, medians with ranges, and how much of the
prediction was accepted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import httpx
from serving import serve

from specchat.bench.prompts import PROMPTS

PLAIN = {"specchat": {"draft_length": 0}}


def ask(url: str, prompt: str, tokens: int, more: dict[str, Any]) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
            "temperature": 0, "seed": 1, **more}  # fmt: skip
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    answer.raise_for_status()
    return dict(answer.json())


def speed(answer: dict[str, Any]) -> float:
    return float(answer["timings"]["predicted_per_second"])


def summary(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    args, serving = parser.parse_known_args()
    result = {}
    with serve([*serving, "--parallel", "1"]) as (url, _):
        for prompt in PROMPTS["code edit"]:
            instruction, code = prompt.split("\n\n", 1)
            predicted = {"prediction": {"type": "content", "content": code}}
            ask(url, prompt, 8, {})  # the prompt is read once
            usual, helped, details = [], [], {}
            for _ in range(args.repeat):
                plain = speed(ask(url, prompt, args.tokens, PLAIN))
                usual.append(speed(ask(url, prompt, args.tokens, {})) / plain)
                answer = ask(url, prompt, args.tokens, predicted)
                helped.append(speed(answer) / plain)
                details = answer["usage"]["completion_tokens_details"]
            result[instruction] = {
                "as usual": summary(usual),
                "with prediction": summary(helped),
                "accepted": details["accepted_prediction_tokens"],
                "rejected": details["rejected_prediction_tokens"],
            }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
