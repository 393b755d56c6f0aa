"""`mlc_llm generate` on a scripted engine: output forms, input forms, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.cli import terminal
from mlc_llm.cli.__main__ import main
from mlc_llm.cli.options import FALLBACK
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig

ANSWER = "Hello, wörld."


class Input(io.TextIOWrapper):
    """Standard input with given bytes; a terminal if said so."""

    def __init__(self, raw: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(raw), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


pytestmark = pytest.mark.usefixtures("opened")


def test_streams_the_answer(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hi"]) == 0
    assert capsys.readouterr() == (ANSWER + "\n", "")
    assert engine.prompt() == "u:Hi\n"


def test_each_piece_is_flushed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw), "utf-8"))
    seen: list[int] = []
    engine.on_step = lambda step: seen.append(len(raw.getvalue()))
    assert main(["generate", "Hi"]) == 0
    assert seen[:6] == [0, 1, 2, 3, 4, 5]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hi", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert out.count("\n") == 1
    assert err == ""
    assert found["text"] == ANSWER
    assert found["finish_reason"] == "stop"
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 14, "total_tokens": 19}
    assert found["timings"]["load_s"] == 0.25


def test_system_and_model(engine: Any, opened: Any) -> None:
    assert main(["generate", "Hi", "--system", "Be brief.", "--model", "m.gguf"]) == 0
    assert engine.prompt() == "s:Be brief.\nu:Hi\n"
    assert opened == [("m.gguf", "auto", EngineConfig(mode="interactive"), "")]


def test_the_only_adapter_is_used(opened: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hi", "--adapter", "a=x=y"]) == 0
    assert opened == [(None, "auto", _adapted({"a": "x=y"}), "a")]
    for flags, said in {
        ("--adapter", "a"): "--adapter a: should be NAME=PATH",
        ("--adapter", "=a"): "--adapter =a: should be NAME=PATH",
        ("--adapter", "a=x", "--adapter", "a=y"): "--adapter a=y: another one has this name",
        ("--adapter", "a=x", "--adapter", "b=y"): "--adapter: this command takes one adapter",
        ("--url", "http://x", "--adapter", "a=x"): "--adapter cannot be used with --url",
    }.items():
        assert main(["generate", "Hi", *flags]) == 2
        assert said in capsys.readouterr().err


def _adapted(adapters: dict[str, str]) -> EngineConfig:
    return EngineConfig(mode="interactive", adapters=adapters)


def test_engine_flags_reach_the_engine(opened: Any) -> None:
    flags = "--mode server --context 100 --speculative small_draft --precision fast"
    assert main(["generate", "Hi", *flags.split(), "--draft-model", "d.gguf"]) == 0
    assert opened[0][2] == EngineConfig(
        mode="server",
        max_single_sequence_length=100,
        speculative_mode="small_draft",
        additional_models=["d.gguf"],
        precision="fast",
    )


def test_raw(engine: Any) -> None:
    assert main(["generate", "--raw", "Once"]) == 0
    assert engine.prompt() == "Once"


def test_sampling_flags_reach_the_engine(engine: Any) -> None:
    flags = "--max-tokens 3 --temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --seed 5"
    assert main(["generate", "Hi", *flags.split(), "--stop", "a", "--stop", "b"]) == 0
    config = engine.requests[0].generation_config
    assert config.given == {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 5,
        "stop_strs": ["a", "b"],
    }


def test_the_models_defaults_count_below_the_flags(engine: Any, session: Any) -> None:
    session.model.defaults = {"temperature": 0.3, "top_p": 0.8}
    assert main(["generate", "Hi", "--top-p", "0.5"]) == 0
    config = engine.requests[0].generation_config
    assert (config.temperature, config.top_p, config.max_tokens) == (0.3, 0.5, 1024)


def test_a_model_without_defaults_is_not_asked_to_talk_nonsense(engine: Any) -> None:
    assert main(["generate", "Hi"]) == 0
    config = engine.requests[0].generation_config
    assert (config.temperature, config.top_p, config.max_tokens) == (0.2, 0.9, 1024)


def test_a_cut_answer_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hi", "--max-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err == "[stopped at 5 tokens; --max-tokens sets this limit]\n"
    assert main(["generate", "Hi", "--max-tokens", "5", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_stats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hi", "--stats"]) == 0
    assert "14 answer tokens" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["-"], []])
def test_standard_input(engine: Any, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Input("Grüße".encode()))
    assert main(["generate", *args]) == 0
    assert engine.prompt() == "u:Grüße\n"


@pytest.mark.parametrize(
    ("args", "raw", "prompt"),
    [
        (["Sum up:"], b"a text\n", "Sum up:\na text\n"),
        (["Sum up:", "--raw"], b"a text", "Sum up:\na text"),
        (["Hi"], b"", "Hi"),
        (["Hi"], b" \n", "Hi"),
        ([""], b"a text", "a text"),
    ],
)
def test_a_pipe_is_appended(
    args: list[str], raw: bytes, prompt: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Input(raw))
    assert main(["generate", *args]) == 0
    assert engine.prompt() == (prompt if "--raw" in args else f"u:{prompt}\n")


@pytest.mark.parametrize("stdin", [Input(b"never read", terminal=True), None])
def test_a_terminal_or_nothing_is_not_appended(
    stdin: Input | None, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["generate", "Hi"]) == 0
    assert engine.prompt() == "u:Hi\n"


def test_a_pipe_that_stays_open_is_waited_for_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "WAIT_S", 0.0)
    reader, writer = os.pipe()

    def say(text: str) -> None:
        assert "/dev/null" in text
        os.write(writer, b"late")
        os.close(writer)

    monkeypatch.setattr(terminal, "note", say)
    with open(reader, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert terminal.read_input(100) == "late"


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    path.write_text('{"type": "object"}')
    return path


@pytest.mark.parametrize(
    ("name", "text", "syntax"),
    [("g.lark", 'start: "a"', "lark"), ("g.EBNF", 'root ::= "a"', "gbnf")],
)
def test_grammar(name: str, text: str, syntax: str, engine: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert main(["generate", "Hi", "--grammar", str(tmp_path / name)]) == 0
    wanted = {"type": "grammar", "grammar": {"syntax": syntax, "definition": text}}
    assert engine.requests[0].generation_config == _shaped(wanted)


def test_regex_and_schema(engine: Any, schema: Path) -> None:
    assert main(["generate", "Hi", "--regex", "a+"]) == 0
    assert main(["generate", "Hi", "--schema", str(schema)]) == 0
    regex = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
    assert engine.requests[0].generation_config == _shaped(regex)
    json_object = {"type": "json_object", "schema": '{"type": "object"}'}
    assert engine.requests[1].generation_config == _shaped(json_object)


def _shaped(response_format: dict[str, Any]) -> GenerationConfig:
    return GenerationConfig(response_format=response_format, **FALLBACK)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_json_that_is_cut(
    more: list[str], engine: Any, schema: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.text = '{"a": 1}'
    assert main(["generate", "Hi", "--schema", str(schema), *more]) == 0
    assert capsys.readouterr().err == ""
    assert main(["generate", "Hi", "--schema", str(schema), "--max-tokens", "4", *more]) == 0
    cut = (
        "[stopped at 4 tokens; --max-tokens sets this limit]\n[the JSON is cut and not complete]\n"
    )
    assert capsys.readouterr().err == cut


def test_json_that_a_stop_text_cuts(
    engine: Any, schema: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.text = '{"a": '
    assert main(["generate", "Hi", "--schema", str(schema), "--stop", "1"]) == 0
    assert capsys.readouterr().err == "[the JSON is cut and not complete]\n"


def test_a_shaped_text_that_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hi", "--regex", "H.*", "--max-tokens", "4"]) == 0
    assert "the answer is cut, so it may not have the shape" in capsys.readouterr().err


def test_the_engines_words_about_a_shape_name_the_flag(
    engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(request: object) -> None:
        raise InvalidField("response_format.grammar.definition", "(a", "unclosed group")

    engine.add_request = refuse
    assert main(["generate", "Hi", "--regex", "(a"]) == 2
    err = capsys.readouterr().err
    assert err == "mlc_llm: error: --regex = '(a' is not allowed: unclosed group\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.json", None, "No such file"),
        ("s.json", b"{bad", "Failed to parse JSON of --schema"),
        ("s.json", b"[1]", "a JSON schema is an object, true or false"),
        ("s.json", b"\xff", "is not UTF-8: byte 0xff at position 0"),
        ("s.json", b" " * (2**20 + 1), "longer than 1048576 bytes"),
        ("g.txt", b"start: A", "must end with one of .lark, .gbnf, .ebnf"),
        ("none.lark", None, "No such file"),
    ],
)
def test_a_file_that_is_no_good(
    name: str,
    content: bytes | None,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flag = "--schema" if name.endswith(".json") else "--grammar"
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["generate", "Hi", flag, str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err and f"{flag} " in err and name in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        (["-"], Input(b"ab\xff"), "standard input is not UTF-8: byte 0xff at position 2"),
        ([], Input(b"", terminal=True), "there is no prompt"),
        ([], Input(b" \n"), "the prompt is empty"),
        ([""], Input(b""), "the prompt is empty"),
        (["a\udcffb"], Input(b""), "not valid UTF-8"),
        (["Hi", "--temperature", "-1"], Input(b""), "temperature = -1.0"),
        (["Hi", "--temperature", "nan"], Input(b""), "temperature = nan"),
        (["Hi", "--max-tokens", "-2"], Input(b""), "max_tokens = -2"),
        (["Hi", "--raw", "--system", "x"], Input(b""), "--system"),
        (["Hi", "--context", "0"], Input(b""), "--context = 0 is not allowed"),
        (["Hi", "--speculative", "small_draft"], Input(b""), "takes exactly one, the draft model"),
        (["Hi", "--draft-model", "d"], Input(b""), "--draft-model = ['d'] is not allowed"),
        (["Hi"], Input(b"ab\xff"), "standard input is not UTF-8: byte 0xff at position 2"),
        (["-"], None, "standard input is closed"),
        (["x" * 300], Input(b""), "maximum context length is 200"),
    ],
)
def test_users_mistakes(
    args: list[str],
    stdin: Input | None,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["generate", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mlc_llm: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_too_long_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlc_llm.cli.generate.MAX_PROMPT_BYTES", 3)
    monkeypatch.setattr(sys, "stdin", Input(b"abcd"))
    assert main(["generate"]) == 2
    assert "longer than 3 bytes" in capsys.readouterr().err


@pytest.fixture
def python_handles_interrupts() -> Iterator[None]:
    """As it does unless it was started where interrupts are ignored: behind `nohup` or `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_interrupts")
def test_ctrl_c_keeps_what_there_is(engine: Any, capfd: pytest.CaptureFixture[str]) -> None:
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 4 else None
    assert main(["generate", "Hi"]) == 130
    assert capfd.readouterr() == ("Hello\n", "mlc_llm: stopped by Ctrl-C\n")


@pytest.mark.usefixtures("python_handles_interrupts")
def test_an_ignored_ctrl_c_stays_ignored(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT)
    assert main(["generate", "Hi"]) == 0
    assert capsys.readouterr() == (ANSWER + "\n", "")


def test_a_failed_request(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    engine.reason = "error"
    assert main(["generate", "Hi"]) == 1
    assert capsys.readouterr().err == "mlc_llm: error: the logits are not numbers\n"
