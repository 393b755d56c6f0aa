"""Head sizes, query heads per KV head, tied and untied heads: small Llamas and Qwen3s of
Transformers with random weights, against the CPU kernels."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
torch = pytest.importorskip("torch", reason="the oracle extra is not installed")

from architecture_tools import relative_error, runner_of_folder  # noqa: E402
from small_models import HALF_WORST, LENGTH, WORST, randomized, sizes  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
CASES = list(itertools.product((64, 80, 96, 128, 256), (1, 4, 8), (False, True)))
"""Elements of a head, query heads that share a KV head, whether the head is the embedding table."""
SIDES = [(name, kernels) for name in ("Llama", "Qwen3") for kernels in ("portable", None)]
"""Each case has one of them, in another order for tied heads than for untied ones."""


@pytest.mark.parametrize(
    ("case", "side"), [(case, SIDES[(i + i // 2) % 4]) for i, case in enumerate(CASES)]
)
def test_logits_equal_transformers(
    tmp_path: Path, case: tuple[int, int, bool], side: tuple[str, str | None]
) -> None:
    (dim, group, is_tied), (name, kernels) = case, side
    given = sizes(0) | {
        "head_dim": dim, "num_attention_heads": 2 * group, "num_key_value_heads": 2,
        "hidden_size": 128, "tie_word_embeddings": is_tied,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**given)
    model = randomized(getattr(transformers, f"{name}ForCausalLM"), config, seed=dim + group)
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(dim).integers(0, 256, LENGTH).tolist()
    with torch.no_grad():
        exact = model(torch.tensor([tokens])).logits[0].double().numpy()
    runner = runner_of_folder(tmp_path, tmp_path, kernels)
    whole = runner.logits(tokens)
    assert relative_error(whole, exact) <= (HALF_WORST if kernels is None else WORST)
    for chunk in (7, 1):
        assert runner.logits(tokens, chunk=chunk).tobytes() == whole.tobytes(), chunk
