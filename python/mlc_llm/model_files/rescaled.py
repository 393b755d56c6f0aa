"""A model whose rotary embedding is scaled as a user asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.changed import ChangedFiles
from mlc_llm.models.rope_scaling import rescaled
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.record import record


@record()
class RescaledModel(ChangedFiles):
    """See `ModelFiles`. scaling: as in `rescaled`."""

    scaling: Mapping[str, object]
    weights: WeightPlan

    @classmethod
    def of_files(cls, files: ModelFiles, scaling: Mapping[str, object]) -> RescaledModel:
        """Raises InvalidField, UnsupportedModel, ModelFileError."""
        plan = files.plan()
        return cls(files, scaling, replace(plan, spec=rescaled(plan.spec, scaling)))

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

    def plan(self) -> WeightPlan:
        return self.weights
