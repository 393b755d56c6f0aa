"""A decoder with random weights for tests. It is so small that it compiles in about a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.record import record

from ..loader.gguf_metadata import Value
from .byte_tokenizer import VOCABULARY_SIZE, byte_tokenizer_metadata
from .gguf_writer import TensorData, write_gguf

Floats = npt.NDArray[np.float32]

DEFAULT_KINDS: Mapping[str, str] = {"token_embd": "Q8_0", "": "Q4_0"}
"""Last part of a tensor's name -> tensor type; "" stands for all other matrices."""


@record()
class TinyShape:
    """Sizes of the model. hidden and intermediate must be multiples of 32, head_dim of 16.

    The vocabulary is that of the byte tokenizer, plus `padding` rows.
    """

    architecture: str = "llama"
    """A name in `models/registry.py`. The fields below say what differs from a Llama."""
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 96
    context: int = 512
    embedding: float = 0.3
    """Deviation of the numbers of the embedding, and of an own head."""
    padding: int = 0
    """Rows of the embedding and the head that are no tokens. Their logits are far greater than all
    others. All other weights are the same as without them."""
    tied_head: bool = True
    """The model has no own head and uses the embedding table."""
    rope_theta: float = 10000.0
    rope_linear: float = 1.0
    """Positions are divided by this."""
    rope_factors: tuple[float, ...] = ()
    """head_dim / 2 divisors of the frequencies (Llama 3 scaling), or none."""
    head_norms: bool = False
    """Queries and keys are normalised head by head."""
    post_norms: bool = False
    """There are norms after attention and after the feed-forward network too."""
    window: int = 0
    """Tokens that layers with a window see; 0: no layer has one."""


DEFAULT_SHAPE = TinyShape()


def write_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    kinds: Mapping[str, str] = DEFAULT_KINDS,
    shape: TinyShape = DEFAULT_SHAPE,
    metadata: Mapping[str, Value] = {},
) -> Path:
    """Write a GGUF file with a byte tokenizer and a ChatML template. Returns `path`.

    The same arguments give the same bytes. kinds: last part of a tensor's name ("attn_q", "output",
    ...) -> tensor type, with "" for all others; the types of `block_quantizers`. metadata: takes
    the place of keys that the file would have, or is added to them.
    """
    rng = np.random.default_rng(seed)
    tensors = {
        name: TensorData.quantized(
            _padded(_weights(rng, name, sizes, shape.embedding), name, shape), _kind(kinds, name)
        )
        for name, sizes in tensor_sizes(replace(shape, padding=0)).items()
    }
    if shape.rope_factors:
        factors = np.asarray(shape.rope_factors, np.float32)
        tensors["rope_freqs.weight"] = TensorData.quantized(factors, "F32")
    write_gguf(path, {**_metadata(shape, seed), **metadata}, tensors)
    return path


def tensor_sizes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    """Name -> NumPy shape of every weight, in the order of the file."""
    hidden, wide = shape.hidden, shape.intermediate
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = {
        "attn_norm": (hidden,), "attn_q": (query, hidden), "attn_k": (kv, hidden),
        "attn_v": (kv, hidden), "attn_output": (hidden, query), "ffn_norm": (hidden,),
        "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden), "ffn_down": (hidden, wide),
    }  # fmt: skip
    if shape.head_norms:
        block |= {"attn_q_norm": (shape.head_dim,), "attn_k_norm": (shape.head_dim,)}
    if shape.post_norms:
        block |= {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
    rows = VOCABULARY_SIZE + shape.padding
    sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, hidden)}
    for i in range(shape.layers):
        sizes |= {f"blk.{i}.{name}.weight": size for name, size in block.items()}
    sizes["output_norm.weight"] = (hidden,)
    if not shape.tied_head:
        sizes["output.weight"] = (rows, hidden)
    return sizes


def _weights(
    rng: np.random.Generator, name: str, sizes: tuple[int, ...], embedding: float
) -> Floats:
    """Random weights, scaled so that logits differ by a few units and layers matter more than the
    embedding. Otherwise a model with a tied head would repeat its last token forever."""
    values = rng.standard_normal(sizes)
    if len(sizes) == 1:
        values = 1 + 0.1 * values
    elif name in ("token_embd.weight", "output.weight"):
        values *= embedding
    else:
        values *= 1.5 / np.sqrt(sizes[1])
    return values.astype(np.float32)


def _padded(values: Floats, name: str, shape: TinyShape) -> Floats:
    """Values with `padding` rows at the end: rows of tokens, times 20 or -20."""
    if name not in ("token_embd.weight", "output.weight") or not shape.padding:
        return values
    rows = values[np.arange(shape.padding) // 2 % len(values)]
    return np.concatenate([values, rows * np.resize([20, -20], (shape.padding, 1))]).astype(
        np.float32
    )


def _kind(kinds: Mapping[str, str], name: str) -> str:
    part = name.removesuffix(".weight").split(".")[-1]
    return "F32" if part.endswith("norm") else kinds.get(part, kinds[""])


def _metadata(shape: TinyShape, seed: int) -> dict[str, Value]:
    own: dict[str, Value] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": shape.rope_theta,
        "vocab_size": VOCABULARY_SIZE + shape.padding,
    }
    if shape.rope_linear != 1.0:
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": shape.rope_linear}
    if shape.window:
        own["attention.sliding_window"] = shape.window
    general = {
        "general.architecture": shape.architecture,
        "general.name": f"tiny random model {seed}",
    }
    prefixed = {f"{shape.architecture}.{key}": value for key, value in own.items()}
    return {**general, **prefixed, **byte_tokenizer_metadata()}
