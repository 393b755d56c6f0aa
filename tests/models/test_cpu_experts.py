"""Experts on CPU kernels: whole models against NumPy and the reference kernels, in any company."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of_plan
from decoder_reference import Facts, ReferenceDecoder
from test_layer_features import CASES, planned

from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import missing_features

EXPERTS = [name for name, case in CASES.items() if "ffn_gate_exps.weight" in case.more]
HERE = [name for name in ISAS if not missing_features(name)]
WORST = {"portable": 1e-4}
"""Largest error of a logit, relative to the largest one; 3e-3 where pages are float16."""


@pytest.mark.parametrize("kernels", HERE)
@pytest.mark.parametrize("name", EXPERTS)
def test_logits_against_numpy(tmp_path: Path, name: str, kernels: str) -> None:
    case = CASES[name]
    path, file, plan = planned(tmp_path, case)
    exact = ReferenceDecoder(path, Facts(**case.facts)).logits(TOKENS)
    runner = runner_of_plan(plan, file.tensors, tmp_path, kernels)
    whole = runner.logits(TOKENS, chunk=CHUNKS[-1])
    assert relative_error(whole, exact) <= WORST.get(kernels, 3e-3)
    for chunk in CHUNKS:
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
