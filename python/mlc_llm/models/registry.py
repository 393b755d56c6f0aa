"""The architectures: one row each, with the names that files give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models import (
    exaone4,
    gemma2,
    gemma3,
    gemma4,
    glm4,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    granitemoe,
    lfm2,
    llama,
    mistral,
    mistral3,
    mixtral,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.spec_checks import check_sizes
from mlc_llm.models.tensor_names import FolderNames
from mlc_llm.models.text_part import TextPart
from mlc_llm.models.weight_plan import Tensors, WeightPlan


class Architecture(NamedTuple):
    """Who reads a model's header."""

    gguf: str
    """`general.architecture` of GGUF."""
    config: str
    """The class in `architectures` of a `config.json`."""
    model_type: str
    """Of a `config.json`, where it names no class."""
    read_gguf: Callable[[Mapping[str, object], Tensors], WeightPlan]
    read_config: Callable[[Mapping[str, object]], ModelSpec]
    names: FolderNames
    """Of the tensors in a Hugging Face folder."""


ROWS = tuple(
    Architecture(gguf, config, model_type, module.read_gguf, module.read_config, module.HF_NAMES)
    for gguf, config, model_type, module in (
        ("exaone4", "Exaone4ForCausalLM", "exaone4", exaone4),
        ("gemma2", "Gemma2ForCausalLM", "gemma2", gemma2),
        ("gemma3", "Gemma3ForCausalLM", "gemma3_text", gemma3),
        ("gemma3", "Gemma3ForConditionalGeneration", "gemma3", TextPart(gemma3)),
        ("gemma4", "Gemma4ForCausalLM", "gemma4_text", gemma4),
        ("gemma4", "Gemma4ForConditionalGeneration", "gemma4", TextPart(gemma4)),
        ("glm4", "Glm4ForCausalLM", "glm4", glm4),
        ("gpt-oss", "GptOssForCausalLM", "gpt_oss", gpt_oss),
        ("gpt2", "GPT2LMHeadModel", "gpt2", gpt2),
        ("gptneox", "GPTNeoXForCausalLM", "gpt_neox", gpt_neox),
        ("granite", "GraniteForCausalLM", "granite", granite),
        ("granitemoe", "GraniteMoeForCausalLM", "granitemoe", granitemoe),
        ("granitemoe", "GraniteMoeSharedForCausalLM", "granitemoeshared", granitemoe),
        ("lfm2", "Lfm2ForCausalLM", "lfm2", lfm2),
        ("llama", "LlamaForCausalLM", "llama", llama),
        ("llama", "MistralForCausalLM", "mistral", mistral),
        ("llama", "MixtralForCausalLM", "mixtral", mixtral),
        ("mistral3", "Ministral3ForCausalLM", "ministral3", mistral3),
        ("mistral3", "Mistral3ForConditionalGeneration", "mistral3", TextPart(mistral3)),
        ("olmo2", "Olmo2ForCausalLM", "olmo2", olmo2),
        ("olmo2", "Olmo3ForCausalLM", "olmo3", olmo3),
        ("olmoe", "OlmoeForCausalLM", "olmoe", olmoe),
        ("phi3", "Phi3ForCausalLM", "phi3", phi3),
        ("qwen2", "Qwen2ForCausalLM", "qwen2", qwen2),
        ("qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe),
        ("qwen3", "Qwen3ForCausalLM", "qwen3", qwen3),
        ("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe),
        ("seed_oss", "SeedOssForCausalLM", "seed_oss", seed_oss),
        ("smollm3", "SmolLM3ForCausalLM", "smollm3", smollm3),
        ("stablelm", "StableLmForCausalLM", "stablelm", stablelm),
        ("starcoder2", "Starcoder2ForCausalLM", "starcoder2", starcoder2),
    )
)
ARCHITECTURES: dict[str, Architecture] = {row.gguf: row for row in reversed(ROWS)}
"""By `general.architecture` of GGUF; where rows have one name there, the first of them."""
_BY_CLASS = {row.config: row for row in ROWS}
_BY_TYPE = {row.model_type: row for row in ROWS}


def check_architecture(metadata: Mapping[str, object]) -> str:
    """`general.architecture` of GGUF, if there is a row for it. Raises UnsupportedModel."""
    return _row(metadata.get("general.architecture"), ARCHITECTURES).gguf


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """What the model is and which tensors it takes. Raises UnsupportedModel, ModelFileError."""
    return ARCHITECTURES[check_architecture(metadata)].read_gguf(metadata, tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """What the model of a `config.json` is. Raises UnsupportedModel, ModelFileError."""
    spec = architecture_of(config).read_config(config)
    check_sizes(spec)
    return spec


def architecture_of(config: Mapping[str, object]) -> Architecture:
    """The row for the class or the type in a `config.json`. Raises UnsupportedModel."""
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        return _row(classes[0], _BY_CLASS)
    return _row(config.get("model_type"), _BY_TYPE)


def _row(name: object, rows: Mapping[str, Architecture]) -> Architecture:
    if not isinstance(name, str) or name not in rows:
        known = ", ".join(sorted(rows))
        raise UnsupportedModel(f"architecture {name!r} is not supported; supported: {known}")
    return rows[name]
