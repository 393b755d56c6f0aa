"""`mlc_llm chat`: talk with a model in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from mlc_llm.cli import options
from mlc_llm.cli.chat_input import is_interactive, plain_lines, typed_messages
from mlc_llm.cli.dialogue import Dialogue
from mlc_llm.cli.guard import INTERRUPTED, OK, explain
from mlc_llm.cli.session import Session, open_session
from mlc_llm.cli.shape import naming_shape, warnings
from mlc_llm.cli.terminal import Output, checked_argument, note
from mlc_llm.errors import EngineDead, MLCError

HELP = """\
/help   this list
/stats  speed of the last answer, and how full the context is
/reset  forget the conversation
/exit   leave (Ctrl-D too)
Enter sends, Alt-Enter starts a new line. Ctrl-C stops an answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_model(parser)
    options.add_engine(parser)
    options.add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    """At a terminal, errors of one message do not end the chat; with plain lines they do."""
    config = options.generation_config(args)
    system = None if args.system is None else checked_argument(args.system)
    session = open_session(args.model, args.device, options.engine_config(args))
    dialogue = Dialogue(session, options.completed(config, session.model.defaults), system)
    if is_interactive():
        note(f"{session.model.name}; /help lists the commands")
        return Chat(session, dialogue, forgiving=True).run(typed_messages())
    return Chat(session, dialogue, forgiving=False).run(plain_lines(sys.stdin.buffer))


class Chat:
    """Reads messages, shows answers. `forgiving`: go on after the error of one message."""

    def __init__(
        self, session: Session, dialogue: Dialogue, *, forgiving: bool, output: Output | None = None
    ) -> None:
        self._session = session
        self._dialogue = dialogue
        self._forgiving = forgiving
        self._output = output or Output()

    def run(self, messages: Iterable[str]) -> int:
        """Until `/exit` or the last message; returns the exit code."""
        for text in messages:
            if text == "/exit":
                break
            if text.startswith("/"):
                self._command(text)
            elif not self._answered(text):
                return INTERRUPTED
        return OK

    def _command(self, text: str) -> None:
        if text == "/help":
            self._say(HELP)
        elif text == "/stats":
            self._say(self._dialogue.stats())
        elif text == "/reset":
            self._dialogue.reset()
            self._say("the conversation is forgotten")
        else:
            self._say(f"{text.split(maxsplit=1)[0]} is no command; /help lists them")

    def _say(self, text: str) -> None:
        self._output.write(text)
        self._output.end_line()

    def _answered(self, text: str) -> bool:
        """False when Ctrl-C should end the whole program, which is so without a terminal."""
        try:
            with naming_shape(self._dialogue.config):
                answer = self._dialogue.ask(
                    text, self._output.write, lambda words: note(f"[{words}]")
                )
        except EngineDead:
            raise
        except MLCError as error:
            if not self._forgiving:
                raise
            self._output.end_line()
            note(f"error: {explain(error)}")
            return True
        self._output.end_line()
        for words in warnings(answer, self._session, self._dialogue.config):
            note(f"[{words}]")
        if answer.finish_reason == "abort":
            note("[stopped]")
        return answer.finish_reason != "abort" or self._forgiving
