"""Greedy text of an engine does not depend on how it is computed: one sequence alone, batches of
mixed lengths, prompts in chunks, prefixes of earlier answers, drafts, windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from eager_drafts import draft_always, opened

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import RequestStreamOutput, TokenData
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

ANSWER = 64
"""Tokens."""
GREEDY = GenerationConfig(temperature=0, max_tokens=ANSWER, debug_config={"ignore_eos": True})
_LONG = np.random.default_rng(5).integers(0, 256, 75).tolist()
PROMPTS: tuple[list[int], ...] = (
    _LONG[:40], _LONG, _LONG[50:53], _LONG[20:37], _LONG[:44] + [7, 8, 9] * 4
)  # fmt: skip
"""Of mixed lengths. Three of them begin alike, one repeats itself."""
NARROW: dict[str, Any] = {
    "max_total_sequence_length": 208, "prefill_chunk_size": 16, "max_num_sequence": 3,
}  # fmt: skip
"""Few pages and short chunks, so that prompts are cut and sequences preempted."""
KEEPING = {"max_total_sequence_length": 2048, "max_num_sequence": 12}
"""So much room that all that has ended stays in the prefix cache."""
WINDOW = {"sliding_window_size": 48, "attention_sink_size": 4, "max_num_sequence": 3}
Answers = list[list[int]]
Prompts = Sequence[list[int]]


class Opened:
    """An engine that answers in ids, and the core inside it."""

    def __init__(self, model: Path, kernels: str | None, **config: Any) -> None:
        self.ids: dict[str, list[int]] = {}
        whole = EngineConfig(kernels=kernels, **config)
        self.engine, self.core = opened(str(model), whole, self._put)
        draft_always(self.core, 5)

    def _put(self, outputs: Sequence[RequestStreamOutput]) -> None:
        for output in outputs:
            for ids in output.group_delta_token_ids:
                self.ids[output.request_id] += ids

    def together(self, prompts: Prompts = PROMPTS) -> Answers:
        self.ids = {str(i): [] for i in range(len(prompts))}
        for i, prompt in enumerate(prompts):
            self._add(str(i), prompt)
        self._run()
        return list(self.ids.values())

    def one_by_one(self, prompts: Prompts = PROMPTS) -> Answers:
        return [self.together([prompt])[0] for prompt in prompts]

    def counted(self, name: str) -> float:
        """A number of the engine's metrics."""
        found: Mapping[str, Any] = self.engine.metrics().metrics
        if name == "draft_count":
            return float(sum(found.get("spec_decode", {}).get(name, [])))
        return float(found[name])

    def _add(self, name: str, prompt: list[int]) -> None:
        self.engine.add_request(self.engine.create_request(name, TokenData(prompt), GREEDY))

    def _run(self) -> None:
        while not self.core.is_idle:
            self.engine.step()
        self.core.check_integrity()


def alone(model: Path, kernels: str | None, prompts: Prompts = PROMPTS, **config: Any) -> Answers:
    """What each prompt gets for itself, without a prefix cache."""
    found = Opened(model, kernels, prefix_cache_mode="disable", **config).one_by_one(prompts)
    assert [len(one) for one in found] == [ANSWER] * len(prompts)
    return found


def check_same_text(model: Path, kernels: str | None, folder: Path, expected: Answers) -> None:
    """folder: for the draft model."""
    narrow = Opened(model, kernels, **NARROW)
    assert narrow.together() == expected, "together, in chunks"
    assert narrow.core.num_preemptions > 0
    cached = Opened(model, kernels, **KEEPING)
    assert cached.one_by_one() == expected, "with prefixes of other prompts"
    longer = [[*prompt, *answer, 7] for prompt, answer in zip(PROMPTS, expected, strict=True)]
    computed = cached.counted("prefill_tokens_sum")
    assert cached.together(longer) == alone(model, kernels, longer), "behind earlier answers"
    assert cached.counted("prefill_tokens_sum") - computed < sum(map(len, longer)) / 2
    _check_drafts(model, kernels, folder, expected)


def _check_drafts(model: Path, kernels: str | None, folder: Path, expected: Answers) -> None:
    for mode, drafts in _drafters(folder):
        drafting = Opened(model, kernels, speculative_mode=mode, additional_models=drafts)
        assert drafting.together() == expected, mode
        is_offered = mode != "prompt_lookup" or _repeats(expected)
        assert (drafting.counted("draft_count") > 0) == is_offered, mode


def _repeats(answers: Answers) -> bool:
    """Some text has a pair of tokens again, before the last token of its answer: what follows it is
    looked up then. (Texts of random models may have none.)"""
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        text = [*prompt, *answer]
        pairs = list(pairwise(text))
        if any(pairs[i] in pairs[:i] for i in range(len(prompt) - 1, len(pairs) - 1)):
            return True
    return False


def _drafters(folder: Path) -> Iterator[tuple[str, list[str]]]:
    yield "prompt_lookup", []
    small = write_tiny_model(folder / "draft.gguf", shape=TinyShape(layers=1))
    yield "small_draft", [str(small)]


def check_same_text_in_a_window(model: Path, kernels: str | None, plain: Answers) -> None:
    """The engine's window: longer answers than it, with many pages and with few. plain: what there
    is without a window, which must be something else."""
    expected = alone(model, kernels, max_total_sequence_length=2048, **WINDOW)
    assert expected != plain
    few = Opened(model, kernels, max_total_sequence_length=240, prefill_chunk_size=20, **WINDOW)
    assert few.together() == expected, "few pages"
