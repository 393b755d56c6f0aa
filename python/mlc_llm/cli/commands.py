"""The table of commands. A new command is a line here and a file beside this one."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from typing import Protocol, cast


class CommandModule(Protocol):
    """What the file of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments. Must not load an engine or TVM."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the result is the exit code. Errors are raised, `guard` turns them into words."""


@dataclass(frozen=True)
class Command:
    """One line of the table."""

    name: str
    summary: str
    module: str

    def load(self) -> CommandModule:
        """Import the command's file, which happens only when it is asked for."""
        return cast(CommandModule, importlib.import_module(self.module))


COMMANDS = (
    Command("generate", "answer one prompt and stop", "mlc_llm.cli.generate"),
    Command("chat", "talk with a model in the terminal", "mlc_llm.cli.chat"),
    Command(
        "fit",
        "show the memory a model takes; exit code 1: too much",
        "mlc_llm.cli.fit",
    ),
    Command("cache", "list or clear what is kept of models", "mlc_llm.cli.cache"),
    Command("doctor", "show this machine and what is wrong with it", "mlc_llm.cli.doctor"),
)
