"""A stop string inside a token is cut off, also where the token may be a thought's."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.openai.chunks import AnswerStream, Chunk, MakeReader
from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.openai.tools.harmony import HarmonyReader
from mlc_llm.serve.openai.tools.thinking import Opening, ThinkReader, ThinkTags
from mlc_llm.tokenizers import StopStrHandler, Tokenizer


class Words:
    """A tokenizer of the words of one text."""

    strips_leading_space = False

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id].encode()


def thoughts(opening: Opening) -> MakeReader:
    tags = ThinkTags("<think>", "</think>")
    return lambda: AnswerReader(ThinkReader(tags, opening), None)


def harmony() -> AnswerReader:
    return AnswerReader(None, HarmonyReader([]))


def read(words: list[str], stop: str, make_reader: MakeReader) -> list[Chunk]:
    """The chunks of the words, up to the stop string, and of a usage."""
    tokenizer: Any = Words(words)
    stops = StopStrHandler([stop], tokenizer)
    stream = AnswerStream(cast("Tokenizer", tokenizer), 1, make_reader)
    found = []
    for token_id in range(len(words)):
        ids = stops.put(token_id)
        ended: Any = {}
        if stops.stop_triggered:
            ended = {"group_cut_bytes": [stops.cut_bytes], "group_stop_strs": [stop]}
        reason: Any = "stop" if ended else None
        found.append(stream.put(RequestStreamOutput("a", [ids], None, [reason], **ended)))
        if ended:
            break
    assert reason == "stop"
    found.append(stream.put(RequestStreamOutput.usage("a", "{}")))
    return [chunk for chunk in found if chunk is not None]


@pytest.mark.parametrize(
    ("make_reader", "words", "reasoning", "text", "counted"),
    [
        (thoughts(Opening.INSIDE), ["I think ", "hello STOP world"], "I think hello", "", 2),
        (thoughts(Opening.BEFORE), ["<think>", "a", "b STOP"], "ab", "", 3),
        (thoughts(Opening.BEFORE), ["I say ", "hello STOP"], "", "I say hello ", 0),
        (thoughts(Opening.BEHIND), ["</think>", "x STOP"], "", "</think>x ", 0),
        (harmony, ["<|channel|>final<|message|>", "It", " is 4. STOP"], "", "It is 4. ", 0),
        (harmony, ["<|channel|>analysis<|message|>", "Hm ST", "OP more"], "Hm ", "", 2),
    ],
)
def test_what_comes_before_the_stop_string_is_all(
    make_reader: MakeReader, words: list[str], reasoning: str, text: str, counted: int
) -> None:
    *chunks, usage = read(words, "STOP", make_reader)
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    assert "".join(piece.reasoning for piece in pieces) == reasoning
    assert "".join(piece.text for piece in pieces) == text
    assert pieces[-1].finish_reason == "stop" and pieces[-1].stop_str == "STOP"
    assert usage.usage_json == (
        f'{{"completion_tokens_details": {{"reasoning_tokens": {counted}}}}}'
    )
