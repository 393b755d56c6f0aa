"""Adapters of layers with states at run time, each against the merged model.

Mamba 2 and Falcon-H1 are refused by PEFT, and RWKV-7 has no class in Transformers: so
`tests/oracle/test_lora_adapters.py` has none of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from architecture_tools import TOKENS, relative_error, runner_of_folder, runner_of_plan
from pairs import in_turn
from random_folders import write_adapter, write_merged, write_random

from mlc_llm.model_files.adapters import changes_of, open_adapter, parts_of
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.runtime.limits import AdapterLimits

STATES = {
    "Mamba2ForCausalLM": {"mixer.in_proj", "mixer.out_proj"},
    "FalconH1ForCausalLM": {
        "mamba.in_proj",
        "mamba.out_proj",
        "self_attn.q_proj",
        "self_attn.k_proj",
    },
    "Lfm2ForCausalLM": {"conv.in_proj", "conv.out_proj"},
    "RWKV7ForCausalLM": {"attn.r_proj", "attn.w_lora.lora.0", "attn.v_lora.lora.2", "ffn.key"},
    "Qwen3_5ForCausalLM": {"linear_attn.in_proj_qkv", "linear_attn.out_proj"},
}
"""Some of the modules that the adapter has."""
WORST = 1e-4
"""Largest difference of a logit, relative to the largest one."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernels"), in_turn([*STATES], ["reference", "portable"]))
def test_an_adapter_is_the_merged_model(tmp_path: Path, name: str, kernels: str) -> None:
    model = write_random(tmp_path / "model", name)
    adapter = write_adapter(tmp_path / "peft", model)
    for folder in ("adapted", "merged"):
        (tmp_path / folder).mkdir()
    whole = write_merged(tmp_path / "whole", model, adapter)
    merged = runner_of_folder(whole, tmp_path / "merged", kernels)
    exact = merged.logits(TOKENS).astype(np.float64)
    files, opened = HuggingFaceModel.open(model), open_adapter(str(adapter))
    assert all(any(part in one for one in opened.factors) for part in STATES[name])
    plan = files.plan()
    limits = AdapterLimits(2, 8)
    runner = runner_of_plan(plan, files.tensors, tmp_path / "adapted", kernels, adapters=limits)
    runner.load_adapter(1, parts_of(plan, changes_of(files, opened)))
    for chunk in (None, 7):
        assert relative_error(runner.logits(TOKENS, chunk=chunk, adapter=1), exact) <= WORST
    assert relative_error(runner.logits(TOKENS), exact) > 0.1, "the adapter changes nothing"
