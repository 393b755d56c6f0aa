"""`--overrides` of `mlc_llm serve`."""

from __future__ import annotations

import pytest

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
