"""A model whose rotary embedding is scaled as a user asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.models.rope_scaling import rescaled
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.tokenizers import Tokenizer


@dataclass(frozen=True)
class RescaledModel:
    """See `ModelFiles`. scaling: as in `rescaled`."""

    of: ModelFiles
    scaling: Mapping[str, object]
    weights: WeightPlan

    @classmethod
    def of_files(cls, files: ModelFiles, scaling: Mapping[str, object]) -> RescaledModel:
        """Raises InvalidField, UnsupportedModel, ModelFileError."""
        plan = files.plan()
        return cls(files, scaling, replace(plan, spec=rescaled(plan.spec, scaling)))

    @property
    def path(self) -> Path:
        return self.of.path

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        return self.of.opened

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.of.tensors

    @property
    def quantization(self) -> str | None:
        return self.of.quantization

    @property
    def changes(self) -> str | None:
        parts = [self.of.changes, json.dumps(self.scaling, sort_keys=True)]
        return " ".join(filter(None, parts))

    @property
    def context_window(self) -> int:
        return max(self.of.context_window, self.weights.spec.context_window)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self.of.stop_token_ids

    @property
    def pooling(self) -> str | None:
        return self.of.pooling

    def check_sums(self) -> None:
        self.of.check_sums()

    def plan(self) -> WeightPlan:
        return self.weights

    def tokenizer(self) -> Tokenizer:
        return self.of.tokenizer()

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        return self.of.chat_template(tokenizer)
