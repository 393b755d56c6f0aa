"""The text of an answer while it grows."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.tokenizers import TextStreamer, Tokenizer


class Pieces:
    """Tokens are any bytes; id 0 is a space before a word, as SentencePiece has it."""

    def __init__(self, pieces: list[bytes], *, strips: bool = False) -> None:
        self.pieces = pieces
        self.strips_leading_space = strips

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def decode(self, ids: list[int]) -> str:
        text = b"".join(self.pieces[i] for i in ids).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text


FRAGMENTS = [
    b" ", b"", b"a", "é".encode(), "日本".encode(), b"\xf0\x9f", b"\x98", b"\x80", b"\xff",
    b"\xe6\x97", b"\xa5", b"word ", b"\xc3", b"\xa9 x", b"\xed\xa0\x80",
]  # fmt: skip


@given(ids=st.lists(st.integers(0, len(FRAGMENTS) - 1)), strips=st.booleans(), data=st.data())
def test_all_texts_in_a_row_are_the_whole_text(
    ids: list[int], strips: bool, data: st.DataObject
) -> None:
    table = Pieces(FRAGMENTS, strips=strips)
    streamer, pieces, rest = TextStreamer(table), [], list(ids)
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        pieces.append(streamer.put(rest[:count]))
        rest = rest[count:]
    pieces.append(streamer.finish())
    assert "".join(pieces) == table.decode(ids)


@given(text=st.text())
def test_a_character_is_never_shown_before_it_is_whole(text: str) -> None:
    table = Pieces([bytes([i]) for i in range(256)])
    streamer = TextStreamer(table)
    pieces = [streamer.put([byte]) for byte in text.encode()]
    assert "".join(pieces) == text and streamer.finish() == ""
    assert all(piece == "" or len(piece) == 1 for piece in pieces)


def test_an_emoji_in_four_tokens() -> None:
    streamer = TextStreamer(Pieces([bytes([i]) for i in range(256)]))
    assert [streamer.put([byte]) for byte in "😀".encode()] == ["", "", "", "😀"]
    assert streamer.put([0xF0, 0x9F]) == ""
    assert streamer.finish() == "\ufffd"


def test_the_first_space_is_dropped_once() -> None:
    streamer = TextStreamer(Pieces([b" ", b"Hi", b""], strips=True))
    assert [streamer.put([i]) for i in (2, 0, 0, 1, 0, 1)] == ["", "", " ", "Hi", " ", "Hi"]


def test_misuse() -> None:
    streamer = TextStreamer(Pieces([b"a"]))
    assert streamer.put([]) == "" and streamer.put([0]) == "a"
    assert streamer.finish() == "" and streamer.finish() == ""
    with pytest.raises(RuntimeError, match="after finish"):
        streamer.put([0])


@pytest.mark.timing
@pytest.mark.model
def test_a_hundred_thousand_tokens_a_second(default_model: object) -> None:
    from mlc_llm.loader.gguf import GGUFFile

    tokenizer = Tokenizer.from_gguf_metadata(GGUFFile.open(str(default_model)).metadata)
    text = "Call me Ishmael. Some years ago, never mind how long precisely. " * 2000
    ids = tokenizer.encode(text)
    best = 0.0
    for _ in range(3):
        streamer, pieces = TextStreamer(tokenizer), []
        before = time.thread_time()
        for token_id in ids:
            pieces.append(streamer.put([token_id]))
        best = max(best, len(ids) / (time.thread_time() - before))
    assert "".join(pieces) == text
    assert best >= 100_000
