"""Building blocks of decoder models: each calls one kernel through Relax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.kernels.activation import floats, quantize, quantized_width
from mlc_llm.kernels.attention import attention
from mlc_llm.kernels.attention_section import Shape
from mlc_llm.kernels.bf16 import prepare_mixed
from mlc_llm.kernels.coarse_attention import has_coarse_attention, mixed_attention
from mlc_llm.kernels.embedding import embedding
from mlc_llm.kernels.formats import WeightFormat, padded_rows, tensor_shape
from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.kv_pages import rope_append
from mlc_llm.kernels.matmul import has_coarse_rows, matmul
from mlc_llm.kernels.rows import take_rows
from mlc_llm.kernels.sections import quantize_sections, sections_width
from mlc_llm.models.config import ModelConfig


def float_tensor(*shape: Any) -> Tensor:
    """A placeholder that tells an operator the shape of its result."""
    return Tensor.placeholder(list(shape), "float32")


class Scratch:
    """The tensors that a layer makes on its way: later layers write into those of the first, for
    to make one anew takes the virtual machine longer than it takes to call a small kernel."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], Tensor] = {}
        self._count = 0

    def start_layer(self) -> None:
        """What the layer before has made is not needed any more."""
        self._count = 0

    def tensor(self, shape: list[Any], dtype: str = "float32") -> Tensor:
        """One to write into; what is in it is not known."""
        key = (self._count, dtype, *map(str, shape))
        self._count += 1
        if key not in self._tensors:
            self._tensors[key] = op.empty(shape, dtype)
        return self._tensors[key]

    def call(self, kernel: Any, name: str, args: list[Any], out: Tensor) -> Tensor:
        """Calls a kernel whose last argument is its result, shaped as `out`."""
        into = self.tensor(out.shape, out.dtype)
        return op.tensor_ir_inplace_op(kernel, name, [*args, into], len(args), out)


@dataclass(frozen=True)
class Step:
    """The inputs of one forward call that every layer reads (shapes in `model_lib.py`)."""

    rope: Tensor
    slot: Tensor
    position: Tensor
    tiles: Tensor
    page_ids: Tensor
    window: Tensor
    coarse_rows: Tensor
    scratch: Scratch


class PackedMatrix(nn.Module):  # type: ignore[misc]
    """The parameter of a packed matrix [n, k]; its packed rows are padded."""

    def __init__(self, n: int, k: int, fmt: WeightFormat) -> None:
        self.n, self.k, self.fmt = padded_rows(n), k, fmt
        self.packed = nn.Parameter(*tensor_shape(fmt, self.n, k))


