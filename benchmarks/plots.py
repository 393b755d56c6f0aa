"""Plots of a run of `compare.py` (needs matplotlib: `pip install -e .[benchmarks]`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from common import Spread
from figures import DEFAULT, FAST, ONE_B, OURS, TITLES, curve
from rounds import Results

PANELS = (
    ("prompt, tok/s", ("prefill 128", "prefill 512", "prefill 2048")),
    ("decode, one stream, tok/s", ("decode",)),
    ("decode, many streams, tok/s", ("8 streams", "32 streams")),
    ("cold start, s", ("cold start",)),
)
COLOURS = {
    OURS: "#c1432e", FAST: "#e39a3b", "llama.cpp": "#3b6ea5", "ik_llama.cpp": "#6aa9c9",
    "OpenVINO": "#5b8c5a", "vLLM": "#8b8b8b",
}  # fmt: skip
DOTS = 80
"""An inch."""


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Every plot that there are figures for, as PNG files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        _saved(_speeds(results, model), folder / f"speed-{model}.png")
        for model in results.samples
        if results.sides(model, "decode")
    ]
    if any(curve(results, model, "step at context ") for model in results.samples):
        made.append(_saved(_growth(results), folder / "growth.png"))
    return made


def _speeds(results: Results, model: str) -> Any:
    """Bars of medians with the least and the greatest."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 3.2))
    for axis, (title, tests) in zip(axes, PANELS, strict=True):
        _bars(axis, results, model, [test for test in tests if results.sides(model, test)])
        axis.set_title(title, fontsize=9)
    bars = [bar for axis in axes for bar in axis.containers if bar.get_label() in COLOURS]
    handles = {bar.get_label(): bar for bar in bars}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=6, fontsize=8)
    figure.suptitle(TITLES[model], fontsize=10)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def _bars(axis: Any, results: Results, model: str, tests: list[str]) -> None:
    for number, side in enumerate(COLOURS):
        places, spreads = [], []
        for place, test in enumerate(tests):
            if values := results.sides(model, test).get(side):
                places.append(place + 0.14 * (number - 2.5))
                spreads.append(Spread.of(values))
        if spreads:
            middle = [one.median for one in spreads]
            reach = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            colour = COLOURS[side]
            axis.bar(places, middle, 0.13, yerr=reach, color=colour, label=side, capsize=2)
    axis.set_xticks(range(len(tests)), tests, fontsize=7)
    axis.tick_params(axis="y", labelsize=8)


def _growth(results: Results) -> Any:
    """Tokens a second of ours against streams and against context."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for model in (DEFAULT, ONE_B):
        for axis, prefix in zip(axes, ("step of streams ", "step at context "), strict=True):
            points = curve(results, model, prefix)
            seconds = [Spread.of(each).median for each in points.values()]
            together = list(points) if "streams" in prefix else [1] * len(points)
            rates = [n / each for n, each in zip(together, seconds, strict=True)]
            axis.plot(list(points), rates, marker="o", markersize=3, label=TITLES[model])
    for axis, label in zip(axes, ("streams", "tokens of context"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(label, fontsize=8)
        axis.set_ylabel("tok/s of all streams", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=DOTS)
    plt.close(figure)
    return path
