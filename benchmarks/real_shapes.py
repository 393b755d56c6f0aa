"""Models of real shapes in Q4_K_M, with random weights: what people run, for the speeds alone.

Sizes are those of the published models. Each tensor has the type that llama-quantize of llama.cpp
gives it in Q4_K_M: more bits for values and the down matrices of some layers and for the head, and
other blocks where a row has no whole blocks of 256.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from made_vocabulary import vocabulary_of

from mlc_llm.loader.gguf import Value
from mlc_llm.loader.gguf_tensors import KINDS
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

FILE_TYPE = 15
"""Q4_K_M, as llama.cpp numbers it."""
SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What llama-quantize takes where rows are not whole blocks."""
SCALES: Mapping[str, Mapping[int, float]] = {
    "Q4_K": {0: 1.0, 2: 7.5}, "Q6_K": {208: 1.0}, "Q4_0": {0: 1.0},
    "Q5_0": {0: 1.0}, "Q8_0": {0: 1.0},
}  # fmt: skip
"""Where a block has numbers in float16, and their ratio. The mean of random values is then near 0:
a minimum of Q4_K is 7.5 times its scale, the middle of 0 to 15."""
BLOCKS = {kind: (values, size) for kind, values, size in KINDS.values()}
SAMPLE = 1 << 16
"""Random values whose spread tells the scale."""


