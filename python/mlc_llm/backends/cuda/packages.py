"""Finds the files of NVIDIA's Python packages (the extra `cuda`): a compiler and its headers, and
the CUDA runtime. No CUDA toolkit is looked for.

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
TO_RUN = ("nvidia-cuda-runtime",)
"""What is needed where everything is compiled already."""


def roots() -> list[Path]:
    """The folders `nvidia/cu13` that there are."""
    spec = find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or []
    return [root for folder in folders if (root := Path(folder) / CUDA).is_dir()]


def missing(*packages: str) -> list[str]:
    """Which of these packages are not installed; of all, if none is named."""
    found = roots()
    wanted = packages or tuple(PACKAGES)
    return [one for one in wanted if not any((root / PACKAGES[one]).exists() for root in found)]


def require(*packages: str) -> None:
    """Raises UnusableDevice if one of these packages is not installed."""
    if lacking := missing(*packages):
        words = "a package is" if len(lacking) == 1 else "packages are"
        raise UnusableDevice(f"{words} missing: {', '.join(lacking)}; pip install 'mlc-llm[cuda]'")


def include_folders() -> list[str]:
    """Where the compiler finds headers."""
    folders = (root / "include" for root in roots())
    return [str(place) for one in folders for place in (one, one / "cccl") if place.is_dir()]


def load_library(package: str, pattern: str, *, for_all: bool = False) -> ctypes.CDLL:
    """A shared library of a package. pattern: its name below `lib`, which may have stars.
    for_all: libraries that are loaded later see its symbols. Raises UnusableDevice."""
    require(package)
    mode = ctypes.RTLD_GLOBAL if for_all else ctypes.RTLD_LOCAL
    for root in roots():
        for path in sorted((root / "lib").glob(pattern)):
            try:
                return ctypes.CDLL(str(path), mode=mode)
            except OSError as error:
                words = f"{path} does not load ({error}); install {package} again"
                raise UnusableDevice(words) from error
    raise UnusableDevice(f"{package} has no file {pattern}; install it again")
