"""The targets of the comparison, and whether a run reached them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from common import Spread
from real_shapes import REAL_SHAPES
from rounds import OURS, Results

DEFAULT, DEFAULT_Q4, ONE_B = "default", "default-q4_0", "1b-q4_0"
FAST, AVX2 = "ours, faster setting", "ours, AVX2"
LLAMA, IK_LLAMA, LLAMA_AVX2 = "llama.cpp", "ik_llama.cpp", "llama.cpp, AVX2"
WIDE = ("vLLM",)
"""Peers that do not compute with 4-bit weights."""
NOT_PEERS = (OURS, FAST, AVX2, LLAMA_AVX2)
DECODE_DEPTH = 128 + 64
"""Tokens of context in the middle of the decode test."""
CLIFF = 0.7
PEAKS = {"vnni": "VNNI", "amx": "AMX"}
"""Limit of the machine -> its title. Each one that was measured gets its own row: the operations a
second with 8-bit numbers."""
READING = "bandwidth"
EXACT_WORK = {"amx": 4, "vnni": 2}
FAST_WORK = {"amx": 2, "vnni": 1}
"""Limit -> how many products of bytes take the time of one product of weights and activations. The
few products that stay exact in the faster setting are not counted."""
TITLES = {DEFAULT: "default model", DEFAULT_Q4: "default model, Q4_0", ONE_B: "1B Q4_0"} | {
    name: f"{shape.title} Q4_K_M" for name, shape in REAL_SHAPES.items()
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    figure: str
    target: str
    measured: str
    reached: bool | None
    """None if it could not be measured."""

    def cells(self) -> tuple[str, str, str, str]:
        verdict = {True: "yes", False: "**no**", None: "not measured"}[self.reached]
        return self.figure, self.target, self.measured, verdict


def table(results: Results) -> list[Row]:
    """Every row for which something was measured."""
    rows: list[Row] = []
    for make in (
        decode_rows, prefill_rows, fast_rows, long_prompt_rows, batch_rows, attention_rows,
        start_rows, compile_rows, memory_rows, python_rows, growth_rows, avx2_rows, real_rows,
    ):  # fmt: skip
        rows += make(results)
    return rows


def markdown(rows: Sequence[Row]) -> str:
    head = ["| figure | to reach | measured | reached |", "|---|---|---|---|"]
    return "\n".join(head + [f"| {' | '.join(row.cells())} |" for row in rows])


STREAMS, CONTEXT = "step of streams ", "step at context "
"""The names of the points of a curve begin like this. A number follows."""


# --- ratios ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians, with the least and the greatest ratio of the rounds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        each = [a / b for a, b in zip(ours, theirs, strict=False)]
        return cls(Spread.of(ours).median / Spread.of(theirs).median, min(each), max(each))

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def percent(self) -> str:
        return f"{self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


Place = tuple[str, str, str]
"""Model, what, side."""


def values(results: Results, place: Place) -> list[float]:
    model, what, side = place
    return list(results.sides(model, what).get(side, []))


def versus(
    results: Results,
    figure: str,
    least: float,
    ours: Place,
    theirs: Place,
    *,
    note: str = "",
    beside: str = "",
) -> Iterator[Row]:
    """A row: `ours` should be at least `least` times `theirs`. beside: text after the speeds."""
    left, right = values(results, ours), values(results, theirs)
    if not left:
        return
    target = f"≥ {least:g} × {note or theirs[2]}"
    if not right:
        yield Row(figure, target, f"ours {Spread.of(left)} tok/s, no peer", None)
        return
    ratio = Ratio.of(left, right)
    text = f"{ratio}: {Spread.of(left).median:.4g} against {Spread.of(right).median:.4g} tok/s"
    text += beside
    yield Row(figure, target, text, ratio.value >= least)


def best_peer(results: Results, models: Sequence[str], what: str, *, wide: bool) -> Place | None:
    """The peer with the greatest median on any of these files."""
    found = [
        (Spread.of(each).median, (model, what, side))
        for model in models
        for side, each in results.sides(model, what).items()
        if side not in NOT_PEERS and (wide or side not in WIDE)
    ]
    return max(found)[1] if found else None


def files_of(model: str) -> tuple[str, ...]:
    return (DEFAULT, DEFAULT_Q4) if model == DEFAULT else (model,)


# --- rows -----------------------------------------------------------------------------------


def allowed(limits: Sequence[float], work: float) -> str:
    """The tokens a second that a limit allows. work: of one token, in the limit's unit."""
    return f"; the machine allows {Spread.of(limits).median / work:.4g}"


