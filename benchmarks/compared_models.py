"""The models that are compared: the default one, it in other tensor types, a 1B shape, and the real
shapes of `real_shapes.py`.

Those that are made are kept in one folder. All but the requantised one have random weights. Their
values do not matter for speed; only the sizes must be real, and the numbers must stay finite.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from made_vocabulary import vocabulary_of
from peers.base import Missing
from real_shapes import REAL_SHAPES, write_real

from mlc_llm.loader.gguf import GGUFFile, GGUFTensor, Value
from mlc_llm.support.model_source import default_model_path
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

MODELS = ("default", "default-q4_0", "1b-q4_0")
"""What a comparison measures if it is not asked for others."""
REQUANTISED = {"default-q4_0": "Q4_0", "default-bf16": "BF16"}
"""The default model in other tensor types."""
ALL_MODELS = (*MODELS, *(name for name in REQUANTISED if name not in MODELS), *REAL_SHAPES)


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama whose head is its embedding table."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int = 8192
    kind: str = "Q4_0"
    """The tensor type of every matrix except the table."""
    table_kind: str = "Q4_0"


ONE_BILLION = Shape("random 1B", 2048, 16, 32, 8, 64, 8192, 32_000)
OTHER_SIZES = Shape("other sizes", 384, 12, 6, 2, 64, 1024, 32_000, kind="Q4_1", table_kind="Q8_0")
"""The default model's tensor types in another shape, to see whether it is compiled again."""


@dataclass(frozen=True)
class Sizes:
    """Sizes that limit a model's speed, from the header of its file."""

    file: int
    """Bytes of the file."""
    weights: int
    """Bytes of tensors that a decode step of one stream reads: each once, and of experts those that
    a token gets."""
    operations: int
    """Multiplications and additions for one prompt token: two for each weight of the layers that
    the token gets."""
    head_operations: int
    """The same for the head, which a token needs only if another one follows it."""
    kv_per_token: int
    """Bytes of keys and values of one token, in 16 bits."""


def sizes_of(path: Path) -> Sizes:
    file = GGUFFile.open(path)
    name = file.metadata["general.architecture"]
    experts = 1.0
    if f"{name}.expert_count" in file.metadata:
        experts = file.get_int(f"{name}.expert_used_count") / file.get_int(f"{name}.expert_count")
    tensors = dict(file.tensors)
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    if "output.weight" in tensors:
        del tensors["token_embd.weight"]  # of which a step reads a row
    shares = {key: experts if len(one.shape) == 3 else 1.0 for key, one in tensors.items()}
    layers = [key for key, one in tensors.items() if key.startswith("blk.") and _is_matrix(one)]
    width = file.get_int(f"{name}.embedding_length") // file.get_int(f"{name}.attention.head_count")
    if f"{name}.attention.key_length" in file.metadata:
        width = file.get_int(f"{name}.attention.key_length")
    kv_heads = file.get_int(f"{name}.attention.head_count_kv")
    return Sizes(
        file=path.stat().st_size,
        weights=int(sum(len(one.data) * shares[key] for key, one in tensors.items())),
        operations=int(2 * sum(math.prod(tensors[key].shape) * shares[key] for key in layers)),
        head_operations=2 * math.prod(head.shape),
        kv_per_token=4 * file.get_int(f"{name}.block_count") * kv_heads * width,
    )


def _is_matrix(tensor: GGUFTensor) -> bool:
    """A matrix, or a stack of them."""
    return len(tensor.shape) > 1


def model_file(name: str, folder: Path, quantize: Path | None) -> Path:
    """A model of ALL_MODELS, made in `folder` if it is missing. quantize: the llama-quantize of
    llama.cpp. Raises Missing if this program is needed and missing.
    """
    if name == "default":
        return default_model_path()
    made = folder / f"{name}.gguf"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(".part")
        _make(name, unfinished, quantize)
        unfinished.rename(made)
    return made


def _make(name: str, path: Path, quantize: Path | None) -> None:
    if name == "1b-q4_0":
        write_random(path, ONE_BILLION)
        return
    if name in REAL_SHAPES:
        write_real(path, REAL_SHAPES[name], GGUFFile.open(default_model_path()).metadata)
        return
    if quantize is None:
        raise Missing("it is made by llama-quantize, and llama.cpp is not built")
    files = map(str, (default_model_path(), path))
    command = [str(quantize), "--allow-requantize", *files, REQUANTISED[name], "1"]
    subprocess.run(["nice", "-n", "10", *command], check=True, capture_output=True)


def write_random(path: Path, shape: Shape, seed: int = 0) -> Path:
    """Write a model with random weights, and with as much of the default model's tokenizer as the
    vocabulary holds."""
    rng = np.random.default_rng(seed)
    source = GGUFFile.open(default_model_path())
    tensors = {name: _random(rng, name, size, shape) for name, size in _tensor_sizes(shape)}
    write_gguf(path, _metadata(shape, source.metadata), tensors)
    return path


def _tensor_sizes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide = shape.hidden, shape.intermediate
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = {
        "attn_norm": (hidden,), "attn_q": (query, hidden), "attn_k": (kv, hidden),
        "attn_v": (kv, hidden), "attn_output": (hidden, query), "ffn_norm": (hidden,),
        "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden), "ffn_down": (hidden, wide),
    }  # fmt: skip
    yield "token_embd.weight", (shape.vocabulary, hidden)
    for i in range(shape.layers):
        for name, sizes in block.items():
            yield f"blk.{i}.{name}.weight", sizes
    yield "output_norm.weight", (hidden,)


def _random(
    rng: np.random.Generator, name: str, sizes: tuple[int, ...], shape: Shape
) -> TensorData:
    """Random values, scaled so that a product has about the size of its input."""
    values = rng.standard_normal(sizes, dtype=np.float32)
    if len(sizes) == 1:
        return TensorData.quantized(1 + np.float32(0.1) * values, "F32")
    values *= np.float32(sizes[1] ** -0.5)
    kind = shape.table_kind if name.startswith("token_embd") else shape.kind
    return TensorData.quantized(values, kind)


def _metadata(shape: Shape, source: Mapping[str, Value]) -> dict[str, Value]:
    sizes: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": shape.name,
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": shape.vocabulary,
        "general.file_type": 2,
    }
    return sizes | vocabulary_of(source, shape.vocabulary)
