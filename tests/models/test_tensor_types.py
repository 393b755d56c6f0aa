"""Models whose matrices are of one tensor type each: one type of each packed format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of
from decoder_reference import Facts, ReferenceDecoder
from pairs import in_turn

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.gguf_tensors import KINDS
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

SHAPE = TinyShape(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=512)
HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ2_XS": (0,),
    "MXFP4": (), "TQ2_0": (64,),
}  # fmt: skip
"""Types under test, and the offsets of the float16 numbers in a block."""
SIZES = {kind: (block, size) for kind, block, size in KINDS.values()}
KERNELS = [pytest.param(None, id="machine"), "portable"]
WORST = {"portable": 3e-5, None: 3e-3}
"""Of the largest logit. This machine's kernels have activations of 16 bits."""


def random_matrix(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> TensorData:
    """Random blocks whose values are about as large as a model's."""
    block, size = SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = 121 + blocks[:, 0] % 3
    _set_scales(blocks, kind, 1.0)
    spread = dequantize(kind, blocks.reshape(-1), shape).std()
    _set_scales(blocks, kind, 1.2 / np.sqrt(shape[1]) / spread)
    return TensorData(shape, kind, blocks.tobytes())


def _set_scales(blocks: npt.NDArray[np.uint8], kind: str, value: float) -> None:
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def write_model(path: Path, kind: str) -> Path:
    """A tiny model with every matrix of this type."""
    rng = np.random.default_rng(5)
    plain = GGUFFile.open(write_tiny_model(path, kinds={"": "F32"}, shape=SHAPE))
    metadata = dict(plain.metadata)
    tensors = {
        name: random_matrix(rng, kind, (one.shape[0], one.shape[1]))
        if len(one.shape) == 2
        else TensorData(one.shape, one.kind, one.data.tobytes())
        for name, one in plain.tensors.items()
    }
    write_gguf(path.with_suffix(".typed.gguf"), metadata, tensors)
    return path.with_suffix(".typed.gguf")


@pytest.mark.one_of(12)
@pytest.mark.parametrize(("kind", "kernels"), in_turn(HALVES, KERNELS))
def test_logits_are_those_of_the_dequantised_model(
    kind: str, kernels: str | None, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "tiny.gguf", kind)
    exact = ReferenceDecoder(path, Facts()).logits(TOKENS)
    runner = runner_of(path, tmp_path, kernels)
    for chunk in CHUNKS:
        assert relative_error(runner.logits(TOKENS, chunk=chunk), exact) <= WORST[kernels], chunk
