"""What a model's files say of pooling, in one word: those of `mlc_llm.pooling`, `rank` for a model
that compares two texts, or the file's own word for anything else.

Formats: `ARCHITECTURE.pooling_type` of GGUF (llama.cpp, llama_pooling_type), and `modules.json`
of sentence-transformers, which names a folder with a `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlc_llm.errors import ModelFileError
from mlc_llm.json_file import read_json, read_json_object

NUMBERS = ("none", "mean", "cls", "last_token", "rank")
"""Values of GGUF's key."""
MODULES = "modules.json"
MAX_BYTES = 1 << 20
_NOTHING_MORE = ("Transformer", "Normalize")
"""Modules that pool nothing. Vectors are normalised here for all models."""
_PREFIX = "pooling_mode_"
_WORDS = {
    "mean_tokens": "mean",
    "mean": "mean",
    "cls_token": "cls",
    "cls": "cls",
    "lasttoken": "last_token",
}
"""Of sentence-transformers."""


def gguf_pooling(metadata: Mapping[str, object]) -> str | None:
    """None: the file says nothing. Raises ModelFileError."""
    key = f"{metadata.get('general.architecture')}.pooling_type"
    value = metadata.get(key)
    if value is None or value == 0:
        return None
    if type(value) is not int or not 0 < value < len(NUMBERS):
        raise ModelFileError(f"{key} is {str(value)[:40]!r}; 0 to {len(NUMBERS) - 1} was expected")
    return NUMBERS[value]


def folder_pooling(folder: Path, *, with_dense: bool = False) -> str | None:
    """None: the folder says nothing. with_dense: modules of type Dense are computed (see
    `dense_modules.py`), and are no word of this. Raises ModelFileError."""
    found = []
    for kind, path in module_list(folder):
        if kind == "Pooling":
            found += _stated(folder, path)
        elif kind not in _NOTHING_MORE and not (with_dense and kind == "Dense"):
            found.append(kind)
    return "+".join(found) or None


def module_list(folder: Path) -> list[tuple[str, str]]:
    """Type and folder of each module of sentence-transformers. Raises ModelFileError."""
    if not (folder / MODULES).is_file():
        return []
    found, modules = [], read_json(folder / MODULES, MAX_BYTES)
    for one in modules if isinstance(modules, list) else ():
        fields = one if isinstance(one, dict) else {}
        kind, path = str(fields.get("type")).rpartition(".")[2], str(fields.get("path"))
        if kind not in _NOTHING_MORE and (Path(path).name != path or path == ".."):
            raise ModelFileError(f"{folder / MODULES}: path {path[:40]!r} should be a folder in it")
        found.append((kind, path))
    return found


def _stated(folder: Path, name: str) -> list[str]:
    """The words of the flags that are set, or those of `pooling_mode`: several mean that their
    vectors stand one behind the other. The mean, if there are none. Raises ModelFileError."""
    path = folder / name / "config.json"
    config = read_json_object(path, MAX_BYTES)
    mode = config.get("pooling_mode")
    if mode is None:
        found = [key.removeprefix(_PREFIX) for key, value in config.items() if value is True]
        found = [one for one in found if f"{_PREFIX}{one}" in config] or ["mean"]
    else:
        found = mode if isinstance(mode, list) else [mode]
    if not (found and all(isinstance(one, str) for one in found)):
        words = f"pooling_mode is {str(mode)[:60]!r}; a word or a list of words was expected"
        raise ModelFileError(f"{path}: {words}")
    return [_WORDS.get(one, one) for one in found]
