"""The argument parser: built from the table, importing only the command that was named."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import NoReturn

from mlc_llm import __version__
from mlc_llm.cli.commands import COMMANDS, Command
from mlc_llm.cli.guard import EXIT_CODES, USER_ERROR


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(wanted: Collection[str]) -> Parser:
    """The parser of all commands, complete for those in `wanted` only."""
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    parser = Parser(
        prog="mlc_llm",
        description="Run language models on this machine, compiled by stock Apache TVM.",
        epilog=f"Exit codes: {codes}.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mlc_llm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            allow_abbrev=False,
        )
        if command.name in wanted:
            _complete(sub, command)
    return parser


def _complete(parser: argparse.ArgumentParser, command: Command) -> None:
    module = command.load()
    module.add_arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", help="show tracebacks and the log of all steps"
    )
    parser.set_defaults(run=module.run)
