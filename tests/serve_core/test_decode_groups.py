"""Rows that are planned all at once: the same tokens as row by row, whatever happens meanwhile."""

from __future__ import annotations

import random
from typing import Any

import pytest
from core_harness import Harness, alone, prompt_of

from mlc_llm.runtime.batch import KNOWN, Batch, BatchRow, Sampling
from mlc_llm.runtime.decode_rows import ChosenTokens, DecodeRows, SameRows
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.decode_group import DRAWN_AT_ONCE
from mlc_llm.testing.fake_runner import FakeRunner

STOPS = tuple(range(0, 300, 61))


def harness_of(*, overlaps: bool, pages: int = 120, stops: tuple[int, ...] = STOPS) -> Harness:
    runner = FakeRunner(num_pages=pages, page_size=4, max_num_sequence=12, overlaps=overlaps)
    return Harness(runner, EngineConfig(), stop_token_ids=stops)


def by_column(harness: Harness) -> list[DecodeRows]:
    return [one.rows for one in harness.runner.batches if isinstance(one.rows, DecodeRows)]


def config_of(chance: random.Random, seed: int) -> dict[str, Any]:
    """Mostly plain requests. Some tell more than tokens, some depend on them."""
    config: dict[str, Any] = {"max_tokens": chance.choice([1, 2, 9, 30, 60]), "seed": seed}
    config["temperature"] = chance.choice([0.0, 1.0])
    special: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": 1}, {"stop_strs": ["e", "zz"]}, {"n": 2},
        {"logit_bias": {70: 5.0}}, {"presence_penalty": 1.0},
    ]  # fmt: skip
    return config | (chance.choice(special) if chance.random() < 0.25 else {})


@pytest.mark.one_of(3)
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("pages", [26, 200])
@pytest.mark.parametrize("seed", range(6))
def test_random_lives(seed: int, pages: int, *, overlaps: bool) -> None:
    """Starts, ends, cancels and preemptions at any time: each answer is that of the request alone,
    or the beginning of it."""
    chance, harness = random.Random(seed), harness_of(overlaps=overlaps, pages=pages)
    wanted: dict[str, tuple[list[int], dict[str, Any]]] = {}
    aborted = set()
    for step in range(220):
        if chance.random() < (0.9 if step % 70 < 12 else 0.03):
            name = str(len(wanted))
            wanted[name] = (
                prompt_of(chance.randint(1, 30), chance.randrange(99)),
                config_of(chance, step),
            )
            harness.add(name, wanted[name][0], **wanted[name][1])
        if chance.random() < 0.05:
            name = chance.choice([*wanted])
            if harness.core.has_request(name):
                harness.abort(name)
                aborted.add(name)
        harness.step()
        harness.core.check_integrity()
    found = harness.run()
    assert len(by_column(harness)) > (15 if pages == 26 else 60)
    assert aborted and (harness.core.num_preemptions > 0) == (pages == 26)
    for name, (prompt, config) in wanted.items():
        whole = alone_with_stops(prompt, config)
        for i, tokens in enumerate(found[name].tokens):
            assert tokens == (whole[i][: len(tokens)] if name in aborted else whole[i]), name


def alone_with_stops(prompt: list[int], config: dict[str, Any]) -> list[list[int]]:
    harness = Harness(
        FakeRunner(num_pages=256), EngineConfig(prefix_cache_mode="disable"), stop_token_ids=STOPS
    )
    harness.add("a", prompt, **config)
    found = harness.run()["a"].tokens
    assert not by_column(harness) or config["max_tokens"] > 1
    return found


@pytest.mark.parametrize("overlaps", [False, True])
def test_nothing_is_made_anew_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, *, overlaps: bool
) -> None:
    harness = harness_of(overlaps=overlaps, stops=())
    for i in range(6):
        harness.add(str(i), prompt_of(5 + i, 3 * i), max_tokens=40, temperature=i % 2, seed=i)
    while len(by_column(harness)) < 2:
        harness.step()
    scheduler: Any = harness.core._scheduler
    monkeypatch.setattr(scheduler, "_plan", None)
    monkeypatch.setattr(scheduler.groups, "_made", None)
    for _ in range(DRAWN_AT_ONCE + 5):
        assert len(harness.step()) == len(scheduler.running)
    same = [rows.same for rows in by_column(harness)[-DRAWN_AT_ONCE:]]
    assert all(one is same[0] for one in same)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_sequence_of_another_length_starts_and_ends_alone(*, overlaps: bool) -> None:
    """The others go on by column in all steps but those with its prompt."""
    harness = harness_of(overlaps=overlaps, stops=())
    for i in range(4):
        harness.add(str(i), prompt_of(5, 7 * i), max_tokens=50)
    for _ in range(10):
        harness.step()
    harness.add("late", prompt_of(9, 4), max_tokens=6)
    found = harness.run()
    rows = [len(one.rows) for one in harness.runner.batches]
    assert rows.count(5) in (6, 7) and len(by_column(harness)) > 40
    for i in range(4):
        assert found[str(i)].tokens == alone("a", prompt_of(5, 7 * i), max_tokens=50)
    assert found["late"].tokens == alone("a", prompt_of(9, 4), max_tokens=6)


def test_rows_by_column_are_rows() -> None:
    greedy, drawn = Sampling(temperature=0.0), Sampling(temperature=0.7)
    same = SameRows([4, 2], [greedy, drawn], [-1, 3])
    rows = DecodeRows(same, [0.25, 0.5], tokens=[7, 9])  # type: ignore[arg-type]
    first, second = rows
    assert first == BatchRow(4, (7,), (greedy,))
    assert first.samplings[0] is greedy
    assert second == BatchRow(2, (9,), (Sampling(temperature=0.7, uniform=0.5),), adapter=3)
    assert [*rows[1:]] == [second] and rows[-1] == second and len(rows) == 2
    unknown = DecodeRows(same, None, chosen_by=same.indices)
    assert [row.chosen_by for row in unknown] == [0, 1]
    assert all(row.chosen_by == KNOWN for row in rows)
    samples = ChosenTokens([5, 6])
    assert [one.token_id for (one,) in samples] == [5, 6]
    assert samples[1][0].token_id == samples[-1:][0][0].token_id == 6
    with pytest.raises(IndexError):
        samples[2]
    assert len(Batch(rows).rows) == 2
