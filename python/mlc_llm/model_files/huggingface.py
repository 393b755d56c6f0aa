"""A model in a Hugging Face folder: config.json, safetensors files and a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.dense_modules import dense_modules
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.model_files.folder_texts import folder_template, token_ids
from mlc_llm.model_files.pooling import folder_pooling
from mlc_llm.model_files.quantized_folder import plain_tensors
from mlc_llm.model_files.ranking import FOLDER_ROWS, RANK, folder_ranking
from mlc_llm.model_files.unchanged import PlannedFiles
from mlc_llm.models.registry import architecture_of, is_encoder, is_ranker, read_config
from mlc_llm.models.tensor_names import has_origin
from mlc_llm.models.weight_plan import (
    PROJECTIONS,
    WeightPlan,
    plan_weights,
    wanted_tensors,
    with_projections,
)
from mlc_llm.ranking import Ranking
from mlc_llm.record import record
from mlc_llm.tokenizers import Tokenizer

HEAD = "output.weight"
TABLE = "embed_tokens.weight"
"""The embedding, in a folder of a decoder's layers alone."""


@record()
class HuggingFaceModel(PlannedFiles):
    """See `ModelFiles`."""

    folder: HuggingFaceFolder
    weights: WeightPlan
    tensors: Mapping[str, Tensor]

    @classmethod
    def open(cls, path: Path) -> HuggingFaceModel:
        """Raises ModelNotFound, ModelFileError, UnsupportedModel."""
        folder = HuggingFaceFolder.open(path)
        if is_encoder(folder.config):
            more = dense_modules(path)
            tensors, opened = {**folder.tensors, **more.tensors}, folder.opened + more.opened
            folder = replace(folder, tensors=tensors, opened=opened)
        return cls(folder, *plan_folder(folder.config, folder.tensors))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        return self.folder.opened

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return token_ids(self.folder.config.get("eos_token_id"))

    @property
    def pooling(self) -> str | None:
        if is_ranker(self.folder.config):
            return RANK
        has_dense = self.weights.spec.encoder is not None
        return folder_pooling(self.path, with_dense=has_dense)

    def ranking(self) -> Ranking | None:
        if not is_ranker(self.folder.config):
            return None
        return folder_ranking(self.folder.tensors, self.weights.spec.hidden)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.path)

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        return folder_template(self.path)


def with_tensors(model: HuggingFaceModel, tensors: Mapping[str, Tensor]) -> HuggingFaceModel:
    """The model with other tensors of the same names and shapes."""
    config = model.folder.config
    names = architecture_of(config).names_of(config)
    weights = plan_weights(model.weights.spec, tensors, interleaved_rope=names.interleaved_rope)
    return replace(model, weights=weights, tensors=tensors)


def plan_folder(
    config: Mapping[str, object], tensors: Mapping[str, Tensor]
) -> tuple[WeightPlan, dict[str, Tensor]]:
    """The plan of a model and its tensors by GGUF's names. No weight is read.

    config: what config.json says. tensors: by the names of the folder. A head of its own is used
    even if the config says that it is tied, as Transformers does. A folder of a decoder's layers
    alone, as models for embeddings are saved, has no head: its table stands for it, and for that of
    a decoder that ranks documents. Raises UnsupportedModel or ModelFileError naming the field or
    the tensor at fault.
    """
    names, spec = architecture_of(config).names_of(config), read_config(config)
    tensors = plain_tensors(config, tensors)
    if spec.encoder is not None:
        spec = with_projections(spec, tensors)
        names |= {f"{one}.weight": f"{one}.weight" for one in PROJECTIONS}
    elif is_ranker(config):
        tensors = {name: one for name, one in tensors.items() if name != FOLDER_ROWS}
        spec = replace(spec, tied_head=True)
    elif TABLE in tensors:
        tensors = {f"model.{name}": one for name, one in tensors.items()}
        spec = replace(spec, tied_head=True)
    elif spec.tied_head and has_origin(names.origins[HEAD], tensors):
        spec = replace(spec, tied_head=False)
    heads = [one.heads for one in spec.attention_layers.values()] or [1]
    found = named_tensors(wanted_tensors(spec), names, tensors, heads[0])
    return plan_weights(spec, found, interleaved_rope=names.interleaved_rope), found
