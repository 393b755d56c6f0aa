"""`--url`: the flags of commands that can talk to a server instead of opening a model."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from mlc_llm.cli import options
from mlc_llm.cli.terminal import note
from mlc_llm.errors import UserError

if TYPE_CHECKING:
    from mlc_llm.cli.remote_session import RemoteSession

KEY_VARIABLES = ("MLC_LLM_API_KEY", "OPENAI_API_KEY")
ONLY_HERE = (
    *("device", "mode", "context", "speculative", "draft_model", "precision"),
    *("model_lib", "kernels", "quantization", "rope_scaling", "adapter"),
)
"""Flags about an engine of this process."""
_CONTROL = re.compile(
    r"<\|[^<>|\s]{1,64}\|>|<｜[^<>｜\s]{1,64}｜>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]"
)
"""The usual forms of control tokens' names. Which ones a model has, its server knows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("a server instead of a model of this machine")
    group.add_argument(
        "--url",
        metavar="URL",
        help="talk to this server of OpenAI's API, such as http://127.0.0.1:8000; --model is then "
        "one of its names (default: its first), and what is not given is the server's own",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="its key (default: the variable MLC_LLM_API_KEY, else OPENAI_API_KEY)",
    )


def check(args: argparse.Namespace) -> None:
    """Raises `UserError` for flags that contradict each other."""
    if args.url is None:
        if args.api_key is not None:
            raise UserError("--api-key is the key of a server: give --url too")
        return
    plain = argparse.ArgumentParser()
    options.add_model(plain)
    options.add_engine(plain)
    for name in ONLY_HERE:
        if getattr(args, name) != plain.get_default(name):
            flag = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{flag} cannot be used with --url: it is about an engine of this machine"
            )
    for name in ("regex", "grammar"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} cannot be used with --url: OpenAI's API has no field for it")


def note_control_tokens(prompt: str) -> None:
    """Say that a server may read names of control tokens as text, if a prompt seems to have any."""
    found = _CONTROL.search(prompt)
    if found is not None:
        note(
            f"[{found[0]} in the prompt: the server decides whether that is a control token; "
            "mlc_llm serve reads it as text]"
        )


def open_session(args: argparse.Namespace) -> RemoteSession:
    """The model of a server that was named, or its first. Raises `MLCError`."""
    from mlc_llm.cli.remote_session import open_remote  # http.client and ssl, which others need not

    return open_remote(args.url, key_of(args.api_key), args.model)


def key_of(flag: str | None) -> str | None:
    """The key that is given, else that of the environment."""
    given = [flag, *(os.environ.get(name) for name in KEY_VARIABLES)]
    return next((one for one in given if one), None)
