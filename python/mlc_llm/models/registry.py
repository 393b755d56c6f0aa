"""The architectures: one row each, with the names that files give it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.spec_checks import check_sizes
from mlc_llm.models.weight_plan import Tensors, WeightPlan

if TYPE_CHECKING:
    from mlc_llm.models.tensor_names import FolderNames
    from mlc_llm.models.text_part import Reader


class Architecture(NamedTuple):
    """Who reads a model's header. The file is imported when a model needs it."""

    gguf: str
    """`general.architecture` of GGUF."""
    config: str
    """The class in `architectures` of a `config.json`."""
    model_type: str
    """Of a `config.json`, where it names no class."""
    file: str
    """In this folder."""
    is_part: bool = False
    """The folder also has a model of images (`text_part.py`)."""

    def read_gguf(self, metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
        """What a GGUF file's model is. Raises UnsupportedModel, ModelFileError."""
        return _reader(self.file, self.is_part).read_gguf(metadata, tensors)

    def read_config(self, config: Mapping[str, object]) -> ModelSpec:
        """What a `config.json`'s model is. Raises UnsupportedModel, ModelFileError."""
        return _reader(self.file, self.is_part).read_config(config)

    @property
    def names(self) -> FolderNames:
        """Of the tensors in a Hugging Face folder."""
        return _reader(self.file, self.is_part).HF_NAMES

    def names_of(self, config: Mapping[str, object]) -> FolderNames:
        """The same of a folder with this `config.json`, which may have multipliers of tensors, or
        sizes of their parts. Raises ModelFileError."""
        reader = _reader(self.file, self.is_part)
        of_config = getattr(reader, "config_names", None)
        return reader.HF_NAMES if of_config is None else of_config(config)


@cache
def _reader(file: str, is_part: bool) -> Reader:
    found = cast("Reader", import_module(f"mlc_llm.models.{file}"))
    if not is_part:
        return found
    from mlc_llm.models.text_part import TextPart

    return TextPart(found)


ROWS = (
    Architecture("arcee", "ArceeForCausalLM", "arcee", "arcee"),
    Architecture("cohere2", "Cohere2ForCausalLM", "cohere2", "cohere2"),
    Architecture("ernie4_5", "Ernie4_5ForCausalLM", "ernie4_5", "ernie4_5"),
    Architecture("exaone4", "Exaone4ForCausalLM", "exaone4", "exaone4"),
    Architecture("falcon-h1", "FalconH1ForCausalLM", "falcon_h1", "falcon_h1"),
    Architecture("gemma", "GemmaForCausalLM", "gemma", "gemma"),
    Architecture("gemma2", "Gemma2ForCausalLM", "gemma2", "gemma2"),
    Architecture("gemma3", "Gemma3ForCausalLM", "gemma3_text", "gemma3"),
    Architecture("gemma3", "Gemma3ForConditionalGeneration", "gemma3", "gemma3", is_part=True),
    Architecture("gemma4", "Gemma4ForCausalLM", "gemma4_text", "gemma4"),
    Architecture("gemma4", "Gemma4ForConditionalGeneration", "gemma4", "gemma4", is_part=True),
    Architecture("glm4", "Glm4ForCausalLM", "glm4", "glm4"),
    Architecture("gpt-oss", "GptOssForCausalLM", "gpt_oss", "gpt_oss"),
    Architecture("gpt2", "GPT2LMHeadModel", "gpt2", "gpt2"),
    Architecture("gptneox", "GPTNeoXForCausalLM", "gpt_neox", "gpt_neox"),
    Architecture("granite", "GraniteForCausalLM", "granite", "granite"),
    Architecture("granitemoe", "GraniteMoeForCausalLM", "granitemoe", "granitemoe"),
    Architecture("granitemoe", "GraniteMoeSharedForCausalLM", "granitemoeshared", "granitemoe"),
    Architecture(
        "granitehybrid", "GraniteMoeHybridForCausalLM", "granitemoehybrid", "granitehybrid"
    ),
    Architecture("lfm2", "Lfm2ForCausalLM", "lfm2", "lfm2"),
    Architecture("lfm2moe", "Lfm2MoeForCausalLM", "lfm2_moe", "lfm2_moe"),
    Architecture("llama", "LlamaForCausalLM", "llama", "llama"),
    Architecture("llama", "Idefics3ForConditionalGeneration", "idefics3", "llama", is_part=True),
    Architecture("llama", "SmolVLMForConditionalGeneration", "smolvlm", "llama", is_part=True),
    Architecture("llama", "MistralForCausalLM", "mistral", "mistral"),
    Architecture("llama", "MixtralForCausalLM", "mixtral", "mixtral"),
    Architecture("mamba2", "Mamba2ForCausalLM", "mamba2", "mamba2"),
    Architecture("mistral3", "Ministral3ForCausalLM", "ministral3", "mistral3"),
    Architecture(
        "mistral3", "Mistral3ForConditionalGeneration", "mistral3", "mistral3", is_part=True
    ),
    Architecture("olmo2", "Olmo2ForCausalLM", "olmo2", "olmo2"),
    Architecture("olmo2", "Olmo3ForCausalLM", "olmo3", "olmo3"),
    Architecture("olmoe", "OlmoeForCausalLM", "olmoe", "olmoe"),
    Architecture("phi3", "Phi3ForCausalLM", "phi3", "phi3"),
    Architecture("qwen2", "Qwen2ForCausalLM", "qwen2", "qwen2"),
    Architecture(
        "qwen2vl", "Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl", is_part=True
    ),
    Architecture(
        "qwen2vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2_vl", is_part=True
    ),
    Architecture("qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", "qwen2_moe"),
    Architecture("qwen3", "Qwen3ForCausalLM", "qwen3", "qwen3"),
    Architecture(
        "qwen3vl", "Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl", is_part=True
    ),
    Architecture("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", "qwen3_moe"),
    Architecture("qwen35", "Qwen3_5ForCausalLM", "qwen3_5_text", "qwen3_5"),
    Architecture("qwen35", "Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5", is_part=True),
    Architecture("qwen35moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "qwen3_5_moe"),
    Architecture(
        "qwen35moe",
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
        "qwen3_5_moe",
        is_part=True,
    ),
    Architecture("qwen3next", "Qwen3NextForCausalLM", "qwen3_next", "qwen3_next"),
    Architecture("rwkv7", "RWKV7ForCausalLM", "rwkv7", "rwkv7"),
    Architecture("seed_oss", "SeedOssForCausalLM", "seed_oss", "seed_oss"),
    Architecture("smollm3", "SmolLM3ForCausalLM", "smollm3", "smollm3"),
    Architecture("stablelm", "StableLmForCausalLM", "stablelm", "stablelm"),
    Architecture("starcoder2", "Starcoder2ForCausalLM", "starcoder2", "starcoder2"),
)
"""Those that write text."""
ENCODERS = (
    Architecture("bert", "BertModel", "bert", "bert"),
    Architecture("bert", "BertForMaskedLM", "bert", "bert"),
    Architecture("bert", "BertForSequenceClassification", "bert", "bert"),
    Architecture("bert", "RobertaModel", "roberta", "roberta"),
    Architecture("bert", "RobertaForSequenceClassification", "roberta", "roberta"),
    Architecture("bert", "XLMRobertaModel", "xlm-roberta", "roberta"),
    Architecture("bert", "XLMRobertaForSequenceClassification", "xlm-roberta", "roberta"),
    Architecture("gemma-embedding", "Gemma3TextModel", "gemma3_text", "gemma_embedding"),
    Architecture("modern-bert", "ModernBertModel", "modernbert", "modern_bert"),
    Architecture("modern-bert", "ModernBertForMaskedLM", "modernbert", "modern_bert"),
    Architecture("modern-bert", "ModernBertForSequenceClassification", "modernbert", "modern_bert"),
    Architecture("nomic-bert", "NomicBertModel", "nomic_bert", "nomic_bert"),
    Architecture("nomic-bert", "NomicBertForSequenceClassification", "nomic_bert", "nomic_bert"),
)
"""Those that make vectors of texts."""
EMBEDDERS = (Architecture("qwen3", "Qwen3Model", "qwen3", "qwen3"),)
"""Decoders whose folders have no head: they are for the vector of a text's last token."""
RANKERS = (Architecture("qwen3", "Qwen3ForSequenceClassification", "qwen3", "qwen3"),)
"""Decoders that rank documents: their head has a row for each label, and none for tokens."""
USUAL_END = "ForCausalLM"
_ALL = (*ROWS, *ENCODERS, *EMBEDDERS, *RANKERS)
ARCHITECTURES: dict[str, Architecture] = {row.gguf: row for row in reversed(_ALL)}
"""By `general.architecture` of GGUF; where rows have one name there, the first of them."""
_BY_CLASS = {row.config: row for row in _ALL}
_BY_TYPE = {row.model_type: row for row in reversed(_ALL)}
"""Where rows have one type, the first of them."""


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


def is_encoder(config: Mapping[str, object]) -> bool:
    """Whether the model of a `config.json` makes vectors of texts. Raises UnsupportedModel."""
    return architecture_of(config) in ENCODERS


def is_ranker(config: Mapping[str, object]) -> bool:
    """Whether the model of a `config.json` ranks documents. Raises UnsupportedModel."""
    return architecture_of(config) in RANKERS


def names_of_gguf(architecture: str) -> FolderNames | None:
    """Names in the Hugging Face folders of an architecture of GGUF; None: only a folder's config
    says them. All rows of one architecture name their matrices alike."""
    row = ARCHITECTURES[architecture]
    has_own = hasattr(_reader(row.file, row.is_part), "config_names")
    return None if has_own else row.names


def _row(name: object, rows: Mapping[str, Architecture]) -> Architecture:
    if not isinstance(name, str) or name not in rows:
        raise UnsupportedModel(f"architecture {name!r} is not supported; supported: {_list(rows)}")
    return rows[name]


def _list(names: Iterable[str]) -> str:
    """In one line that can be read: most classes end alike."""
    known = ", ".join(
        f"{one.removesuffix(USUAL_END)}*" if one.endswith(USUAL_END) else one
        for one in sorted(names)
    )
    return f"{known} (* is {USUAL_END})" if "*" in known else known
