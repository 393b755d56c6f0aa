"""An answer as blocks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.openai.blocks import Blocks
from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece


def piece(
    text: str = "",
    *,
    reasoning: str = "",
    calls: Sequence[CallPiece] = (),
    end: FinishReason | None = None,
    logprobs: list[str] | None = None,
) -> ChoicePiece:
    return ChoicePiece(0, text, end, logprobs, reasoning, calls)


PIECES = [
    piece(reasoning="I "),
    piece(reasoning="see", text="Yes"),
    piece(".", logprobs=["1", "2"]),
    piece(calls=[CallPiece(0, "c0", "add", ""), CallPiece(0, None, None, '{"a"')]),
    piece(calls=[CallPiece(0, None, None, ": 1}"), CallPiece(1, "c1", "sub", "{}")]),
    piece(end="tool_calls"),
]


def test_each_block_opens_grows_and_closes_before_the_next() -> None:
    blocks = Blocks()
    seen = [(n.step, n.block.index, n.text) for one in PIECES for n in blocks.put(one)]
    assert seen == [
        ("opened", 0, ""), ("grew", 0, "I "), ("grew", 0, "see"), ("closed", 0, ""),
        ("opened", 1, ""), ("grew", 1, "Yes"), ("grew", 1, "."), ("closed", 1, ""),
        ("opened", 2, ""), ("grew", 2, '{"a"'), ("grew", 2, ": 1}"), ("closed", 2, ""),
        ("opened", 3, ""), ("grew", 3, "{}"), ("closed", 3, ""),
    ]  # fmt: skip
    assert [one.text for one in blocks.all] == ["I see", "Yes.", '{"a": 1}', "{}"]
    assert [one.kind for one in blocks.all] == ["reasoning", "text", "call", "call"]
    assert [(one.call_id, one.name) for one in blocks.all[2:]] == [("c0", "add"), ("c1", "sub")]
    assert blocks.all[1].logprobs == ["1", "2"]
    assert blocks.finish_reason == "tool_calls" and blocks.has_calls


def test_an_answer_without_text_has_no_blocks() -> None:
    blocks = Blocks()
    assert list(blocks.put(piece(end="stop"))) == [] and blocks.all == []
    assert not blocks.has_calls
