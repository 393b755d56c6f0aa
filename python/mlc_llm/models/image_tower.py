"""The tower of images, from its spec: the layers of encoders, over the patches of one image."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import LayerInputs
from mlc_llm.backends.ops import Ops
from mlc_llm.models.blocks import normed_rows
from mlc_llm.models.decoder_layer import DecoderLayer
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.vectors import model_vectors


class ImageTower(nn.Module):  # type: ignore[misc]
    """Its public method becomes the function of a library (`library/image_signatures.py`).

    As in an encoder, every patch is given the place of the last one, so that it sees all of them,
    and all layers use the same pages.
    """

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        assert spec.tower is not None
        self.spec, self.tower, self.ops = spec, spec.tower, ops
        columns = self.tower.joined(spec.hidden)
        numbers, kinds = self.tower.patch_numbers, spec.kinds
        self.patch = ops.matrix(spec.hidden, numbers, kinds["patch"], "head")
        self.layers = nn.ModuleList([DecoderLayer(spec, i, ops) for i in range(len(spec.layers))])
        for name, vector in model_vectors(spec).items():
            setattr(self, name, nn.Parameter(vector.shape, "float32"))
        self.project = ops.matrix(self.tower.width, columns, kinds["project"], "head")

    def image_embed(
        self,
        patches: Tensor,
        position: Tensor,
        fast_tokens: Tensor,
        slots: Tensor,
        places: Tensor,
        query_blocks: Tensor,
        page_ids: Tensor,
        window: Tensor,
        pages: Tensor,
    ) -> Tensor:
        ops, spec = self.ops, self.spec
        ops.begin(whole=True)
        x = ops.linear(self.patch, patches, bias=self.patch_bias)
        ops.begin(fast_tokens, whole=True)
        x = ops.add(x, self.positions)
        inputs = LayerInputs(
            position, position, None, slots, places, query_blocks, page_ids, window, pages
        )
        for layer in self.layers:
            x = layer(x, [inputs])
        x = self._joined(normed_rows(self, "norm", x, spec, ops))
        ops.begin(whole=True)  # tokens follow, and no patches
        return ops.linear(self.project, x)

    def _joined(self, x: Tensor) -> Tensor:
        """Each square of patches as one row."""
        tower, ops = self.tower, self.ops
        rows = ops.joined_squares(x, tower.pooled_side, tower.scale, tower.join)
        if tower.join == "beside":
            return rows
        return ops.normed_rows(rows, self.join_norm, None, tower.join_eps)
