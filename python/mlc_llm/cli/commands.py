"""The table of commands. A new command is a line here and a file in this folder."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

from mlc_llm.record import record


class CommandModule(Protocol):
    """The functions that the file of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments of the command. It must not load an engine or TVM."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command. Returns the exit code. It raises errors, and `guard` prints them."""


@record()
class Command:
    """One line of the table."""

    name: str
    summary: str
    module: str

    def load(self) -> CommandModule:
        """Import the file of the command."""
        return cast(CommandModule, importlib.import_module(self.module))


COMMANDS = (
    Command("generate", "answer one prompt and stop", "mlc_llm.cli.generate"),
    Command("chat", "talk with a model in the terminal", "mlc_llm.cli.chat"),
    Command("serve", "serve a model over HTTP, as OpenAI's API", "mlc_llm.cli.serve"),
    Command("bench", "measure a server of OpenAI's API", "mlc_llm.cli.bench"),
    Command(
        "fit",
        "show how much memory a model needs; exit code 1: too much",
        "mlc_llm.cli.fit",
    ),
    Command("pull", "download a model, or its newest version", "mlc_llm.cli.pull"),
    Command("list", "show the models in the cache, with sizes and last use", "mlc_llm.cli.list"),
    Command("remove", "remove models and what was made of them", "mlc_llm.cli.remove"),
    Command(
        "convert_weight",
        "quantise a model and write new files",
        "mlc_llm.cli.convert_weight",
    ),
    Command(
        "gen_config",
        "write mlc-chat-config.json and tokenizer files",
        "mlc_llm.cli.gen_config",
    ),
    Command("compile", "compile a library for --model-lib", "mlc_llm.cli.compile"),
    Command("doctor", "show this machine and what is wrong with it", "mlc_llm.cli.doctor"),
)
