"""A tiny random model with a tower, from images to texts. Its numbers are compared with those of
Transformers in `tests/oracle/test_gemma3_images.py`."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

from mlc_llm.errors import ContextLengthExceeded, UserError  # noqa: E402
from mlc_llm.protocol.generation_config import GenerationConfig  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.serve.data import Data, ImageData, TextData, TokenData  # noqa: E402
from mlc_llm.serve.openai.chat import ChatPrompt, rendered_chat  # noqa: E402
from mlc_llm.serve.opening.bundle import ModelBundle, open_model  # noqa: E402
from mlc_llm.serve.opening.vision import with_vision  # noqa: E402
from mlc_llm.serve.sync_engine import SyncMLCEngine  # noqa: E402
from mlc_llm.testing.gguf_writer import write_gguf  # noqa: E402
from mlc_llm.testing.tiny_eyes import IMAGE_TOKENS, TinyEyes, write_tiny_eyes  # noqa: E402

GREEDY = GenerationConfig(temperature=0.0, max_tokens=8, debug_config={"ignore_eos": True})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TinyEyes:
    return write_tiny_eyes(tmp_path_factory.mktemp("eyes"))


@pytest.fixture(scope="module")
def bundle(files: TinyEyes) -> ModelBundle:
    return with_vision(open_model(str(files.model)), EngineConfig())


@pytest.fixture(scope="module")
def engine(files: TinyEyes) -> Iterator[SyncMLCEngine]:
    config = EngineConfig(verbose=False, kernels="reference", prefill_chunk_size=24)
    yield SyncMLCEngine(str(files.model), engine_config=config)


def png(seed: int, size: tuple[int, int] = (30, 50)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def chat(*parts: str | bytes) -> list[dict[str, Any]]:
    content = [
        {"type": "text", "text": one}
        if isinstance(one, str)
        else {"type": "image_url", "image_url": {"url": url(one)}}
        for one in parts
    ]
    return [{"role": "user", "content": content}]


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def prompt(bundle: ModelBundle, messages: list[dict[str, Any]]) -> ChatPrompt:
    assert bundle.vision is not None
    return rendered_chat(
        messages, tokenizer=bundle.tokenizer, template=bundle.chat_template,
        images=bundle.vision.reader, max_tokens=bundle.context_window,
    )  # fmt: skip


@pytest.mark.slow
def test_texts_and_images_in_any_order(engine: SyncMLCEngine) -> None:
    """Several prompts at once, in steps that are smaller than two images."""
    first, second = ImageData(png(1)), ImageData(png(2))
    prompts: list[list[Data]] = [
        [first, TextData("a")],
        [second, TextData("a")],
        [TextData("look"), first, TokenData([5, 6]), second, TextData("b")],
        [TextData("only text")],
    ]
    together, _ = engine.generate(prompts, GREEDY)
    alone = [engine.generate([one], GREEDY).texts[0][0] for one in prompts]
    assert [one[0] for one in together] == alone
    assert len({*alone}) == len(alone), "an image changes nothing"


@pytest.mark.slow
def test_images_and_pages_of_8_bits(files: TinyEyes, engine: SyncMLCEngine) -> None:
    """Near the exact pages, and just as independent of company and of steps."""
    settings: dict[str, Any] = {"verbose": False, "kernels": "reference", "kv_cache_dtype": "int8"}
    first, second = ImageData(png(1)), ImageData(png(2))
    prompts: list[list[Data]] = [
        [first, TextData("a")],
        [second, TextData("a")],
        [TextData("look"), first, TokenData([5, 6]), second, TextData("b")],
    ]
    watched = GenerationConfig(temperature=0.0, max_tokens=1, logprobs=True, top_logprobs=20)
    texts, alone = [], []
    for chunk in (24, 64):
        config = EngineConfig(prefill_chunk_size=chunk, **settings)
        of_bytes = SyncMLCEngine(str(files.model), engine_config=config)
        texts += [of_bytes.generate([one], GREEDY).texts[0][0] for one in prompts]
        alone += [first_scores(of_bytes, one, watched) for one in prompts]
        together, _ = of_bytes.generate(prompts, GREEDY)
        assert [one[0] for one in together] == texts[-3:]
    assert texts[:3] == texts[3:] and alone[:3] == alone[3:], "steps change something"
    assert alone[0] != alone[1], "an image changes nothing"
    for found, one in zip(alone, prompts, strict=False):
        exact = first_scores(engine, one, watched)
        assert found != exact, "the pages have no 8 bits"
        both = found.keys() & exact.keys()
        assert len(both) >= 15 and max(abs(found[t] - exact[t]) for t in both) < 0.1


def first_scores(
    engine: SyncMLCEngine, prompt: list[Data], config: GenerationConfig
) -> dict[str, float]:
    """Log-probabilities of the likeliest first tokens."""
    output = engine.generate([prompt], config)
    assert output.logprobs is not None
    first = json.loads(output.logprobs[0][0][0])
    return {str(one["bytes"]): one["logprob"] for one in first["top_logprobs"]}


@pytest.mark.slow
def test_a_chat_with_images(engine: SyncMLCEngine) -> None:
    asked = chat("Look: ", png(1), " and ", png(2), ".")
    answer = engine.chat(asked, GREEDY)
    marks = len("\n\n") * 2 + 2
    texts = "<|im_start|>user\nLook:  and .<|im_end|>\n<|im_start|>assistant\n"
    longest = 2 * (IMAGE_TOKENS + marks) + len(texts)
    assert 2 * IMAGE_TOKENS < answer.usage.prompt_tokens < longest
    assert engine.chat(asked, GREEDY).texts == answer.texts
    assert engine.chat(chat("Look: ", png(2), " and ", png(1), "."), GREEDY).texts != answer.texts


def test_names_of_tokens_in_messages_are_no_images(bundle: ModelBundle) -> None:
    mark = bundle.tokenizer.special_tokens["<start_of_image>"]
    found = prompt(bundle, chat("<start_of_image>", png(1)))
    assert found.ids.count(mark) == len(found.pictures) == 1
    assert found.ids[found.ids.index(mark) + 1] == -1
    assert found.length == len(found.ids) - 1 + IMAGE_TOKENS
    texts, image, rest = found.inputs()
    assert isinstance(texts, TokenData) and isinstance(rest, TokenData)
    assert isinstance(image, ImageData)
    with pytest.raises(UserError, match="have no ids"):
        _ = found.token_ids
    plain = prompt(bundle, chat("<start_of_image>"))
    assert not plain.pictures and plain.token_ids == plain.ids


def test_more_images_than_fit_are_refused_before_they_are_decoded(bundle: ModelBundle) -> None:
    with pytest.raises(ContextLengthExceeded):
        prompt(bundle, chat(*[b"no image"] * (bundle.context_window // IMAGE_TOKENS)))
    with pytest.raises(UserError, match="64 images at most"):
        prompt(bundle, chat(*[b"no image"] * 65))


BAD = {
    "no image": (url(b"abcd"), "is none of"),
    "cut": (url(png(1)[:200]), "this image is truncated"),
    "a lie": (url(png(1), "image/jpeg"), "said to be image/jpeg and is PNG"),
    "empty": ("data:image/png;base64,", "has none"),
    "a host": ("https://example.org/a.png", "allow-image-hosts"),
    "a file": ("file:///etc/passwd", "data: addresses"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_refused_by_name(bundle: ModelBundle, name: str) -> None:
    address, words = BAD[name]
    asked = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}]
    before = time.process_time()
    with pytest.raises(UserError, match=words) as caught:
        prompt(bundle, asked)
    assert "messages[0].content[0].image_url.url" in str(caught.value)
    assert time.process_time() - before < 1


def test_a_tower_that_does_not_fit_is_refused_by_name(files: TinyEyes, tmp_path: Path) -> None:
    other = write_tiny_eyes(tmp_path, width=96).mmproj
    write_gguf(tmp_path / "no.gguf", {"general.architecture": "clip"}, {})
    for path, words in (
        (other, "96 numbers.* 64"),
        (files.model, "no mmproj file"),
        (tmp_path / "no.gguf", "has_vision_encoder"),
        (tmp_path / "none.gguf", "none.gguf"),
    ):
        before = time.process_time()
        with pytest.raises(UserError, match=words) as caught:
            SyncMLCEngine(str(files.model), engine_config=EngineConfig(mmproj=str(path)))
        assert path.name in str(caught.value)
        assert time.process_time() - before < 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("max_adapters", 1, "adapters"), ("sliding_window_size", 64, "sliding window")],
)
def test_what_an_engine_with_images_cannot_have(
    files: TinyEyes, field: str, value: Any, words: str
) -> None:
    config = EngineConfig.from_mapping({"mmproj": str(files.mmproj), field: value})
    with pytest.raises(UserError, match=f"mmproj.*{words}"):
        SyncMLCEngine(str(files.model), engine_config=config)


def test_a_library_takes_no_images(files: TinyEyes, tmp_path: Path) -> None:
    config = EngineConfig(mmproj=str(files.mmproj))
    with pytest.raises(UserError, match=r"mmproj.*model_lib"):
        SyncMLCEngine(str(files.model), model_lib=str(tmp_path), engine_config=config)


def test_several_towers_beside_a_model_are_none(files: TinyEyes, tmp_path: Path) -> None:
    for name in ("model.gguf", "mmproj-a.gguf"):
        source = files.model if name == "model.gguf" else files.mmproj
        (tmp_path / name).write_bytes(source.read_bytes())
    assert with_vision(open_model(str(tmp_path)), EngineConfig()).vision is not None
    (tmp_path / "mmproj-b.gguf").write_bytes(files.mmproj.read_bytes())
    assert with_vision(open_model(str(tmp_path)), EngineConfig()).vision is None


def test_steps_that_are_too_small_for_an_image_are_refused(files: TinyEyes) -> None:
    config = EngineConfig(prefill_chunk_size=IMAGE_TOKENS, mmproj=str(files.mmproj))
    with pytest.raises(UserError, match=f"prefill_chunk_size.*at least {IMAGE_TOKENS + 3}"):
        SyncMLCEngine(str(files.model), engine_config=config)


@pytest.mark.slow
def test_without_a_tower_images_are_refused(files: TinyEyes) -> None:
    config = EngineConfig(mmproj="none", verbose=False, kernels="reference")
    blind = SyncMLCEngine(str(files.model), engine_config=config)
    with pytest.raises(UserError, match="Vision config is required"):
        blind.chat(chat("a", png(1)), GREEDY)
    with pytest.raises(UserError, match="Vision config is required"):
        blind.generate([[ImageData(png(1))]], GREEDY)
