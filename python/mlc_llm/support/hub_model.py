"""Models of Hugging Face in the cache. What is downloaded once is used without the network.

The files of each commit lie in a folder of their own, `COMMIT/REPO` below that of the repository.
So no model has files of two versions. For each name by which a model was asked for (its tag, say) a
record says which commit it is at. A commit that no record names any more is removed. Older versions
of this package had all files in the folder of the repository; what is there is used until a newer
commit is downloaded.
"""

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
    folder: str
    """Where they are in the folder of the repository. Older records have none: at its top."""
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
        return _place(folder, record) / record["model"]
    # First of all: without a network or a repository, no folder is made.
    listing, choice = _listed(address)
    if record is None or record.get("commit") != listing.commit:
        lock = folder / ".lock"
        with file_lock(lock), _tidied(lock):
            record = _whole_download(mark)
            if record is None or record.get("commit") != listing.commit:
                record = _download(address, listing, choice, mark, progress)
    return _place(folder, record) / record["model"]


def _place(folder: Path, record: _Record) -> Path:
    """The folder of a record's files. folder: that of the repository."""
    return folder / record.get("folder", "")


def _listed(address: Address) -> tuple[Listing, Choice]:
    from mlc_llm.support import hub

    try:
        listing = hub.list_files(address.repository)
    except hub.HubError as error:
        raise _failed(address, error) from error
    return listing, choose(listing.files, address)


def _download(
    address: Address, listing: Listing, choice: Choice, mark: Path, show: ProgressFactory | None
) -> _Record:
    """Download the chosen files, then write the record into `mark`. After an error, the older
    version is as it was."""
    from mlc_llm.support import hub, hub_download

    folder, before = mark.parent, _read(mark)
    name = f"{listing.commit}/{address.repo}"
    older = [one for one in (*_versions(folder), folder) if one != folder / name]
    try:
        places = hub_download.Places(folder, folder / name, older)
        hub_download.fetch_files(listing, choice.files, places, show)
    except hub.HubError as error:
        raise _failed(address, error) from error
    sizes = {name: listing.files[name].size for name in choice.files}
    record = _Record(
        model=choice.model, commit=listing.commit, files=sizes, folder=name, choice=FOLDER_CHOICE
    )
    write_file(mark, json.dumps(record).encode())
    _drop_unused(folder, before)
    return record


def _versions(folder: Path) -> list[Path]:
    """The folders of all commits, also of those that are not complete."""
    return [one for one in folder.glob(f"{'[0-9a-f]' * 40}/{folder.name}") if one.is_dir()]


def _drop_unused(folder: Path, before: _Record | None) -> None:
    """Remove the files that no record names any more. before: the record that has been replaced.
    What cannot be removed, because a process of Windows uses it, stays until the next time."""
    records = [one for mark in folder.glob(f".*{COMPLETE}") if (one := _read(mark)) is not None]
    used = {_place(folder, one) for one in records}
    for version in _versions(folder):
        if version not in used:
            shutil.rmtree(version.parent, ignore_errors=True)
    if before is not None and _place(folder, before) == folder:
        shared = {name for one in records if _place(folder, one) == folder for name in one["files"]}
        for name in before["files"].keys() - shared:
            with suppress(OSError):
                (folder / name).unlink()


def _failed(address: Address, error: Exception) -> ModelNotFound:
    return ModelNotFound(f"could not download {address}: {error}")


def _whole_download(mark: Path) -> _Record | None:
    """The record in the file `mark`, if all its files exist with their sizes. A folder that an
    older version chose may lack files, and is not whole; of .gguf files all are as they were."""
    record = _read(mark)
    if record is None:
        return None
    try:
        place = _place(mark.parent, record)
        sizes = {name: (place / name).stat().st_size for name in record["files"]}
    except (OSError, ValueError):
        return None
    is_file = record["model"].lower().endswith(".gguf")
    is_whole = sizes == record["files"] and record["model"] in sizes
    is_new = is_file or record.get("choice") == FOLDER_CHOICE
    return record if is_whole and is_new else None


def _read(mark: Path) -> _Record | None:
    """The record in the file `mark`; None if there is none that can be read."""
    try:
        record: _Record = json.loads(mark.read_text("utf-8"))
        texts = (record["model"], record.get("folder", ""), *record["files"].keys())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if all(isinstance(one, str) for one in texts) else None


@contextmanager
def _tidied(lock: Path) -> Iterator[None]:
    """After an error: if nothing of the model has arrived, remove everything."""
    try:
        yield
    except BaseException:
        folder = lock.parent
        if not any(path.is_file() and path.stat().st_size > 0 for path in folder.rglob("*")):
            for one in (folder / PARTS, *(version.parent for version in _versions(folder))):
                shutil.rmtree(one, ignore_errors=True)
            forget_empty(lock)
        raise
