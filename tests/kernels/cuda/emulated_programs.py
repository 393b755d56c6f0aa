"""What runs in the process of an emulator: it imports no compiler."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi_orcjit

HOST_FILE, DEVICE_FILE, LIBRARY_FILE = "host.o", "device.bin", "emulated.so"


def serve() -> None:
    """Reads lines: the folder of a kernel, the files of its arguments, and the order of threads.
    Calls the kernel and writes the files again. Prints the error, or null."""
    from mlc_llm.backends.cuda.device import CudaDevice

    device = CudaDevice()
    for line in sys.stdin:
        folder, files, order = json.loads(line)
        os.environ.pop("EMULATED_BACKWARDS", None)
        os.environ.update({"EMULATED_BACKWARDS": order} if order else {})
        error = None
        try:
            _call(device, Path(folder), files)
        except Exception as caught:  # what TVM raises has no base class of its own
            error = str(caught)
        print(json.dumps(error), flush=True)


def _call(device: Any, folder: Path, files: list[str]) -> None:
    _, host, library = _linked(folder)
    if library is not None:
        _driver().fake_emulate(ctypes.c_void_p(library._handle))
    tensors = [device.upload(np.load(file)) for file in files]
    host["kernel"](*tensors)
    for file, tensor in zip(files, tensors, strict=True):
        np.save(file, device.read(tensor))


@cache
def _linked(folder: Path) -> tuple[Any, Any, Any]:
    """What keeps the code alive, the code of the host, and the kernels for the CPU; None: the
    device runs its own."""
    from mlc_llm.backends.cuda.linking import load_kernels

    session = tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
    host = session.load_module(str(folder / HOST_FILE), cxx=os.devnull)
    host.import_module(load_kernels((folder / DEVICE_FILE).read_bytes()))
    emulated = folder / LIBRARY_FILE
    return session, host, ctypes.CDLL(str(emulated)) if emulated.exists() else None


@cache
def _driver() -> Any:
    from fake_cuda import DRIVER

    return ctypes.CDLL(DRIVER)
