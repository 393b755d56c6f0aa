"""An encoder: vectors of texts, and documents sorted for a query. A tiny random BERT stands for
yours, so its numbers say nothing: name the file or folder of a BGE, Nomic, ModernBERT or Gemma
Embedding. To rerank, name one that was trained for it, such as bge-reranker-v2-m3."""

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from mlc_llm import MLCEngine
from mlc_llm.models.registry import read_config
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.serve import PopenServer
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

QUERY, DOCUMENTS = "what do cats eat", ["cats eat mice", "dogs bark", "rates rose again"]
WORDS = sorted({word for text in (QUERY, *DOCUMENTS) for word in text.split()})
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581{word}" for word in WORDS)]
CONFIG = {
    "architectures": ["BertForSequenceClassification"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": len(TOKENS),
    "max_position_embeddings": 128, "type_vocab_size": 2, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12, "id2label": {"0": "score"},
}  # fmt: skip
METADATA: dict[str, Any] = {
    "general.architecture": "bert", "general.name": "random", "bert.block_count": 2,
    "bert.context_length": 128, "bert.embedding_length": 64, "bert.feed_forward_length": 96,
    "bert.attention.head_count": 4, "bert.attention.layer_norm_epsilon": 1e-12,
    "bert.attention.causal": False, "bert.pooling_type": 1, "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * 4 + [1] * len(WORDS), "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.cls_token_id": 2,
    "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.seperator_token_id": 3,
    "tokenizer.ggml.eos_token_id": 3,
}  # fmt: skip


def random_bert(path: Path) -> str:
    """A file with random weights."""
    rng = np.random.default_rng(1)
    tensors: dict[str, TensorData] = {}
    for name, shape in wanted_tensors(read_config(CONFIG)).items():
        values = rng.standard_normal(shape) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        values = values + name.endswith("norm.weight")
        tensors[name] = TensorData.quantized(values.astype(np.float32), "F32")
    write_gguf(path, METADATA, tensors)
    return str(path)


def asked(url: str, body: dict[str, object]) -> Any:
    """What the server answers."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


with tempfile.TemporaryDirectory() as folder:
    model = random_bert(Path(folder) / "model.gguf")
    with MLCEngine(model) as engine:
        found = engine.embeddings.create(input=DOCUMENTS)
        vectors = [one.embedding for one in found.data]
        print(f"{found.pooling}: {len(vectors)} vectors of {len(vectors[0])} numbers")
    with PopenServer(model, port=0) as server:
        base = server.openai_v1_base_url
        given = asked(f"{base}/embeddings", {"input": DOCUMENTS})
        print(f"the server gives the same: {given['data'][0]['embedding'] == vectors[0]}")
        ranking = asked(f"{base}/rerank", {"query": QUERY, "documents": DOCUMENTS})
        for one in ranking["results"]:
            print(f"{one['relevance_score']:.3f} {DOCUMENTS[one['index']]}")
