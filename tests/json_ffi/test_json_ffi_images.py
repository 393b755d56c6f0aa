"""`JSONFFIEngine` on a tiny random model that reads images."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from json_ffi_harness import Answer, engine_of, read

Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

from mlc_llm.json_ffi import JSONFFIEngine  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.testing.tiny_eyes import IMAGE_TOKENS, write_tiny_eyes  # noqa: E402


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JSONFFIEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        model = write_tiny_eyes(tmp_path_factory.mktemp("eyes")).model
        config = EngineConfig(verbose=False, kernels="reference", max_num_sequence=2)
        with engine_of(str(model), engine_config=config) as made:
            yield made


@pytest.fixture(autouse=True, scope="module")
def started(engine: JSONFFIEngine) -> None:
    """Its threads, and the template's, run from one test to the next."""
    asked(engine, "x")


def url(colour: str) -> str:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def asked(engine: JSONFFIEngine, text: str, *urls: str) -> Answer:
    """The answer to images and a text, as JSON."""
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    parts.append({"type": "text", "text": text})
    body = {
        "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 8,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    return read(engine._raw_chat_completion(json.dumps(body), True, "a"))


def test_an_image_is_read(engine: JSONFFIEngine) -> None:
    without, red, blue = (
        asked(engine, "What is it?", *urls) for urls in ((), (url("red"),), (url("blue"),))
    )
    for answer in (without, red, blue):
        assert answer.reason in ("stop", "length") and len(answer.usages) == 1
    (plain,), (tokens,) = without.usages, red.usages
    assert tokens.prompt_tokens >= plain.prompt_tokens + IMAGE_TOKENS
    assert red.text and red.text != blue.text, "the image changes nothing"
    assert asked(engine, "What is it?", url("red")).text == red.text


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1/a.png", "images come as data: addresses"),
        ("data:image/png;base64,AAAA", "is none of PNG"),
        ("data:image/jpeg;base64," + url("red").partition(",")[2], "is PNG"),
    ],
)
def test_a_wrong_image_is_refused_by_name(engine: JSONFFIEngine, address: str, words: str) -> None:
    answer = asked(engine, "What is it?", url("red"), address)
    assert answer.reason == "error" and words in answer.text
    assert "messages[0].content[1].image_url.url" in answer.text
