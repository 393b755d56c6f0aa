"""Vocabularies of real models with the ids that their makers' tokenizers give to 46 texts.

They lie in the source archive of llama-cpp-python (MIT licence), 76 MB, which pip fetches once into
the cache folder. A file `ggml-vocab-NAME.gguf` holds a vocabulary only; beside it lie the texts
(`.inp`) and the ids (`.out`, a line a text), where there are any.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

from mlc_llm.support.files import cache_dir

PACKAGE, RELEASE = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_ARCHIVE = f"llama_cpp_python-{RELEASE}.tar.gz"
_INSIDE = f"llama_cpp_python-{RELEASE}/vendor/llama.cpp/models/"
_BETWEEN = "\n__ggml_vocab_test__\n"


class CannotFetch(Exception):
    """The archive is not there and cannot be had. Says why."""


def folder() -> Path:
    """The folder with the vocabularies, fetched if this is the first time.

    Raises `CannotFetch`.
    """
    home = cache_dir("vocabularies")
    ready = home / f"{RELEASE}"
    if not ready.exists():
        archive = home / _ARCHIVE
        if not archive.exists():
            _fetch(home)
        if sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise CannotFetch(f"{archive} is not the archive that is meant; remove it")
        _unpack(archive, ready)
        archive.unlink()
    return ready


def cases(path: Path) -> list[tuple[str, list[int]]]:
    """The texts beside a vocabulary and the ids of each."""
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode().split(_BETWEEN)
    lines = path.with_name(f"{path.name}.out").read_text(encoding="utf-8").splitlines()
    if texts[-1] == "":
        texts.pop()
    return [(text, [*map(int, line.split())]) for text, line in zip(texts, lines, strict=True)]


def _fetch(home: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise CannotFetch("this Python has no pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--no-binary", PACKAGE, "--dest", str(home), f"{PACKAGE}=={RELEASE}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not (home / _ARCHIVE).exists():
        lines = done.stderr.strip().splitlines() or [f"pip ended with code {done.returncode}"]
        raise CannotFetch(lines[-1])


def _unpack(archive: Path, ready: Path) -> None:
    """All at once: a process that is stopped leaves no half folder of that name."""
    growing = ready.with_name(f".{ready.name}.{os.getpid()}")
    growing.mkdir(exist_ok=True)
    with tarfile.open(archive) as packed:
        for member in packed:
            name = member.name.removeprefix(_INSIDE)
            wanted = name != member.name and name.startswith("ggml-vocab-") and "/" not in name
            if wanted and (data := packed.extractfile(member)) is not None:
                (growing / name).write_bytes(data.read())
    growing.rename(ready)
