"""Images become pixels in a limited process. Bad ones are refused with their field's name."""

from __future__ import annotations

import io
import logging
import struct
import zlib

import numpy as np
import pytest

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.images import decoder, sandbox
from mlc_llm.images.decoder import ImageFile, ImageLimits, Target, decoded

Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)


def written(pixels: np.ndarray, form: str = "PNG", **more: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, **more)
    return out.getvalue()


def png(width: int, height: int, packed: bytes) -> bytes:
    """A PNG whose header says anything."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def refusal(data: bytes, media_type: str | None = None, **limits: int) -> str:
    with pytest.raises(InvalidField) as error:
        decoded(ImageFile(data, media_type), None, ImageLimits(**limits), "messages[0]")
    assert error.value.field == "messages[0]" and "\n" not in str(error.value)
    return error.value.allowed


def test_pixels_of_a_png_come_as_they_are() -> None:
    pixels = noise(13, 5)
    assert (decoded(ImageFile(written(pixels), "image/png")) == pixels).all()


@pytest.mark.parametrize("form", FORMATS)
def test_formats_are_decoded_and_resized_as_by_pillow(form: str) -> None:
    data = written(noise(40, 31), form)
    wanted = Image.open(io.BytesIO(data)).convert("RGB").resize((28, 14), Image.Resampling.BILINEAR)
    found = decoded(ImageFile(data, FORMATS[form]), Target(28, 14))
    assert found.shape == (14, 28, 3) and (found == np.asarray(wanted)).all()


@pytest.mark.parametrize("media_type", [None, "image/jpeg", "image/jpg"])
def test_of_a_jpeg_with_several_pictures_the_first_counts(media_type: str | None) -> None:
    """Cameras and phones write them, with a preview or a map of depths behind the picture."""
    first, second = Image.fromarray(noise(8, 6)), Image.fromarray(noise(4, 2))
    out = io.BytesIO()
    first.save(out, "MPO", save_all=True, append_images=[second])
    found = decoded(ImageFile(out.getvalue(), media_type))
    assert (found == np.asarray(Image.open(io.BytesIO(out.getvalue())))).all()
    assert "image/png and is JPEG" in refusal(out.getvalue(), "image/png")


def test_an_image_is_upright_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    pixels = noise(6, 4)
    found = decoded(ImageFile(written(pixels, exif=exif)))
    assert (found == np.rot90(pixels, -1)).all()


def test_a_lie_about_the_type_is_refused() -> None:
    words = "this image is said to be image/jpeg and is PNG"
    assert refusal(written(noise(4, 4)), "image/jpeg") == words
    assert "said to be text/html" in refusal(written(noise(4, 4)), "text/html")
    assert len(refusal(written(noise(4, 4)), "image/" + "x" * 10**5)) < 120


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    data = png(60_000, 60_000, zlib.compress(bytes(1000)))
    assert refusal(data) == "this image has 60000 x 60000 pixels, more than 50000000"
    assert "has 9 x 7 pixels, more than 50" in refusal(written(noise(9, 7)), max_pixels=50)


def test_what_needs_too_much_memory_is_refused() -> None:
    rows = zlib.compress(bytes(4000 * (4000 * 3 + 1)), 1)
    words = refusal(png(4000, 4000, rows), memory=120 * 2**20)
    assert words == "this image needs too much memory to decode"


def test_a_file_that_is_too_long_is_refused() -> None:
    assert refusal(bytes(101), max_bytes=100) == "an image has 100 bytes at most"


@pytest.mark.parametrize("form", FORMATS)
def test_a_truncated_file_is_refused(form: str) -> None:
    data = written(noise(64, 64), form)
    assert refusal(data[: len(data) // 2]) in ("this image is broken", "this image is truncated")
    assert refusal(written(noise(64, 64), "PNG")[:4000]) == "this image is truncated"


@pytest.mark.parametrize("form", FORMATS)
def test_a_decoders_own_words_stay_in_the_log(form: str, caplog: pytest.LogCaptureFixture) -> None:
    """They may have addresses of memory (CVE-2026-22778)."""
    caplog.set_level(logging.DEBUG, "mlc_llm.images")
    whole, rng = written(noise(16, 16), form), np.random.default_rng(3)
    kinds = {"is broken", "is truncated", "needs too much memory to decode"}
    refused = 0
    for _ in range(6):
        data = bytearray(whole)
        for at in rng.integers(12, len(data), 3):
            data[at] ^= 1 << int(rng.integers(8))
        try:
            decoded(ImageFile(bytes(data)), None, ImageLimits(max_pixels=10**6), "here")
        except InvalidField as error:
            words = error.allowed.removeprefix("this image ")
            refused += words in kinds
            known = words.startswith(("is none of ", "has "))
            assert words in kinds or known, words
    details = [one.getMessage() for one in caplog.records if one.levelno == logging.DEBUG]
    assert len(details) >= refused and all(one.startswith("here: ") for one in details)
    if form == "PNG":
        assert any("Error: " in one for one in details)


def test_words_of_a_decoder_are_fixed() -> None:
    for error in (OSError("<_io.BytesIO object at 0x7f3a>"), SyntaxError("0x7f3a"), KeyError(3)):
        assert sandbox._words(error) == "is broken"
        assert sandbox._detail(error).startswith(f"{type(error).__name__}: ")
    cut = OSError("image file is truncated (9 bytes of 0x7f3a not processed)")
    assert sandbox._words(cut) == "is truncated"


def test_an_image_that_takes_too_long_is_refused() -> None:
    rows = zlib.compress(bytes(4000 * (4000 * 3 + 1)), 1)
    with pytest.raises(InvalidField, match=r"is decoded in 0\.01 seconds; this one is not"):
        decoded(ImageFile(png(4000, 4000, rows)), None, ImageLimits(seconds=0.01))


@pytest.mark.parametrize(
    ("name", "words"), [("SIGALRM", "is decoded in 20 seconds"), ("SIGKILL", "too much memory")]
)
def test_a_process_that_is_ended_in_the_middle_of_its_answer_has_none(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    ends = f"os.kill(os.getpid(), signal.{name})"
    program = f"import os, signal; print('{{\"sizes\": [[64, 64]]}}', flush=True); {ends}"
    monkeypatch.setattr(decoder, "_START", program)
    with pytest.raises(InvalidField, match=words):
        decoded(ImageFile(written(noise(64, 64))))


def test_a_process_that_does_not_start_says_why_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(MLCError, match="does not start; the log says why") as caught:
        decoded(ImageFile(written(noise(4, 4))))
    assert "/no/such" not in str(caught.value) and "/no/such/python" in caplog.text


def test_an_image_of_no_pixels_is_refused() -> None:
    for width, height in ((0, 4), (4, 0), (0, 0)):
        assert "broken at its beginning" in refusal(png(width, height, zlib.compress(b"")))


def test_other_files_are_refused() -> None:
    for data in (b"<svg/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"P6 1 1 255 abc"):
        assert "is none of PNG, JPEG, WEBP, GIF, BMP" in refusal(data)
    assert refusal(b"") == "an image has bytes; this one has none"
