"""Matrices behind the pooling, as folders of sentence-transformers have them.

Format: `modules.json` lists modules, those of type Dense with a folder, whose `config.json` says
`activation_function` (if it does not: tanh), `bias`, `use_residual` and what is read and written,
and whose `model.safetensors` has `linear.weight`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.loader.safetensors_file import SafetensorsFile
from mlc_llm.model_files.pooling import MAX_BYTES, MODULES, module_list
from mlc_llm.models.weight_plan import PROJECTIONS
from mlc_llm.record import record

WEIGHT = "linear.weight"
_FUNCTION = "activation_function"
_VECTOR = "sentence_embedding"
"""What is behind the pooling."""
_COMPUTED: Mapping[str, tuple[object, ...]] = {
    "bias": (False, None),
    "use_residual": (False, None),
    "module_input_name": (_VECTOR, None),
    "module_output_name": (_VECTOR, None),
}
"""Field -> the values with which a matrix alone is right; None: it is not there, or null."""


@record()
class DenseModules:
    """tensors: by the names of `PROJECTIONS`. opened: the files with them."""

    tensors: dict[str, GGUFTensor]
    opened: tuple[tuple[Path, os.stat_result], ...]


def dense_modules(folder: Path) -> DenseModules:
    """Those of a model folder, in order. Raises ModelFileError, UnsupportedModel."""
    paths = [path for kind, path in module_list(folder) if kind == "Dense"]
    if len(paths) > len(PROJECTIONS):
        words = f"{len(paths)} modules of type Dense; up to {len(PROJECTIONS)} are supported"
        raise UnsupportedModel(f"{folder / MODULES}: {words}")
    files = [_opened(folder / path) for path in paths]
    names = (f"{name}.weight" for name in PROJECTIONS)
    tensors = {name: file.tensors[WEIGHT] for name, file in zip(names, files, strict=False)}
    return DenseModules(tensors, tuple((file.path, file.stat) for file in files))


def _opened(path: Path) -> SafetensorsFile:
    config = read_json_object(path / "config.json", MAX_BYTES)
    function = str(config.get(_FUNCTION, "Tanh"))
    if function.rpartition(".")[2] != "Identity":
        words = f"{_FUNCTION} is {function[:60]!r}; supported: Identity"
        raise UnsupportedModel(f"{path / 'config.json'}: {words}")
    for name, (allowed, *others) in _COMPUTED.items():
        if (value := config.get(name)) not in (allowed, *others):
            words = f"{name} is {_shown(value)}; supported: {_shown(allowed)}"
            raise UnsupportedModel(f"{path / 'config.json'}: {words}")
    file = SafetensorsFile.open(path / "model.safetensors")
    if set(file.tensors) != {WEIGHT}:
        raise ModelFileError(f"{file.path}: the one tensor {WEIGHT} was expected")
    return file


def _shown(value: object) -> str:
    return json.dumps(value)[:60]
