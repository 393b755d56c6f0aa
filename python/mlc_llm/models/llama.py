"""The Llama architecture (Touvron et al. 2023) over packed weights and KV pages."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.kernels.edit_logits import edit_logits
from mlc_llm.kernels.isa import Isa
from mlc_llm.kernels.kv_pages import copy_pages
from mlc_llm.kernels.sampling import CHUNK, sample
from mlc_llm.kernels.top_tokens import MOST, top_tokens
from mlc_llm.models.config import ModelConfig
from mlc_llm.models.layers import (
    Embedding,
    Fused,
    Linear,
    Scratch,
    Step,
    attend,
    float_tensor,
    select_rows,
)


class LlamaLayer(nn.Module):  # type: ignore[misc]
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, config: ModelConfig, index: int, isa: Isa, kv_dtype: str) -> None:
        self.config, self.isa, self.kv_dtype = config, isa, kv_dtype
        hidden, prefix = config.hidden, f"layers.{index}."
        query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.attention_norm = nn.Parameter((hidden,), "float32")
        self.qkv = Fused({"q": query, "k": kv, "v": kv}, hidden, prefix + "qkv.", config, isa)
        self.o = Linear(hidden, query, config.formats[prefix + "o"], isa)
        self.mlp_norm = nn.Parameter((hidden,), "float32")
        width = config.intermediate
        self.mlp = Fused({"gate": width, "up": width}, hidden, prefix + "mlp.", config, isa)
        self.down = Linear(hidden, width, config.formats[prefix + "down"], isa)

    def forward(self, x: Tensor, step: Step, pages: Tensor) -> Tensor:
        eps, rows, scratch = self.config.norm_eps, step.coarse_rows, step.scratch
        scratch.start_layer()
        # Eight bits of queries, keys and values would cost most of the accuracy; bfloat16 does not.
        of_qkv = rows if self.isa.tiles else None
        qkv = self.qkv("norm", x, scratch, self.attention_norm, eps, of_qkv)
        heads = attend(self.config, self.isa, self.kv_dtype, qkv, step, pages)
        x = self.o(self.o.prepare("plain", heads, scratch, coarse_rows=rows), scratch, x, rows)
        gate_up = self.mlp("norm", x, scratch, self.mlp_norm, eps, rows)
        gated = self.down.prepare("silu", join(gate_up), scratch, coarse_rows=rows)
        return self.down(gated, scratch, x, rows)


def join(parts: list[tuple[Tensor, int]]) -> Tensor:
    """Gate and up side by side in one tensor."""
    first = parts[0][0]
    return first if parts[1][0] is first else op.concat([t for t, _ in parts], dim=1)


class Llama(nn.Module):  # type: ignore[misc]
    """A decoder; its public methods become the model library's functions."""

    def __init__(self, config: ModelConfig, isa: Isa, kv_dtype: str) -> None:
        self.config, self.isa, self.kv_dtype = config, isa, kv_dtype
        self.embedding = Embedding(config.vocab, config.hidden, config.formats["embedding"])
        self.layers = nn.ModuleList(
            [LlamaLayer(config, i, isa, kv_dtype) for i in range(config.layers)]
        )
        self.norm = nn.Parameter((config.hidden,), "float32")
        if not config.tied_head:
            self.head = Linear(config.vocab, config.hidden, config.formats["head"], isa)
        self.padded_vocab = self.embedding.n

    def forward(
        self,
        tokens: Tensor,
        rope: Tensor,
        slot: Tensor,
        position: Tensor,
        tiles: Tensor,
        page_ids: Tensor,
        window: Tensor,
        coarse_rows: Tensor,
        logit_rows: Tensor,
        pages: list[Tensor],
    ) -> Tensor:
        step = Step(rope, slot, position, tiles, page_ids, window, coarse_rows, Scratch())
        x = self.embedding(tokens)
        for layer, layer_pages in zip(self.layers, pages, strict=True):
            x = layer(x, step, layer_pages)
        head = self._head()
        last = select_rows(x, logit_rows)
        scratch = Scratch()  # its rows are not those of the layers
        given = head.prepare("norm", last, scratch, self.norm, self.config.norm_eps)
        return head.forward(given, scratch)

    @property
    def has_coarse_rows(self) -> bool:
        """Whether `coarse_rows` makes a difference: some product knows a faster way."""
        return any(
            linear.has_coarse_rows
            for layer in self.layers
            for linear in (layer.o, *layer.mlp.linears, layer.down)
        )

    def _head(self) -> Linear:
        if not self.config.tied_head:
            return self.head
        table = self.embedding
        tied = Linear(self.config.vocab, table.k, table.fmt, self.isa)
        tied.packed = table.packed
        return tied

    def sample(self, logits: Tensor, options: Tensor, top_k: Tensor) -> Any:
        rows, padded = logits.shape[0], self.padded_vocab
        ints = Tensor.placeholder([rows], "int32")
        scratch = float_tensor(rows, padded + padded // CHUNK)
        _, token = op.tensor_ir_op(
            sample(self.config.tokens, padded),
            "sample_rows",
            [logits, options, top_k],
            [scratch, ints],
        )
        return token

    def top_tokens(self, logits: Tensor, rows: Tensor) -> Any:
        count = rows.shape[0]
        return op.tensor_ir_op(
            top_tokens(self.config.tokens, self.padded_vocab),
            "top_rows",
            [logits, rows],
            [
                Tensor.placeholder([count, MOST], "int32"),
                float_tensor(count, MOST),
                float_tensor(count),
            ],
        )

    def edit_logits(
        self, place: Tensor, number: Tensor, masked: Tensor, allowed: Tensor, logits: Tensor
    ) -> Any:
        return op.tensor_ir_inplace_op(
            edit_logits(self.config.tokens, self.padded_vocab),
            "edit_rows",
            [place, number, masked, allowed, logits],
            4,
            float_tensor(*logits.shape),
        )

    def copy_pages(self, source: Tensor, target: Tensor, pages: list[Tensor]) -> Any:
        kernel = copy_pages(self.config.kv_heads, self.config.head_dim, self.kv_dtype)
        return [
            op.tensor_ir_inplace_op(
                kernel,
                "copy_pages_rows",
                [source, target, p],
                2,
                Tensor.placeholder(p.shape, self.kv_dtype),
            )
            for p in pages
        ]
