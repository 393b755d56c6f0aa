"""The operations of a model as calls of CPU kernels.

A product reads its input quantised, so `norm` and `gated` compute nothing and return an `Input`.
`linear` makes what its matrix reads (`_prepared`), once for all matrices that read the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.base import AttentionBlocks, HeadNorms, LayerInputs, Part, StateInputs
from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind, padded_rows, tensor_shape
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.backends.features import PlainOps
from mlc_llm.kernels.cpu.activation import floats, quantize, quantized_width
from mlc_llm.kernels.cpu.add_norm import add_norm
from mlc_llm.kernels.cpu.attention import attention, query_block_tokens
from mlc_llm.kernels.cpu.attention_shape import KV_SPLIT
from mlc_llm.kernels.cpu.bf16 import prepare_fast
from mlc_llm.kernels.cpu.edit_logits import edit_logits
from mlc_llm.kernels.cpu.elementwise import add, changed
from mlc_llm.kernels.cpu.embedding import embedding
from mlc_llm.kernels.cpu.fast_attention import fast_attention, has_fast_attention
from mlc_llm.kernels.cpu.fast_attention_tiles import fast_query_block_tokens
from mlc_llm.kernels.cpu.head_norm import NormedHeads, head_norm
from mlc_llm.kernels.cpu.kv_pages import copy_pages, rope_append
from mlc_llm.kernels.cpu.matmul import has_fast_rows, matmul
from mlc_llm.kernels.cpu.quant_blocks import quantize_blocks, row_width
from mlc_llm.kernels.cpu.rotation import Heads
from mlc_llm.kernels.cpu.rows import chosen_logits, take_rows
from mlc_llm.kernels.cpu.sampling import CHUNK, sample
from mlc_llm.kernels.cpu.short_conv import short_conv
from mlc_llm.kernels.cpu.top_tokens import MOST, top_tokens
from mlc_llm.models.spec import AttentionSpec, ShortConvSpec

FAST_ROLES = ("o", "mlp", "down")
"""Roles of the matrices that are multiplied faster, and less exactly, for `fast_tokens`."""


class PackedMatrix(nn.Module):  # type: ignore[misc]
    """The parameter of a packed matrix [rows, columns]; its packed rows are padded."""

    def __init__(self, rows: int, columns: int, fmt: WeightFormat, *, is_fast: bool) -> None:
        self.rows, self.columns, self.fmt = padded_rows(rows), columns, fmt
        self.is_fast = is_fast
        self.packed = nn.Parameter(*tensor_shape(fmt, self.rows, columns))


@dataclass
class Input:
    """x, of which a kernel makes what a product reads.

    kind, weight and bias: as in `kernels/cpu/input_kinds.py`; eps belongs to a norm.
    """

    kind: str
    x: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0
    prepared: dict[tuple[bool, bool, int, bool], Tensor] = field(default_factory=dict)
    """The tensors made of it, by the way in which a matrix reads them (`CpuOps._prepared`)."""


class CpuOps(PlainOps):
    """See `backends.base.Ops`."""

    def __init__(self, isa: Isa) -> None:
        self._isa = isa
        self._scratch = Scratch()
        self._fast_tokens: Tensor | None = None
        self.has_fast_tokens = False

    def begin(self, fast_tokens: Tensor | None = None) -> None:
        self._scratch, self._fast_tokens = Scratch(), fast_tokens

    def begin_layer(self) -> None:
        self._scratch.start_layer()

    def padded_rows(self, rows: int) -> int:
        return padded_rows(rows)

    def matrix(self, rows: int, columns: int, kind: str, role: str) -> PackedMatrix:
        fmt = format_of_kind(kind, half=self._isa.half, fixed_point=self._isa.amx_tiles)
        # Eight bits of queries, keys and values would cost most of the accuracy; bfloat16 does not.
        is_fast = role in FAST_ROLES or (role == "qkv" and self._isa.amx_tiles)
        is_fast = is_fast and has_fast_rows(fmt, self._isa)
        self.has_fast_tokens |= is_fast
        return PackedMatrix(rows, columns, fmt, is_fast=is_fast)

    def tied_head(self, embedding: PackedMatrix) -> PackedMatrix:
        return embedding

    def embedding(self, table: PackedMatrix, tokens: Tensor, scale: float) -> Tensor:
        kernel = embedding(table.rows, table.columns, table.fmt, scale)
        out = float_tensor(tokens.shape[0], table.columns)
        return op.tensor_ir_op(kernel, "embedding", [tokens, table.packed], out)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Input:
        return Input("norm", x, weight, eps=eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Input:
        return Input("layer_norm", x, weight, bias, eps)

    def gated(self, activation: str, gate: Part, up: Part, width: int) -> Input:
        is_joined = gate.tensor is up.tensor
        x = gate.tensor if is_joined else op.concat([gate.tensor, up.tensor], dim=1)
        assert int(x.shape[1]) == 2 * width, "rows are padded"
        if gate.bias is None:
            return Input(activation, x)
        return Input(f"{activation}_biased", x, gate.bias, up.bias)

    def activated(self, activation: str, x: Part, width: int) -> Input:
        assert int(x.tensor.shape[1]) == width, "rows are padded"
        kind = f"{activation}_alone"
        return Input(kind if x.bias is None else f"{kind}_biased", x.tensor, x.bias)

    def linear(
        self,
        matrix: PackedMatrix,
        x: Tensor | Input,
        add_to: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        if scale == 1.0:
            y = self._product(matrix, x, add_to)
            return y if bias is None else self._added(y, None, bias)
        y = self._product(matrix, x)
        if add_to is not None:
            return self._added(add_to, y, bias, scale)
        return self.scaled(y if bias is None else self._added(y, None, bias), scale)

    def _product(
        self, matrix: PackedMatrix, x: Tensor | Input, add_to: Tensor | None = None
    ) -> Tensor:
        """x W^T, added to `add_to` in place if that is given."""
        given = x if isinstance(x, Input) else Input("plain", x)
        fast = self._fast_tokens if matrix.is_fast else None
        read = self._prepared(given, matrix, fast)
        add = add_to is not None
        kernel = matmul(
            matrix.rows, matrix.columns, matrix.fmt, self._isa,
            accumulate=add, fast=fast is not None,
        )  # fmt: skip
        args = [read, matrix.packed, *([] if fast is None else [fast])]
        name = f"matmul_{matrix.rows}x{matrix.columns}_{matrix.fmt.name}"
        if add_to is None:
            return self._scratch.call(kernel, name, args, float_tensor(read.shape[0], matrix.rows))
        return op.tensor_ir_inplace_op(
            kernel, f"{name}_add", [*args, add_to], len(args), float_tensor(*add_to.shape)
        )

    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
        kernel = add_norm(int(y.shape[1]), eps)
        return op.tensor_ir_inplace_op(
            kernel, "add_norm", [y, weight, x], 2, float_tensor(*x.shape)
        )

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return self._added(x, y, None, scale)

    def _added(
        self, x: Tensor, y: Tensor | None, bias: Tensor | None, scale: float = 1.0
    ) -> Tensor:
        """x + scale * (y + bias), in place of x."""
        kernel = add(int(x.shape[1]), scale, has_y=y is not None, has_bias=bias is not None)
        args = [one for one in (y, bias) if one is not None]
        return op.tensor_ir_inplace_op(
            kernel, "add_rows", [*args, x], len(args), float_tensor(*x.shape)
        )

    def scaled(self, x: Tensor, factor: float) -> Tensor:
        if x.ndim == 1:
            return x * factor
        return self._scratch.call(changed(int(x.shape[1]), factor), "scale_rows", [x], x)

    def capped(self, x: Tensor, cap: float) -> Tensor:
        return self._scratch.call(changed(int(x.shape[1]), cap=cap), "cap_rows", [x], x)

    def short_conv(
        self, spec: ShortConvSpec, thirds: Tensor, weight: Tensor, inputs: StateInputs
    ) -> Tensor:
        out = float_tensor(thirds.shape[0], spec.width)
        args = [thirds, weight, inputs.rows, inputs.state, self._scratch.tensor(out.shape)]
        _, y = op.tensor_ir_inplace_op(
            short_conv(spec.width, spec.kernel), "short_conv", args, [3, 4],
            [float_tensor(*inputs.state.shape), out],
        )  # fmt: skip
        return y

    def attention(
        self,
        spec: AttentionSpec,
        qkv: Sequence[Part],
        norms: HeadNorms | None,
        layer: LayerInputs,
        learned_sinks: Tensor | None = None,
    ) -> Tensor:
        rotated, pages = self._append(spec, qkv, norms, layer)
        heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
        args = [rotated, pages, layer.place, layer.query_blocks, layer.page_ids, layer.window]
        args += [learned_sinks] if spec.learned_sinks else []
        build: Any = attention
        if has_fast_attention(dim, self._isa):
            build = fast_attention
            args.append(self._fast_tokens)
        kernel = build(
            heads, kv_heads, dim, self._isa, self._isa.kv_dtype, spec.sink_query,
            spec.score_cap, spec.learned_sinks,
        )  # fmt: skip
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
        if norms is not None:
            qkv = self._head_norms(spec, qkv, norms)
        tensors, biases = [part.tensor for part in qkv], [part.bias for part in qkv]
        append = rope_append(
            _heads(spec, layer.rope, self._isa.kv_dtype),
            tuple(int(one.shape[1]) for one in tensors), tuple(part.start for part in qkv),
            spec.sink_query, biases[0] is not None,
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

    def _head_norms(
        self, spec: AttentionSpec, qkv: Sequence[Part], norms: HeadNorms
    ) -> Sequence[Part]:
        """The same parts with normalised queries and keys, in place."""
        q, k, v = qkv if qkv[0].bias is None else self._biased(qkv)
        q_heads = _normed_heads(q, spec.query_width, norms.query)
        k_heads = _normed_heads(k, spec.kv_width, norms.key)
        weights = [norms.query, norms.key]
        if q.tensor is k.tensor:
            x = self._normalised(q.tensor, [q_heads, k_heads], weights, norms.eps)
            v = v._replace(tensor=x if v.tensor is q.tensor else v.tensor)
            return q._replace(tensor=x), k._replace(tensor=x), v
        q_tensor = self._normalised(q.tensor, [q_heads], weights[:1], norms.eps)
        k_tensor = self._normalised(k.tensor, [k_heads], weights[1:], norms.eps)
        return q._replace(tensor=q_tensor), k._replace(tensor=k_tensor), v

    def _normalised(
        self, x: Tensor, heads: Sequence[NormedHeads], weights: Sequence[Tensor], eps: float
    ) -> Tensor:
        """x with these heads normalised, in place."""
        kernel = head_norm(int(x.shape[1]), *heads, eps=eps)
        out = float_tensor(*x.shape)
        return op.tensor_ir_inplace_op(kernel, "head_norm", [*weights, x], len(weights), out)

    def _biased(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The same parts with their biases added."""
        if parts[0].tensor is parts[1].tensor:
            x = self._added(parts[0].tensor, None, op.concat([part.bias for part in parts], dim=0))
            return [part._replace(tensor=x, bias=None) for part in parts]
        return [Part(self._added(part.tensor, None, part.bias), part.start) for part in parts]

    def attention_blocks(self, spec: AttentionSpec) -> AttentionBlocks:
        plain = query_block_tokens(spec.heads, spec.kv_heads, self._isa)
        is_fast = has_fast_attention(spec.head_dim, self._isa)
        fast = fast_query_block_tokens(spec.heads, spec.kv_heads) if is_fast else plain
        return AttentionBlocks(plain, fast, KV_SPLIT)

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        k = int(x.shape[1])
        out = float_tensor(rows.shape[0], k)
        return op.tensor_ir_op(take_rows(k), "take_rows", [x, rows], out)

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        kernel = chosen_logits(int(kept.shape[1]))
        out = float_tensor(kept.shape[0])
        return op.tensor_ir_op(kernel, "chosen_logits", [kept, rows, token], out)

    def sample(self, vocab: int, logits: Tensor, options: Tensor, top_k: Tensor) -> Tensor:
        rows, padded = logits.shape[0], int(logits.shape[1])
        ints = Tensor.placeholder([rows], "int32")
        scratch = float_tensor(rows, padded + padded // CHUNK)
        kernel = sample(vocab, padded)
        args = [logits, options, top_k]
        _, token = op.tensor_ir_op(kernel, "sample_rows", args, [scratch, ints])
        return token

    def top_tokens(self, vocab: int, logits: Tensor, rows: Tensor) -> Any:
        count = rows.shape[0]
        found = [
            Tensor.placeholder([count, MOST], "int32"),
            float_tensor(count, MOST),
            float_tensor(count),
        ]
        kernel = top_tokens(vocab, int(logits.shape[1]))
        return op.tensor_ir_op(kernel, "top_rows", [logits, rows], found)

    def edit_logits(
        self,
        vocab: int,
        place: Tensor,
        number: Tensor,
        masked: Tensor,
        allowed: Tensor,
        logits: Tensor,
    ) -> Tensor:
        kernel = edit_logits(vocab, int(logits.shape[1]))
        args = [place, number, masked, allowed, logits]
        return op.tensor_ir_inplace_op(kernel, "edit_rows", args, 4, float_tensor(*logits.shape))

    def copy_pages(
        self, spec: AttentionSpec, source: Tensor, target: Tensor, pages: Tensor
    ) -> Tensor:
        dtype = self._isa.kv_dtype
        kernel = copy_pages(spec.kv_heads, spec.head_dim, dtype)
        out = Tensor.placeholder(pages.shape, dtype)
        return op.tensor_ir_inplace_op(kernel, "copy_pages_rows", [source, target, pages], 2, out)

    def _prepared(self, given: Input, matrix: PackedMatrix, fast: Tensor | None) -> Tensor:
        """The input as the matrix reads it, made once."""
        fmt = matrix.fmt
        key = (fmt.is_float, fmt.is_fixed_point, fmt.group, fast is not None)
        if key not in given.prepared:
            given.prepared[key] = self._prepare(given, matrix, fast)
        return given.prepared[key]

    def _prepare(self, given: Input, matrix: PackedMatrix, fast: Tensor | None) -> Tensor:
        """Calls the kernel that makes what the matrix reads; fast: the number of fast tokens."""
        kind, x, isa, eps = given.kind, given.x, self._isa, given.eps
        m, k, group = x.shape[0], matrix.columns, matrix.fmt.group
        args = [x, x if given.weight is None else given.weight]
        args += [] if given.bias is None else [given.bias]
        if not isa.integer or matrix.fmt.is_float:
            out = float_tensor(m, k)
            return self._scratch.call(floats(kind, k, isa, eps), f"{kind}_{k}", args, out)
        if matrix.fmt.is_fixed_point:
            out = Tensor.placeholder([m, row_width(k)], "int32")
            if fast is not None:
                kernel = prepare_fast(kind, k, isa, eps)
                return self._scratch.call(kernel, f"{kind}_{k}_fast", [*args, fast], out)
            kernel = quantize_blocks(kind, k, isa, eps)
            return self._scratch.call(kernel, f"{kind}_{k}_blocks", args, out)
        out = Tensor.placeholder([m, k // group, quantized_width(group)], "int32")
        kernel = quantize(kind, k, group, isa, eps)
        return self._scratch.call(kernel, f"{kind}_{k}g{group}", args, out)


def _heads(spec: AttentionSpec, rope: Tensor | None, kv_dtype: str) -> Heads:
    """Sizes of the heads of a layer; rope: its table of turns."""
    scaling = spec.query_scaling
    return Heads(
        spec.heads, spec.kv_heads, spec.head_dim, kv_dtype, spec.scale,
        rope_dim=0 if rope is None else 2 * int(rope.shape[2]),
        query_scaling=None if scaling is None else (scaling.beta, scaling.context),
    )  # fmt: skip


def _normed_heads(part: Part, width: int, weight: Tensor) -> NormedHeads:
    """The heads that this weight belongs to; all of a token are one if it is as long as they."""
    head_dim = int(weight.shape[0])
    return NormedHeads(part.start, width // head_dim, head_dim)
