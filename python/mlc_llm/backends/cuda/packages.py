"""Finds the files of NVIDIA's Python packages: a compiler and its headers, and the CUDA runtime
(the extra `cuda`), and NCCL, which adds up over several GPUs (`cuda-ranks`). No CUDA toolkit is
looked for.

The packages share the namespace `nvidia`, so they may lie in any folder of `sys.path`.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from mlc_llm.errors import UnusableDevice

CUDA = "cu13"
"""The folder in the namespace `nvidia` that the packages of CUDA 13 fill together."""
PACKAGES = {
    "nvidia-cuda-nvrtc": "lib/libnvrtc.so.13",
    "nvidia-cuda-runtime": "lib/libcudart.so.13",
    "nvidia-cuda-crt": "include/crt/host_defines.h",
    "nvidia-cuda-cccl": "include/cccl/cuda/std/cstdint",
}
"""A file of each package, below `CUDA`."""
NCCL = "nvidia-nccl-cu13"
_OF_RANKS = {NCCL: "lib/libnccl.so.2"}
"""The same, below a folder of its own."""
_NCCL_FOLDER = "nccl"
TO_RUN = ("nvidia-cuda-runtime",)
"""What is needed where everything is compiled already."""


def roots(folder: str = CUDA) -> list[Path]:
    """The folders of that name in the namespace `nvidia` that there are."""
    spec = find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or []
    return [root for one in folders if (root := Path(one) / folder).is_dir()]


def missing(*packages: str) -> list[str]:
    """Which of these packages are not installed; of all for one GPU, if none is named."""
    return [one for one in packages or PACKAGES if not _is_there(one)]


def _is_there(package: str) -> bool:
    file = (PACKAGES | _OF_RANKS)[package]
    return any((root / file).exists() for root in _roots_of(package))


def _roots_of(package: str) -> list[Path]:
    return roots(_NCCL_FOLDER if package in _OF_RANKS else CUDA)


def require(*packages: str) -> None:
    """Raises UnusableDevice if one of these packages is not installed."""
    if lacking := missing(*packages):
        words = "a package is" if len(lacking) == 1 else "packages are"
        extra = "cuda-ranks" if any(one in _OF_RANKS for one in lacking) else "cuda"
        words = f"{words} missing: {', '.join(lacking)}; pip install 'mlc-llm[{extra}]'"
        raise UnusableDevice(words)


def include_folders() -> list[str]:
    """Where the compiler finds headers."""
    folders = (root / "include" for root in roots())
    return [str(place) for one in folders for place in (one, one / "cccl") if place.is_dir()]


def load_library(package: str, pattern: str, *, for_all: bool = False) -> ctypes.CDLL:
    """A shared library of a package. pattern: its name below `lib`, which may have stars.
    for_all: libraries that are loaded later see its symbols. Raises UnusableDevice."""
    require(package)
    mode = ctypes.RTLD_GLOBAL if for_all else ctypes.RTLD_LOCAL
    for root in _roots_of(package):
        for path in sorted((root / "lib").glob(pattern)):
            try:
                return ctypes.CDLL(str(path), mode=mode)
            except OSError as error:
                words = f"{path} does not load ({error}); install {package} again"
                raise UnusableDevice(words) from error
    raise UnusableDevice(f"{package} has no file {pattern}; install it again")
