"""Measures each model that reads images against Transformers, for docs/models.md.

`models.py` runs it, and says what it needs. The random models and their chats are those of
tests/oracle.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from images_page import ImageFigures, MeasuredImages, Seen, write_image_figures
from kept_figures import measure_each

from mlc_llm.backends.registry import choose_backend
from mlc_llm.models.registry import Architecture
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.towers import tower_runner

CHUNK = 48
"""Tokens of a step: prompts are cut."""


def measure_images(
    rows: Sequence[Architecture], figures: ImageFigures, circumstances: dict[str, str]
) -> list[str]:
    """See `measure_each`."""
    measured = partial(_measured, circumstances)
    return measure_each(rows, figures, measured, write_image_figures)


def _measured(circumstances: dict[str, str], row: Architecture, folder: Path) -> MeasuredImages:
    """folder: for its files, empty."""
    from random_models import eyes_of

    model, chats = eyes_of(row.config)
    for name in ("folder", "files"):
        model.write(folder / name)
    path, mmproj = model.convert(folder / "files")
    with mock.patch.dict(os.environ, MLC_LLM_HOME=str(folder / "cache")):
        return {
            "measured": circumstances,
            "kernels": choose_backend().name,
            "gguf": _seen(model, list(chats.values()), path, str(mmproj)),
            "folder": _seen(model, list(chats.values()), folder / "folder", None),
        }


def _seen(model: Any, chats: Sequence[Any], path: Path, mmproj: str | None) -> Seen:
    """mmproj: None is the tower in the folder."""
    from image_chats import Ours, compared

    config = EngineConfig(
        kernels="reference", mmproj=mmproj, prefill_chunk_size=CHUNK, verbose=False
    )
    ours = Ours(path, config)
    found = [compared(model, ours, chat) for chat in chats]
    return {
        "vectors": _error_of_vectors(model, ours, chats, "reference"),
        "vectors_cpu": _error_of_vectors(model, ours, chats, None),
        "logits": _rounded(max(one.error for one in found)),
        "greedy": all(one.is_same for one in found),
    }


def _error_of_vectors(model: Any, ours: Any, chats: Sequence[Any], kernels: str | None) -> float:
    """Of the worst chat that has images; kernels: None is this machine's."""
    from image_chats import inputs_of

    tower = tower_runner(ours.opened.bundle.vision, EngineConfig(kernels=kernels))
    errors = []
    for chat in chats:
        _, images = ours.prompt(chat)
        if images:
            mine = np.concatenate([tower.vectors(one.picture) for one in images])
            exact = model.vectors(inputs_of(model, chat))
            errors.append(np.abs(mine - exact).max() / np.abs(exact).max())
    return _rounded(max(errors))


def _rounded(error: float) -> float:
    return float(f"{error:.2g}")
