"""From the pixels of an image to the numbers that a model of images begins with.

Source: `preprocessor_config.json` of Hugging Face folders, as Gemma3ImageProcessor and
Idefics3ImageProcessor of Transformers read it. For the first one, every image becomes a square of
one size, whatever its shape. For the other one, it is cut into squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.images.decoder import Target
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

Triple = tuple[float, float, float]
MOST_SIDE = 8192
RESAMPLES = range(6)
"""Pillow's numbers of them."""
STEPS = ("do_resize", "do_rescale", "do_normalize")
ENDS = ("", "Fast", "Pil")
SQUARES = tuple(f"Gemma3ImageProcessor{end}" for end in ENDS)
TILES = tuple(f"{name}ImageProcessor{end}" for name in ("Idefics3", "SmolVLM") for end in ENDS)
PROCESSORS = (*SQUARES, *TILES)
LONGEST = 4096
"""Of the longer side before an image is cut."""


@record()
class PixelForm:
    """How pixels become numbers: (pixel * factor - mean) / deviation, by colour."""

    target: Target
    factor: float = 1 / 255
    mean: Triple = (0.5, 0.5, 0.5)
    deviation: Triple = (0.5, 0.5, 0.5)

    def numbers(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """[height, width, 3] -> float32 [3, height, width]. Rounded where Transformers rounds."""
        steps = (np.arange(256, dtype=np.float64) * self.factor).astype(np.float32)
        found = np.empty((3, *pixels.shape[:2]), np.float32)
        for colour in range(3):
            mean, deviation = np.float32(self.mean[colour]), np.float32(self.deviation[colour])
            found[colour] = ((steps - mean) / deviation)[pixels[:, :, colour]]
        return found


def patches(numbers: npt.NDArray[np.float32], side: int) -> npt.NDArray[np.float32]:
    """float32 [3, height, width] -> [patches, 3 * side * side], row of patches by row; a patch has
    its first colour first, as the rows of a convolution's weights."""
    colours, height, width = numbers.shape
    down, across = height // side, width // side
    cut = numbers.reshape(colours, down, side, across, side).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(cut).reshape(down * across, colours * side * side)


def read_pixel_form(config: Mapping[str, object]) -> PixelForm:
    """Raises ModelFileError naming the field at fault, UnsupportedModel for another processor or a
    step that is not known here."""
    kind = config.get("image_processor_type")
    if kind not in PROCESSORS:
        known = ", ".join(PROCESSORS)
        raise UnsupportedModel(f"image_processor_type = {kind!r} is not supported; known: {known}")
    for step in STEPS:
        if config.get(step, True) is not True:
            raise UnsupportedModel(f"{step} = {config[step]!r} is not supported; it is always done")
    if config.get("do_pan_and_scan"):
        raise UnsupportedModel("do_pan_and_scan = true is not supported: an image is one square")
    return PixelForm(
        _tiles(config) if kind in TILES else _target(config),
        _number("rescale_factor", config.get("rescale_factor", 1 / 255)),
        _triple(config, "image_mean"),
        _triple(config, "image_std"),
    )


def _target(config: Mapping[str, object]) -> Target:
    size, resample = config.get("size"), config.get("resample", 2)
    sides = size if isinstance(size, Mapping) else {}
    width, height = sides.get("width"), sides.get("height")
    if type(width) is not int or width != height or not 0 < width <= MOST_SIDE:
        raise _wrong("size", size, f"equal height and width, 1 to {MOST_SIDE}")
    if type(resample) is not int or resample not in RESAMPLES:
        raise _wrong("resample", resample, "one of Pillow's numbers, 0 to 5")
    return Target(width, width, resample)


def _tiles(config: Mapping[str, object]) -> Target:
    """Of a processor that cuts images."""
    longest, side = (_edge(config, name) for name in ("size", "max_image_size"))
    resample, cuts = config.get("resample", 1), config.get("do_image_splitting", True)
    if type(resample) is not int or resample not in RESAMPLES:
        raise _wrong("resample", resample, "one of Pillow's numbers, 0 to 5")
    if not isinstance(cuts, bool):
        raise _wrong("do_image_splitting", cuts, "true or false")
    return Target(side, side, resample, longest, cuts)


def _edge(config: Mapping[str, object], name: str) -> int:
    size = config.get(name)
    edge = size.get("longest_edge") if isinstance(size, Mapping) else None
    if type(edge) is not int or not 0 < edge <= LONGEST:
        raise _wrong(name, size, f"a longest_edge, 1 to {LONGEST}")
    return edge


def _triple(config: Mapping[str, object], name: str) -> Triple:
    values = config.get(name, [0.5, 0.5, 0.5])
    if not isinstance(values, list) or len(values) != 3:
        raise _wrong(name, values, "three numbers above 0")
    red, green, blue = (_number(name, one) for one in values)
    return red, green, blue


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1e6:  # type: ignore[operator]
        raise _wrong(name, value, "a number above 0")
    return float(value)  # type: ignore[arg-type]


def _wrong(name: str, value: object, allowed: str) -> ModelFileError:
    words = f"{name} = {value!r}"[:120]
    return ModelFileError(f"preprocessor_config.json: {words} is not allowed: {allowed}")
