"""A model of which a rank has a share."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.changed import ChangedFiles
from mlc_llm.models.sharding import Share, shared_plan
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.quantization.ggml_blocks import FLOAT_BYTES, FORMATS
from mlc_llm.record import record


@record()
class SharedModel(ChangedFiles):
    """See `ModelFiles`."""

    share: Share
    weights: WeightPlan

    @classmethod
    def of_files(cls, files: ModelFiles, share: Share) -> SharedModel:
        """Raises InvalidField for a model that cannot be split so, UnsupportedModel,
        ModelFileError."""
        return cls(files, share, shared_plan(files.plan(), share, block_of))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.of.tensors

    @property
    def quantization(self) -> str | None:
        return self.of.quantization

    @property
    def changes(self) -> str | None:
        own = f"share {self.share.rank} of {self.share.shards}"
        return " ".join(filter(None, [self.of.changes, own]))

    def plan(self) -> WeightPlan:
        return self.weights


def block_of(kind: str) -> int:
    """Columns that a tensor type keeps together."""
    return 1 if kind in FLOAT_BYTES else FORMATS[kind].block