@dataclass(frozen=True)
class RealShape:
    title: str
    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Of one expert, if there are experts."""
    vocabulary: int
    theta: float
    tied_head: bool = True
    qk_norms: tuple[int, int] | None = None
    """Lengths of the weights of the norms of queries and of keys."""
    post_norms: bool = False
    experts: int = 0
    experts_per_token: int = 0
    rope_factors: bool = False
    more: Mapping[str, Value] = field(default_factory=dict)
    """Metadata of this architecture."""
    context: int = 8192

    @property
    def is_dense(self) -> bool:
        return self.experts == 0


REAL_SHAPES = {
    "qwen3-0.6b": RealShape(
        "Qwen3 0.6B", "qwen3", 1024, 28, 16, 8, 128, 3072, 151_936, 1e6, qk_norms=(128, 128)
    ),
    "gemma3-1b": RealShape(
        "Gemma 3 1B", "gemma3", 1152, 26, 4, 1, 256, 6912, 262_144, 1e6, qk_norms=(256, 256),
        post_norms=True, more={"attention.sliding_window": 512},
    ),
    "llama3.2-1b": RealShape(
        "Llama 3.2 1B", "llama", 2048, 16, 32, 8, 64, 8192, 128_256, 500_000.0, rope_factors=True,
        more={"rope.dimension_count": 64},
    ),
    "llama3.2-3b": RealShape(
        "Llama 3.2 3B", "llama", 3072, 28, 24, 8, 128, 8192, 128_256, 500_000.0, rope_factors=True,
        more={"rope.dimension_count": 128},
    ),
    "llama3.1-8b": RealShape(
        "Llama 3.1 8B", "llama", 4096, 32, 32, 8, 128, 14336, 128_256, 500_000.0, tied_head=False,
        rope_factors=True, more={"rope.dimension_count": 128},
    ),
    "olmoe-1b-7b": RealShape(
        "OLMoE 1B active", "olmoe", 2048, 16, 16, 16, 128, 1024, 50_304, 10_000.0, tied_head=False,
        qk_norms=(2048, 2048), experts=64, experts_per_token=8,
    ),
}  # fmt: skip
"""By the name of the model."""


def write_real(path: Path, shape: RealShape, source: Mapping[str, Value], seed: int = 0) -> Path:
    """Write the model. source: metadata with the tokenizer. Tensors of one type and shape have the
    same random values in all layers: only their sizes matter."""
    rng, made = np.random.default_rng(seed), {}
    tensors = {}
    for name, sizes in tensor_sizes(shape):
        key = (kind_of(shape, name, sizes), sizes)
        if key not in made:
            made[key] = random_tensor(rng, *key)
        tensors[name] = made[key]
    write_gguf(path, _metadata(shape, source), tensors)
    return path


def tensor_sizes(shape: RealShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and NumPy shapes of all tensors."""
    table = (shape.vocabulary, shape.hidden)
    yield "token_embd.weight", table
    if shape.rope_factors:
        yield "rope_freqs.weight", (shape.head_dim // 2,)
    for i in range(shape.layers):
        for name, sizes in (_mixer_sizes(shape) | _network_sizes(shape)).items():
            yield f"blk.{i}.{name}.weight", sizes
    yield "output_norm.weight", (shape.hidden,)
    if not shape.tied_head:
        yield "output.weight", table


def _mixer_sizes(shape: RealShape) -> dict[str, tuple[int, ...]]:
    hidden, query, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,), "attn_q": (query, hidden), "attn_k": (kv, hidden),
        "attn_v": (kv, hidden), "attn_output": (hidden, query),
    }  # fmt: skip
    if shape.qk_norms:
        found |= {"attn_q_norm": shape.qk_norms[:1], "attn_k_norm": shape.qk_norms[1:]}
    if shape.post_norms:
        found |= {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
    return found


def _network_sizes(shape: RealShape) -> dict[str, tuple[int, ...]]:
    hidden, wide = shape.hidden, shape.intermediate
    up, down = (wide, hidden), (hidden, wide)
    if shape.is_dense:
        return {"ffn_norm": (hidden,), "ffn_gate": up, "ffn_up": up, "ffn_down": down}
    stack = (shape.experts,)
    return {
        "ffn_norm": (hidden,), "ffn_gate_inp": (shape.experts, hidden),
        "ffn_gate_exps": stack + up, "ffn_up_exps": stack + up, "ffn_down_exps": stack + down,
    }  # fmt: skip


def kind_of(shape: RealShape, name: str, sizes: tuple[int, ...]) -> str:
    """The type that llama-quantize gives a tensor in Q4_K_M (llama_tensor_get_type of llama.cpp,
    src/llama-quant.cpp), for models with other than eight experts."""
    if len(sizes) == 1 or "ffn_gate_inp" in name:
        return "F32"
    is_head = name == ("token_embd.weight" if shape.tied_head else "output.weight")
    gets_more = "attn_v" in name or "ffn_down" in name
    if gets_more:
        gets_more = _has_more_bits(int(name.split(".")[1]), shape.layers)
    kind = "Q6_K" if is_head or gets_more else "Q4_K"
    return kind if sizes[-1] % 256 == 0 else SMALLER_BLOCKS[kind]


def _has_more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third layer between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def random_tensor(rng: np.random.Generator, kind: str, sizes: tuple[int, ...]) -> TensorData:
    """Random values, scaled so that a product has about the size of its input; norms near 1."""
    if kind == "F32":
        values = rng.standard_normal(sizes, dtype=np.float32)
        scaled = 1 + values / 10 if len(sizes) == 1 else values / np.float32(sizes[-1] ** 0.5)
        return TensorData.quantized(scaled.astype(np.float32), kind)
    values_a_block, size = BLOCKS[kind]
    blocks = rng.integers(0, 256, (math.prod(sizes) // values_a_block, size), np.uint8)
    _set_scales(blocks, kind, sizes[-1] ** -0.5 / _spread(kind))
    return TensorData(sizes, kind, blocks.tobytes())


@cache
def _spread(kind: str) -> float:
    """The standard deviation of random values whose scales are 1."""
    values_a_block, size = BLOCKS[kind]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (SAMPLE // values_a_block, size), np.uint8)
    _set_scales(blocks, kind, 1.0)
    return float(dequantize(kind, blocks.reshape(-1), (1, SAMPLE)).std())


def _set_scales(blocks: np.ndarray, kind: str, value: float) -> None:
    for at, ratio in SCALES[kind].items():
        number = np.float16(value * ratio).tobytes()
        blocks[:, at : at + 2] = np.frombuffer(number, np.uint8)


def _metadata(shape: RealShape, source: Mapping[str, Value]) -> dict[str, Value]:
    return metadata_of(shape) | vocabulary_of(source, shape.vocabulary)


def metadata_of(shape: RealShape) -> dict[str, Value]:
    """Metadata without a tokenizer."""
    own: dict[str, Value] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": shape.theta,
        **shape.more,
    }
    if not shape.is_dense:
        own |= {"expert_count": shape.experts, "expert_used_count": shape.experts_per_token}
    general: dict[str, Value] = {
        "general.architecture": shape.architecture,
        "general.name": f"{shape.title}, random weights",
        "general.file_type": FILE_TYPE,
        "general.quantization_version": 2,
    }
    named = {f"{shape.architecture}.{key}": value for key, value in own.items()}
    return general | named
