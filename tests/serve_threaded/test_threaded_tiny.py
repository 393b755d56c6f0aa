"""`ThreadedEngine` on the tiny random model: pages, and when outputs are given out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from threaded_harness import Running, Stream, eventually

from mlc_llm.errors import UserError
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import write_tiny_model

GREEDY: dict[str, Any] = {"temperature": 0, "debug_config": {"ignore_eos": True}}
PROMPTS = [letter * 40 for letter in "abcd"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        model = write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
        SyncMLCEngine(str(model), "cpu")  # compiles it, before anybody watches the time
        yield model


@contextmanager
def engine_of(tiny: Path, **config: Any) -> Iterator[Running]:
    """Without a prefix cache, unless the config says so: all pages are free when nothing runs."""
    with Running(load=False) as running:
        running.engine.reload(
            json.dumps({"model": str(tiny), "prefix_cache_mode": "disable", **config})
        )
        yield running


def free_pages(running: Running) -> int:
    return int(running.core._runner.free_pages)


def rows_of(running: Running) -> list[list[int]]:
    """The token ids of every row that is computed from now on."""
    seen: list[list[int]] = []
    usual = running.core._runner.run
    running.core._runner.run = lambda batch: (
        seen.extend(list(row.token_ids) for row in batch.rows),
        usual(batch),
    )[1]
    return seen


def test_an_abort_frees_the_pages_within_a_step(tiny: Path) -> None:
    with engine_of(tiny) as running:
        running.add("a", "some text", max_tokens=500, **GREEDY)
        eventually(lambda: "a" in running.reader.streams, "nothing streams")
        rows = rows_of(running)
        running.engine.abort_request("a")
        assert running.reader.end_of("a").reasons == ["abort"]
        computed = len(rows)
        eventually(lambda: free_pages(running) == running.core._runner.limits.num_pages, "pages")
        assert len(rows) == computed


def test_a_request_that_waits_is_aborted_without_a_call_of_the_model(tiny: Path) -> None:
    with engine_of(tiny, max_num_sequence=1) as running:
        running.add("a", "aaa", max_tokens=500, **GREEDY)
        eventually(lambda: "a" in running.reader.streams, "nothing streams")
        rows = rows_of(running)
        running.add("b", "ZZZ")
        running.engine.abort_request("b")
        stream = running.reader.end_of("b")
        assert (stream.tokens, stream.reasons, len(stream.usages)) == ([], ["abort"], 1)
        assert not running.reader.has_ended("a") and ord("Z") not in {t for r in rows for t in r}


def test_each_kernel_is_a_sign_of_life(tiny: Path) -> None:
    with engine_of(tiny) as running:
        before, seen = running.engine.progress, list[int]()
        usual = running.core._runner.run

        def run(batch: Any) -> Any:
            output = usual(batch)
            seen.append(running.engine.progress.launches)
            return output

        running.core._runner.run = run  # type: ignore[method-assign]
        running.add("a", "some text", max_tokens=3, **GREEDY)
        running.reader.end_of("a")
        steps = zip([before.launches, *seen], seen, strict=False)
        assert len(seen) >= 3 and all(later - one > 10 for one, later in steps)


def test_a_reset_gives_all_back(tiny: Path) -> None:
    with engine_of(tiny, prefix_cache_mode="radix") as running:
        running.add("first", PROMPTS[0], max_tokens=5, **GREEDY)
        running.reader.end_of("first")
        assert free_pages(running) < running.core._runner.limits.num_pages
        running.add("a", PROMPTS[1], max_tokens=500, **GREEDY)
        eventually(lambda: "a" in running.reader.streams, "nothing streams")
        running.engine.reset()
        assert running.reader.end_of("a").reasons == ["abort"]
        eventually(lambda: free_pages(running) == running.core._runner.limits.num_pages, "pages")
        assert running.core.metrics()["prefill_tokens_sum"] == 0
        running.add("again", PROMPTS[0], max_tokens=5, **GREEDY)
        assert running.reader.end_of("again").tokens == running.reader.streams["first"].tokens
        assert running.core.metrics()["prefill_tokens_sum"] == len(PROMPTS[0])


def test_preemption_changes_no_answer(tiny: Path) -> None:
    """There are pages for two of the four."""

    def streams(running: Running, names: str) -> list[Stream]:
        return [running.reader.end_of(name) for name in names]

    with engine_of(tiny, max_total_sequence_length=2 * 112, max_num_sequence=4) as running:
        for name, prompt in zip("abcd", PROMPTS, strict=True):
            running.add(name, prompt, max_tokens=60, **GREEDY)
            running.reader.end_of(name)
        assert running.core.num_preemptions == 0
        with running.paused():
            for name, prompt in zip("efgh", PROMPTS, strict=True):
                running.add(name, prompt, max_tokens=60, **GREEDY)
        together, alone = streams(running, "efgh"), streams(running, "abcd")
        assert running.core.num_preemptions > 0
        assert [one.tokens for one in together] == [one.tokens for one in alone]
        assert {len(one.tokens) for one in together} == {60}


def test_an_output_is_given_out_before_the_next_step_ends(tiny: Path) -> None:
    with engine_of(tiny) as running:
        runner, steps = running.core._runner, []
        usual = runner._step.forward

        def forward(*args: Any) -> Any:
            eventually(lambda: heard() == len(steps), "an output is held back")
            steps.append(heard())
            return usual(*args)

        def heard() -> int:
            return len(running.reader.streams.get("a", Stream()).tokens)

        runner._step.forward = forward
        running.add("a", "text", max_tokens=4, **GREEDY)
        assert running.reader.end_of("a").reasons == ["length"]
        assert steps == [0, 1, 2, 3]


def test_nothing_is_held_while_a_draft_model_computes(tiny: Path) -> None:
    drafting = {"speculative_mode": "small_draft", "additional_models": [str(tiny)]}
    with engine_of(tiny, **drafting) as running:
        held: list[list[int]] = []
        for runner in running.engine.loaded.runners:
            mine: list[int] = []
            held.append(mine)

            def forward(*args: Any, usual: Any = runner._step.forward, mine: Any = mine) -> Any:
                mine.append(len(running.engine._worker._held))
                return usual(*args)

            runner._step.forward = forward
        running.add("a", "text", max_tokens=20, **GREEDY)
        assert len(running.reader.end_of("a").tokens) == 20
        model, draft = held
        assert model and draft and not any(model + draft)


def test_an_output_goes_out_when_the_next_step_fails_before_it_computes(tiny: Path) -> None:
    with engine_of(tiny) as running:
        runner, calls = running.core._runner, []
        usual = runner.run

        def run(batch: Any) -> Any:
            calls.append(batch)
            if len(calls) > 2:
                raise RuntimeError("no such luck")
            return usual(batch)

        runner.run = run
        running.add("a", "text", max_tokens=9, **GREEDY)
        stream = running.reader.end_of("a")
        assert (len(stream.tokens), stream.reasons, stream.error) == (2, ["error"], "no such luck")


def test_a_model_that_does_not_fit_is_refused_in_the_caller(tiny: Path) -> None:
    with engine_of(tiny) as running:
        too_much = {"model": str(tiny), "max_total_sequence_length": 10**12}
        with pytest.raises(UserError, match="max_total_sequence_length"):
            running.engine.reload(json.dumps(too_much))
        running.engine.reload(json.dumps({"model": str(tiny)}))
        running.add("a", "text", max_tokens=3, **GREEDY)
        assert running.reader.end_of("a").reasons == ["length"]


def test_a_prompt_that_can_never_run_ends_at_once(tiny: Path) -> None:
    with engine_of(tiny, max_total_sequence_length=64) as running:
        rows = rows_of(running)
        running.add("a", "x" * 100)
        stream = running.reader.end_of("a")
        assert stream.tokens == [] and stream.reasons == ["error"]
        assert "64" in str(stream.error) and "tokens" in str(stream.error)
        assert stream.usages == [{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}]
        assert rows == [] and free_pages(running) == running.core._runner.limits.num_pages
