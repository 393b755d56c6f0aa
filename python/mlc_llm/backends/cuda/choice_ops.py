"""From logits to tokens, as calls of GPU kernels."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import call, change, float_tensor
from mlc_llm.kernels.cuda.edit_logits import edit_logits
from mlc_llm.kernels.cuda.rows import chosen_logits, take_rows
from mlc_llm.kernels.cuda.sampling import sample
from mlc_llm.kernels.cuda.top_tokens import MOST, top_tokens


class ChoiceOps:
    """The operations of `backends.ops.Ops` that read logits, and pick rows."""

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        k = int(x.shape[1])
        return call(take_rows(k), "take_rows", [x, rows], float_tensor(rows.shape[0], k))

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        kernel, out = chosen_logits(int(kept.shape[1])), float_tensor(kept.shape[0])
        return call(kernel, "chosen_logits", [kept, rows, token], out)

    def sample(self, vocab: int, logits: Tensor, options: Tensor, top_k: Tensor) -> Tensor:
        rows, padded = logits.shape[0], int(logits.shape[1])
        out = [float_tensor(rows, padded), Tensor.placeholder([rows], "int32")]
        args = [logits, options, top_k]
        _, token = op.tensor_ir_op(sample(vocab, padded), "sample_rows", args, out)
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
        return change(kernel, "edit_rows", [place, number, masked, allowed], logits)
