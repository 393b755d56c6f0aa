"""The section on encoders of docs/models.md, made of the registry and the figures in encoders.json.

Nothing is measured here: `encoders.py` does it, and `models.py` calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from kept_figures import measured_notes, read_kept, write_kept
from page_table import NOT_MEASURED, table
from typing_extensions import NotRequired

from mlc_llm.models.registry import EMBEDDERS, ENCODERS, Architecture

FIGURES = Path(__file__).resolve().parent / "encoders.json"
VECTOR_ROWS = (*ENCODERS, *EMBEDDERS)
"""All that have a row."""
HEAD = ("GGUF", "class in config.json", "GGUF, reference", "folder, reference", "folder, CPU")


class Distance(TypedDict):
    """From Transformers, or why there was nothing to compare."""

    distance: NotRequired[float]
    refused: NotRequired[str]


class MeasuredEncoder(TypedDict):
    """The figures of one class."""

    measured: dict[str, str]
    """Date, processor, versions."""
    kernels: str
    """Of `cpu`."""
    gguf: Distance
    folder: Distance
    cpu: Distance


EncoderFigures = dict[str, MeasuredEncoder]
"""By the class in config.json."""


def read_encoder_figures() -> EncoderFigures:
    return read_kept(FIGURES)


def write_encoder_figures(figures: EncoderFigures) -> None:
    """In the order of the registry."""
    write_kept(FIGURES, VECTOR_ROWS, figures)


def encoders_section(figures: EncoderFigures) -> str:
    rows = [encoder_cells(row, figures) for row in VECTOR_ROWS]
    return "\n\n".join([INTRODUCTION, table(HEAD, rows), "\n".join(encoder_notes(figures))])


def encoder_cells(row: Architecture, figures: EncoderFigures) -> list[str]:
    """The cells of one class."""
    names = [f"`{row.gguf}`", f"`{row.config}`"]
    if row.config not in figures:
        return [*names, *[NOT_MEASURED] * (len(HEAD) - len(names))]
    one = figures[row.config]
    cpu = f"{_distance(one['cpu'])} ({one['kernels']})"
    return [*names, _distance(one["gguf"]), _distance(one["folder"]), cpu]


def _distance(found: Distance) -> str:
    return f"{found['distance']:.1e}" if "distance" in found else "refused"


def encoder_notes(figures: EncoderFigures) -> Iterator[str]:
    """Where the figures come from, and what was refused."""
    yield from measured_notes({name: one["measured"] for name, one in figures.items()})
    for name, one in figures.items():
        if refused := one["gguf"].get("refused"):
            yield f"* Refused: the GGUF file of {name}: `{refused}`."


INTRODUCTION = """## Encoders

They make vectors of texts ([embeddings](server.md#embeddings)) and scores of pairs
([reranking](server.md#reranking)), and write no text. Each class is measured on one small model of
Transformers with random weights. The figures are 1 - cosine of the mean vector to Transformers' in
float32, for the worst of five texts of 1 to 128 tokens. The GGUF file is made by llama.cpp's
converter, the folder by Transformers. Every other encoder is refused by its name.

`Qwen3Model` (Qwen3 Embedding) is a decoder: its figures are of the vector of the last token."""
