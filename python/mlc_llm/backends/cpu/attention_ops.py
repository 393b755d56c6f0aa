"""Attention as calls of CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.in_place import added, heads_apart, normed_heads
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.backends.operands import AttentionBlocks, HeadNorms, LayerInputs, Part
from mlc_llm.kernels.cpu.attention import (
    apart_tokens,
    attention,
    has_both_products,
    query_block_tokens,
)
from mlc_llm.kernels.cpu.attention_shape import KV_SPLIT, Shape
from mlc_llm.kernels.cpu.fast_attention import fast_attention, has_fast_attention
from mlc_llm.kernels.cpu.fast_attention_tiles import fast_query_block_tokens
from mlc_llm.kernels.cpu.head_norm import NormedHeads
from mlc_llm.kernels.cpu.kv_pages import copy_pages, rope_append
from mlc_llm.kernels.cpu.queries import rotate_queries
from mlc_llm.kernels.heads import Heads
from mlc_llm.models.attention_spec import AttentionSpec


class AttentionOps:
    """The operations of `backends.ops.Ops` that know about pages."""

    _isa: Isa
    _scratch: Scratch
    _fast_tokens: Tensor | None

    def attention(
        self,
        spec: AttentionSpec,
        qkv: Sequence[Part],
        norms: HeadNorms | None,
        layer: LayerInputs,
        learned_sinks: Tensor | None = None,
    ) -> Tensor:
        rotated, pages = self._append(spec, qkv, norms, layer)
        args = [rotated, pages, layer.place, layer.query_blocks, layer.page_ids, layer.window]
        args += [learned_sinks] if spec.learned_sinks else []
        args += [] if layer.first_seen is None else [layer.first_seen]
        on_tiles = has_fast_attention(spec.head_dim, self._isa)
        if on_tiles or has_both_products(spec.head_dim, self._isa):
            args.append(self._fast_tokens)
        shape = Shape(
            spec.heads, spec.kv_heads, spec.head_dim, self._isa, self._isa.kv_dtype,
            sink_query=spec.sink_query, score_cap=spec.score_cap,
            learned_sinks=spec.learned_sinks, both_sides=layer.first_seen is not None,
        )  # fmt: skip
        kernel = fast_attention(shape) if on_tiles else attention(shape)
        out = float_tensor(rotated.shape[0], spec.query_width)
        return self._scratch.call(kernel, "attention", args, out)

    def _append(
        self,
        spec: AttentionSpec,
        qkv: Sequence[Part],
        norms: HeadNorms | None,
        layer: LayerInputs,
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries, and the pages with the new keys and values."""
        if spec.shares is not None:
            return self._rotated(spec, qkv[0], norms, layer), layer.pages
        if norms is not None:
            qkv = self._with_norms(spec, qkv, norms)
        tensors, biases = [part.tensor for part in qkv], [part.bias for part in qkv]
        append = rope_append(
            _heads(spec, layer.rope, self._isa.kv_dtype),
            tuple(int(one.shape[1]) for one in tensors), tuple(part.start for part in qkv),
            sink_query=spec.sink_query, has_bias=biases[0] is not None,
        )  # fmt: skip
        given = [*tensors, *biases, layer.rope]
        args = [one for one in given if one is not None]
        args += [layer.position, layer.sink_position, layer.slot, layer.pages]
        width = (2 if spec.sink_query else 1) * spec.query_width
        out = float_tensor(tensors[0].shape[0], width)
        args += [self._scratch.tensor(out.shape)]
        pages, rotated = op.tensor_ir_inplace_op(
            append, "rope_append", args, [len(args) - 2, len(args) - 1],
            [Tensor.placeholder(layer.pages.shape, self._isa.kv_dtype), out],
        )  # fmt: skip
        return rotated, pages

    def _rotated(
        self, spec: AttentionSpec, q: Part, norms: HeadNorms | None, layer: LayerInputs
    ) -> Tensor:
        """Rotated queries alone."""
        if norms is not None:
            (q,) = [q] if q.bias is None else _with_biases([q])
            heads = _heads_of(q, spec.query_width, norms.query)
            q = q._replace(tensor=normed_heads(q.tensor, [heads], [norms.query], norms.eps))
        kernel = rotate_queries(
            _heads(spec, layer.rope, self._isa.kv_dtype), int(q.tensor.shape[1]), q.start,
            sink_query=spec.sink_query, has_bias=q.bias is not None,
        )  # fmt: skip
        given = [q.tensor, q.bias, layer.rope, layer.position, layer.sink_position]
        width = (2 if spec.sink_query else 1) * spec.query_width
        out = float_tensor(q.tensor.shape[0], width)
        args = [one for one in given if one is not None]
        return self._scratch.call(kernel, "rotate_queries", args, out)

    def _with_norms(
        self, spec: AttentionSpec, qkv: Sequence[Part], norms: HeadNorms
    ) -> Sequence[Part]:
        """The same parts with normalised queries and keys, in place. Values that are normalised, or
        that are keys before their norm, get a tensor of their own first."""
        q, k, v = qkv if qkv[0].bias is None else _with_biases(qkv)
        if spec.value_norm or spec.values_are_keys:
            q, k, v = self._with_values_apart(spec, (q, k, v), norms.eps)
        return _with_head_norms(spec, (q, k, v), norms)

    def _with_values_apart(
        self, spec: AttentionSpec, qkv: Sequence[Part], eps: float
    ) -> Sequence[Part]:
        """The same parts; the values are a tensor of their own, normalised if the spec says so."""
        v = qkv[2]
        heads = NormedHeads(v.start, spec.kv_heads, spec.head_dim)
        into = self._scratch.tensor(float_tensor(v.tensor.shape[0], spec.kv_width).shape)
        x, values = heads_apart(v.tensor, heads, eps if spec.value_norm else None, into)
        q, k = (
            part._replace(tensor=x if part.tensor is v.tensor else part.tensor) for part in qkv[:2]
        )
        return q, k, Part(values)

    def attention_blocks(self, spec: AttentionSpec) -> AttentionBlocks:
        plain = query_block_tokens(spec.heads, spec.kv_heads, self._isa)
        is_fast = has_fast_attention(spec.head_dim, self._isa)
        fast = fast_query_block_tokens(spec.heads, spec.kv_heads) if is_fast else plain
        return AttentionBlocks(plain, fast, KV_SPLIT, apart_tokens(plain))

    def copy_pages(
        self, spec: AttentionSpec, source: Tensor, target: Tensor, pages: Tensor
    ) -> Tensor:
        dtype = self._isa.kv_dtype
        kernel = copy_pages(spec.kv_heads, spec.head_dim, dtype)
        out = Tensor.placeholder(pages.shape, dtype)
        return op.tensor_ir_inplace_op(kernel, "copy_pages_rows", [source, target, pages], 2, out)


