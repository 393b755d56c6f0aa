"""Drafters and policies for tests of speculative decoding."""

from __future__ import annotations

from collections import abc
from typing import Any

import numpy as np
from core_harness import Harness
from eager_drafts import draft_always

from mlc_llm.runtime.batch import Batch
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Drafter, Offer
from mlc_llm.testing.fake_runner import FakeRunner
from mlc_llm.testing.fake_sampling import fake_logits, sample


class Seer:
    """Knows what the fake model will say, and is wrong in some places, at random."""

    def __init__(self, seed: int = 0, *, right: float = 0.8) -> None:
        self._rng = np.random.default_rng(seed)
        self._right = right

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        return [Offer(one) for one in most]

    def cost(self, rows: int, depth: int) -> float:
        return 0.0

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        for draft, length in zip(drafts, lengths, strict=True):
            while len(draft.token_ids) < length and draft.push(self._expected(draft)):
                pass

    def forget(self, sequence: Sequence) -> None:
        """Remembers nothing."""

    def reset(self) -> None:
        """Remembers nothing."""

    def check_integrity(self) -> None:
        """Remembers nothing."""

    def _expected(self, draft: DraftSequence) -> int:
        sequence = draft.sequence
        tokens = [*sequence.tokens(0, sequence.known), *draft.token_ids]
        said = sample(fake_logits(tokens, 300), draft.samplings[-1]).token_id
        return said if self._rng.random() < self._right else int(self._rng.integers(300))


class Broken(Seer):
    """Raises in the middle of a draft."""

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        drafts[0].push(1)
        raise RuntimeError("a drafter that is broken")


def speculative(
    drafter: Drafter,
    runner: FakeRunner | None = None,
    config: EngineConfig | None = None,
    *,
    most: int | None = 16,
    **options: Any,
) -> Harness:
    """A harness whose core drafts in every step it can; most None: where it pays."""
    harness = Harness(runner or FakeRunner(), config or EngineConfig(), drafter=drafter, **options)
    if most is not None:
        draft_always(harness.core, most, may_fail=True)
    return harness


def drafted(harness: Harness) -> tuple[int, int]:
    """(draft tokens, accepted ones) in all steps so far."""
    spec = harness.core.metrics().metrics.get("spec_decode", {})
    return sum(spec.get("draft_count", [])), sum(spec.get("accept_count", []))


def longest_row(batches: abc.Sequence[Batch]) -> int:
    """Most samplings of a row."""
    return max(len(row.samplings) for batch in batches for row in batch.rows)
