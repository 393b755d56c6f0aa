"""Two ranks compute what one does: each feature of a layer against NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_tools import TOKENS, relative_error
from decoder_reference import Facts, ReferenceDecoder
from pairs import in_turn
from rank_tools import ranks_of_plan
from test_layer_features import CASES, WORST_OF_CPU, planned

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.errors import InvalidField

REFUSED = ("expert", "norms over all heads", "biases before norms", "inputs by token")
"""In the names of cases that no rank has a share of."""
WORST = {"reference": 1e-5, **WORST_OF_CPU}
SHARED = [name for name in CASES if not any(word in name for word in REFUSED)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernels"), in_turn(SHARED, WORST))
def test_two_ranks_against_numpy(tmp_path: Path, name: str, kernels: str | None) -> None:
    if kernels not in ("reference", None) and missing_features(kernels):
        pytest.skip(f"this machine lacks {missing_features(kernels)}")
    path, file, plan = planned(tmp_path, CASES[name])
    exact = ReferenceDecoder(path, Facts(**CASES[name].facts)).logits(TOKENS)
    with ranks_of_plan(plan, file.tensors, tmp_path, kernels) as (runner, _):
        whole = runner.logits(TOKENS)
        assert relative_error(whole, exact) <= WORST[kernels]
        assert runner.logits(TOKENS, chunk=7).tobytes() == whole.tobytes() or kernels == "reference"


@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", [name for name in CASES if name not in SHARED])
def test_what_cannot_be_split_is_refused_by_name(tmp_path: Path, name: str) -> None:
    _, file, plan = planned(tmp_path, CASES[name])
    with (
        pytest.raises(InvalidField, match=r"tensor_parallel_shards = 2 .* layer"),
        ranks_of_plan(plan, file.tensors, tmp_path, "reference"),
    ):
        pass
