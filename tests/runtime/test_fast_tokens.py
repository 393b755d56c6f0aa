"""The order of tokens in a step whose prompts are computed less exactly."""

from __future__ import annotations

from array import array

from mlc_llm.runtime.batch import BatchRow
from mlc_llm.runtime.fast_tokens import prompts_first


def test_prompts_come_first_and_answers_in_the_order_of_rows() -> None:
    rows = [
        BatchRow(4, [1], ()),
        BatchRow(7, [2, 3, 4], (), prompt_tokens=3),
        BatchRow(5, [5, 6, 7, 8], (), prompt_tokens=2),
        BatchRow(6, [9, 10], ()),
    ]
    tokens = [token for row in rows for token in row.token_ids]
    wanted = array("i", [0, 3, 5, 6, 7])
    arranged, places = prompts_first(rows, wanted)
    pieces = [(row.seq_id, list(row.token_ids)) for row in arranged]
    assert pieces == [(7, [2, 3, 4]), (5, [5, 6]), (4, [1]), (5, [7, 8]), (6, [9, 10])]
    moved = [token for _, piece in pieces for token in piece]
    assert [moved[int(i)] for i in places] == [tokens[i] for i in wanted]


def test_nothing_moves_without_prompts() -> None:
    rows = [BatchRow(i, [i, i + 1], ()) for i in range(3)]
    assert prompts_first(rows, array("i", [1, 4, 5])) == (rows, array("i", [1, 4, 5]))
