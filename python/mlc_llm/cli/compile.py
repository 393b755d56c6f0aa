"""`mlc_llm compile`: compile a model's library into a folder that `--model-lib` takes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.cli.guard import OK
from mlc_llm.cli.options import add_kv_cache
from mlc_llm.cli.terminal import note
from mlc_llm.conversion.output import check_free, new_output
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.precision import PRECISIONS, Precision
from mlc_llm.serve.config import EngineConfig
from mlc_llm.support.progress import set_quiet

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend

DEVICES = ("auto", "cpu", "cuda")
CUDA = DEVICES[2]
WINDOW = "sliding_window_size"
DECIDED_LATER = (
    "context_window_size", "prefill_chunk_size", "attention_sink_size", "max_batch_size",
    "tensor_parallel_shards", "pipeline_parallel_stages", "disaggregation",
)  # fmt: skip
"""Overrides of MLC LLM that do not shape a library here."""
HERE, PORTABLE = "auto", "portable"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="a .gguf file, a folder with a model, or HF://user/repo"
    )
    parser.add_argument(
        "--quantization",
        metavar="NAME",
        help="as for generate: the library is for weights that are quantised when they are packed",
    )
    _add_target(parser)
    _add_shaping(parser)
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the new folder")
    parser.add_argument("--quiet", action="store_true", help="show no progress and no notes")


def _add_shaping(parser: argparse.ArgumentParser) -> None:
    """Flags: what the code is like."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=PRECISIONS[0],
        metavar="NAME",
        help="of the engines that it is for: exact, fast-prompts or fast (default: %(default)s)",
    )
    add_kv_cache(parser)
    parser.add_argument(
        "--overrides",
        metavar="TEXT",
        default="",
        help=f"{WINDOW}=N: the library is for an engine with a sliding window",
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    """What the library is for."""
    parser.add_argument(
        "--device",
        default=DEVICES[0],
        metavar="NAME",
        help="auto, cpu or cuda (default: %(default)s, which is cpu unless --kernels says cuda)",
    )
    parser.add_argument(
        "--arch",
        metavar="NAME",
        help="with --device cuda, the GPU that runs it: sm_80, sm_86, sm_89, sm_90a or sm_100a "
        "(default: that of this machine); no GPU is needed to compile for one",
    )
    parser.add_argument(
        "--host",
        default=HERE,
        metavar="TRIPLE",
        help="the machine that runs it, as an LLVM triple such as aarch64-linux-gnu "
        "(default: this one)",
    )
    parser.add_argument(
        "--kernels",
        metavar="NAME",
        help="which kernels compute: amx, vnni-bf16, vnni, avx-vnni, avx2, i8mm, dotprod, "
        "portable, cuda or reference (default: the fastest of this machine; with --host portable)",
    )


def run(args: argparse.Namespace) -> int:
    """Compile. Mistakes in the arguments are reported before the model is opened."""
    set_quiet(args.quiet)
    output = Path(args.output).expanduser()
    if args.device not in DEVICES:
        raise InvalidField("device", args.device, "one of " + ", ".join(DEVICES))
    windowed = is_windowed(args.overrides)
    check_free(output)
    triple = None if args.host == HERE else args.host
    kernels = _kernels(args.device, args.kernels)
    kv_cache = args.kv_cache_dtype or EngineConfig.kv_cache_dtype
    backend = _backend(kernels, triple, args.precision, args.arch).with_kv_cache(kv_cache)
    # Only this command of the two that it imports needs a compiler.
    from mlc_llm.compiler.jit import MOST_LIBRARY_BYTES, compile_library
    from mlc_llm.serve.opening.bundle import open_model

    bundle = open_model(args.model, quantization=args.quantization)
    assert bundle.files is not None
    with new_output(output, needed=MOST_LIBRARY_BYTES) as folder:
        compile_library(
            bundle.files,
            backend,
            folder,
            vocab_size=bundle.tokenizer.vocab_size,
            windowed=windowed,
            triple=triple,
        )
    if not args.quiet:
        where = args.arch or ("this machine" if triple is None else triple)
        note(f"[{output}: {backend.name} kernels for {where}]")
    return OK


def is_windowed(overrides: str) -> bool:
    """Whether overrides ask for a sliding window. Raises UserError for others."""
    window = -1
    for one in filter(None, (part.strip() for part in overrides.split(";"))):
        name, _, value = (word.strip() for word in one.partition("="))
        if name in DECIDED_LATER:
            raise UserError(f"--overrides {name}: it is decided when the model is opened")
        if name != WINDOW:
            raise InvalidField("--overrides", name, f"the only one is {WINDOW}")
        if not value.removeprefix("-").isdecimal() or int(value) < -1 or int(value) == 0:
            raise InvalidField(WINDOW, value, "should be -1 or a number of tokens")
        window = int(value)
    return window > 0


def _kernels(device: str, kernels: str | None) -> str | None:
    """The kernels of the device. Raises InvalidField if the two do not agree."""
    if device == CUDA and kernels in (None, CUDA):
        return CUDA
    if device == CUDA or (device == "cpu" and kernels == CUDA):
        raise InvalidField("kernels", kernels, f"device {device} does not have them")
    return kernels


def _backend(
    kernels: str | None, triple: str | None, precision: Precision, arch: str | None
) -> Backend:
    """The kernels. Those for another machine need not run on this one."""
    from mlc_llm.backends.registry import named_backend

    backend = named_backend(kernels, PORTABLE if triple else None, arch)
    return backend.with_precision(precision)
