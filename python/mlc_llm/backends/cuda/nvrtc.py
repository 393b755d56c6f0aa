"""CUDA source to machine code with NVRTC, NVIDIA's compiler as a library.

It needs no GPU, no driver, no toolkit and no host compiler. Source: NVRTC's documentation, 13.0.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache

from mlc_llm.backends.cuda.architectures import architecture
from mlc_llm.backends.cuda.packages import include_folders, load_library, require
from mlc_llm.errors import CompileError

_OPTIONS = ("--std=c++17", "--device-int128", "-default-device")
"""Without `--use_fast_math`: divisions and roots are rounded as IEEE 754 says, and small numbers
stay what they are. Products and sums may still become one operation, rounded once."""
_ref = ctypes.byref
_ERROR = re.compile(r"\berror\b")


def compile_cubin(source: str, arch: str) -> bytes:
    """Machine code for one architecture, as an ELF file.

    Raises InvalidField for an unknown architecture, UnusableDevice if a package is missing,
    CompileError with the first error of the compiler.
    """
    wanted = architecture(arch)
    require()
    library = _library()
    program = ctypes.c_void_p()
    text = source.encode()
    _check(library.nvrtcCreateProgram(_ref(program), text, b"kernels.cu", 0, None, None))
    try:
        options = [one.encode() for one in _options(wanted.name)]
        pointers = (ctypes.c_char_p * len(options))(*options)
        result = library.nvrtcCompileProgram(program, len(options), pointers)
        if result:
            log = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise CompileError(f"NVRTC, for {arch}: {first_error(log.decode(errors='replace'))}")
        return _read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(_ref(program))


def first_error(log: str) -> str:
    """The line of a compiler's log that says what is wrong first."""
    lines = [line.strip() for line in log.strip("\0").splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), " | ".join(lines[:2]))[:400]


def _options(arch: str) -> list[str]:
    return [
        f"--gpu-architecture={arch}",
        *_OPTIONS,
        *(f"--include-path={folder}" for folder in include_folders()),
    ]


@cache
def _library() -> ctypes.CDLL:
    # NVRTC asks the system for this library by its name alone, which finds it once it is loaded.
    load_library("nvidia-cuda-nvrtc", "libnvrtc-builtins.so.13*", for_all=True)
    library = load_library("nvidia-cuda-nvrtc", "libnvrtc.so.13")
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _read(size: Callable[..., int], text: Callable[..., int], program: object) -> bytes:
    """What one function of NVRTC writes, whose size another one says."""
    count = ctypes.c_size_t()
    _check(size(program, _ref(count)))
    buffer = ctypes.create_string_buffer(count.value)
    _check(text(program, buffer))
    return buffer.raw


def _check(result: int) -> None:
    if result:
        words = _library().nvrtcGetErrorString(result).decode()
        raise CompileError(f"NVRTC failed: {words}")
