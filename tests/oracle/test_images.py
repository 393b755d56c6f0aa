"""Images of every shape, as Transformers prepares them for Gemma 3."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

from transformers.image_utils import load_image  # noqa: E402
from transformers.models.gemma3.image_processing_pil_gemma3 import (  # noqa: E402
    Gemma3ImageProcessorPil,
)

from mlc_llm.images.decoder import ImageFile, decoded  # noqa: E402
from mlc_llm.images.pixels import read_pixel_form  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def image(width: int, height: int, mode: str) -> Any:
    rng = np.random.default_rng(width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("size", [(896, 896), (1, 1), (31, 1200), (1300, 977), (64, 48)])
def test_pixels_equal_transformers(form: str, size: tuple[int, int]) -> None:
    mode = "RGBA" if form != "JPEG" else "L"
    out = io.BytesIO()
    image(*size, mode).save(out, form)
    processor = Gemma3ImageProcessorPil(
        size={"height": 896, "width": 896}, image_mean=[0.5, 0.4, 0.3], image_std=[0.5, 0.6, 0.7]
    )
    wanted = processor(load_image(Image.open(out)), return_tensors="np")["pixel_values"][0]
    pixel_form = read_pixel_form(json.loads(processor.to_json_string()))
    found = pixel_form.numbers(decoded(ImageFile(out.getvalue()), pixel_form.target))
    assert np.abs(found - wanted).max() == 0
