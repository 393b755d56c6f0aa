"""Heads of values in the order of GGUF files of Qwen3.5: in turn for each head of keys.

A folder has the heads of values that share a head of keys side by side (llama.cpp, conversion of
Qwen3.5: "reorders V heads from grouped to tiled order").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mlc_llm.models.recurrent import GatedDeltaSpec

Order = npt.NDArray[np.int64]
"""Which row, or column, of the folder stands at each place of the file."""


def rows_in_turn(one: GatedDeltaSpec) -> Mapping[str, Order]:
    """By the name of a tensor in a layer: of the rows of matrices, and of numbers of vectors."""
    heads, values = _heads(one), _values(one)
    behind = np.concatenate([np.arange(2 * one.keys), 2 * one.keys + values])
    return {
        "attn_qkv.weight": behind, "ssm_conv1d.weight": behind, "attn_gate.weight": values,
        "ssm_alpha.weight": heads, "ssm_beta.weight": heads, "ssm_a": heads, "ssm_dt.bias": heads,
    }  # fmt: skip


def columns_in_turn(one: GatedDeltaSpec) -> Mapping[str, Order]:
    """The same of the columns of matrices."""
    return {"ssm_out.weight": _values(one)}


def _heads(one: GatedDeltaSpec) -> Order:
    order: Order = np.arange(one.heads).reshape(one.key_heads, -1).T.reshape(-1)
    return order


def _values(one: GatedDeltaSpec) -> Order:
    """Of all numbers of the heads."""
    numbers = _heads(one)[:, None] * one.head_dim + np.arange(one.head_dim)
    order: Order = numbers.reshape(-1)
    return order
