"""Logits of a GGUF file as llama.cpp itself computes them: a second oracle.

MLC_LLM_LLAMA_CPP names llama.cpp's sources inside those of llama-cpp-python, whose declarations of
the C functions are used. LLAMA_CPP_LIB_PATH names the folder of the built libraries (libllama.so).
llama.cpp runs in a process of its own, because it ends the process at an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

SOURCE, LIBRARIES = "MLC_LLM_LLAMA_CPP", "LLAMA_CPP_LIB_PATH"
needs_llama_cpp = pytest.mark.skipif(
    SOURCE not in os.environ or LIBRARIES not in os.environ,
    reason=f"{SOURCE} and {LIBRARIES} do not name llama.cpp's sources and libraries",
)
THREADS = 1
_OF_GELU = dict.fromkeys(("gemma", "gemma2", "gemma3", "gpt2", "gptneox", "starcoder2"), 1e-3)
ROUNDINGS = {**_OF_GELU, "gemma4": 1e-2, "qwen2vl": 1e-2}
"""By GGUF's name, of the largest logit: llama.cpp takes GELU from a table of float16, and does not
read the epsilon of the norms of a Qwen2-VL."""


def rounding_of(architecture: str) -> float:
    """How far its logits may lie from exact ones, as a part of the largest one."""
    return ROUNDINGS.get(architecture, 1e-4)


class Refused(Exception):
    """llama.cpp does not load or run the file. The text is the last that it says."""


def logits_of(path: Path, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """[tokens, vocabulary], with keys and values in float32. Raises Refused."""
    found = path.with_suffix(".npy")
    command = [sys.executable, __file__, str(path), json.dumps(list(tokens)), str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line or "ASSERT" in line]
        raise Refused((errors or lines or [f"it ended with {done.returncode}"])[0][:300])
    logits = np.load(found).astype(np.float64)
    found.unlink()
    return np.asarray(logits, np.float64)


def _declarations() -> Any:
    """The ctypes declarations of llama-cpp-python, without the rest of its package."""
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(Path(os.environ[SOURCE]).parents[1] / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    from llama_cpp import llama_cpp

    return llama_cpp


def _compute(path: Path, tokens: Sequence[int], found: Path) -> None:
    """In a process of its own."""
    llama = _declarations()
    llama.llama_backend_init()
    given = llama.llama_model_default_params()
    given.n_gpu_layers, given.use_extra_bufts = 0, False
    model = llama.llama_model_load_from_file(str(path).encode(), given)
    if not model:
        raise SystemExit("error: the file was not loaded")
    context = llama.llama_init_from_model(model, _settings(llama, len(tokens)))
    if not context:
        raise SystemExit("error: there is no context")
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if code := llama.llama_decode(context, batch):
        raise SystemExit(f"error: decoding ended with {code}")
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    rows = llama.llama_get_logits(context)
    np.save(found, np.ctypeslib.as_array(rows, (len(tokens), vocabulary)))


def _settings(llama: Any, count: int) -> Any:
    """Of a context for so many tokens at once, computed as exactly as llama.cpp can."""
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = count
    settings.n_threads = settings.n_threads_batch = THREADS
    settings.type_k = settings.type_v = 0  # float32
    settings.flash_attn_type = 0  # off
    return settings


if __name__ == "__main__":
    _compute(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
