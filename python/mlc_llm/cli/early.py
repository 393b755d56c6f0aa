"""Packed weights are read from disk while Python still imports the engine.

The engine finds out by itself what it needs, and a reading that it does not ask for is dropped.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.keys import known_weights
from mlc_llm.errors import MLCError
from mlc_llm.library.metadata import INDEX_FILE, PARAMS_FILE
from mlc_llm.runtime.read_ahead import begin_reading
from mlc_llm.support.download import DEFAULT_MODEL
from mlc_llm.support.machine import describe
from mlc_llm.support.superseded import is_sound


def begin_early(model: str | None, kernels: str | None = None) -> None:
    """Begin to read the weights of a model file, if at most half of the free memory goes into them.

    Does nothing for a model that is named in another way. Whatever is wrong is said by who opens
    the model.
    """
    with suppress(MLCError, OSError, RuntimeError, ValueError):
        file = DEFAULT_MODEL.place if model is None else Path(model).expanduser()
        folder = known_weights(file, choose_backend(kernels))
        if folder is None or not is_sound(folder, INDEX_FILE):
            return
        if (folder / PARAMS_FILE).stat().st_size <= (describe().memory_free or 0) // 2:
            begin_reading(folder)
