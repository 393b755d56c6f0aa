"""The images of a request have a limit of time together."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

from mlc_llm.errors import InvalidField  # noqa: E402
from mlc_llm.images import addresses  # noqa: E402
from mlc_llm.images.decoder import ImageFile, ImageLimits  # noqa: E402
from mlc_llm.images.reader import ImageReader  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.serve.openai.chat import ChatPrompt, rendered_chat  # noqa: E402
from mlc_llm.serve.opening.bundle import ModelBundle, open_model  # noqa: E402
from mlc_llm.serve.opening.vision import with_vision  # noqa: E402
from mlc_llm.testing.tiny_eyes import write_tiny_eyes  # noqa: E402

REFUSED = "the images of a request are read in {} seconds together; this one is not"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelBundle]:
    files = write_tiny_eyes(tmp_path_factory.mktemp("eyes"))
    found = with_vision(open_model(str(files.model)), EngineConfig())
    yield found
    found.chat_template.close()  # type: ignore[union-attr]


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(out, "PNG")
    return out.getvalue()


def asked(bundle: ModelBundle, count: int, limits: ImageLimits) -> ChatPrompt:
    assert bundle.vision is not None
    reader: ImageReader = replace(bundle.vision.reader, limits=limits)
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    return rendered_chat(
        [{"role": "user", "content": [part] * count}],
        tokenizer=bundle.tokenizer, template=bundle.chat_template, images=reader,
    )  # fmt: skip


def test_fetching(bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = []

    def slow(url: str, hosts: Any, limits: ImageLimits, field: str) -> ImageFile:
        seconds.append(limits.seconds)
        time.sleep(min(limits.seconds, 0.4))
        if limits.seconds < 0.4:
            raise InvalidField(field, url, "late")
        return ImageFile(png())

    monkeypatch.setattr(addresses, "image_file", slow)
    before = time.monotonic()
    with pytest.raises(InvalidField) as caught:
        asked(bundle, 60, ImageLimits(seconds=0.5, all_seconds=2))
    assert time.monotonic() - before < 10
    assert caught.value.allowed == REFUSED.format(2)
    at = len(seconds) - 1  # the last one that was begun, or the one behind it
    fields = [f"messages[0].content[{i}].image_url.url" for i in (at, at + 1)]
    assert caught.value.field in fields and 1 <= len(seconds) <= 5
    assert all(0 < one <= 0.5 for one in seconds) and seconds[0] == 0.5


def test_decoding(bundle: ModelBundle) -> None:
    with pytest.raises(InvalidField) as caught:
        asked(bundle, 60, ImageLimits(all_seconds=1.5))
    assert caught.value.allowed == REFUSED.format(1.5)
    assert caught.value.field.startswith("messages[0].content[")


def test_an_image_that_is_wrong_is_named_as_such(bundle: ModelBundle) -> None:
    with pytest.raises(InvalidField, match="50 bytes at most"):
        asked(bundle, 1, ImageLimits(max_bytes=50, all_seconds=10**6))
    assert len(asked(bundle, 2, ImageLimits()).pictures) == 2
