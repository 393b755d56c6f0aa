"""The section on images of docs/models.md, made of the registry and the figures in images.json.

Nothing is measured here: `images.py` does it, and `models.py` calls it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from kept_figures import measured_notes, read_kept, write_kept
from page_table import NOT_MEASURED, table

from mlc_llm.models.mmproj import CLASSES
from mlc_llm.models.registry import ROWS, Architecture

FIGURES = Path(__file__).resolve().parent / "images.json"
IMAGE_ROWS = tuple(row for row in ROWS if row.config in CLASSES)
"""All that have a row."""
HEAD = (
    "GGUF", "class in config.json", "`mmproj`", "vectors, GGUF", "vectors, folder",
    "vectors, GGUF, CPU", "vectors, folder, CPU", "logits, GGUF", "logits, folder",
    "same greedy text",
)  # fmt: skip


class Seen(TypedDict):
    """What a model makes of images, against Transformers. Errors are parts of the largest
    number."""

    vectors: float
    vectors_cpu: float
    logits: float
    greedy: bool


class MeasuredImages(TypedDict):
    """The figures of one class."""

    measured: dict[str, str]
    """Date, processor, versions."""
    kernels: str
    """Of `vectors_cpu`; all others have the reference kernels."""
    gguf: Seen
    folder: Seen


ImageFigures = dict[str, MeasuredImages]
"""By the class in config.json."""


def read_image_figures() -> ImageFigures:
    return read_kept(FIGURES)


def write_image_figures(figures: ImageFigures) -> None:
    """In the order of the registry."""
    write_kept(FIGURES, IMAGE_ROWS, figures)


def images_section(figures: ImageFigures) -> str:
    rows = [image_cells(row, figures) for row in IMAGE_ROWS]
    notes = measured_notes({name: one["measured"] for name, one in figures.items()})
    parts = [INTRODUCTION, table(HEAD, rows), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part)


def image_cells(row: Architecture, figures: ImageFigures) -> list[str]:
    """The cells of one class."""
    names = [f"`{row.gguf}`", f"`{row.config}`", f"`{CLASSES[row.config]}`"]
    if row.config not in figures:
        return [*names, *[NOT_MEASURED] * (len(HEAD) - len(names))]
    one = figures[row.config]
    both = (one["gguf"], one["folder"])
    return [
        *names,
        *(f"{seen['vectors']:.1e}" for seen in both),
        *(f"{seen['vectors_cpu']:.1e} ({one['kernels']})" for seen in both),
        *(f"{seen['logits']:.1e}" for seen in both),
        "yes" if all(seen["greedy"] for seen in both) else "**no**",
    ]


INTRODUCTION = """## Images

They read [images](server.md#images) too: a tower makes vectors of an image, which the decoder takes
among those of the text. The decoder alone has its row above. Each class is measured on one small
model of Transformers with random weights, in float32, and on three chats: with one image, with two
and with none. Images stand before, between and behind texts; Idefics 3 and SmolVLM cut them into
tiles. The GGUF file and its `mmproj` file are made by llama.cpp's converter, the folder by
Transformers. Every other model refuses images by name.

* *`mmproj`*: the type of the projector in that file (`clip.projector_type`).
* *vectors*: the largest error of a number in the tower's vectors of these images, as a part of the
  largest number, with the reference kernels; then with the CPU kernels, which keep keys and values
  in float16 (`portable` in float32).
* *logits*: the largest difference of a logit behind any token of these prompts from Transformers',
  as a part of the largest logit, with the reference kernels.
* *same greedy text*: the text of 64 tokens behind each chat is that of Transformers, from the
  GGUF files and from the folder."""
