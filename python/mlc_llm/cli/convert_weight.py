"""`mlc_llm convert_weight`: quantise a model's weights and write them as new files."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlc_llm.cli.guard import OK
from mlc_llm.cli.terminal import note
from mlc_llm.conversion.chat_config import AUTO, check_template
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.conversion.output import check_free
from mlc_llm.quantization.names import NAMES, check_name
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.support.progress import progress, set_quiet


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
        default=AUTO,
        help="the chat template in mlc-chat-config.json (default: one like the model's own)",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress and no notes")


def run(args: argparse.Namespace) -> int:
    """Convert. Mistakes in the arguments are reported before the model is opened."""
    set_quiet(args.quiet)
    output = Path(args.output).expanduser()
    check_name(args.quantization)
    check_template(args.conv_template)
    check_free(output)
    files = open_model(args.model).files
    assert files is not None
    made = convert_weight(files, args.quantization, output, progress, args.conv_template)
    if not args.quiet:
        note(f"[{made.path}: {made.bits:.2f} bits a weight]")
    return OK