class Linear(PackedMatrix):
    """y (+)= x W^T."""

    def __init__(self, n: int, k: int, fmt: WeightFormat, isa: Isa) -> None:
        super().__init__(n, k, fmt)
        self.isa = isa

    @property
    def has_coarse_rows(self) -> bool:
        return has_coarse_rows(self.fmt, self.isa)

    def forward(
        self,
        x: Tensor,
        scratch: Scratch,
        into: Tensor | None = None,
        coarse_rows: Tensor | None = None,
    ) -> Tensor:
        """x: from `prepare`. into: float32 [m, n] to add to in place, or None for scratch.

        coarse_rows: int32 [1], how many of the first rows may count with fewer bits where the
        kernel can do that; None means none.
        """
        add, coarse = into is not None, coarse_rows is not None and self.has_coarse_rows
        kernel = matmul(self.n, self.k, self.fmt, self.isa, accumulate=add, coarse=coarse)
        args = [x, self.packed, coarse_rows] if coarse else [x, self.packed]
        name = f"matmul_{self.n}x{self.k}_{self.fmt.name}"
        if into is None:
            return scratch.call(kernel, name, args, float_tensor(x.shape[0], self.n))
        return op.tensor_ir_inplace_op(
            kernel, f"{name}_add", [*args, into], len(args), float_tensor(*into.shape)
        )

    def prepare(
        self,
        kind: str,
        x: Tensor,
        scratch: Scratch,
        weight: Tensor | None = None,
        eps: float = 0.0,
        coarse_rows: Tensor | None = None,
    ) -> Tensor:
        """The input as this matrix wants it; kind and shapes as in `kernels/activation.py`.

        coarse_rows: what `forward` will get.
        """
        other = x if weight is None else weight
        m, k, group = x.shape[0], self.k, self.fmt.group
        if not self.isa.integer or self.fmt.is_float:
            kernel = floats(kind, k, self.isa, eps)
            return scratch.call(kernel, f"{kind}_{k}", [x, other], float_tensor(m, k))
        if self.fmt.is_fixed and coarse_rows is not None and self.has_coarse_rows:
            kernel = prepare_mixed(kind, k, self.isa, eps)
            out = Tensor.placeholder([m, sections_width(k)], "int32")
            return scratch.call(kernel, f"{kind}_{k}_mixed", [x, other, coarse_rows], out)
        if self.fmt.is_fixed:
            kernel = quantize_sections(kind, k, self.isa, eps)
            out = Tensor.placeholder([m, sections_width(k)], "int32")
            return scratch.call(kernel, f"{kind}_{k}_sections", [x, other], out)
        kernel = quantize(kind, k, group, self.isa, eps)
        out = Tensor.placeholder([m, k // group, quantized_width(group)], "int32")
        return scratch.call(kernel, f"{kind}_{k}g{group}", [x, other], out)


class Fused(nn.Module):  # type: ignore[misc]
    """Matrices that share an input: one product where their formats agree, else one each."""

    def __init__(self, parts: dict[str, int], k: int, prefix: str, config: ModelConfig, isa: Isa):
        self.parts, joined = parts, "_".join(parts)
        self.joined = f"{prefix}{joined}" in config.formats
        sizes = {joined: sum(parts.values())} if self.joined else parts
        for name, n in sizes.items():
            setattr(self, name, Linear(n, k, config.formats[prefix + name], isa))
        self.linears = [getattr(self, name) for name in sizes]

    def forward(
        self,
        kind: str,
        x: Tensor,
        scratch: Scratch,
        weight: Tensor | None = None,
        eps: float = 0.0,
        coarse_rows: Tensor | None = None,
    ) -> list[tuple[Tensor, int]]:
        """One (tensor, first column) a part; the tensors are the same one if they are joined."""
        prepared: dict[Any, Any] = {}
        results = []
        for linear in self.linears:
            key = (linear.fmt.is_float, linear.fmt.is_fixed, linear.fmt.group)
            if key not in prepared:
                prepared[key] = linear.prepare(kind, x, scratch, weight, eps, coarse_rows)
            results.append(linear(prepared[key], scratch, coarse_rows=coarse_rows))
        if not self.joined:
            return [(result, 0) for result in results]
        starts = [sum(list(self.parts.values())[:i]) for i in range(len(self.parts))]
        return [(results[0], start) for start in starts]


class Embedding(PackedMatrix):
    """Rows of the table; tied models use the same packed matrix as their head."""

    def forward(self, tokens: Tensor) -> Tensor:
        return op.tensor_ir_op(
            embedding(self.n, self.k, self.fmt),
            "embedding",
            [tokens, self.packed],
            float_tensor(tokens.shape[0], self.k),
        )


def attend(
    config: ModelConfig,
    isa: Isa,
    kv_dtype: str,
    qkv: list[tuple[Tensor, int]],
    step: Step,
    pages: Tensor,
) -> Tensor:
    """Rotates, stores keys and values in `pages` (in place), attends: float32 [m, heads * dim]."""
    (q, q0), (k, k0), (v, v0) = qkv
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    widths = (int(q.shape[1]), int(k.shape[1]), int(v.shape[1]))
    append = rope_append(heads, kv_heads, dim, widths, (q0, k0, v0), kv_dtype, isa.windowed)
    turned = float_tensor(q.shape[0], Shape(heads, kv_heads, dim, isa, kv_dtype).queries)
    out = float_tensor(q.shape[0], heads * dim)
    pages, rotated = op.tensor_ir_inplace_op(
        append,
        "rope_append",
        [q, k, v, step.rope, step.position, step.slot, pages, step.scratch.tensor(turned.shape)],
        [6, 7],
        [Tensor.placeholder(pages.shape, kv_dtype), turned],
    )
    build = mixed_attention if has_coarse_attention(dim, isa) else attention
    args = [rotated, pages, step.position, step.tiles, step.page_ids, step.window]
    args += [step.coarse_rows] if build is mixed_attention else []
    return step.scratch.call(build(heads, kv_heads, dim, isa, kv_dtype), "attention", args, out)


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows], float32 [s, k]."""
    k = int(x.shape[1])
    return op.tensor_ir_op(take_rows(k), "take_rows", [x, rows], float_tensor(rows.shape[0], k))
