"""A rotary embedding for longer texts than a model's files say, as a user asks for it.

The fields are those of `rope_scaling` in a `config.json` of Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.errors import InvalidField, MLCError, UnsupportedModel
from mlc_llm.models.config_values import rope_of
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.values import Values

NAME = "rope_scaling"
_USUAL = ("rope_type", "factor", "original_max_position_embeddings")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("rope_type", "factor"),
    "llama3": (*_USUAL, "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *(*_USUAL, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (*_USUAL, "short_factor", "long_factor", "attention_factor"),
}
"""Of each `rope_type`."""


def check_scaling(fields: Mapping[str, object]) -> None:
    """Raises InvalidField for a type or a field that is not known, or no factor."""
    kind = fields.get("rope_type")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise InvalidField(f"{NAME}.rope_type", kind, "one of " + ", ".join(FIELDS))
    for name in fields:
        if name not in FIELDS[kind]:
            words = f"{kind} has {', '.join(FIELDS[kind])}"
            raise InvalidField(f"{NAME}.{name}", fields[name], words)
    factor = fields.get("factor")
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if not is_number or not 1 <= factor <= 1024:  # type: ignore[operator]
        raise InvalidField(f"{NAME}.factor", factor, "a number from 1 to 1024")


def _named_anew(fields: Mapping[str, object]) -> Mapping[str, object]:
    """With `rope_type`, whose older name is `type`; some files have both."""
    rest = {name: value for name, value in fields.items() if name != "type"}
    kind = fields.get("type")
    if kind is None or rest.get("rope_type", kind) != kind:
        return fields
    return {**rest, "rope_type": kind}


def rescaled(spec: ModelSpec, fields: Mapping[str, object]) -> ModelSpec:
    """With this scaling in the layers that see everything, in place of what the files say, and the
    context that follows from it. Raises InvalidField, UnsupportedModel."""
    fields = _named_anew(fields)
    check_scaling(fields)
    wide = [one for one in spec.attention_layers.values() if one.window is one.reach is None]
    chosen = {one.rope for one in wide if one.rope is not None}
    if not chosen or spec.learned_positions:
        raise UnsupportedModel(f"{NAME}: no layer that sees everything rotates its heads")
    values = Values({f"{NAME}.{k}": v for k, v in fields.items()}, f"{NAME}.", null_is_absent=True)
    try:
        trained = values.count("original_max_position_embeddings", spec.context_window)
        ropes = tuple(
            rope_of(values, rope.dim, rope.theta, trained) if i in chosen else rope
            for i, rope in enumerate(spec.ropes)
        )
    except MLCError as error:
        raise InvalidField(NAME, dict(fields), str(error)) from None
    context = int(trained * values.positive("factor"))
    return replace(spec, ropes=ropes, context_window=max(spec.context_window, context))
