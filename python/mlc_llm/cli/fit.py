"""`mlc_llm fit`: how much memory a model would need. Only the header of its file is read.

It reads no weights and compiles nothing, unless `--precisions` asks for what each precision costs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import get_args

from mlc_llm.cli.fit_report import Choice, Report
from mlc_llm.cli.flags import ENGINE_FLAGS, naming_flags, with_flags
from mlc_llm.cli.guard import INTERNAL_ERROR, OK
from mlc_llm.cli.options import add_kv_cache
from mlc_llm.errors import UserError
from mlc_llm.serve.config import EngineConfig, EngineMode
from mlc_llm.serve.config_fields import MODES
from mlc_llm.serve.limits import (
    complete_config,
    infer_limits,
    least_tokens,
    plan_memory,
)
from mlc_llm.serve.memory_plan import ModelSize
from mlc_llm.serve.opening.bundle import ModelBundle, open_model
from mlc_llm.serve.opening.vision import with_vision
from mlc_llm.serve.precision_costs import PrecisionCost

FLAGS = {
    "max_single_sequence_length": "--context",
    "max_num_sequence": "--sequences",
    "prefill_chunk_size": "--chunk",
    "max_total_sequence_length": "--tokens",
    "gpu_memory_utilization": "--utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
}
"""Field of `EngineConfig` that changes the memory -> the flag that sets it."""
NAMED = {**ENGINE_FLAGS, **FLAGS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .gguf file, a model folder, or HF://user/repo (default: the default model)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="local",
        metavar="MODE",
        help=f"one of {', '.join(MODES)} (default: %(default)s)",
    )
    parser.add_argument("--context", type=int, metavar="N", help="the most tokens of a sequence")
    parser.add_argument("--sequences", type=int, metavar="N", help="the most sequences at a time")
    parser.add_argument("--chunk", type=int, metavar="N", help="the most tokens of one step")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of all sequences together")
    parser.add_argument(
        "--utilization", type=float, metavar="X", help="the share of the free memory to use, 0 to 1"
    )
    add_kv_cache(parser)
    parser.add_argument(
        "--tensor-parallel-shards", type=int, metavar="N", help="processes that compute the model"
    )
    parser.add_argument(
        "--precisions",
        action="store_true",
        help="measure what each precision costs, if nobody has: it compiles and packs the model",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the table. The exit code is 1 if the chosen mode does not fit."""
    given = {name: getattr(args, flag[2:].replace("-", "_")) for name, flag in FLAGS.items()}
    with naming_flags(NAMED):
        shards = args.tensor_parallel_shards
        config = EngineConfig(mode=args.mode, tensor_parallel_shards=shards, **given)
        bundle = with_vision(open_model(args.model), config)
        size, (free, promised) = _look(bundle, config)
        choices = {
            mode: choose(replace(config, mode=mode), size, free, promised)
            for mode in get_args(EngineMode)
        }
        costs = _costs(bundle, measured=args.precisions)
    report = Report(bundle.name, size, args.mode, choices, costs)
    sys.stdout.write(report.asjson() if args.json else report.astext())
    return OK if report.chosen.reason is None else INTERNAL_ERROR


def choose(config: EngineConfig, size: ModelSize, free: int, promised: str = "") -> Choice:
    """What `config` needs. Raises `InvalidField` for a limit that no amount of memory allows."""
    asked = infer_limits(config, size)
    try:
        complete, plan = complete_config(config, size, free, promised)
        return Choice(complete, plan, None)
    except UserError as error:
        least = replace(asked, max_total_sequence_length=least_tokens(config))
        return Choice(
            least, plan_memory(asked, size, free, promised), with_flags(str(error), NAMED)
        )


def _look(bundle: ModelBundle, config: EngineConfig) -> tuple[ModelSize, tuple[int, str]]:
    """The size of the model, the free and the promised memory."""
    # TVM says which kernels this machine gets, and so how weights are packed.
    from mlc_llm.serve.opening.memory import look_at_memory, model_size

    memory = look_at_memory()
    shards = config.tensor_parallel_shards or 1
    size = model_size(bundle, kv_cache=config.kv_cache_dtype, shards=shards)
    return size, memory.left(memory.standing)


def _costs(bundle: ModelBundle, *, measured: bool) -> list[PrecisionCost]:
    """What each precision costs. measured: find it out if it is not known."""
    from mlc_llm.serve.opening.precision import costs_of, known_costs

    return costs_of(bundle) if measured else known_costs(bundle)
