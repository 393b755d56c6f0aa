"""Experts on CPU kernels: whole models against NumPy, and against themselves in other company."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of_plan
from decoder_reference import Facts, ReferenceDecoder
from pairs import in_turn
from test_layer_features import CASES, planned

from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.model_runner import ModelRunner

EXPERTS = [name for name, case in CASES.items() if "ffn_gate_exps.weight" in case.more]
HERE = [name for name, isa in ISAS.items() if not (isa.bf16 or missing_features(name))]
"""`vnni-bf16` differs from `vnni` for fast tokens alone."""
WORST = {"portable": 1e-4}
"""Largest error of a logit, relative to the largest one; 3e-3 where pages are float16."""
WATCH = Sampling(temperature=0, top_logprobs=20)


@pytest.mark.one_of(6)
@pytest.mark.parametrize(("name", "kernels"), in_turn(EXPERTS, HERE))
def test_logits_against_numpy(tmp_path: Path, name: str, kernels: str) -> None:
    case = CASES[name]
    path, file, plan = planned(tmp_path, case)
    exact = ReferenceDecoder(path, Facts(**case.facts)).logits(TOKENS)
    runner = runner_of_plan(plan, file.tensors, tmp_path, kernels)
    whole = runner.logits(TOKENS, chunk=CHUNKS[-1])
    assert relative_error(whole, exact) <= WORST.get(kernels, 3e-3)
    for chunk in CHUNKS:
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"


def run(runner: ModelRunner, *rows: tuple[int, list[int]]) -> list[Sampled]:
    """One step; what each sequence says next, with its log-probabilities to the last bit."""
    output = runner.run(Batch([BatchRow(seq_id, tokens, [WATCH]) for seq_id, tokens in rows]))
    return [sample for (sample,) in output.samples]


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kernels", HERE)
def test_company_does_not_matter(tmp_path: Path, kernels: str) -> None:
    _, file, plan = planned(tmp_path, CASES["experts in blocks of 4 bits"])
    runner = runner_of_plan(plan, file.tensors, tmp_path, kernels)
    prompts = [TOKENS[:20], TOKENS[30:31], TOKENS[40:73], TOKENS[7:17]]
    alone = []
    for prompt in prompts:
        runner.add_sequence(0)
        alone += run(runner, (0, prompt))
        runner.remove_sequence(0)
    for seq_id in range(4):
        runner.add_sequence(seq_id)
    assert run(runner, *enumerate(prompts)) == alone
