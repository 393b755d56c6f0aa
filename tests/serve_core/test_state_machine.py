"""Random programs of add, step, abort and reset: integrity after each, one end for each request.

Prompts often begin alike, so that the prefix cache has something to do. Some answers follow a
grammar that forces much of their text. Some engines draft tokens ahead, in every step they can.
"""

from __future__ import annotations

from typing import Any

import pytest
from core_harness import Harness, alone, prompt_of
from hostile_grammars import regex
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from spec_tools import Seer, speculative

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import Batch
from mlc_llm.runtime.limits import Window
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.speculation.draft_model import DraftModel
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.testing.fake_runner import FakeRunner

FORCED = regex("[ab]{2}, and then what is known[cd]{1,3}")
FREE = regex("[a-f]+")


def harness_of(drafter: str | None, most: int, runner: FakeRunner, config: EngineConfig) -> Harness:
    """drafter: who drafts, if anybody."""
    limits = runner.limits
    if drafter is None:
        return Harness(runner, config, expected_error="injected")
    draft = FakeRunner(
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        max_num_sequence=limits.max_num_sequence,
        max_batch_tokens=limits.max_batch_tokens,
        context_window=40,
    )
    drafters = {"seer": Seer(most), "lookup": PromptLookup(), "model": DraftModel(draft)}
    return speculative(drafters[drafter], runner, config, most=most, expected_error="injected")


class CoreMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(6, 20),
        max_num_sequence=st.integers(1, 5),
        max_batch_tokens=st.integers(4, 40),
        mode=st.sampled_from(["hybrid", "chunked"]),
        cache=st.sampled_from([("radix", None), ("radix", 1), ("radix", 0), ("disable", None)]),
        drafter=st.sampled_from([None, "seer", "lookup", "model"]),
        most=st.integers(1, 8),
        window=st.sampled_from([None, None, None, Window(1), Window(6), Window(7, 5), Window(30)]),
        overlaps=st.booleans(),
    )
    def start(
        self,
        *,
        mode: Any,
        cache: Any,
        drafter: Any,
        most: int,
        window: Any,
        overlaps: bool,
        **limits: int,
    ) -> None:
        runner = FakeRunner(
            page_size=4, context_window=60, window=window, overlaps=overlaps, **limits
        )
        drafter = None if window else drafter  # the two are refused together
        self.window = window
        config = EngineConfig(
            prefill_mode=mode,
            prefix_cache_mode=cache[0],
            prefix_cache_max_num_recycling_seqs=cache[1],
        )
        self.harness = harness_of(drafter, most, runner, config)
        self.can_pin = cache[0] == "radix" and window is None
        self.added: dict[str, tuple[list[int], dict[str, Any]]] = {}
        self.is_faulty = self.is_late = False
        runner.faults.append(self._fault)
        runner.late_faults.append(self._late_fault)

    @rule(
        start=st.integers(0, 2),
        length=st.integers(1, 21),
        tail=st.integers(0, 3),
        pinned=st.booleans(),
        n=st.integers(1, 4),
        max_tokens=st.integers(0, 20),
        temperature=st.sampled_from([0.0, 1.0]),
        response_format=st.sampled_from([None, None, FORCED, FREE]),
    )
    def add(self, start: int, length: int, tail: int, pinned: bool, **config: Any) -> None:
        name, prompt = str(len(self.added)), [*prompt_of(length, start), *([tail] * tail)]
        self.added[name] = (prompt, {**config, "seed": len(self.added)})
        debug = {"pinned_system_prompt": pinned and self.can_pin}
        self.harness.add(name, prompt, debug_config=debug, **self.added[name][1])

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()
            self.harness.core.check_integrity()

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.abort(data.draw(st.sampled_from(sorted(self.added))))

    @rule(is_late=st.booleans())
    def fail_once(self, is_late: bool) -> None:
        self.is_faulty, self.is_late = not is_late, is_late
        self.harness.step()
        self.is_faulty = self.is_late = False

    @rule()
    def reset(self) -> None:
        self.harness.reset()
        assert self.harness.core.is_idle

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "harness"):
            self.harness.core.check_integrity()
            self.harness.check_cache()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.run()
        capacity = self.harness.runner.limits.capacity
        for name, seen in self.harness.seen.items():
            prompt, config = self.added[name]
            if len(prompt) + 20 <= min(capacity, 60):
                self._compare(seen.tokens, seen.reasons, alone(name, prompt, self.window, **config))

    def _fault(self, batch: Batch) -> None:
        if self.is_faulty and batch.rows[-1].seq_id % 2 == 0:
            raise RequestError("injected")

    def _late_fault(self, batch: Batch) -> None:
        if self.is_late and batch.rows[0].seq_id % 2 == 0:
            raise RequestError("injected")

    def _compare(self, tokens: Any, reasons: Any, expected: list[list[int]]) -> None:
        """Whatever happened, what was said is the beginning of what would have been said."""
        for said, reason, whole in zip(tokens, reasons, expected, strict=True):
            assert said == whole if reason == "length" else said == whole[: len(said)]


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=3 * settings.default.max_examples, stateful_step_count=25)


@pytest.mark.slow
class TestMoreOfCore(CoreMachine.TestCase):  # type: ignore[misc]
    settings = settings(TestCore.settings, max_examples=2000)
