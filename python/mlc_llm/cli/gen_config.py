"""`mlc_llm gen_config`: write mlc-chat-config.json and the tokenizer's files of a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlc_llm.cli.guard import OK
from mlc_llm.cli.terminal import note
from mlc_llm.conversion.chat_config import FILE, check_template, write_chat_config
from mlc_llm.conversion.output import changed_folder
from mlc_llm.errors import InvalidField
from mlc_llm.quantization.names import FOLDERS, check_name
from mlc_llm.serve.opening.bundle import open_model

SIZES = {
    "context_window_size": "the most tokens of prompt and answer together",
    "sliding_window_size": "the tokens that a token sees; -1: all",
    "prefill_chunk_size": "the most tokens of prompts in a step",
    "attention_sink_size": "the first tokens that are always seen; -1: none",
    "max_batch_size": "the most sequences in a step",
    "tensor_parallel_shards": "recorded; the engine's own setting decides",
    "pipeline_parallel_stages": "recorded; this version uses one device",
}
"""Numbers of the file that a flag of the same name sets."""
LARGEST = 2**31 - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="a .gguf file, a folder with a model, or HF://user/repo"
    )
    parser.add_argument(
        "--quantization",
        metavar="NAME",
        required=True,
        help=f"how the folder stores weights: one of {', '.join(FOLDERS)}",
    )
    parser.add_argument(
        "--conv-template",
        metavar="NAME",
        help="a chat template of MLC LLM, used instead of the model's own; auto: the model's own "
        "(default: as the folder's mlc-chat-config.json says, else auto)",
    )
    for name, words in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=words)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", required=True, help="a new folder, or one to change"
    )
    parser.add_argument("--quiet", action="store_true", help="show no notes")


def run(args: argparse.Namespace) -> int:
    """Write the files. Files of the same names are replaced. Raises `UserError`."""
    check_name(args.quantization)
    if args.quantization not in FOLDERS:
        raise InvalidField("quantization", args.quantization, "one of " + ", ".join(FOLDERS))
    check_template(args.conv_template, args.quantization)
    given = {name: getattr(args, name) for name in SIZES}
    sizes = {name: value for name, value in given.items() if value is not None}
    for name, value in sizes.items():
        if not -1 <= value <= LARGEST:
            raise InvalidField(name, value, f"should be -1 to {LARGEST}")
    files = open_model(args.model).files
    assert files is not None
    output = Path(args.output).expanduser()
    with changed_folder(output) as folder:
        write_chat_config(files, FOLDERS[args.quantization].name, folder, args.conv_template, sizes)
    if not args.quiet:
        note(f"[{output / FILE} is written]")
    return OK
