"""Images in the core: none is cut, the same one is shared, two are never taken for one another."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from core_harness import Harness, prompt_of

from mlc_llm.errors import ContextLengthExceeded, InvalidField, UnsupportedModel
from mlc_llm.images.picture import Picture
from mlc_llm.images.pixels import PixelForm, Target
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.images import ImageSpan, before_image, image_ids, image_spans, row_images
from mlc_llm.serve.data import Data, ImageData, TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner

TOKENS = 12
FORM = PixelForm(Target(8, 8))


@dataclass
class Reader:
    """What the core reads of an `ImageReader`."""

    tokens: int = TOKENS


def picture(seed: int, tokens: int = TOKENS) -> Picture:
    pixels: npt.NDArray[np.uint8] = np.random.default_rng(seed).integers(
        0, 256, (8, 8, 3), dtype=np.uint8
    )
    return Picture(pixels, FORM, 4, tokens)


def harness(**more: Any) -> Harness:
    return Harness(FakeRunner(whole_images=True, **more), EngineConfig(), images=Reader())


def ask(engine: Harness, name: str, *parts: int | list[int], **config: Any) -> None:
    """Parts: tokens, or the seed of an image."""
    inputs: list[Data] = [
        ImageData(picture(one)) if isinstance(one, int) else TokenData(one) for one in parts
    ]
    values = {"temperature": 0.0, "max_tokens": 6, **config}
    engine.add_request(Request(name, inputs, GenerationConfig(**values)))


def cached(engine: Harness, name: str) -> int:
    usage = engine.seen[name].usage
    assert usage is not None
    found: int = usage["prompt_tokens"] - usage["extra"]["prefill_tokens"]
    return found


def test_ids_say_which_image_it_is() -> None:
    one, same, other = image_ids(picture(1)), image_ids(picture(1)), image_ids(picture(2))
    assert one == same and len({*one, *other}) == 2 * TOKENS
    assert all(-(2**31) <= token < 0 for token in one)


def test_spans_and_rows() -> None:
    first, second = picture(1), picture(2, 3)
    spans = image_spans([5, *image_ids(first), 6, *image_ids(second)], [first, second])
    assert spans == (ImageSpan(1, first), ImageSpan(TOKENS + 2, second))
    assert [before_image(spans, n) for n in (1, 2, TOKENS, TOKENS + 1)] == [1, 1, 1, TOKENS + 1]
    (row,) = row_images(spans, 3, 4)
    assert (row.at, row.first, row.count, row.picture) == (0, 2, 4, first)
    assert row_images(spans, 0, 1) == ()


@pytest.mark.parametrize("seed", range(4))
def test_no_image_is_cut_whatever_runs_beside_it(seed: int) -> None:
    """The fake runner asserts it in every step: with few pages, small steps, `n`, and aborts."""
    rng = random.Random(seed)
    engine = harness(num_pages=20, max_batch_tokens=TOKENS + 3)
    for i in range(14):
        parts: list[int | list[int]] = []
        for _ in range(rng.randint(1, 3)):
            parts += [prompt_of(rng.randint(1, 20), rng.randint(0, 3))]
            parts += [rng.randint(1, 3)] * (rng.random() < 0.7)
        ask(engine, str(i), *parts, n=rng.choice((1, 1, 2)), max_tokens=rng.randint(1, 9))
        for _ in range(rng.randint(0, 4)):
            engine.step()
        if rng.random() < 0.2:
            engine.abort(str(i))
    engine.run()
    assert all(seen.reasons[0] in ("length", "stop", "abort") for seen in engine.seen.values())


def test_the_same_image_is_computed_once_and_another_one_is_not_taken_for_it() -> None:
    engine, start, end = harness(), prompt_of(5), prompt_of(9, 1)
    for name, seed in (("first", 1), ("same", 1), ("other", 2)):
        ask(engine, name, start, seed, end)
        engine.run()
    whole = len(start) + TOKENS + len(end)
    assert cached(engine, "first") == 0
    assert cached(engine, "same") == whole - 1
    assert cached(engine, "other") == len(start)
    assert engine.seen["same"].tokens == engine.seen["first"].tokens
    assert engine.seen["other"].tokens != engine.seen["first"].tokens
    assert all(one.usage["prompt_tokens"] == whole for one in engine.seen.values() if one.usage)


def test_a_part_of_an_image_is_not_taken_over() -> None:
    """A sequence that ends with an image is taken over up to the image."""
    engine = harness()
    ask(engine, "first", prompt_of(5), 1)
    engine.run()
    ask(engine, "again", prompt_of(5), 1)
    engine.run()
    assert cached(engine, "again") == 5


def test_what_does_not_fit_is_refused() -> None:
    engine = harness(context_window=3 * TOKENS)
    with pytest.raises(ContextLengthExceeded):
        ask(engine, "many", 1, 2, 3)
    with pytest.raises(InvalidField, match="embed_size"):
        engine.add_request(Request("r", [ImageData(picture(1), 5)], GenerationConfig()))
    with pytest.raises(InvalidField, match="TokenData"):
        engine.add_request(Request("r", [TokenData([-5])], GenerationConfig()))
    with pytest.raises(InvalidField, match="prompt_logprobs"):
        inputs = [TokenData([1]), ImageData(picture(1))]
        engine.add_request(Request("r", inputs, GenerationConfig(), prompt_logprobs=1))
    blind = Harness()
    with pytest.raises(UnsupportedModel, match="Vision config is required"):
        blind.add_request(Request("r", [ImageData(picture(1))], GenerationConfig()))
