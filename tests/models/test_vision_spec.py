"""What a model of images is, read from a config. The tower's numbers are compared with those of
Transformers in `tests/oracle/test_image_tower.py`."""

from __future__ import annotations

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.vision_spec import HF_NAMES, VisionSpec, read_vision

VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
    "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
}  # fmt: skip


CUT = {"model_type": "smolvlm", "scale_factor": 4}
"""A model whose images are cut."""


def config(**changed: object) -> dict[str, object]:
    """Of Gemma 3 4B, with some fields of `vision_config` changed."""
    return {"vision_config": {**VISION, **changed}, "text_config": {"hidden_size": 2560}}


def test_a_config_of_gemma_is_read() -> None:
    spec = read_vision(config())
    assert spec == VisionSpec(64, 14, 1152, 16, 4304, 27, 1e-6, "gelu_tanh", 16, 2560)
    assert (spec.tokens, spec.patch_numbers) == (256, 588)


def test_every_tensor_has_an_origin_in_folders() -> None:
    specs = (read_vision(config()), read_vision({**config(model_type="idefics3"), **CUT}))
    names = {name.replace("blk.0.", "blk.{i}.") for spec in specs for name in spec.tensors}
    assert {one for one in names if "blk." not in one or "{i}" in one} == set(HF_NAMES.origins)


def test_a_config_of_smolvlm_is_read() -> None:
    spec = read_vision({**config(model_type="idefics3"), **CUT})
    assert (spec.join, spec.tokens, spec.pooled_side) == ("beside", 256, 16)
    with pytest.raises(ModelFileError, match="scale_factor"):
        read_vision({**config(model_type="idefics3"), **CUT, "scale_factor": 5})


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("model_type", "clip_vision_model", UnsupportedModel),
        ("hidden_act", "silu", UnsupportedModel),
        ("num_channels", 1, UnsupportedModel),
        ("patch_size", 0, ModelFileError),
        ("image_size", 13, ModelFileError),
        ("image_size", 10**6, ModelFileError),
        ("num_attention_heads", 5, ModelFileError),
    ],
)
def test_bad_configs_are_refused(field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        read_vision(config(**{field: value}))


@pytest.mark.parametrize("tokens", [255, 9, 128**2])
def test_tokens_that_do_not_divide_an_image_are_refused(tokens: int) -> None:
    with pytest.raises(ModelFileError, match="mm_tokens_per_image"):
        read_vision({**config(), "mm_tokens_per_image": tokens})


def test_a_model_without_images_is_refused() -> None:
    with pytest.raises(ModelFileError, match="vision_config"):
        read_vision({"text_config": {"hidden_size": 2560}})
