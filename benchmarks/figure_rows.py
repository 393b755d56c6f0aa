"""What the rows of the comparison's table are made of: names of sides, ratios, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common import Spread
from real_shapes import REAL_SHAPES
from rounds import OURS, Results

DEFAULT, DEFAULT_Q4, ONE_B = "default", "default-q4_0", "1b-q4_0"
FAST_PROMPTS, FAST = "ours, fast-prompts", "ours, fast"
AVX2, AVX_VNNI = "ours, AVX2", "ours, AVX-VNNI"
LLAMA, IK_LLAMA = "llama.cpp", "ik_llama.cpp"
LLAMA_AVX2, LLAMA_AVX_VNNI = "llama.cpp, AVX2", "llama.cpp, AVX-VNNI"
NARROW = {"AVX2": (AVX2, LLAMA_AVX2), "AVX-VNNI": (AVX_VNNI, LLAMA_AVX_VNNI)}
"""Kernels without AVX-512: by their name our side, and llama.cpp built for as much."""
WIDE = ("vLLM",)
"""Peers that do not compute with 4-bit weights."""
NOT_PEERS = (OURS, FAST_PROMPTS, FAST, *(side for pair in NARROW.values() for side in pair))
DECODE_DEPTH = 128 + 64
"""Tokens of context in the middle of the decode test."""
CLIFF = 0.7
PEAKS = {"vnni": "VNNI", "amx": "AMX"}
"""Limit of the machine -> its title. Each one that was measured gets its own row: the operations a
second with 8-bit numbers."""
PEAK_SHARES = {ONE_B: 0.7, DEFAULT: 0.55}
"""Model -> what products of one plane should reach over a whole prompt."""
READING = "bandwidth"
KL = "kl "
"""Key of a fact: this and a model. Its value has, by side, the KL from our exact logits."""
EXACT_WORK = {"amx": 4, "vnni": 2}
FAST_WORK = {"amx": 2, "vnni": 1}
"""Limit -> how many products of bytes take the time of one product of weights and activations. The
few products that stay exact in a faster precision are not counted."""
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


def markdown(rows: Sequence[Row]) -> str:
    head = ["| figure | to reach | measured | reached |", "|---|---|---|---|"]
    return "\n".join(head + [f"| {' | '.join(row.cells())} |" for row in rows])


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


def allowed(limits: Sequence[float], work: float) -> str:
    """The tokens a second that a limit allows. work: of one token, in the limit's unit."""
    return f"; the machine allows {Spread.of(limits).median / work:.4g}"


def gigabytes(results: Results, model: str) -> float:
    """Gigabytes that one token reads in the decode test."""
    sizes = results.facts[f"sizes {model}"]
    return float(sizes["weights"] + DECODE_DEPTH * sizes["kv_per_token"]) / 1e9


def products_allowed(results: Results, model: str, work: dict[str, int]) -> str:
    """Prompt tokens a second that the machine allows: by tiles if it has them, else by vectors."""
    limits = product_rates(results, model, "prefill 512", work)
    return allowed(limits, results.facts[f"sizes {model}"]["operations"] / 1e9) if limits else ""


def product_rates(results: Results, model: str, what: str, work: dict[str, int]) -> list[float]:
    """10^9 operations a second on weights and activations that the machine allows, by round: by
    tiles if it has them, else by vectors."""
    for name, times in work.items():
        if limits := values(results, (model, f"{what}, limits", name)):
            return [limit / times for limit in limits]
    return []


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


def peak_share(
    results: Results, figure: str, place: Place, limit: str, title: str
) -> Iterator[Row]:
    """A row: the operations of a whole prompt, as a part of this limit of the machine."""
    model, what, _ = place
    found, limits = values(results, place), values(results, (model, f"{what}, limits", limit))
    if found and limits:
        work, least = results.facts[f"sizes {model}"]["operations"] / 1e9, PEAK_SHARES[model]
        share = Ratio.of([rate * work for rate in found], limits)
        text = f"{share.percent} of {Spread.of(limits)} GOPS"
        target = f"≥ {least:.0%} of {title} peak over the pass".replace("%", " %")
        yield Row(figure, target, text, share.value >= least)
