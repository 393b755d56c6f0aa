"""The arguments that several commands share, and the configs that are made of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlc_llm.cli import shape
from mlc_llm.cli.flags import naming_flags
from mlc_llm.errors import UserError
from mlc_llm.library.page_format import KV_CACHE_DTYPES
from mlc_llm.pooling import POOLINGS
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.serve.config import EngineConfig, EngineMode
from mlc_llm.serve.config_fields import ENGINE_PRECISIONS, MODES, SPECULATIVE_MODES

FALLBACK: dict[str, int | float] = {"max_tokens": 1024, "temperature": 0.2, "top_p": 0.9}
"""The values if neither a flag nor the model gives one. A small model may never stop by itself. The
other two are the advice of the makers of the default model (at 1.0 its text makes no sense)."""

MODE: EngineMode = "interactive"
"""These commands need only one answer at a time."""


class Setting(NamedTuple):
    """A number that changes how tokens are chosen: a field of `GenerationConfig`, and a flag."""

    kind: type
    metavar: str
    help: str


SETTINGS = {
    "max_tokens": Setting(int, "N", "the most tokens of the answer; -1: until the context is full"),
    "temperature": Setting(float, "T", "0: always the likeliest token"),
    "top_p": Setting(float, "P", "keep the likeliest tokens that together have this probability"),
    "top_k": Setting(int, "K", "keep the K likeliest tokens; 0: all"),
    "min_p": Setting(float, "P", "drop tokens with less than P times the greatest probability"),
    "frequency_penalty": Setting(float, "X", "above 0: fewer tokens that came often before"),
    "presence_penalty": Setting(float, "X", "above 0: fewer tokens that came before"),
    "repetition_penalty": Setting(float, "R", "above 1: less repetition"),
    "seed": Setting(int, "N", "the same seed gives the same answer"),
}
"""The name of a field is also its flag (`top_p`, `--top-p`) and its name in `/set`."""


def add_model(
    parser: argparse.ArgumentParser,
    *,
    system: bool = True,
    action: str | type[argparse.Action] = "store",
) -> None:
    """Flags: which model, and where it runs. system: with the flag of the system message. action:
    what is done with the model."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        action=action,
        help="a .gguf file, a model folder, or HF://user/repo "
        "(default: SmolLM2-135M-Instruct, downloaded once)",
    )
    group.add_argument(
        "--device", default="auto", help="where to run: auto, cpu or cuda (default: %(default)s)"
    )
    if system:
        group.add_argument("--system", help="the system message, instead of the model's own")


