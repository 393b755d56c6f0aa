"""Pixels become the numbers that a model begins with."""

from __future__ import annotations

import numpy as np
import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.images.decoder import Target
from mlc_llm.images.pixels import PixelForm, patches, read_pixel_form

GEMMA = {
    "image_processor_type": "Gemma3ImageProcessor", "do_resize": True, "do_rescale": True,
    "do_normalize": True, "do_pan_and_scan": None, "resample": 2, "rescale_factor": 1 / 255,
    "size": {"height": 896, "width": 896}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip


def test_a_config_of_gemma_is_read() -> None:
    assert read_pixel_form(GEMMA) == PixelForm(Target(896, 896))


def test_numbers_are_scaled_and_normalised_by_colour() -> None:
    form = PixelForm(Target(2, 1), 1 / 255, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    pixels = np.array([[[0, 51, 255], [255, 0, 102]]], np.uint8)
    wanted = [[[-0.2, 1.8]], [[0.0, -1 / 3]], [[1.0, 1 / 7]]]
    assert np.allclose(form.numbers(pixels), wanted, atol=1e-6)


def test_patches_are_those_of_a_convolution() -> None:
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((3, 6, 6)).astype(np.float32)
    found = patches(numbers, 2)
    assert found.shape == (9, 12)
    assert (found[5] == numbers[:, 2:4, 4:6].reshape(-1)).all()


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("image_processor_type", "CLIPImageProcessor", UnsupportedModel),
        ("do_resize", False, UnsupportedModel),
        ("do_pan_and_scan", True, UnsupportedModel),
        ("size", {"height": 896, "width": 448}, ModelFileError),
        ("size", {"shortest_edge": 896}, ModelFileError),
        ("size", {"height": 10**6, "width": 10**6}, ModelFileError),
        ("resample", 6, ModelFileError),
        ("rescale_factor", float("nan"), ModelFileError),
        ("image_std", [0.5, 0.5], ModelFileError),
        ("image_std", [0.5, 0.5, 0.0], ModelFileError),
    ],
)
def test_bad_configs_are_refused(field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        read_pixel_form({**GEMMA, field: value})
