"""`mlc_llm chat` on a scripted engine: turns, commands, a full context, Ctrl-C, typing."""

from __future__ import annotations

import io
import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from mlc_llm.cli import chat_input
from mlc_llm.cli.__main__ import main
from mlc_llm.cli.chat import Chat
from mlc_llm.cli.chat_input import plain_lines, saved_history, typed_messages
from mlc_llm.cli.dialogue import Dialogue
from mlc_llm.cli.options import SETTINGS
from mlc_llm.cli.terminal import Output
from mlc_llm.errors import CacheError, ContextLengthExceeded, EngineDead, RequestError, UserError
from mlc_llm.protocol.generation_config import GenerationConfig

CONFIG = GenerationConfig(max_tokens=100)


def make(session: Any, *, forgiving: bool = True, system: str | None = None) -> Chat:
    return Chat(session, Dialogue(session, CONFIG, system), forgiving=forgiving, output=Output())


def test_turns_are_remembered(engine: Any, session: Any) -> None:
    assert make(session, system="Be brief.").run(["one", "two"]) == 0
    assert engine.prompt() == "s:Be brief.\nu:one\na:Hello, wörld.\nu:two\n"


def test_reset(engine: Any, session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(session, system="Be brief.").run(["one", "/reset", "two"])
    assert engine.prompt() == "s:Be brief.\nu:two\n"
    assert "forgotten" in capsys.readouterr().out


def test_commands(engine: Any, session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(session).run(["/help", "/stats", "one", "/stats", "/fly", "/exit", "never"])
    out = capsys.readouterr().out
    names = ("/help", "/stats", "/set NAME VALUE", "/save FILE", "/load FILE", "/reset", "/exit")
    assert all(name in out for name in names)
    assert "no answer yet" in out
    assert "14 answer tokens" in out and "of 200 tokens, 1 turns" in out
    assert "/fly is no command" in out
    assert len(engine.requests) == 1


def test_commands_of_ollama(engine: Any, session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(session).run(["/?", "one", "/clear", "two", "/bye", "never"])
    out = capsys.readouterr().out
    assert "/save FILE" in out and "forgotten" in out
    assert engine.prompt() == "u:two\n" and len(engine.requests) == 2
    make(session).run(["/quit", "never"])
    assert len(engine.requests) == 2


def test_settings_are_shown_and_changed(
    engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = ["/set", "/set temperature 0.5", "/set --top-k 7", "/set max_tokens 3", "one"]
    make(session).run([*talk, "/set max-tokens default", "/set top_k default", "two"])
    first, second = (request.generation_config for request in engine.requests)
    assert first == GenerationConfig(temperature=0.5, top_k=7, max_tokens=3)
    assert second == GenerationConfig(temperature=0.5, max_tokens=100)
    lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[: len(SETTINGS)])
    assert shown == {name: str(getattr(CONFIG, name)) for name in SETTINGS} | {
        "seed": "drawn at random"
    }
    assert lines[len(SETTINGS)] == "temperature is now 0.5"
    assert "max_tokens is now 100" in lines


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/set temprature 1", "there is no setting 'temprature'; did you mean temperature?"),
        ("/set system You are a cat", "the system message is set at the start: --system"),
        ("/set parameter temperature 1", "there is no setting 'parameter'"),
        ("/set temperature", "/set takes a name and a value"),
        ("/set temperature 1 2", "/set takes a name and a value"),
        ("/set temperature warm", "temperature = 'warm' is not allowed: should be a number"),
        ("/set temperature nan", "temperature = nan is not allowed"),
        ("/set top_k 1.5", "top_k = '1.5' is not allowed: should be a whole number"),
        ("/set top_p 2", "top_p = 2.0 is not allowed"),
        ("/save", "/save takes the name of a file"),
        ("/load", "/load takes the name of a file"),
        ("/load none.json", "none.json: No such file"),
    ],
)
def test_a_refused_command_changes_nothing(
    command: str, words: str, engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make(session, system="s").run(["one", command, "two"])
    err = capsys.readouterr().err
    assert err.startswith(f"error: {words}") and err.count("\n") == 1
    assert engine.requests[1].generation_config == CONFIG
    assert engine.prompt() == "s:s\nu:one\na:Hello, wörld.\nu:two\n"
    with pytest.raises(UserError):
        make(session, forgiving=False).run([command])


def test_save_and_load(engine: Any, session: Any, tmp_path: Path) -> None:
    file = tmp_path / "my talk.json"
    make(session, system="Be brief.").run(["one", f"/save {file}", "two"])
    make(session, system="Talk.").run(["zero", f"/load {file}", "three"])
    assert engine.prompt() == "s:Be brief.\nu:one\na:Hello, wörld.\nu:three\n"


def test_a_loaded_conversation_without_a_system_message_keeps_ours(
    engine: Any, session: Any, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    make(session).run(["one", f"/save {file}"])
    make(session, system="Talk.").run([f"/load {file}", "/stats", "two"])
    assert engine.prompt() == "s:Talk.\nu:one\na:Hello, wörld.\nu:two\n"


def test_an_answer_of_a_shape_that_is_cut(
    engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.text = '{"a": 1}'
    shape: Any = {"type": "json_object"}
    config = GenerationConfig(max_tokens=4, response_format=shape)
    Chat(session, Dialogue(session, config, None), forgiving=True, output=Output()).run(["one"])
    assert capsys.readouterr().err.endswith("[the JSON is cut and not complete]\n")


def test_a_full_context_drops_the_oldest_turns_and_says_so(
    engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make(session).run(["first " + "x" * 50, "second " + "y" * 50, "third " + "z" * 40])
    assert engine.prompt().startswith("u:second")
    assert engine.prompt().endswith("zz\n")
    err = capsys.readouterr().err
    assert "the context of 200 tokens is full: dropped the oldest turn, from 'first xxx" in err


def test_a_message_that_never_fits(
    engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(session).run(["one", "x" * 300, "two"]) == 0
    assert "maximum context length is 200" in capsys.readouterr().err
    assert engine.prompt() == "u:one\na:Hello, wörld.\nu:two\n"
    with pytest.raises(ContextLengthExceeded):
        make(session, forgiving=False).run(["x" * 300])


def test_ctrl_c_stops_the_answer_and_not_the_program(
    engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    presses = iter([True])

    def press(step: int) -> None:
        if step == 4 and next(presses, False):
            os.kill(os.getpid(), signal.SIGINT)

    engine.on_step = press
    assert make(session).run(["one", "two"]) == 0
    assert capsys.readouterr() == ("Hello\nHello, wörld.\n", "[stopped]\n")
    assert engine.prompt() == "u:one\na:Hello\nu:two\n"


def test_ctrl_c_ends_a_script(engine: Any, session: Any) -> None:
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 4 else None
    assert make(session, forgiving=False).run(["one", "two"]) == 130


def test_an_error_leaves_no_trace(
    engine: Any, session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk() -> Iterator[str]:
        engine.reason = "error"
        yield "one"
        engine.reason = "stop"
        yield "two"

    assert make(session).run(talk()) == 0
    assert capsys.readouterr().err == "error: the logits are not numbers\n"
    assert engine.prompt() == "u:two\n"
    engine.reason = "error"
    with pytest.raises(RequestError):
        make(session, forgiving=False).run(["one"])


def test_a_dead_engine_ends_the_chat(engine: Any, session: Any) -> None:
    def die(step: int) -> None:
        raise EngineDead("gone")

    engine.on_step = die
    with pytest.raises(EngineDead):
        make(session).run(["one"])


def test_a_cut_answer_says_why(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    dialogue = Dialogue(session, GenerationConfig(max_tokens=5), None)
    Chat(session, dialogue, forgiving=True, output=Output()).run(["one"])
    assert "[stopped at 5 tokens" in capsys.readouterr().err


@pytest.mark.usefixtures("opened")
def test_without_a_terminal_lines_are_messages(
    engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO("one\n\n zwölf \n".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "Hello, wörld.\nHello, wörld.\n"
    assert engine.prompt() == "u:one\na:Hello, wörld.\nu:zwölf\n"


def test_lines_that_are_not_utf8() -> None:
    lines = plain_lines(io.BytesIO(b"good\nb\xffd\n"))
    assert next(lines) == "good"
    with pytest.raises(UserError, match="line 2 of standard input is not UTF-8: byte 0xff"):
        next(lines)


def typed(keys: str) -> list[str]:
    with create_pipe_input() as source:
        source.send_text(keys)
        history = InMemoryHistory()
        return list(typed_messages(history, source=source, screen=DummyOutput()))


CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def test_enter_sends_and_alt_enter_goes_on() -> None:
    assert typed(f"one\rtwo\x1b\rlines\r{CTRL_D}") == ["one", "two\nlines"]


def test_a_paste_keeps_its_lines() -> None:
    assert typed(f"\x1b[200~a\nb\x1b[201~\r{CTRL_D}") == ["a\nb"]


def test_history_comes_back() -> None:
    history = InMemoryHistory(["zero", "one"])
    with create_pipe_input() as source:
        # The prompt reads its history in the background, so the keys come a little later.
        later = threading.Timer(0.3, lambda: source.send_text(f"{UP}{UP}\r{CTRL_D}"))
        later.start()
        assert list(typed_messages(history, source=source, screen=DummyOutput())) == ["zero"]
        later.join()


def test_ctrl_c_empties_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(f"oops{CTRL_C}one\r{CTRL_D}") == ["one"]
    assert "Ctrl-D leaves" in capsys.readouterr().err


def test_history_is_kept_for_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_input, "cache_dir", lambda: tmp_path)
    saved_history().append_string("one")
    file = tmp_path / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(saved_history().load_history_strings()) == ["one"]


def test_history_without_a_cache_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unusable() -> Path:
        raise CacheError("the cache folder is read-only")

    monkeypatch.setattr(chat_input, "cache_dir", unusable)
    assert isinstance(saved_history(), InMemoryHistory)
    assert "is not saved: the cache folder is read-only" in capsys.readouterr().err
