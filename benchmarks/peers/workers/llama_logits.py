"""Logits of llama.cpp or its fork: `llama_logits.py BINDINGS MODEL PIECES TARGET THREADS`.

BINDINGS is the file with the declarations of the C functions, in ctypes; LLAMA_CPP_LIB_PATH and
IK_LLAMA_CPP_LIB_PATH name the built library. Each piece is one batch. Weights are repacked and
keys and values are float16, as in the measurements of speed.
"""

from __future__ import annotations

import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def declarations(file: Path) -> Any:
    """The module of the file, without the rest of its package."""
    package = types.ModuleType(file.parent.name)
    package.__path__ = [str(file.parent)]
    sys.modules[package.__name__] = package
    return import_module(f"{package.__name__}.{file.stem}")


class Model:
    def __init__(self, llama: Any, path: str, threads: int) -> None:
        self._llama, self._threads = llama, threads
        llama.llama_backend_init()
        given = llama.llama_model_default_params()
        if hasattr(given, "repack_tensors"):  # the fork's -rtr
            given.repack_tensors, given.use_mmap = True, False
        self._model = llama.llama_model_load_from_file(path.encode(), given)
        if not self._model:
            raise SystemExit("the file was not loaded")
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """[tokens, vocabulary], of a new sequence."""
        llama = self._llama
        context = self._context(len(ids))
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = int(token), i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if code := llama.llama_decode(context, batch):
            raise SystemExit(f"decoding ended with {code}")
        rows = [llama.llama_get_logits_ith(context, i) for i in range(len(ids))]
        found = [np.ctypeslib.as_array(row, (self._vocabulary,)) for row in rows]
        made = np.array(found, np.float32)
        llama.llama_batch_free(batch)
        llama.llama_free(context)
        return made

    def _context(self, count: int) -> Any:
        settings = self._llama.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = count
        settings.n_threads = settings.n_threads_batch = self._threads
        context = self._llama.llama_init_from_model(self._model, settings)
        if not context:
            raise SystemExit("there is no context")
        return context


if __name__ == "__main__":
    bindings, path, pieces, target, threads = sys.argv[1:]
    model = Model(declarations(Path(bindings)), path, int(threads))
    np.save(target, np.array([model.logits(piece) for piece in np.load(pieces)]))