def gigabytes(results: Results, model: str) -> float:
    """Gigabytes that one token reads in the decode test."""
    sizes = results.facts[f"sizes {model}"]
    return float(sizes["weights"] + DECODE_DEPTH * sizes["kv_per_token"]) / 1e9


def products_allowed(results: Results, model: str, work: dict[str, int]) -> str:
    """Prompt tokens a second that the machine allows: by tiles if it has them, else by vectors."""
    for name, times in work.items():
        if limits := values(results, (model, "prefill 512, limits", name)):
            return allowed(limits, times * results.facts[f"sizes {model}"]["operations"] / 1e9)
    return ""


def decode_rows(results: Results) -> Iterator[Row]:
    what, figure = "decode", "single-stream decode"
    yield from read_share(results, f"{figure}, {TITLES[ONE_B]}", ONE_B, 0.9)
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


def fast_rows(results: Results) -> Iterator[Row]:
    """Rows of the faster setting, with its KL. If it was not measured: the default's share."""
    what = "prefill 512"
    for model in (ONE_B, DEFAULT):
        fast, exact = (model, what, FAST), (model, what, OURS)
        figure = f"prefill 512, {TITLES[model]}"
        if values(results, fast):
            best = best_peer(results, files_of(model), what, wide=True)
            peer = best or (model, what, "")
            note = "the best peer of any width" + (f" ({best[2]})" if best else "")
            named = f"{figure}, faster setting"
            bound = products_allowed(results, model, FAST_WORK)
            rows = [*versus(results, named, 1.5, fast, peer, note=note, beside=bound)]
            rows += _peak_shares(results, named, fast)
            beside = kl_text(results.facts.get(f"kl {model}"))
            yield from (replace(row, measured=row.measured + beside) for row in rows)
        elif values(results, exact):
            row = "≥ 1.5 × the best peer of any width"
            yield Row(f"{figure}, faster setting", row, "no such setting", None)
            yield from _peak_shares(results, f"{figure}, default precision", exact)


def kl_text(kl: Mapping[str, float] | float | None) -> str:
    """The KL of the faster setting, for the end of a cell. Files of old runs have one number."""
    if kl is None:
        return ""
    if isinstance(kl, float):
        return f"; KL {kl:.1e}"
    return f"; KL {kl['behind']:.1e} behind a prompt, {kl['inside']:.1e} inside"


def _peak_shares(results: Results, figure: str, place: Place) -> Iterator[Row]:
    model, what, _ = place
    for name, title in PEAKS.items():
        limits = values(results, (model, f"{what}, limits", name))
        if not limits:
            continue
        work = results.facts[f"sizes {model}"]["operations"] / 1e9
        share = Ratio.of([rate * work for rate in values(results, place)], limits)
        text = f"{share.percent} of {Spread.of(limits)} GOPS"
        yield Row(figure, f"≥ 50 % of {title} peak over the pass", text, share.value >= 0.5)


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
            "cold start to first token, default model", "≤ 1.5 × llama.cpp", text,
            ratio.value <= 1.5,
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


def avx2_rows(results: Results) -> Iterator[Row]:
    for model in (ONE_B, DEFAULT):
        for what in ("decode", "prefill 512"):
            ours, theirs = (model, what, AVX2), (model, what, LLAMA_AVX2)
            figure = f"{what}, AVX2 kernels, {TITLES[model]}"
            yield from versus(
                results, figure, 1.0, ours, theirs, note="llama.cpp built without AVX-512"
            )


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
                fast = f"{figure}, faster setting: 8-bit activations, as peers have"
                yield from versus(results, fast, 1.0, (model, what, FAST), peer, note=note)
        if shape.is_dense:
            yield from read_share(results, f"decode, {TITLES[model]}", model, 0.85)


def read_share(results: Results, figure: str, model: str, least: float) -> Iterator[Row]:
    """A row: decoding should reach this part of what the read bandwidth allows."""
    found = values(results, (model, "decode", OURS))
    limits = values(results, (model, "decode, limits", READING))
    if found and limits:
        read = gigabytes(results, model)
        share = Ratio.of([rate * read for rate in found], limits)
        text = f"{share.percent} of {Spread.of(limits)} GB/s, {read * 1e3:.0f} MB a token"
        target = f"≥ {100 * least:.0f} % of read bandwidth ÷ bytes a token"
        yield Row(figure, target, text, share.value >= least)


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
