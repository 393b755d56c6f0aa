"""The argument parser. It is made of the table and imports only the command that is named."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from mlc_llm import __version__
from mlc_llm.cli import elsewhere
from mlc_llm.cli.commands import COMMANDS, Command
from mlc_llm.cli.guard import EXIT_CODES, USER_ERROR

LIKENESS = 0.6
"""From 0 to 1: a name that is less similar to the typed one is not suggested."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with a hint to the help of the command."""

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Before Python 3.13, the value of `--stop=--` would be an empty list."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)

    def parse_command(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments of one command. Ends the program with one line for wrong usage."""
        names = subparsers(self)
        self._check_first(words, names)
        args, extra = self.parse_known_args(words)
        if extra:
            names[args.command].refuse(extra)
        return args

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """End the program: name the first of these words that is wrong, and what was meant."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"one argument too many: {words[0]!r}; a text with spaces needs quotes")
        known = [name for action in self._actions for name in action.option_strings]
        meant = _meant(option, known, elsewhere.OPTIONS)
        self.error(f"there is no option {option}{meant}")

    def _check_first(self, words: Sequence[str], names: Mapping[str, Parser]) -> None:
        """Check the first word: a command, or an option that needs no command."""
        first = words[0] if words else ""
        alone = [name for action in self._actions for name in action.option_strings]
        if first.startswith("-") and first not in alone:
            self.error(f"the command comes first, and {first} after it: {self.prog} COMMAND ...")
        if words and first not in names and first not in alone:
            meant = _meant(first, names, elsewhere.COMMANDS)
            self.error(f"there is no command {first!r}{meant}")


def subparsers(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """The parser of each command, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the parser has no commands")


def _meant(typed: str, known: Iterable[str], others: Mapping[str, str]) -> str:
    """A hint: the known name that begins with the typed one, or else the most similar one; before
    both, what the name means in other programs (`others`)."""
    from difflib import get_close_matches

    names = {name.lstrip("-"): name for name in known}  # all of them have the dashes
    word = typed.lstrip("-")[:64]
    same = [name for name in names if name == others.get(word)]
    longer = [name for name in names if word and name.startswith(word)]
    found = same or longer or get_close_matches(word, names, n=1, cutoff=LIKENESS)
    return f"; did you mean {names[found[0]]}?" if found else ""


def build_parser(wanted: Collection[str]) -> Parser:
    """The parser of the commands in `wanted`; if none of them is one, of all, without arguments."""
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    parser = Parser(
        prog="mlc_llm",
        description="Run language models on this machine, compiled by stock Apache TVM.",
        epilog=f"Exit codes: {codes}.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mlc_llm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in [one for one in COMMANDS if one.name in wanted] or COMMANDS:
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
