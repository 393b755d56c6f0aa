"""Rows of the comparison that belong to a precision: what it should reach, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from common import Spread
from figure_rows import (
    DEFAULT,
    EXACT_WORK,
    FAST,
    FAST_PROMPTS,
    FAST_WORK,
    KL,
    ONE_B,
    PEAKS,
    READING,
    TITLES,
    WIDE,
    Ratio,
    Row,
    best_peer,
    files_of,
    peak_share,
    product_rates,
    products_allowed,
    values,
    versus,
)  # fmt: skip
from real_shapes import REAL_SHAPES
from rounds import OURS, Results

PREFILL, BATCH = "prefill 512", "32 streams"
BATCH_STREAMS, BATCH_DEPTH = 32, 64 + 16
"""Of the batch test: streams, and tokens of context in its middle."""
SAME = 0.98
"""Two measurements of one thing differ by so much."""


def precision_rows(results: Results) -> Iterator[Row]:
    yield from exact_rows(results)
    for model in (ONE_B, DEFAULT):
        yield from _against(results, model, PREFILL, FAST_PROMPTS, 1.15, wide=False)
        for what in (PREFILL, BATCH):
            yield from _against(results, model, what, FAST, 1.3, wide=False)
            yield from _against(results, model, what, FAST, 1.1, wide=True)
        yield from _peak_shares(results, model)
        for side in (FAST_PROMPTS, FAST):
            yield from versus(
                results, f"decode, {_word(side)}, {TITLES[model]}", SAME, (model, "decode", side),
                (model, "decode", OURS), note="exact",
            )  # fmt: skip
    for model in files_of(DEFAULT):
        yield from divergence_rows(results, model)


def exact_rows(results: Results) -> Iterator[Row]:
    """Two planes: against what the machine allows for them, and the best peer's batch."""
    for model in (ONE_B, DEFAULT, *REAL_SHAPES):
        if model not in REAL_SHAPES or REAL_SHAPES[model].is_dense:
            yield from _allowed_share(results, model, PREFILL, _prompt_seconds(results, model))
    for model in (ONE_B, DEFAULT):
        yield from _allowed_share(results, model, BATCH, _batch_seconds(results, model))
        yield from _against(results, model, BATCH, OURS, 1.0, wide=False)


def divergence_rows(results: Results, model: str) -> Iterator[Row]:
    """The KL of faster precisions and of each peer, on a model whose weights are not random."""
    costs: Mapping[str, Mapping[str, float]] = results.facts.get(KL + model) or {}
    own = costs.get(FAST)
    for side, cost in costs.items():
        figure = f"KL from exact, {TITLES[model]}, {_word(side)}"
        if side in (FAST, FAST_PROMPTS):
            yield Row(figure, "none: `auto` takes it up to 1e-4", _kl(cost), cost["behind"] <= 1e-4)
        elif own is not None:
            fewer = all(own[place] <= cost[place] for place in ("behind", "inside"))
            yield Row(figure, "≥ that of `fast`", f"{_kl(cost)}; `fast`: {_kl(own)}", fewer)


def _word(side: str) -> str:
    return side.removeprefix("ours, ")


def _kl(cost: Mapping[str, float]) -> str:
    return f"{cost['behind']:.1e} behind a prompt, {cost['inside']:.1e} inside"


def _against(
    results: Results, model: str, what: str, side: str, least: float, *, wide: bool
) -> Iterator[Row]:
    """A row: a precision against the best peer of 4 bits, or against the one of 8 bits."""
    if wide:
        found = [(model, what, name) for name in WIDE if values(results, (model, what, name))]
        peer, note = (found or [(model, what, WIDE[0])])[0], ""
    else:
        best = best_peer(results, files_of(model), what, wide=False)
        peer = best or (model, what, "the best 4-bit peer")
        note = f"the best 4-bit peer ({best[2]})" if best else ""
    work = EXACT_WORK if side == OURS else FAST_WORK
    beside = products_allowed(results, model, work) if what == PREFILL else ""
    named = "exact" if side == OURS else _word(side)
    figure = f"{what}, {named}, {TITLES[model]}"
    yield from versus(results, figure, least, (model, what, side), peer, note=note, beside=beside)


def _allowed_share(results: Results, model: str, what: str, seconds: list[float]) -> Iterator[Row]:
    """A row: exact speed as a part of what the machine allows. seconds: a token's least, by
    round."""
    found = values(results, (model, what, OURS))
    if found and seconds:
        most = [1 / each for each in seconds]
        share = Ratio.of(found, most)
        text = f"{share.percent} of {Spread.of(most)} tok/s"
        figure = f"{what}, exact, {TITLES[model]}"
        yield Row(figure, "≥ 85 % of what two planes allow", text, share.value >= 0.85)


def _prompt_seconds(results: Results, model: str) -> list[float]:
    """The least time of a prompt's token: its products."""
    rates = product_rates(results, model, PREFILL, EXACT_WORK)
    return [results.facts[f"sizes {model}"]["operations"] / 1e9 / rate for rate in rates]


def _batch_seconds(results: Results, model: str) -> list[float]:
    """The least time of a token among 32 streams: its products, or its part of what is read."""
    rates = product_rates(results, model, BATCH, EXACT_WORK)
    reads = values(results, (model, f"{BATCH}, limits", READING))
    if not rates or not reads:
        return []
    sizes = results.facts[f"sizes {model}"]
    work = sizes["operations"] + sizes["head_operations"]
    read = sizes["weights"] / BATCH_STREAMS + BATCH_DEPTH * sizes["kv_per_token"]
    return [
        max(work / rate, read / bandwidth) / 1e9
        for rate, bandwidth in zip(rates, reads, strict=False)
    ]


def _peak_shares(results: Results, model: str) -> Iterator[Row]:
    """One plane: operations of a whole prompt, as a part of the peak of 8-bit products."""
    for name, title in PEAKS.items():
        figure = f"{PREFILL}, fast, {TITLES[model]}"
        yield from peak_share(results, figure, (model, PREFILL, FAST), name, title)
