"""The weights of a Hugging Face folder: one safetensors file, or shards that an index lists. As in
Transformers, a `model.safetensors` wins over an index: one of other files was left by an earlier
save.

Format: `model.safetensors.index.json` of Transformers, {"weight_map": {tensor: file}}. Nothing is
read but what stands in the folder itself, and no file that could run code (pickles).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.loader.safetensors_file import SafetensorsFile
from mlc_llm.record import record

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
CONFIG = "config.json"
MAX_JSON_BYTES = 16 << 20
MAX_SHARDS = 1024


@record()
class HuggingFaceFolder:
    """An opened model folder.

    config: what config.json says. tensors: by the names that the folder uses. opened: config.json
    and the weight files, in order, as they were when they were opened.
    """

    path: Path
    config: Mapping[str, object]
    tensors: Mapping[str, GGUFTensor]
    opened: tuple[tuple[Path, os.stat_result], ...]

    @classmethod
    def open(cls, path: Path) -> HuggingFaceFolder:
        """Raises ModelNotFound, ModelFileError, UnsupportedModel (weights of another form)."""
        state = state_of(path / CONFIG)
        config = read_json_object(path / CONFIG, MAX_JSON_BYTES)
        index = path / INDEX
        weight_map = _weight_map(index) if index.is_file() else None
        if weight_map is not None and WHOLE not in weight_map.values() and (path / WHOLE).exists():
            weight_map = None
        names = _only_file(path) if weight_map is None else sorted(set(weight_map.values()))
        files = {name: SafetensorsFile.open(path / name) for name in names}
        tensors = _joined(path, files)
        if weight_map is not None:
            _check_index(index, weight_map, files)
        opened = [(path / CONFIG, state), *((file.path, file.stat) for file in files.values())]
        return cls(path, config, tensors, tuple(opened))


def state_of(path: Path) -> os.stat_result:
    """What the system says of a file, before it is read. Raises ModelNotFound."""
    try:
        return path.stat()
    except OSError as error:
        raise ModelNotFound(f"{path}: {error.strerror}") from None


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, each file one of the folder itself."""
    found = read_json_object(index, MAX_JSON_BYTES).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelFileError(f"{index}: weight_map should be an object that names tensors")
    for name, file in found.items():
        if not isinstance(file, str) or not _is_plain(file):
            what = f"weight_map.{printable(name)} = {str(file)[:60]!r}"
            raise ModelFileError(
                f"{index}: {what} should be the name of a file in this folder, NAME.safetensors"
            )
    if len(set(found.values())) > MAX_SHARDS:
        raise ModelFileError(f"{index}: more than {MAX_SHARDS} files")
    return found


def _is_plain(name: str) -> bool:
    """Whether a name leads to nothing but a safetensors file in the folder itself."""
    return name.endswith(".safetensors") and Path(name).name == name and "\\" not in name


def _only_file(path: Path) -> list[str]:
    """The file of a model that has no index."""
    found = sorted(one.name for one in path.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if WHOLE in found:
        return [WHOLE]
    if found:
        raise UnsupportedModel(f"{path}: {len(found)} safetensors files and no {INDEX}")
    others = sorted(one.name for one in path.iterdir() if one.suffix in (".bin", ".pt", ".pth"))
    words = f"only {others[0]}, a pickle, which is never read" if others else "none"
    raise UnsupportedModel(f"{path}: no weights as safetensors files ({words})")


def _joined(path: Path, files: Mapping[str, SafetensorsFile]) -> dict[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for name, file in files.items():
        twice = tensors.keys() & file.tensors.keys()
        if twice:
            raise ModelFileError(f"{path / name}: {printable(min(twice))} is in two files")
        tensors |= file.tensors
    return tensors


def _check_index(
    index: Path, weight_map: Mapping[str, str], files: Mapping[str, SafetensorsFile]
) -> None:
    """Each tensor is in the file that the index says, and in no other."""
    for name, file in weight_map.items():
        if name not in files[file].tensors:
            raise ModelFileError(f"{index}: {printable(name)} is not in {file}")
    for file, opened in files.items():
        for name in opened.tensors:
            if weight_map.get(name) != file:
                raise ModelFileError(f"{index}: {printable(name)} of {file} is not listed")
