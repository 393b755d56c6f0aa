"""The first minutes on an NVIDIA GPU: does the driver take our code, and how fast is what?

    python benchmarks/gpu_first_run.py                       # compile here and run here
    python benchmarks/gpu_first_run.py --compile FOLDER --arch sm_90a   # no GPU is needed
    python benchmarks/gpu_first_run.py --run FOLDER          # no compiler is needed

It prints the GPU, whether a kernel's numbers are right, the speed of copies to the GPU and back,
the bandwidth of a kernel that reads and writes 1 GiB each, what a launch costs from the VM, and
what a CUDA graph of 20 kernels costs. Times are medians of the host's clock around work that is
waited for. The exit code is 1 if the numbers are wrong or something fails.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm_ffi

from mlc_llm.backends.cuda.architectures import ARCHITECTURES
from mlc_llm.backends.cuda.device import CudaDevice
from mlc_llm.backends.cuda.driver import Driver, Gpu, shown, usable_gpu
from mlc_llm.backends.cuda.linking import CudaLibrary
from mlc_llm.backends.cuda.runtime import Runtime, load_cuda
from mlc_llm.errors import MLCError

FILES = ("vm.bin", "kernels.o", "device.bin")
COLUMNS, LINKS = 1024, 20
"""As in `gpu_kernels.py`, which imports the compiler."""
GIB = 1 << 30
TURNS = 9
_RELAXED, _NON_BLOCKING = 2, 1
"""cudaStreamCaptureModeRelaxed and cudaStreamNonBlocking."""
_ref = ctypes.byref


def main() -> int:
    args = arguments()
    try:
        if args.compile:
            compile_for(args.arch, Path(args.compile))
            return 0
        gpu = usable_gpu()
        if args.run:
            return measure(gpu, Path(args.run), args.size)
        assert gpu.architecture is not None
        with tempfile.TemporaryDirectory() as folder:
            compile_for(gpu.architecture.name, Path(folder))
            return measure(gpu, Path(folder), args.size)
    except (MLCError, MemoryError) as error:
        print(f"gpu_first_run: {error}", file=sys.stderr)
        return 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--compile", metavar="FOLDER", help="compile into a folder, and end")
    parser.add_argument("--arch", default="sm_90a", choices=ARCHITECTURES)
    parser.add_argument("--run", metavar="FOLDER", help="measure what --compile has made")
    parser.add_argument("--size", type=int, default=GIB, help="bytes of the large tensor")
    return parser.parse_args()


def compile_for(arch: str, folder: Path) -> None:
    """Compiles the kernels, and says how long that took."""
    from gpu_kernels import build

    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    build(arch, folder)
    size = sum((folder / name).stat().st_size for name in FILES)
    print(f"compiled for {arch} in {time.perf_counter() - start:.1f} s: {size} bytes in {folder}")


def measure(gpu: Gpu, folder: Path, size: int) -> int:
    """Prints all figures. The exit code."""
    driver = Driver()
    print(f"GPU: {gpu.name}, {shown(gpu.capability)}, {gpu.free_memory >> 20} MiB free")
    print("driver: for CUDA {}.{}".format(*driver.version))
    start = time.perf_counter()
    device, runtime = CudaDevice(), load_cuda()
    library = device.link(folder, FILES, (arch_of(gpu),))
    print(f"library linked in {1e3 * (time.perf_counter() - start):.0f} ms")
    right = numbers_are_right(device, library)
    print(f"numbers of a kernel: {'right' if right else 'WRONG'}")
    copies(device, runtime, size)
    bandwidth(device, runtime, library, size)
    launches(device, runtime, library)
    graph(device, runtime, library)
    return 0 if right else 1


def arch_of(gpu: Gpu) -> str:
    assert gpu.architecture is not None, "usable_gpu has looked"
    return gpu.architecture.name


def numbers_are_right(device: CudaDevice, library: CudaLibrary) -> bool:
    values = np.random.default_rng(0).normal(size=(33, COLUMNS)).astype(np.float32)
    found = device.read(library["once"](device.upload(values)))
    return bool(np.array_equal(found, 2 * values))


def copies(device: CudaDevice, runtime: Runtime, size: int) -> None:
    array = np.ones(size // 4, np.uint8)
    up = timed(lambda: device.upload(array), runtime)
    tensor = device.upload(array)
    down = timed(lambda: device.read(tensor), runtime)
    print(f"copy to the GPU {rate(array.nbytes, up)}, back {rate(array.nbytes, down)}")


def bandwidth(device: CudaDevice, runtime: Runtime, library: CudaLibrary, size: int) -> None:
    x = device.zeros((size // 4 // COLUMNS, COLUMNS), "float32")
    seconds = timed(lambda: library["once"](x), runtime)
    print(f"a kernel reads and writes {size >> 20} MiB each: {rate(2 * size, seconds)}")


def launches(device: CudaDevice, runtime: Runtime, library: CudaLibrary) -> None:
    x, often = device.zeros((1, COLUMNS), "float32"), library["often"]
    each = timed(lambda: [often(x) for _ in range(100)], runtime) / (100 * LINKS)
    print(f"a launch from the VM: {1e6 * each:.2f} us (small kernels, one after the other)")


def graph(device: CudaDevice, runtime: Runtime, library: CudaLibrary) -> None:
    """A chain captured once, launched often."""
    x, often, stream = device.zeros((1, COLUMNS), "float32"), library["often"], ctypes.c_void_p()
    captured, ready = ctypes.c_void_p(), ctypes.c_void_p()
    runtime.wait(0)
    runtime.call("cudaStreamCreateWithFlags", _ref(stream), _NON_BLOCKING)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.value or 0):
        often(x)  # what is allocated and loaded once must not be captured
        runtime.call("cudaStreamBeginCapture", stream, _RELAXED)
        kept = often(x)
        runtime.call("cudaStreamEndCapture", stream, _ref(captured))
    runtime.call("cudaGraphInstantiate", _ref(ready), captured, ctypes.c_ulonglong(0))

    def launch() -> None:
        for _ in range(100):
            runtime.call("cudaGraphLaunch", ready, stream)
        runtime.wait(stream.value or 0)

    each = timed(launch, runtime) / 100
    words = f"{1e6 * each:.2f} us, {1e6 * each / LINKS:.2f} us a kernel"
    print(f"a graph of {LINKS} kernels on {tuple(kept.shape)}: {words}")
    for name, handle in (("GraphExec", ready), ("Graph", captured), ("Stream", stream)):
        runtime.call(f"cuda{name}Destroy", handle)


def timed(work: Callable[[], object], runtime: Runtime) -> float:
    """Seconds of a call until all that it started is done; the median of several."""
    work()
    found = []
    for _ in range(TURNS):
        runtime.wait(0)
        start = time.perf_counter()
        work()
        runtime.wait(0)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def rate(size: int, seconds: float) -> str:
    return f"{size / seconds / 1e9:.1f} GB/s"


if __name__ == "__main__":
    sys.exit(main())
