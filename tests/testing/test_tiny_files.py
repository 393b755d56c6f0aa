"""The test model's file, read by the gguf package: our writer is held to somebody else's reader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from mlc_llm.testing.block_quantizers import QUANTIZERS, quantize_blocks
from mlc_llm.testing.byte_tokenizer import (
    CONTROL_TOKENS,
    END_OF_TEXT,
    IM_END,
    VOCABULARY_SIZE,
    byte_letters,
    byte_tokenizer_metadata,
)
from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_model import TinyShape, tensor_sizes, write_tiny_model

WORST_STEP = {
    "F32": 0.0,
    "F16": 2**-11,
    "BF16": 2**-7,
    "Q4_0": 0.51 / 7,
    "Q4_1": 0.51 / 15,
    "Q8_0": 0.51 / 127,
}
"""Largest error of a value against the largest magnitude (Q4_1: the span) of its block."""


def field(reader: gguf.GGUFReader, key: str) -> object:
    return reader.fields[key].contents()


def test_every_kind_of_metadata_comes_back(tmp_path: Path) -> None:
    values = {
        "text": "ünï\n", "yes": True, "small": 7, "below": -7, "big": 2**40, "low": -(2**40),
        "half": 0.5, "words": ["", "a"], "numbers": [1, -1], "flags": [True, False], "reals": [1.5],
    }  # fmt: skip
    tensor = TensorData((2, 3), "F32", np.arange(6, dtype="<f4").tobytes())
    write_gguf(tmp_path / "a.gguf", values, {"one": tensor, "two": tensor})
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert {key: field(reader, key) for key in values} == values
    assert [t.name for t in reader.tensors] == ["one", "two"]
    assert reader.tensors[1].data.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("values", [[], [1, "a"], [1, 2.0]])
def test_lists_of_mixed_types_are_refused(tmp_path: Path, values: list[object]) -> None:
    with pytest.raises(TypeError):
        write_gguf(tmp_path / "a.gguf", {"key": values}, {})


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_quantizers_are_as_near_as_their_step(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    values[3, :32] = 0
    raw = np.frombuffer(quantize_blocks(values, kind), np.uint8).reshape(8, -1)
    back = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).reshape(values.shape)
    blocks, error = values.reshape(-1, 32), np.abs(back - values).reshape(-1, 32)
    span = np.abs(blocks).max(axis=1)
    if kind == "Q4_1":
        span = np.ptp(blocks, axis=1)
    assert (error.max(axis=1) <= WORST_STEP[kind] * span + 1e-7).all()
    assert (back[3, :32] == 0).all()


def test_tiny_model_is_reproducible_and_complete(tmp_path: Path) -> None:
    first = write_tiny_model(tmp_path / "a.gguf").read_bytes()
    assert first == write_tiny_model(tmp_path / "b.gguf").read_bytes()
    assert first != write_tiny_model(tmp_path / "c.gguf", seed=1).read_bytes()
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    sizes = {t.name: tuple(int(n) for n in t.shape[::-1]) for t in reader.tensors}
    assert sizes == tensor_sizes(TinyShape())
    assert sizes["token_embd.weight"][0] == len(field(reader, "tokenizer.ggml.tokens"))  # type: ignore[arg-type]


def test_tiny_model_takes_kinds_and_scaling(tmp_path: Path) -> None:
    shape = TinyShape(layers=1, tied_head=False, rope_linear=4.0, rope_factors=(1.0,) * 8)
    kinds = {"attn_v": "Q8_0", "output": "F16", "": "Q4_1"}
    path = write_tiny_model(tmp_path / "a.gguf", kinds=kinds, shape=shape)
    reader = gguf.GGUFReader(path)
    kind = {t.name: t.tensor_type.name for t in reader.tensors}
    assert (kind["blk.0.attn_v.weight"], kind["blk.0.attn_q.weight"]) == ("Q8_0", "Q4_1")
    assert (kind["output.weight"], kind["rope_freqs.weight"]) == ("F16", "F32")
    assert field(reader, "llama.rope.scaling.factor") == 4.0


def test_byte_tokenizer_vocabulary() -> None:
    metadata = byte_tokenizer_metadata()
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert len(tokens) == len(set(tokens)) == VOCABULARY_SIZE == 300
    assert tokens[:256] == byte_letters()
    assert tokens[ord("A")] == "A"
    assert tokens[ord(" ")] == "Ġ"
    assert tuple(tokens[END_OF_TEXT:]) == CONTROL_TOKENS
    assert tokens[IM_END] == "<|im_end|>"
    known = set(tokens[:256])
    for merge in merges:  # each joins what the bytes and the merges before it can make
        assert set(merge.split(" ")) <= known
        known.add(merge.replace(" ", ""))
