"""How the inputs of a request become token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from core_harness import PieceTokenizer

from mlc_llm.serve.core.admission import prompt_tokens
from mlc_llm.serve.data import Data, TextData, TokenData

BOS, END = 256, 257


class Tokenizer(PieceTokenizer):
    """One that wants token 256 first; "^" and "$" are the names of two control tokens."""

    add_bos = True
    bos_token_id = BOS

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        named = {ord("^"): BOS, ord("$"): END} if special else {}
        return [named.get(byte, byte) for byte in text.encode()]


@pytest.mark.parametrize(
    ("inputs", "ids"),
    [
        ([TextData("a$")], [BOS, 97, 36]),
        ([TextData("a$", special=True)], [BOS, 97, END]),
        ([TextData("^a", special=True)], [BOS, 97]),
        ([TextData("^a")], [BOS, 94, 97]),
        ([TextData("a"), TextData("$", special=True), TextData("$")], [BOS, 97, END, 36]),
        ([TokenData([97]), TextData("^", special=True)], [97, BOS]),
        ([TextData("")], [BOS]),
    ],
)
def test_control_tokens_come_of_text_only_where_it_is_special(
    inputs: Sequence[Data], ids: list[int]
) -> None:
    tokenizer: Any = Tokenizer()
    assert prompt_tokens(inputs, tokenizer, 300) == ids
