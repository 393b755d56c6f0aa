"""Measures each encoder of the registry against Transformers, for docs/models.md.

`models.py` runs it, and says what it needs. The random models are those of tests/oracle.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from encoders_page import (
    Distance,
    EncoderFigures,
    MeasuredEncoder,
    write_encoder_figures,
)
from kept_figures import measure_each

from mlc_llm import MLCEngine
from mlc_llm.backends.base import Backend
from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.build import build_library
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.registry import EMBEDDERS, Architecture
from mlc_llm.models.spec import ModelSpec

SEED = 0


def measure_encoders(
    rows: Sequence[Architecture], figures: EncoderFigures, circumstances: dict[str, str]
) -> list[str]:
    """See `measure_each`."""
    measured = partial(_measured, circumstances)
    return measure_each(rows, figures, measured, write_encoder_figures)


def _measured(circumstances: dict[str, str], row: Architecture, folder: Path) -> MeasuredEncoder:
    """folder: for its files, empty."""
    from converted import converted
    from encoder_models import FirstNomic, random_encoder

    if row in EMBEDDERS:
        return _measured_decoder(row, folder, circumstances)
    model = random_encoder(row.config, SEED)
    model.save_pretrained(folder / "folder")
    try:
        given = FirstNomic(model) if row.config == "NomicBertModel" else model
        path = converted(given, folder / "files")
        gguf = _distance(model, path, folder / "of-file", "reference")
    except AssertionError as error:  # its words end with the reason
        gguf = {"refused": f"llama.cpp's converter: {str(error).strip().splitlines()[-1]}"}
    return {
        "measured": circumstances,
        "kernels": choose_backend().name,
        "gguf": gguf,
        "folder": _distance(model, folder / "folder", folder / "of-folder", "reference"),
        "cpu": _distance(model, folder / "folder", folder / "of-folder", None),
    }


def _measured_decoder(
    row: Architecture, folder: Path, circumstances: dict[str, str]
) -> MeasuredEncoder:
    """The same of a decoder, through the engine."""
    from converted import converted
    from encoder_models import random_decoder
    from tiny_folders import tokenizer_files

    model = random_decoder(row.config, SEED)
    path = converted(model, folder / "files")
    model.save_pretrained(folder / "folder")
    for name, text in tokenizer_files().items():
        (folder / "folder" / name).write_text(text, encoding="utf-8")
    return {
        "measured": circumstances,
        "kernels": choose_backend().name,
        "gguf": _distance_of_last(model, path, folder, "reference"),
        "folder": _distance_of_last(model, folder / "folder", folder, "reference"),
        "cpu": _distance_of_last(model, folder / "folder", folder, None),
    }


def _distance_of_last(model: Any, path: Path, folder: Path, kernels: str | None) -> Distance:
    """folder: for what the engine keeps."""
    from encoder_models import cosine, exact_hidden, texts_of

    texts = texts_of(SEED)
    config = {} if kernels is None else {"kernels": kernels}
    kept_here = mock.patch.dict(os.environ, MLC_LLM_HOME=str(folder / "cache"))
    with kept_here, MLCEngine(str(path), engine_config=config) as engine:
        found = engine.embeddings.create(input=texts).data
    pairs = zip(found, texts, strict=True)
    far = max(1 - cosine(one.embedding, exact_hidden(model, text)[-1]) for one, text in pairs)
    return {"distance": float(f"{max(far, 0.0):.2g}")}


def built(spec: ModelSpec, backend: Backend, folder: Path, **_: object) -> None:
    """As users have it, and not as an earlier run of the tests has kept it."""
    build_library(spec, backend, folder)


def _distance(model: Any, path: Path, folder: Path, kernels: str | None) -> Distance:
    """Of the worst text; kernels: None is this machine's."""
    import encoder_tools
    from encoder_models import cosine, exact_hidden, texts_of

    with mock.patch.object(encoder_tools, "build_kept", built):
        try:
            runner = encoder_tools.runner_of(path, folder, kernels)
        except UnsupportedModel as error:
            return {"refused": str(error)}
    texts = texts_of(SEED)
    vectors = encoder_tools.computed(runner, texts)
    pairs = zip(vectors, texts, strict=True)
    far = max(1 - cosine(one, exact_hidden(model, text).mean(axis=0)) for one, text in pairs)
    return {"distance": float(f"{max(far, 0.0):.2g}")}
