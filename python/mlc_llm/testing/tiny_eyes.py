"""A tiny random model that reads images: a language model like Gemma 3 and its tower, as the two
GGUF files that llama.cpp's converter makes of such a model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..loader.gguf_metadata import Value
from .byte_tokenizer import byte_tokenizer_metadata
from .gguf_writer import TensorData, write_gguf
from .tiny_model import TinyShape, write_tiny_model

IMAGE_SIDE, PATCH_SIDE, POOLED_SIDE = 64, 8, 4
IMAGE_TOKENS = POOLED_SIDE**2
SHAPE = TinyShape("gemma3", layers=6, head_norms=True, post_norms=True, window=40,
                  embedding=0.04)  # fmt: skip
"""The last layer sees everything, the others a window."""
TOWER_LAYERS, TOWER_HIDDEN, TOWER_HEADS, TOWER_WIDE = 2, 96, 4, 80
"""Heads of 24 numbers, and a network that is no multiple of 32 wide: both get zeros."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<start_of_image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONTROLS = {"<|fim|>": "<start_of_image>", "<|tool|>": "<end_of_image>"}


class TinyEyes(NamedTuple):
    """The two files."""

    model: Path
    mmproj: Path


def write_tiny_eyes(folder: Path, *, seed: int = 0, width: int = SHAPE.hidden) -> TinyEyes:
    """Write `model.gguf` and `mmproj-model.gguf` into a folder. The same arguments give the same
    bytes. width: of the tower's vectors; with another one than the model's it does not fit."""
    found = TinyEyes(folder / "model.gguf", folder / "mmproj-model.gguf")
    metadata = byte_tokenizer_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [_CONTROLS.get(str(one), one) for one in tokens]
    metadata["tokenizer.chat_template"] = CHAT_TEMPLATE
    write_tiny_model(found.model, seed=seed, shape=SHAPE, metadata=metadata)
    write_gguf(found.mmproj, _tower_metadata(width), _tower_tensors(seed, width))
    return found


def _tower_metadata(width: int) -> dict[str, Value]:
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": IMAGE_SIDE,
        "clip.vision.patch_size": PATCH_SIDE,
        "clip.vision.embedding_length": TOWER_HIDDEN,
        "clip.vision.feed_forward_length": TOWER_WIDE,
        "clip.vision.block_count": TOWER_LAYERS,
        "clip.vision.attention.head_count": TOWER_HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projector.scale_factor": IMAGE_SIDE // PATCH_SIDE // POOLED_SIDE,
        "clip.vision.projection_dim": width,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }


def _tower_tensors(seed: int, width: int) -> dict[str, TensorData]:
    hidden, wide = TOWER_HIDDEN, TOWER_WIDE
    sizes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (hidden, 3, PATCH_SIDE, PATCH_SIDE),
        "v.patch_embd.bias": (hidden,),
        "v.position_embd.weight": ((IMAGE_SIDE // PATCH_SIDE) ** 2, hidden),
        "v.post_ln.weight": (hidden,),
        "v.post_ln.bias": (hidden,),
        "mm.soft_emb_norm.weight": (hidden,),
        "mm.input_projection.weight": (hidden, width),
    }
    matrices = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (hidden, hidden)),
        "ffn_up": (wide, hidden),
        "ffn_down": (hidden, wide),
    }
    for i in range(TOWER_LAYERS):
        for name in ("ln1", "ln2"):
            sizes |= {f"v.blk.{i}.{name}.{end}": (hidden,) for end in ("weight", "bias")}
        for name, shape in matrices.items():
            sizes |= {f"v.blk.{i}.{name}.weight": shape, f"v.blk.{i}.{name}.bias": shape[:1]}
    rng = np.random.default_rng(seed + 1)
    return {name: _tensor(rng, name, shape) for name, shape in sizes.items()}


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> TensorData:
    values = rng.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        values = values * 0.1 + (0 if name.endswith("bias") else 1)
    else:
        values *= 1.5 / np.sqrt(values[0].size)
    kind = "F16" if name.endswith("attn_out.weight") else "F32"
    return TensorData.quantized(np.asarray(values, np.float32), kind)
