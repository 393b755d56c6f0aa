"""Begins to read packed weights before Python imports the engine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mlc_llm.backends.registry import CUDA, choose_backend, has_gpu
from mlc_llm.compiler.keys import known_weights
from mlc_llm.errors import MLCError
from mlc_llm.library.metadata import INDEX_FILE
from mlc_llm.runtime.read_ahead import ReadAhead
from mlc_llm.support.default_model import DEFAULT_MODEL
from mlc_llm.support.machine import describe
from mlc_llm.support.superseded import is_sound


def begin_early(
    reading: ReadAhead, model: str | None, kernels: str | None = None, device: str = "cpu"
) -> None:
    """Begin to read the packed weights of a model file, if they are in the cache.

    Does nothing for a model that is named in another way, and for one with an error: whoever opens
    the model finds the error too, and says what it is.
    """
    with suppress(MLCError, OSError, RuntimeError, ValueError):
        if kernels is None and device != "cpu" and has_gpu():
            kernels = CUDA
        file = DEFAULT_MODEL.place if model is None else Path(model).expanduser()
        folder = known_weights(file, choose_backend(kernels))
        if folder is not None and is_sound(folder, INDEX_FILE):
            reading.begin(folder, describe().memory_free or 0)
