"""The tower of images, from its spec, in plain Relax and float32 on every backend.

It is for comparing numbers and for small towers: plain products are too slow for the real one of
4,096 patches. The scores of a layer's attention lie in memory at once: 4 bytes for each head and
pair of patches. Nothing calls it in an engine yet.
"""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.models.vision_spec import VisionSpec

IMAGE_EMBED = "image_embed"
"""The one function: patches float32 [patches, numbers of a patch] -> float32 [tokens, width]."""


class SiglipTower(nn.Module):  # type: ignore[misc]
    """Patches of one image become the vectors that stand in the place of its tokens' embeddings.

    Its parameters have the names of the spec's tensors, with _ instead of dots.
    """

    def __init__(self, spec: VisionSpec) -> None:
        self.spec = spec
        for name, shape in spec.tensors.items():
            setattr(self, parameter_of(name), nn.Parameter(shape, "float32"))

    def image_embed(self, patches: Tensor) -> Tensor:
        spec = self.spec
        matrix = op.reshape(self._tensor("patch_embd.weight"), (spec.hidden, spec.patch_numbers))
        x = _linear(patches, matrix, self._tensor("patch_embd.bias"))
        x = x + self._tensor("position_embd.weight")
        for i in range(spec.layers):
            x = x + self._attention(f"blk.{i}.", self._normed(f"blk.{i}.ln1", x))
            x = x + self._feed_forward(f"blk.{i}.", self._normed(f"blk.{i}.ln2", x))
        return self._projected(self._pooled(self._normed("post_ln", x)))

    def _attention(self, layer: str, x: Tensor) -> Tensor:
        """Every patch sees every patch."""
        head_dim = self.spec.hidden // self.spec.heads
        q, k, v = (self._heads(f"{layer}attn_{part}", x) for part in "qkv")
        scores = op.matmul(q, op.permute_dims(k, [0, 2, 1])) * head_dim**-0.5
        seen = op.matmul(op.softmax(scores, axis=-1), v)
        joined = op.reshape(op.permute_dims(seen, [1, 0, 2]), (self.spec.side**2, self.spec.hidden))
        return self._multiplied(f"{layer}attn_out", joined)

    def _heads(self, name: str, x: Tensor) -> Tensor:
        """[heads, patches, head_dim]"""
        spec = self.spec
        shape = (spec.side**2, spec.heads, spec.hidden // spec.heads)
        return op.permute_dims(op.reshape(self._multiplied(name, x), shape), [1, 0, 2])

    def _feed_forward(self, layer: str, x: Tensor) -> Tensor:
        inner = self._multiplied(f"{layer}ffn_up", x)
        kind = "tanh" if self.spec.activation == "gelu_tanh" else None
        return self._multiplied(f"{layer}ffn_down", op.gelu(inner, approximate=kind))

    def _pooled(self, x: Tensor) -> Tensor:
        """The mean of each square of patches that become one token."""
        pooled, size = self.spec.pooled_side, self.spec.side // self.spec.pooled_side
        squares = op.reshape(x, (pooled, size, pooled, size, self.spec.hidden))
        summed = op.sum(op.sum(squares, axis=3), axis=1)
        return op.reshape(summed, (self.spec.tokens, self.spec.hidden)) * (1.0 / size**2)

    def _projected(self, x: Tensor) -> Tensor:
        weight = self._tensor("mm.soft_emb_norm.weight")
        x = op.rms_norm(x, weight, axes=-1, epsilon=self.spec.norm_eps)
        return op.matmul(x, self._tensor("mm.input_projection.weight"))

    def _normed(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._tensor(f"{name}.weight"), self._tensor(f"{name}.bias")
        return op.layer_norm(x, self.spec.hidden, weight, bias, self.spec.norm_eps)

    def _multiplied(self, name: str, x: Tensor) -> Tensor:
        return _linear(x, self._tensor(f"{name}.weight"), self._tensor(f"{name}.bias"))

    def _tensor(self, name: str) -> Tensor:
        found: Tensor = getattr(self, parameter_of(name))
        return found


def parameter_of(tensor: str) -> str:
    """The parameter with a tensor's numbers."""
    return tensor.replace(".", "_")


def _linear(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    return op.matmul(x, op.permute_dims(matrix)) + bias
