"""Stop strings: what is shown ends exactly before them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField
from mlc_llm.tokenizers import StopStrHandler, StopStrings, TextStreamer


class Words:
    """Token i is the i-th of these."""

    strips_leading_space = False

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def run(table: Words, stops: list[str], ids: list[int]) -> tuple[StopStrHandler, list[list[int]]]:
    handler = StopStrHandler(stops, table)
    shown = []
    for token_id in ids:
        shown.append(handler.put(token_id))
        if handler.stop_triggered:
            break
    return handler, shown


def text_of(table: Words, handler: StopStrHandler, shown: list[list[int]]) -> str:
    streamer = TextStreamer(table)
    text = "".join(streamer.put(ids) for ids in shown) + streamer.finish()
    return text.encode()[: len(text.encode()) - handler.cut_bytes].decode()


def test_a_stop_string_over_two_tokens() -> None:
    handler, shown = run(Words("Hello", " ST", "OP", "x"), [" STOP"], [0, 1, 2, 3])
    assert shown == [[0], [], []] and handler.stop_triggered and handler.cut_bytes == 0


def test_a_stop_string_inside_a_token() -> None:
    table = Words("a", "bcSTOPde")
    handler, shown = run(table, ["STOP"], [0, 1])
    assert shown == [[0], [1]] and handler.cut_bytes == len("STOPde")
    assert handler.found == "STOP"
    assert text_of(table, handler, shown) == "abc"


def test_a_stop_string_that_begins_inside_a_token() -> None:
    table = Words("xyST", "O", "Pq")
    handler, shown = run(table, ["STOP"], [0, 1, 2])
    assert shown == [[], [], [0]] and handler.cut_bytes == 2
    assert text_of(table, handler, shown) == "xy"


def test_nothing_comes_of_a_beginning() -> None:
    handler, shown = run(Words("ST", "O", "X", "S"), ["STOP"], [0, 1, 2, 3])
    assert shown == [[], [], [0, 1, 2], []] and not handler.stop_triggered
    assert handler.finish() == [3] and handler.finish() == []


def test_beginnings_inside_a_stop_string() -> None:
    table = Words(*"ab")
    handler, shown = run(table, ["aab"], [0, 0, 0, 1])
    assert shown == [[], [], [0], []] and handler.stop_triggered


def test_the_first_complete_one_counts_and_then_the_longest() -> None:
    table = Words(*"xabcd")
    handler, shown = run(table, ["bc", "abcd"], [0, 1, 2, 3, 4])
    assert handler.stop_triggered and shown == [[0], [], [], [1]]
    handler, shown = run(table, ["c", "abc"], [0, 1, 2, 3])
    assert shown == [[0], [], [], []] and handler.stop_triggered


def test_cut_bytes_count_the_text_as_decoded() -> None:
    table = Words(b"ok|\xf0\x9f", "x")
    handler, shown = run(table, ["|"], [0])
    assert text_of(table, handler, shown) == "ok"


def test_after_unfinished_bytes() -> None:
    table = Words(b"\xe6", b"\xe6\x97\xa5STOP")
    handler, shown = run(table, ["STOP"], [0, 1])
    assert text_of(table, handler, shown) == "\ufffd日"


def test_tokens_without_bytes_and_without_stops() -> None:
    handler, shown = run(Words("", "a"), ["STOP"], [0, 1, 0])
    assert shown == [[0], [1], [0]]
    handler, shown = run(Words("", "a"), [], [0, 1])
    assert shown == [[0], [1]] and handler.finish() == []


def test_misuse() -> None:
    table = Words("STOP")
    handler, _ = run(table, ["STOP"], [0])
    with pytest.raises(RuntimeError, match="after a stop string"):
        handler.put(0)
    with pytest.raises(InvalidField, match="at least one character"):
        StopStrHandler([""], table)
    with pytest.raises(InvalidField, match="valid Unicode"):
        StopStrHandler(["\ud800"], table)


@given(
    pieces=st.lists(st.text(alphabet="abé", max_size=4), min_size=1, max_size=5),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=3),
    data=st.data(),
)
def test_like_a_search_in_the_text(
    pieces: list[str], stops: list[str], data: st.DataObject
) -> None:
    table = Words(*pieces)
    ids = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=12))
    handler, shown = run(table, stops, ids)
    whole = "".join(pieces[i] for i in ids)
    ends = [(whole.find(s) + len(s), whole.find(s)) for s in stops if s in whole]
    assert handler.stop_triggered == bool(ends)
    if ends:
        assert text_of(table, handler, shown) == whole[: min(ends)[1]]
    else:
        assert [i for group in [*shown, handler.finish()] for i in group] == ids


def test_sequences_share_the_tables_and_nothing_else() -> None:
    stops = StopStrings(["STOP", "STOP", "TO"])
    table = Words("S", "T", "O", "P")
    one, other = StopStrHandler(stops, table), StopStrHandler(stops, table)
    assert [one.put(0), other.put(3), one.put(1), other.put(2)] == [[], [3], [], [2]]
    assert [one.put(2), other.put(1)] == [[0], []] and one.stop_triggered
    assert not other.stop_triggered and other.finish() == [1]


@pytest.mark.parametrize("character", ["a", "\U0001f600"])
def test_tables_are_bounded_by_the_stop_strings(character: str) -> None:
    texts = [f"{i:02}" + character * 1022 for i in range(64)]
    assert StopStrings(texts).num_bytes == 5 * sum(len(text.encode()) for text in texts)


@given(text=st.text(alphabet="STOPx", max_size=30))
def test_no_part_of_a_stop_string_is_shown(text: str) -> None:
    table = Words(*(chr(i) for i in range(128)))
    handler = StopStrHandler(["STOP"], table)
    shown = ""
    for place, character in enumerate(text):
        shown += "".join(map(chr, handler.put(ord(character))))
        if handler.stop_triggered:
            break
        so_far = text[: place + 1]
        assert so_far.startswith(shown)
        held = so_far[len(shown) :]
        assert "STOP".startswith(held)
    assert "STOP" not in shown
