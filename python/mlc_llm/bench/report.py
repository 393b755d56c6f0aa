"""A run as a table, as CSV, and as a plot (SVG)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from mlc_llm.bench.figures import Point

SHOWN = (
    ("value", "load"),
    ("requests", "requests"),
    ("errors", "errors"),
    ("answer_tokens_per_s", "tokens/s"),
    ("ttft_p50_ms", "TTFT p50"),
    ("ttft_p99_ms", "p99"),
    ("gap_p50_ms", "gap p50"),
    ("gap_p99_ms", "p99"),
    ("total_p99_ms", "total p99"),
    ("cached_share", "cached"),
)
PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("answer tokens/s", (("answer_tokens_per_s", "all answers"),)),
    ("time to the first token, ms", (("ttft_p50_ms", "p50"), ("ttft_p99_ms", "p99"))),
    ("between pieces of text, ms", (("gap_p50_ms", "p50"), ("gap_p99_ms", "p99"))),
)
COLOURS = ("#2f6f62", "#c1762e")
WIDTH, HEIGHT = 300, 230
LEFT, TOP, RIGHT, BOTTOM = 52, 34, 14, 44


def table(points: Sequence[Point]) -> str:
    """Lines for a terminal. Times are in milliseconds."""
    rows = [[title for _, title in SHOWN]]
    for point in points:
        found = point.row()
        rows.append([_shown(found[name]) for name, _ in SHOWN])
    widths = [max(len(row[i]) for row in rows) for i in range(len(SHOWN))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    for point in points:
        kinds = point.row()["error_kinds"]
        lines += [f"errors at {point.load} {point.value:g}: {kinds}"] if kinds else []
    return "\n".join(lines)


def csv_text(points: Sequence[Point]) -> str:
    """All figures, one line a point. An empty cell: not measured."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(points[0].row()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(point.row() for point in points)
    return out.getvalue()


def svg(points: Sequence[Point], title: str) -> str:
    """Three panels over the load."""
    rows = [point.row() for point in points]
    panels = [_panel(rows, *panel, WIDTH * i) for i, panel in enumerate(PANELS)]
    size = f'width="{WIDTH * len(PANELS)}" height="{HEIGHT + 26}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="12" y="18" font-size="13" font-weight="bold">{escape(title)}</text>'
    )
    return head + "".join(panels) + "</svg>\n"


def _panel(
    rows: Sequence[dict[str, object]], title: str, series: Sequence[tuple[str, str]], x0: int
) -> str:
    values = [row[name] for name, _ in series for row in rows]
    most = _top(max((one for one in values if isinstance(one, int | float)), default=0) or 1)
    parts = [f'<g transform="translate({x0},24)"><text x="{LEFT}" y="18">{escape(title)}</text>']
    for i in range(5):
        y = _y(most * i / 4, most)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        label = f"{most * i / 4:g}"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for i, row in enumerate(rows):
        x = _x(i, len(rows))
        name = f"{row['value']:g}"
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{name}</text>'
        )
    for (name, label), colour in zip(series, COLOURS, strict=False):
        parts.append(_curve(rows, name, label, colour, most))
    x, what = (LEFT + WIDTH - RIGHT) / 2, escape(str(rows[0]["load"]))
    parts.append(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{what}</text></g>')
    return "".join(parts)


def _curve(
    rows: Sequence[dict[str, object]], name: str, label: str, colour: str, most: float
) -> str:
    """A line with a dot for each point that was measured."""
    places = [
        (_x(i, len(rows)), _y(value, most))
        for i, row in enumerate(rows)
        if isinstance(value := row[name], int | float)
    ]
    if not places:
        return ""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    x, y = places[-1]
    words = f'<text x="{x:.1f}" y="{y - 7:.1f}" text-anchor="end" fill="{colour}">{label}</text>'
    curve = f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f'{curve}<g fill="{colour}">{dots}</g>{words}'


def _top(most: float) -> float:
    """The end of an axis: a round number, whose quarters are round as well."""
    unit = 10 ** math.floor(math.log10(most))
    return float(next(one * unit for one in (1, 1.2, 2, 4, 6, 8, 10) if one * unit >= most))


def _x(i: int, count: int) -> float:
    """Points stand at equal distances: loads are often powers of two."""
    inner = WIDTH - LEFT - RIGHT
    return LEFT + inner * (i + 0.5) / count


def _y(value: float, most: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
