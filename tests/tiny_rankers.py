"""A tiny Qwen3 that ranks documents, as a GGUF file and as a Hugging Face folder, and its scores in
NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_reference import Facts, ReferenceDecoder
from tiny_folders import CONFIG_NAMES, NAMES, Folder, Stored, tokenizer_files

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.testing.byte_tokenizer import IM_END, IM_START, byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model
from mlc_llm.tokenizers import Tokenizer

CONTEXT = 768
SHAPE = TinyShape("qwen3", head_norms=True, rope_theta=1e6, context=CONTEXT)
JUDGE = (
    "system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
ASK = "user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query"
END = "assistant\n<think>\n\n</think>\n\n"
TEMPLATE = (
    f"<|im_start|>{JUDGE}<|im_end|>\n<|im_start|>{ASK}\n<Query>: {{query}}\n"
    f"<Document>: {{document}}<|im_end|>\n<|im_start|>{END}"
)
TOKENIZER = Tokenizer.from_gguf_metadata(byte_tokenizer_metadata())
KEYS: dict[str, Any] = {
    "qwen3.pooling_type": 4,
    "qwen3.classifier.output_labels": ["yes", "no"],
    "tokenizer.chat_template.rerank": TEMPLATE,
}
"""What llama.cpp's converter writes for a reranker."""

Floats = npt.NDArray[np.float32]


def rows_of(count: int) -> Floats:
    values = np.random.default_rng(5).standard_normal((count, SHAPE.hidden))
    return (0.3 * values).astype(np.float32)


def write_ranker(
    path: Path, rows: Floats, keys: Mapping[str, Any] = KEYS, kind: str = "F32"
) -> Path:
    """A GGUF file with these rows of the head."""
    plain = write_tiny_model(path.with_suffix(".plain"), kinds={"": "F32"}, shape=SHAPE)
    file = GGUFFile.open(plain)
    tensors = {
        name: TensorData(one.shape, one.kind, one.data.tobytes())
        for name, one in file.tensors.items()
    }
    tensors["cls.output.weight"] = TensorData.quantized(rows, kind)
    write_gguf(path, {**file.metadata, **keys}, tensors)
    return path


def ranker_folder(gguf: Path, rows: Floats) -> Folder:
    """The model of `write_ranker` as a folder, with these rows of the head."""
    file = GGUFFile.open(gguf)
    said = {key.removeprefix("qwen3."): value for key, value in file.metadata.items()}
    config: dict[str, Any] = {new: said[old] for old, new in CONFIG_NAMES.items() if old in said}
    config |= {
        "architectures": ["Qwen3ForSequenceClassification"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": False,
    }
    tensors = {
        _name(name): Stored(one.kind, one.shape, one.data.copy())
        for name, one in file.tensors.items()
        if name != "cls.output.weight"
    }
    tensors["score.weight"] = Stored("F32", rows.shape, rows.reshape(-1).view(np.uint8))
    return Folder(config, tensors, tokenizer_files())


def _name(name: str) -> str:
    names = NAMES | {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    *layer, part, end = name.split(".")
    return f"model.layers.{layer[1]}.{names[part]}.{end}" if layer else f"{names[part]}.{end}"


def prompt(query: str, document: str) -> list[int]:
    """Its token ids: the texts are ordinary text."""
    encode = TOKENIZER.encode
    asked = f"{ASK}\n<Query>: {query}\n<Document>: {document}"
    line = encode("\n")
    return [
        *(IM_START, *encode(JUDGE), IM_END, *line),
        *(IM_START, *encode(asked), IM_END, *line),
        *(IM_START, *encode(END)),
    ]


def exact_score(gguf: Path, rows: Floats, query: str, document: str) -> float:
    """In float64: the share of the first of two rows, or the sigmoid of one."""
    reference = ReferenceDecoder(gguf, Facts("qwen3", interleaved=False))
    numbers = rows.astype(np.float64) @ reference.hidden(prompt(query, document))[-1]
    shares = np.exp([*numbers] if len(numbers) > 1 else [numbers[0], 0.0])
    return float(shares[0] / shares.sum())
