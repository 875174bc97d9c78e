"""Does a pair fit into memory, and what to change where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from specchat.cli.tables import size, table
from specchat.engine.header import Header
from specchat.engine.memory import MemoryNeed, default_context, memory_need

if TYPE_CHECKING:
    from specchat.engine.llama import ModelOptions

_TIGHT = 0.9  # of the free memory; what a guess and other programs may take besides
_Q4_K_M_BITS = 4.9  # per weight: Llama 3 8B takes 4.58 GiB (llama.cpp, tools/quantize)
_STEP = 256  # tokens of context
_ENOUGH = ", then it fits"


@dataclass(frozen=True, slots=True)
class Fit:
    """A target, its draft if any, how they would be loaded, and the bytes that are free."""

    target: Header
    draft: Header | None
    options: ModelOptions
    free: int

    @property
    def context(self) -> int:
        return default_context(self.target, self.options)

    @property
    def target_need(self) -> MemoryNeed:
        """With its LoRA adapters, which stay in memory as they are in their files."""
        adapters = [Path(path) for path, _scale in self.options.lora]
        extra = sum(path.stat().st_size for path in adapters if path.is_file())
        return memory_need(self.target, self.options) + MemoryNeed(extra, 0, 0, 0)

    @property
    def draft_need(self) -> MemoryNeed:
        if self.draft is None:
            return MemoryNeed(0, 0, 0, 0)
        return memory_need(self.draft, self.options, self.context)

    @property
    def need(self) -> MemoryNeed:
        return self.target_need + self.draft_need

    @property
    def fits(self) -> bool:
        return self.need.total <= self.free

    def advice(self) -> list[str]:
        """What to change, each with what it brings; nothing where it fits."""
        if self.fits:
            return []
        lines = list(self._changes())
        if not any(line.endswith(_ENOUGH) for line in lines):
            lines.append("a target with fewer parameters, or a file of fewer bits")
        return lines

    def _changes(self) -> Iterator[str]:
        if self.draft is not None:
            yield self._with(replace(self, draft=None), "without the draft (-d none)")
        tokens = self._longest_context()
        if tokens:
            smaller = replace(self, options=replace(self.options, n_ctx=tokens))
            yield self._with(smaller, f"a context of {tokens:,} tokens (--ctx {tokens})")
        if self.need.kv and self.options.flash_attention != "off":
            options = replace(self.options, type_k="q8_0", type_v="q8_0")
            smaller = replace(self, options=options)
            if smaller.need.kv < 0.9 * self.need.kv:
                yield self._with(smaller, "a smaller KV cache (--type-k q8_0 --type-v q8_0)")
        weights = self.target.weight_bytes
        small = int(self.target.parameters * _Q4_K_M_BITS / 8)
        if 0 < small < 0.8 * weights:
            saved = weights - small
            what = "the target as a Q4_K_M file"
            yield f"{what}: saves about {size(saved)}{self._verdict(saved)}"

    def _with(self, other: Fit, what: str) -> str:
        saved = self.need.total - other.need.total
        return f"{what}: saves {size(saved)}{self._verdict(saved)}"

    def _verdict(self, saved: int) -> str:
        enough = self.need.total - saved <= self.free
        return _ENOUGH if enough else ", not enough alone"

    def _longest_context(self) -> int:
        """The most tokens (a multiple of 256) with which it fits; 0 if none does."""
        least, most = 0, self.context // _STEP
        while least < most:
            middle = (least + most + 1) // 2
            options = replace(self.options, n_ctx=middle * _STEP)
            if replace(self, options=options).fits:
                least = middle
            else:
                most = middle - 1
        return least * _STEP


def report(out: Console, fit: Fit, gpu: bool) -> bool:
    """Print the estimate; returns False where it certainly does not fit. `gpu` says that a GPU
    may hold a part, of which nothing is known here.
    """
    rows = table("memory", "weights>", "KV cache>", "state>", "buffers (roughly)>", "together>")
    needs = [("target", fit.target_need), ("draft", fit.draft_need), ("both", fit.need)]
    for name, need in needs if fit.draft is not None else needs[:1]:
        parts = (need.weights, need.kv, need.state, need.buffers, need.total)
        rows.add_row(name, *(size(part) if part else "0" for part in parts))
    out.print(rows)
    options, total = fit.options, fit.need.total
    verdict = "fits" if total <= _TIGHT * fit.free else "fits, but barely"
    if not fit.fits:
        verdict = "may fit, if a GPU holds a part of it" if gpu else "DOES NOT FIT"
    out.print(
        f"Memory: {size(total)} of {size(fit.free)} free, with a context of {fit.context:,} "
        f"tokens and a KV cache of {options.type_k} and {options.type_v}: {verdict}"
    )
    headers = [h for h in (fit.target, fit.draft) if h is not None]
    if any(h.get("attention.sliding_window") for h in headers):
        out.print(
            "  Layers with a sliding window keep the whole context, so that rejected tokens "
            "can be taken back."
        )
    if not fit.fits:
        paged = fit.need.total - fit.need.weights <= fit.free  # weights can be read again
        if options.mmap and not options.mlock and paged:
            out.print("  It may load all the same, and read weights from disk for every token.")
        for line in fit.advice():
            out.print(f"  Try {line}.")
    return fit.fits or gpu
