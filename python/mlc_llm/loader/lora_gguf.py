"""LoRA adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

`general.type` is "adapter", `adapter.type` "lora". The factors of a matrix NAME are NAME.lora_a
[rank, columns] and NAME.lora_b [rows, rank]; all have the scale `adapter.lora.alpha` / rank, or 1
if that is 0 or is not there (`get_scale` in llama-adapter.h).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.loader.lora import DOWN, UP, Factors, LoraAdapter, pairs_of

_HALVES = {".lora_a": DOWN, ".lora_b": UP}
_ALPHA = "adapter.lora.alpha"
_INVOCATION = "adapter.alora.invocation_tokens"


def open_lora_gguf(path: Path) -> LoraAdapter:
    """Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    file = GGUFFile.open(path)
    for key, wanted in {"general.type": "adapter", "adapter.type": "lora"}.items():
        if file.get_str(key, None) != wanted:
            said = printable(str(file.metadata.get(key)))
            raise UnsupportedModel(f"{path}: {key} = {said}; an adapter has {wanted!r}")
    if _INVOCATION in file.metadata:
        raise UnsupportedModel(f"{path}: {_INVOCATION} is not supported")
    alpha = _alpha(file)
    factors = {
        matrix: Factors(down, up, alpha / down.shape[0] if alpha else 1.0)
        for matrix, (down, up) in pairs_of(path, _halves(file)).items()
    }
    return LoraAdapter(path, file.get_str("general.architecture"), factors, file.opened)


def _alpha(file: GGUFFile) -> float:
    value = file.metadata.get(_ALPHA, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ModelFileError(f"{file.path}: {_ALPHA} = {str(value)[:60]} must be a finite number")
    return float(value)


def _halves(file: GGUFFile) -> Iterator[tuple[str, str, GGUFTensor]]:
    for name, tensor in file.tensors.items():
        matrix, end = name[:-7], name[-7:]
        if end not in _HALVES:
            raise UnsupportedModel(
                f"{file.path}: tensor {printable(name)} is no half of an adapter of a matrix; only "
                "these are supported"
            )
        yield matrix, _HALVES[end], tensor
