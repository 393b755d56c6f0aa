"""What the files of models with state spaces (Mamba 2) have in common."""

from __future__ import annotations

from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.recurrent import Mamba2Spec
from mlc_llm.models.tensor_names import MinusExp, Origin, Squeezed
from mlc_llm.models.values import Values

NO_LIMITS = [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
"""Bounds of dt that are none, as Transformers writes them."""


def mixer_names(folder: str) -> dict[str, Origin]:
    """The tensors of a mixer. folder: what their names begin with."""
    return {
        "blk.{i}.ssm_in.weight": f"{folder}.in_proj.weight",
        "blk.{i}.ssm_out.weight": f"{folder}.out_proj.weight",
        "blk.{i}.ssm_conv1d.weight": Squeezed(f"{folder}.conv1d.weight"),
        "blk.{i}.ssm_conv1d.bias": f"{folder}.conv1d.bias",
        "blk.{i}.ssm_dt.bias": f"{folder}.dt_bias",
        "blk.{i}.ssm_a": MinusExp(Squeezed(f"{folder}.A_log")),
        "blk.{i}.ssm_d": Squeezed(f"{folder}.D"),
        "blk.{i}.ssm_norm.weight": Squeezed(f"{folder}.norm.weight"),
    }


def gguf_mixer(values: GGUFValues) -> Mamba2Spec:
    """Raises ModelFileError."""
    heads, inner = values.count("ssm.time_step_rank"), values.count("ssm.inner_size")
    values.check("ssm.inner_size", inner % heads == 0, f"a multiple of {heads}")
    return Mamba2Spec(
        heads, inner // heads, values.count("ssm.state_size"), values.count("ssm.group_count"),
        values.count("ssm.conv_kernel"),
    )  # fmt: skip


def config_mixer(values: Values, inner: int) -> Mamba2Spec:
    """The one of a `config.json` whose fields begin with "mamba". inner: its width. Raises
    ModelFileError."""
    heads = values.count("mamba_n_heads", 128)
    values.check("mamba_n_heads", inner % heads == 0, f"a divisor of {inner}")
    if values.get("mamba_d_head", "auto") != "auto":
        values.check(
            "mamba_d_head", values.get("mamba_d_head") == inner // heads, f"{inner // heads}"
        )
    return Mamba2Spec(
        heads, inner // heads, values.count("mamba_d_state", 256),
        values.count("mamba_n_groups", 1), values.count("mamba_d_conv", 4),
    )  # fmt: skip
