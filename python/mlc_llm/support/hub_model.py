"""Models of Hugging Face in the cache. What is downloaded once is used without the network."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from mlc_llm.errors import ModelNotFound
from mlc_llm.support.file_locks import file_lock, forget_empty
from mlc_llm.support.files import cache_root, write_file
from mlc_llm.support.hub_address import COMPLETE, PARTS, Address
from mlc_llm.support.hub_choice import FOLDER_CHOICE, Choice, choose
from mlc_llm.support.progress import ProgressFactory

if TYPE_CHECKING:
    from mlc_llm.support.hub import Listing


class _Record(TypedDict):
    """Written when a download is complete."""

    model: str
    """The file that stands for the model."""
    commit: str
    """The version of the repository."""
    files: dict[str, int]
    """Sizes of all files, in bytes."""
    choice: int
    """`FOLDER_CHOICE` of the version that chose the files. Older records have none."""


def fetched_model(
    address: Address, progress: ProgressFactory | None = None, *, renew: bool = False
) -> Path:
    """The file that stands for a model: a .gguf file or a config. It is downloaded if the cache
    has no complete download.

    renew: take the newest version, if it is another one. Raises ModelNotFound if it cannot be
    downloaded, CacheError.
    """
    folder = cache_root().joinpath("model_weights", "hf", address.user, address.repo)
    name = address.tag or address.file or "repository"
    mark = folder / f".{name.replace('/', '--')}{COMPLETE}"
    record = _whole_download(mark)
    if record is not None and not renew:
        with suppress(OSError):  # a cache that cannot be written is read all the same
            os.utime(mark)
        return folder / record["model"]
    # First of all: without a network or a repository, no folder is made.
    listing, choice = _listed(address)
    if record is None or record.get("commit") != listing.commit:
        lock = folder / ".lock"
        with file_lock(lock), _tidied(lock):
            record = _whole_download(mark)
            if record is None or record.get("commit") != listing.commit:
                _download(address, listing, choice, mark, progress)
    return folder / choice.model


def _listed(address: Address) -> tuple[Listing, Choice]:
    from mlc_llm.support import hub

    try:
        listing = hub.list_files(address.repository)
    except hub.HubError as error:
        raise _failed(address, error) from error
    return listing, choose(listing.files, address)


def _download(
    address: Address, listing: Listing, choice: Choice, mark: Path, show: ProgressFactory | None
) -> None:
    """Download the chosen files, then write the record into `mark`."""
    from mlc_llm.support import hub, hub_download

    mark.unlink(missing_ok=True)  # from now on, the files may be of two versions
    try:
        hub_download.fetch_files(listing, choice.files, mark.parent, show)
    except hub.HubError as error:
        raise _failed(address, error) from error
    sizes = {name: listing.files[name].size for name in choice.files}
    record = _Record(model=choice.model, commit=listing.commit, files=sizes, choice=FOLDER_CHOICE)
    write_file(mark, json.dumps(record).encode())


def _failed(address: Address, error: Exception) -> ModelNotFound:
    return ModelNotFound(f"could not download {address}: {error}")


def _whole_download(mark: Path) -> _Record | None:
    """The record in the file `mark`, if all its files exist with their sizes. A folder that an
    older version chose may lack files, and is not whole; of .gguf files all are as they were."""
    try:
        record: _Record = json.loads(mark.read_text("utf-8"))
        sizes = {name: (mark.parent / name).stat().st_size for name in record["files"]}
        is_file = record["model"].lower().endswith(".gguf")
        is_whole = sizes == record["files"] and record["model"] in sizes
        is_new = is_file or record.get("choice") == FOLDER_CHOICE
        return record if is_whole and is_new else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


@contextmanager
def _tidied(lock: Path) -> Iterator[None]:
    """After an error: if nothing of the model has arrived, remove everything."""
    try:
        yield
    except BaseException:
        folder = lock.parent
        if not any(path.is_file() and path.stat().st_size > 0 for path in folder.rglob("*")):
            shutil.rmtree(folder / PARTS, ignore_errors=True)
            forget_empty(lock)
        raise
