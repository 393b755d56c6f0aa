"""A random small model of Transformers for each class that the registry has."""

from __future__ import annotations

from typing import Any

import dense_models
import test_architectures
import test_expert_models
import test_llama_family
import torch

SEED = 0
_DENSE = {
    "GPT2LMHeadModel": "gpt2", "GPTNeoXForCausalLM": "gptneox", "Glm4ForCausalLM": "glm4",
    "Phi3ForCausalLM": "phi3", "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
}  # fmt: skip


def random_of(config_class: str) -> Any:
    """Raises LookupError for a class that no test of the oracle makes."""
    if config_class in _DENSE:
        return dense_models.random_model(_DENSE[config_class], SEED)
    for module in (test_llama_family, test_expert_models):
        for kind, (name, _) in module.KINDS.items():
            if config_class == f"{name}ForCausalLM":
                return module.made(kind, SEED)
    if config_class == "Lfm2ForCausalLM":
        torch.manual_seed(SEED)
        return test_architectures.made("lfm2", SEED)[0].eval()
    raise LookupError(f"no test of the oracle makes a {config_class}")
