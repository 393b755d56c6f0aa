"""The folder or file that a command makes: it appears at once, complete, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mlc_llm.errors import UserError
from mlc_llm.support.leaving import undone


@contextmanager
def new_output(path: Path, *, needed: int = 0) -> Iterator[Path]:
    """A temporary folder beside `path`. At the end of the block it becomes `path`; if the block
    raises, or Ctrl-C ends the program, it is removed.

    needed: bytes that will be written. Raises UserError if something is there already or the disk
    is too full, OSError.
    """
    _check_place(path, needed)
    temporary = _temporary(path)
    remove = partial(shutil.rmtree, temporary, ignore_errors=True)
    with undone(remove), _removing(remove):
        with _naming(path):
            temporary.mkdir()
        yield temporary
        for file in _files(temporary):
            _sync(file)
        if path.is_dir():  # an empty one
            path.rmdir()
        temporary.rename(path)


@contextmanager
def new_file(path: Path, *, needed: int = 0) -> Iterator[Path]:
    """A temporary path that becomes the file `path`; otherwise as `new_output`."""
    _check_place(path, needed)
    temporary = _temporary(path)
    remove = partial(temporary.unlink, missing_ok=True)
    with undone(remove), _removing(remove):
        with _naming(path):
            temporary.touch()
        yield temporary
        _sync(temporary)
        temporary.rename(path)


@contextmanager
def changed_folder(path: Path) -> Iterator[Path]:
    """A temporary folder. At the end of the block its files take their places in the folder
    `path`, one after the other; it is made if there is none. Raises UserError, OSError."""
    if path.exists() and not path.is_dir():
        raise UserError(f"the output {path} is a file; name a folder")
    if not path.exists() or not any(path.iterdir()):
        with new_output(path) as temporary:
            yield temporary
        return
    temporary = path / f".{os.getpid()}-{secrets.token_hex(4)}.part"
    remove = partial(shutil.rmtree, temporary, ignore_errors=True)
    with undone(remove):
        temporary.mkdir()
        try:
            yield temporary
            for file in _files(temporary):
                _sync(file)
                place = path / file.relative_to(temporary)
                place.parent.mkdir(exist_ok=True)
                file.replace(place)
        finally:
            remove()


def check_free(path: Path) -> None:
    """Raises UserError if there is a file, or a folder with something in it, or if no folder can
    be made there."""
    with _naming(path):
        if path.is_dir():
            if any(path.iterdir()):
                raise UserError(f"the output folder {path} is not empty; name a new one")
        elif path.exists() or path.is_symlink():
            raise UserError(f"the output {path} is there already; name a new one")
        above = next((one for one in path.parents if one.exists() or one.is_symlink()), None)
        if above is not None and not above.is_dir():
            raise UserError(f"the output {path} cannot be made: {above} is no folder")


def check_room(folder: Path, needed: int) -> None:
    """Raises UserError if the disk has less room."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"the disk of {folder} is too full: {needed / 1e9:.2f} GB are needed, "
            f"{free / 1e9:.2f} GB are free"
        )


def _check_place(path: Path, needed: int) -> None:
    """Makes the folder above `path`, too."""
    check_free(path)
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_room(path.parent, needed)


def _temporary(path: Path) -> Path:
    """A new path beside `path`. A long name is cut: the longest that a system allows has no room
    for more."""
    return path.parent / f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.part"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An error of the system becomes one that names the output."""
    try:
        yield
    except OSError as error:
        raise UserError(f"the output {path} cannot be made: {error.strerror}") from error


@contextmanager
def _removing(remove: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove()
        raise


def _files(folder: Path) -> list[Path]:
    """Also those in folders inside it."""
    return [path for path in folder.rglob("*") if path.is_file()]


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
