"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2020): a BERT whose positions begin
behind that of padding. GGUF files leave the rows out that no text has, and call the model a BERT.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.models import bert
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import Either, Tail
from mlc_llm.models.weight_plan import Tensors, WeightPlan

PADDING = 1
"""The id of the padding token, and its row in the table of positions."""
_POSITIONS = "embeddings.position_embeddings.weight"
HF_NAMES = bert.bert_names(
    "roberta.",
    {
        "position_embd.weight": Tail(Either((f"roberta.{_POSITIONS}", _POSITIONS)), PADDING + 1),
        "cls.weight": "classifier.dense.weight",
        "cls.bias": "classifier.dense.bias",
        "cls.output.weight": "classifier.out_proj.weight",
        "cls.output.bias": "classifier.out_proj.bias",
    },
)


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    return bert.read_gguf(metadata, tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    ConfigValues(config).refuse_unless("pad_token_id", PADDING)
    return bert.read_config(config, unused_positions=PADDING + 1)
