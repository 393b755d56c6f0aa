"""Whole GGUF files read as written."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import GGUFBytes, array, small, tensor, typed

from mlc_llm.errors import ModelFileError, ModelNotFound
from mlc_llm.loader.gguf import GGUFFile


def open_bytes(folder: Path, raw: bytes) -> GGUFFile:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return GGUFFile.open(path)


@pytest.mark.parametrize("version", [2, 3])
def test_whole_file(tmp_path: Path, version: int) -> None:
    spec = small()
    spec.version = version
    file = open_bytes(tmp_path, spec.build())
    assert dict(file.metadata) == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": ["a", "b", "Ġc"],
        "tokenizer.ggml.token_type": [1, 1, 3],
    }
    a, b = file.tensors["a.weight"], file.tensors["b.weight"]
    assert (a.shape, a.kind, a.data.tobytes()) == ((2, 4), "F32", bytes(range(32)))
    assert (b.shape, b.kind, b.data.tobytes()) == ((3, 32), "Q4_0", bytes(range(32, 86)))
    assert not a.data.flags.writeable


def test_own_alignment(tmp_path: Path) -> None:
    spec = GGUFBytes(
        keys=[("general.alignment", typed("u32", 64))],
        tensors=[tensor("a", [1], 0, 0), tensor("b", [1], 0, 64)],
        data=b"AAAA" + b"\0" * 60 + b"BBBB",
        alignment=64,
    )
    file = open_bytes(tmp_path, spec.build())
    assert file.tensors["a"].data.tobytes() == b"AAAA"
    assert file.tensors["b"].data.tobytes() == b"BBBB"


def test_nested_arrays_and_every_number(tmp_path: Path) -> None:
    nested = struct.pack("<IIQ", 9, 9, 2) + array("u8", [1, 2])[4:] + array("str", ["x"])[4:]
    spec = GGUFBytes(
        keys=[
            ("nested", nested),
            ("big", typed("u64", 2**64 - 1)),
            ("double", typed("f64", 0.1)),
            ("byte", typed("u8", 255)),
            ("flags", array("bool", [0, 1])),
            ("none", array("str", [])),
        ]
    )
    file = open_bytes(tmp_path, spec.build())
    assert dict(file.metadata) == {
        "nested": [[1, 2], ["x"]],
        "big": 2**64 - 1,
        "double": 0.1,
        "byte": 255,
        "flags": [False, True],
        "none": [],
    }


def test_token_strings_lose_nothing(tmp_path: Path) -> None:
    tokens = [b"\xff\xfe", "\U0001f600".encode(), b"", b"a\0b"]
    file = open_bytes(tmp_path, GGUFBytes(keys=[("tokens", array("str", tokens))]).build())
    read = file.metadata["tokens"]
    assert [text.encode("utf-8", "surrogateescape") for text in read] == tokens


def test_quarter_million_tokens(tmp_path: Path) -> None:
    tokens = [f"token{index}é" for index in range(262_144)]
    merges = [f"t{index} u{index}" for index in range(300_000)]
    scores = list(range(262_144))
    spec = GGUFBytes(
        keys=[
            ("tokens", array("str", tokens)),
            ("merges", array("str", merges)),
            ("scores", array("f32", scores)),
            ("after", typed("str", "the end")),
        ]
    )
    file = open_bytes(tmp_path, spec.build())
    assert file.metadata["tokens"] == tokens
    assert file.metadata["merges"] == merges
    assert file.metadata["scores"] == scores
    assert file.get_str("after") == "the end"


def test_getters(tmp_path: Path) -> None:
    spec = small()
    spec.keys += [("bad", typed("str", b"\xff"))]
    file = open_bytes(tmp_path, spec.build())
    assert file.get_int("llama.block_count", low=1, high=2) == 2
    assert file.get_int("missing", None) is None
    for get, reason in [
        (lambda: file.get_int("missing"), "metadata key missing is missing"),
        (lambda: file.get_int("general.architecture"), "'llama' must be a whole number"),
        (lambda: file.get_int("tokenizer.ggml.add_bos_token"), "must be a whole number"),
        (lambda: file.get_int("llama.block_count", low=3), "block_count = 2 must be at least 3"),
        (lambda: file.get_str("bad"), "metadata key bad .* must be UTF-8 text"),
        (lambda: file.get_str("llama.block_count"), "must be UTF-8 text"),
    ]:
        with pytest.raises(ModelFileError, match=reason) as caught:
            get()
        assert "model.gguf" in str(caught.value)
        assert str(caught.value).isprintable()


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelNotFound, match="no such file"):
            GGUFFile.open(path)


def test_mapping_outlives_the_reader(tmp_path: Path) -> None:
    data = open_bytes(tmp_path, small().build()).tensors["a.weight"].data
    assert np.array_equal(data, np.arange(32))


def test_kinds_agree_with_the_public_tables() -> None:
    constants = pytest.importorskip("gguf.constants")
    from mlc_llm.loader.gguf_tensors import KINDS, OTHER_KINDS

    for number, (kind, block, size) in KINDS.items():
        public = constants.GGMLQuantizationType(number)
        assert (public.name, *constants.GGML_QUANT_SIZES[public]) == (kind, block, size)
    for public in constants.GGMLQuantizationType:
        assert public.value in KINDS or OTHER_KINDS[public.value] == public.name
