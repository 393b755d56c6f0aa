"""Writes docs/cli.md from the parsers: `python -m mlc_llm.cli.reference > docs/cli.md`."""

from __future__ import annotations

import argparse
import sys

from mlc_llm.cli.commands import COMMANDS
from mlc_llm.cli.guard import EXIT_CODES
from mlc_llm.cli.parser import build_parser, subparsers

_HEAD = """\
# The command line

`mlc_llm COMMAND ...` and `python -m mlc_llm COMMAND ...` are the same. This page is written by
`python -m mlc_llm.cli.reference > docs/cli.md`, and a test compares it with the program.

An error is one line on standard error. It says what is wrong and what to do; `--debug` adds the
traceback. Progress and notes go to standard error, answers to standard output.

## Environment

| variable | meaning |
|---|---|
| `MLC_LLM_HOME` | the cache folder (default: `mlc_llm` in the usual place for caches) |
| `MLC_LLM_API_KEY` | a key of `serve`, and the key that commands with `--url` send |
| `MLC_LLM_QUIET` | 1: show no progress |
| `MLC_LLM_DEVICE` | `cpu`: models run on the CPU, whatever device is named (`auto`, `cuda`) |
| `MLC_LLM_KERNELS` | kernels by name, as `compile --kernels` takes them |
| `MLC_LLM_CUDA_EARLY_LAUNCH` | 0: plain launches on a GPU, for drivers that refuse others |
| `HF_TOKEN` | the token for `HF://` models (default: the one that `hf auth login` keeps) |
| `HF_ENDPOINT` | the server of `HF://` models (default: `https://huggingface.co`) |
| `HF_HUB_OFFLINE` | 1: download no `HF://` model |
| `MLC_NUM_THREADS` | the number of threads that compute (default: the number of usable cores) |
"""


def render() -> str:
    """The whole page."""
    parsers = subparsers(build_parser([command.name for command in COMMANDS]))
    parts = [_HEAD, _exit_codes()]
    for command in COMMANDS:
        parts.append(_section(command.summary, parsers[command.name]))
    return "\n".join(parts)


def _exit_codes() -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""])


def _section(summary: str, parser: argparse.ArgumentParser) -> str:
    rows = [_row(action) for action in parser._actions if "--help" not in action.option_strings]
    head = [f"## `{parser.prog}`", "", summary[0].upper() + summary[1:] + ".", ""]
    return "\n".join([*head, "| argument | meaning |", "|---|---|", *rows, ""])


def _row(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    if not action.option_strings:
        name = f"`{value}`"
    elif action.nargs == 0:
        name = ", ".join(f"`{option}`" for option in action.option_strings)
    else:
        name = ", ".join(f"`{option} {value}`" for option in action.option_strings)
    text = (action.help or "") % {"default": action.default}
    return f"| {name} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    sys.stdout.write(render())
