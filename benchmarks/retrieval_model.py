"""A Llama of two layers that finds a needle: it answers with what followed a token before.

Its tokens have random codes, and its matrices are made by hand (an induction head). In the first
layer each token attends to the one before it, by position alone, and notes its code. In the second
one, a token attends to those whose note is its own code, and answers with their codes. So behind
the first token of a needle whose tokens are nowhere else, a greedy answer is the rest of it,
wherever in the text it lies. A wrong position, a lost page or a mixed-up key changes the answer.

    hidden   code of the token | note: the code of the one before | answer | 1
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE, byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

Floats = npt.NDArray[np.float32]
CONTEXT = 2**17
HIDDEN, HEAD_DIM, INTERMEDIATE = 96, 64, 32
HALF = HEAD_DIM // 2
THETA = 1e10
EPS = 1e-6
TURNING = 19
"""Pairs of a head that turn by more than 0.2 over the whole context; the others hold codes."""
CODE = HEAD_DIM - 2 * TURNING
NOTE, ANSWER, ONE = CODE, 2 * CODE, 3 * CODE
CALM = [*range(TURNING, HALF), *range(HALF + TURNING, HEAD_DIM)]
"""Elements of a head that hold a code."""
SHARP, MATCH, SURE = 30.0, 4.0, 1.0
"""What scores by position, scores by code, and logits are multiplied by."""
NEEDLE = tuple(b"QWERTYUIOPAS")
_HAYSTACK = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz .,\n", np.uint8)


def prompt(length: int, depth: float, seed: int = 0) -> list[int]:
    """A text of so many tokens with the needle in it, which ends with the needle's first token.
    depth: 0 at the beginning to 1 at the end."""
    text = np.random.default_rng(seed).choice(_HAYSTACK, length).tolist()
    at = 1 + round(depth * (length - len(NEEDLE) - 2))  # the first token has none before it
    text[at : at + len(NEEDLE)] = NEEDLE
    return [*text[:-1], NEEDLE[0]]


def expected() -> list[int]:
    """The answer to any prompt."""
    return list(NEEDLE[1:])


def weights(seed: int = 0) -> dict[str, Floats]:
    """By the names of Transformers."""
    codes = _codes(np.random.default_rng(seed))
    embedding = np.zeros((VOCABULARY_SIZE, HIDDEN), np.float32)
    embedding[:, :CODE], embedding[:, ONE] = codes, 1
    head = np.zeros_like(embedding)
    head[:, ANSWER:ONE] = SURE * codes
    found = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer, attention in enumerate((_looks_back(), _looks_up())):
        stem = f"model.layers.{layer}"
        found |= {f"{stem}.self_attn.{name}_proj.weight": one for name, one in attention.items()}
        for norm in ("input", "post_attention"):
            found[f"{stem}.{norm}_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        for name in ("gate", "up", "down"):
            sizes = (HIDDEN, INTERMEDIATE) if name == "down" else (INTERMEDIATE, HIDDEN)
            found[f"{stem}.mlp.{name}_proj.weight"] = np.zeros(sizes, np.float32)
    return found


def _codes(rng: np.random.Generator) -> Floats:
    """Rows of 1 and -1; two of them agree in 21 elements at most."""
    found: list[npt.NDArray[np.int64]] = []
    while len(found) < VOCABULARY_SIZE:
        one = rng.choice([-1, 1], CODE)
        if not found or (np.array(found) @ one).max() <= 16:
            found.append(one)
    return np.array(found, np.float32)


def _norm(filled: int) -> float:
    """What RMS norm multiplies a vector by that has so many numbers of size 1."""
    return float((filled / HIDDEN) ** -0.5)


def _empty() -> dict[str, Floats]:
    """Matrices of attention that do nothing."""
    shapes = {"q": (HEAD_DIM, HIDDEN), "k": (HEAD_DIM, HIDDEN), "v": (HEAD_DIM, HIDDEN)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | {
        "o": np.zeros((HIDDEN, HEAD_DIM), np.float32)
    }


def _looks_back() -> dict[str, Floats]:
    """The score at distance d is SHARP times the sum of cos((d - 1) * frequency)."""
    found, norm = _empty(), _norm(CODE + 1)
    size = (SHARP * HEAD_DIM**0.5) ** 0.5 / norm
    for pair in range(TURNING):
        turn = THETA ** (-pair / HALF)
        found["k"][pair, ONE] = size
        found["q"][pair, ONE], found["q"][HALF + pair, ONE] = (
            size * np.cos(turn),
            -size * np.sin(turn),
        )
    for i in range(CODE):
        found["v"][i, i] = 1 / norm
        found["o"][NOTE + i, i] = 1
    return found


def _looks_up() -> dict[str, Floats]:
    """The score is MATCH times the product of a token's code and the other one's note."""
    found, norm = _empty(), _norm(2 * CODE + 1)
    size = (MATCH * HEAD_DIM**0.5) ** 0.5 / norm
    for i, element in enumerate(CALM):
        found["q"][element, i] = size
        found["k"][element, NOTE + i] = size
        found["v"][i, i] = 1 / norm
        found["o"][ANSWER + i, i] = 1
    return found


_GGUF = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _pairs_together(matrix: Floats) -> Floats:
    """Rows of a head as converters lay them out: the two of a pair are neighbours."""
    pairs = matrix.reshape(2, HALF, -1).swapaxes(0, 1)
    return np.ascontiguousarray(pairs.reshape(matrix.shape))


def write_retrieval_model(path: Path, seed: int = 0) -> Path:
    """The model as a GGUF file of float32."""
    tensors = {}
    for name, values in weights(seed).items():
        *place, _ = name.split(".")
        stem = ".".join(place)
        inner = _GGUF.get(".".join(place[3:]))
        given = _OUTER.get(stem) or f"blk.{place[2]}.{inner}"
        as_stored = _pairs_together(values) if inner in ("attn_q", "attn_k") else values
        tensors[f"{given}.weight"] = TensorData.quantized(as_stored, "F32")
    own: dict[str, int | float] = {
        "block_count": 2, "context_length": CONTEXT, "embedding_length": HIDDEN,
        "feed_forward_length": INTERMEDIATE, "attention.head_count": 1,
        "attention.head_count_kv": 1, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": EPS,
        "rope.dimension_count": HEAD_DIM, "rope.freq_base": THETA, "vocab_size": VOCABULARY_SIZE,
    }  # fmt: skip
    metadata = {f"llama.{key}": value for key, value in own.items()}
    general = {"general.architecture": "llama", "general.name": "retrieval model"}
    write_gguf(path, {**general, **metadata, **byte_tokenizer_metadata()}, tensors)
    return path


def transformers_config() -> dict[str, object]:
    """Fields of Transformers' `LlamaConfig`."""
    return {
        "vocab_size": VOCABULARY_SIZE, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": HEAD_DIM, "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "tie_word_embeddings": False, "attn_implementation": "eager",
    }  # fmt: skip
