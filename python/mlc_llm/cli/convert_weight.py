"""`mlc_llm convert_weight`: quantise a model's weights and write them as new files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from mlc_llm.cli.guard import OK
from mlc_llm.cli.terminal import note
from mlc_llm.conversion.chat_config import check_template
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.conversion.importance import read_importance
from mlc_llm.conversion.output import check_free
from mlc_llm.errors import UserError
from mlc_llm.model_files.adapters import merged, open_adapter
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.names import NAMES, WEIGHTED, check_name
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.support.progress import progress, set_quiet

MAX_TEXT_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model",
        metavar="SOURCE",
        help="a .gguf file, a Hugging Face folder, or HF://user/repo",
    )
    parser.add_argument(
        "--quantization",
        metavar="NAME",
        required=True,
        help=f"how weights are stored: one of {', '.join(NAMES)}",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        required=True,
        help="the new folder; for the types of GGUF also a new .gguf file",
    )
    parser.add_argument(
        "--conv-template",
        metavar="NAME",
        help="a chat template of MLC LLM, used instead of the model's own; auto: the model's own "
        "(default: as the folder's mlc-chat-config.json says, else auto)",
    )
    parser.add_argument(
        "--lora",
        metavar="PATH",
        action="append",
        default=[],
        help="an adapter that is merged into the weights before they are quantised: a PEFT folder, "
        "or a .gguf file; several are merged one after the other",
    )
    _add_weighing(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress and no notes")


def _add_weighing(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what an error in a column costs."""
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help="a text: scales of groups are chosen so that errors cost least on it, and the gain is "
        "measured; it takes minutes",
    )
    parser.add_argument(
        "--imatrix",
        metavar="FILE",
        help="the same choice by what llama.cpp's llama-imatrix has measured, a .gguf or .dat file",
    )


def run(args: argparse.Namespace) -> int:
    """Convert. Mistakes in the arguments are reported before the model is opened."""
    set_quiet(args.quiet)
    output = Path(args.output).expanduser()
    check_name(args.quantization)
    check_template(args.conv_template, args.quantization)
    check_free(output)
    _check_weighted(args)
    text = None if args.calibrate is None else _text(args.calibrate)
    files = open_model(args.model).files
    assert files is not None
    for source in args.lora:
        files = merged(files, open_adapter(source))
    importance: Mapping[str, Floats] = {}
    if text is not None:
        importance = _importance(files, args.quantization, text)
    elif args.imatrix is not None:
        importance = _read(files, Path(args.imatrix).expanduser())
    made = convert_weight(
        files,
        args.quantization,
        output,
        progress,
        template=args.conv_template,
        importance=importance,
    )
    if not args.quiet:
        note(f"[{made.path}: {made.bits:.2f} bits a weight]")
    return OK


def _check_weighted(args: argparse.Namespace) -> None:
    """Raises UserError for flags that do not fit each other."""
    given = [name for name in ("calibrate", "imatrix") if getattr(args, name) is not None]
    if len(given) > 1:
        raise UserError("--calibrate and --imatrix both say what columns cost; give one of them")
    if given and args.quantization not in WEIGHTED:
        known = ", ".join(WEIGHTED)
        raise UserError(f"--{given[0]} chooses scales of {known}; not of {args.quantization}")


def _text(path: str) -> str:
    """The text to calibrate with. Raises UserError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UserError(f"--calibrate {path}: {error.strerror}") from error


def _importance(files: ModelFiles, quantization: str, text: str) -> Mapping[str, Floats]:
    """What columns cost. Says what that is worth."""
    # A conversion without it needs no compiler.
    from mlc_llm.conversion.calibration import calibrate

    found = calibrate(files, quantization, text, progress)
    gain = 100 * (1 - found.weighted / found.plain) if found.plain else 0.0
    note(
        f"[KL divergence from float32 over {found.positions} tokens: {found.plain:.5f} without the "
        f"text, {found.weighted:.5f} with it ({gain:.1f}% less)]"
    )
    unmet, experts = found.unmet
    if unmet:
        note(
            f"[{unmet} of {experts} experts met no token of the text; they got the mean importance "
            "of their layer's experts. A longer text meets more]"
        )
    return found.importance


def _read(files: ModelFiles, path: Path) -> Mapping[str, Floats]:
    """What a file says that columns cost. Says how much of the model it speaks of."""
    read = read_importance(path, files.plan())
    note(f"[importance of {len(read.found)} of {read.matrices} matrices, from {path}]")
    return read.found
