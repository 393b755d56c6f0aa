"""Attention as calls of GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import call, change, float_tensor
from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.backends.operands import AttentionBlocks, HeadNorms, LayerInputs, Part
from mlc_llm.kernels.cuda.attention import attention
from mlc_llm.kernels.cuda.attention_join import join
from mlc_llm.kernels.cuda.attention_sizes import FEW, SHARES, SPLIT, STATE, Sizes
from mlc_llm.kernels.cuda.elementwise import add
from mlc_llm.kernels.cuda.head_norm import head_norm, heads_apart
from mlc_llm.kernels.cuda.kv_pages import copy_pages, rope_append, rotate_queries
from mlc_llm.kernels.heads import Heads
from mlc_llm.models.attention_spec import AttentionSpec


class AttentionOps:
    """The operations of `backends.ops.Ops` that know about pages."""

    kv_dtype: str

    def attention(
        self,
        spec: AttentionSpec,
        qkv: Sequence[Part],
        norms: HeadNorms | None,
        layer: LayerInputs,
        learned_sinks: Tensor | None = None,
    ) -> Tensor:
        if norms is not None:
            qkv = _with_norms(spec, qkv, norms)
        if spec.shares is None:
            rotated, pages = self._appended(spec, qkv, layer)
        else:
            rotated, pages = self._rotated(spec, qkv[0], layer), layer.pages
        sinks = [] if learned_sinks is None else [learned_sinks]
        seen = [] if layer.first_seen is None else [layer.first_seen]
        args = [rotated, pages, layer.place, layer.query_blocks, layer.page_ids, layer.window]
        args += seen
        m, has_sinks = rotated.shape[0], learned_sinks is not None
        kernel = attention(
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            spec.score_cap,
            has_sinks,
            bool(seen),
            self.kv_dtype,
            spec.sink_query,
        )
        few = tvm.tirx.min(m, tvm.tirx.const(FEW, "int64"))
        results = [
            float_tensor(few, spec.heads, SHARES, STATE + spec.head_dim),
            float_tensor(m, spec.query_width),
        ]
        shares, out = op.tensor_ir_op(kernel, "attention", [*args, *sinks], results)
        last = join(spec.heads, spec.head_dim, has_sinks)
        return change(last, "join_shares", [layer.place, *sinks, shares], out)

    def attention_blocks(self, spec: AttentionSpec) -> AttentionBlocks:
        tokens = Sizes(spec.head_dim, spec.heads // spec.kv_heads).tokens
        return AttentionBlocks(tokens, tokens, SHARES * SPLIT // PAGE)

    def copy_pages(
        self, spec: AttentionSpec, source: Tensor, target: Tensor, pages: Tensor
    ) -> Tensor:
        kernel = copy_pages(spec.kv_heads, spec.head_dim, self.kv_dtype)
        return change(kernel, "copy_pages_rows", [source, target], pages)

    def _appended(
        self, spec: AttentionSpec, qkv: Sequence[Part], layer: LayerInputs
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries, and the pages with the new keys and values."""
        tensors, biases = [part.tensor for part in qkv], [part.bias for part in qkv]
        kernel = rope_append(
            _heads(spec, layer.rope, self.kv_dtype),
            tuple(int(one.shape[1]) for one in tensors),
            tuple(part.start for part in qkv),
            sink_query=spec.sink_query,
            has_bias=biases[0] is not None,
        )
        given = [*tensors, *biases, layer.rope, *_positions(spec, layer), layer.slot, layer.pages]
        args = [one for one in given if one is not None]
        out = _queries(spec, tensors[0])
        args.append(op.empty(list(out.shape), "float32"))
        pages = Tensor.placeholder(list(layer.pages.shape), self.kv_dtype)
        last = len(args) - 1
        pages, rotated = op.tensor_ir_inplace_op(
            kernel, "rope_append", args, [last - 1, last], [pages, out]
        )
        return rotated, pages

    def _rotated(self, spec: AttentionSpec, q: Part, layer: LayerInputs) -> Tensor:
        """Rotated queries alone."""
        width = int(q.tensor.shape[1])
        kernel = rotate_queries(
            _heads(spec, layer.rope, self.kv_dtype),
            width,
            q.start,
            sink_query=spec.sink_query,
            has_bias=q.bias is not None,
        )
        given = [q.tensor, q.bias, layer.rope, *_positions(spec, layer)]
        args = [one for one in given if one is not None]
        return call(kernel, "rotate_queries", args, _queries(spec, q.tensor))


def _positions(spec: AttentionSpec, layer: LayerInputs) -> list[Tensor]:
    """What turns the queries of a token."""
    return [layer.position, *([layer.sink_position] if spec.sink_query else [])]


def _queries(spec: AttentionSpec, x: Tensor) -> Tensor:
    """A placeholder for rotated queries of the tokens of x."""
    return float_tensor(x.shape[0], (2 if spec.sink_query else 1) * spec.query_width)


def _with_norms(spec: AttentionSpec, qkv: Sequence[Part], norms: HeadNorms) -> Sequence[Part]:
    """The same parts with normalised queries and keys, in place. Biases come before norms. Values
    that are normalised, or that are keys before their norm, get a tensor of their own first."""
    changed: dict[int, Tensor] = {}

    def of(part: Part) -> Tensor:
        return changed.get(id(part.tensor), part.tensor)

    widths = (spec.query_width, spec.kv_width, spec.kv_width)
    for part, width in zip(qkv, widths, strict=False):
        if part.bias is not None:
            changed[id(part.tensor)] = _with_bias(of(part), part, width)
    values = qkv[2:]
    if spec.value_norm or spec.values_are_keys:
        eps = norms.eps if spec.value_norm else None
        values = [Part(_values_apart(spec, of(part), part.start, eps)) for part in values]
    for part, width, weight in zip(qkv, widths, (norms.query, norms.key), strict=False):
        head_dim = int(weight.shape[0])
        kernel = head_norm(
            int(part.tensor.shape[1]), part.start, width // head_dim, head_dim, norms.eps
        )
        changed[id(part.tensor)] = change(kernel, "head_norm", [weight], of(part))
    return [Part(of(part), part.start) for part in (*qkv[:2], *values)]


def _values_apart(spec: AttentionSpec, x: Tensor, start: int, eps: float | None) -> Tensor:
    """Values as a tensor of their own, normalised unless eps is None."""
    kernel = heads_apart(int(x.shape[1]), start, spec.kv_heads, spec.head_dim, eps)
    return call(kernel, "values_apart", [x], float_tensor(x.shape[0], spec.kv_width))


def _with_bias(x: Tensor, part: Part, width: int) -> Tensor:
    """x with the bias of a part added to its columns, in place."""
    kernel = add(int(x.shape[1]), width, start=part.start, has_y=False, has_bias=True)
    return change(kernel, "add_bias", [part.bias], x)


def _heads(spec: AttentionSpec, rope: Tensor | None, kv_dtype: str) -> Heads:
    """Sizes of the heads of a layer; rope: its table of turns."""
    scaling = spec.query_scaling
    return Heads(
        spec.heads, spec.kv_heads, spec.head_dim, kv_dtype, spec.scale,
        rope_dim=0 if rope is None else 2 * int(rope.shape[2]),
        query_scaling=None if scaling is None else (scaling.beta, scaling.context),
    )  # fmt: skip
