"""How long listing 500 models takes, when none was ever read and when all were.

    python bench/scan_models.py [--files 500] [--vocabularies 12] [--folder DIR]

Writes files with headers as large as real ones (vocabularies of 32,000 to 262,144 tokens,
merges, scores, 290 tensors); the weights are holes. They need up to 3 GiB in DIR (default: a
temporary folder) and are removed afterwards. Prints one JSON object; `from_disk` depends on
the disk, `never_read` does not: the system has the headers in memory by then.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from specchat.models.discovery import scan  # noqa: E402
from specchat.models.facts import FactsCache  # noqa: E402

# Tokens of Llama 2, SmolLM2, Llama 3, Mistral Small, Qwen and Gemma; those with BPE have merges.
SIZES = ((32_000, False), (49_152, True), (128_256, True), (131_072, True), (151_936, True),
         (262_144, False))  # fmt: skip
STRING, ARRAY, UINT32, FLOAT32, INT32 = 8, 9, 4, 6, 5


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key.encode()) + struct.pack("<I", kind) + value


def strings(rng: np.random.Generator, count: int, mean: int) -> bytes:
    lengths = rng.integers(1, 2 * mean, count)
    letters = rng.integers(97, 123, int(lengths.sum()), np.uint8).tobytes()
    parts, at = [struct.pack("<IQ", STRING, count)], 0
    for length in lengths:
        parts.append(text(letters[at : at + length]))
        at += length
    return b"".join(parts)


def tokenizer(seed: int) -> tuple[int, bytes]:
    """The fields of a vocabulary, and how many they are."""
    rng = np.random.default_rng(seed)
    tokens, merges = SIZES[seed % len(SIZES)]
    kinds = struct.pack("<IQ", INT32, tokens) + np.ones(tokens, np.int32).tobytes()
    fields = [
        field("tokenizer.ggml.model", STRING, text(b"gpt2" if merges else b"llama")),
        field("tokenizer.ggml.tokens", ARRAY, strings(rng, tokens, 7)),
        field("tokenizer.ggml.token_type", ARRAY, kinds),
    ]
    if merges:
        fields.append(field("tokenizer.ggml.merges", ARRAY, strings(rng, 2 * tokens, 9)))
    else:
        scores = struct.pack("<IQ", FLOAT32, tokens) + bytes(4 * tokens)
        fields.append(field("tokenizer.ggml.scores", ARRAY, scores))
    return len(fields), b"".join(fields)


def write(path: Path, number: int, count: int, fields: bytes) -> None:
    """A model of 290 tensors with a name of its own, so that no two files are alike."""
    name = f"model {number}".encode() + b" " * (number % 40)
    head = field("general.architecture", STRING, text(b"llama"))
    head += field("general.name", STRING, text(name))
    tensors, offset = [], 0
    for i in range(290):
        shape = struct.pack("<IQQ", 2, 4096, 1024)
        tensors.append(text(b"blk.%d.weight" % i) + shape + struct.pack("<IQ", 1, offset))
        offset += 4096 * 1024 * 2
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count + 2))
        file.write(head + fields + b"".join(tensors))
        file.truncate(file.tell() + 32 + offset)


def timed(folder: Path, cache: Path) -> dict[str, float]:
    start, cpu = time.perf_counter(), time.process_time()
    first = None
    usable = 0
    for found in scan([folder], cache=FactsCache(cache)):
        first = first or time.perf_counter() - start
        usable += found.facts is not None
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "first_after": round(first or 0.0, 3),
        "usable": usable,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--vocabularies", type=int, default=12)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary) / "models"
        folder.mkdir()
        kinds = [tokenizer(seed) for seed in range(args.vocabularies)]
        size = 0
        for number in range(args.files):
            count, fields = kinds[number % len(kinds)]
            size += len(fields)
            write(folder / f"model-{number:04d}.gguf", number, count, fields)
        cache = Path(temporary) / "headers.json"
        result = {
            "files": args.files,
            "vocabularies": args.vocabularies,
            "header_MiB": size >> 20,
            "from_disk": timed(folder, Path(temporary) / "none.json"),
            "never_read": timed(folder, cache),
            "read_before": timed(folder, cache),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
