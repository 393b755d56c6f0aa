"""Arguments that several commands share, and what they become."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from mlc_llm.cli import shape
from mlc_llm.cli.flags import naming_flags
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import (
    BUILT_SPECULATIVE_MODES,
    MODES,
    PROMPT_PRECISIONS,
    EngineConfig,
    EngineMode,
)

FALLBACK: dict[str, Any] = {"max_tokens": 1024, "temperature": 0.2, "top_p": 0.9}
"""Where neither a flag nor the model says anything. A small model may never stop by itself; the
other two are what the makers of the default model advise (at 1.0 it talks nonsense)."""

MODE: EngineMode = "interactive"
"""One answer at a time is all that these commands need."""


class Setting(NamedTuple):
    """A number that says how tokens are chosen: a field of `GenerationConfig` and a flag."""

    kind: type
    metavar: str
    help: str


SETTINGS = {
    "max_tokens": Setting(int, "N", "most tokens to answer, -1: until the context is full"),
    "temperature": Setting(float, "T", "0 takes the likeliest token"),
    "top_p": Setting(float, "P", "keep the likeliest tokens with this much probability"),
    "top_k": Setting(int, "K", "keep the K likeliest tokens; 0 all"),
    "min_p": Setting(float, "P", "drop tokens less than P times as likely as the likeliest"),
    "frequency_penalty": Setting(float, "X", "above 0: fewer tokens that came often"),
    "presence_penalty": Setting(float, "X", "above 0: fewer tokens that came before"),
    "repetition_penalty": Setting(float, "R", "above 1: less repetition"),
    "seed": Setting(int, "N", "the same seed gives the same answer"),
}
"""Field to flag (`top_p`, `--top-p`) and to the name that `/set` knows."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, and where it runs."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        help="a .gguf file, a folder with one, or HF://user/repo "
        "(default: SmolLM2-135M-Instruct, downloaded once)",
    )
    group.add_argument("--device", default="auto", help="where to run (default: %(default)s)")
    group.add_argument("--system", help="the system message, instead of the model's own")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """How the engine runs the model."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--mode",
        choices=MODES,
        default=MODE,
        metavar="MODE",
        help=f"how much memory to take: one of {', '.join(MODES)} (default: %(default)s)",
    )
    group.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens of prompt and answer together (default: as many as model and memory allow)",
    )
    group.add_argument(
        "--speculative",
        choices=BUILT_SPECULATIVE_MODES,
        metavar="NAME",
        help="guess tokens ahead, for the same answer sooner: prompt_lookup, or small_draft with "
        f"--draft-model (default: {EngineConfig.speculative_mode})",
    )
    group.add_argument(
        "--draft-model", metavar="MODEL", help="the smaller model that guesses for small_draft"
    )
    group.add_argument(
        "--precision",
        choices=PROMPT_PRECISIONS,
        metavar="NAME",
        help="how prompts are computed: exact, or fast, which costs some of the exactness "
        f"(default: {EngineConfig.prompt_precision})",
    )
    group.add_argument(
        "--kernels",
        metavar="NAME",
        help="which kernels compute: a name that `doctor` shows, portable, or reference, which is "
        "plain float32 and slow (default: the fastest for this machine)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen; what is not given is the model's default."""
    group = parser.add_argument_group("sampling")
    for name, setting in SETTINGS.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=setting.kind,
            metavar=setting.metavar,
            help=f"{setting.help} ({_default(name)})",
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    shape.add_arguments(parser)


def generation_config(args: argparse.Namespace) -> GenerationConfig:
    """The flags about one answer that were given.

    Raises `InvalidField` for a value out of range and `UserError` for a file that is no good.
    """
    given = {name: getattr(args, name) for name in SETTINGS}
    given |= {"stop_strs": args.stop, "response_format": shape.wanted(args)}
    return GenerationConfig.of(given)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The flags about the engine that were given. Raises `InvalidField`."""
    given: dict[str, Any] = {
        "max_single_sequence_length": args.context,
        "speculative_mode": args.speculative,
        "additional_models": None if args.draft_model is None else [args.draft_model],
        "prompt_precision": args.precision,
        "kernels": args.kernels,
    }
    with naming_flags():
        return EngineConfig(mode=args.mode, **given)


def completed(config: GenerationConfig, defaults: GenerationConfig) -> GenerationConfig:
    """`config` with the model's defaults under it and, under both, `FALLBACK`."""
    return config.merged_over(defaults).merged_over(FALLBACK)


def _default(name: str) -> str:
    value = FALLBACK.get(name, getattr(GenerationConfig, name))
    return f"default: the model's own, else {'drawn at random' if value is None else value}"
