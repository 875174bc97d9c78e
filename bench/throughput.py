"""How much more an endpoint says to several clients at once than to one.

    python bench/throughput.py -m MODEL.gguf [--streams 4] [--tokens 96] [--repeat 7]
        [--draft-length 0] [arguments of specchat serve]

One stream and several take turns; all answers of a turn are asked at once and differ. Prints one
JSON object: tokens per second of all streams together, from the first token to the last, as
medians, and the ratio of neighbouring turns with its range.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from serving import serve

TOPICS = ("rain", "bread", "bridges", "bees", "the moon", "chess", "salt", "tides")


def ask(url: str, number: int, fields: dict[str, Any]) -> list[float]:
    """When each chunk of one streamed answer came."""
    text = f"Write a long essay about {TOPICS[number % len(TOPICS)]}, part {number}."
    body = {"messages": [{"role": "user", "content": text}], "stream": True, **fields}
    times = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    times.append(time.monotonic())
    return times


def turn(url: str, first: int, streams: int, fields: dict[str, Any]) -> float:
    """Chunks per second: as many as tokens where each is a character at least."""
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda i: ask(url, first + i, fields), range(streams)))
    every = sorted(moment for times in answers for moment in times)
    return (len(every) - 1) / (every[-1] - every[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--draft-length", type=int, default=None, help="0 is plain decoding")
    args, serving = parser.parse_known_args()
    fields: dict[str, Any] = {"max_tokens": args.tokens, "temperature": 0.8}
    if args.draft_length is not None:
        fields["specchat"] = {"draft_length": args.draft_length}
    alone, together = [], []
    with serve([*serving, "--parallel", str(args.streams)]) as (url, _):
        turn(url, 0, args.streams, fields)  # warms up
        for number in range(1, args.repeat + 1):
            alone.append(turn(url, 100 * number, 1, fields))
            together.append(turn(url, 100 * number + 1, args.streams, fields))
    ratios = [b / a for a, b in zip(alone, together, strict=True)]
    result = {
        "one stream, tok/s": round(statistics.median(alone), 1),
        f"{args.streams} streams, tok/s": round(statistics.median(together), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in sorted(ratios)],
    }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
