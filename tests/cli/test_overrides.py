"""`--overrides` of `mlc_llm serve`."""

from __future__ import annotations

import pytest

from mlc_llm.cli.__main__ import main
from mlc_llm.cli.overrides import applied
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.config import EngineConfig


def test_both_forms_and_other_names() -> None:
    config = EngineConfig(mode="server", max_single_sequence_length=64)
    text = "max_num_sequence=8; max_total_seq_length=512;prefix_cache_mode=disable"
    for written in (
        text,
        '{"max_num_sequence": 8, "max_total_seq_length": 512, "prefix_cache_mode": "disable"}',
    ):
        made = applied(config, written)
        assert (made.max_num_sequence, made.max_total_sequence_length) == (8, 512)
        assert (made.prefix_cache_mode, made.mode) == ("disable", "server")
        assert made.max_single_sequence_length == 64
    assert applied(config, None) is config
    assert applied(config, "context_window_size=64").max_single_sequence_length == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_num_sequence", "NAME=VALUE"),
        ("max_num_seq=1", "max_num_sequence"),
        ("max_num_sequence=0", "max_num_sequence"),
        ("{", "--overrides"),
        ("max_single_sequence_length=32", "a flag says 64"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    config = EngineConfig(max_single_sequence_length=64)
    with pytest.raises((UserError, InvalidField), match=words):
        applied(config, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_num_sequence=abc", "--overrides: max_num_sequence = 'abc' is not allowed: "),
        ("context_window_size=abc", "--overrides: context_window_size = 'abc' is not allowed"),
        ("spec_draft_length=99", "--overrides: spec_draft_length = 99 is not allowed"),
        ("kv_events={}", "--overrides: kv_events"),
        ("loging=1", "--overrides: loging = 1 is not allowed: unknown field; the nearest known is"),
        ("poolings=cls", "unknown field; the nearest known is 'pooling'"),
        ("context_window=8", "unknown field; the nearest known is 'context_window_size'"),
    ],
)
def test_an_error_names_the_override(
    text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "mock://echo", "--port", "0", "--overrides", text]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not any(flag in said for flag in ("--sequences", "--pooling", "--context"))


def test_an_error_about_another_field_names_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "mock://echo", "--port", "0", "--overrides", "max_num_sequence=2"]
    assert main([*words, "--context", "0"]) == 2
    assert "--context = 0 is not allowed" in capsys.readouterr().err
