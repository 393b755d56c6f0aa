"""`mlc_llm chat`: talk with a model in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mlc_llm.cli import options, remote, settings
from mlc_llm.cli.chat_input import is_interactive, plain_lines, typed_messages
from mlc_llm.cli.conversation import load_messages, save_messages
from mlc_llm.cli.dialogue import Dialogue
from mlc_llm.cli.guard import OK, explain
from mlc_llm.cli.opening import open_session
from mlc_llm.cli.shape import KnowsLimits, naming_shape, warnings
from mlc_llm.cli.terminal import Output, checked_argument, note
from mlc_llm.cli.wrapping import WrappedOutput
from mlc_llm.errors import EngineDead, MLCError, UserError
from mlc_llm.support.garbage import collect_from_now
from mlc_llm.support.leaving import INTERRUPTED

if TYPE_CHECKING:
    from mlc_llm.cli.remote_session import RemoteDialogue

HELP = """\
/help            show this list
/stats           show the speed of the last answer and how full the context is
/set             show how answers are sampled
/set NAME VALUE  change it, for example /set temperature 0.7 ('default': the value at the start)
/save FILE       write the conversation as JSON messages
/load FILE       continue a saved conversation instead of this one
/reset           forget the conversation
/exit            leave (Ctrl-D too)
/?, /clear, /bye and /quit mean /help, /reset and /exit.
Enter sends, Alt-Enter starts a new line. Ctrl-C stops an answer."""

ALIASES = {"/?": "/help", "/clear": "/reset", "/bye": "/exit", "/quit": "/exit"}
"""As in other programs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_model(parser)
    options.add_engine(parser)
    options.add_sampling(parser)
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the chat. At a terminal, an error of one message does not end it; with a pipe it does."""
    remote.check(args)
    config = options.generation_config(args)
    system = None if args.system is None else checked_argument(args.system)
    forgiving = is_interactive()
    if args.url is not None:
        there = remote.open_session(args)
        name = f"{there.model} at {there.address}"
        chat = Chat(there, there.dialogue(config, system), forgiving=forgiving)
    else:
        engine, adapter = options.engine_config(args), options.only_adapter(args)
        session = open_session(args.model, args.device, engine, adapter)
        collect_from_now()
        name, config = session.model.name, options.completed(config, session.model.defaults)
        chat = Chat(session, Dialogue(session, config, system), forgiving=forgiving)
    if forgiving:
        note(f"{name}; /help lists the commands")
        return chat.run(typed_messages())
    return chat.run(plain_lines(sys.stdin.buffer))


class Chat:
    """Reads messages and shows answers. `forgiving`: go on after the error of one message."""

    def __init__(
        self,
        session: KnowsLimits,
        dialogue: Dialogue | RemoteDialogue,
        *,
        forgiving: bool,
        output: Output | None = None,
    ) -> None:
        self._session = session
        self._dialogue = dialogue
        self._forgiving = forgiving
        self._output = output or WrappedOutput()
        self._start = dialogue.config
        self._commands: dict[str, Callable[[str], str]] = {
            "/help": lambda _: HELP,
            "/stats": lambda _: dialogue.stats(),
            "/set": self._set,
            "/save": self._save,
            "/load": self._load,
            "/reset": lambda _: self._reset(),
        }

    def run(self, messages: Iterable[str]) -> int:
        """Run until `/exit` or the last message. Returns the exit code."""
        for typed in messages:
            text = ALIASES.get(typed, typed)
            if text == "/exit":
                break
            if text.startswith("/"):
                self._command(text)
            elif not self._answered(text):
                return INTERRUPTED
        return OK

    def _command(self, text: str) -> None:
        """Run one command. A command that is refused changes nothing."""
        name, *rest = text.split(maxsplit=1)
        known = self._commands.get(name)
        if known is None:
            self._say(f"{name} is no command; /help lists them")
            return
        try:
            self._say(known(rest[0] if rest else ""))
        except UserError as error:
            if not self._forgiving:
                raise
            note(f"error: {explain(error)}")

    def _set(self, words: str) -> str:
        if not words:
            return settings.shown(self._dialogue.config, remote=self._dialogue.is_remote)
        name, *value = words.split()
        if name == "system":
            raise UserError("the system message is set at the start: --system")
        field = settings.field_of(name)
        if len(value) != 1:
            raise UserError("/set takes a name and a value: /set temperature 0.7")
        config, said = settings.changed(
            self._dialogue.config, self._start, field, value[0], remote=self._dialogue.is_remote
        )
        self._dialogue.config = config
        return said

    def _save(self, name: str) -> str:
        path = save_messages(_file(name, "/save"), self._dialogue.messages)
        return f"saved: {path}"

    def _load(self, name: str) -> str:
        messages = load_messages(_file(name, "/load"))
        self._dialogue.replace(messages)
        return f"loaded: {len(messages)} messages"

    def _reset(self) -> str:
        self._dialogue.reset()
        return "the conversation is forgotten"

    def _say(self, text: str) -> None:
        self._output.write(text)
        self._output.end_line()

    def _answered(self, text: str) -> bool:
        """Answer one message. Returns False if Ctrl-C ends the program: without a terminal."""
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


def _file(name: str, command: str) -> str:
    if not name:
        raise UserError(f"{command} takes the name of a file: {command} talk.json")
    return name