def add_engine(parser: argparse.ArgumentParser, mode: EngineMode = MODE) -> None:
    """Flags: how the engine runs the model. mode: the default."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--mode",
        choices=MODES,
        default=mode,
        metavar="MODE",
        help=f"how much memory to take: one of {', '.join(MODES)} (default: %(default)s)",
    )
    group.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="the most tokens of prompt and answer together (default: what model and memory allow)",
    )
    group.add_argument(
        "--speculative",
        choices=SPECULATIVE_MODES,
        metavar="NAME",
        help="draft tokens, for the same answer in less time: auto, prompt_lookup, disable, or "
        "small_draft, eagle or medusa with --draft-model (default: "
        f"{EngineConfig.speculative_mode})",
    )
    group.add_argument(
        "--draft-model",
        metavar="MODEL",
        help="the smaller model of small_draft, or the folder of heads of eagle or medusa",
    )
    _add_adapter(group)
    _add_pooling(group)
    _add_images(group)
    group.add_argument(
        "--precision",
        choices=ENGINE_PRECISIONS,
        metavar="NAME",
        help="how exactly the model is computed: exact, fast-prompts, fast (answers too), or auto, "
        "which measures them and takes the fastest that is near enough (default: exact)",
    )
    add_kv_cache(group)
    _add_kernels(group)


def add_kv_cache(group: argparse._ActionsContainer) -> None:
    """The flag of `kv_cache_dtype`."""
    group.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        metavar="NAME",
        help="how keys and values are kept: auto, or int8, which needs about half the memory and "
        f"changes texts a little (default: {EngineConfig.kv_cache_dtype})",
    )


def _add_adapter(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--adapter",
        metavar="NAME=PATH",
        action="append",
        help="a LoRA adapter, a PEFT folder or a .gguf file; a server's requests name it as their "
        "model, other commands use the only one",
    )


def _add_pooling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pooling",
        choices=POOLINGS,
        metavar="NAME",
        help="how embeddings are made: last_token, mean or cls; a model for chats makes none "
        "without it (default: as the model's files say)",
    )


def _add_images(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mmproj",
        metavar="FILE",
        help="the tower with which the model reads images, a .gguf file; none: it reads none "
        "(default: the one in the model's folder, or the only mmproj file beside it that fits)",
    )
    group.add_argument(
        "--allow-image-hosts",
        metavar="HOST",
        nargs="+",
        action="extend",
        help="hosts from which images are fetched, such as example.org (default: none; images come "
        "as data: addresses)",
    )


def _add_kernels(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tensor-parallel-shards",
        type=int,
        metavar="N",
        help="split the model among N processes on this machine: on GPUs one for each GPU, on CPUs "
        "each with an equal share of the cores, as where memory is far apart (default: 1)",
    )
    group.add_argument(
        "--model-lib",
        metavar="FOLDER",
        help="a library that `compile` has made (default: it is compiled when it is needed)",
    )
    group.add_argument(
        "--kernels",
        metavar="NAME",
        help="which kernels compute: a name that `doctor` shows, portable, or reference, which is "
        "plain float32 and slow (default: the fastest for this machine)",
    )

    group.add_argument(
        "--quantization",
        metavar="NAME",
        help="quantise the weights when they are packed: q4f16_1, q4_0 and others, as for "
        "convert_weight (default: they stay as they are)",
    )
    group.add_argument(
        "--rope-scaling",
        metavar="JSON",
        help='scale the rotary embedding for longer texts, as in a config.json: {"rope_type": '
        '"yarn", "factor": 4.0} (default: as the model says)',
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Flags: how tokens are chosen. The model's defaults replace flags that are not given."""
    group = parser.add_argument_group("sampling")
    for name, setting in SETTINGS.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=setting.kind,
            metavar=setting.metavar,
            help=f"{setting.help} ({_default(name)})",
        )
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end before this text; may be repeated",
    )
    shape.add_arguments(parser)


def generation_config(args: argparse.Namespace) -> GenerationConfig:
    """The given flags about one answer.

    Raises `InvalidField` for a value out of range and `UserError` for a bad file.
    """
    given = {name: getattr(args, name) for name in SETTINGS}
    given |= {"stop_strs": args.stop, "response_format": shape.wanted(args)}
    return GenerationConfig.of(given)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The given flags about the engine. Raises `UserError` that names the flag."""
    given = {
        "mode": args.mode,
        "max_single_sequence_length": args.context,
        "speculative_mode": args.speculative,
        "additional_models": None if args.draft_model is None else [args.draft_model],
        "precision": args.precision,
        "kv_cache_dtype": args.kv_cache_dtype,
        "tensor_parallel_shards": args.tensor_parallel_shards,
        "kernels": args.kernels,
        "quantization": args.quantization,
        "rope_scaling": _scaling(args.rope_scaling),
        "model_lib": args.model_lib,
        "adapters": _adapters(args.adapter or ()),
        "pooling": args.pooling,
        "mmproj": args.mmproj,
        "allow_image_hosts": args.allow_image_hosts,
    }
    with naming_flags():
        return EngineConfig.from_mapping(given)


def _scaling(text: str | None) -> Mapping[str, object] | None:
    """Raises `UserError`."""
    return None if text is None else parse_json_object(text, "--rope-scaling")


def only_adapter(args: argparse.Namespace) -> str:
    """The name of the adapter of a command that answers one request at a time, or none. Raises
    `UserError` for several."""
    if len(args.adapter or ()) > 1:
        raise UserError("--adapter: this command takes one adapter; a server takes several")
    return next(iter(_adapters(args.adapter or ())), "")


def _adapters(given: Sequence[str]) -> dict[str, str]:
    """Paths by name."""
    found: dict[str, str] = {}
    for one in given:
        name, mark, path = one.partition("=")
        if not (mark and name and path):
            raise UserError(f"--adapter {one}: should be NAME=PATH")
        if name in found:
            raise UserError(f"--adapter {one}: another one has this name")
        found[name] = path
    return found


def completed(config: GenerationConfig, defaults: GenerationConfig) -> GenerationConfig:
    """`config`, with open fields filled by the model's defaults and then by `FALLBACK`."""
    return config.for_chat(defaults).merged_over(FALLBACK)


def _default(name: str) -> str:
    value = FALLBACK.get(name, getattr(GenerationConfig, name))
    return f"default: the model's own, else {'drawn at random' if value is None else value}"
