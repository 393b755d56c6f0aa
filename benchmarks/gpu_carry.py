"""Makes a folder that a machine with a GPU needs, and which has no network and no compiler.

    python benchmarks/gpu_carry.py FOLDER [--arch sm_90a] [--models 1b-q4 8b-q4 ...] [--no-wheels]

It has wheels of TVM's small packages and of the CUDA runtime for Python 3.12, TVM's runtime library
without its compiler, the kernels of `gpu_first_run.py`, a library of each model of `gpu_made.py`,
and small models with the logits that the CPU's reference gives (`gpu_check.py`). The other machine
needs Python 3.12 with NumPy, ml-dtypes and tokenizers. docs/gpu.md has the commands.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import gpu_kernels
import gpu_made
import numpy as np
from gpu_check import CHUNKED, tokens_of

from mlc_llm.backends.base import Backend
from mlc_llm.backends.registry import named_backend
from mlc_llm.compiler.build import build_library
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.tiny_model import write_tiny_model

WHEELS = ("apache-tvm-ffi", "apache-tvm-ffi-orcjit")
CUDA_RUNTIME = "nvidia-cuda-runtime==13.0.*"
LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_cuda.so", "libtvm_runtime_extra.so")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def main() -> int:
    args = arguments()
    folder = Path(args.folder)
    if not args.no_wheels:
        carry_packages(folder)
    (folder / "first").mkdir(parents=True, exist_ok=True)
    gpu_kernels.build(args.arch, folder / "first")
    for name in args.models:
        gpu_made.compile_made(name, args.arch, folder / "models" / name)
        print(f"compiled {name}", flush=True)
    make_check(folder / "checks" / "tiny", args.arch)
    size = sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
    print(f"{folder}: {size / 2**20:.0f} MiB for {args.arch}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--models", nargs="*", choices=gpu_made.names(), default=gpu_made.names())
    parser.add_argument("--no-wheels", action="store_true", help="download no packages")
    return parser.parse_args()


def carry_packages(folder: Path) -> None:
    """Packages for Python 3.12, and TVM's runtime as a package without Python code."""
    wheels, tvm = folder / "wheels", folder / "site" / "tvm"
    names = [*(f"{name}=={version(name)}" for name in WHEELS), CUDA_RUNTIME]
    platforms = [word for one in PLATFORMS for word in ("--platform", f"{one}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels)]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    subprocess.run([*command, *platforms, *names], check=True)
    (tvm / "lib").mkdir(parents=True, exist_ok=True)
    (tvm / "__init__.py").write_text("")
    spec = find_spec("tvm")
    assert spec is not None and spec.submodule_search_locations
    for name in LIBRARIES:
        shutil.copy(Path(spec.submodule_search_locations[0]) / "lib" / name, tvm / "lib")


def make_check(folder: Path, arch: str) -> None:
    """A small model: its library and weights for the GPU, and the reference's logits."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tiny.gguf"
    write_tiny_model(file)
    for name, backend in (
        ("cuda", named_backend("cuda", arch=arch)),
        ("reference", named_backend("reference")),
    ):
        _build(file, backend, folder / name)
    runner = ModelRunner(
        folder / "reference" / "library", folder / "reference" / "weights",
        num_pages=64, max_num_sequence=4, max_batch_tokens=64, context_window=512,
    )  # fmt: skip
    np.save(folder / "logits.npy", runner.logits(tokens_of(CHUNKED), chunk=64))
    shutil.rmtree(folder / "reference")
    file.unlink()


def _build(file: Path, backend: Backend, folder: Path) -> None:
    model = GGUFFile.open(file)
    plan = read_gguf(model.metadata, model.tensors)
    for name in ("library", "weights"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    build_library(plan.spec, backend, folder / "library")
    pack_weights(plan, backend, model.tensors, folder / "weights", lambda count: None)


if __name__ == "__main__":
    sys.exit(main())
