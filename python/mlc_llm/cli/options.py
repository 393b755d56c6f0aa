"""Arguments that several commands share, and what they become."""

from __future__ import annotations

import argparse
from typing import Any

from mlc_llm.protocol.generation_config import GenerationConfig

FALLBACK: dict[str, Any] = {"max_tokens": 1024, "temperature": 0.2, "top_p": 0.9}
"""Where neither a flag nor the model says anything. A small model may never stop by itself; the
other two are what the makers of the default model advise (at 1.0 it talks nonsense)."""

_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


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


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen; what is not given is the model's default."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"most tokens to answer, -1 for no limit ({_default('max_tokens')})",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help=f"0 takes the likeliest token ({_default('temperature')})",
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help=f"keep the likeliest tokens with this much probability ({_default('top_p')})",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest tokens; 0 all")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens much less likely")
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: less of it")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )


def generation_config(args: argparse.Namespace) -> GenerationConfig:
    """The sampling flags that were given. Raises `InvalidField` for a value out of range."""
    given: dict[str, Any] = {name: getattr(args, name) for name in _SAMPLING}
    return GenerationConfig(**given, stop_strs=args.stop)


def completed(config: GenerationConfig, defaults: GenerationConfig) -> GenerationConfig:
    """`config` with the model's defaults under it and, under both, `FALLBACK`."""
    return config.merged_over(defaults).merged_over(FALLBACK)


def _default(name: str) -> str:
    return f"default: the model's own, else {FALLBACK[name]}"
