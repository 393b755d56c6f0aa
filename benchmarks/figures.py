"""The targets of the comparison, and whether a run reached them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from common import Spread
from figure_rows import (
    AVX2,
    CLIFF,
    DEFAULT,
    DEFAULT_Q4,
    EXACT_WORK,
    FAST_PROMPTS,
    IK_LLAMA,
    LLAMA,
    NARROW,
    ONE_B,
    READING,
    TITLES,
    Ratio,
    Row,
    allowed,
    best_peer,
    files_of,
    gigabytes,
    peak_share,
    products_allowed,
    read_share,
    values,
    versus,
)  # fmt: skip
from precision_figures import precision_rows
from real_shapes import REAL_SHAPES
from rounds import OURS, Results

MOST_READ = 0.92
"""The part of the read bandwidth that decoding of one stream should reach."""
SGEMM = "OpenBLAS sgemm"
PROMPT_ATTENTION = ("attention of a prompt of 512", "attention of a prompt of 2048")
STREAMS, CONTEXT = "step of streams ", "step at context "
"""The names of the points of a curve begin like this. A number follows."""


def table(results: Results) -> list[Row]:
    """Every row for which something was measured."""
    rows: list[Row] = []
    for make in (
        decode_rows, prefill_rows, precision_rows, long_prompt_rows, batch_rows,
        prompt_attention_rows, attention_rows,
        start_rows, compile_rows, memory_rows, python_rows, growth_rows, narrow_rows, real_rows,
    ):  # fmt: skip
        rows += make(results)
    return rows


def decode_rows(results: Results) -> Iterator[Row]:
    what, figure = "decode", "single-stream decode"
    for model in (ONE_B, DEFAULT):
        yield from read_share(results, f"{figure}, {TITLES[model]}", model, MOST_READ)
        best = best_peer(results, files_of(model), what, wide=True)
        if best:
            note = f"the best peer ({best[2]})"
            place = (model, what, OURS)
            yield from versus(results, f"{figure}, {TITLES[model]}", 1.0, place, best, note=note)
    for model, least, file, note in (
        (ONE_B, 1.8, ONE_B, ""),
        (DEFAULT, 2.5, DEFAULT, "llama.cpp on the same file"),
        (DEFAULT, 1.9, DEFAULT_Q4, "llama.cpp on its Q4_0"),
    ):
        limits = values(results, (model, f"{what}, limits", READING))
        beside = allowed(limits, gigabytes(results, model)) if limits else ""
        yield from versus(
            results, f"{figure}, {TITLES[model]}", least, (model, what, OURS),
            (file, what, LLAMA), note=note, beside=beside,
        )  # fmt: skip


def prefill_rows(results: Results) -> Iterator[Row]:
    for model in (ONE_B, DEFAULT):
        best = best_peer(results, files_of(model), "prefill 512", wide=False)
        peer = best or (model, "prefill 512", "the best 4-bit peer")
        note = f"the best 4-bit peer ({peer[2]})" if best else ""
        yield from versus(
            results, f"prefill 512, {TITLES[model]}", 1.2, (model, "prefill 512", OURS), peer,
            note=note, beside=products_allowed(results, model, EXACT_WORK),
        )  # fmt: skip


def long_prompt_rows(results: Results) -> Iterator[Row]:
    for model in (ONE_B, DEFAULT):
        short, long = (values(results, (model, f"prefill {n}", OURS)) for n in (512, 2048))
        if short and long:
            cost = Ratio.of(short, long)
            figure = f"prefill 2,048, {TITLES[model]}"
            yield Row(figure, "a token costs ≤ 1.25 × that of 512", str(cost), cost.value <= 1.25)


def batch_rows(results: Results) -> Iterator[Row]:
    what = "32 streams"
    for model in (ONE_B, DEFAULT):
        best = best_peer(results, files_of(model), what, wide=True)
        peer = best or (model, what, "the best peer")
        note = f"the best peer ({peer[2]})" if best else ""
        figure = f"decode of 32 streams, {TITLES[model]}"
        yield from versus(results, figure, 2.0, (model, what, OURS), peer, note=note)


def prompt_attention_rows(results: Results) -> Iterator[Row]:
    """Attention of prompts in float32, against plain products of float32 on as many threads."""
    for model in (ONE_B, DEFAULT):
        for what in PROMPT_ATTENTION:
            place = (model, f"{what}, GMAC/s")
            ours, plain = (values(results, (*place, side)) for side in (OURS, SGEMM))
            if ours and plain:
                share, figure = Ratio.of(ours, plain), f"{what}, {TITLES[model]}"
                text = f"{share.percent} of {Spread.of(plain)} GMAC/s"
                yield Row(figure, f"≥ 80 % of {SGEMM}", text, share.value >= 0.8)


def attention_rows(results: Results) -> Iterator[Row]:
    """From the times of whole steps: a longer context adds only the reading of keys and values."""
    for model in (ONE_B, DEFAULT):
        steps = curve(results, model, CONTEXT)
        limits = values(results, (model, "contexts, limits", "bandwidth"))
        if not steps or not limits:
            continue
        shallow, deepest = min(steps), max(steps)
        kv = results.facts[f"sizes {model}"]["kv_per_token"]
        for depth in sorted(d for d in steps if d >= 2000 and d in (2048, deepest)):
            added = (depth - shallow) * kv / 1e9
            found = [
                added / max(a - b, 1e-9) for a, b in zip(steps[depth], steps[shallow], strict=False)
            ]
            share = Ratio.of(found, limits)
            text = f"{share.percent} of {Spread.of(limits)} GB/s"
            figure = f"attention in decode at context {depth}, {TITLES[model]}"
            row = "≥ 80 % of read bandwidth over the KV bytes"
            yield Row(figure, row, text, share.value >= 0.8)


def start_rows(results: Results) -> Iterator[Row]:
    ours, theirs = (values(results, (DEFAULT, "cold start", side)) for side in (OURS, LLAMA))
    if ours and theirs:
        ratio = Ratio.of(ours, theirs)
        text = f"{ratio}: {Spread.of(ours)} s against {Spread.of(theirs)} s"
        yield Row(
            "cold start to first token, default model", "≤ 1.2 × llama.cpp", text,
            ratio.value <= 1.2,
        )  # fmt: skip


def compile_rows(results: Results) -> Iterator[Row]:
    if first := values(results, (DEFAULT, "first start", OURS)):
        spread = Spread.of(first)
        note = f"{spread} s to the first byte, all included"
        yield Row("first compile, default model", "≤ 20 s", note, spread.median <= 20)
    if first and (second := values(results, (DEFAULT, "first start, other sizes", OURS))):
        ratio = Ratio.of(second, first)
        note = f"{ratio} times the first: {Spread.of(second)} s; "
        new = results.facts["libraries for other sizes"]
        note += "nothing compiled" if new == 0 else f"{new} library compiled"
        row = "a second model of other sizes needs no more"
        yield Row("first compile, other sizes", row, note, new == 0 or ratio.high <= 1.0)


def memory_rows(results: Results) -> Iterator[Row]:
    if peaks := values(results, (ONE_B, "peak memory", OURS)):
        file, kv = results.facts[f"sizes {ONE_B}"]["file"], results.facts["kv served"]
        most = (1.25 * file + kv) / 1e6
        spread = Spread.of([peak / 1e6 for peak in peaks])
        text = f"{spread} MB; the bound is {most:.0f} MB, {kv / 1e6:.0f} of them KV"
        row = "≤ 1.25 × file + KV cache"
        yield Row("peak memory serving 1B Q4_0, 32 streams", row, text, spread.median <= most)


def python_rows(results: Results) -> Iterator[Row]:
    for model in (ONE_B, DEFAULT):
        if shares := values(results, (model, "Python share", OURS)):
            spread = Spread.of(shares)
            text = f"{spread.median:.1%} ({spread.low:.1%} to {spread.high:.1%})"
            figure = f"step time lost to Python, one stream, {TITLES[model]}"
            yield Row(figure, "≤ 3 %", text, spread.median <= 0.03)


def growth_rows(results: Results) -> Iterator[Row]:
    for model in (ONE_B, DEFAULT):
        for name, prefix in (("batch", STREAMS), ("context", CONTEXT)):
            points = rates(results, model, prefix)
            if len(points) > 2:
                share, where = worst_point(points)
                text = f"lowest {share:.0%} of the trend, at {where}"
                row = "no point below 70 % of its neighbours' trend"
                figure = f"tok/s against {name}, {TITLES[model]}"
                yield Row(figure, row, text, share >= CLIFF)


def narrow_rows(results: Results) -> Iterator[Row]:
    """Kernels without AVX-512. What AVX2 multiplies are numbers of 16 bits, so its peak is that."""
    for name, (ours, theirs) in NARROW.items():
        note = f"llama.cpp built for {name}"
        for model, what in itertools.product((ONE_B, DEFAULT), ("decode", "prefill 512")):
            figure = f"{what}, {name} kernels, {TITLES[model]}"
            sides = (model, what, ours), (model, what, theirs)
            yield from versus(results, figure, 1.0, *sides, note=note)
            if ours == AVX2 and what != "decode":
                yield from peak_share(results, figure, sides[0], "avx2", "`vpmaddwd`")


def real_rows(results: Results) -> Iterator[Row]:
    """Models of real shapes: as fast as the faster of llama.cpp and its fork on the same file."""
    for model, shape in REAL_SHAPES.items():
        for what in ("decode", "prefill 512"):
            best = best_peer(results, (model,), what, wide=False)
            peer = best or (model, what, f"the faster of {LLAMA} and {IK_LLAMA}")
            note = f"the faster peer ({peer[2]})" if best else ""
            figure = f"{what}, {TITLES[model]}"
            yield from versus(results, figure, 1.0, (model, what, OURS), peer, note=note)
            if what != "decode":
                fast = f"{figure}, fast-prompts: 8-bit activations, as peers have"
                yield from versus(results, fast, 1.0, (model, what, FAST_PROMPTS), peer, note=note)
        if shape.is_dense:
            yield from read_share(results, f"decode, {TITLES[model]}", model, MOST_READ)


def curve(results: Results, model: str, prefix: str) -> dict[int, list[float]]:
    """Our samples by the number at the end of their names, in order."""
    found = {
        int(what.removeprefix(prefix)): list(sides[OURS])
        for what, sides in results.samples.get(model, {}).items()
        if what.startswith(prefix) and sides.get(OURS)
    }
    return dict(sorted(found.items()))


def rates(results: Results, model: str, prefix: str) -> dict[int, float]:
    """Tokens a second of all streams at each point of a curve. Points of 0 seconds are left out."""
    medians = {n: Spread.of(each).median for n, each in curve(results, model, prefix).items()}
    return {n: (n if prefix == STREAMS else 1) / s for n, s in medians.items() if s > 0}


def worst_point(points: dict[int, float]) -> tuple[float, int]:
    """The point that is lowest below the line between its neighbours: its share of the line's
    value, and its number. The line is straight in logarithms of both axes."""
    places = sorted(points)
    shares = []
    for before, here, after in zip(places, places[1:], places[2:], strict=False):
        weight = math.log(here / before) / math.log(after / before)
        trend = points[before] ** (1 - weight) * points[after] ** weight
        shares.append((points[here] / trend, here))
    return min(shares)
