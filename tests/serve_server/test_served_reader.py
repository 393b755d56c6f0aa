"""An answer that is ended with an error ends with that error, whatever the engine still says."""

from __future__ import annotations

import asyncio

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import TextData
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk
from mlc_llm.serve.request import Request
from mlc_llm.serve.server.errors import timed_out
from mlc_llm.serve.server.streams.reader import ServedReader

ABORTED = Chunk([ChoicePiece(0, "", "abort", None)])
USAGE = Chunk((), None, '{"completion_tokens": 3}')


def text(words: str) -> Chunk:
    return Chunk([ChoicePiece(0, words, None, None)])


@pytest.mark.parametrize("whole", [True, False], ids=["all at once", "one by one"])
@pytest.mark.parametrize("abort_first", [True, False])
def test_an_error_comes_behind_what_was_there_before(whole: bool, abort_first: bool) -> None:
    async def read() -> tuple[list[str], list[str]]:
        aborted: list[str] = []
        part = Part("a", 1, lambda: Request("a", [TextData("text")], GenerationConfig()))
        reader = ServedReader([part], aborted.append)
        reader.take((0, text("before")))
        error = timed_out(1.0)
        reader.fail(error)
        if abort_first:
            reader.take((0, ABORTED))
            reader.take((0, USAGE))
        else:
            asyncio.get_running_loop().call_later(0.01, reader.take, (0, ABORTED))
        found: list[str] = []
        with pytest.raises(type(error)) as caught:
            while True:
                news = await reader.next_all() if whole else [await anext(reader)]
                assert news is not None, "it ended as though nothing had happened"
                found += [piece.text for _, chunk in news for piece in chunk.pieces]
        assert caught.value is error
        return found, aborted

    assert asyncio.run(read()) == (["before"], ["a"])
