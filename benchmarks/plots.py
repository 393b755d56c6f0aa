"""Plots of a run of `compare.py` (needs matplotlib: `pip install -e .[benchmarks]`)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from common import Spread
from figure_rows import FAST, FAST_PROMPTS, TITLES
from figures import CONTEXT, STREAMS, rates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rounds import OURS, Results

PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("prompt, tok/s", ("prefill 512", "prefill 2048")),
    ("decode, one stream, tok/s", ("decode",)),
    ("decode, many streams, tok/s", ("32 streams",)),
    ("cold start, s", ("cold start",)),
)
CURVES = (("streams", STREAMS), ("tokens of context", CONTEXT))
COLOURS = {
    OURS: "#c1432e", FAST_PROMPTS: "#e39a3b", FAST: "#f0c95c", "llama.cpp": "#3b6ea5",
    "ik_llama.cpp": "#6aa9c9", "OpenVINO": "#5b8c5a", "vLLM": "#8b8b8b",
}  # fmt: skip
DOTS = 80
"""An inch."""
PANEL, HEIGHT = 3.25, 3.2
"""Inches."""


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draw every plot that has data, as PNG files in `folder`. Prints the names of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"speed-{model}.png": _speeds(results, model) for model in results.samples}
    wanted["growth.png"] = _growth(results)
    made = []
    for name, figure in wanted.items():
        if figure is None:
            print(f"no plot {name}: nothing was measured for it")
            continue
        figure.savefig(folder / name, dpi=DOTS)
        plt.close(figure)
        made.append(folder / name)
    return made


def _speeds(results: Results, model: str) -> Figure | None:
    """Bars of medians, with the least and the greatest value. None without data."""
    panels: dict[str, list[str]] = {}
    for title, tests in PANELS:
        if found := [test for test in tests if _drawn(results, model, test)]:
            panels[title] = found
    if not panels:
        return None
    size = (PANEL * max(len(panels), 2), HEIGHT)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
    for axis, (title, drawn) in zip(axes[0], panels.items(), strict=True):
        _bars(axis, results, model, drawn)
        axis.set_title(title, fontsize=9)
    handles = {bar.get_label(): bar for axis in axes[0] for bar in axis.containers}
    named = {label: handles[label] for label in COLOURS if label in handles}
    columns = 3 if len(panels) < 3 else 6
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=columns, fontsize=8)
    figure.suptitle(TITLES.get(model, model), fontsize=10)
    figure.tight_layout(rect=(0, 0.14 if columns < len(named) else 0.07, 1, 1))
    made: Figure = figure
    return made


def _drawn(results: Results, model: str, test: str) -> dict[str, list[float]]:
    """Samples of the sides that have a colour."""
    found = results.sides(model, test)
    return {side: found[side] for side in COLOURS if found.get(side)}


def _bars(axis: Axes, results: Results, model: str, tests: list[str]) -> None:
    """Bars side by side for each test. A side without any of the tests gets no space."""
    sides = [side for side in COLOURS if any(side in _drawn(results, model, t) for t in tests)]
    for number, side in enumerate(sides):
        places, spreads = [], []
        for place, test in enumerate(tests):
            if values := _drawn(results, model, test).get(side):
                places.append(place + 0.14 * (number - (len(sides) - 1) / 2))
                spreads.append(Spread.of(values))
        if spreads:
            middle = [one.median for one in spreads]
            reach = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            colour = COLOURS[side]
            axis.bar(places, middle, 0.13, yerr=reach, color=colour, label=side, capsize=2)
    axis.set_xticks(range(len(tests)), tests, fontsize=7)
    axis.tick_params(axis="y", labelsize=8)


def _growth(results: Results) -> Figure | None:
    """Our tokens a second against streams and against context. None without data."""
    panels = []
    for label, prefix in CURVES:
        found = {model: rates(results, model, prefix) for model in results.samples}
        if lines := {model: points for model, points in found.items() if points}:
            panels.append((label, lines))
    if not panels:
        return None
    size = (4.5 * len(panels), HEIGHT)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
    for axis, (label, lines) in zip(axes[0], panels, strict=True):
        for model, points in lines.items():
            title = TITLES.get(model, model)
            axis.plot(list(points), list(points.values()), marker="o", markersize=3, label=title)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(label, fontsize=8)
        axis.set_ylabel("tok/s of all streams", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    made: Figure = figure
    return made
