"""`mlc_llm generate` on a scripted engine: output forms, input forms, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import Any

import pytest

from mlc_llm.cli.__main__ import main

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
    assert opened == [("m.gguf", "auto")]


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
        (["x" * 300], Input(b""), "maximum context length is 200"),
    ],
)
def test_users_mistakes(
    args: list[str],
    stdin: Input,
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


def test_ctrl_c_keeps_what_there_is(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 4 else None
    assert main(["generate", "Hi"]) == 130
    assert capsys.readouterr().out == "Hello\n"


def test_a_failed_request(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    engine.reason = "error"
    assert main(["generate", "Hi"]) == 1
    assert capsys.readouterr().err == "mlc_llm: error: the logits are not numbers\n"