def _with_head_norms(spec: AttentionSpec, qkv: Sequence[Part], norms: HeadNorms) -> Sequence[Part]:
    """The same parts with normalised queries and keys, in place."""
    q, k, v = qkv
    q_heads = _heads_of(q, spec.query_width, norms.query)
    k_heads = _heads_of(k, spec.kv_width, norms.key)
    weights = [norms.query, norms.key]
    if q.tensor is k.tensor:
        x = normed_heads(q.tensor, [q_heads, k_heads], weights, norms.eps)
        v = v._replace(tensor=x if v.tensor is q.tensor else v.tensor)
        return q._replace(tensor=x), k._replace(tensor=x), v
    q_tensor = normed_heads(q.tensor, [q_heads], weights[:1], norms.eps)
    k_tensor = normed_heads(k.tensor, [k_heads], weights[1:], norms.eps)
    return q._replace(tensor=q_tensor), k._replace(tensor=k_tensor), v


def _with_biases(parts: Sequence[Part]) -> Sequence[Part]:
    """The same parts with their biases added, in place."""
    first = parts[0].tensor
    if all(part.tensor is first for part in parts):
        x = added(first, None, op.concat([part.bias for part in parts], dim=0))
        return [Part(x, part.start) for part in parts]
    assert all(part.tensor is not first for part in parts[1:]), "some parts are joined, not all"
    return [Part(added(part.tensor, None, part.bias), part.start) for part in parts]


def _heads(spec: AttentionSpec, rope: Tensor | None, kv_dtype: str) -> Heads:
    """Sizes of the heads of a layer; rope: its table of turns."""
    scaling = spec.query_scaling
    return Heads(
        spec.heads, spec.kv_heads, spec.head_dim, kv_dtype, spec.scale,
        rope_dim=0 if rope is None else 2 * int(rope.shape[2]),
        query_scaling=None if scaling is None else (scaling.beta, scaling.context),
    )  # fmt: skip


def _heads_of(part: Part, width: int, weight: Tensor) -> NormedHeads:
    """The heads that this weight belongs to; all of a token are one if it is as long as they."""
    head_dim = int(weight.shape[0])
    return NormedHeads(part.start, width // head_dim, head_dim)
