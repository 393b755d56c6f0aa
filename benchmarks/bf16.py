"""Products for training in bfloat16, with parameters and sums in float32.

A processor with AVX512_BF16 or AMX multiplies bfloat16 two to three times as fast as float32.
Others are slow at it, so they get float32 (`NUMBERS`).
"""

from __future__ import annotations

from typing import Any

import torch

from mlc_llm.support.machine import describe

NUMBERS = (
    torch.bfloat16
    if {"avx512_bf16", "amx_bf16"} & set(describe().features or ())
    else torch.float32
)
Gradients = tuple[torch.Tensor | None, ...]


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        small = weight.to(NUMBERS)
        ctx.save_for_backward(x, small)
        return x @ small.T

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        (x, weight), (of_y,) = ctx.saved_tensors, gradients
        flat = of_y.reshape(-1, of_y.shape[-1])
        return of_y @ weight, (flat.T @ x.reshape(-1, x.shape[-1])).float()


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., columns] times a matrix [rows, columns] of float32: [..., rows] of `NUMBERS`."""
    found: torch.Tensor = _Product.apply(x.to(NUMBERS), weight)
    return found


class _Distance(torch.autograd.Function):  # type: ignore[misc]
    """The gradient is made beside the value, so that no second matrix of logits is kept."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor
    ) -> torch.Tensor:
        small, count = weight.to(NUMBERS), max(len(x), 1)
        found = torch.log_softmax((x @ small.T).float(), dim=-1)
        value = -torch.einsum("ij,ij->", found, wanted) / count
        ctx.save_for_backward(x, small, found.exp_().sub_(wanted).to(NUMBERS))
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        x, weight, of_logits = ctx.saved_tensors
        scale = gradients[0] / max(len(x), 1)
        return (of_logits @ weight) * scale.to(NUMBERS), (of_logits.T @ x).float() * scale, None


def distance(x: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of the likelihoods that the logits x @ weight.T give, with `wanted`
    [n, rows], float32."""
    found: torch.Tensor = _Distance.apply(x.to(NUMBERS), weight, wanted)
    return found


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
