"""EmbeddingGemma (2025): a Gemma 3 whose tokens see their text on both sides, for vectors of texts.

A window is as wide on both sides of a token. Matrices may follow the pooling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models import gemma3
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import FolderNames, Origin, PlusOne
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights, with_projections


def _bare(origin: Origin) -> Origin:
    """In a folder of the layers alone."""
    if isinstance(origin, PlusOne):
        return PlusOne(_bare(origin.of))
    assert isinstance(origin, str), "a Gemma has no other changes"
    return origin.removeprefix("model.")


HF_NAMES = FolderNames({gguf: _bare(one) for gguf, one in gemma3.HF_NAMES.origins.items()})


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    values = GGUFValues(metadata, "gemma-embedding")
    spec = _spec(gemma3.gguf_spec(values, tensors, causal=False))
    return plan_weights(with_projections(spec, tensors), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    key = "use_bidirectional_attention"  # without it, it is a Gemma 3 that has lost its head
    stated = {key: ConfigValues(config).get(key, False)}
    ConfigValues(stated).refuse_unless(key, True)
    of_decoder = {key: False, "is_causal": None}
    spec = gemma3.read_config({**config, **of_decoder})
    return _spec(replace(spec, architecture="gemma-embedding"))


def _spec(spec: ModelSpec) -> ModelSpec:
    """spec: of the same numbers as a Gemma 3. Both sides share its window."""

    def both_sides(_: int, one: AttentionSpec) -> AttentionSpec:
        reach = None if one.window is None else one.window // 2
        return replace(one, window=None, reach=reach)

    encoder = EncoderSpec(embedding_norm=False, last_norm=True)
    found = replace(spec, encoder=encoder, tied_head=True, logit_cap=None)
    return found.with_attention(both_sides)
