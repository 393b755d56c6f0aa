"""What each precision costs on a model, as it was measured, kept beside its packed weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mlc_llm.precision import PRECISIONS, Precision
from mlc_llm.record import record

COSTS_FILE = "precision.json"
"""In the folder of the packed weights."""
MOST_DIVERGENCE = 1e-4
"""What `auto` allows, in nats."""
PROMPT, ANSWER = 256, 64
"""Tokens of the prompts and of the answers that are measured."""
BATCH = 8
"""Sequences of the batch that is measured."""


@record()
class PrecisionCost:
    """One precision of one model on one machine. All speeds are tokens a second."""

    precision: Precision
    prompt_tokens_per_s: float
    answer_tokens_per_s: float
    """Of one sequence."""
    batch_tokens_per_s: float
    """Of `BATCH` sequences that run together."""
    divergence: float
    """Mean KL divergence of the next token's probabilities from those of `exact`, in nats, over
    the tokens behind prompts."""

    @property
    def seconds(self) -> float:
        """Of a prompt and an answer."""
        return PROMPT / self.prompt_tokens_per_s + ANSWER / self.answer_tokens_per_s

    def faster_of(self, other: PrecisionCost) -> PrecisionCost:
        """The same with the higher speed of each kind."""
        speeds = ("prompt_tokens_per_s", "answer_tokens_per_s", "batch_tokens_per_s")
        higher = {name: max(getattr(one, name) for one in (self, other)) for name in speeds}
        return replace(self, **higher)

    def astext(self) -> str:
        """One line."""
        return (
            f"prompts {self.prompt_tokens_per_s:,.0f}, one answer {self.answer_tokens_per_s:,.0f}, "
            f"{BATCH} answers {self.batch_tokens_per_s:,.0f} tokens/s, KL {self.divergence:.1e}"
        )


def fastest(costs: Iterable[PrecisionCost]) -> PrecisionCost:
    """What `auto` takes. One of the costs is that of `exact`."""
    near = (one for one in costs if one.divergence <= MOST_DIVERGENCE)
    return min(near, key=lambda one: one.seconds)


def written(key: str, costs: Sequence[PrecisionCost]) -> str:
    """The text of the file. key: names the code that was measured."""
    return json.dumps({"key": key, "costs": [asdict(one) for one in costs]}, indent=1)


def read_costs(weights: Path, key: str | None = None) -> list[PrecisionCost]:
    """The costs in a folder of packed weights. Empty if they were not measured, or for other code
    than `key` (None: any)."""
    try:
        found = json.loads((weights / COSTS_FILE).read_text(encoding="utf-8"))
        if key is not None and found["key"] != key:
            return []
        costs = [PrecisionCost(**one) for one in found["costs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [one for one in costs if one.precision in PRECISIONS]
