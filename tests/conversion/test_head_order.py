"""Heads of values as GGUF files of Qwen3.5 have them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from mlc_llm.conversion.head_order import with_heads_in_turn
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec

MIXER = GatedDeltaSpec(key_heads=2, key_dim=1, heads=6, head_dim=2, kernel=2)
"""Heads 0, 1 and 2 of values have the first head of keys: in turn they are 0, 3, 1, 4, 2, 5."""
IN_TURN = [0, 3, 1, 4, 2, 5]


class Numbers(NamedTuple):
    shape: tuple[int, ...]
    data: Any
    name: str = "some"
    kind: str = "F32"


def model() -> ModelSpec:
    return ModelSpec("qwen35", 4, 8, 16, 1e-5, (LayerSpec(MIXER, DenseSpec(8)),), (), True)


def tensors() -> dict[str, Any]:
    """Each row of a matrix has its own number; of the last one each column."""
    found = {}
    rows = {
        "attn_qkv.weight": 16, "ssm_conv1d.weight": 16, "attn_gate.weight": 12,
        "ssm_alpha.weight": 6, "ssm_beta.weight": 6, "ssm_a": 6, "ssm_dt.bias": 6,
    }  # fmt: skip
    for name, count in rows.items():
        shape = (count,) if name in ("ssm_a", "ssm_dt.bias") else (count, 3)
        values = np.broadcast_to(np.arange(count).reshape(-1, *[1] * (len(shape) - 1)), shape)
        found[f"blk.0.{name}"] = Numbers(shape, values.astype(np.float32).reshape(-1).view("u1"))
    columns = np.tile(np.arange(12, dtype=np.float32), 2)
    return found | {"blk.0.ssm_out.weight": Numbers((2, 12), columns.view("u1"))}


def test_heads_in_turn() -> None:
    found = with_heads_in_turn(model(), tensors())
    read = {n: one.data.view("f4").reshape(one.shape).astype(int) for n, one in found.items()}
    values = [2 * head + i for head in IN_TURN for i in (0, 1)]
    assert read["blk.0.attn_qkv.weight"][:, 0].tolist() == [*range(4), *(4 + i for i in values)]
    assert read["blk.0.ssm_conv1d.weight"][:, 2].tolist() == [*range(4), *(4 + i for i in values)]
    assert read["blk.0.attn_gate.weight"][:, 0].tolist() == values
    assert read["blk.0.ssm_out.weight"].tolist() == [values, values]
    for name in ("ssm_alpha.weight", "ssm_beta.weight"):
        assert read[f"blk.0.{name}"][:, 0].tolist() == IN_TURN
    assert read["blk.0.ssm_a"].tolist() == read["blk.0.ssm_dt.bias"].tolist() == IN_TURN


def test_quantised_heads_are_refused() -> None:
    given = tensors()
    given["blk.0.attn_qkv.weight"] = given["blk.0.attn_qkv.weight"]._replace(kind="Q4_0")
    with pytest.raises(UnsupportedModel, match="tensor some of type Q4_0"):
        with_heads_in_turn(model(), given)
